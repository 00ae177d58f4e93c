"""Every first detector is shown its fault, and the same rows without it."""

from __future__ import annotations

from typing import Any

import pytest

from detectors import links
from passmuster.columns import Columns

SECOND = 1_000_000_000

BOTH = ("nvidia", "amd")


def opened(findings: list[Any]) -> set[tuple[str, str]]:
    """Return code and subject of the findings that are open."""
    return {(f.code, f.device_id or f.subject_id) for f in findings if f.cleared_at is None}


STILL = {
    "power_watts": 600.0, "power_min_watts": 590.0, "power_max_watts": 610.0, "temperature_core_celsius": 60.0,
    "clock_graphics_hertz": 1.5e9, "energy_joules_total": 5.0,
}  # fmt: skip

# name of the case: vendor, planted columns, rows until it shows, code, class
PLANTED: dict[str, tuple[str, dict[str, Any], int, str, str]] = {
    "row remap pending": ("nvidia", {"row_remap_pending": True}, 1, "memory.row_remap_pending", "P"),
    "row remap failed": ("nvidia", {"row_remap_failed": True}, 1, "memory.row_remap_failed", "R"),
    "no spare rows": (
        "nvidia",
        {"row_remap_banks": {"max": 3000, "low": 70, "none": 2}},
        1,
        "memory.no_spare_rows",
        "R",
    ),
    "repair pending": ("nvidia", {"repair_pending": True}, 1, "memory.repair_pending", "P"),
    "unrepairable": ("nvidia", {"memory_unrepairable": True}, 1, "memory.unrepairable", "R"),
    "bad page pending": ("amd", {"bad_pages_pending": 1}, 1, "memory.bad_pages_pending", "P"),
    "bad page unreservable": ("amd", {"bad_pages_unreservable": 1}, 1, "memory.bad_pages_unreservable", "R"),
    "bad pages near limit": ("amd", {"bad_pages_reserved": 231}, 1, "memory.bad_pages_near_limit", "P"),
    "bad pages at limit": ("amd", {"bad_pages_reserved": 256}, 1, "memory.bad_pages_limit", "R"),
    "uncorrected DRAM": (
        "nvidia",
        {"ecc_uncorrected_total": 2, "ecc_blocks_total": {"dram.uncorrected": 2}},
        1,
        "memory.uncorrected",
        "U",
    ),
    "uncorrected UMC": (
        "amd",
        {"ecc_uncorrected_total": 1, "ecc_blocks_total": {"umc.uncorrected": 1, "gfx.uncorrected": 0}},
        1,
        "memory.uncorrected",
        "U",
    ),
    "uncorrected GFX": (
        "amd",
        {"ecc_blocks_total": {"umc.uncorrected": 0, "gfx.uncorrected": 1}},
        1,
        "memory.block_uncorrected",
        "C",
    ),
    "deferred": ("amd", {"ecc_deferred_total": 4}, 1, "memory.deferred", "C"),
    "SRAM threshold": ("nvidia", {"sram_threshold_exceeded": True}, 1, "memory.sram_threshold", "R"),
    "lost": ("nvidia", {"state": "lost"}, 1, "device.lost", "B"),
    "lost AMD": ("amd", {"state": "lost"}, 1, "device.lost", "B"),
    "hung": ("nvidia", {"state": "hung"}, 1, "device.hung", "H"),
    "unreadable": ("amd", {"state": "unreadable"}, 3, "device.unreadable", "H"),
    "asks for reset": ("nvidia", {"recovery_action": "gpu_reset"}, 1, "recovery.gpu_reset", "H"),
    "asks for drain": ("nvidia", {"recovery_action": "drain_and_reset"}, 1, "recovery.drain_and_reset", "P"),
    "asks for the unknown": ("nvidia", {"recovery_action": "sing"}, 1, "recovery.other", "P"),
    "heat": ("nvidia", {"throttle_ratio": {"hw_thermal": 0.5, "hw_slowdown": 0.5}}, 3, "thermal.hw_throttle", "T"),
    "heat AMD": ("amd", {"throttle_ratio": {"hbm_thermal": 0.5}}, 3, "thermal.hw_throttle", "T"),
    "soft heat": ("nvidia", {"throttle_ratio": {"sw_thermal": 0.5}}, 12, "thermal.sw_throttle", "T"),
    "power brake": ("nvidia", {"throttle_ratio": {"power_brake": 1.0, "hw_slowdown": 1.0}}, 3, "power.brake", "T"),
    "processor hot": ("amd", {"throttle_ratio": {"prochot": 0.3}}, 3, "power.brake", "T"),
    "slowdown alone": ("nvidia", {"throttle_ratio": {"hw_slowdown": 1.0}}, 3, "power.hw_slowdown", "T"),
    "near slowdown": ("nvidia", {"temperature_core_celsius": 88.0}, 3, "thermal.hot", "T"),
    "near shutdown": ("amd", {"temperature_hotspot_celsius": 108.0}, 3, "thermal.shutdown_near", "T"),
    "hot memory": ("nvidia", {"temperature_memory_celsius": 96.0}, 3, "thermal.memory_hot", "T"),
    "hot stack": ("amd", {"temperature_hbm_celsius": {"0": 60.0, "3": 106.0}}, 3, "thermal.memory_hot", "T"),
    "capped below its limit": (
        "nvidia",
        {"throttle_ratio": {"power_cap": 1.0}, "power_watts": 400.0, "power_max_watts": 410.0},
        12,
        "power.capped_below_limit",
        "T",
    ),
    "limit reduced": ("amd", {"power_limit_watts": 500.0}, 12, "power.limit_reduced", "T"),
    "width loss": ("nvidia", {"pcie_width": 8}, 6, "pcie.width_loss", "L"),
    "generation loss": ("amd", {"pcie_generation": 3}, 6, "pcie.generation_loss", "L"),
    "NVLink down": ("nvidia", {"links_up": 17}, 3, "link.down", "L"),
    "xGMI down": ("amd", {"links_up": 6}, 3, "link.down", "L"),
    "xGMI error": ("amd", {"link_error_status": 1}, 2, "link.error_status", "L"),
    "fabric lost": ("nvidia", {"fabric_state": "in_progress"}, 3, "fabric.not_completed", "L"),
    "fabric unhealthy": ("nvidia", {"fabric_health": {"degraded_bandwidth": "true"}}, 3, "fabric.unhealthy", "L"),
    "activity zero": (
        "amd", {"activity_compute_ratio": 0.0, "power_min_watts": 700.0}, 6, "telemetry.activity_zero", "S",
    ),
    "energy stuck": ("nvidia", {"energy_joules_total": 5.0}, 19, "telemetry.energy_stuck", "S"),
    "frozen": ("nvidia", STILL, 31, "telemetry.frozen", "S"),
    "field lost": ("amd", {"temperature_hotspot_celsius": None}, 30, "telemetry.field_lost", "S"),
}  # fmt: skip


@pytest.fixture(scope="module")
def played(make_rig: Any) -> dict[str, dict[str, list[Any]]]:
    """Plant every case in a device of its own, play it once, heal all: codes by row, by case, and what cleared.

    A third of the devices stay healthy, so that siblings have somebody to agree with.
    """
    out: dict[str, dict[str, list[Any]]] = {}
    for vendor in BOTH:
        cases = [c for c in PLANTED if PLANTED[c][0] == vendor]
        rig = make_rig(vendor, gpus=len(cases) * 3 // 2 + 1)
        assert rig.steps(2) == []
        for i, case in enumerate(cases):
            rig.plant(i, **PLANTED[case][1])
        rows = [rig.step() for _ in range(31)]
        for i in range(len(cases)):
            rig.heal(i)
        rig.reload_driver()  # error counts go on until they restart
        cleared = [f for f in rig.steps(7) if f.cleared_at]
        for i, case in enumerate(cases):
            mine = rig.device(i)
            out[case] = {
                "rows": [[f for f in row if f.device_id == mine] for row in rows],
                "cleared": [f for f in cleared if f.device_id == mine],
                "left": [f for f in rig.engine.open_findings() if f.device_id == mine],
            }
        healthy = [rig.device(i) for i in range(len(cases), rig.gpus)]
        assert not [f for row in rows for f in row if f.device_id in healthy or not f.device_id]
    return out


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_fault_is_found_at_its_row_and_nothing_else_is(played: Any, case: str) -> None:
    """The code appears at the row at which its bound is met, with its class and no other code, and clears."""
    vendor, _, needed, code, letter = PLANTED[case]
    rows = played[case]["rows"]
    assert next(n for n, row in enumerate(rows, 1) if row) == needed
    assert {code} == {f.code for row in rows for f in row}
    first = rows[needed - 1][0]
    assert (letter, vendor, "shadow") == (first.fault_class.value, first.vendor.value, first.mode.value)
    assert ([code], []) == ([f.code for f in played[case]["cleared"]], played[case]["left"])


@pytest.mark.parametrize("vendor", BOTH)
def test_healthy_work_finds_nothing(make_rig: Any, vendor: str) -> None:
    """Load, rest, clock and link changes, a driver reload and a reboot of healthy devices open no finding."""
    rig = make_rig(vendor, gpus=4)
    found = rig.steps(8)
    rig.busy = False
    found += rig.steps(8)
    rig.reload_driver()
    rig.busy = True
    found += rig.host_reading() + rig.steps(8)
    rig.reboot()
    found += rig.host_reading() + rig.steps(8)
    assert found == []


def test_a_contained_error_is_told_apart_by_the_drivers_line(make_rig: Any) -> None:
    """A counter that grows within a minute of XID 94 is class C; with XID 95 as well it stays U."""
    for codes, code in ((("94",), "memory.uncorrected_contained"), (("94", "95"), "memory.uncorrected")):
        rig = make_rig("nvidia", gpus=2)
        rig.steps(2)
        for xid in codes:
            rig.fault(0, f"xid:{xid}", "C" if xid == "94" else "U")
        rig.plant(0, ecc_blocks_total={"dram.uncorrected": 1})
        assert code in {f.code for f in rig.step()}


def test_first_sight_of_a_count_is_since_load_and_never_of_a_lifetime(make_rig: Any) -> None:
    """A volatile count that is already there is class C; a lifetime count says nothing about this boot."""
    rig = make_rig("nvidia", gpus=2)
    rig.plant(0, ecc_blocks_total={"dram.uncorrected": 5}, ecc_uncorrected_lifetime_total=9)
    rig.plant(1, ecc_uncorrected_lifetime_total=900)
    found = rig.steps(3)
    assert {("memory.uncorrected_since_load", rig.device(0))} == opened(found)
    rig.heal(0)
    rig.reload_driver()
    rig.step()
    assert rig.engine.open_findings() == []


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"ecc_blocks_total": {"umc.uncorrected": 1_048_560}}, "an absurd jump"),
        ({"ecc_blocks_total": {"umc.uncorrected": 7}, "state": "unreadable"}, "a device that is not well"),
        ({"ecc_blocks_total": {"xgmi_wafl.uncorrected": 3, "umc.uncorrected": 0}}, "a link block"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_counts_that_prove_nothing_open_no_memory_finding(make_rig: Any, columns: dict[str, Any], why: str) -> None:
    """Absurd jumps of suspended devices, devices that are not well, and blocks of links are not memory errors."""
    rig = make_rig("amd", gpus=2)
    rig.steps(2)
    rig.plant(0, **columns)
    assert not [f for f in rig.step() if f.code.startswith("memory.")]


def test_a_corrected_storm_needs_a_minute(make_rig: Any) -> None:
    """Hundreds of corrected errors a row for six rows are a storm, and not one row sooner."""
    rig = make_rig("amd", gpus=2)
    rig.plant(0, ecc_corrected_total=0)
    rig.step()
    found = []
    for i in range(1, 7):
        rig.plant(0, ecc_corrected_total=500 * i)
        found.append([f.code for f in rig.step()])
    assert [[], [], [], [], [], ["memory.corrected_storm"]] == found


def test_missing_gpus_are_found_after_three_readings(make_rig: Any) -> None:
    """Fewer GPUs than PCI shows, or than the boot has shown, for three readings; unknown counts are unknown."""
    rig = make_rig("nvidia")
    assert rig.host_readings(3) == []
    assert rig.host_readings(3, gpus_seen=None) == []
    assert rig.host_readings(2, gpus_expected={"nvidia": 7}, gpus_seen={"nvidia": 7}) == []
    found = rig.host_readings(1, gpus_expected={"nvidia": 7}, gpus_seen={"nvidia": 7})
    assert {("device.missing", "h1")} == opened(found)
    assert (7.0, 8.0) == (found[0].value, found[0].bound)
    rig.host_readings(2)
    assert rig.engine.open_findings() == []


def test_one_finding_a_lost_device_whoever_told_it(make_rig: Any) -> None:
    """XID 79 opens device.lost at once; the lost state takes it over, and a device that answers ends it."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    first = rig.fault(1, "xid:79", "B", "critical")
    assert {("device.lost", rig.device(1))} == opened(first)
    rig.plant(1, state="lost")
    rig.steps(2)
    (finding,) = rig.engine.open_findings()
    assert (first[0].opened_at, "xid:79") == (finding.opened_at, (finding.evidence or {})["fault"])
    rig.heal(1)
    rig.steps(3)
    assert rig.engine.open_findings() == []


def test_a_hang_grows_critical(make_rig: Any) -> None:
    """Three rows without an answer make an error critical."""
    rig = make_rig("amd", gpus=2)
    rig.steps(2)
    rig.plant(0, state="hung")
    severities = [f.severity.value for f in rig.steps(3) if f.code == "device.hung"]
    assert ["error", "critical"] == severities


def test_xid_154_is_followed_until_the_driver_asks_for_nothing(make_rig: Any) -> None:
    """The action named in the text opens the finding; a later reading of none closes it."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    text = "NVRM: Xid (PCI:0000:10:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    found = rig.fault(0, "xid:154", "I", "info", secondary=True, text=text)
    assert {("recovery.node_reboot", rig.device(0))} == opened(found)
    rig.steps(2)
    assert rig.engine.open_findings() == []


def test_an_idle_link_may_rest(make_rig: Any) -> None:
    """A lower generation and width of an idle device are power management."""
    rig = make_rig("nvidia", gpus=4)
    rig.busy = False
    rig.plant(0, pcie_width=8, pcie_generation=1)
    assert rig.steps(20) == []


def test_a_link_that_is_never_at_full_width_is_found_at_rest_too(make_rig: Any) -> None:
    """An hour below full width is no power management."""
    rig = make_rig("amd", gpus=1)
    rig.busy = False
    rig.plant(0, pcie_width=8)
    found: list[Any] = []
    for _ in range(links.NARROW_ROWS + links.BUSY_ROWS):
        rig.now += 10 * SECOND
        row = rig._gpu(0)
        state = found[-1][0] if found else {}
        records = Columns.of([rig.batch("gpu_reading", [row])]).adding(subject=["c1/h1/d"], in_boot_grace=[False])
        found.append(links.observe(state, records, rig.now))
    assert [] == [f for _, some in found[: links.NARROW_ROWS] for f in some]
    assert {"pcie.width_loss"} == {f.code for _, some in found for f in some}


def test_error_rates_not_totals_are_judged(make_rig: Any) -> None:
    """Large totals that stand still are healthy; the same totals growing fast are not."""
    rig = make_rig("nvidia", gpus=2)
    rig.plant(0, pcie_errors_total={"bad_tlp": 100_000}, link_errors_total={"3.crc_flit": 100_000})
    assert rig.steps(6) == []
    found = []
    for i in range(1, 8):
        rig.plant(
            0,
            pcie_errors_total={"bad_tlp": 100_000 + 30 * i, "fatal": 0},
            link_errors_total={"3.crc_flit": 100_000 + 30 * i},
        )
        found += rig.step()
    assert {("pcie.error_rate", rig.device(0)), ("link.error_rate", rig.device(0))} == opened(found)


@pytest.mark.parametrize("kind", ["fatal", "nonfatal"])
def test_uncorrected_pcie_errors_are_news_when_they_grow(make_rig: Any, kind: str) -> None:
    """A fatal or non-fatal count that grows on the device, or at a port of the host."""
    rig = make_rig("nvidia", gpus=2)
    rig.plant(0, pcie_errors_total={kind: 2})
    assert rig.steps(2) == []
    rig.plant(0, pcie_errors_total={kind: 3})
    assert {(f"pcie.{kind}", rig.device(0))} == opened(rig.step())
    rig.host_readings(2)
    found = rig.host_readings(1, aer_errors_total={f"0000:10:00.0.{kind}": 1})
    assert {(f"pcie.{kind}", "h1")} == opened(found)


def test_links_are_judged_by_siblings_too(make_rig: Any) -> None:
    """A device seen for the first time with a link down is held against its siblings; boards with 12 of 18 are fine."""
    rig = make_rig("nvidia", gpus=4)
    rig.plant(3, links_up=11)
    for i in range(3):
        rig.plant(i, links_up=12)
    assert {("link.down", rig.device(3))} == opened(rig.steps(3))


def test_ports_down_flapping_and_full_of_errors(make_rig: Any) -> None:
    """A port that was up and is down, one that goes down often, one that counts errors; one never up is left alone."""
    rig = make_rig("nvidia")
    links = {"mlx5_0/1": "ACTIVE", "mlx5_1/1": "DOWN"}
    assert rig.host_readings(4, nic_links=links) == []
    found = rig.host_readings(3, nic_links={"mlx5_0/1": "DOWN", "mlx5_1/1": "DOWN"})
    assert {"nic.link_down"} == {f.code for f in found}
    assert "mlx5_0/1" in found[0].title
    found = []
    for i in range(1, 6):
        found += rig.host_readings(
            1, nic_errors_total={"mlx5_0/1.symbol_error": 3 + 100 * i, "mlx5_0/1.link_downed": 1 + i}
        )
    assert {"nic.flapping", "nic.error_rate"} == {f.code for f in found if f.cleared_at is None}


@pytest.mark.parametrize(("word", "ran_before", "found"), [
    ("failed", False, True), ("inactive", True, True), ("inactive", False, False), ("absent", True, False),
])  # fmt: skip
def test_services_that_stopped(make_rig: Any, word: str, ran_before: bool, found: bool) -> None:
    """Failed always counts, inactive only where the service ran in this boot."""
    rig = make_rig("nvidia")
    if ran_before:
        rig.host_readings(2)
    opened_now = opened(rig.host_readings(3, services={"nvidia-fabricmanager": word}))
    assert ({("service.down", "h1")} if found else set()) == opened_now


def test_sensors_that_rest_are_not_frozen(make_rig: Any) -> None:
    """The same stillness without work proves nothing."""
    rig = make_rig("nvidia", gpus=1)
    rig.busy = False
    rig.plant(0, **STILL, activity_compute_ratio=0.01)
    assert rig.steps(31) == []


def test_while_a_host_comes_up_links_are_unknown_and_repairs_are_facts(make_rig: Any) -> None:
    """In the boot grace a link that is not up opens nothing, a failed row remap does; after it the link is judged."""
    rig = make_rig("nvidia", gpus=4)
    rig.steps(2)
    rig.reboot()
    rig.plant(1, links_up=0, fabric_state="in_progress", row_remap_failed=True)
    rig.host_reading()
    assert {("memory.row_remap_failed", rig.device(1))} == opened(rig.steps(20))
    codes = {f.code for f in rig.steps(20)}
    assert {"link.down", "fabric.not_completed"} <= codes
