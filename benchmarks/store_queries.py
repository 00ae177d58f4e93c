"""Stores a million GpuReading rows in a fresh embedded store, then times each query of the on-call pages.

    python benchmarks/store_queries.py [--rows 1000000] [--runs 9]

Prints rows a second (wire form to disk, and the insert alone) and the median and maximum of each query. The target
is 200 ms for each query's median. Exits with 1 when a query misses it. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from passmuster import config
from passmuster.batch import Batch, decode, encode, from_records
from passmuster.chdb_store import ChdbStore
from passmuster.records import Blame, FaultClass, FaultEvent, Finding, Inventory, Severity, SubjectKind, Trust, Vendor

HOSTS, GPUS, TICKS = 64, 8, 3
ROUNDS = 8  # ships of the whole fleet that are stored in one insert, as a backlog is
TICK_SECONDS = 10
SECOND = 1_000_000_000
TARGET_SECONDS = 0.2
MODELS = (
    ("nvidia", "NVIDIA H200"),
    ("nvidia", "NVIDIA B200"),
    ("amd", "AMD Instinct MI300X"),
    ("amd", "AMD Instinct MI350X"),
)


def readings(host: int, at: int, seq: int, rng: random.Random) -> Batch:
    """Return what one host ships every 30 s: 8 devices, 3 ticks, the columns that its vendor answers."""
    vendor, model = MODELS[host % len(MODELS)]
    rows = GPUS * TICKS

    def noise(mean: float, spread: float, digits: int = 0) -> list[float]:
        return [round(rng.gauss(mean, spread), digits) for _ in range(rows)]

    power = noise(640, 30, 3)
    columns: dict[str, Any] = {
        "observed_at": [at + t * TICK_SECONDS * SECOND + g for t in range(TICKS) for g in range(GPUS)],
        "device_id": [f"{host:03d}{g:02d}1650225" for _ in range(TICKS) for g in range(GPUS)],
        "vendor": vendor,
        "model": model,
        "pci_address": [f"0000:{g * 16 + 27:02x}:00.0" for _ in range(TICKS) for g in range(GPUS)],
        "index": [g for _ in range(TICKS) for g in range(GPUS)],
        "state": "ok",
        "interval_seconds": float(TICK_SECONDS),
        "samples": 10,
        "epoch": 0,
        "power_watts": power,
        "power_min_watts": [p - 25 for p in power],
        "power_max_watts": [p + 25 for p in power],
        "power_limit_watts": 700.0,
        "energy_joules_total": [seq * 19200.0 + p for p in power],
        "temperature_memory_celsius": noise(70, 2),
        "temperature_memory_max_celsius": noise(72, 2),
        "clock_graphics_hertz": [c * 1e6 for c in noise(1800, 40)],
        "clock_graphics_min_hertz": [c * 1e6 for c in noise(1700, 40)],
        "clock_graphics_max_hertz": [c * 1e6 for c in noise(1900, 40)],
        "clock_graphics_limit_hertz": 1.98e9,
        "clock_memory_hertz": 3.2e9,
        "activity_compute_ratio": [min(1.0, max(0.0, a)) for a in noise(0.95, 0.04, 2)],
        "activity_memory_ratio": [min(1.0, max(0.0, a)) for a in noise(0.5, 0.1, 2)],
        "memory_total_bytes": 150_754_820_096,
        "memory_used_bytes": [int(130e9 + m * 1e6) for m in noise(0, 500)],
        "throttle_ratio": [{"power_cap": round(rng.random(), 1)} for _ in range(rows)],
        "ecc_enabled": True,
        "ecc_corrected_total": [rng.randrange(4) for _ in range(rows)],
        "ecc_uncorrected_total": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "pcie_errors_total": [{"replay": 3, "correctable": rng.randrange(3)} for _ in range(rows)],
        "links_up": 18 if vendor == "nvidia" else 7,
        "links_total": 18 if vendor == "nvidia" else 7,
        "links": {str(n): 1 for n in range(18 if vendor == "nvidia" else 7)},
        "recovery_action": "none",
        "processes": 1,
    }
    if vendor == "nvidia":
        columns |= {
            "temperature_core_celsius": noise(62, 2),
            "temperature_core_max_celsius": noise(64, 2),
            "temperature_margin_celsius": noise(25, 2),
            "sm_activity_ratio": [min(1.0, max(0.0, a)) for a in noise(0.9, 0.05, 3)],
            "tensor_activity_ratio": [min(1.0, max(0.0, a)) for a in noise(0.6, 0.05, 3)],
            "dram_activity_ratio": [min(1.0, max(0.0, a)) for a in noise(0.4, 0.05, 3)],
            "ecc_blocks_total": {
                "dram.corrected": 1,
                "dram.uncorrected": 0,
                "sram.corrected": 0,
                "sram.uncorrected": 0,
            },
            "row_remap_pending": False,
            "row_remap_failed": False,
            "row_remap_banks": {"max": 5120, "high": 0, "partial": 0, "low": 0, "none": 0},
            "missing": {"temperature_hotspot_celsius": "unsupported", "link_bytes_total": "unsupported"},
        }
    else:
        columns |= {
            "temperature_hotspot_celsius": noise(75, 2),
            "temperature_hotspot_max_celsius": noise(77, 2),
            "temperature_hbm_celsius": [{str(n): float(rng.randrange(60, 75)) for n in range(4)} for _ in range(rows)],
            "ecc_deferred_total": 0,
            "ecc_blocks_total": {
                f"{b}.{s}": 0 for b in ("umc", "gfx", "sdma", "xgmi") for s in ("corrected", "uncorrected")
            },
            "bad_pages_reserved": 0,
            "bad_pages_pending": 0,
            "missing": {"temperature_core_celsius": "unsupported", "sm_activity_ratio": "unsupported"},
        }
    return Batch("gpu_reading", 1, "bench", f"host-{host:03d}", f"boot-{host:03d}", seq, rows, columns)


def wire(rows: int, until: int) -> Iterator[list[bytes]]:
    """Yield groups of encoded batches, oldest first, that end at `until` and hold about `rows` rows."""
    rng = random.Random(1)
    per_round = HOSTS * GPUS * TICKS
    rounds = -(-rows // per_round)
    # Noise is cheap to repeat and dear to draw; each host's batch is drawn a few times, then only its times move on.
    drawn = [[readings(h, 0, n, rng) for h in range(HOSTS)] for n in range(4)]
    for n in range(rounds):
        at = until - (rounds - n) * TICKS * TICK_SECONDS * SECOND
        yield [
            encode(
                Batch(
                    b.kind,
                    b.version,
                    b.cluster,
                    b.host,
                    b.boot_id,
                    n,
                    b.rows,
                    b.columns | {"observed_at": [at + t for t in b.columns["observed_at"]]},
                )
            )
            for b in drawn[n % len(drawn)]
        ]


def facts(now: int) -> list[Batch]:
    """Return a believable few of the rare kinds: inventories, faults, findings."""
    batches = []
    for host in range(HOSTS):
        vendor, model = MODELS[host % len(MODELS)]
        header: dict[str, Any] = {"cluster": "bench", "host": f"host-{host:03d}", "boot_id": f"boot-{host:03d}"}
        device = [f"{host:03d}{g:02d}1650225" for g in range(GPUS)]
        inventory = [
            Inventory(
                **header, observed_at=now, device_id=d, valid_from_at=now - 10**14, vendor=Vendor(vendor), model=model
            )
            for d in device
        ]
        faults = [
            FaultEvent(
                **header,
                observed_at=now,
                device_id=device[n % GPUS],
                vendor=Vendor(vendor),
                source="kernel_log",
                kind="xid",
                code=f"xid:{n}",
                fault_class=FaultClass.UNCONTAINED,
                severity=Severity.CRITICAL,
                blame=Blame.HARDWARE,
                first_at=now - n * 10**12,
                last_at=now - n * 10**12,
                trust=Trust.KERNEL,
                text="NVRM: Xid",
            )
            for n in range(16)
        ]
        findings = [
            Finding(
                **header,
                observed_at=now,
                dedup_key=f"{host}/{n}",
                opened_at=now - n * 10**12,
                last_seen_at=now,
                detector="fault_codes",
                code=f"xid.{n}",
                subject_kind=SubjectKind.DEVICE,
                subject_id=device[0],
                device_id=device[0],
                fault_class=FaultClass.UNCONTAINED,
                severity=Severity.CRITICAL,
                title="a fault",
                cleared_at=now if n else None,
            )
            for n in range(8)
        ]
        batches += [from_records(inventory), from_records(faults), from_records(findings)]
    return batches


def queries(now: int) -> dict[str, dict[str, Any]]:
    """Return each query with the parameters that a page gives it; `since` of the fleet pages is the whole data."""
    day, one = now - 86_400 * SECOND, {"cluster": "bench", "host": "host-007"}
    hour, span = now - 3_600 * SECOND, {"since_at": day, "until_at": now}
    return {
        "fleet_glance": {"since_at": day, "now_at": now, "silent_after_seconds": 120.0},
        "fleet_devices": {"since_at": day, "now_at": now, "host": ""},
        "fleet_hosts": {"since_at": day, "now_at": now},
        "silent_hosts": {"since_at": day, "now_at": now, "silent_after_seconds": 120.0},
        "findings_open": {"host": "", "limit": 500},
        "findings_recent": {"since_at": day, "host": "", "limit": 500},
        "faults_recent": {"since_at": day, "host": "", "limit": 500},
        "hold_events": {"since_at": day, "host": "", "limit": 500},
        "checks_latest": {"host": "host-007"},
        "inventory_now": {"host": ""},
        "host_readings_latest": {"since_at": day, "host": ""},
        "host_story": {**one, **span, "limit": 500},
        "device_series": {**one, **span, "bucket_seconds": 60},
        "presence": {**span, "bucket_seconds": 600, "host": ""},
        "lag": {"since_at": hour},
        "exposure": span,
        "fault_counts": {**span, "repeat_seconds": 3600.0},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=9)
    args = parser.parse_args()
    now = time.time_ns()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        store = ChdbStore(Path(folder) / "store", config.Store())
        rows, decoding, inserting, bytes_in = 0, 0.0, 0.0, 0
        rounds = wire(args.rows, now)
        while group := list(chain.from_iterable(islice(rounds, ROUNDS))):
            bytes_in += sum(len(data) for data in group)
            begun = time.perf_counter()
            batches = [decode(data) for data in group]
            decoded = time.perf_counter()
            store.insert(batches)
            inserting += time.perf_counter() - decoded
            decoding += decoded - begun
            rows += sum(b.rows for b in batches)
        store.insert(facts(now))
        on_disk = sum(p.stat().st_size for p in Path(folder).rglob("*") if p.is_file())
        print(f"{rows} rows in inserts of {HOSTS * GPUS * TICKS * ROUNDS}")
        print(f"{rows / (inserting + decoding):,.0f} rows/s from the wire, {rows / inserting:,.0f} rows/s insert alone")
        print(f"{bytes_in / rows:.0f} bytes a row on the wire, {on_disk / rows:.0f} on disk")
        missed = []
        print("| query | rows | median ms | max ms |\n| --- | --- | --- | --- |")
        for name, params in queries(now).items():
            times = []
            answer: list[dict[str, Any]] = []
            for _ in range(args.runs):
                begun = time.perf_counter()
                answer = store.query(name, **params)
                times.append(time.perf_counter() - begun)
            median = statistics.median(times)
            print(f"| {name} | {len(answer)} | {median * 1e3:.0f} | {max(times) * 1e3:.0f} |")
            if median > TARGET_SECONDS:
                missed.append(name)
        store.close()
    print(f"over {TARGET_SECONDS * 1e3:.0f} ms: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
