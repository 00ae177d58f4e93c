"""Plants every fault in a simulated fleet and tells which finding came of it, how fast, and what a clean fleet raises.

Run: python benchmarks/detectors_on_simulator.py [--hours 2] [--hosts 32] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby

from collectors.simulated import SimulatedFleet
from collectors.simulated_schedule import SECOND, PlantedFault
from detectors.engine import Engine
from passmuster.batch import Batch
from passmuster.config import Config
from passmuster.records import Finding

START_AT = 1_767_225_600 * SECOND  # 2026-01-01
ROUND = 10 * SECOND


def findings(fleet: SimulatedFleet, until: int) -> Iterator[Finding]:
    """Feed the fleet's batches to the detectors as they come, in rounds of ten seconds."""
    engine = Engine(Config())
    rounds: Iterator[tuple[int, Iterator[Batch]]] = groupby(
        fleet.batches(until), key=lambda batch: max(_times(batch)) // ROUND
    )
    for number, batches in rounds:
        now = (number + 1) * ROUND
        yield from engine.feed_all(list(batches), now)
        yield from engine.tick(now)
    for name, health in engine.health().items():
        if health.errors:
            print(f"detector {name}: {health.errors} errors, last: {health.last_error}", file=sys.stderr)


def _times(batch: Batch) -> list[int]:
    at = batch.columns["observed_at"]
    return at if isinstance(at, list) else [at]


def concerns(finding: Finding, fault: PlantedFault) -> bool:
    """Tell whether a finding can have come of a fault: its host, rack or device, opened while it lasted."""
    racks = {host.split("-")[0] for host in fault.hosts}
    place = (
        finding.host in fault.hosts or finding.subject_id in fault.hosts or finding.subject_id.split("/")[-1] in racks
    )
    return place and fault.at <= finding.opened_at <= fault.until_at + 600 * SECOND


def main() -> None:
    """Print both tables; exit 2 when a planted fault was missed or a clean fleet raised a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    until = START_AT + int(options.hours * 3600 * SECOND)

    fleet = SimulatedFleet(hosts=options.hosts, seed=options.seed, start_at=START_AT, fault_gap_seconds=180.0)
    opened: dict[tuple[str, int], Finding] = {}
    for finding in findings(fleet, until):
        opened.setdefault((finding.dedup_key, finding.opened_at), finding)
    # What was planted in the last quarter of an hour may still be on its way.
    planted = [fault for fault in fleet.schedule(until) if fault.at < until - 900 * SECOND]
    missed = 0
    claimed: set[tuple[str, int]] = set()
    by_kind: dict[str, list[tuple[PlantedFault, float | None, list[str]]]] = defaultdict(list)
    for fault in planted:
        near = {key: f for key, f in opened.items() if concerns(f, fault)}
        claimed.update(near)
        hits = [f for f in near.values() if f.code == fault.finding]
        delay = min((f.observed_at - fault.at) / SECOND for f in hits) if hits else None
        by_kind[fault.kind].append((fault, delay, sorted({f.code for f in near.values()} - {fault.finding or ""})))
        missed += fault.finding is not None and delay is None
    print(f"{'planted':26}{'class':6}{'expected':30}{'found':>8}  {'seconds':>8}  also opened")
    for kind, cases in sorted(by_kind.items()):
        fault = cases[0][0]
        delays = sorted(delay for _, delay, _ in cases if delay is not None)
        found = f"{len(delays)}/{len(cases)}" if fault.finding else "-"
        median = f"{delays[len(delays) // 2]:8.1f}" if delays else " " * 8
        also = ", ".join(sorted({code for _, _, codes in cases for code in codes}))
        print(f"{kind:26}{fault.fault_class.value:6}{fault.finding or '(none)':30}{found:>8}  {median}  {also}")
    every = fleet.schedule(until)
    stray = [f for key, f in opened.items() if key not in claimed and not any(concerns(f, fault) for fault in every)]
    for finding in stray[:20]:
        print(f"no planted fault explains {finding.code} on {finding.host} {finding.device_id} {finding.evidence}")

    clean = SimulatedFleet(hosts=options.hosts, seed=options.seed, start_at=START_AT, faults=False)
    alarms = {(f.dedup_key, f.opened_at): f for f in findings(clean, until)}
    for finding in list(alarms.values())[:20]:
        print(f"false alarm: {finding.code} on {finding.host} {finding.device_id} {finding.evidence}")
    days = options.hosts * 8 * options.hours / 24
    print(f"clean fleet: {len(alarms)} findings in {days:.0f} GPU-days; missed {missed} of {len(planted)} planted")
    sys.exit(2 if missed or alarms or stray else 0)


if __name__ == "__main__":
    main()
