"""What one simulated GPU answers at one instant, healthy, from the load of its host."""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

from collectors.simulated_models import (
    BLOCKS,
    HBM_STACKS,
    MHZ,
    MISSING,
    PCIE_ERRORS,
    THROTTLE_REASONS,
    DeviceModel,
)
from passmuster.records import Vendor

TICK_SECONDS = 10
BUSY_SHARE_OF_LIMIT = 0.94  # of the power limit, at full load
LINK_BYTES_PER_SECOND = 18e9  # of one xGMI link at full load
PCIE_BYTES_PER_SECOND = 2.4e9


class Device(Struct, frozen=True, kw_only=True):
    """One board: who it is and how it differs from its siblings."""

    device_id: str
    model: DeviceModel
    index: int
    vigour: float  # its power at full load, against the model's
    warmth: float  # Celsius above its siblings, by its place in the air or water
    corrected_per_day: float
    lifetime_corrected: int
    bad_pages: int


class Load(Struct):
    """What the host's devices do at one tick; all devices of a host share a job."""

    inlet_celsius: float
    uptime_seconds: float
    level: float = 0.0  # 0 idle to 1 full load
    warm: float = 0.0  # `level` as heat has followed it
    work_seconds: float = 0.0  # integral of `level` since boot
    memory_share: float = 0.0
    busy: bool = False


def make_device(model: DeviceModel, index: int, random: Random) -> Device:
    """Draw one board. Its id has the form of the vendor's serial numbers."""
    nvidia = model.vendor is Vendor.NVIDIA
    return Device(
        device_id=f"165{random.randrange(10**10):010d}" if nvidia else f"{random.randrange(16**16):016X}",
        model=model,
        index=index,
        vigour=random.uniform(0.965, 1.0),
        warmth=random.gauss(0.0, 1.2) + (index % 4) * 0.8,
        # Most boards show none in weeks, a few one or more a day.
        corrected_per_day=random.choice((0.0, 0.0, 0.0, 0.0, 0.2, 1.5)),
        lifetime_corrected=random.choice((0, 0, 0, 2, 9)),
        bad_pages=random.choice((0, 0, 0, 1, 3)),
    )


def constants(model: DeviceModel) -> dict[str, Any]:
    """Return the fields that a healthy device of this model answers with the same value at every tick."""
    nvidia = model.vendor is Vendor.NVIDIA
    fields: dict[str, Any] = {
        "vendor": model.vendor.value,
        "model": model.name,
        "interval_seconds": float(TICK_SECONDS),
        "samples": TICK_SECONDS,
        "state": "ok",
        "epoch": 0,
        "power_limit_watts": model.power_limit,
        "temperature_slowdown_celsius": model.slowdown,
        "temperature_shutdown_celsius": model.shutdown,
        "temperature_memory_limit_celsius": model.memory_limit,
        "clock_graphics_limit_hertz": model.clock_limit,
        "memory_total_bytes": model.memory_bytes,
        "ecc_enabled": True,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "links_up": model.links,
        "links_total": model.links,
        "links": {str(link): 1 for link in range(model.links)},
        "fabric_state": "completed",
        "missing": MISSING[model.vendor],
    }
    if nvidia:
        fields |= {
            "memory_reserved_bytes": model.reserved_bytes,
            "ecc_uncorrected_total": 0,
            "ecc_uncorrected_lifetime_total": 0,
            "sram_threshold_exceeded": False,
            "rows_remapped_corrected_total": 0,
            "rows_remapped_uncorrected_total": 0,
            "row_remap_pending": False,
            "row_remap_failed": False,
            "row_remap_banks": {"max": model.row_remap_banks, "high": 0, "partial": 0, "low": 0, "none": 0},
            "repair_pending": False,
            "memory_unrepairable": False,
            "link_errors_total": {"all.replay": 0, "all.recovery": 0, "all.crc_flit": 0},
            "fabric_status": 0,
            "fabric_health": {},
            "recovery_action": "none",
            "mig_enabled": False,
        }
    else:
        fields |= {
            "ecc_uncorrected_total": 0,
            "ecc_deferred_total": 0,
            "bad_pages_pending": 0,
            "bad_pages_unreservable": 0,
            "bad_pages_limit": model.bad_page_limit,
            "link_error_status": 0,
            "compute_partition": "SPX",
            "memory_partition": "NPS1",
            "clock_soc_hertz": model.clock_soc,
        }
    return fields


def reading(device: Device, load: Load, random: Random) -> dict[str, Any]:
    """Return the fields that change from tick to tick, by name in GpuReading's units."""
    model, level = device.model, load.level
    nvidia = model.vendor is Vendor.NVIDIA
    span = (BUSY_SHARE_OF_LIMIT * model.power_limit - model.power_idle) * device.vigour
    noise = random.gauss(0.0, 1.0)
    power = model.power_idle + span * level + noise * (0.8 + 0.012 * model.power_limit * level)
    power = min(power, model.power_limit)
    # Steps of a second or two swing the power within the interval; the limit clips the upper end.
    swing = (0.02 + 0.08 * level) * span * (0.8 + 0.4 * random.random())
    highest = min(power + swing, model.power_limit * 1.01)
    clipped = 0.2 if level > 0.9 and highest >= model.power_limit * 0.99 else 0.0
    heat = model.power_idle + span * load.warm
    core = load.inlet_celsius + device.warmth + model.celsius_per_watt * heat + random.random()
    memory = core + (6 if nvidia else -9) + 4 * load.warm
    if load.busy:
        clock = model.clock_limit * (1 - (1 - model.clock_busy_share) * level) + noise * 12 * MHZ
        activity = min(1.0, 0.96 + 0.04 * random.random()) if level > 0.5 else 0.3 + 0.2 * random.random()
    else:
        clock, activity = model.clock_idle, 0.0
    clock = round(clock / (15 * MHZ)) * 15 * MHZ
    corrected = int(device.corrected_per_day * load.uptime_seconds / 86_400)
    grown = load.uptime_seconds / 86_400
    row: dict[str, Any] = {
        "power_watts": round(power, 1),
        "power_min_watts": round(max(power - swing, model.power_idle * 0.9), 1),
        "power_max_watts": round(highest, 1),
        "power_average_watts": round(min(power + random.gauss(0.0, 1.0) * 2, model.power_limit), 1),
        "energy_joules_total": round(model.power_idle * load.uptime_seconds + span * load.work_seconds, 1),
        "temperature_memory_celsius": float(round(memory)),
        "temperature_memory_max_celsius": float(round(memory + 0.4)),
        "clock_graphics_hertz": clock,
        "clock_graphics_min_hertz": clock - (45 * MHZ if load.busy else 0.0),
        "clock_graphics_max_hertz": min(clock + (60 * MHZ if load.busy else 0.0), model.clock_limit),
        "clock_memory_hertz": model.clock_memory if load.busy else model.clock_memory_idle,
        "activity_compute_ratio": round(activity, 2),
        "activity_compute_min_ratio": round(activity * 0.9, 2),
        "activity_compute_max_ratio": round(min(1.0, activity * 1.05), 2),
        "activity_memory_ratio": round(0.55 * level * device.vigour, 2),
        "memory_used_bytes": int(model.memory_bytes * load.memory_share) + (0 if nvidia else 297 * 2**20),
        "processes": int(load.busy),
        "process_memory_bytes": int(model.memory_bytes * load.memory_share),
        "ecc_corrected_total": corrected,
        "ecc_blocks_total": {
            f"{block}.{severity}": corrected if (place, severity) == (0, "corrected") else 0
            for place, block in enumerate(BLOCKS[model.vendor])
            for severity in (("corrected", "uncorrected") if nvidia else ("corrected", "uncorrected", "deferred"))
        },
        # Idle boards retrain now and then; a link shows a handful of errors a day.
        "pcie_errors_total": {
            k: int(v * min(1.0, grown / 5)) + int(v * grown / 30) for k, v in PCIE_ERRORS[model.vendor].items()
        },
    }
    if nvidia:
        row |= {
            "temperature_core_celsius": float(round(core)),
            "temperature_core_max_celsius": float(round(core + 0.4)),
            "temperature_margin_celsius": float(round(model.slowdown - core)),
            "clock_sm_hertz": clock,
            "sm_activity_ratio": round(0.9 * level * activity, 3),
            "sm_occupancy_ratio": round(0.24 * level * activity, 3),
            "tensor_activity_ratio": round(0.46 * level * activity, 3),
            "dram_activity_ratio": round(0.5 * level * device.vigour, 3),
            "ecc_corrected_lifetime_total": device.lifetime_corrected + corrected,
            "pcie_transmit_bytes_total": int(load.work_seconds * PCIE_BYTES_PER_SECOND),
            "pcie_receive_bytes_total": int(load.work_seconds * PCIE_BYTES_PER_SECOND * 1.7),
            "throttle_ratio": dict.fromkeys(THROTTLE_REASONS[Vendor.NVIDIA], 0.0)
            | {"power_cap": clipped, "idle": 0.0 if load.busy else 1.0},
            "throttle_seconds_total": {
                "power_cap": round(0.04 * load.work_seconds, 3),
                "sw_thermal": 0.0,
                "hw_thermal": 0.0,
                "power_brake": 0.0,
            },
        }
    else:
        links = range(model.links)
        moved = int(load.work_seconds * LINK_BYTES_PER_SECOND)
        row |= {
            "temperature_hotspot_celsius": float(round(core)),
            "temperature_hotspot_max_celsius": float(round(core + 0.4)),
            "temperature_hbm_celsius": {str(s): float(round(memory + (s % 3) - 1)) for s in range(HBM_STACKS)},
            "bad_pages_reserved": device.bad_pages,
            "throttle_ratio": dict.fromkeys(THROTTLE_REASONS[Vendor.AMD], 0.0) | {"ppt": clipped},
            "throttle_seconds_total": dict.fromkeys(THROTTLE_REASONS[Vendor.AMD], 0.0)
            | {"ppt": round(0.04 * load.work_seconds, 3)},
            "link_bytes_total": {f"{n}.{way}": moved + n * 4096 for n in links for way in ("read", "write")},
        }
    return row
