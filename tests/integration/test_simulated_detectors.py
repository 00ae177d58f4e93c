"""Every fault that the simulator can plant, against the detectors that must find it."""

from itertools import groupby

import pytest

from collectors.simulated import SimulatedFleet
from collectors.simulated_faults import KINDS, FaultKind
from collectors.simulated_schedule import SECOND, PlantedFault
from detectors.engine import Engine
from passmuster.batch import Batch
from passmuster.config import Config
from passmuster.records import Finding

START = 1_767_225_600 * SECOND
ROUND = 10 * SECOND
STRIKE = START + 150 * SECOND  # when every host has a job
# A sensor that stands still is told from a steady load only after a quarter of an hour.
UNTIL = STRIKE + 1_000 * SECOND


def last_at(batch: Batch) -> int:
    """Time of the newest row."""
    at = batch.columns["observed_at"]
    return int(max(at) if isinstance(at, list) else at)


def plant_all(fleet: SimulatedFleet) -> dict[str, PlantedFault]:
    """Plant each kind once, each on hosts of its own."""
    free = {info.host: info for info in fleet.hosts()}
    faults = {}
    # Whole racks first, then the kinds that only one vendor has: those of both take what is left.
    for kind in sorted(KINDS, key=lambda kind: (not kind.whole_rack, len(kind.vendors))):
        host = next(name for name, info in free.items() if info.model.vendor in kind.vendors)
        faults[kind.name] = fleet.plant(kind.name, host, STRIKE)
        for name in faults[kind.name].hosts:
            del free[name]
    return faults


@pytest.fixture(scope="module")
def outcome() -> tuple[dict[str, PlantedFault], list[Finding]]:
    """What was planted in one run of a fleet, and what the detectors said."""
    fleet = SimulatedFleet(hosts=48, gpus_per_host=2, start_at=START, faults=False)
    faults = plant_all(fleet)
    engine = Engine(Config())
    findings = []
    for number, batches in groupby(fleet.batches(UNTIL), key=lambda batch: last_at(batch) // ROUND):
        now = (number + 1) * ROUND
        findings += engine.feed_all(list(batches), now) + engine.tick(now)
    assert {name: health.last_error for name, health in engine.health().items() if health.errors} == {}
    return faults, findings


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_planted_faults_are_found(kind: FaultKind, outcome: tuple[dict[str, PlantedFault], list[Finding]]) -> None:
    """A fault is found under its code; one of an application or a forger opens nothing."""
    fault, findings = outcome[0][kind.name], outcome[1]
    rack = fault.host.split("-")[0]
    codes = {
        f.code for f in findings if f.host in fault.hosts or f.subject_id.endswith(rack) or f.subject_id in fault.hosts
    }
    if kind.finding is None:
        assert set() == codes
    else:
        assert kind.finding in codes


def test_hosts_without_a_fault_have_no_finding(outcome: tuple[dict[str, PlantedFault], list[Finding]]) -> None:
    """Whatever happens to others, a healthy host stays clean."""
    faults, findings = outcome
    struck = {host for fault in faults.values() for host in fault.hosts}
    assert [(f.host, f.code) for f in findings if f.host and f.host not in struck] == []
