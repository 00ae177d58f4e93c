"""What does not come: hosts and devices that stopped reporting, and sensors that report without measuring.

Silence is never a verdict on hardware: every finding here is class S and holds nothing. A host is reported alone only
while most of its rack and of the fleet still report; else one finding names the rack, or our own pipeline. What
counts is when rows arrive; rows more than ten minutes old are history and no sign of life.

Sensors: power, temperature, clocks and energy that do not move at all while the device works; an energy counter that
stands still while power flows; no activity at a power that only work draws (ROCm/device-metrics-exporter#160); values
that a device used to report and that have become null.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from detectors.casebook import SECOND, Casebook, Mask, boot_number, dedup_key, number, text
from detectors.codes import CODES
from detectors.detector import Detector, State, register
from detectors.table import Floats, Rows
from passmuster.columns import Columns
from passmuster.records import DeviceState, Finding, SubjectKind

NAME = "silence"

# Six shipping intervals of 30 s, and as long as a verdict stays valid.
SILENT_SECONDS = 180.0

# "Most": a rack or fleet of which half is silent is one trouble, not many. Below three hosts there is no "most".
COMMON_SHARE = 0.5
COMMON_HOSTS = 3

# A device that its host has not shown for this long, while it shows others.
DEVICE_SILENT_SECONDS = 180.0

# Gone for two weeks, a host or device is not silent but removed.
REMOVED_SECONDS = 14 * 86_400.0

# Rows of 10 s. AMD reports whole watts and degrees: a steady load may repeat them for a while, five minutes of every
# sensor at once it does not.
FROZEN_ROWS = 30
ACTIVE_RATIO = 0.1

# The energy counter is read in the slow tier (60 s), so up to six rows repeat it; two minutes more are a fault.
ENERGY_ROWS = 18
ENERGY_WATTS = 50.0

# Idle devices draw up to a quarter of their limit. Half of it is work; a minute at zero activity is a wrong counter.
WORK_POWER_RATIO = 0.5
ZERO_ROWS = 6

# Fields that every device of both vendors either always answers or never does, and how long a null may last.
STEADY_FIELDS = (
    "power_watts", "energy_joules_total", "temperature_core_celsius", "temperature_hotspot_celsius",
    "temperature_memory_celsius", "clock_graphics_hertz", "activity_compute_ratio", "memory_used_bytes",
    "ecc_uncorrected_total", "pcie_width",
)  # fmt: skip
NULL_ROWS = 30


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    if records.kind == "inventory":
        racks = dict(case.more.get("racks", {}))
        for i, rack in enumerate(records.objects("rack")):
            if rack:
                racks[_host_key(records, i)] = rack
        case.more["racks"] = racks
        return case.result()
    _hear(case, records)
    if records.kind == "gpu_reading":
        rows = case.rows(records)
        case.table.put("heard_at", rows, float(now))
        _sensors(case, records, rows)
    return case.result()


def tick(state: State, now: int) -> tuple[State, list[Finding]]:
    """Find hosts, racks and devices that have been silent for too long."""
    case = Casebook(NAME, state, now)
    hosts: dict[str, dict[str, Any]] = dict(case.more.get("hosts", {}))
    before = case.more.get("ticked_at", now)
    if now - before > SILENT_SECONDS * SECOND:
        # We were not running or not asked: that time proves nothing about anybody.
        shift = now - before
        hosts = {k: {**h, "heard_at": h["heard_at"] + shift} for k, h in hosts.items()}
        every = case.table.rows(case.table.ids())
        case.table.put("heard_at", every, case.table.every("heard_at") + shift)
    case.more["ticked_at"] = now
    hosts = {k: h for k, h in hosts.items() if now - h["heard_at"] <= REMOVED_SECONDS * SECOND}
    case.more["hosts"] = hosts

    silent = {k for k, h in hosts.items() if now - h["heard_at"] > SILENT_SECONDS * SECOND}
    wanted = _explain(case, hosts, silent)
    for key, (code, name, about) in wanted.items():
        case.see(key, _silent(case, [hosts[k] for k in sorted(about)], code, name))
    for key in [k for k in case.open if k.split("/", 1)[0] in ("host", "rack", "pipeline")]:
        if key not in wanted:
            case.clear(key, now, "it reports again, or is part of a larger silence")
    _silent_devices(case, hosts, silent, now)
    return case.result()


def _host_key(records: Columns, i: int) -> str:
    return f"{records.objects('cluster')[i]}/{records.objects('host')[i]}"


def _hear(case: Casebook, records: Columns) -> None:
    hosts = dict(case.more.get("hosts", {}))
    for i in range(records.rows):
        key = _host_key(records, i)
        if hosts.get(key, {}).get("heard_at") != case.now:
            hosts[key] = {
                "cluster": records.objects("cluster")[i],
                "host": records.objects("host")[i],
                "boot_id": records.objects("boot_id")[i],
                "heard_at": case.now,
                "read_at": case.now if records.kind == "gpu_reading" else hosts.get(key, {}).get("read_at", 0),
            }
        elif records.kind == "gpu_reading":
            hosts[key] = {**hosts[key], "read_at": case.now}
    case.more["hosts"] = hosts


def _explain(
    case: Casebook, hosts: dict[str, dict[str, Any]], silent: set[str]
) -> dict[str, tuple[str, str, list[str]]]:
    """Return the findings that the silent hosts need, largest cause first: key to code, name and hosts."""
    racks: dict[str, str] = case.more.get("racks", {})
    wanted: dict[str, tuple[str, str, list[str]]] = {}
    for cluster in sorted({hosts[k]["cluster"] for k in silent}):
        members = [k for k, h in hosts.items() if h["cluster"] == cluster]
        quiet = [k for k in members if k in silent]
        if len(members) >= COMMON_HOSTS and len(quiet) > COMMON_SHARE * len(members):
            wanted[f"pipeline/{cluster}"] = ("pipeline.silent", cluster, quiet)
            continue
        by_rack: dict[str, list[str]] = {}
        for k in members:
            by_rack.setdefault(racks.get(k, ""), []).append(k)
        for rack, in_rack in by_rack.items():
            quiet_here = [k for k in in_rack if k in silent]
            if rack and len(in_rack) >= COMMON_HOSTS and len(quiet_here) > COMMON_SHARE * len(in_rack):
                wanted[f"rack/{cluster}/{rack}"] = ("rack.silent", rack, quiet_here)
            else:
                wanted |= {f"host/{k}": ("host.silent", hosts[k]["host"], [k]) for k in quiet_here}
    return wanted


def _silent(case: Casebook, about: list[dict[str, Any]], code: str, name: str) -> Finding:
    now = case.now
    first = about[0]
    longest = max(now - h["heard_at"] for h in about) / SECOND
    kind = {"host.silent": SubjectKind.HOST, "rack.silent": SubjectKind.RACK}.get(code, SubjectKind.PIPELINE)
    entry = CODES[code]
    alone = code == "host.silent"
    return Finding(
        cluster=first["cluster"],
        host=first["host"] if alone else "",
        boot_id=first["boot_id"] if alone else "",
        observed_at=now,
        dedup_key=dedup_key(NAME, code, name),
        opened_at=now,
        last_seen_at=now,
        detector=NAME,
        code=code,
        subject_kind=kind,
        subject_id=name,
        fault_class=entry.fault_class,
        severity=entry.severity,
        title=entry.title if alone else f"{entry.title}: {len(about)} silent",
        next_step=entry.next_step,
        value=longest,
        bound=SILENT_SECONDS,
        evidence={"silent_hosts": ", ".join(h["host"] for h in about)[:512], "silent_count": str(len(about))},
    )


def _silent_devices(case: Casebook, hosts: dict[str, dict[str, Any]], silent: set[str], now: int) -> None:
    heard = case.table.every("heard_at")
    quiet = now - heard > DEVICE_SILENT_SECONDS * SECOND
    for row in np.flatnonzero(quiet).tolist():
        subject = case.table.ids()[row]
        cluster, host, device_id = [*subject.split("/", 2), ""][:3]
        home = hosts.get(f"{cluster}/{host}")
        key = f"device/{subject}"
        reads = home is not None and now - home["read_at"] <= DEVICE_SILENT_SECONDS * SECOND
        if home is None or not reads or f"{cluster}/{host}" in silent or now - heard[row] > REMOVED_SECONDS * SECOND:
            continue
        entry = CODES["device.silent"]
        case.see(
            key,
            Finding(
                cluster=cluster,
                host=host,
                boot_id=home["boot_id"],
                observed_at=now,
                dedup_key=dedup_key(NAME, entry.code, device_id),
                opened_at=now,
                last_seen_at=now,
                detector=NAME,
                code=entry.code,
                subject_kind=SubjectKind.DEVICE,
                subject_id=device_id,
                device_id=device_id,
                fault_class=entry.fault_class,
                severity=entry.severity,
                title=entry.title,
                next_step=entry.next_step,
                value=float(now - heard[row]) / SECOND,
                bound=DEVICE_SILENT_SECONDS,
            ),
        )
    still = {f"device/{case.table.ids()[row]}" for row in np.flatnonzero(quiet).tolist()}
    for key in [k for k in case.open if k.startswith("device/") and k not in still]:
        case.clear(key, now, "it reports again")


def _sensors(case: Casebook, records: Columns, rows: Rows) -> None:
    ok = text(records, "state") == DeviceState.OK.value
    power = number(records, "power_watts")
    activity = np.fmax(number(records, "activity_compute_ratio"), number(records, "activity_compute_max_ratio"))
    energy = number(records, "energy_joules_total")
    temperature = np.fmax(number(records, "temperature_core_celsius"), number(records, "temperature_hotspot_celsius"))
    clock = number(records, "clock_graphics_hertz")
    others_moved = np.zeros(len(rows), bool)
    for name, now_read in (
        ("power", power),
        ("temperature", temperature),
        ("clock", clock),
        ("power_min", number(records, "power_min_watts")),
        ("power_max", number(records, "power_max_watts")),
    ):
        others_moved |= _moved(case, rows, name, now_read)
    energy_moved = _moved(case, rows, "energy", energy)
    case.watch(
        records, rows, "telemetry.frozen", ~others_moved & ~energy_moved & (activity >= ACTIVE_RATIO),
        ok & ~np.isnan(power) & ~np.isnan(temperature), need_bad=FROZEN_ROWS, need_good=2,
        columns=("power_watts", "temperature_core_celsius", "temperature_hotspot_celsius", "clock_graphics_hertz",
                 "energy_joules_total"),
    )  # fmt: skip
    # Where nothing moves at all, every sensor is frozen, not the energy counter alone.
    case.watch(
        records, rows, "telemetry.energy_stuck", ~energy_moved & (power >= ENERGY_WATTS),
        ok & ~np.isnan(energy) & ~np.isnan(power) & (others_moved | energy_moved), need_bad=ENERGY_ROWS, need_good=1,
        value=energy, columns=("energy_joules_total", "power_watts"),
    )  # fmt: skip
    limit = number(records, "power_limit_watts")
    bound = WORK_POWER_RATIO * limit
    lowest = np.fmin(power, number(records, "power_min_watts"))
    case.watch(
        records, rows, "telemetry.activity_zero", (activity <= 0) & (lowest >= bound),
        ok & ~np.isnan(activity) & (limit > 0) & ~np.isnan(power), need_bad=ZERO_ROWS, need_good=2, value=power,
        bound=bound, columns=("activity_compute_ratio", "power_watts", "clock_graphics_hertz"),
    )  # fmt: skip
    _nulls(case, records, rows, ok)


def _moved(case: Casebook, rows: Rows, name: str, now_read: Floats) -> Mask:
    before = case.table.get(f"last:{name}", rows)
    case.table.put(f"last:{name}", rows, now_read)
    moved: Mask = ~np.isnan(now_read) & (now_read != before)
    return moved


def _nulls(case: Casebook, records: Columns, rows: Rows, ok: Mask) -> None:
    """Count how long each field that the device has answered in this boot has been null."""
    boot = np.array([boot_number(b) for b in records.objects("boot_id")], np.float64)
    fresh = case.table.get("boot", rows) != boot
    case.table.put("boot", rows, boot)
    lost: list[list[str]] = [[] for _ in range(records.rows)]
    longest = np.zeros(records.rows)
    for name in STEADY_FIELDS:
        valid = records.valid(name)
        had = (case.table.get(f"had:{name}", rows, 0.0) > 0) & ~fresh
        if not np.count_nonzero(had | valid):
            continue
        nulls = np.where(ok & had & ~valid, case.table.get(f"null:{name}", rows, 0.0) + 1, 0.0)
        case.table.put(f"had:{name}", rows, had | valid)
        case.table.put(f"null:{name}", rows, nulls)
        longest = np.fmax(longest, nulls)
        for i in np.flatnonzero(nulls >= NULL_ROWS).tolist():
            lost[i].append(name)
    case.watch(
        records, rows, "telemetry.field_lost", longest >= NULL_ROWS, ok, need_good=2, value=longest,
        bound=float(NULL_ROWS), extra={"fields": [", ".join(names) for names in lost]}, columns=("missing",),
    )  # fmt: skip


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("gpu_reading", "host_reading", "inventory", "fault_event"),
        summary="Hosts, racks and devices that stopped reporting, and sensors that no longer measure.",
        observe=observe,
        tick=tick,
        codes=(
            "host.silent",
            "rack.silent",
            "pipeline.silent",
            "device.silent",
            "telemetry.frozen",
            "telemetry.energy_stuck",
            "telemetry.activity_zero",
            "telemetry.field_lost",
        ),
        needs={"gpu_reading": ("power_watts",)},
        bounds={
            "SILENT_SECONDS": f"{SILENT_SECONDS:g} s without a row: six shipping intervals",
            "COMMON_SHARE": f"more than {COMMON_SHARE:g} of at least {COMMON_HOSTS} hosts: one trouble, not many",
            "DEVICE_SILENT_SECONDS": f"{DEVICE_SILENT_SECONDS:g} s without a row while the host shows others",
            "FROZEN_ROWS": f"{FROZEN_ROWS} rows of 10 s without the least movement at {ACTIVE_RATIO:g} activity",
            "ENERGY_ROWS": f"{ENERGY_ROWS} rows: the slow tier repeats a value six times",
            "WORK_POWER_RATIO": f"{WORK_POWER_RATIO:g} of the power limit for {ZERO_ROWS} rows: none draws it idle",
            "NULL_ROWS": f"{NULL_ROWS} rows null of a field that the device answered in this boot",
        },
    )
)
