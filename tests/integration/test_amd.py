"""AMD's binding on a fake library: each trap of import and start, each way to fail, and what gets what unit."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from collectors.amd_binding import mismatch
from collectors.device import DeviceSample, LibraryAbsent, LibraryBroken, Tier
from collectors.scenario import parse, write
from passmuster.records import DeviceState
from tests.doubles.build import amdsmi_environment
from tests.doubles.child_backend import ChildBackend

SCENARIOS = Path(__file__).parent.parent / "data" / "scenarios"
ROOT = Path(__file__).parent.parent.parent
FIRST, SECOND = "0000:0c:00.0", "0000:22:00.0"
METRICS = "gpu0.amdsmi_get_gpu_metrics_info"

Start = Callable[[str, Mapping[str, str]], ChildBackend]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A live scenario: the first two of eight MI300X."""
    path = tmp_path / "scenario"
    known = parse((SCENARIOS / "mi300x_x8.txt").read_text())
    kept = {key: value for key, value in known.items() if not key.startswith(tuple(f"gpu{i}." for i in range(2, 8)))}
    write(path, kept | {"gpu.count": "2"})
    return path


@pytest.fixture
def sys_root(tmp_path: Path) -> Path:
    """A /sys with the two devices on PCI, held by amdgpu."""
    root = tmp_path / "sys"
    (root / "module" / "amdgpu").mkdir(parents=True)
    for address in (FIRST, SECOND):
        folder = root / "bus" / "pci" / "devices" / address
        folder.mkdir(parents=True)
        for name, text in (
            ("vendor", "0x1002"),
            ("class", "0x120000"),
            ("device", "0x74a1"),
            ("gpu_busy_percent", "7"),
        ):
            (folder / name).write_text(text + "\n")
    return root


@pytest.fixture
def backend(child_backend: Start, scenario: Path, sys_root: Path) -> ChildBackend:
    """The AMD backend on its double, not yet open."""
    return child_backend("amd", amdsmi_environment(scenario) | {"FAKE_SYS_ROOT": str(sys_root)})


def change(path: Path, values: Mapping[str, Any], without: tuple[str, ...] = ()) -> None:
    """Replace the scenario by one with these keys, less those that begin with ``without``."""
    known: dict[str, Any] = {k: v for k, v in parse(path.read_text()).items() if not k.startswith(without or ("\0",))}
    write(path, known | dict(values))


def first(backend: ChildBackend, tier: Tier) -> DeviceSample:
    """Return the sample of the first device."""
    return next(sample for sample in backend.sample(tier) if sample.pci_address == FIRST)


# ---- what gpu_metrics and the calls beside it give


def test_gpu_metrics_is_read_before_anything_else(backend: ChildBackend, scenario: Path) -> None:
    """Where both answer, the blob counts; its sentinels are filled by the single calls."""
    change(scenario, {f"{METRICS}.temperature_hotspot": 71, f"{METRICS}.current_socket_power": 65535})
    backend.open()
    values = first(backend, Tier.FAST).values
    assert (71.0, 690.0, 1957e6) == (
        values["temperature_hotspot_celsius"],
        values["power_watts"],
        values["clock_graphics_hertz"],
    )


def test_residencies_become_shares_and_seconds(backend: ChildBackend, scenario: Path) -> None:
    """The share is delta residency over delta accumulation; the seconds add up; the first sample has neither."""
    backend.open()
    assert "not_yet" == first(backend, Tier.FAST).missing["throttle_ratio"]
    change(scenario, {f"{METRICS}.accumulation_counter": 1001000, f"{METRICS}.ppt_residency_acc": 250250})
    backend.ask("advance", 100.0)
    values = first(backend, Tier.FAST).values
    assert {"prochot": 0.0, "ppt": 0.25, "socket_thermal": 0.0, "vr_thermal": 0.0, "hbm_thermal": 0.0} == values[
        "throttle_ratio"
    ]
    assert pytest.approx(25.0, rel=0.1) == values["throttle_seconds_total"]["ppt"]


def test_counters_that_began_again_give_no_share(backend: ChildBackend, scenario: Path) -> None:
    """After a driver reload the share waits for the next sample; it is never negative."""
    backend.open()
    first(backend, Tier.FAST)
    change(scenario, {f"{METRICS}.accumulation_counter": 10, f"{METRICS}.ppt_residency_acc": 0})
    assert "not_yet" == first(backend, Tier.FAST).missing["throttle_ratio"]


def test_each_die_counts_for_its_share(child_backend: Start, tmp_path: Path) -> None:
    """MI350X: below-limit residencies of eight dies are a mean over them."""
    path = tmp_path / "scenario"
    write(path, (SCENARIOS / "mi350x_x8.txt").read_text())
    backend = child_backend("amd", amdsmi_environment(path))
    backend.open()
    backend.sample(Tier.FAST)
    change(
        path,
        {
            f"{METRICS}.accumulation_counter": 1001000,
            f"{METRICS}.xcp_stats[0].gfx_below_host_limit_ppt_acc": ",".join(["125500"] * 4 + ["125000"] * 4),
        },
    )
    assert 0.25 == first(backend, Tier.FAST).values["throttle_ratio"]["die_below_limit_ppt"]


@pytest.mark.parametrize(
    ("tier", "field", "keys", "without"),
    [
        (Tier.FAST, "temperature_hotspot_celsius", {f"{METRICS}.temperature_hotspot": 0xFFFF}, "gpu0.amdsmi_get_temp"),
        (Tier.FAST, "activity_compute_ratio", {f"{METRICS}.average_gfx_activity": 140}, "gpu0.amdsmi_get_gpu_activity"),
        (Tier.MIDDLE, "ecc_corrected_total", {"gpu0.amdsmi_get_gpu_total_ecc_count.correctable_count": 2**64 - 1}, ""),
        (Tier.MIDDLE, "link_error_status", {"gpu0.amdsmi_gpu_xgmi_error_status": 2**32 - 1}, ""),
        (Tier.MIDDLE, "memory_used_bytes", {"gpu0.amdsmi_get_gpu_memory_usage.0": 2**64 - 1}, ""),
        (Tier.MIDDLE, "links", {"gpu0.amdsmi_get_gpu_xgmi_link_status.status": "9,9,9,9,9,9,9,9"}, ""),
        (Tier.SLOW, "pcie_width", {"gpu0.amdsmi_get_pcie_info.pcie_metric.pcie_width": 0xFFFF}, ""),
        (Tier.SLOW, "pcie_generation", {"gpu0.amdsmi_get_pcie_info.pcie_metric.pcie_speed": 12345}, ""),
        (Tier.SLOW, "bad_pages_limit", {"gpu0.amdsmi_get_gpu_bad_page_threshold": 2**32 - 1}, ""),
        (Tier.SLOW, "clock_graphics_limit_hertz", {"gpu0.amdsmi_get_clock_info.0.max_clk": 2**32 - 1}, ""),
    ],
)
def test_all_ones_are_no_value(
    backend: ChildBackend, scenario: Path, tier: Tier, field: str, keys: dict[str, int], without: str
) -> None:
    """A sentinel of any width, a percentage above 100 or an impossible state is null with a reason, never a number."""
    change(scenario, keys, (without,) if without else ())
    backend.open()
    sample = first(backend, tier)
    assert field not in sample.values
    assert sample.missing[field] == "sentinel" or sample.missing[field].startswith("failed ")


def test_bad_pages_by_state(backend: ChildBackend, scenario: Path) -> None:
    """Reserved, pending and unreservable pages beside the vendor's limit."""
    pages = {f"gpu0.amdsmi_get_gpu_bad_page_info.{i}.status": status for i, status in enumerate((0, 0, 1, 2))}
    change(scenario, pages | {"gpu0.amdsmi_get_gpu_bad_page_info.count": 4})
    backend.open()
    values = first(backend, Tier.SLOW).values
    assert (2, 1, 1, 128) == (
        values["bad_pages_reserved"],
        values["bad_pages_pending"],
        values["bad_pages_unreservable"],
        values["bad_pages_limit"],
    )


def test_a_link_that_is_down_is_told_from_one_that_is_off(backend: ChildBackend, scenario: Path) -> None:
    """Disabled links are not links; a dead one is."""
    change(scenario, {"gpu0.amdsmi_get_gpu_xgmi_link_status.status": "2,1,1,0,1,1,1,1"})
    backend.open()
    values = first(backend, Tier.MIDDLE).values
    assert (6, 7, 0) == (values["links_up"], values["links_total"], values["links"]["3"])


def test_energy_uses_the_hardware_unit(backend: ChildBackend, scenario: Path) -> None:
    """Without gpu_metrics the rounded resolution of 15.3 uJ is taken for what it is, 2^-16 J."""
    change(scenario, {"gpu0.amdsmi_get_energy_count.0": 65536000}, ("gpu0.amdsmi_get_gpu_metrics_info",))
    backend.open()
    assert 1000.0 == first(backend, Tier.MIDDLE).values["energy_joules_total"]


# ---- errors by class


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        *((code, "unsupported") for code in (2, 3, 20, 40, 52)),
        (10, "permission"),
        *((code, f"failed {code}") for code in (6, 7, 8, 12, 14, 21, 30, 56)),
    ],
)
def test_a_refused_call_has_its_reason(backend: ChildBackend, scenario: Path, code: int, reason: str) -> None:
    """One call is refused: its fields say why, the others answer, the device is OK."""
    change(scenario, {"gpu0.error.amdsmi_get_gpu_bad_page_threshold": code})
    backend.open()
    sample = first(backend, Tier.SLOW)
    assert (DeviceState.OK, reason, 16) == (
        sample.state,
        sample.missing["bad_pages_limit"],
        sample.values["pcie_width"],
    )


@pytest.mark.parametrize(
    ("code", "state"), [(31, DeviceState.LOST), (8, DeviceState.UNREADABLE), (12, DeviceState.UNREADABLE)]
)
def test_a_device_in_trouble_leaves_its_sibling_alone(
    backend: ChildBackend, scenario: Path, code: int, state: DeviceState
) -> None:
    """Every call on one device fails: it is lost or unreadable with reasons, and keeps its name; the other answers."""
    backend.open()
    names = [device.device_id for device in backend.identify()]
    change(scenario, {"gpu0.error": code})
    for tier in Tier:
        samples = backend.sample(tier)
        assert [state, DeviceState.OK] == [sample.state for sample in samples]
        assert {f"failed {code}"} == set(samples[0].missing.values())
    assert names == [device.device_id for device in backend.identify()]


@pytest.mark.parametrize("code", [32, 34])
def test_a_driver_that_went_away_is_the_librarys_trouble(backend: ChildBackend, scenario: Path, code: int) -> None:
    """Not initialised and not loaded say nothing about a device."""
    backend.open()
    backend.identify()
    change(scenario, {"gpu0.error": code})
    with pytest.raises(LibraryBroken, match=str(code)):
        backend.sample(Tier.FAST)


def test_a_device_that_left_the_bus_is_lost(backend: ChildBackend, scenario: Path, sys_root: Path) -> None:
    """The library answers "no such file" for it, as for what never was; sysfs tells the difference."""
    backend.open()
    backend.sample(Tier.FAST)
    gone = sys_root / "bus" / "pci" / "devices" / FIRST
    gone.rename(sys_root / "gone")
    change(scenario, {"gpu0.error": 20})
    assert DeviceState.LOST == first(backend, Tier.FAST).state


def test_absent_capabilities_are_asked_again_later(backend: ChildBackend, scenario: Path) -> None:
    """What is not supported is remembered for ten minutes, then asked again."""
    change(scenario, {"gpu0.error.amdsmi_get_gpu_bad_page_threshold": 2})
    backend.open()
    first(backend, Tier.SLOW)
    change(scenario, {}, ("gpu0.error.",))
    assert "unsupported" == first(backend, Tier.SLOW).missing["bad_pages_limit"]
    backend.ask("advance", 601.0)
    assert 128 == first(backend, Tier.SLOW).values["bad_pages_limit"]


def test_error_counts_of_a_sleeping_device_are_not_read(backend: ChildBackend, sys_root: Path) -> None:
    """A read would wake it, and the counts were seen to be absurd."""
    power = sys_root / "bus" / "pci" / "devices" / FIRST / "power"
    power.mkdir()
    (power / "runtime_status").write_text("suspended\n")
    backend.open()
    sample = first(backend, Tier.MIDDLE)
    assert ("not_yet", "not_yet", 750.0) == (
        sample.missing["ecc_blocks_total"],
        sample.missing["ecc_uncorrected_total"],
        sample.values["power_limit_watts"],
    )
    (power / "runtime_status").write_text("active\n")
    assert 2 == first(backend, Tier.MIDDLE).values["ecc_corrected_total"]


def test_a_hung_call_does_not_return(backend: ChildBackend, scenario: Path) -> None:
    """A hang in the library is a hang of the child, which the probe's deadline ends."""
    backend.open()
    backend.identify()
    change(scenario, {"gpu0.hang.amdsmi_get_gpu_metrics_info": 1})
    backend.deadline_seconds = 0.3
    with pytest.raises(TimeoutError):
        backend.sample(Tier.FAST)


# ---- partitions


def test_partitions_of_one_package_have_names_of_their_own(backend: ChildBackend, scenario: Path) -> None:
    """The first keeps the serial and tells what belongs to the package; the second has its own activity and memory."""
    same = {f"gpu1.{key}": value for key, value in parse(scenario.read_text()).items() if key.startswith("amdsmi_get_")}
    board = "amdsmi_get_gpu_board_info.product_serial"
    serial = parse(scenario.read_text())[f"gpu0.{board}"]
    change(
        scenario,
        same
        | {f"gpu1.{board}": serial, "gpu1.bdf": "0000:0c:00.1", "gpu1.amdsmi_get_gpu_kfd_info.current_partition_id": 1},
    )
    backend.open()
    assert [serial, f"{serial}.p1"] == [device.device_id for device in backend.identify()]
    whole, part = backend.sample(Tier.FAST)
    assert ("0", "1") == (whole.values["partition"], part.values["partition"])
    assert 690.0 == whole.values["power_watts"]
    assert ("unsupported", 0.97) == (part.missing["power_watts"], part.values["activity_compute_ratio"])


# ---- events and error records


def test_driver_events_come_once_by_name(backend: ChildBackend, scenario: Path) -> None:
    """A page fault and a reset name their device; nothing new is an empty answer, not an error."""
    backend.open()
    backend.identify()
    assert [] == backend.events(0.0)
    change(scenario, {"event.1": "1 1 pid 17", "event.2": "0 3 begin", "event.3": "0 9 evicted"})
    found = backend.events(5.0)
    assert [(SECOND, "page_fault", "page_fault:vmfault"), (FIRST, "reset_begin", "reset_begin:driver")] == [
        (event.pci_address, event.kind, event.code) for event in found
    ]
    assert [] == backend.events(0.0)


def test_events_need_no_identify_first(backend: ChildBackend, scenario: Path) -> None:
    """Whoever only listens hears too."""
    backend.open()
    backend.events(0.0)
    change(scenario, {"event.1": "0 2 hot"})
    assert ["thermal:throttle"] == [event.code for event in backend.events(5.0)]


def test_a_device_without_events_leaves_the_others_theirs(backend: ChildBackend, scenario: Path) -> None:
    """One device refuses its registration; what the other one reports is heard."""
    change(scenario, {"gpu0.error.amdsmi_init_gpu_event_notification": 30})
    backend.open()
    backend.identify()
    backend.events(0.0)
    change(scenario, {"event.1": "1 1 pid 4"}, ("gpu0.error.",))
    assert [SECOND] == [event.pci_address for event in backend.events(5.0)]


def cper(severity: int, *afids: int) -> bytes:
    """Return an error record as the fake library decodes it: UEFI header, then the AFIDs."""
    body = struct.pack(f"<4sI{len(afids)}Q", b"AFID", len(afids), *afids)
    length = 128 + len(body)
    # Byte 24 on: seconds, minutes, hours, flag, day, month, year, century. Ids hold bytes above 127, as real ones do.
    head = struct.pack("<4sHIHIII8B", b"CPER", 0x100, 0xFFFFFFFF, 1, severity, 7, length, 5, 4, 3, 0, 2, 1, 26, 20)
    return head.ljust(128, b"\xe5") + body


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([cper(1, 19)], ["afid:19"]),
        ([cper(0, 22, 23), cper(2, 24)], ["afid:22", "afid:23", "afid:24"]),
        ([cper(1)], ["ras:cper:fatal"]),
        ([cper(2, 24)] * 45, ["afid:24"] * 45),
        ([b"not a record"], []),
    ],
    ids=["fatal", "two afids", "none", "more than one call holds", "garbage"],
)
def test_error_records_become_events_once(
    backend: ChildBackend, scenario: Path, tmp_path: Path, records: list[bytes], expected: list[str]
) -> None:
    """Each AFID of each record is one event with the record's severity and time; a second look finds nothing."""
    ring = tmp_path / "cper"
    ring.write_bytes(b"".join(records))
    change(scenario, {"gpu0.cper.file": ring})
    backend.open()
    backend.identify()
    found = backend.events(0.0)
    assert expected == [event.code for event in found]
    assert all(event.pci_address == FIRST and "2026/01/02 03:04:05" in event.text for event in found)
    backend.ask("advance", 60.0)
    assert [] == backend.events(0.0)


# ---- loading the binding


def stub_binding(folder: Path, source: str) -> dict[str, str]:
    """Put a binding in ROCm's place that does one thing at import, and return the variables that lead to it."""
    package = folder / "share" / "amd_smi" / "amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    return {"ROCM_PATH": str(folder), "LD_LIBRARY_PATH": "", "FAKE_SYS_ROOT": str(folder / "no sys")}


LATE = """
class AmdSmiException(Exception): pass
class AmdSmiInitFlags: INIT_AMD_GPUS = 2
def amdsmi_init(flag): raise OSError('libamd_smi.so.27: cannot open')
def amdsmi_get_lib_version(): amdsmi_init(0)
"""


@pytest.mark.parametrize(
    ("source", "outcome", "match"),
    [
        ("print('Unable to find libamd_smi.so'); {}['libamd_smi.so']", LibraryAbsent, "Unable to find"),
        ("raise OSError('libamd_smi.so: cannot open shared object file')", LibraryAbsent, "cannot open"),
        ("raise AttributeError('undefined symbol: amdsmi_get_link_metrics')", LibraryBroken, "undefined symbol"),
        ("raise ImportError('cannot import name amdsmi_wrapper')", LibraryBroken, "does not fit"),
        ("import os; os.environ['ROCM_PATH']; raise KeyError('libamd_smi.so')", LibraryAbsent, "libamd_smi"),
        (LATE, LibraryAbsent, r"so\.27"),
    ],
    ids=["6.2 prints", "no file", "older library", "half a package", "6.1", "7.14 first call"],
)
def test_every_trap_of_the_import_is_an_answer(
    child_backend: Start, tmp_path: Path, source: str, outcome: type[Exception], match: str
) -> None:
    """What a binding raises or prints when it is imported becomes one typed sentence."""
    backend = child_backend("amd", stub_binding(tmp_path / "rocm", source))
    with pytest.raises(outcome, match=match):
        backend.open()


def test_the_binding_of_rocm_comes_first_and_needs_its_own_library(
    child_backend: Start, tmp_path: Path, scenario: Path
) -> None:
    """A binding of one tree with a library of another is refused, both named."""
    found = amdsmi_environment(scenario)
    source = (
        "import ctypes, os\nctypes.CDLL(os.environ['OTHER_TREE'] + '/libamd_smi.so')\n"
        "class AmdSmiException(Exception): pass\n"
        "def amdsmi_get_lib_version(): return dict(major=26, minor=0, release=2)\n"
    )
    environment = stub_binding(tmp_path / "rocm", source) | {"OTHER_TREE": found["ROCM_PATH"]}
    with pytest.raises(LibraryBroken, match=r"binding is of .*rocm, its library is"):
        child_backend("amd", environment).open()


@pytest.mark.parametrize(
    ("release", "number", "refused"),
    [
        ("7.0.2", (26, 0, 2), False),
        ("6.4.4", (25, 5, 1), False),
        ("6.1.2", (24, 5, 1), False),
        ("7.0.2", (25, 5, 1), True),
        ("6.4.4", (26, 0, 2), True),
        ("7.0.2", (99, 0, 0), False),
        ("7.0.2", None, False),
    ],
)
def test_releases_are_compared(release: str, number: tuple[int, ...] | None, refused: bool) -> None:
    """By the library's major version where it is known; what is not known is not refused."""
    assert refused == bool(mismatch(release, Path("/site/amdsmi"), number, None))


@pytest.mark.parametrize(("installed", "refused"), [("7.0.2-56", False), ("7.1.0-20", True), ("6.4.4", True)])
def test_the_release_of_the_librarys_tree_counts(tmp_path: Path, installed: str, refused: bool) -> None:
    """A binding from an index must be of the ROCm whose library it loads."""
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text(installed + "\n")
    library = tmp_path / "lib" / "libamd_smi.so"
    assert refused == bool(mismatch("7.0.2", Path("/site/amdsmi"), (26, 0, 2), library))


def test_a_library_of_another_release_is_not_started(backend: ChildBackend, scenario: Path) -> None:
    """The answers would be garbage."""
    change(scenario, {"lib_version": "25.5.1"})
    with pytest.raises(LibraryBroken, match=r"25\.5\.1"):
        backend.open()


@pytest.mark.parametrize("code", [34, 8, 37])
def test_a_library_that_does_not_start_says_so(backend: ChildBackend, scenario: Path, code: int) -> None:
    """Devices are on the bus and the library refuses: loud, with its code."""
    change(scenario, {"init.error": code})
    with pytest.raises(LibraryBroken, match=f"code {code}"):
        backend.open()


def test_no_driver_and_no_device_is_quiet(child_backend: Start, scenario: Path, tmp_path: Path) -> None:
    """ROCm on a host without AMD GPUs is no fault."""
    change(scenario, {"init.error": 34})
    backend = child_backend("amd", amdsmi_environment(scenario) | {"FAKE_SYS_ROOT": str(tmp_path)})
    with pytest.raises(LibraryAbsent, match="no AMD GPU"):
        backend.open()


def test_without_the_library_sysfs_answers(child_backend: Start, tmp_path: Path, sys_root: Path) -> None:
    """The devices are seen all the same, and what only the library knows says so."""
    environment = stub_binding(tmp_path / "rocm", "raise OSError('no library')") | {"FAKE_SYS_ROOT": str(sys_root)}
    backend = child_backend("amd", environment)
    backend.open()
    assert [FIRST, SECOND] == [device.pci_address for device in backend.identify()]
    sample = first(backend, Tier.FAST)
    assert (0.07, "no_library") == (sample.values["activity_compute_ratio"], sample.missing["throttle_ratio"])
    assert "absent" in backend.versions()["amdsmi"]
    assert [] == backend.events(0.0)


def test_loading_leaves_the_variables_that_a_library_needs(scenario: Path) -> None:
    """The mutex of the library stays inside our process, and the oldest bindings find ROCM_PATH."""
    found = amdsmi_environment(scenario)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ROCM", "RSMI"))}
    environment |= {"LD_LIBRARY_PATH": found["LD_LIBRARY_PATH"], "FAKE_DEVICE_SCENARIO": str(scenario)}
    program = (
        "import os; from collectors import amd_binding; amd_binding.load(); "
        "print(os.environ['RSMI_MUTEX_THREAD_ONLY'], os.environ['ROCM_PATH'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"1 {Path('/opt/rocm')}" == done.stdout.strip()
