"""What only the NVML backend does: memory of absent calls, old libraries, wrong bindings, hangs and recordings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.device import DeviceSample, LibraryAbsent, LibraryBroken, Tier
from collectors.recording import ReplayBackend
from collectors.scenario import parse, write
from passmuster.exits import ExitCode
from passmuster.records import DeviceState, GpuReading
from tests.doubles.build import nvml_environment
from tests.doubles.child_backend import ChildBackend

TESTS = Path(__file__).parent.parent
Start = Callable[..., ChildBackend]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A live scenario of two NVIDIA GPUs."""
    path = tmp_path / "scenario"
    write(path, (TESTS / "data" / "scenarios" / "nvidia_two_gpus.txt").read_text())
    return path


@pytest.fixture
def backend(scenario: Path, child_backend: Start) -> ChildBackend:
    """The NVML backend on its double, open."""
    started = child_backend("nvidia", nvml_environment(scenario))
    started.open()
    started.identify()
    return started


def change(path: Path, values: dict[str, object]) -> None:
    """Replace the scenario by one with these keys; None takes a key away."""
    merged = parse(path.read_text()) | values
    write(path, {key: value for key, value in merged.items() if value is not None})


def first(samples: list[DeviceSample]) -> DeviceSample:
    """Return the sample of the first device."""
    return samples[0]


def test_an_absent_capability_is_asked_again_after_ten_minutes(backend: ChildBackend, scenario: Path) -> None:
    """A call that is not supported is left alone for ten minutes, then asked again."""
    change(scenario, {"gpu0.remap": None})
    assert "unsupported" == first(backend.sample(Tier.FAST)).missing["row_remap_failed"]
    change(scenario, {"gpu0.remap": "0,0,0,1"})
    backend.ask("advance", 590)
    assert "unsupported" == first(backend.sample(Tier.FAST)).missing["row_remap_failed"]
    backend.ask("advance", 20)
    assert first(backend.sample(Tier.FAST)).values["row_remap_failed"] is True


def test_a_failed_call_is_asked_again_at_once(backend: ChildBackend, scenario: Path) -> None:
    """An error that says nothing about support is not remembered."""
    change(scenario, {"gpu0.error.nvmlDeviceGetTemperature": 999})
    assert "failed 999" == first(backend.sample(Tier.FAST)).missing["temperature_core_celsius"]
    change(scenario, {"gpu0.error.nvmlDeviceGetTemperature": None})
    assert 61.0 == first(backend.sample(Tier.FAST)).values["temperature_core_celsius"]


def test_an_older_driver_gives_the_older_fabric_struct(backend: ChildBackend, scenario: Path) -> None:
    """Version 3 refused, version 2 answered: the same values."""
    change(scenario, {"gpu0.fabric_version": 2})
    assert "completed" == first(backend.sample(Tier.SLOW)).values["fabric_state"]


@pytest.mark.parametrize(
    ("field_type", "raw", "expected"),
    [(0, "77.0", 77.0), (1, "77", 77.0), (3, "77", 77.0), (4, "-8", -8.0), (5, "-8", -8.0), (6, "77", 77.0)],
)
def test_a_field_value_is_read_by_its_type(
    backend: ChildBackend, scenario: Path, field_type: int, raw: str, expected: float
) -> None:
    """Doubles, signed and short values come out right."""
    change(scenario, {"gpu0.field.82": raw, "gpu0.field_type.82": field_type})
    assert expected == first(backend.sample(Tier.FAST)).values["temperature_memory_celsius"]


def test_a_field_value_of_an_unknown_type_is_no_value(backend: ChildBackend, scenario: Path) -> None:
    """A type that a newer library invented is not guessed at."""
    change(scenario, {"gpu0.field_type.82": 9})
    assert "sentinel" == first(backend.sample(Tier.FAST)).missing["temperature_memory_celsius"]


def test_a_lost_device_within_field_values_is_lost(backend: ChildBackend, scenario: Path) -> None:
    """Code 15 on one element counts as much as on the call."""
    change(scenario, {"gpu0.field_error.230": 15})
    assert DeviceState.LOST == first(backend.sample(Tier.FAST)).state


def test_pcie_throughput_is_never_asked(backend: ChildBackend, scenario: Path) -> None:
    """The call that blocks for 21 ms would hang here."""
    change(scenario, {"gpu0.hang.nvmlDeviceGetPcieThroughput": 1})
    states = [first(backend.sample(tier)).state for tier in Tier]
    assert [DeviceState.OK] * len(Tier) == states


def test_a_hung_call_hangs_its_process_only(backend: ChildBackend, scenario: Path) -> None:
    """A call that never returns leaves the parent free, and the child can be killed."""
    change(scenario, {"gpu0.hang.nvmlDeviceGetTemperature": 1})
    backend.deadline_seconds = 0.3
    with pytest.raises(TimeoutError):
        backend.sample(Tier.FAST)
    backend.end()
    assert backend.process.returncode is not None


def test_events_survive_the_loss_of_a_device(backend: ChildBackend, scenario: Path) -> None:
    """A lost GPU breaks the event set; the next call has a new one over those that are left."""
    assert [] == backend.events(0.0)
    change(scenario, {"event.lost": 1})
    assert [] == backend.events(0.0)
    change(scenario, {"event.lost": None, "gpu0.error": 15, "event.1": "1 0x8 63"})
    assert ["xid:63"] == [event.code for event in backend.events(5.0)]


def test_a_device_without_events_costs_no_wait(backend: ChildBackend, scenario: Path) -> None:
    """Where no device has events the answer is empty at once, whatever the timeout."""
    change(scenario, {"gpu0.event_types": None, "gpu1.event_types": None})
    backend.deadline_seconds = 5.0
    assert [] == backend.events(60.0)


def test_a_count_that_fails_is_not_a_host_without_devices(backend: ChildBackend, scenario: Path) -> None:
    """An enumeration error is said, not turned into an empty list."""
    change(scenario, {"count.error": 999})
    with pytest.raises(LibraryBroken, match="999"):
        backend.identify()


def test_a_host_without_the_library_says_so(child_backend: Start) -> None:
    """No libnvidia-ml.so.1 is LibraryAbsent."""
    with pytest.raises(LibraryAbsent, match=r"libnvidia-ml\.so\.1"):
        child_backend("nvidia", {"LD_LIBRARY_PATH": "/nonexistent"}).open()


def test_the_deprecated_binding_is_named(child_backend: Start, scenario: Path, tmp_path: Path) -> None:
    """A package pynvml that shadows nvidia-ml-py is LibraryBroken with what to do."""
    package = tmp_path / "shadow" / "pynvml"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def nvmlInit():\n    pass\n")
    shadowed = {"PYTHONPATH": f"{package.parent}{os.pathsep}{TESTS.parent}"}
    with pytest.raises(LibraryBroken, match="pip uninstall pynvml"):
        child_backend("nvidia", nvml_environment(scenario) | shadowed).open()


def test_closing_twice_is_harmless(backend: ChildBackend) -> None:
    """Close gives everything back and may be called again; open then starts anew."""
    backend.sample(Tier.SLOW)
    backend.events(0.0)
    backend.close()
    backend.close()
    backend.open()
    assert [DeviceState.OK, DeviceState.OK] == [sample.state for sample in backend.sample(Tier.FAST)]


def test_values_are_fields_of_the_reading(backend: ChildBackend) -> None:
    """Every name in values is a field of GpuReading."""
    names = {name for tier in Tier for sample in backend.sample(tier) for name in sample.values}
    assert set() == names - set(GpuReading.__struct_fields__)


def test_a_recording_holds_no_names_and_plays_back(scenario: Path, tmp_path: Path) -> None:
    """The command records, prints costs and reasons, leaves out serials and UUIDs; its file answers as a backend."""
    out = tmp_path / "out.jsonl.gz"
    command = ["record", "--vendor", "nvidia", "--seconds", "0.2", "--period", "0.1", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "collectors.recording", *command],
        env={**os.environ, **nvml_environment(scenario)},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ExitCode.PASS, "") == (done.returncode, done.stderr)
    assert "nvmlDeviceGetTemperature(0,)" in done.stdout
    assert "permission" in done.stdout
    replay = ReplayBackend(out)
    replay.open()
    identities = replay.identify()
    assert ["gpu0", "gpu1"] == [device.device_id for device in identities]
    assert set() == {"serial", "uuid", "fabric_domain"} & {name for device in identities for name in device.values}
    assert 692.664 == first(replay.sample(Tier.FAST)).values["power_watts"]


def test_recording_without_a_library_is_incomplete(tmp_path: Path) -> None:
    """No library: one sentence and the exit code of what did not run."""
    done = subprocess.run(
        [sys.executable, "-m", "collectors.recording", "record", "--vendor", "nvidia", str(tmp_path / "out.gz")],
        env={**os.environ, "LD_LIBRARY_PATH": "/nonexistent"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ExitCode.INCOMPLETE == done.returncode
    assert 1 == len(done.stderr.splitlines())
