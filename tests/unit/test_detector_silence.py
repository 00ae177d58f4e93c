"""Hosts and devices that stop reporting: unknown, told once, of the smallest cause."""

from __future__ import annotations

from typing import Any

from detectors.engine import Engine
from passmuster.config import Config

SECOND = 1_000_000_000


def fleet(make_rig: Any, racks: dict[str, str]) -> tuple[Engine, list[Any]]:
    """Build hosts that share one engine, with their racks in the inventory."""
    engine = Engine(Config())
    rigs = [make_rig("nvidia", engine=engine, host=host, gpus=1) for host in racks]
    for rig in rigs:
        row = {
            "observed_at": rig.now, "device_id": rig.device(0), "valid_from_at": rig.now, "vendor": "nvidia",
            "rack": racks[rig.host],
        }  # fmt: skip
        engine.feed(rig.batch("inventory", [row]), rig.now)
    return engine, rigs


def run(engine: Engine, rigs: list[Any], steps: int, silent: set[str]) -> list[Any]:
    """Let minutes pass in which some hosts say nothing."""
    found = []
    for _ in range(steps):
        for rig in rigs:
            if rig.host in silent:
                rig.now += 60 * SECOND
            else:
                found += rig.step(60.0, ticked=False)
        found += engine.tick(rigs[0].now)
    return found


RACKS = {f"h{i}": f"r{i // 4}" for i in range(12)}


def test_one_silent_host_is_reported_alone_and_ends_when_it_speaks(make_rig: Any) -> None:
    """A host that stops among others that report is one warning of class S."""
    engine, rigs = fleet(make_rig, RACKS)
    assert run(engine, rigs, 1, set()) == []
    found = run(engine, rigs, 4, {"h5"})
    assert [("host.silent", "h5", "S")] == [(f.code, f.subject_id, f.fault_class.value) for f in found]
    run(engine, rigs, 1, set())
    assert engine.open_findings() == []


def test_a_silent_rack_is_one_finding(make_rig: Any) -> None:
    """Three of four hosts of a rack are the rack's trouble."""
    engine, rigs = fleet(make_rig, RACKS)
    run(engine, rigs, 1, set())
    found = run(engine, rigs, 4, {"h4", "h5", "h6"})
    assert [("rack.silent", "r1")] == [(f.code, f.subject_id) for f in found]


def test_a_silent_fleet_is_our_own_pipeline(make_rig: Any) -> None:
    """When most hosts stop, the likely cause is between them and us."""
    engine, rigs = fleet(make_rig, RACKS)
    run(engine, rigs, 1, set())
    found = run(engine, rigs, 4, {f"h{i}" for i in range(1, 12)})
    assert ["pipeline.silent"] == [f.code for f in found]


def test_time_in_which_we_did_not_run_proves_nothing(make_rig: Any) -> None:
    """After a restart an hour later nobody is called silent until they had time to speak."""
    engine, rigs = fleet(make_rig, RACKS)
    run(engine, rigs, 1, set())
    later = Engine(Config())
    assert later.restore(engine.snapshot()) == ""
    assert later.tick(rigs[0].now + 3600 * SECOND) == []
    assert later.tick(rigs[0].now + 3700 * SECOND) == []


def test_a_device_that_its_host_no_longer_shows(make_rig: Any) -> None:
    """A device without rows while its siblings have some is silent, and nothing worse."""
    rig = make_rig("amd", gpus=3)
    rig.steps(2)
    rig.plant(1, present=False)
    found = rig.steps(20)
    assert [("device.silent", rig.device(1))] == [(f.code, f.device_id) for f in found]
    rig.heal(1)
    rig.steps(1)
    assert rig.engine.open_findings() == []
