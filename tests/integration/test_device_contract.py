"""The fake device and the real backends on their doubles give the same answers to the same scenario."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collectors.device import DeviceBackend, DeviceSample, LibraryAbsent, LibraryBroken, Tier
from collectors.fake_device import FakeBackend
from collectors.scenario import parse, write
from passmuster.records import DeviceState
from tests.doubles.build import nvml_environment

SCENARIOS = Path(__file__).parent.parent / "data" / "scenarios"
FIRST, SECOND = "0000:06:00.0", "0000:86:00.0"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A live scenario of two NVIDIA GPUs."""
    path = tmp_path / "scenario"
    write(path, (SCENARIOS / "nvidia_two_gpus.txt").read_text())
    return path


@pytest.fixture(params=["fake", "nvml double"])
def backend(
    request: pytest.FixtureRequest, scenario: Path, child_backend: Callable[..., DeviceBackend]
) -> DeviceBackend:
    """A backend over that scenario, not yet open."""
    if request.param == "fake":
        return FakeBackend(scenario)
    return child_backend("nvidia", nvml_environment(scenario))


def change(path: Path, **values: Any) -> None:
    """Replace the scenario by one with these keys (dots written as double underscores)."""
    known: dict[str, Any] = dict(parse(path.read_text()))
    write(path, known | {key.replace("__", "."): value for key, value in values.items()})


def by_address(samples: list[DeviceSample]) -> dict[str, DeviceSample]:
    """Return the samples by PCI address."""
    return {sample.pci_address: sample for sample in samples}


def test_devices_are_named_by_serial(backend: DeviceBackend) -> None:
    """Identity: id, place, model and what the inventory takes."""
    backend.open()
    first, second = backend.identify()
    assert ("1650000000001", FIRST, 0, "NVIDIA H200") == (first.device_id, first.pci_address, first.index, first.model)
    assert "1650000000002" == second.device_id
    expected = {
        "serial": "1650000000001",
        "uuid": "GPU-11111111-2222-3333-4444-555555555555",
        "board_part_number": "692-2G520-0282-001",
        "vbios": "96.00.A5.00.1A",
        "firmware": {"inforom": "G520.0282.02.02", "gsp": "580.159.04"},
        "architecture": "hopper",
        "slot": "5",
        "numa_node": 1,
        "memory_total_bytes": 150754820096,
        "fabric_domain": "ab" * 16 + ".7",
        "driver": "580.159.04",
    }
    assert expected == first.values
    assert "unsupported" == second.missing["vbios"]


def test_boards_with_one_serial_are_told_apart(backend: DeviceBackend, scenario: Path) -> None:
    """Two devices that share a board's serial are named by UUID."""
    change(scenario, gpu1__serial="1650000000001")
    backend.open()
    expected = ["GPU-11111111-2222-3333-4444-555555555555", "GPU-99999999-2222-3333-4444-555555555555"]
    assert expected == [device.device_id for device in backend.identify()]


EXPECTED: dict[Tier, dict[str, Any]] = {
    Tier.FAST: {
        "temperature_core_celsius": 61.0,
        "temperature_memory_celsius": 77.0,
        "power_watts": 692.664,
        "power_average_watts": 693.825,
        "power_limit_watts": 700.0,
        "clock_graphics_hertz": 1755e6,
        "clock_sm_hertz": 1755e6,
        "clock_memory_hertz": 3201e6,
        "throttle_ratio": dict.fromkeys(
            ("idle", "app_clocks", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "power_brake", "display"),
            0.0,
        )
        | {"power_cap": 1.0},
        "activity_compute_ratio": 0.97,
        "activity_memory_ratio": 0.41,
        "ecc_corrected_total": 3,
        "ecc_uncorrected_total": 0,
        "ecc_corrected_lifetime_total": 12,
        "ecc_uncorrected_lifetime_total": 1,
        "rows_remapped_corrected_total": 1,
        "rows_remapped_uncorrected_total": 2,
        "row_remap_pending": True,
        "row_remap_failed": False,
        "recovery_action": "drain_and_reset",
    },
    Tier.MIDDLE: {
        "energy_joules_total": 2223.556,
        "memory_total_bytes": 150754820096,
        "memory_used_bytes": 90000000000,
        "memory_reserved_bytes": 644939776,
        "throttle_seconds_total": {"power_cap": 1.5, "thermal": 0.0, "sw_thermal": 0.25},
        "ecc_blocks_total": {"dram.corrected": 3, "dram.uncorrected": 0, "sram.corrected": 0, "sram.uncorrected": 0},
        "links": {"0": 1, "1": 0},
        "links_up": 1,
        "links_total": 2,
        "link_errors_total": {"0.replay": 5, "0.recovery": 0, "0.receive": 7},
        "link_bytes_total": {"0.transmit": 1000, "0.receive": 2000},
        "link_bit_error_ratio": {"0.effective": pytest.approx(3e-12)},
        "processes": 2,
        "process_memory_bytes": 8589935616,
    },
    Tier.SLOW: {
        "temperature_shutdown_celsius": 95.0,
        "temperature_slowdown_celsius": 89.0,
        "temperature_memory_limit_celsius": 95.0,
        "temperature_margin_celsius": -8.0,
        "clock_graphics_limit_hertz": 1980e6,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 8,
        "pcie_width_max": 16,
        "ecc_enabled": True,
        "mig_enabled": False,
        "row_remap_banks": {"max": 3070, "high": 1, "partial": 1, "low": 0, "none": 0},
        "repair_pending": True,
        "memory_unrepairable": False,
        "bad_pages_reserved": 3,
        "bad_pages_pending": 1,
        "pcie_errors_total": {"replay": 2, "replay_rollover": 0, "recovery": 731, "receiver": 29},
        "pcie_transmit_bytes_total": 4294967000,
        "pcie_receive_bytes_total": 985211184,
        "fabric_state": "completed",
        "fabric_status": 0,
        "fabric_health": {"route_recovery": "true", "misconfiguration": "incorrect_system_guid"},
        "sram_threshold_exceeded": True,
    },
}


@pytest.mark.parametrize("tier", Tier)
def test_every_value_is_in_base_units(backend: DeviceBackend, tier: Tier) -> None:
    """Each tier's fields, decoded from what the library says."""
    backend.open()
    assert EXPECTED[tier] == by_address(backend.sample(tier))[FIRST].values


@pytest.mark.parametrize(
    ("tier", "address", "expected"),
    [
        (
            Tier.FAST,
            SECOND,
            {
                "temperature_core_celsius": "sentinel",
                "ecc_uncorrected_total": "sentinel",
                "power_limit_watts": "permission",
                "activity_compute_ratio": "failed 999",
                "activity_memory_ratio": "failed 999",
                "recovery_action": "unsupported",
            },
        ),
        (Tier.MIDDLE, FIRST, {"throttle_seconds_total.hw_thermal": "failed 999"}),
        (Tier.MIDDLE, SECOND, {"process_memory_bytes": "sentinel", "links": "unsupported", "links_up": "unsupported"}),
        (Tier.SLOW, FIRST, {"sm_activity_ratio": "not_yet", "dram_activity_ratio": "not_yet"}),
        (Tier.SLOW, SECOND, {"fabric_health": "unsupported", "sm_activity_ratio": "unsupported"}),
    ],
)
def test_every_null_has_its_reason(backend: DeviceBackend, tier: Tier, address: str, expected: dict[str, str]) -> None:
    """What could not be read says why."""
    backend.open()
    sample = by_address(backend.sample(tier))[address]
    assert expected == {field: sample.missing.get(field) for field in expected}
    assert not sample.missing.keys() & sample.values.keys()


def test_gpm_needs_two_samples(backend: DeviceBackend) -> None:
    """The second slow sample, a while after the first, has the activity ratios that the device supports."""
    backend.open()
    backend.sample(Tier.SLOW)
    until = time.monotonic() + 5
    sample = by_address(backend.sample(Tier.SLOW))[FIRST]
    while sample.missing.get("sm_activity_ratio") == "not_yet" and time.monotonic() < until:
        sample = by_address(backend.sample(Tier.SLOW))[FIRST]
    assert (0.965, 0.1425, 0.9375) == (
        sample.values.get("sm_activity_ratio"),
        sample.values.get("sm_occupancy_ratio"),
        sample.values.get("tensor_activity_ratio"),
    )
    assert "unsupported" == sample.missing["dram_activity_ratio"]


@pytest.mark.parametrize("tier", Tier)
def test_a_lost_device_leaves_its_siblings_alone(backend: DeviceBackend, scenario: Path, tier: Tier) -> None:
    """A lost GPU is LOST with a reason for each field, the other one answers, and both keep their names."""
    backend.open()
    backend.identify()
    change(scenario, gpu0__error=15)
    samples = by_address(backend.sample(tier))
    assert (DeviceState.LOST, DeviceState.OK) == (samples[FIRST].state, samples[SECOND].state)
    assert {"failed 15"} == set(samples[FIRST].missing.values())
    assert EXPECTED[tier].keys() <= samples[FIRST].missing.keys()
    assert ["1650000000001", "1650000000002"] == [device.device_id for device in backend.identify()]


def test_a_device_that_came_back_answers_again(backend: DeviceBackend, scenario: Path) -> None:
    """After a reset the same device is OK without opening the library anew."""
    backend.open()
    backend.identify()
    before = scenario.read_text()
    change(scenario, gpu0__error=15)
    backend.identify()
    write(scenario, before)
    backend.identify()
    assert [DeviceState.OK, DeviceState.OK] == [sample.state for sample in backend.sample(Tier.FAST)]


def test_a_device_that_is_no_longer_counted_is_lost(backend: DeviceBackend, scenario: Path) -> None:
    """The count shrinks: the device leaves the identities and stays a LOST sample."""
    backend.open()
    backend.identify()
    change(scenario, gpu__count=1)
    assert [FIRST] == [device.pci_address for device in backend.identify()]
    assert DeviceState.LOST == by_address(backend.sample(Tier.FAST))[SECOND].state


@pytest.mark.parametrize("code", [16, 999])
def test_a_device_that_answers_errors_only_is_unreadable(backend: DeviceBackend, scenario: Path, code: int) -> None:
    """Reset required or unknown error on every call: not OK, not lost."""
    backend.open()
    backend.identify()
    change(scenario, gpu0__error=code)
    sample = by_address(backend.sample(Tier.FAST))[FIRST]
    assert (DeviceState.UNREADABLE, {f"failed {code}"}) == (sample.state, set(sample.missing.values()))


def test_events_come_once_and_name_their_device(backend: DeviceBackend, scenario: Path) -> None:
    """An XID and an uncorrected error are delivered once; nothing new is an empty answer, nor is a new clock."""
    backend.open()
    backend.identify()
    assert [] == backend.events(0.0)
    change(scenario, event__1="0 0x10 0", event__2="1 0x8 79", event__3="0 0x2 0")
    events = backend.events(5.0)
    assert [(SECOND, "xid", "xid:79"), (FIRST, "ras", "ras:double_bit")] == [
        (event.pci_address, event.kind, event.code) for event in events
    ]
    assert [] == backend.events(0.0)


def test_bytes_go_on_when_32_bits_wrap(backend: DeviceBackend, scenario: Path) -> None:
    """A smaller raw counter is one wrap later."""
    backend.open()
    backend.sample(Tier.SLOW)
    change(scenario, gpu0__field__197=1000)
    assert 2**32 + 1000 == by_address(backend.sample(Tier.SLOW))[FIRST].values["pcie_transmit_bytes_total"]


def test_a_slow_call_is_waited_for(backend: DeviceBackend, scenario: Path) -> None:
    """A delay of the scenario is a delay of the sample."""
    backend.open()
    backend.identify()
    change(scenario, gpu0__delay_ms__nvmlDeviceGetTemperature=60)
    start = time.monotonic()
    backend.sample(Tier.FAST)
    assert 0.06 <= time.monotonic() - start


@pytest.mark.parametrize(
    ("code", "outcome"), [(9, LibraryBroken), (18, LibraryBroken), (999, LibraryBroken), (12, LibraryAbsent)]
)
def test_a_library_that_does_not_start_says_so(
    backend: DeviceBackend, scenario: Path, code: int, outcome: type[Exception]
) -> None:
    """Each refusal of the library is one typed answer with its code."""
    change(scenario, init__error=code)
    with pytest.raises(outcome, match=str(code)):
        backend.open()
