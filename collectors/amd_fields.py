"""Which AMD SMI answer fills which field, tier by tier, as tables that `collectors.amd_reading` works through.

Keys are those of the dicts that the Python binding returns; where releases differ, all spellings stand side by side.
Calls of one tier stand by preference: a later one fills only what earlier ones left open, and is not made otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from collectors.amd_decode import (
    ENERGY_UNIT_JOULES,
    Decode,
    architecture,
    celsius,
    count,
    counter,
    energy,
    fabric_state,
    firmware,
    generation,
    hbm,
    hive,
    link_bytes,
    links,
    links_total,
    links_up,
    mean_megahertz,
    megahertz,
    metrics_link_bytes,
    microwatts,
    pages,
    percent,
    process_count,
    process_memory,
    scaled,
    serial,
    watts,
    words,
)
from collectors.device import Tier


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

METRICS_KEYS = frozenset(
    {
        key
        for calls in CALLS.values()
        for call in calls
        if call.function == METRICS
        for read in call.reads
        for key in read.keys
    }
    | {"accumulation_counter", "xgmi_read_data_acc", "xgmi_write_data_acc"}
    | set(RESIDENCIES.values())
) - {""}
"""What of gpu_metrics some field needs, without the counters per die."""

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
