"""The fake device in AMD's voice and AMD's binding on its double give the same answers to the same scenario."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.device import DeviceBackend, DeviceIdentity, DeviceSample, LibraryBroken, Tier
from collectors.fake_device import FakeBackend
from collectors.scenario import parse, write
from passmuster.records import DeviceState
from tests.doubles.build import amdsmi_environment

SCENARIOS = Path(__file__).parent.parent / "data" / "scenarios"
NAMES = ("amd_one_gpu", "mi300x_x8", "mi350x_x8")

Both = Callable[[str], tuple[Path, DeviceBackend, DeviceBackend]]


@pytest.fixture
def both(tmp_path: Path, child_backend: Callable[..., DeviceBackend]) -> Both:
    """Open the fake and the double over a live copy of a scenario."""

    def start(name: str) -> tuple[Path, DeviceBackend, DeviceBackend]:
        path = tmp_path / "scenario"
        write(path, (SCENARIOS / f"{name}.txt").read_text())
        folder = tmp_path / "bus" / "pci" / "devices" / "0000:0c:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text("0x1002\n")
        (folder / "class").write_text("0x120000\n")
        environment = amdsmi_environment(path) | {"FAKE_SYS_ROOT": str(tmp_path)}
        return path, FakeBackend(path), child_backend("amd", environment)

    return start


def change(path: Path, values: dict[str, Any]) -> None:
    """Replace the scenario by one that has these keys too."""
    write(path, parse(path.read_text()) | values)


def comparable(identity: DeviceIdentity) -> DeviceIdentity:
    """Leave out the firmware, whose names only the binding knows."""
    values = {field: value for field, value in identity.values.items() if field != "firmware"}
    missing = {field: reason for field, reason in identity.missing.items() if field != "firmware"}
    return msgspec.structs.replace(identity, values=values, missing=missing)


def without_seconds(samples: list[DeviceSample]) -> list[DeviceSample]:
    """Leave out the seconds of throttling, which are of each one's own clock."""
    keep = [{f: v for f, v in s.values.items() if f != "throttle_seconds_total"} for s in samples]
    return [msgspec.structs.replace(s, values=values) for s, values in zip(samples, keep, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_identities_agree(both: Both, name: str) -> None:
    """Ids, places, models and what the inventory takes."""
    _, fake, double = both(name)
    fake.open()
    double.open()
    expected = [comparable(identity) for identity in fake.identify()]
    assert expected
    assert expected == [comparable(identity) for identity in double.identify()]


@pytest.mark.parametrize("name", NAMES)
def test_samples_agree(both: Both, name: str) -> None:
    """Every value and every reason of every tier."""
    _, fake, double = both(name)
    fake.open()
    double.open()
    for tier in Tier:
        assert fake.sample(tier) == double.sample(tier)


@pytest.mark.parametrize("name", ["mi300x_x8", "mi350x_x8"])
def test_shares_of_throttling_agree(both: Both, name: str) -> None:
    """Between two samples of one device; the others' counters stood still."""
    path, fake, double = both(name)
    for backend in (fake, double):
        backend.open()
        backend.sample(Tier.FAST)
    metrics = "gpu0.amdsmi_get_gpu_metrics_info"
    change(path, {f"{metrics}.accumulation_counter": 1000500, f"{metrics}.ppt_residency_acc": 250400})
    expected = without_seconds(fake.sample(Tier.FAST))
    assert 0.8 == expected[0].values["throttle_ratio"]["ppt"]
    assert expected == without_seconds(double.sample(Tier.FAST))


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize(
    "keys",
    [
        {"gpu0.error": 31},
        {"gpu0.error": 8},
        {"gpu0.error": 10},
        {"gpu0.error.amdsmi_get_gpu_metrics_info": 30},
        {"gpu0.error.amdsmi_get_gpu_ecc_count": 12},
        {"gpu.count": 1},
    ],
    ids=["lost", "time-outs", "no permission", "metrics busy", "no error counts", "vanished"],
)
def test_trouble_is_told_alike(both: Both, tier: Tier, keys: dict[str, int]) -> None:
    """States and reasons of a device in trouble and of its siblings, after it was seen well."""
    path, fake, double = both("mi300x_x8")
    for backend in (fake, double):
        backend.open()
        backend.identify()
    change(path, keys)
    assert [comparable(i) for i in fake.identify()] == [comparable(i) for i in double.identify()]
    expected = fake.sample(tier)
    assert expected == double.sample(tier)
    assert DeviceState.OK in {sample.state for sample in expected}


def test_events_agree(both: Both) -> None:
    """Delivered once, by name, on the device that they are of; what is no fault is no event."""
    path, fake, double = both("mi300x_x8")
    for backend in (fake, double):
        backend.open()
        backend.identify()
        assert [] == backend.events(0.0)
    change(path, {"event.1": "0 2 hot", "event.2": "3 1 pid 5", "event.3": "1 6 migrated"})
    expected = fake.events(5.0)
    assert ["thermal", "page_fault"] == [event.kind for event in expected]
    assert expected == double.events(5.0)
    assert [] == fake.events(0.0) == double.events(0.0)


def test_delays_are_waited_for(both: Both) -> None:
    """A slow call is a slow sample."""
    path, fake, double = both("amd_one_gpu")
    for backend in (fake, double):
        backend.open()
        backend.identify()
    change(path, {"gpu0.delay_ms.amdsmi_get_gpu_activity": 60})
    for backend in (fake, double):
        start = time.monotonic()
        backend.sample(Tier.FAST)
        assert 0.06 <= time.monotonic() - start


@pytest.mark.parametrize("code", [8, 34])
def test_a_library_that_does_not_start_is_told_alike(both: Both, code: int) -> None:
    """Each refusal is a typed answer with its code."""
    path, fake, double = both("amd_one_gpu")
    change(path, {"init.error": code})
    for backend in (fake, double):
        with pytest.raises(LibraryBroken, match=str(code)):
            backend.open()
