"""AMD devices as the kernel's own files show them: works without amdsmi, and fills what amdsmi could not read.

Paths and units: Documentation/gpu/amdgpu of the Linux tree; hwmon in milli-degrees, microwatts and hertz.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, LibraryAbsent, Tier
from collectors.pci import PciGpu, gpus
from collectors.pseudo_file import ABSENT, GARBAGE, Unreadable, names, number, read
from passmuster.records import DeviceState, Vendor

# PCIe line rate in GT/s to generation.
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
SEVERITIES = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
PAGE_STATES = {"R": "bad_pages_reserved", "P": "bad_pages_pending", "F": "bad_pages_unreservable"}

# A value above these is the hardware's "not available" (all ones in 8, 16 or 32 bits) or nonsense.
MAX_MILLICELSIUS = 200_000
MAX_MICROWATTS = 5_000_000_000
MAX_HERTZ = 10_000_000_000

_RAS_COUNT = re.compile(r"^(ue|ce|de): (\d{1,19})$", re.MULTILINE)
_BAD_PAGE = re.compile(r"^0x[0-9a-fA-F]{1,16} : 0x[0-9a-fA-F]{1,8} : ([RPF])$", re.MULTILINE)

Read = Callable[[Path], Any]


class AmdSysfsBackend:
    """The AMD devices of this host behind the device Protocol, read from sysfs alone.

    Any of these files can block in the kernel while a device is in reset, so it belongs in the device child.
    """

    vendor = Vendor.AMD

    def __init__(self, sys_root: str | Path = "/sys") -> None:
        self._root = Path(sys_root)
        self._devices: list[PciGpu] = []

    def open(self) -> None:
        """Find the devices. Raises LibraryAbsent when amdgpu holds none."""
        self._devices = [gpu for gpu in gpus(self._root) if gpu.vendor is Vendor.AMD]
        if not (self._root / "module" / "amdgpu").is_dir() or not self._devices:
            raise LibraryAbsent(f"no AMD device of the amdgpu driver under {self._root}")

    def versions(self) -> dict[str, str]:
        """Return the driver's version; the kernel's own tree has none."""
        try:
            return {"amdgpu": read(self._root / "module/amdgpu/version")}
        except Unreadable:
            return {"amdgpu": "in-tree"}

    def identify(self) -> list[DeviceIdentity]:
        """Return who each device is, in order of its address."""
        return [self._identity(index, gpu) for index, gpu in enumerate(self._devices)]

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read one tier of every device."""
        return [self._sample(gpu, tier) for gpu in self._devices]

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Sysfs tells no events; the kernel log does."""
        del timeout_seconds
        return []

    def close(self) -> None:
        """Forget the devices."""
        self._devices = []

    def _identity(self, index: int, gpu: PciGpu) -> DeviceIdentity:
        folder = self._folder(gpu)
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for field, name, parse in IDENTITY:
            _take(values, missing, field, lambda name=name, parse=parse: parse(read(folder / name)))  # type: ignore[misc]
        if gpu.numa_node is not None:
            values["numa_node"] = gpu.numa_node
        model = values.pop("model", f"AMD {gpu.device}")
        return DeviceIdentity(
            device_id=values.get("serial") or values.get("uuid") or gpu.address,
            pci_address=gpu.address,
            index=index,
            vendor=Vendor.AMD,
            model=model,
            values=values,
            missing=missing,
        )

    def _sample(self, gpu: PciGpu, tier: Tier) -> DeviceSample:
        folder = self._folder(gpu)
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        if not folder.is_dir():
            return DeviceSample(pci_address=gpu.address, state=DeviceState.LOST, values={}, missing={})
        for field, name, parse in FILES[tier]:
            _take(values, missing, field, lambda name=name, parse=parse: parse(read(folder / name)))  # type: ignore[misc]
        if tier is Tier.FAST:
            _hwmon(folder, values, missing)
        if tier is Tier.SLOW:
            _ras(folder / "ras", values, missing)
        answered = values or all(reason == ABSENT for reason in missing.values())
        state = DeviceState.OK if answered else DeviceState.UNREADABLE
        return DeviceSample(pci_address=gpu.address, state=state, values=values, missing=missing)

    def _folder(self, gpu: PciGpu) -> Path:
        return self._root / "bus" / "pci" / "devices" / gpu.address


def _take(values: dict[str, Any], missing: dict[str, str], field: str, value: Callable[[], Any]) -> None:
    try:
        values[field] = value()
    except Unreadable as error:
        missing[field] = error.reason


def _words(text: str) -> str:
    if text.lower() in ("n/a", "unknown", "0") or len(text) > 128 or "\n" in text:
        raise Unreadable("sentinel")
    return text


def _unique_id(text: str) -> str:
    if not re.fullmatch(r"(?:0x)?[0-9a-fA-F]{8,32}", text) or not text.lower().removeprefix("0x").strip("0f"):
        raise Unreadable("sentinel")
    return text.lower().removeprefix("0x")


def _percent(text: str) -> float:
    return number(text, 100) / 100


def _lanes(text: str) -> int:
    lanes = number(text, 255)
    if lanes in (0, 255):
        raise Unreadable("sentinel")
    return lanes


def parse_link_speed(text: str) -> int:
    """Return the PCIe generation of ``32.0 GT/s PCIe``."""
    generation = GENERATIONS.get((text.split() or [""])[0])
    if generation is None:
        raise Unreadable("sentinel" if "unknown" in text.lower() else GARBAGE)
    return generation


def parse_ras(text: str) -> dict[str, int]:
    """Return the counts of one ras/*_err_count file by severity.

    During a reset the file holds a sentence instead: that is absent, not 0.
    """
    counts = {SEVERITIES[word]: number(count) for word, count in _RAS_COUNT.findall(text)}
    if not counts:
        raise Unreadable("failed inaccessible" if "inaccessible" in text else GARBAGE)
    return counts


def parse_bad_pages(text: str) -> dict[str, int]:
    """Return the pages of ras/gpu_vram_bad_pages by state, under the names of `GpuReading`."""
    letters = _BAD_PAGE.findall(text)
    if not letters and text:
        raise Unreadable(GARBAGE)
    return {field: letters.count(letter) for letter, field in PAGE_STATES.items()}


def _hwmon(folder: Path, values: dict[str, Any], missing: dict[str, str]) -> None:
    """Read the sensors by label: which number has which sensor differs by product."""
    wanted = {
        "temperature_edge_celsius",
        "temperature_hotspot_celsius",
        "temperature_memory_celsius",
        "clock_graphics_hertz",
        "clock_memory_hertz",
        "power_watts",
        "power_average_watts",
        "power_limit_watts",
    }
    try:
        sensors = folder / "hwmon" / names(folder / "hwmon")[0]
        present = names(sensors)
    except (Unreadable, IndexError) as error:
        missing.update(dict.fromkeys(wanted, error.reason if isinstance(error, Unreadable) else ABSENT))
        return
    labelled = {
        "edge": ("temperature_edge_celsius", MAX_MILLICELSIUS, 1e3),
        "junction": ("temperature_hotspot_celsius", MAX_MILLICELSIUS, 1e3),
        "mem": ("temperature_memory_celsius", MAX_MILLICELSIUS, 1e3),
        "sclk": ("clock_graphics_hertz", MAX_HERTZ, 1.0),
        "mclk": ("clock_memory_hertz", MAX_HERTZ, 1.0),
    }
    files = {
        "power1_input": ("power_watts", MAX_MICROWATTS, 1e6),
        "power1_average": ("power_average_watts", MAX_MICROWATTS, 1e6),
        "power1_cap": ("power_limit_watts", MAX_MICROWATTS, 1e6),
    }
    for name in present:
        if re.fullmatch(r"(temp|freq)\d{1,2}_label", name):
            try:
                label = read(sensors / name)
            except Unreadable:
                continue
            if label in labelled:
                files[name.replace("_label", "_input")] = labelled[label]
    for name, (field, most, scale) in files.items():
        _take(values, missing, field, lambda n=name, m=most, s=scale: number(read(sensors / n), m) / s)  # type: ignore[misc]
    for field in wanted - values.keys():
        missing.setdefault(field, ABSENT)


def _ras(folder: Path, values: dict[str, Any], missing: dict[str, str]) -> None:
    """Read error counters per block. The driver harvests hardware counters for each read: slow tier only."""
    fields = ("ecc_blocks_total", "ecc_corrected_total", "ecc_uncorrected_total", "ecc_deferred_total")
    _take(values, missing, "bad_pages", lambda: parse_bad_pages(_text_or_empty(folder / "gpu_vram_bad_pages")))
    pages = values.pop("bad_pages", None)
    if pages is None:
        missing.update(dict.fromkeys(PAGE_STATES.values(), missing.pop("bad_pages")))
    else:
        values.update(pages)
    blocks: dict[str, int] = {}
    reason = ABSENT
    try:
        files = [name for name in names(folder) if re.fullmatch(r"[a-z0-9_]{1,32}_err_count", name)]
    except Unreadable as error:
        files, reason = [], error.reason
    unread = False
    for name in files:
        try:
            counts = parse_ras(read(folder / name))
        except Unreadable as error:
            reason, unread = error.reason, True
            continue
        blocks.update({f"{name.removesuffix('_err_count')}.{severity}": n for severity, n in counts.items()})
    if not blocks:
        missing.update(dict.fromkeys(fields, reason))
        return
    values["ecc_blocks_total"] = blocks
    for severity in SEVERITIES.values():
        counts_of = [n for key, n in blocks.items() if key.endswith(f".{severity}")]
        field = f"ecc_{severity}_total"
        # A sum that lacks a block would fall and rise again, which reads as new errors.
        if counts_of and not unread:
            values[field] = min(sum(counts_of), 2**63 - 1)
        else:
            missing[field] = reason


def _text_or_empty(path: Path) -> str:
    """Read a table that is an empty file while there are no rows."""
    try:
        return read(path)
    except Unreadable as error:
        if error.reason == GARBAGE and path.is_file() and not path.read_bytes():
            return ""
        raise


IDENTITY: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("model", "product_name", _words),
    ("serial", "serial_number", _words),
    ("uuid", "unique_id", _unique_id),
    ("board_part_number", "product_number", _words),
    ("vbios", "vbios_version", _words),
    ("memory_vendor", "mem_info_vram_vendor", _words),
    ("memory_total_bytes", "mem_info_vram_total", number),
    ("fabric_domain", "xgmi_hive_info/xgmi_hive_id", _words),
)

FILES: dict[Tier, tuple[tuple[str, str, Callable[[str], Any]], ...]] = {
    Tier.FAST: (
        ("activity_compute_ratio", "gpu_busy_percent", _percent),
        ("activity_memory_ratio", "mem_busy_percent", _percent),
        ("memory_used_bytes", "mem_info_vram_used", number),
    ),
    Tier.MIDDLE: (
        ("memory_total_bytes", "mem_info_vram_total", number),
        ("pcie_generation", "current_link_speed", parse_link_speed),
        ("pcie_generation_max", "max_link_speed", parse_link_speed),
        ("pcie_width", "current_link_width", _lanes),
        ("pcie_width_max", "max_link_width", _lanes),
        ("pcie_errors_total", "pcie_replay_count", lambda text: {"replay": number(text, 2**64 - 2)}),
    ),
    Tier.SLOW: (
        ("compute_partition", "current_compute_partition", _words),
        ("memory_partition", "current_memory_partition", _words),
    ),
}
