"""Which AMD SMI answer fills which field, tier by tier, as tables that `collectors.amd_reading` works through.

Keys are those of the dicts that the Python binding returns; where releases differ, all spellings stand side by side.
Calls of one tier stand by preference: a later one fills only what earlier ones left open, and is not made otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from collectors.device import Tier
from passmuster.records import INT64_MAX

Decode = Callable[[Any], Any]
"""Turns one raw answer into a value in base units, or into None where the answer is a vendor sentinel."""

MAX_TEXT = 128
MAX_MEMBERS = 64  # of a map: links, HBM stacks, firmware blocks


class Read(NamedTuple):
    """One field of an answer. ``keys`` are dotted paths, the first with a value counts; "" is the whole answer."""

    field: str
    keys: tuple[str, ...]
    decode: Decode
    member: str | None = None


class Call(NamedTuple):
    """One function of the binding; arguments are members of its enumerations by name, with their number in C."""

    function: str
    arguments: tuple[tuple[str, int], ...]
    reads: tuple[Read, ...]


def number(raw: Any, bits: int = 64) -> int | float | None:
    """Return a number, None for what is none: text, truth values, all ones of ``bits`` or wider, negative, not finite.

    The binding replaces all ones by 'N/A' in some places only, and widens 16-bit fields in others.
    """
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw <= INT64_MAX:
        return None
    all_ones = {2**width - 1 for width in (8, 16, 32, 64) if width >= bits}
    return None if raw in all_ones else raw


def scaled(factor: float, bits: int) -> Decode:
    """Return a decoder of a number of that width into base units."""

    def decode(raw: Any) -> float | None:
        found = number(raw, bits)
        return None if found is None else found * factor

    return decode


def counter(bits: int = 64) -> Decode:
    """Return a decoder of a counter of that width."""

    def decode(raw: Any) -> int | None:
        found = number(raw, bits)
        return None if found is None else int(found)

    return decode


count = counter()
microwatts = scaled(1e-6, 16)  # power_info gives 65535 in a 32-bit field for no value
watts = scaled(1.0, 16)
megahertz = scaled(1e6, 16)


def celsius(raw: Any) -> float | None:
    """Return a temperature; None outside of what silicon can be at and answer."""
    found = number(raw, 16)
    return float(found) if found is not None and found < 255 else None


def percent(raw: Any) -> float | None:
    """Return a ratio from per cent; None above 100."""
    found = number(raw)
    return found / 100 if found is not None and found <= 100 else None


def mean_megahertz(raw: Any) -> float | None:
    """Return hertz, the mean over the compute dies that run; None for no list of clocks."""
    clocks = [c for c in (megahertz(value) for value in _list(raw)) if c is not None]
    running = [c for c in clocks if c > 0]
    return sum(running) / len(running) if running else (0.0 if clocks else None)


# Rate per lane in MT/s to PCIe generation.
GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


def generation(raw: Any) -> int | None:
    """Return the PCIe generation of a rate in MT/s."""
    found = number(raw, 32)
    return None if found is None else GENERATIONS.get(int(found))


def words(raw: Any) -> str | None:
    """Return a short text; None for 'N/A' and its like."""
    text = raw.strip() if isinstance(raw, str) else ""
    return None if text.lower() in ("", "n/a", "unknown", "invalid") else text[:MAX_TEXT]


def architecture(raw: Any) -> str | None:
    """Return gfx942 and its like; the binding spells all ones out as a name."""
    text = words(raw)
    return None if text is None or not text.startswith("gfx") or len(text) > 12 else text


def serial(raw: Any) -> str | None:
    """Return a serial number; None also for all zeros."""
    text = words(raw)
    return text if text and text.lower().removeprefix("0x").strip("0") else None


def hbm(raw: Any) -> dict[str, float] | None:
    """Return the temperature per HBM stack."""
    found = {str(i): value for i, raw_value in enumerate(_list(raw)) if (value := celsius(raw_value)) is not None}
    return found or None


ENERGY_UNIT_JOULES = 2.0**-16  # kgd_pp_interface.h: energy_accumulator counts 15.259 uJ


def energy(raw: Any) -> float | None:
    """Return joules of amdsmi_get_energy_count, whose resolution (uJ) the library rounds to 15.3."""
    counted = number(_first(raw, ("energy_accumulator", "power")))
    unit = number(_first(raw, ("counter_resolution",)), 32)
    if counted is None or not unit:
        return None
    return counted * (ENERGY_UNIT_JOULES if 15.2 < unit < 15.4 else unit * 1e-6)


LINK_STATES = {"U": 1, "D": 0}  # X is disabled: such a link does not exist for us


def links(raw: Any) -> dict[str, int] | None:
    """Return the state per xGMI link: 1 up, 0 down."""
    found = {str(i): LINK_STATES[state] for i, state in enumerate(_list(raw)) if state in LINK_STATES}
    return found or None


def links_up(raw: Any) -> int | None:
    """Return how many xGMI links are up."""
    found = links(raw)
    return None if found is None else sum(found.values())


def links_total(raw: Any) -> int | None:
    """Return how many xGMI links are up or down."""
    found = links(raw)
    return None if found is None else len(found)


def link_bytes(raw: Any) -> dict[str, int] | None:
    """Return bytes per link and direction of amdsmi_get_link_metrics (KiB)."""
    total = number(_first(raw, ("num_links",)), 32)
    rows = _list(_first(raw, ("links",)))[: int(total or 0)]
    return _bytes([_first(row, ("read",)) for row in rows], [_first(row, ("write",)) for row in rows])


def metrics_link_bytes(raw: Any) -> dict[str, int] | None:
    """Return the same from gpu_metrics."""
    return _bytes(_list(_first(raw, ("xgmi_read_data_acc",))), _list(_first(raw, ("xgmi_write_data_acc",))))


def _bytes(received: Sequence[Any], sent: Sequence[Any]) -> dict[str, int] | None:
    found = {}
    for direction, kibibytes in (("receive", received), ("transmit", sent)):
        for link, raw in enumerate(kibibytes[:MAX_MEMBERS]):
            value = number(raw)
            if value is not None and value <= INT64_MAX // 1024:
                found[f"{link}.{direction}"] = int(value) * 1024
    return found or None


def pages(status: int) -> Decode:
    """Return a decoder that counts the bad pages of one status: 0 reserved, 1 pending, 2 not reservable."""

    def decode(raw: Any) -> int | None:
        if isinstance(raw, str) and raw.lower().startswith("no "):  # "No bad pages found." of older bindings
            return 0
        if not isinstance(raw, (list, tuple)):
            return None
        return sum(1 for page in raw if _first(page, ("status",)) == status)

    return decode


def fabric_state(raw: Any) -> str | None:
    """Return whether the device is in an xGMI hive."""
    found = number(raw)
    return None if found is None else "completed" if found else "not_supported"


def hive(raw: Any) -> str | None:
    """Return the hive's id in hex; None for a device in none."""
    found = number(raw)
    return f"{int(found):016x}" if found else None


def process_count(raw: Any) -> int | None:
    """Return how many processes have the device open."""
    return len(raw) if isinstance(raw, (list, tuple)) else None


def process_memory(raw: Any) -> int | None:
    """Return the device memory of all processes; None where one is not known."""
    if not isinstance(raw, (list, tuple)):
        return None
    sizes = [number(_first(process, ("memory_usage.vram_mem", "mem"))) for process in raw]
    return None if None in sizes else min(int(sum(size for size in sizes if size)), INT64_MAX)


def firmware(raw: Any) -> dict[str, str] | None:
    """Return firmware versions by block."""
    found = {}
    for entry in _list(raw):
        name, version = _first(entry, ("fw_name",)), words(_first(entry, ("fw_version",)))
        name = str(getattr(name, "name", name)).removeprefix("AMDSMI_FW_ID_").removeprefix("FW_ID_").lower()
        if version and name:
            found[name[:64]] = version
    return found or None


def _list(raw: Any) -> Sequence[Any]:
    return raw[:MAX_MEMBERS] if isinstance(raw, (list, tuple)) else ()


ABSENT = object()
"""What `find` returns where the answer has no such key."""


def find(raw: Any, key: str) -> Any:
    """Return what stands under a dotted path, or ABSENT."""
    if key == "":
        return raw
    if isinstance(raw, Mapping) and key in raw:  # gpu_metrics has keys with dots in them
        return raw[key]
    for part in key.split("."):
        if not isinstance(raw, Mapping) or part not in raw:
            return ABSENT
        raw = raw[part]
    return raw


def _first(raw: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        found = find(raw, key)
        if found is not ABSENT:
            return found
    return None


METRICS = "amdsmi_get_gpu_metrics_info"
_HOTSPOT, _VRAM, _EDGE = (f"AmdSmiTemperatureType.{name}" for name in ("HOTSPOT", "VRAM", "EDGE"))
_CURRENT, _CRITICAL, _EMERGENCY = (f"AmdSmiTemperatureMetric.{name}" for name in ("CURRENT", "CRITICAL", "EMERGENCY"))

# AMDSMI_GPU_BLOCK_*; the library maps only these to files of the driver.
ECC_BLOCKS = {"UMC": 1, "SDMA": 2, "GFX": 4, "MMHUB": 8, "PCIE_BIF": 32, "HDP": 64, "XGMI_WAFL": 128}
_SEVERITIES = {"corrected": "correctable_count", "uncorrected": "uncorrectable_count", "deferred": "deferred_count"}

# Functions that make the driver harvest error counters: never asked while the device sleeps.
RAS_FUNCTIONS = frozenset(
    {"amdsmi_get_gpu_total_ecc_count", "amdsmi_get_gpu_ecc_count", "amdsmi_get_gpu_bad_page_info"}
)


def _temperature(field: str, sensor: str, sensor_id: int, metric: str, metric_id: int) -> Call:
    arguments = ((sensor, sensor_id), (metric, metric_id))
    return Call("amdsmi_get_temp_metric", arguments, (Read(field, ("",), celsius),))


def _plain(function: str, *reads: Read) -> Call:
    return Call(function, (), reads)


def _clock(name: str, number_in_c: int, *reads: Read) -> Call:
    return Call("amdsmi_get_clock_info", ((f"AmdSmiClkType.{name}", number_in_c),), reads)


def _pcie_error(member: str, key: str) -> Read:
    return Read("pcie_errors_total", (f"pcie_metric.{key}",), count, member)


# gpu_metrics is one read of one file for everything that changes fast; it comes first.
CALLS: dict[Tier, tuple[Call, ...]] = {
    Tier.FAST: (
        _plain(
            METRICS,
            Read("power_watts", ("current_socket_power",), watts),
            Read("power_average_watts", ("average_socket_power",), watts),
            Read("temperature_hotspot_celsius", ("temperature_hotspot",), celsius),
            Read("temperature_memory_celsius", ("temperature_mem",), celsius),
            Read("temperature_edge_celsius", ("temperature_edge",), celsius),
            Read("temperature_hbm_celsius", ("temperature_hbm",), hbm),
            Read("clock_graphics_hertz", ("current_gfxclks",), mean_megahertz),
            Read("clock_graphics_hertz", ("current_gfxclk",), megahertz),
            Read("clock_soc_hertz", ("current_socclks",), mean_megahertz),
            Read("clock_soc_hertz", ("current_socclk",), megahertz),
            Read("clock_memory_hertz", ("current_uclk",), megahertz),
            Read("activity_compute_ratio", ("average_gfx_activity",), percent),
            Read("activity_memory_ratio", ("average_umc_activity",), percent),
        ),
        _plain(
            "amdsmi_get_power_info",
            Read("power_watts", ("current_socket_power",), watts),
            Read("power_average_watts", ("average_socket_power",), watts),
        ),
        _plain(
            "amdsmi_get_gpu_activity",
            Read("activity_compute_ratio", ("gfx_activity",), percent),
            Read("activity_memory_ratio", ("umc_activity",), percent),
        ),
        _temperature("temperature_hotspot_celsius", _HOTSPOT, 1, _CURRENT, 0),
        _temperature("temperature_memory_celsius", _VRAM, 2, _CURRENT, 0),
        _temperature("temperature_edge_celsius", _EDGE, 0, _CURRENT, 0),
        _clock("GFX", 0, Read("clock_graphics_hertz", ("clk", "cur_clk"), megahertz)),
        _clock("MEM", 4, Read("clock_memory_hertz", ("clk", "cur_clk"), megahertz)),
        _clock("SOC", 3, Read("clock_soc_hertz", ("clk", "cur_clk"), megahertz)),
    ),
    Tier.MIDDLE: (
        _plain("amdsmi_get_power_cap_info", Read("power_limit_watts", ("power_cap",), microwatts)),
        _plain("amdsmi_get_power_info", Read("power_limit_watts", ("power_limit",), microwatts)),
        Call(
            "amdsmi_get_gpu_memory_total",
            (("AmdSmiMemoryType.VRAM", 0),),
            (Read("memory_total_bytes", ("",), count),),
        ),
        Call(
            "amdsmi_get_gpu_memory_usage",
            (("AmdSmiMemoryType.VRAM", 0),),
            (Read("memory_used_bytes", ("",), count),),
        ),
        _plain("amdsmi_get_link_metrics", Read("link_bytes_total", ("",), link_bytes)),
        _plain(
            METRICS,
            Read("energy_joules_total", ("energy_accumulator",), scaled(ENERGY_UNIT_JOULES, 64)),
            Read("link_bytes_total", ("",), metrics_link_bytes),
        ),
        _plain("amdsmi_get_energy_count", Read("energy_joules_total", ("",), energy)),
        _plain(
            "amdsmi_get_gpu_total_ecc_count",
            *(Read(f"ecc_{severity}_total", (key,), count) for severity, key in _SEVERITIES.items()),
        ),
        *(
            Call(
                "amdsmi_get_gpu_ecc_count",
                ((f"AmdSmiGpuBlock.{block}", bit),),
                tuple(
                    Read("ecc_blocks_total", (key,), count, f"{block.lower()}.{severity}")
                    for severity, key in _SEVERITIES.items()
                ),
            )
            for block, bit in ECC_BLOCKS.items()
        ),
        _plain(
            "amdsmi_get_gpu_xgmi_link_status",
            Read("links", ("status",), links),
            Read("links_up", ("status",), links_up),
            Read("links_total", ("status",), links_total),
        ),
        _plain("amdsmi_gpu_xgmi_error_status", Read("link_error_status", ("",), counter(32))),
        _plain(
            "amdsmi_get_gpu_process_list",
            Read("processes", ("",), process_count),
            Read("process_memory_bytes", ("",), process_memory),
        ),
    ),
    Tier.SLOW: (
        _plain(
            "amdsmi_get_pcie_info",
            Read("pcie_generation", ("pcie_metric.pcie_speed",), generation),
            Read("pcie_generation_max", ("pcie_static.max_pcie_speed",), generation),
            Read("pcie_width", ("pcie_metric.pcie_width",), counter(16)),
            Read("pcie_width_max", ("pcie_static.max_pcie_width",), counter(16)),
            _pcie_error("replay", "pcie_replay_count"),
            _pcie_error("replay_rollover", "pcie_replay_roll_over_count"),
            _pcie_error("recovery", "pcie_l0_to_recovery_count"),
            _pcie_error("nak_sent", "pcie_nak_sent_count"),
            _pcie_error("nak_received", "pcie_nak_received_count"),
        ),
        _plain("amdsmi_get_gpu_pci_replay_counter", Read("pcie_errors_total", ("",), count, "replay")),
        _temperature("temperature_slowdown_celsius", _HOTSPOT, 1, _CRITICAL, 5),
        _temperature("temperature_shutdown_celsius", _HOTSPOT, 1, _EMERGENCY, 7),
        _temperature("temperature_memory_limit_celsius", _VRAM, 2, _CRITICAL, 5),
        _clock("GFX", 0, Read("clock_graphics_limit_hertz", ("max_clk",), megahertz)),
        _plain(
            "amdsmi_get_gpu_ecc_enabled",
            Read("ecc_enabled", ("",), lambda raw: None if count(raw) is None else bool(raw & ECC_BLOCKS["UMC"])),
        ),
        _plain(
            "amdsmi_get_gpu_bad_page_info",
            Read("bad_pages_reserved", ("",), pages(0)),
            Read("bad_pages_pending", ("",), pages(1)),
            Read("bad_pages_unreservable", ("",), pages(2)),
        ),
        _plain("amdsmi_get_gpu_bad_page_threshold", Read("bad_pages_limit", ("",), counter(32))),
        _plain(
            "amdsmi_get_gpu_accelerator_partition_profile",
            Read("compute_partition", ("partition_profile.profile_type",), words),
        ),
        _plain("amdsmi_get_gpu_compute_partition", Read("compute_partition", ("",), words)),
        _plain("amdsmi_get_gpu_memory_partition", Read("memory_partition", ("",), words)),
        _plain("amdsmi_get_xgmi_info", Read("fabric_state", ("xgmi_hive_id",), fabric_state)),
    ),
}
TIER_FIELDS: dict[Tier, tuple[str, ...]] = {
    tier: tuple(
        dict.fromkeys(
            [read.field for call in CALLS[tier] for read in call.reads]
            + (["throttle_ratio", "throttle_seconds_total"] if tier is Tier.FAST else [])
        )
    )
    for tier in Tier
}
"""Every field of `GpuReading` that a tier answers, with a value or with a reason."""

# The board's own serial is on its label and in sysfs; what asic_serial means changed between releases.
IDENTITY: tuple[Call, ...] = (
    _plain(
        "amdsmi_get_gpu_board_info",
        Read("serial", ("product_serial",), serial),
        Read("board_part_number", ("model_number",), words),
        Read("product_name", ("product_name",), words),
    ),
    _plain(
        "amdsmi_get_gpu_asic_info",
        Read("serial", ("asic_serial",), serial),
        Read("model", ("market_name",), words),
        Read("architecture", ("target_graphics_version",), architecture),
        Read("slot", ("oam_id",), lambda raw: None if counter(32)(raw) is None else str(raw)),
    ),
    _plain("amdsmi_get_gpu_device_uuid", Read("uuid", ("",), serial)),
    _plain("amdsmi_get_gpu_vbios_info", Read("vbios", ("version",), words)),
    _plain("amdsmi_get_gpu_driver_info", Read("driver", ("driver_version",), words)),
    _plain(
        "amdsmi_get_gpu_vram_info",
        Read("memory_vendor", ("vram_vendor",), words),
    ),
    Call(
        "amdsmi_get_gpu_memory_total",
        (("AmdSmiMemoryType.VRAM", 0),),
        (Read("memory_total_bytes", ("",), count),),
    ),
    _plain("amdsmi_get_fw_info", Read("firmware", ("fw_list",), firmware)),
    _plain("amdsmi_get_xgmi_info", Read("fabric_domain", ("xgmi_hive_id",), hive)),
    _plain("amdsmi_topo_get_numa_node_number", Read("numa_node", ("",), counter(16))),
    _plain("amdsmi_get_gpu_kfd_info", Read("partition", ("current_partition_id",), counter(32))),
)

# Residency in gpu_metrics, by the reason of `GpuReading.throttle_ratio`; the second table is per compute die.
RESIDENCIES = {
    "prochot": "prochot_residency_acc",
    "ppt": "ppt_residency_acc",
    "socket_thermal": "socket_thm_residency_acc",
    "vr_thermal": "vr_thm_residency_acc",
    "hbm_thermal": "hbm_thm_residency_acc",
}
DIE_RESIDENCIES = {
    "die_below_limit_ppt": "xcp_stats.gfx_below_host_limit_ppt_acc",
    "die_below_limit_thermal": "xcp_stats.gfx_below_host_limit_thm_acc",
    "die_below_limit": "xcp_stats.gfx_below_host_limit_total_acc",
}

# What a partition shares with its siblings: told by the first partition alone, so that no sum counts it twice.
PACKAGE_FIELDS = frozenset(
    field
    for tier in Tier
    for field in TIER_FIELDS[tier]
    if field
    not in (
        "activity_compute_ratio",
        "clock_graphics_hertz",
        "memory_total_bytes",
        "memory_used_bytes",
        "processes",
        "process_memory_bytes",
        "compute_partition",
        "memory_partition",
    )
)

# Events by name, because their numbers changed between releases: kind and code of `FaultEvent`.
EVENTS = {
    "VMFAULT": ("page_fault", "page_fault:vmfault"),
    "THERMAL_THROTTLE": ("thermal", "thermal:throttle"),
    "GPU_PRE_RESET": ("reset_begin", "reset_begin:driver"),
    "GPU_POST_RESET": ("reset_ok", "reset_ok:driver"),
    "RING_HANG": ("ring_timeout", "ring_timeout:driver"),
}
EVENT_NUMBERS = {1: "VMFAULT", 2: "THERMAL_THROTTLE", 3: "GPU_PRE_RESET", 4: "GPU_POST_RESET"}
"""Numbers that all releases share, for scenarios."""
