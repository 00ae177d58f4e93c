"""Devices that are lost, hung, answer errors only, or are missing from the host.

One finding a device, whatever told of it: the driver's own "GPU is lost", the kernel log (XID 79 and 167, "fallen off
the bus", a device lost on AMD), a probe that did not come back. It ends when the device answers again.
The driver's word is enough at once; what could be a moment's trouble must last.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from detectors.casebook import SECOND, Casebook, boot_number, text
from detectors.detector import Detector, State, register
from detectors.table import Rows
from passmuster.columns import Columns
from passmuster.records import DeviceState, FaultClass, Finding, Severity, Trust

NAME = "device_lost"

# Error 999 of NVML now and then is noise; three rows of nothing else are not (telemetry: "3 in a row").
UNREADABLE_ROWS = 3

# A hang is shown at once, as an error. After three rows (30 s, six deadlines) it is no pause of the driver any more.
HUNG_ROWS = 3

# GPUs that PCI shows and the library does not: while a driver loads or a partition changes, both lists differ for a
# moment. Three host readings.
MISSING_ROWS = 3

# Two good rows end it: a lost device may answer one call on its way out.
GOOD_ROWS = 2

# A log line says "lost", and readings go on saying "ok": they are believed, after this time. Less would let a reading
# that was already under way when the device left close the finding.
LOG_SECONDS = 30.0


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    rows = case.rows(records)
    if records.kind == "fault_event":
        _log_says(case, records)
    elif records.kind == "host_reading":
        _count(case, records, rows)
    else:
        _device_states(case, records, rows)
    return case.result()


def _device_states(case: Casebook, records: Columns, rows: Rows) -> None:
    states = text(records, "state")
    known = np.array([s not in ("", DeviceState.UNKNOWN.value) for s in states], bool)
    lost = states == DeviceState.LOST.value
    ok = states == DeviceState.OK.value
    beside = ("state", "index", "missing")
    case.watch(records, rows, "device.lost", lost, known & (lost | ok), need_good=GOOD_ROWS, columns=beside)
    hung = states == DeviceState.HUNG.value
    hung_run = np.where(hung, case.table.get("hung_rows", rows, 0.0) + 1, 0.0)
    case.table.put("hung_rows", rows, hung_run)
    for severity, chosen in (
        (Severity.ERROR, hung & (hung_run < HUNG_ROWS)),
        (Severity.CRITICAL, hung & (hung_run >= HUNG_ROWS)),
    ):
        if chosen.any():
            pick = np.flatnonzero(chosen)
            some = records.take(pick)
            case.watch(
                some, rows[pick], "device.hung", np.ones(len(pick), bool), np.ones(len(pick), bool),
                value=hung_run[pick], columns=beside, severity=severity,
            )  # fmt: skip
    case.watch(records, rows, "device.hung", np.zeros(len(rows), bool), ok, need_good=GOOD_ROWS)
    unreadable = states == DeviceState.UNREADABLE.value
    case.watch(
        records, rows, "device.unreadable", unreadable, known & (unreadable | ok), need_bad=UNREADABLE_ROWS,
        need_good=GOOD_ROWS, columns=beside,
    )  # fmt: skip
    # What only the log told ends here: the device answered, long enough after the line.
    at = records.objects("observed_at")
    for i in np.flatnonzero(ok).tolist():
        key = f"log/{records.objects('subject')[i]}"
        opened = case.open.get(key)
        if opened is not None and at[i] - opened.last_seen_at > LOG_SECONDS * SECOND:
            case.clear(key, at[i], "the device answers")
    for i in np.flatnonzero(lost).tolist():  # one finding a device: the state has taken over from the log
        key = f"log/{records.objects('subject')[i]}"
        opened = case.open.pop(key, None)
        if opened is None:
            continue
        taken = f"device.lost/{records.objects('subject')[i]}"
        now_open = case.open.get(taken)
        if now_open is not None:
            joined = replace(
                now_open,
                opened_at=min(opened.opened_at, now_open.opened_at),
                evidence={**(opened.evidence or {}), **(now_open.evidence or {})},
            )
            case.open[taken] = joined
            case.findings = [f if f.dedup_key != joined.dedup_key else joined for f in case.findings]


def _log_says(case: Casebook, records: Columns) -> None:
    for i, kind in enumerate(records.objects("kind")):
        if records.objects("trust")[i] == Trust.USER.value or not records.objects("device_id")[i]:
            continue
        letter = records.objects("fault_class")[i]
        if kind == "hung_probe":
            code = "device.hung"
        elif letter == FaultClass.BUS.value and not records.objects("secondary")[i]:
            code = "device.lost"
        else:
            continue
        subject = records.objects("subject")[i]
        if f"{code}/{subject}" in case.open:
            continue
        at = int(records.objects("last_at")[i])
        finding = case.draft(
            records, i, code,
            evidence={"fault": records.objects("code")[i], "text": records.objects("text")[i],
                      "count": records.objects("count")[i]},
        )  # fmt: skip
        case.see(f"log/{subject}", replace(finding, opened_at=at, last_seen_at=at, observed_at=at))


def _count(case: Casebook, records: Columns, rows: Rows) -> None:
    """Compare the GPUs that the libraries show with those that should be there, or were there in this boot."""
    expected, seen, detail = np.full(len(rows), np.nan), np.full(len(rows), np.nan), []
    before = case.table.get("most_seen", rows)
    boots = np.array([boot_number(b) for b in records.objects("boot_id")], np.float64)
    before = np.where(case.table.get("boot", rows) == boots, before, np.nan)
    for i in range(len(rows)):
        want, have = records.objects("gpus_expected")[i] or {}, records.objects("gpus_seen")[i]
        detail.append(f"expected {want}, seen {have}")
        if have is None:
            continue  # the library is absent or does not answer: unknown, and found elsewhere
        short = {v: n for v, n in want.items() if v in have and have[v] < n}
        seen[i] = sum(have.values())
        expected[i] = seen[i] + sum(n - have[v] for v, n in short.items())
    case.table.put("boot", rows, boots)
    case.table.put("most_seen", rows, np.fmax(before, seen))
    expected = np.fmax(expected, before)
    grace = records.values("in_boot_grace").astype(bool)
    case.watch(
        records, rows, "device.missing", (seen < expected) & ~grace, ~np.isnan(seen), need_bad=MISSING_ROWS,
        need_good=GOOD_ROWS, value=seen, bound=expected, extra={"gpus": detail}, host_wide=True,
    )  # fmt: skip


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("fault_event", "gpu_reading", "host_reading"),
        summary="GPUs that are lost, hung, unreadable, or missing from the host.",
        observe=observe,
        codes=("device.lost", "device.hung", "device.unreadable", "device.missing"),
        needs={"gpu_reading": ("state",), "host_reading": ("gpus_seen",)},
        bounds={
            "UNREADABLE_ROWS": f"{UNREADABLE_ROWS} rows of errors only: one unknown error now and then is noise",
            "HUNG_ROWS": f"{HUNG_ROWS} rows hung make it critical: no pause of the driver lasts six deadlines",
            "MISSING_ROWS": f"{MISSING_ROWS} host readings: PCI and library differ for a moment while drivers load",
            "GOOD_ROWS": f"{GOOD_ROWS} rows that answer end it: a device on its way out may answer once",
            "LOG_SECONDS": f"{LOG_SECONDS:g} s after a log line a good reading is believed",
        },
    )
)
