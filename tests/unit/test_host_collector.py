"""The host collector on small trees of sysfs and procfs: whole, absent and hostile."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from collectors.amd_sysfs import AmdSysfsBackend, parse_bad_pages, parse_link_speed, parse_ras
from collectors.device import LibraryAbsent, Tier
from collectors.host import (
    HostCollector,
    expected_gpus,
    parse_aer,
    parse_cpu_list,
    parse_meminfo,
    parse_nvidia_version,
    parse_port_rate,
    parse_port_state,
    parse_seconds,
    parse_services,
)
from collectors.pci import gpus
from collectors.pseudo_file import Unreadable, reason_of
from passmuster.batch import decode, encode, from_records
from passmuster.config import Agent, Config
from passmuster.records import DeviceState, HostReading, Vendor

NOW = 1_700_000_000_000_000_000

H200 = {"vendor": "0x10de\n", "device": "0x2335\n", "class": "0x030200\n", "numa_node": "1\n"}
MI300X = {"vendor": "0x1002\n", "device": "0x74a1\n", "class": "0x120000\n", "numa_node": "-1\n"}
AER = "RxErr 3\nBadTLP 0\nBadDLLP 1\nRollover 0\nTimeout 2\nNonFatalErr 0\nTOTAL_ERR_COR 6\n"
OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root@h)  Mon Jan 1 2026\n"
    "GCC version:  gcc version 12.3.0\n"
)


def tree(root: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files by their path below a root."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def on_bus(root: Path, address: str, files: Mapping[str, str | bytes], bridge: str = "0000:00:01.0") -> None:
    """Put a device below a bridge, linked from the bus as the kernel does it."""
    place = root / "sys/devices/pci0000:00" / bridge / address
    tree(place, files)
    link = root / "sys/bus/pci/devices" / address
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(place)


def collected(root: Path, **agent: Any) -> HostReading:
    """One reading of the tree; it must travel."""
    config = Config(
        agent=replace(Agent(), sys_root=str(root / "sys"), proc_root=str(root / "proc"), services=(), **agent)
    )
    (reading,) = HostCollector(config).collect(NOW)
    decode(encode(from_records([reading])))
    return reading


def test_whole_host(tmp_path: Path) -> None:
    """Everything that a healthy host has is read, in the units of the record."""
    on_bus(tmp_path, "0000:17:00.0", {**H200, "aer_dev_correctable": AER, "aer_dev_fatal": "TOTAL_ERR_FATAL 0\n"})
    tree(tmp_path / "sys/bus/pci/devices/0000:00:01.0", {"aer_dev_nonfatal": "TLP 1\nFCP 1\n"})
    port = "sys/class/infiniband/mlx5_0/ports/1/"
    tree(
        tmp_path,
        {
            "proc/sys/kernel/random/boot_id": "b00t\n",
            "proc/sys/kernel/osrelease": "6.8.0-1\n",
            "proc/uptime": "86400.50 1000.00\n",
            "proc/loadavg": "32.00 10.00 5.00 1/100 4242\n",
            "proc/meminfo": "MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:    400 kB\n",
            "proc/driver/nvidia/version": OPEN_MODULE,
            "sys/devices/system/cpu/online": "0-63\n",
            "sys/module/amdgpu/initstate": "live\n",
            port + "state": "4: ACTIVE\n",
            port + "rate": "400 Gb/sec (4X NDR)\n",
            port + "counters/link_downed": "2\n",
            port + "hw_counters/out_of_sequence": "7\n",
        },
    )
    reading = collected(tmp_path)
    assert reading.missing is None
    assert (reading.boot_id, reading.kernel, reading.uptime_seconds) == ("b00t", "6.8.0-1", 86400.5)
    assert reading.drivers == {"nvidia": "580.159.04", "amdgpu": "in-tree"}
    assert (reading.load_ratio, reading.memory_total_bytes, reading.memory_available_bytes) == (0.5, 1024000, 409600)
    assert reading.gpus_expected == {"nvidia": 1}
    assert reading.aer_errors_total == {
        "0000:17:00.0.correctable": 6,
        "0000:17:00.0.fatal": 0,
        "0000:00:01.0.nonfatal": 2,
    }
    assert (reading.nic_links, reading.nic_rates) == ({"mlx5_0/1": "active"}, {"mlx5_0/1": 4e11})
    assert reading.nic_errors_total == {"mlx5_0/1.link_downed": 2, "mlx5_0/1.out_of_sequence": 7}


def test_empty_host(tmp_path: Path) -> None:
    """A host without any of the files gives nulls with reasons, and no zero that nobody read."""
    reading = collected(tmp_path)
    assert (reading.kernel, reading.uptime_seconds, reading.load_ratio, reading.memory_total_bytes) == (None,) * 4
    assert (reading.drivers, reading.nic_links, reading.aer_errors_total) == (None, None, None)
    assert reading.gpus_expected == {}
    assert reading.missing is not None
    assert set(reading.missing.values()) == {"unsupported"}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00garbage", b"x" * 100_000, b"-1\n", b"\x1b[2J\n", b"9" * 30])
def test_hostile_content(tmp_path: Path, content: bytes) -> None:
    """Binary, huge and non-numeric content becomes null with a reason, whatever the file."""
    on_bus(tmp_path, "0000:17:00.0", {**H200, "aer_dev_correctable": content})
    port = "sys/class/infiniband/mlx5_0/ports/1/"
    numbers = ("proc/uptime", "proc/loadavg", "proc/meminfo", "sys/devices/system/cpu/online")
    files = (*numbers, "proc/driver/nvidia/version", port + "state", port + "rate", port + "counters/link_downed")
    tree(tmp_path, dict.fromkeys(files, content))
    reading = collected(tmp_path)
    assert (reading.uptime_seconds, reading.load_ratio, reading.memory_total_bytes) == (None, None, None)
    assert (reading.drivers, reading.aer_errors_total) == (None, None)
    assert (reading.nic_links, reading.nic_rates, reading.nic_errors_total) == ({}, {}, {})
    assert reading.missing is not None
    assert reading.missing["uptime_seconds"] == "garbage"
    assert reading.missing["nic_links.mlx5_0/1"] == "garbage"


@pytest.mark.parametrize(
    ("seen", "changes"),
    [
        (1, {}),
        (1, {"class": "0x030000\n"}),
        (0, {"class": "0x040300\n"}),  # the audio function of a graphics board
        (0, {"vendor": "0x8086\n"}),
        (0, {"class": b"\xff\x00"}),
        (0, {"class": ""}),
    ],
)
def test_what_is_a_gpu(tmp_path: Path, seen: int, changes: dict[str, str | bytes]) -> None:
    """A GPU is of a known vendor and class."""
    on_bus(tmp_path, "0000:17:00.0", {**H200, **changes})
    assert len(gpus(tmp_path / "sys")) == seen


def test_gpu_facts(tmp_path: Path) -> None:
    """Vendor, address, NUMA node and the bridge above are read; of a guest's devices none is ours."""
    on_bus(tmp_path, "0000:17:00.0", H200)
    on_bus(tmp_path, "0000:0c:00.0", MI300X)
    on_bus(tmp_path, "0000:18:00.0", H200)
    on_bus(tmp_path, "0000:0c:02.0", MI300X)
    (tmp_path / "vfio-pci").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:18:00.0/driver").symlink_to(tmp_path / "vfio-pci")
    (tmp_path / "sys/bus/pci/devices/0000:0c:02.0/physfn").mkdir()
    shown = [(g.vendor, g.address, g.numa_node, g.bridge) for g in gpus(tmp_path / "sys")]
    assert shown == [
        (Vendor.AMD, "0000:0c:00.0", -1, "0000:00:01.0"),
        (Vendor.NVIDIA, "0000:17:00.0", 1, "0000:00:01.0"),
    ]


def test_expected_stays_when_a_gpu_leaves_the_bus(tmp_path: Path) -> None:
    """A GPU that was there is still expected after it left the bus."""
    on_bus(tmp_path, "0000:17:00.0", H200)
    on_bus(tmp_path, "0000:18:00.0", H200)
    collector = HostCollector(Config(agent=replace(Agent(), sys_root=str(tmp_path / "sys"), services=())))
    assert [r.gpus_expected for r in collector.collect(NOW)] == [{"nvidia": 2}]
    (tmp_path / "sys/bus/pci/devices/0000:18:00.0").unlink()
    assert [r.gpus_expected for r in collector.collect(NOW + 1)] == [{"nvidia": 2}]


@pytest.mark.parametrize(
    ("expected", "vendors", "configured"),
    [
        ({"nvidia": 1, "amd": 1}, "na", -1),
        ({"nvidia": 8}, "nn", 8),
        ({"any": 8}, "", 8),
        ({"nvidia": 1, "amd": 1, "any": 8}, "na", 8),
        ({"amd": 0}, "a", 0),
    ],
)
def test_expected_gpus(tmp_path: Path, expected: dict[str, int], vendors: str, configured: int) -> None:
    """The configured number is of the vendor that PCI shows, else of any."""
    for i, vendor in enumerate(vendors):
        on_bus(tmp_path, f"0000:1{i}:00.0", H200 if vendor == "n" else MI300X)
    assert expected_gpus(gpus(tmp_path / "sys"), configured) == expected


@pytest.mark.parametrize(
    ("expected", "number"),
    [
        ("unsupported", errno.ENOENT),
        ("permission", errno.EACCES),
        ("failed EBUSY", errno.EBUSY),
        ("failed EINVAL", errno.EINVAL),
        ("failed EIO", errno.EIO),
    ],
)
def test_reasons(expected: str, number: int) -> None:
    """What the kernel answers to a read tells absent, forbidden and failing apart."""
    assert reason_of(OSError(number, "")) == expected


def test_services() -> None:
    """A unit that systemd does not know is absent; the others are as it says; foreign text is nothing."""
    text = (
        "Id=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=failed\n\n"
        "Id=nvidia-persistenced.service\nLoadState=not-found\nActiveState=inactive\n\n"
        "Id=other.service\nActiveState=active\n\nActiveState=active\n\ngarbage\x1b[2J"
    )
    wanted = ["nvidia-fabricmanager", "nvidia-persistenced.service", "unheard"]
    assert parse_services(text, wanted) == {"nvidia-fabricmanager": "failed", "nvidia-persistenced.service": "absent"}


@pytest.mark.parametrize(
    ("expected", "parse", "text"),
    [
        ("580.159.04", parse_nvidia_version, OPEN_MODULE),
        ("535.54.03", parse_nvidia_version, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun 6"),
        (6, parse_aer, AER),
        (2, parse_aer, "TLP 1\nFCP 1\n"),
        (130, parse_cpu_list, "0-127,130,140"),
        (0.25, parse_seconds, "0.25 0.5"),
        ((1024, None), parse_meminfo, "MemTotal: 1 kB"),
        ("down", parse_port_state, "1: DOWN"),
        (1e11, parse_port_rate, "100 Gb/sec (4X EDR)"),
        (2.5e9, parse_port_rate, "2.5 Gb/sec (1X SDR)"),
        (5, parse_link_speed, "32.0 GT/s PCIe"),
        ({"uncorrected": 0, "corrected": 12}, parse_ras, "ue: 0\nce: 12"),
        ({"uncorrected": 1, "corrected": 2, "deferred": 3}, parse_ras, "ue: 1\nce: 2\nde: 3"),
        (
            {"bad_pages_reserved": 2, "bad_pages_pending": 1, "bad_pages_unreservable": 0},
            parse_bad_pages,
            "0x027f5d43 : 0x00001000 : R\n0x027f5d44 : 0x00001000 : P\n0x0A7f5d45 : 0x00001000 : R",
        ),
    ],
)
def test_parsers(expected: object, parse: Any, text: str) -> None:
    """Each parser reads the forms that drivers and kernels write."""
    assert parse(text) == expected


@pytest.mark.parametrize(
    "parse", [parse_nvidia_version, parse_aer, parse_cpu_list, parse_seconds, parse_meminfo, parse_port_state]
)
@pytest.mark.parametrize("text", ["Query currently inaccessible", "-1", "1e400", "nan", "TOTAL_ERR_COR x", "5-2"])
def test_parsers_refuse(parse: Any, text: str) -> None:
    """What is no value is a reason, never a zero."""
    with pytest.raises(Unreadable):
        parse(text)


def mi300x(root: Path, changes: Mapping[str, str | bytes] | None = None) -> AmdSysfsBackend:
    """One MI300X with the files of telemetry that its kernel driver writes."""
    files = {
        **MI300X,
        "product_name": "AMD Instinct MI300X OAM\n",
        "serial_number": "0123456789ABCDEF\n",
        "unique_id": "a1b2c3d4e5f60718\n",
        "mem_info_vram_total": "206141652992\n",
        "mem_info_vram_used": "296435712\n",
        "gpu_busy_percent": "97\n",
        "current_link_speed": "32.0 GT/s PCIe\n",
        "current_link_width": "16\n",
        "pcie_replay_count": "4\n",
        "ras/umc_err_count": "ue: 0\nce: 5\nde: 1\n",
        "ras/gfx_err_count": "ue: 2\nce: 0\n",
        "ras/gpu_vram_bad_pages": "0x027f5d43 : 0x00001000 : R\n",
        "hwmon/hwmon3/temp2_label": "junction\n",
        "hwmon/hwmon3/temp2_input": "71000\n",
        "hwmon/hwmon3/temp3_label": "mem\n",
        "hwmon/hwmon3/temp3_input": "64000\n",
        "hwmon/hwmon3/power1_input": "745000000\n",
        "hwmon/hwmon3/power1_cap": "750000000\n",
        **(changes or {}),
    }
    on_bus(root, "0000:0c:00.0", files)
    (root / "sys/module/amdgpu").mkdir(parents=True)
    backend = AmdSysfsBackend(root / "sys")
    backend.open()
    return backend


def test_amd_device(tmp_path: Path) -> None:
    """An MI300X is identified and read in the units of `GpuReading`; what it lacks is missing with a reason."""
    backend = mi300x(tmp_path)
    (identity,) = backend.identify()
    assert (identity.device_id, identity.model) == ("0123456789ABCDEF", "AMD Instinct MI300X OAM")
    fast, middle, slow = (backend.sample(tier)[0] for tier in (Tier.FAST, Tier.MIDDLE, Tier.SLOW))
    assert fast.values == {
        "activity_compute_ratio": 0.97,
        "memory_used_bytes": 296435712,
        "power_watts": 745.0,
        "power_limit_watts": 750.0,
        "temperature_hotspot_celsius": 71.0,
        "temperature_memory_celsius": 64.0,
    }
    assert fast.missing["temperature_edge_celsius"] == "unsupported"
    assert (middle.values["pcie_generation"], middle.values["pcie_errors_total"]) == (5, {"replay": 4})
    assert slow.values["ecc_blocks_total"] == {
        "gfx.uncorrected": 2,
        "gfx.corrected": 0,
        "umc.uncorrected": 0,
        "umc.corrected": 5,
        "umc.deferred": 1,
    }
    assert (slow.values["ecc_corrected_total"], slow.values["bad_pages_reserved"]) == (5, 1)


def test_amd_counters_in_reset(tmp_path: Path) -> None:
    """While one block is inaccessible the other blocks are read and no sum is given: a sum would fall and rise."""
    (slow,) = mi300x(tmp_path, {"ras/gfx_err_count": "Query currently inaccessible\n"}).sample(Tier.SLOW)
    assert slow.values["ecc_blocks_total"] == {"umc.uncorrected": 0, "umc.corrected": 5, "umc.deferred": 1}
    assert "ecc_uncorrected_total" not in slow.values
    assert slow.missing["ecc_uncorrected_total"] == "failed inaccessible"


@pytest.mark.parametrize(
    ("field", "name", "content"),
    [
        ("temperature_hotspot_celsius", "hwmon/hwmon3/temp2_input", "4294967295\n"),
        ("power_watts", "hwmon/hwmon3/power1_input", "18446744073709551615\n"),
        ("activity_compute_ratio", "gpu_busy_percent", "255\n"),
        ("pcie_width", "current_link_width", "255\n"),
        ("pcie_generation", "current_link_speed", "Unknown speed\n"),
        ("memory_used_bytes", "mem_info_vram_used", b"\xff\xff"),
    ],
)
def test_amd_sentinels(tmp_path: Path, field: str, name: str, content: str | bytes) -> None:
    """All ones and nonsense are null with a reason."""
    backend = mi300x(tmp_path, {name: content})
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for tier in Tier:
        (sample,) = backend.sample(tier)
        values.update(sample.values)
        missing.update(sample.missing)
    assert field not in values
    assert missing[field] in ("garbage", "sentinel")


def test_amd_device_gone(tmp_path: Path) -> None:
    """A device whose folder is gone is lost."""
    backend = mi300x(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:0c:00.0").unlink()
    assert [s.state for s in backend.sample(Tier.FAST)] == [DeviceState.LOST]


def test_amd_absent(tmp_path: Path) -> None:
    """Without an AMD device there is nothing to read, and that is said."""
    with pytest.raises(LibraryAbsent, match="no AMD device"):
        AmdSysfsBackend(tmp_path).open()
