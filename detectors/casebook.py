"""What one detector knows of its subjects: last values, how long each condition has lasted, which findings are open."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from detectors.codes import CODES
from detectors.table import Floats, Rows, Table
from passmuster.columns import Columns
from passmuster.records import FaultClass, Finding, Severity, SubjectKind, Vendor

SECOND = 1_000_000_000  # nanoseconds

# An open finding that goes on unchanged is written again this often: its last_seen_at says that it is still there,
# and a reader that missed one learns of it soon. Faster would write a row per reading for nothing.
SEEN_AGAIN_SECONDS = 300.0

MAX_EVIDENCE = 512  # characters per value: evidence is copied into every finding and ledger event
MAX_KEY = 256  # length of Finding.dedup_key

Mask = NDArray[np.bool_]


def dedup_key(detector: str, code: str, subject_id: str) -> str:
    """Return detector/code/subject; a hostile, over-long subject is replaced by its hash."""
    key = f"{detector}/{code}/{subject_id}"
    if len(key) <= MAX_KEY:
        return key
    digest = hashlib.sha256(subject_id.encode("utf-8", "replace")).hexdigest()[:32]
    return f"{detector[:64]}/{code[:128]}/{digest}"


@lru_cache(maxsize=65536)
def boot_number(boot_id: str) -> float:
    """Return a number that stands for a boot id in a table."""
    return float(zlib.crc32(boot_id.encode("utf-8", "replace")))


def number(records: Columns, name: str) -> Floats:
    """Return a numeric or boolean column as float64, NaN for null; not to be written into."""
    return records.numbers(name)


def text(records: Columns, name: str) -> NDArray[Any]:
    """Return a text column as objects, "" for null."""
    values = records.values(name)
    return values if values.dtype == object else np.full(records.rows, "", object)


def shown(value: Any) -> str:
    """Return a value as evidence: short text, plain numbers."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        value = ", ".join(f"{k}={shown(v)}" for k, v in value.items())
    return str(value)[:MAX_EVIDENCE]


class Casebook:
    """State in, findings out: built from a state at the start of `observe`, taken apart by `result` at its end."""

    def __init__(self, detector: str, state: Mapping[str, Any], now: int) -> None:
        self.detector = detector
        self.one_shot = bool(state.get("one_shot"))
        self.now = now
        self.table = Table.of(state.get("table"))
        self.open: dict[str, Finding] = dict(state.get("open", {}))
        self.emitted_at: dict[str, int] = dict(state.get("emitted_at", {}))
        # Codes that any subject is on its way to, or has open: all others need no array on a healthy fleet.
        self._active: set[str] = set(state.get("active", ()))
        self.more: dict[str, Any] = {
            k: v for k, v in state.items() if k not in ("table", "open", "emitted_at", "active")
        }
        self.findings: list[Finding] = []

    def result(self) -> tuple[dict[str, Any], list[Finding]]:
        """Return the new state and the findings that opened, were seen again or cleared."""
        state = {**self.more, "table": self.table, "open": self.open, "emitted_at": self.emitted_at}
        return {**state, "active": sorted(self._active)}, self.findings

    def rows(self, records: Columns) -> Rows:
        """Return the table row of each record's subject."""
        return self.table.rows(records.objects("subject"))

    def draft(
        self,
        records: Columns,
        i: int,
        code: str,
        *,
        host_wide: bool = False,
        value: float | None = None,
        bound: float | None = None,
        evidence: Mapping[str, Any] | None = None,
        detail: str = "",
    ) -> Finding:
        """Return a finding on the subject of row ``i`` with words, class and severity of its code."""
        entry = CODES[code]
        host = records.objects("host")[i]
        device_id = "" if host_wide else records.objects("device_id")[i] or ""
        on_device = bool(device_id)
        at = int(records.objects("observed_at")[i])
        return Finding(
            cluster=records.objects("cluster")[i],
            host=host,
            boot_id=records.objects("boot_id")[i],
            observed_at=at,
            dedup_key=dedup_key(self.detector, code, device_id or host),
            opened_at=at,
            last_seen_at=at,
            detector=self.detector,
            code=code,
            subject_kind=SubjectKind.DEVICE if on_device else SubjectKind.HOST,
            subject_id=device_id or host,
            device_id=device_id,
            vendor=Vendor(records.objects("vendor")[i] or "none") if on_device else Vendor.HOST,
            model=(records.objects("model")[i] or "") if on_device else "",
            pci_address=records.objects("pci_address")[i] if on_device else None,
            fault_class=entry.fault_class,
            severity=entry.severity,
            title=f"{entry.title}: {detail}" if detail else entry.title,
            next_step=entry.next_step,
            value=value,
            bound=bound,
            evidence={k: shown(v) for k, v in (evidence or {}).items() if v is not None} or None,
        )

    def see(self, key: str, finding: Finding) -> None:
        """Take note that a condition is there: opens it, or sees it again.

        Seen again, it is written when it changed in kind (class, severity, secondary, what is wrong) or when it was
        last written `SEEN_AGAIN_SECONDS` ago.
        """
        before = self.open.get(key)
        if before is None:
            self.open[key] = finding
        else:
            finding = replace(finding, opened_at=before.opened_at, dedup_key=before.dedup_key)
            changed = (finding.fault_class, finding.severity, finding.secondary, finding.code) != (
                before.fault_class,
                before.severity,
                before.secondary,
                before.code,
            )
            self.open[key] = finding
            if not changed and finding.last_seen_at < self.emitted_at.get(key, 0) + SEEN_AGAIN_SECONDS * SECOND:
                return
        self.emitted_at[key] = finding.last_seen_at
        self.findings.append(finding)

    def clear(self, key: str, at: int, why: str = "") -> None:
        """Take note that a condition is gone; nothing happens when it was not open."""
        finding = self.open.pop(key, None)
        self.emitted_at.pop(key, None)
        if finding is None:
            return
        at = max(at, finding.opened_at)
        evidence = {**(finding.evidence or {}), "cleared_because": why} if why else finding.evidence
        self.findings.append(replace(finding, observed_at=at, cleared_at=at, evidence=evidence))

    def deltas(self, rows: Rows, name: str, current: Floats, same: Mask) -> Floats:
        """Return how much a counter grew since the last row of its subject, and keep ``current`` for the next.

        NaN where that cannot be told: no earlier value, another boot or epoch (``same`` False), a value that fell
        (the counter restarted), or no value now. A null leaves the earlier value standing.
        """
        before = self.table.get(name, rows)
        delta = current - before
        self.table.put(name, rows, np.where(np.isnan(current), np.where(same, before, np.nan), current))
        kept: Floats = np.where(same & (delta >= 0), delta, np.nan)
        return kept

    def same_epoch(self, records: Columns, rows: Rows) -> Mask:
        """Return which rows continue the counters of the row before: same boot and same counter epoch."""
        boot = np.array([boot_number(b) for b in records.objects("boot_id")], np.float64)
        epoch = number(records, "epoch") if records.has("epoch") else np.zeros(records.rows)
        same: Mask = (self.table.get("boot", rows) == boot) & (self.table.get("epoch", rows) == epoch)
        self.table.put("boot", rows, boot)
        self.table.put("epoch", rows, epoch)
        return same

    def seconds_since(self, records: Columns, rows: Rows) -> Floats:
        """Return the time between this row and the last of its subject; NaN for the first."""
        at = records.values("observed_at").astype(np.float64)
        since: Floats = (at - self.table.get("at", rows)) / SECOND
        self.table.put("at", rows, at)
        return since

    def condition(
        self, rows: Rows, code: str, bad: Mask, known: Mask, *, need_bad: int = 1, need_good: int = 1
    ) -> tuple[Mask, Mask]:
        """Count how long a condition has held; return which rows see it now and which clear it.

        It opens at ``need_bad`` rows in a row and clears at ``need_good`` good ones; rows that are not ``known`` count
        neither way, so a null never clears anything. In a one-shot look one row is all there will be.
        """
        bad = bad & known
        need_bad = 1 if self.one_shot else need_bad
        if code not in self._active:
            if not np.count_nonzero(bad):
                return bad, bad
            self._active.add(code)
        run = self.table.get(f"run:{code}", rows, 0.0)
        bad_run = np.where(run > 0, run + 1, 1.0)
        good_run = np.where(run < 0, run - 1, -1.0)
        run = np.where(known, np.where(bad, bad_run, good_run), run)
        was_open = self.table.get(f"open:{code}", rows, 0.0) > 0
        seen: Mask = bad & ((run >= need_bad) | was_open)
        cleared: Mask = was_open & (run <= -need_good)
        self.table.put(f"run:{code}", rows, run)
        self.table.put(f"open:{code}", rows, (was_open | seen) & ~cleared)
        if not np.count_nonzero(self.table.every(f"run:{code}", 0.0) > 0) and not np.count_nonzero(
            self.table.every(f"open:{code}", 0.0)
        ):
            self._active.discard(code)
        return seen, cleared

    def watch(
        self,
        records: Columns,
        rows: Rows,
        code: str,
        bad: Mask,
        known: Mask,
        *,
        need_bad: int = 1,
        need_good: int = 1,
        value: Floats | None = None,
        bound: Floats | float | None = None,
        columns: Iterable[str] = (),
        extra: Mapping[str, Any] | None = None,
        fault_class: FaultClass | None = None,
        severity: Severity | None = None,
        host_wide: bool = False,
    ) -> None:
        """Follow one condition over all rows: `condition`, then `see` or `clear` for the few that need it.

        ``columns`` are copied from the record into the evidence, ``extra`` holds one value per row.
        """
        seen, cleared = self.condition(rows, code, bad, known, need_bad=need_bad, need_good=need_good)
        if not np.count_nonzero(seen) and not np.count_nonzero(cleared):
            return
        for i in np.flatnonzero(seen).tolist():
            evidence = {c: records.objects(c)[i] for c in columns} | {k: v[i] for k, v in (extra or {}).items()}
            finding = self.draft(
                records,
                i,
                code,
                host_wide=host_wide,
                value=None if value is None or np.isnan(value[i]) else float(value[i]),
                bound=None if bound is None else float(bound[i] if isinstance(bound, np.ndarray) else bound),
                evidence=evidence,
            )
            if self.one_shot and need_bad > 1:
                # Seen once, where it takes several rows to be sure: worth telling, not worth refusing work for.
                finding = replace(
                    finding, severity=Severity.WARNING, evidence={**(finding.evidence or {}), "confirmed": "no"}
                )
            elif fault_class is not None or severity is not None:
                finding = replace(
                    finding,
                    fault_class=fault_class or finding.fault_class,
                    severity=severity or finding.severity,
                )
            self.see(f"{code}/{records.objects('subject')[i]}", finding)
        for i in np.flatnonzero(cleared).tolist():
            self.clear(f"{code}/{records.objects('subject')[i]}", int(records.objects("observed_at")[i]))
