"""Runs the registered detectors over batches as they come and keeps what they know between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from detectors.detector import Detector, State, load_all
from detectors.table import Table
from passmuster.batch import Batch
from passmuster.columns import Columns
from passmuster.config import Config
from passmuster.records import CheckState, Finding, Health, Mode, Severity, SubjectKind

SECOND = 1_000_000_000  # nanoseconds

SNAPSHOT_VERSION = 1

# Older rows are history: they are stored, and what they say is acted on only when it is read again now.
LATE_SECONDS = 600.0

# Rows from further ahead than this come from a broken clock; taking one would make every true row after it look old.
AHEAD_SECONDS = 600.0

# A host has at most 16 GPUs in today's boxes, 64 with every partition named; a host that names more is broken or
# hostile, and must not fill the memory.
MAX_SUBJECTS_PER_HOST = 256
MAX_HOSTS = 200_000

# A subject without a row for this long says nothing about its state: its checks become unknown. Six shipping intervals.
STALE_SECONDS = 180.0

# Subjects that were not heard of for this long are forgotten.
FORGET_SECONDS = 14 * 86_400.0

READINGS = ("gpu_reading", "host_reading")


class DetectorHealth(Struct, frozen=True, kw_only=True):
    """How a detector itself is doing."""

    runs: int = 0
    errors: int = 0
    last_error: str = ""  # empty while its last run went well
    seconds: float = 0.0  # processor time of all runs, monotonic clock


class _HostTimes(Struct):
    """What the engine knows of one host's boots."""

    boot_id: str
    boot_at: int | None  # null: not known; then nothing is excused as still coming up
    heard_at: int
    subjects: int = 0
    addresses: dict[str, str] = {}  # device id by PCI address, for faults that know the address only


class _Snapshot(Struct, kw_only=True, forbid_unknown_fields=True):
    """The engine's whole memory, as JSON."""

    version: int
    detectors: dict[str, tuple[int, dict[str, Any]]]  # name: version, state
    last_at: dict[str, dict[str, int]]
    hosts: dict[str, _HostTimes]
    open: list[Finding]
    checks: dict[str, CheckState]


class Engine:
    """Feed it batches; it answers with findings.

    Deterministic: the same batches with the same ``now`` give the same findings. Redelivered and out-of-order readings
    change nothing, because each subject's readings are taken in growing `observed_at` only. One engine may serve one
    host or a fleet. Not thread-safe: one thread owns it.

    With ``one_shot`` there will be one reading a subject and no more: what takes several rows to be sure is told at
    once, as a warning.
    """

    def __init__(self, config: Config, detectors: Iterable[Detector] | None = None, *, one_shot: bool = False) -> None:
        chosen = load_all().values() if detectors is None else detectors
        self._detectors = {d.name: d for d in chosen}
        self._config = config
        self._states: dict[str, State] = {name: {"one_shot": True} if one_shot else {} for name in self._detectors}
        self._health = {name: DetectorHealth() for name in self._detectors}
        self._last_at: dict[str, dict[str, int]] = {kind: {} for kind in READINGS}
        self._hosts: dict[str, _HostTimes] = {}
        self._open: dict[tuple[str, str], Finding] = {}
        self._checks: dict[str, CheckState] = {}  # last state told, by check and subject
        self._judged: dict[str, CheckState] = {}  # by the last row, before open findings and staleness
        self.ignored: dict[str, int] = {"late": 0, "ahead": 0, "repeated": 0, "too_many_subjects": 0}

    def feed(self, batch: Batch, now: int) -> list[Finding]:
        """Take one batch; return findings that opened, were seen again, changed or cleared. ``now`` is ns, UTC."""
        return self.feed_all([batch], now)

    def feed_all(self, batches: Iterable[Batch], now: int) -> list[Finding]:
        """Take many batches at once, one pass per kind: cheaper than one by one. Faults are read before readings."""
        by_kind: dict[str, list[Batch]] = {}
        for batch in batches:
            by_kind.setdefault(batch.kind, []).append(batch)
        # Hosts first: they tell when the boot was. Then faults: they tell what a counter of the same moment means.
        first = {"host_reading": 0, "inventory": 1, "job_run": 2, "fault_event": 3}
        findings: list[Finding] = []
        for kind in sorted(by_kind, key=lambda k: first.get(k, 9)):
            readers = [d for d in self._detectors.values() if kind in d.kinds]
            if not readers and kind not in READINGS:
                continue
            for records in self._slices(Columns.of(by_kind[kind]), now):
                for detector in readers:
                    found = self._run(detector, now, _observing(detector, records))
                    findings += self._stamped(detector, found)
                    if kind in detector.needs:
                        self._judge(detector, records, now)
        return findings

    def tick(self, now: int) -> list[Finding]:
        """Let time pass for detectors that find what does not come; call it every few seconds."""
        findings = []
        for detector in self._detectors.values():
            if detector.tick is not None:
                findings += self._stamped(detector, self._run(detector, now, _ticking(detector)))
        self._forget(now)
        return findings

    def open_findings(self) -> list[Finding]:
        """Return what is wrong now, as last seen; those of mode off are not among them."""
        return list(self._open.values())

    def health(self) -> dict[str, DetectorHealth]:
        """Return by detector: runs, errors, the last error (empty when the last run went well), processor seconds."""
        return dict(self._health)

    def check_states(self, now: int) -> list[CheckState]:
        """Return the check states that changed since the last call: that a device was checked and is fine is news too.

        A subject whose readings stopped is unknown, and so is everything that a failing detector should have checked.
        """
        worst: dict[tuple[str, str, str], Finding] = {}
        for opened in self._open.values():
            subject = (opened.detector, opened.host, opened.device_id or opened.host)
            if subject not in worst or _rank(opened.severity) > _rank(worst[subject].severity):
                worst[subject] = opened
        changed = []
        for key, judged in [*self._judged.items(), *self._own_checks(now)]:
            state = judged
            finding = worst.get((judged.check, judged.host, judged.subject_id))
            age = (now - judged.observed_at) / SECOND
            if age > STALE_SECONDS and judged.subject_kind is not SubjectKind.PIPELINE:
                state = replace(
                    judged, state=Health.UNKNOWN, reason="no reading since then", since_at=judged.observed_at
                )
            elif self._health[judged.check].last_error:
                state = replace(judged, state=Health.UNKNOWN, reason="the detector itself failed")
            elif finding is not None:
                bad = _rank(finding.severity) >= _rank(Severity.ERROR)
                state = replace(
                    judged,
                    state=Health.UNHEALTHY if bad else Health.DEGRADED,
                    reason=f"{finding.code}: {finding.title}",
                    value=finding.value,
                    bound=finding.bound,
                    since_at=finding.opened_at,
                )
            told = self._checks.get(key)
            if told is None or (told.state, told.boot_id) != (state.state, state.boot_id):
                self._checks[key] = state
                changed.append(state)
        return changed

    def snapshot(self) -> bytes:
        """Return everything that must outlive a restart, as JSON for `restore`."""
        return msgspec.json.encode(
            _Snapshot(
                version=SNAPSHOT_VERSION,
                detectors={n: (d.version, self._states[n]) for n, d in self._detectors.items()},
                last_at=self._last_at,
                hosts=self._hosts,
                open=list(self._open.values()),
                checks=self._checks,
            ),
            enc_hook=_plain,
        )

    def restore(self, data: bytes) -> str:
        """Take up a snapshot. Returns "" or, in one sentence, what could not be taken and starts fresh.

        Never raises: a snapshot that is broken or of an unknown version leaves the engine as new. A detector whose
        version has changed starts fresh alone, and its open findings go with it.
        """
        try:
            taken = msgspec.json.decode(data, type=_Snapshot)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"the detectors' memory cannot be read and they start fresh: {error}"
        if taken.version != SNAPSHOT_VERSION:
            return (
                f"the detectors' memory is of version {taken.version}, this program knows {SNAPSHOT_VERSION}: "
                "they start fresh"
            )
        fresh = []
        states: dict[str, State] = {}
        for name, detector in self._detectors.items():
            version, state = taken.detectors.get(name, (None, {}))
            revived = _revived(state) if version == detector.version else None
            states[name] = revived or {}
            if revived is None:
                fresh.append(name)
        self._states = states
        self._last_at = {kind: taken.last_at.get(kind, {}) for kind in READINGS}
        self._hosts = taken.hosts
        kept = [f for f in taken.open if f.detector in self._detectors and f.detector not in fresh]
        self._open = {(f.cluster, f.dedup_key): f for f in kept}
        self._checks = taken.checks
        return f"these detectors start fresh, their memory is of another version: {', '.join(fresh)}" if fresh else ""

    def _slices(self, records: Columns, now: int) -> list[Columns]:
        """Drop rows that must not be judged, add the engine's columns, and cut readings so that subjects are unique."""
        kind = records.kind
        at = records.objects("observed_at")
        if kind == "fault_event":  # the time of the fault counts, not the time at which somebody read of it
            at = records.objects("last_at")
        device_ids: list[Any] = list(records.objects("device_id")) if kind != "host_reading" else [None] * records.rows
        pci = records.objects("pci_address") if kind in ("fault_event", "gpu_reading") else None
        subjects, grace, nth = [], [], []
        seen_here: dict[str, int] = {}
        oldest, newest = now - int(LATE_SECONDS * SECOND), now + int(AHEAD_SECONDS * SECOND)
        uptimes = records.objects("uptime_seconds") if kind == "host_reading" else None
        last_at = self._last_at.get(kind)
        header = zip(records.objects("cluster"), records.objects("host"), records.objects("boot_id"), strict=True)
        for i, (cluster, host, boot_id) in enumerate(header):
            host_key = f"{cluster}/{host}"
            if kind == "fault_event" and pci is not None and pci[i] and device_ids[i] in ("", pci[i]):
                known = self._hosts.get(host_key)
                device_ids[i] = device_ids[i] if known is None else known.addresses.get(pci[i], device_ids[i])
            subject = f"{host_key}/{device_ids[i]}" if device_ids[i] else host_key
            subjects.append(subject)
            nth.append(-1)
            grace.append(False)
            if kind != "inventory" and not oldest <= at[i] <= newest:
                self.ignored["late" if at[i] < oldest else "ahead"] += 1
                continue
            times = self._host_times(host_key, boot_id, at[i], None if uptimes is None else uptimes[i])
            if times is None:
                continue
            if last_at is not None:
                before = last_at.get(subject)
                if before is None:
                    if times.subjects >= MAX_SUBJECTS_PER_HOST:
                        self.ignored["too_many_subjects"] += 1
                        continue
                    times.subjects += 1
                elif at[i] <= before:
                    self.ignored["repeated"] += 1
                    continue
                last_at[subject] = at[i]
                if pci is not None and device_ids[i] and times.addresses.get(pci[i]) != device_ids[i]:
                    times.addresses[pci[i]] = device_ids[i]
            if times.boot_at is not None:
                grace[i] = at[i] - times.boot_at < self._config.agent.boot_grace_seconds * SECOND
            nth[i] = seen_here[subject] = seen_here.get(subject, -1) + 1
        slices = 1 + max(nth, default=-1) if last_at is not None else min(1, sum(n >= 0 for n in nth))
        whole = records.adding(subject=subjects, in_boot_grace=grace)
        if kind == "fault_event":
            whole = whole.adding(device_id=device_ids)
        if slices == 1 and min(nth) >= 0:
            return [whole]
        order = np.array(nth)
        if last_at is None:
            return [whole.take(order >= 0)] if slices else []
        return [whole.take(order == n) for n in range(slices)]

    def _host_times(self, key: str, boot_id: str, at: int, uptime: float | None) -> _HostTimes | None:
        times = self._hosts.get(key)
        if times is None:
            if len(self._hosts) >= MAX_HOSTS:
                self.ignored["too_many_subjects"] += 1
                return None
            # First contact without an uptime: the host may have been up for months, so nothing is excused.
            times = self._hosts[key] = _HostTimes(boot_id=boot_id, boot_at=None, heard_at=at)
        elif times.boot_id != boot_id and at > times.heard_at:
            # A boot id that we watched change: the boot is no older than its first row.
            times.boot_id, times.boot_at = boot_id, at
        # A boot before 1970, or after the reading, is no boot time.
        if uptime is not None and 0 <= uptime * SECOND <= at and times.boot_id == boot_id:
            times.boot_at = at - int(uptime * SECOND)
        times.heard_at = max(times.heard_at, at)
        return times

    def _run(
        self, detector: Detector, now: int, step: Callable[[State, int], tuple[State, list[Finding]]]
    ) -> list[Finding]:
        health = self._health[detector.name]
        began = time.perf_counter()
        try:
            self._states[detector.name], findings = step(self._states[detector.name], now)
        except Exception as error:  # noqa: BLE001 - one detector's mistake must not stop its siblings; it is counted
            findings = []
            self._health[detector.name] = replace(
                health,
                runs=health.runs + 1,
                errors=health.errors + 1,
                last_error=f"{type(error).__name__}: {error}"[:512],
                seconds=health.seconds + time.perf_counter() - began,
            )
        else:
            self._health[detector.name] = replace(
                health, runs=health.runs + 1, last_error="", seconds=health.seconds + time.perf_counter() - began
            )
        return findings

    def _stamped(self, detector: Detector, findings: list[Finding]) -> list[Finding]:
        out = []
        for found in findings:
            mode = self.mode(detector.name, found)
            if mode is Mode.OFF:
                continue
            finding = replace(found, detector=detector.name, detector_version=detector.version, mode=mode)
            key = (finding.cluster, finding.dedup_key)
            if finding.cleared_at is None:
                self._open[key] = finding
            else:
                self._open.pop(key, None)
            out.append(finding)
        return out

    def mode(self, detector: str, finding: Finding) -> Mode:
        """Return the mode of a finding: the longest key of the configuration that fits, else the default."""
        modes = self._config.detectors.modes
        by_class = f"{detector}/{finding.fault_class.value}"
        for key in (f"{by_class}/{finding.model}", by_class, detector):
            if key in modes:
                return Mode(modes[key])
        return Mode(self._config.detectors.default_mode)

    def _judge(self, detector: Detector, records: Columns, now: int) -> None:
        """Note for each subject whether the check could be made at all."""
        needed = [c for c in detector.needs[records.kind] if records.has(c)]
        checked = np.zeros(records.rows, bool)
        for column in needed:
            checked |= records.valid(column)
        grace = records.objects("in_boot_grace")
        missing = records.objects("missing")
        at = records.objects("observed_at")
        boots = records.objects("boot_id")
        for i, subject in enumerate(records.objects("subject")):
            state, reason = Health.HEALTHY, ""
            if not checked[i]:
                state, reason = _unchecked(detector.needs[records.kind], missing[i] or {})
            elif grace[i]:
                state, reason = Health.UNKNOWN, "the host came up just now"
            key = f"{detector.name}/{subject}"
            before = self._judged.get(key)
            same = before is not None and before.state is state and before.boot_id == boots[i]
            if before is not None and same:
                # Most rows end here; a new struct per row would cost more than the judging.
                if at[i] - before.observed_at > STALE_SECONDS * SECOND / 6:
                    self._judged[key] = replace(before, observed_at=at[i])
                continue
            device = records.kind == "gpu_reading"
            host = records.objects("host")[i]
            self._judged[key] = CheckState(
                cluster=records.objects("cluster")[i],
                host=host,
                boot_id=boots[i],
                observed_at=at[i],
                subject_kind=SubjectKind.DEVICE if device else SubjectKind.HOST,
                subject_id=records.objects("device_id")[i] if device else host,
                check=detector.name,
                check_version=detector.version,
                state=state,
                since_at=at[i],
                reason=reason,
            )

    def _own_checks(self, now: int) -> list[tuple[str, CheckState]]:
        """Return one check per detector that has failed at some time: is the detector itself well?"""
        return [
            (
                f"detector:{name}",
                CheckState(
                    cluster=self._config.site.cluster,
                    host="",
                    boot_id="",
                    observed_at=now,
                    subject_kind=SubjectKind.PIPELINE,
                    subject_id=f"detector {name}",
                    check=name,
                    check_version=self._detectors[name].version,
                    state=Health.HEALTHY,
                    since_at=now,
                    reason=health.last_error,
                ),
            )
            for name, health in self._health.items()
            if health.errors
        ]

    def _forget(self, now: int) -> None:
        """Drop hosts that were not heard of for long, and all that is keyed by their subjects."""
        oldest = now - int(FORGET_SECONDS * SECOND)
        gone = {key for key, times in self._hosts.items() if times.heard_at < oldest}
        if not gone:
            return

        def of_gone(subject: str) -> bool:
            return "/".join(subject.split("/", 2)[:2]) in gone

        self._hosts = {k: v for k, v in self._hosts.items() if k not in gone}
        self._last_at = {
            kind: {s: at for s, at in times.items() if not of_gone(s)} for kind, times in self._last_at.items()
        }
        self._judged = {k: v for k, v in self._judged.items() if f"{v.cluster}/{v.host}" not in gone}
        self._checks = {k: v for k, v in self._checks.items() if f"{v.cluster}/{v.host}" not in gone}
        for name, state in self._states.items():
            table = state.get("table")
            if isinstance(table, Table):
                self._states[name] = {**state, "table": table.without({s for s in table.ids() if of_gone(s)})}


def _observing(detector: Detector, records: Columns) -> Callable[[State, int], tuple[State, list[Finding]]]:
    return lambda state, now: detector.observe(state, records, now)


def _ticking(detector: Detector) -> Callable[[State, int], tuple[State, list[Finding]]]:
    def step(state: State, now: int) -> tuple[State, list[Finding]]:
        return detector.tick(state, now) if detector.tick is not None else (state, [])

    return step


def _unchecked(needs: Sequence[str], missing: dict[str, str]) -> tuple[Health, str]:
    reasons = [missing.get(c, "") for c in needs]
    if reasons and all(r == "unsupported" for r in reasons):
        return Health.UNSUPPORTED, f"not supported: {', '.join(needs)}"
    told = sorted({r for r in reasons if r}) or ["no value"]
    return Health.UNKNOWN, f"could not be read ({', '.join(told)}): {', '.join(needs)}"[:1024]


def _revived(state: dict[str, Any]) -> State | None:
    """Return a state from its JSON with its table and findings built, null when it is broken."""
    try:
        built = dict(state)
        if "table" in state:
            built["table"] = Table.of(state["table"])
        if "open" in state:
            built["open"] = msgspec.convert(state["open"], dict[str, Finding])
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError):
        return None
    return built


def _rank(severity: Severity) -> int:
    return list(Severity).index(severity)


def _plain(value: Any) -> Any:
    if isinstance(value, Table):
        return value.plain()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a detector's state holds a {type(value).__name__}, which is not JSON")
