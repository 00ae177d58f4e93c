"""The engine: what it takes in, what it remembers, and that one detector's mistake stops nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from detectors.codes import CODES
from detectors.detector import Detector, load_all
from detectors.docs import render
from detectors.engine import Engine
from passmuster.batch import from_records, to_records
from passmuster.config import Config, DetectorModes

SECOND = 1_000_000_000


def test_the_same_readings_again_and_out_of_order_change_nothing(make_rig: Any) -> None:
    """A redelivered batch gives no finding and leaves the memory as it was."""
    rig = make_rig("nvidia", gpus=2)
    rows = [[rig._gpu(i) for i in range(2)] for _ in range(3)]
    batches = []
    for k, group in enumerate(rows):
        for row in group:
            row["observed_at"] = rig.now + k * 10 * SECOND
            row["row_remap_pending"] = k == 1
        batches.append(rig.batch("gpu_reading", group))
    now = rig.now + 60 * SECOND
    for batch in batches:
        rig.engine.feed(batch, now)
    before = rig.engine.snapshot()
    for batch in [*batches, *reversed(batches)]:
        assert rig.engine.feed(batch, now) == []
    after = msgspec.json.decode(rig.engine.snapshot())
    assert msgspec.json.decode(before)["detectors"] == after["detectors"]
    assert rig.engine.ignored["repeated"] == 12


def test_one_batch_of_many_rows_is_as_many_batches_of_one(make_rig: Any) -> None:
    """Rows of one device in one batch are taken one after the other, in order of time."""
    rigs = [make_rig("amd", gpus=2), make_rig("amd", gpus=2)]
    ticks = []
    for k in range(6):
        group = [rigs[0]._gpu(i) | {"observed_at": rigs[0].now + k * 10 * SECOND} for i in range(2)]
        group[0] |= {"bad_pages_pending": int(k in (2, 3)), "pcie_width": 16 if k < 1 else 8}
        ticks.append(group)
    now = rigs[0].now + 60 * SECOND
    together = rigs[0].engine.feed(rigs[0].batch("gpu_reading", [r for g in reversed(ticks) for r in g]), now)
    apart = [f for group in ticks for f in rigs[1].engine.feed(rigs[1].batch("gpu_reading", group), now)]
    key = [(f.code, f.device_id, f.last_seen_at, f.cleared_at) for f in apart]
    assert sorted(key, key=str) == sorted(
        [(f.code, f.device_id, f.last_seen_at, f.cleared_at) for f in together], key=str
    )
    assert key


@pytest.mark.parametrize(("seconds", "why"), [(-601.0, "late"), (601.0, "ahead")])
def test_old_rows_and_rows_from_the_future_open_nothing(make_rig: Any, seconds: float, why: str) -> None:
    """More than ten minutes off, readings and faults are for the store only, and counted."""
    rig = make_rig("nvidia", gpus=1)
    real = rig.now
    rig.now += int(seconds * SECOND)
    rig.plant(0, row_remap_failed=True)
    batch = rig.batch("gpu_reading", [rig._gpu(0)])
    assert rig.engine.feed(batch, real) == []
    assert 1 == rig.engine.ignored[why]
    rig.now = real
    assert ["memory.row_remap_failed"] == [f.code for f in rig.step()]


def test_an_old_fault_of_another_day_opens_nothing(make_rig: Any) -> None:
    """A driver repeats a record of 15 hours ago (ROCm/device-metrics-exporter#506): the GPU is as good as before."""
    rig = make_rig("amd", gpus=1)
    rig.step()
    old = rig.now - 15 * 3600 * SECOND
    assert rig.fault(0, "afid:19", "R", "critical", first_at=old, last_at=old) == []


def test_a_detector_that_raises_is_counted_and_stops_nobody(make_rig: Any) -> None:
    """Its siblings find what they find, its checks become unknown, its memory stays as it was."""

    def broken(state: dict[str, Any], records: Any, now: int) -> Any:
        raise RuntimeError("planted")

    bad = Detector(
        name="broken", version=1, kinds=("gpu_reading",), summary="x", observe=broken, needs={"gpu_reading": ("state",)}
    )
    engine = Engine(Config(), [bad, *load_all().values()])
    rig = make_rig("nvidia", engine=engine, gpus=1)
    rig.plant(0, row_remap_failed=True)
    assert ["memory.row_remap_failed"] == [f.code for f in rig.step()]
    assert (1, "RuntimeError: planted") == (engine.health()["broken"].errors, engine.health()["broken"].last_error)
    states = {(s.check, s.subject_kind.value): s.state.value for s in engine.check_states(rig.now)}
    assert "unknown" == states["broken", "device"]
    assert "unknown" == states["broken", "pipeline"]
    assert "unhealthy" == states["memory_repair", "device"]


def test_a_restart_forgets_nothing(make_rig: Any) -> None:
    """An engine restored from a snapshot goes on with findings, runs and counters."""
    rig = make_rig("nvidia", gpus=3)
    rig.steps(2)
    rig.plant(0, row_remap_pending=True)
    rig.plant(1, links_up=17)
    first = rig.steps(2)
    later = Engine(Config())
    assert later.restore(rig.engine.snapshot()) == ""
    assert {f.dedup_key for f in first} == {f.dedup_key for f in later.open_findings()}
    rig.engine = later
    rig.plant(2, ecc_blocks_total={"dram.uncorrected": 1})
    assert {"link.down", "memory.uncorrected"} == {f.code for f in rig.step()}
    rig.heal(0)
    cleared = [f for f in rig.steps(2) if f.cleared_at]
    assert [("memory.row_remap_pending", first[0].opened_at)] == [(f.code, f.opened_at) for f in cleared]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"version": 1}',
        b'{"version":9,"detectors":{},"last_at":{},"hosts":{},"open":[],"checks":{}}',
        b"[" * 100_000,
    ],
    ids=["empty", "bytes", "list", "cut", "future", "deep"],
)
def test_a_broken_memory_starts_fresh_and_says_so(make_rig: Any, data: bytes) -> None:
    """Garbage and unknown versions are one sentence, and the engine works."""
    rig = make_rig("nvidia", gpus=1)
    assert "start fresh" in rig.engine.restore(data)
    rig.plant(0, row_remap_failed=True)
    assert len(rig.step()) == 1


def test_the_memory_of_another_detector_version_is_dropped_alone(make_rig: Any) -> None:
    """Its own state and findings go, the others' stay."""
    rig = make_rig("nvidia", gpus=1)
    rig.plant(0, row_remap_failed=True, state="lost")
    rig.step()
    memory = msgspec.json.decode(rig.engine.snapshot())
    memory["detectors"]["memory_repair"][0] = 99
    later = Engine(Config())
    assert "memory_repair" in later.restore(msgspec.json.encode(memory))
    assert ["device.lost"] == [f.code for f in later.open_findings()]


@pytest.mark.parametrize("broken", [{"table": {"ids": ["a"], "columns": {"x": []}}}, {"table": 7}, {"open": {"k": 1}}])
def test_a_detectors_broken_memory_is_dropped_alone(make_rig: Any, broken: dict[str, Any]) -> None:
    """Valid JSON with a state that cannot be: that detector starts fresh and works."""
    rig = make_rig("nvidia", gpus=1)
    rig.step()
    memory = msgspec.json.decode(rig.engine.snapshot())
    memory["detectors"]["memory_repair"][1] = broken
    later = Engine(Config())
    assert "memory_repair" in later.restore(msgspec.json.encode(memory))
    rig.engine = later
    rig.plant(0, row_remap_failed=True)
    assert ["memory.row_remap_failed"] == [f.code for f in rig.step()]


@pytest.mark.parametrize(("modes", "mode"), [
    ({}, "shadow"),
    ({"memory_repair": "store"}, "store"),
    ({"memory_repair": "store", "memory_repair/R": "act"}, "act"),
    ({"memory_repair/R": "act", "memory_repair/R/NVIDIA H200": "shadow"}, "shadow"),
    ({"memory_repair/P": "act"}, "shadow"),
    ({"memory_repair": "off"}, None),
])  # fmt: skip
def test_the_longest_key_gives_the_mode(make_rig: Any, modes: dict[str, str], mode: str | None) -> None:
    """Detector, class and model: the closest wins; off is not even told."""
    engine = Engine(Config(detectors=DetectorModes(modes=modes, promoted_by="Ann")))
    rig = make_rig("nvidia", engine=engine, gpus=1)
    rig.plant(0, row_remap_failed=True)
    assert [m for m in [mode] if m] == [f.mode.value for f in rig.step()]


def test_a_finding_goes_on_quietly_and_is_told_again_every_few_minutes(make_rig: Any) -> None:
    """Seven minutes of one condition are two rows of one finding: one opened_at, a later last_seen_at."""
    rig = make_rig("nvidia", gpus=1)
    rig.plant(0, row_remap_failed=True)
    found = [f for _ in range(7) for f in rig.step(60.0)]
    assert 2 == len(found)
    assert 1 == len({(f.dedup_key, f.opened_at) for f in found})
    assert 300 * SECOND == found[1].last_seen_at - found[0].last_seen_at


def test_one_look_tells_what_it_saw_once_as_a_warning(make_rig: Any) -> None:
    """With one reading there is no second row to wait for: unsure things are warnings, hard facts stay facts."""
    rig = make_rig("nvidia", engine=Engine(Config(), one_shot=True), gpus=4)
    rig.busy = False
    rig.plant(0, row_remap_failed=True)
    rig.plant(1, links_up=17, pcie_width=8)
    told = {f.code: f.severity.value for f in rig.step()}
    assert {"memory.row_remap_failed": "critical", "link.down": "warning", "pcie.width_loss": "warning"} == told


def test_findings_are_valid_records(make_rig: Any) -> None:
    """What the engine says survives the wire, with a hostile device id too."""
    rig = make_rig("nvidia", gpus=1)
    rig.plant(0, device_id="x" * 256, row_remap_failed=True, throttle_ratio={"k" * 60: 1.0})
    (finding,) = rig.step()
    assert [finding] == to_records(from_records([finding]))
    assert len(finding.dedup_key) <= 256


def test_fine_is_recorded_and_what_was_not_checked_is_not_fine(make_rig: Any) -> None:
    """Checked devices are healthy once; null for want of support is unsupported, other nulls are unknown."""
    rig = make_rig("nvidia", gpus=3)
    nothing = {"row_remap_failed": None, "bad_pages_reserved": None, "bad_pages_pending": None}
    rig.plant(1, **nothing, missing=dict.fromkeys(nothing, "unsupported"))
    rig.plant(2, **nothing, missing=dict.fromkeys(nothing, "failed 999"))
    rig.step()

    def told() -> dict[str, str]:
        states = rig.engine.check_states(rig.now)
        return {s.subject_id: s.state.value for s in states if s.check == "memory_repair"}

    assert {rig.device(0): "healthy", rig.device(1): "unsupported", rig.device(2): "unknown"} == told()
    rig.step()
    assert told() == {}
    rig.plant(0, row_remap_pending=True)
    rig.step()
    assert {rig.device(0): "degraded"} == told()
    rig.heal(0)
    rig.steps(2)
    assert {rig.device(0): "healthy"} == told()
    rig.now += 200 * SECOND
    assert "unknown" == told()[rig.device(0)]


def test_a_host_that_names_endless_devices_fills_no_memory(make_rig: Any) -> None:
    """Beyond the bound rows are ignored and counted."""
    rig = make_rig("nvidia", gpus=1)
    rows = [rig._gpu(0) | {"device_id": f"made up {n}"} for n in range(1000)]
    rig.engine.feed(rig.batch("gpu_reading", rows), rig.now)
    assert 1000 - 256 == rig.engine.ignored["too_many_subjects"]


def test_every_code_belongs_to_one_detector_and_every_detector_is_documented() -> None:
    """The code table, the register and the page agree."""
    owned = [code for d in load_all().values() for code in d.codes]
    assert sorted(CODES) == sorted(owned)
    page = render()
    for name, detector in load_all().items():
        assert f"## {name}" in page
        assert all(f"`{bound}`" in page for bound in detector.bounds)
        assert detector.bounds
