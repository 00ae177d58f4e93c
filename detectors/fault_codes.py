"""What drivers and firmware said, judged by the class of the fault table.

A code opens a finding by its class letter: at once (C, P, U, R, H, L, M, V, T), after some repeats where its severity
is only a warning (H, L, T), or when unrelated jobs hit it (A). Class I opens nothing. Classes B and hung probes are
`device_lost`'s, XID 154 is `recovery_action`'s.

Secondary codes (XID 45, 171, 172, resets) are noted in the evidence of a root fault of the same device within a
minute, before or after it, and never open a finding. Lines that user space could have written open nothing.
XID 63 says that a row will be remapped; where readings tell the remap state, `memory_repair` judges that state and the
line opens nothing. XID 74 within a minute of an SXid of the same host belongs to the switch: one finding about the
switch, the GPUs' own become secondary. Link faults while a host comes up are training, not faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from detectors.casebook import SECOND, Casebook, dedup_key, number, shown, text
from detectors.detector import Detector, State, register
from passmuster.columns import Columns
from passmuster.faults import lookup
from passmuster.records import DeviceState, FaultClass, Finding, Severity, SubjectKind, Trust, Vendor

NAME = "fault_codes"

# Root-event attachment: NVSentinel#1710 counted 672 "fatal" events on three nodes, nearly all XID 45 that followed
# another fault within seconds.
ATTACH_SECONDS = 60.0

# Suspect the workload until unrelated jobs on the same device agree (peers: act on recurrence over 2+ unrelated jobs).
DISTINCT_JOBS = 2
JOB_WINDOW_SECONDS = 86_400.0

# How many of these within an hour open a finding, by class, where the table says "warning": one link flap, one late
# ring or one thermal notice happens on healthy hosts.
REPEATS = {FaultClass.LINK: 3, FaultClass.HANG: 2, FaultClass.THERMAL: 3}
REPEAT_WINDOW_SECONDS = 3_600.0

# The remap state counts as read when a reading of the last five minutes had it.
REMAP_KNOWN_SECONDS = 300.0

# A finding about a line ends when its code was quiet for so long; None: only a reset, a reload or a new boot ends it.
QUIET_SECONDS: dict[FaultClass, float | None] = {
    FaultClass.APPLICATION: 86_400.0,
    FaultClass.CONTAINED: 86_400.0,
    FaultClass.PENDING: 86_400.0,
    FaultClass.UNCONTAINED: None,
    FaultClass.REPAIR_FAILED: None,
    FaultClass.HANG: None,
    FaultClass.LINK: 3_600.0,
    FaultClass.MISCONFIGURED: 86_400.0,
    FaultClass.LEGACY: 86_400.0,
    FaultClass.THERMAL: 1_800.0,
}

# What a reset or a reboot does not put right by itself: only a person ends these.
STANDS_AFTER_RESET = (FaultClass.REPAIR_FAILED,)

# Bounds of the memory: distinct occurrences kept per device, and devices.
MAX_KEPT = 32
MAX_SUBJECTS = 10_000


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    if records.kind == "fault_event":
        case.more["counts"] = dict(case.more.get("counts", {}))
        case.more["recent"] = dict(case.more.get("recent", {}))
        for i in range(records.rows):
            _take(case, _Event(records, i))
    elif records.kind == "job_run":
        jobs = dict(case.more.get("jobs", {}))
        for i in range(records.rows):
            for device in records.objects("devices")[i] or []:
                jobs[device] = records.objects("job")[i]
        case.more["jobs"] = jobs if len(jobs) <= MAX_SUBJECTS else {}
    else:
        _read_devices(case, records)
    return case.result()


def tick(state: State, now: int) -> tuple[State, list[Finding]]:
    """Close findings whose code was quiet for long."""
    case = Casebook(NAME, state, now)
    for key, finding in list(case.open.items()):
        quiet = QUIET_SECONDS.get(finding.fault_class)
        if quiet is not None and now - finding.last_seen_at > quiet * SECOND:
            case.clear(key, now, f"quiet for {quiet:g} s")
    oldest = now - int(JOB_WINDOW_SECONDS * SECOND)
    for name in ("recent", "counts"):
        kept = case.more.get(name, {})
        case.more[name] = {k: v for k, v in kept.items() if _newest(v) >= oldest}
    return case.result()


def _newest(value: Any) -> int:
    return int(value[1] if isinstance(value[0], int) else value[-1][0])


class _Event:
    """One row of fault_event, typed."""

    def __init__(self, records: Columns, i: int) -> None:
        def of(name: str) -> Any:
            return records.objects(name)[i]

        self.records, self.i = records, i
        self.subject: str = of("subject")
        self.device_id: str = of("device_id") or ""
        self.host: str = of("host")
        self.host_key = f"{of('cluster')}/{self.host}"
        self.boot_id: str = of("boot_id")
        self.vendor: str = of("vendor")
        self.kind: str = of("kind")
        self.code: str = of("code")
        self.letter = FaultClass(of("fault_class"))
        self.severity = Severity(of("severity"))
        self.secondary = bool(of("secondary"))
        self.trusted = of("trust") != Trust.USER.value
        self.first_at: int = of("first_at")
        self.last_at: int = of("last_at")
        self.count = int(of("count") if of("count") is not None else 1)
        self.text: str = of("text") or ""
        self.process: str = of("process") or ""
        self.pci: str | None = of("pci_address")
        self.model: str = of("model") or ""
        self.cluster: str = of("cluster")
        self.grace = bool(of("in_boot_grace"))
        self.link: str | None = of("link")
        self.pid: int | None = of("pid")
        self.block: str | None = of("block")

    def evidence(self) -> dict[str, str]:
        fields: Mapping[str, Any] = {
            "fault": self.code,
            "text": self.text,
            "count": self.count,
            "first_at": self.first_at,
            "last_at": self.last_at,
            "block": self.block,
            "link": self.link,
            "process": self.process or None,
            "pid": self.pid,
            "source": self.records.objects("source")[self.i],
        }
        return {k: shown(v) for k, v in fields.items() if v is not None}


def _take(case: Casebook, event: _Event) -> None:
    if not event.trusted:
        return
    news = _news(case, event)
    if news <= 0:
        return
    if event.secondary:
        _attach(case, event)
        return
    if event.letter in (FaultClass.INFO, FaultClass.BUS, FaultClass.SILENT) or event.kind == "hung_probe":
        return
    if event.letter is FaultClass.LINK and event.grace:
        return
    if event.kind == "xid" and event.code.partition(":")[2] == "63" and _remap_is_known(case, event):
        return
    detail = ""
    if event.letter is FaultClass.APPLICATION:
        jobs = _distinct_jobs(case, event)
        if len(jobs) < DISTINCT_JOBS:
            return
        detail = f"in {len(jobs)} unrelated jobs"
    needed = REPEATS.get(event.letter, 1) if event.severity is Severity.WARNING else 1
    if needed > 1 and _times_within(case, event, news) < needed:
        return
    _open(case, event, detail)


def _news(case: Casebook, event: _Event) -> int:
    """Return how many occurrences this row adds: its count grows by replacement, so a redelivery adds none."""
    counts = case.more["counts"]
    key = f"{event.subject}/{event.code}/{event.boot_id}/{event.first_at}"
    before = counts.get(key, (0, 0))[0]
    if event.count > before and (key in counts or len(counts) < MAX_SUBJECTS * 4):
        counts[key] = (event.count, event.last_at)
    return int(event.count - before)


def _kept(case: Casebook, key: str, entry: list[Any]) -> list[list[Any]]:
    """Add an entry [at, ...] to the short list under a key; return the list."""
    recent = case.more["recent"]
    entries = [*recent.get(key, []), entry][-MAX_KEPT:]
    if key in recent or len(recent) < MAX_SUBJECTS:
        recent[key] = entries
    return entries


def _times_within(case: Casebook, event: _Event, news: int) -> int:
    oldest = event.last_at - REPEAT_WINDOW_SECONDS * SECOND
    entries = _kept(case, f"times/{event.subject}/{event.code}", [event.last_at, news])
    return sum(e[1] for e in entries if e[0] >= oldest)


def _distinct_jobs(case: Casebook, event: _Event) -> set[str]:
    """Return the jobs that hit this code on this device within a day.

    A job is its id where one is known, else the name of its process: one program that crashes again and again is one.
    """
    job = case.more.get("jobs", {}).get(event.device_id)
    who = f"job {job}" if job else f"process {event.process or 'unknown'}"
    oldest = event.last_at - JOB_WINDOW_SECONDS * SECOND
    entries = _kept(case, f"jobs/{event.subject}/{event.code}", [event.last_at, who])
    return {e[1] for e in entries if e[0] >= oldest}


def _attach(case: Casebook, event: _Event) -> None:
    """Note a secondary code in the root fault of its device, or keep it for a root that may still come."""
    for key, finding in case.open.items():
        near = abs(event.last_at - finding.last_seen_at) <= ATTACH_SECONDS * SECOND
        if near and key.startswith(f"{event.subject}/"):
            evidence = {**(finding.evidence or {}), f"with {event.code}"[:64]: f"{event.count}x: {event.text}"[:512]}
            case.open[key] = replace(finding, evidence=_bounded(evidence))
            return
    _kept(case, f"secondary/{event.subject}", [event.last_at, event.code, event.text[:512]])


def _bounded(evidence: dict[str, str]) -> dict[str, str]:
    return dict(list(evidence.items())[:64])


def _remap_is_known(case: Casebook, event: _Event) -> bool:
    rows = case.table.rows([event.subject])
    return bool(event.last_at - case.table.get("remap_at", rows)[0] <= REMAP_KNOWN_SECONDS * SECOND)


def _open(case: Casebook, event: _Event, detail: str) -> None:
    kind, _, number_or_word = event.code.partition(":")
    words = lookup(event.vendor, kind, number_or_word or None)
    on_switch = kind == "sxid"
    subject_kind = SubjectKind.DEVICE if event.device_id else SubjectKind.HOST
    subject_id = event.device_id or event.host
    if on_switch:
        subject_kind, subject_id = SubjectKind.SWITCH, f"{event.host}/{event.pci or 'nvswitch'}"[:256]
    evidence = event.evidence()
    for at, code, line in case.more["recent"].get(f"secondary/{event.subject}", []):
        if abs(at - event.last_at) <= ATTACH_SECONDS * SECOND:
            evidence[f"with {code}"[:64]] = line
    code = event.code.replace(":", ".")
    title = (
        f"{event.code.upper().replace(':', ' ') if kind in ('xid', 'sxid', 'afid') else event.code}: {words.meaning}"
    )
    finding = Finding(
        cluster=event.cluster,
        host=event.host,
        boot_id=event.boot_id,
        observed_at=event.last_at,
        dedup_key=dedup_key(NAME, code, subject_id),
        opened_at=event.first_at if event.last_at - event.first_at < REPEAT_WINDOW_SECONDS * SECOND else event.last_at,
        last_seen_at=event.last_at,
        detector=NAME,
        code=code,
        subject_kind=subject_kind,
        subject_id=subject_id,
        device_id=event.device_id if not on_switch else "",
        vendor=Vendor(event.vendor),
        model=event.model,
        pci_address=event.pci,
        fault_class=event.letter,
        severity=event.severity,
        title=f"{title}, {detail}" if detail else title,
        next_step=words.next_step,
        value=float(event.count),
        evidence=_bounded(evidence),
    )
    key = f"{event.subject}/{event.code}"
    if on_switch:
        key = f"{event.host_key}/switch/{subject_id}/{event.code}"
        finding = _with_gpus(case, event, finding)
    elif event.code == "xid:74":
        finding = replace(finding, secondary=_switch_spoke(case, event))
    before = case.open.get(key)
    if before is not None:
        # Seen again: what was attached stays, and a finding that became the switch's stays so.
        kept = {k: v for k, v in (before.evidence or {}).items() if k.startswith("with ")}
        finding = replace(finding, evidence=_bounded({**(finding.evidence or {}), **kept}), secondary=before.secondary)
    case.see(key, finding)


def _with_gpus(case: Casebook, event: _Event, finding: Finding) -> Finding:
    """Make the GPUs' own XID 74 of the same minute secondary to the switch, and name them in its evidence."""
    evidence = dict(finding.evidence or {})
    for key, other in list(case.open.items()):
        near = abs(event.last_at - other.last_seen_at) <= ATTACH_SECONDS * SECOND
        if other.code == "xid.74" and near and (other.cluster, other.host) == (event.cluster, event.host):
            evidence[f"with xid:74 on {other.pci_address or other.device_id}"[:64]] = (other.evidence or {}).get(
                "text", ""
            )
            if not other.secondary:
                case.see(key, replace(other, secondary=True))
    return replace(finding, evidence=_bounded(evidence))


def _switch_spoke(case: Casebook, event: _Event) -> bool:
    """Tell whether a switch of this host reported a fault within a minute of this XID 74, and note it there."""
    for key, other in list(case.open.items()):
        near = abs(event.last_at - other.last_seen_at) <= ATTACH_SECONDS * SECOND
        if key.startswith(f"{event.host_key}/switch/") and near:
            evidence = {
                **(other.evidence or {}),
                f"with xid:74 on {event.pci or event.device_id}"[:64]: event.text[:512],
            }
            case.open[key] = replace(other, evidence=_bounded(evidence))
            return True
    return False


def _read_devices(case: Casebook, records: Columns) -> None:
    """Remember whose remap state is known, and end findings that a reset, a reload or a new boot has ended."""
    rows = case.rows(records)
    at = records.values("observed_at").astype(np.float64)
    remap = ~np.isnan(number(records, "row_remap_pending"))
    case.table.put("remap_at", rows, np.where(remap, at, case.table.get("remap_at", rows)))
    same = case.same_epoch(records, rows)
    known_before = ~np.isnan(case.table.get("read_at", rows))
    case.table.put("read_at", rows, at)
    about_host = records.kind == "host_reading"
    ok = np.ones(len(rows), bool) if about_host else text(records, "state") == DeviceState.OK.value
    if not case.open:
        return
    for i in np.flatnonzero(ok).tolist():
        subject = records.objects("subject")[i]
        restarted = bool(known_before[i] and not same[i])
        for key, finding in list(case.open.items()):
            if not key.startswith(f"{subject}/") or finding.fault_class in STANDS_AFTER_RESET:
                continue
            if about_host and finding.device_id:  # the device itself must answer first
                continue
            new_boot = finding.boot_id != records.objects("boot_id")[i]
            if (restarted or new_boot) and finding.last_seen_at < at[i]:
                case.clear(key, int(at[i]), "the GPU was reset, its driver reloaded or the host rebooted")


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("fault_event", "gpu_reading", "host_reading", "job_run"),
        summary="Fault codes of drivers and firmware (XID, SXid, AMD RAS, AFID, PCIe AER, machine checks), by class.",
        observe=observe,
        tick=tick,
        codes=(),
        bounds={
            "ATTACH_SECONDS": f"{ATTACH_SECONDS:g} s: a secondary code belongs to a root fault of the same device",
            "DISTINCT_JOBS": f"{DISTINCT_JOBS} unrelated jobs within {JOB_WINDOW_SECONDS:g} s before an application "
            "fault is the device's",
            "REPEATS": "3 link, 2 hang, 3 thermal warnings within an hour: one of them happens on healthy hosts",
            "REMAP_KNOWN_SECONDS": f"{REMAP_KNOWN_SECONDS:g} s: a remap state so old decides in place of XID 63",
            "QUIET_SECONDS": "quiet time that ends a finding: application, contained, pending, misconfigured, legacy a "
            "day, link an hour, thermal half an hour; U, R and H are ended by a reset or a reboot only, R by neither",
        },
    )
)
