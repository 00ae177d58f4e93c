"""Which scenario key fills which field when the fake device plays AMD's library; the keys are AMD SMI's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from collectors.device import Tier

# All ones of 8 to 64 bits are AMD's way to say that there is no value.
SENTINELS = frozenset({0xFF, 0xFFFF, 0xFFFFFFFF, 2**64 - 1})

Decode = Callable[[str], Any]


def scaled(factor: float) -> Decode:
    """Return a decoder of a number into base units; a sentinel becomes None."""

    def decode(text: str) -> float | None:
        number = float(int(text, 0)) if text.lstrip("-").isalnum() and text != "N/A" else None
        return None if number is None or int(number) in SENTINELS else number * factor

    return decode


def whole(text: str) -> int | None:
    """Return a counter; a sentinel becomes None."""
    if text == "N/A":
        return None
    number = int(text, 0)
    return None if number in SENTINELS else number


def percent(text: str) -> float | None:
    """Return a ratio from per cent; None above 100."""
    number = whole(text)
    return None if number is None or not 0 <= number <= 100 else number / 100


class Value(NamedTuple):
    """One field, or one member of a map field, in one tier."""

    tier: Tier
    field: str
    function: str
    key: str
    decode: Decode
    member: str | None = None


def _value(
    tier: Tier, field: str, function: str, part: str = "", *, decode: Decode = whole, member: str | None = None
) -> Value:
    return Value(tier, field, function, f"{function}.{part}" if part else function, decode, member)


_FAST, _MIDDLE, _SLOW = Tier.FAST, Tier.MIDDLE, Tier.SLOW
_ECC_BLOCKS = {1: "umc", 2: "sdma", 4: "gfx", 8: "mmhub", 32: "pcie_bif", 64: "hdp", 128: "xgmi_wafl"}

AMD_VALUES: tuple[Value, ...] = (
    _value(_FAST, "power_watts", "amdsmi_get_power_info", "current_socket_power", decode=scaled(1)),
    _value(_FAST, "power_limit_watts", "amdsmi_get_power_info", "power_limit", decode=scaled(1e-6)),
    _value(_FAST, "temperature_edge_celsius", "amdsmi_get_temp_metric", "0.0", decode=scaled(1)),
    _value(_FAST, "temperature_hotspot_celsius", "amdsmi_get_temp_metric", "1.0", decode=scaled(1)),
    _value(_FAST, "temperature_memory_celsius", "amdsmi_get_temp_metric", "2.0", decode=scaled(1)),
    _value(_FAST, "clock_graphics_hertz", "amdsmi_get_clock_info", "0.clk", decode=scaled(1e6)),
    _value(_FAST, "clock_memory_hertz", "amdsmi_get_clock_info", "4.clk", decode=scaled(1e6)),
    _value(_FAST, "activity_compute_ratio", "amdsmi_get_gpu_activity", "gfx_activity", decode=percent),
    _value(_FAST, "activity_memory_ratio", "amdsmi_get_gpu_activity", "umc_activity", decode=percent),
    _value(_MIDDLE, "memory_total_bytes", "amdsmi_get_gpu_memory_total", "0.0"),
    _value(_MIDDLE, "memory_used_bytes", "amdsmi_get_gpu_memory_usage", "0.0"),
    _value(_MIDDLE, "ecc_corrected_total", "amdsmi_get_gpu_total_ecc_count", "correctable_count"),
    _value(_MIDDLE, "ecc_uncorrected_total", "amdsmi_get_gpu_total_ecc_count", "uncorrectable_count"),
    _value(_MIDDLE, "ecc_deferred_total", "amdsmi_get_gpu_total_ecc_count", "deferred_count"),
    *(
        _value(
            _MIDDLE, "ecc_blocks_total", "amdsmi_get_gpu_ecc_count", f"{number}.{part}", member=f"{block}.{severity}"
        )
        for number, block in _ECC_BLOCKS.items()
        for part, severity in (
            ("correctable_count", "corrected"),
            ("uncorrectable_count", "uncorrected"),
            ("deferred_count", "deferred"),
        )
    ),
    _value(_MIDDLE, "link_error_status", "amdsmi_gpu_xgmi_error_status"),
    _value(_SLOW, "pcie_width", "amdsmi_get_pcie_info", "pcie_metric.pcie_width"),
    _value(_SLOW, "pcie_width_max", "amdsmi_get_pcie_info", "pcie_static.max_pcie_width"),
    _value(_SLOW, "bad_pages_limit", "amdsmi_get_gpu_bad_page_threshold"),
    _value(_SLOW, "compute_partition", "amdsmi_get_gpu_compute_partition", decode=str),
    _value(_SLOW, "memory_partition", "amdsmi_get_gpu_memory_partition", decode=str),
)
AMD_TIER_FIELDS: dict[Tier, tuple[str, ...]] = {
    tier: tuple(dict.fromkeys(value.field for value in AMD_VALUES if value.tier is tier)) for tier in Tier
}
AMD_IDENTITY = {
    "serial": ("amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_asic_info.asic_serial"),
    "uuid": ("amdsmi_get_gpu_device_uuid", "uuid"),
    "model": ("amdsmi_get_gpu_asic_info", "amdsmi_get_gpu_asic_info.market_name"),
    "vbios": ("amdsmi_get_gpu_vbios_info", "amdsmi_get_gpu_vbios_info.version"),
    "driver": ("amdsmi_get_gpu_driver_info", "amdsmi_get_gpu_driver_info.driver_version"),
    "board_part_number": ("amdsmi_get_gpu_board_info", "amdsmi_get_gpu_board_info.model_number"),
}
