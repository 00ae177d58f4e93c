"""Which NVML answer fills which field of `GpuReading`, tier by tier, as tables that `collectors.nvidia` works through.

Ids and bit positions are those of nvml.h; the name beside each id is the header's, without its prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from collectors.device import Tier
from passmuster.records import INT64_MAX

U32_MAX = 2**32 - 1

Decode = Callable[[Any], Any]
"""Turns one raw answer into a value in base units, or into None where the answer is a vendor sentinel."""


def count(raw: Any) -> int | None:
    """Return a counter; None for all-ones of 32 or 64 bits and for what no counter can be."""
    number = int(raw)
    return None if number in (U32_MAX, 2**64 - 1) or not 0 <= number <= INT64_MAX else number


def milli(raw: Any) -> float | None:
    """Return watts or joules from milliwatts or millijoules."""
    number = count(raw)
    return None if number is None else number / 1000


def celsius(raw: Any) -> float | None:
    """Return a temperature; None outside of what silicon can be at and answer."""
    number = int(raw)
    return float(number) if -100 < number < 256 else None


def megahertz(raw: Any) -> float | None:
    """Return hertz from megahertz."""
    number = count(raw)
    return None if number is None else number * 1e6


def percent(raw: Any) -> float | None:
    """Return a ratio from per cent; None above 100."""
    number = float(raw)
    return number / 100 if 0.0 <= number <= 100.0 else None


def nanoseconds(raw: Any) -> float | None:
    """Return seconds from nanoseconds."""
    number = count(raw)
    return None if number is None else number / 1e9


def flag(raw: Any) -> bool | None:
    """Return a truth value from 0 or 1."""
    return {0: False, 1: True}.get(int(raw))


def bit_error_ratio(raw: Any) -> float | None:
    """Return a bit error rate: mantissa in bits 8 to 11, negative power of ten in bits 0 to 7 (NVML_NVLINK_BER_*)."""
    number = count(raw)
    return None if number is None else ((number >> 8) & 0xF) * 10.0 ** -(number & 0xFF)


RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex_domain",
    "bus_reset",
    "system_reboot",
)


def recovery_action(raw: Any) -> str | None:
    """Return the name of NVML_GPU_RECOVERY_ACTION_*; a number that is not known passes through."""
    number = count(raw)
    if number is None:
        return None
    return RECOVERY_ACTIONS[number] if number < len(RECOVERY_ACTIONS) else str(number)


# nvmlClocksEventReason*; hw_slowdown is set together with hw_thermal and power_brake.
CLOCK_REASONS = {
    0x1: "idle",
    0x2: "app_clocks",
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
    0x100: "display",
}


def clock_reasons(raw: Any) -> dict[str, float] | None:
    """Return 1.0 or 0.0 per reason that may hold the clocks down."""
    number = count(raw)
    if number is None:
        return None
    return {name: 1.0 if number & bit else 0.0 for bit, name in CLOCK_REASONS.items()}


class Call(NamedTuple):
    """One NVML call; ``decode`` gives one value per field, in their order."""

    function: str
    arguments: tuple[int, ...]
    fields: tuple[str, ...]
    decode: Callable[[Any], tuple[Any, ...]]


def one(decode: Decode) -> Callable[[Any], tuple[Any, ...]]:
    """Lift a decoder of one value to the form that `Call` wants."""
    return lambda raw: (decode(raw),)


def _ecc(kind: int, scope: int, field: str) -> Call:
    return Call("nvmlDeviceGetTotalEccErrors", (kind, scope), (field,), one(count))


# Tiers follow what `python -m collectors.recording record` prints; all of it is CPU time of the caller. Medians on an
# H200, driver 580.159.04, in ms: fast tier 0.2 together; energy 3.3, PCIe errors 2 to 3, throttle times 1.5, GPM 0.2.
CALLS: dict[Tier, tuple[Call, ...]] = {
    Tier.FAST: (
        Call("nvmlDeviceGetTemperature", (0,), ("temperature_core_celsius",), one(celsius)),
        # A mean over about a second from Ampere on; the instant value is field 186.
        Call("nvmlDeviceGetPowerUsage", (), ("power_average_watts",), one(milli)),
        Call("nvmlDeviceGetEnforcedPowerLimit", (), ("power_limit_watts",), one(milli)),
        Call("nvmlDeviceGetClockInfo", (0,), ("clock_graphics_hertz",), one(megahertz)),
        Call("nvmlDeviceGetClockInfo", (1,), ("clock_sm_hertz",), one(megahertz)),
        Call("nvmlDeviceGetClockInfo", (2,), ("clock_memory_hertz",), one(megahertz)),
        Call("nvmlDeviceGetCurrentClocksEventReasons", (), ("throttle_ratio",), one(clock_reasons)),
        Call(
            "nvmlDeviceGetUtilizationRates",
            (),
            ("activity_compute_ratio", "activity_memory_ratio"),
            lambda raw: (percent(raw.gpu), percent(raw.memory)),
        ),
        _ecc(0, 0, "ecc_corrected_total"),
        _ecc(1, 0, "ecc_uncorrected_total"),
        _ecc(0, 1, "ecc_corrected_lifetime_total"),
        _ecc(1, 1, "ecc_uncorrected_lifetime_total"),
        Call(
            "nvmlDeviceGetRemappedRows",
            (),
            (
                "rows_remapped_corrected_total",
                "rows_remapped_uncorrected_total",
                "row_remap_pending",
                "row_remap_failed",
            ),
            lambda raw: (count(raw[0]), count(raw[1]), flag(raw[2]), flag(raw[3])),
        ),
    ),
    Tier.MIDDLE: (
        Call("nvmlDeviceGetTotalEnergyConsumption", (), ("energy_joules_total",), one(milli)),
        Call(
            "nvmlDeviceGetMemoryInfo",
            (0x02000028,),  # nvmlMemory_v2: version 1 counts the driver's reserve as used
            ("memory_total_bytes", "memory_used_bytes", "memory_reserved_bytes"),
            lambda raw: (count(raw.total), count(raw.used), count(raw.reserved)),
        ),
    ),
    Tier.SLOW: (
        Call("nvmlDeviceGetTemperatureThreshold", (0,), ("temperature_shutdown_celsius",), one(celsius)),
        Call("nvmlDeviceGetTemperatureThreshold", (1,), ("temperature_slowdown_celsius",), one(celsius)),
        Call("nvmlDeviceGetTemperatureThreshold", (2,), ("temperature_memory_limit_celsius",), one(celsius)),
        Call("nvmlDeviceGetMarginTemperature", (), ("temperature_margin_celsius",), one(celsius)),
        Call("nvmlDeviceGetMaxClockInfo", (0,), ("clock_graphics_limit_hertz",), one(megahertz)),
        Call("nvmlDeviceGetCurrPcieLinkGeneration", (), ("pcie_generation",), one(count)),
        Call("nvmlDeviceGetMaxPcieLinkGeneration", (), ("pcie_generation_max",), one(count)),
        Call("nvmlDeviceGetCurrPcieLinkWidth", (), ("pcie_width",), one(count)),
        Call("nvmlDeviceGetMaxPcieLinkWidth", (), ("pcie_width_max",), one(count)),
        Call("nvmlDeviceGetEccMode", (), ("ecc_enabled",), lambda raw: (flag(raw[0]),)),
        Call("nvmlDeviceGetMigMode", (), ("mig_enabled",), lambda raw: (flag(raw[0]),)),
        Call(
            "nvmlDeviceGetRowRemapperHistogram",
            (),
            ("row_remap_banks",),
            lambda raw: ({k: int(getattr(raw, k)) for k in ("max", "high", "partial", "low", "none")},),
        ),
        Call("nvmlDeviceGetRepairStatus", (), ("repair_pending",), lambda raw: (any(raw),)),
        Call("nvmlDeviceGetUnrepairableMemoryFlag_v1", (), ("memory_unrepairable",), one(flag)),
        # NVML tells only whether any page waits.
        Call("nvmlDeviceGetRetiredPagesPendingStatus", (), ("bad_pages_pending",), one(count)),
    ),
}


class FieldValue(NamedTuple):
    """One id of nvmlDeviceGetFieldValues; ``member`` is the key where the field is a map."""

    id: int
    field: str
    member: str | None
    decode: Decode


class Batch(NamedTuple):
    """Field values that are asked in one call."""

    name: str
    values: tuple[FieldValue, ...]


BATCHES: dict[Tier, tuple[Batch, ...]] = {
    Tier.FAST: (
        Batch(
            "instant",
            (
                FieldValue(82, "temperature_memory_celsius", None, celsius),  # MEMORY_TEMP
                FieldValue(186, "power_watts", None, milli),  # POWER_INSTANT
                FieldValue(230, "recovery_action", None, recovery_action),  # GET_GPU_RECOVERY_ACTION
            ),
        ),
    ),
    Tier.MIDDLE: (
        # One call of field values is one trip for all policies; nvmlDeviceGetViolationStatus is one trip each.
        Batch(
            "throttle",
            (
                FieldValue(74, "throttle_seconds_total", "power_cap", nanoseconds),  # PERF_POLICY_POWER
                FieldValue(75, "throttle_seconds_total", "thermal", nanoseconds),  # PERF_POLICY_THERMAL
                FieldValue(76, "throttle_seconds_total", "sync_boost", nanoseconds),
                FieldValue(77, "throttle_seconds_total", "board_limit", nanoseconds),
                FieldValue(78, "throttle_seconds_total", "low_utilization", nanoseconds),
                FieldValue(79, "throttle_seconds_total", "reliability", nanoseconds),
                FieldValue(269, "throttle_seconds_total", "sw_thermal", nanoseconds),  # CLOCKS_EVENT_REASON_*
                FieldValue(270, "throttle_seconds_total", "hw_thermal", nanoseconds),
                FieldValue(271, "throttle_seconds_total", "power_brake", nanoseconds),
            ),
        ),
    ),
    Tier.SLOW: (
        Batch(
            "pcie",
            (
                FieldValue(94, "pcie_errors_total", "replay", count),
                FieldValue(95, "pcie_errors_total", "replay_rollover", count),
                FieldValue(169, "pcie_errors_total", "recovery", count),  # PCIE_L0_TO_RECOVERY_COUNTER
                FieldValue(173, "pcie_errors_total", "correctable", count),
                FieldValue(174, "pcie_errors_total", "nak_received", count),
                FieldValue(175, "pcie_errors_total", "receiver", count),
                FieldValue(176, "pcie_errors_total", "bad_tlp", count),
                FieldValue(177, "pcie_errors_total", "nak_sent", count),
                FieldValue(178, "pcie_errors_total", "bad_dllp", count),
                FieldValue(179, "pcie_errors_total", "nonfatal", count),
                FieldValue(180, "pcie_errors_total", "fatal", count),
                FieldValue(181, "pcie_errors_total", "unsupported_request", count),
                FieldValue(182, "pcie_errors_total", "lcrc", count),
                FieldValue(183, "pcie_errors_total", "lane", count),
            ),
        ),
        Batch(
            "pcie_bytes",
            (
                FieldValue(197, "pcie_transmit_bytes_total", None, int),  # PCIE_COUNT_TX_BYTES, 32 bits, wraps
                FieldValue(198, "pcie_receive_bytes_total", None, int),
            ),
        ),
    ),
}
WRAPPING = {"pcie_transmit_bytes_total", "pcie_receive_bytes_total"}

# Asked per link (scopeId), from NVLink 5 on; BER values are encoded and never summed.
LINK_VALUES = (
    FieldValue(202, "link_bytes_total", "transmit", count),  # NVLINK_COUNT_XMIT_BYTES
    FieldValue(204, "link_bytes_total", "receive", count),
    FieldValue(206, "link_errors_total", "malformed_packet", count),
    FieldValue(207, "link_errors_total", "buffer_overrun", count),
    FieldValue(208, "link_errors_total", "receive", count),
    FieldValue(209, "link_errors_total", "receive_remote", count),
    FieldValue(210, "link_errors_total", "receive_general", count),
    FieldValue(211, "link_errors_total", "local_link_integrity", count),
    FieldValue(212, "link_errors_total", "transmit_discard", count),
    FieldValue(214, "link_errors_total", "recovery_failed", count),
    FieldValue(215, "link_errors_total", "recovery_event", count),
    FieldValue(219, "link_errors_total", "effective", count),
    FieldValue(220, "link_bit_error_ratio", "effective", bit_error_ratio),
    FieldValue(221, "link_errors_total", "symbol", count),
    FieldValue(222, "link_bit_error_ratio", "symbol", bit_error_ratio),
)
LINKS = 18  # NVML_NVLINK_MAX_LINKS
LINK_COUNTERS = ("replay", "recovery", "crc_flit", "crc_data", "ecc")  # NVML_NVLINK_ERROR_DL_*, up to NVLink 4

# nvmlMemoryLocation_t; from Ampere on only DRAM and SRAM answer.
ECC_PLACES = {0: "l1", 1: "l2", 2: "dram", 3: "register_file", 7: "sram"}
ECC_KINDS = {0: "corrected", 1: "uncorrected"}

# NVML_GPM_METRIC_*
GPM_METRICS = {
    2: "sm_activity_ratio",
    3: "sm_occupancy_ratio",
    5: "tensor_activity_ratio",
    10: "dram_activity_ratio",
}
GPM_MIN_SECONDS = 0.1  # nvml.h: samples closer than that give no meaningful metric

FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
# NVML_GPU_FABRIC_HEALTH_MASK_*: name, shift, width mask, and the words of the values that are not fine.
FABRIC_HEALTH: tuple[tuple[str, int, int, dict[int, str]], ...] = (
    ("degraded_bandwidth", 0, 0x3, {1: "true"}),
    ("route_recovery", 2, 0x3, {1: "true"}),
    ("route_unhealthy", 4, 0x3, {1: "true"}),
    ("access_timeout", 6, 0x3, {1: "true"}),
    (
        "misconfiguration",
        8,
        0xF,
        {
            2: "incorrect_system_guid",
            3: "incorrect_chassis_serial",
            4: "no_partition",
            5: "insufficient_nvlinks",
            6: "incompatible_gpu_firmware",
            7: "invalid_location",
            8: "gpu_state_invalid",
        },
    ),
    ("fabric_manager", 14, 0x3, {2: "disconnected"}),
)


def fabric_health(mask: int) -> dict[str, str]:
    """Return the health groups that are not fine; 0 is not supported, and in pairs 1 is true and 2 is false."""
    found = {}
    for name, shift, width, words in FABRIC_HEALTH:
        value = (mask >> shift) & width
        if value in words:
            found[name] = words[value]
        elif width == 0xF and value > max(words):
            found[name] = str(value)
    return found


ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}

# nvmlEventType*: bit -> kind and code of `FaultEvent`. Only errors are registered: all of them would flood us with
# clock changes (0x10), and single corrected errors (0x1) are counters. An XID's number is the event's data.
XID_EVENT = 0x8
EVENTS = {
    XID_EVENT: ("xid", "xid"),
    0x2: ("ras", "ras:double_bit"),
    0x200: ("ras", "ras:single_bit_storm"),
    0x400: ("bad_pages", "bad_pages:retired"),
    0x800: ("bad_pages", "bad_pages:retirement_failed"),
    0x1000: ("ras", "ras:poison_contained"),
    0x2000: ("ras", "ras:poison_fatal"),
    0x4000: ("lost", "lost:unavailable"),
    0x8000: ("other_fault", "other_fault:recovery_action"),
}
EVENT_MASK = sum(EVENTS)

_EXTRA_FIELDS: dict[Tier, tuple[str, ...]] = {
    Tier.FAST: (),
    Tier.MIDDLE: (
        "ecc_blocks_total",
        "links",
        "links_up",
        "links_total",
        "link_errors_total",
        "link_bytes_total",
        "link_bit_error_ratio",
        "processes",
        "process_memory_bytes",
    ),
    Tier.SLOW: (
        "fabric_state",
        "fabric_status",
        "fabric_health",
        "sram_threshold_exceeded",
        "bad_pages_reserved",
        *GPM_METRICS.values(),
    ),
}
TIER_FIELDS: dict[Tier, tuple[str, ...]] = {
    tier: tuple(
        dict.fromkeys(
            [field for call in CALLS[tier] for field in call.fields]
            + [value.field for batch in BATCHES[tier] for value in batch.values]
            + list(_EXTRA_FIELDS[tier])
        )
    )
    for tier in Tier
}
"""Every field of `GpuReading` that a tier answers, with a value or with a reason."""
