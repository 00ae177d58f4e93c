"""What a planted fault makes of healthy readings, as a function of how long it has been at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from collectors.simulated_models import DeviceModel
from passmuster.records import Vendor

NVIDIA, AMD = Vendor.NVIDIA, Vendor.AMD

Row = dict[str, Any]
"""One device's or host's fields at one tick, by name."""


class Strike(Struct, frozen=True):
    """How long a fault has been at work, as seen from one tick."""

    seconds: float  # since it struck, no longer than it lasted
    active: bool  # False: over, but its counters stay until the next boot
    busy: bool  # a job runs on the host
    device: int  # the device that is hit
    model: DeviceModel


Effect = Callable[[Row, Strike], None]
"""Changes a healthy row into what the fault makes of it; called for each tick while the host is in the same boot."""


def _add(row: Row, field: str, key: str, count: float) -> None:
    row[field] = {**(row[field] or {}), key: (row[field] or {}).get(key, 0) + int(count)}


def _uncorrected(row: Row, count: int) -> None:
    row["ecc_uncorrected_total"] += count
    row["ecc_uncorrected_lifetime_total"] += count
    _add(row, "ecc_blocks_total", "dram.uncorrected", count)


def remap_pending(row: Row, strike: Strike) -> None:
    """An uncontained DRAM error: counted, its row waits for a reset, and the driver asks for one."""
    _uncorrected(row, 1)
    row["rows_remapped_uncorrected_total"] += 1
    row["row_remap_pending"] = True
    if strike.active:
        row["recovery_action"] = "gpu_reset"


def contained(row: Row, _: Strike) -> None:
    """A contained DRAM error: counted, its row waits for a reset."""
    _uncorrected(row, 1)
    row["rows_remapped_uncorrected_total"] += 1
    row["row_remap_pending"] = True


def remap_failed(row: Row, _: Strike) -> None:
    """A DRAM error whose row could not be replaced."""
    _uncorrected(row, 1)
    row["row_remap_failed"] = True


def no_spare_rows(row: Row, strike: Strike) -> None:
    """A bank of memory used its last spare row."""
    banks = strike.model.row_remap_banks or 0
    row["rows_remapped_uncorrected_total"] += 8
    row["row_remap_banks"] = {"max": banks - 4, "high": 1, "partial": 1, "low": 1, "none": 1}


def sram_threshold(row: Row, _: Strike) -> None:
    """SRAM errors beyond the vendor's threshold."""
    row["ecc_uncorrected_total"] += 4
    row["ecc_uncorrected_lifetime_total"] += 4
    _add(row, "ecc_blocks_total", "sram.uncorrected", 4)
    row["sram_threshold_exceeded"] = True


def corrected_storm(row: Row, strike: Strike) -> None:
    """Forty corrected errors a second."""
    count = int(strike.seconds * 40)
    row["ecc_corrected_total"] += count
    if row.get("ecc_corrected_lifetime_total") is not None:
        row["ecc_corrected_lifetime_total"] += count
    block = "dram" if strike.model.vendor is NVIDIA else "umc"
    _add(row, "ecc_blocks_total", f"{block}.corrected", count)


def umc(row: Row, _: Strike) -> None:
    """Two uncorrectable HBM errors; their pages wait for a reload."""
    row["ecc_uncorrected_total"] += 2
    _add(row, "ecc_blocks_total", "umc.uncorrected", 2)
    row["bad_pages_pending"] = 2


def deferred(row: Row, _: Strike) -> None:
    """One deferred HBM error; its page waits for a reload."""
    row["ecc_deferred_total"] += 1
    _add(row, "ecc_blocks_total", "umc.deferred", 1)
    row["bad_pages_pending"] = 1


def bad_page_limit(row: Row, strike: Strike) -> None:
    """More bad pages than the vendor's limit, one of which could not be reserved."""
    limit = strike.model.bad_page_limit or 0
    row["bad_pages_reserved"] = limit + 1
    row["bad_pages_unreservable"] = 1


def firmware_dead(row: Row, strike: Strike) -> None:
    """No work gets done, and an NVIDIA driver asks for a reset."""
    if strike.active:
        for field in ("activity_compute_ratio", "activity_compute_min_ratio", "activity_compute_max_ratio"):
            row[field] = 0.0
        if strike.model.vendor is NVIDIA:
            row["recovery_action"] = "gpu_reset"


def _slow_clocks(row: Row, share: float) -> None:
    for field in ("clock_graphics_hertz", "clock_graphics_min_hertz", "clock_graphics_max_hertz", "clock_sm_hertz"):
        if row.get(field) is not None:
            row[field] = round(row[field] * share / 15e6) * 15e6
    for field in ("power_watts", "power_min_watts", "power_max_watts", "power_average_watts"):
        row[field] = round(row[field] * (0.35 + 0.65 * share), 1)


def hot(row: Row, strike: Strike) -> None:
    """Under load, heat to the slowdown temperature, then clocks that hold it there."""
    if not (strike.active and strike.busy):
        return
    nvidia = strike.model.vendor is NVIDIA
    sensor = "core" if nvidia else "hotspot"
    # Heat builds up over minutes and then stands at the slowdown limit, held there by the lower clocks.
    reached = min(1.0, strike.seconds / 180.0)
    healthy = row[f"temperature_{sensor}_celsius"]
    hot = round(healthy + (strike.model.slowdown + 1 - healthy) * reached)
    row[f"temperature_{sensor}_celsius"] = row[f"temperature_{sensor}_max_celsius"] = hot
    row["temperature_memory_celsius"] = row["temperature_memory_max_celsius"] = min(
        hot + 4, strike.model.memory_limit - 1
    )
    if nvidia:
        row["temperature_margin_celsius"] = strike.model.slowdown - hot
    if reached < 1.0:
        return
    _slow_clocks(row, 0.6)
    names = ("sw_thermal", "hw_thermal", "hw_slowdown") if nvidia else ("socket_thermal", "hbm_thermal", "prochot")
    row["throttle_ratio"] = dict.fromkeys(row["throttle_ratio"], 0.0) | {names[0]: 0.9, names[1]: 0.5, names[2]: 0.5}
    seconds = strike.seconds - 180.0
    for name, share in zip(names, (0.9, 0.5, 0.5), strict=True):
        row["throttle_seconds_total"] = row["throttle_seconds_total"] | {
            name: round(row["throttle_seconds_total"].get(name, 0.0) + share * seconds, 3)
        }


def power_brake(row: Row, strike: Strike) -> None:
    """The power brake holds clocks and power down."""
    if not strike.active:
        return
    if strike.busy:
        _slow_clocks(row, 0.45)
    row["throttle_ratio"] = dict.fromkeys(row["throttle_ratio"], 0.0) | {"power_brake": 1.0, "hw_slowdown": 1.0}
    row["throttle_seconds_total"] = row["throttle_seconds_total"] | {"power_brake": round(strike.seconds, 3)}


def half_width(row: Row, strike: Strike) -> None:
    """Half of the PCIe lanes are gone."""
    if strike.active:
        row["pcie_width"] = 8


def replay_storm(row: Row, strike: Strike) -> None:
    """PCIe replays, several a second."""
    kinds = (
        {"replay": 6.0, "bad_tlp": 5.0, "nak_sent": 5.0}
        if strike.model.vendor is NVIDIA
        else {"replay": 6.0, "nak_sent": 5.0}
    )
    for kind, per_second in kinds.items():
        _add(row, "pcie_errors_total", kind, strike.seconds * per_second)


def aer(row: Row, strike: Strike) -> None:
    """The host counts corrected PCIe errors of the device."""
    _add(row, "aer_errors_total", f"{strike.model.pci_address(strike.device)}.correctable", strike.seconds * 6.0)


def link_down(row: Row, strike: Strike) -> None:
    """Link 3 to the siblings is down."""
    if strike.active:
        row["links_up"] -= 1
        row["links"] = row["links"] | {"3": 0}
    if strike.model.vendor is AMD:
        row["link_error_status"] = 2
        _add(row, "ecc_blocks_total", "xgmi_wafl.uncorrected", 1)
        row["ecc_uncorrected_total"] += 1


def link_errors(row: Row, strike: Strike) -> None:
    """CRC errors on link 11, which stays up."""
    errors = int(strike.seconds * 20)
    row["link_errors_total"] = row["link_errors_total"] | {
        "11.crc_flit": errors,
        "all.crc_flit": row["link_errors_total"]["all.crc_flit"] + errors,
        "11.replay": errors // 8,
        "all.replay": row["link_errors_total"]["all.replay"] + errors // 8,
    }


def fabric_manager(row: Row, strike: Strike) -> None:
    """The fabric manager failed."""
    if strike.active:
        row["services"] = row["services"] | {"nvidia-fabricmanager": "failed"}


def fabric_lost(row: Row, strike: Strike) -> None:
    """The device has not joined its fabric."""
    if strike.active:
        row["fabric_state"] = "in_progress"


def drain_and_reset(row: Row, strike: Strike) -> None:
    """The driver asks to drain and reset the device."""
    if strike.active:
        row["recovery_action"] = "drain_and_reset"


FLAP_SECONDS = 60.0


def nic_flap(row: Row, strike: Strike) -> None:
    """One port goes down and up once a minute and counts symbol errors."""
    port = "mlx5_2/1"
    if strike.active and strike.seconds % FLAP_SECONDS < FLAP_SECONDS / 2:
        row["nic_links"] = row["nic_links"] | {port: "down"}
    _add(row, "nic_errors_total", f"{port}.link_downed", 1 + strike.seconds // FLAP_SECONDS)
    _add(row, "nic_errors_total", f"{port}.symbol_error", strike.seconds * 3)
