"""Readings of healthy hosts of both vendors, to plant faults in."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from detectors.engine import Engine
from passmuster.batch import Batch
from passmuster.config import Config
from passmuster.records import KINDS, Finding

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND

MODELS = {"nvidia": "NVIDIA H200", "amd": "AMD Instinct MI300X"}


class Rig:
    """One host of one vendor: makes its rows at a time that the caller moves, and feeds an engine.

    Values are believable, not measured: power near the limit under load, counters with a healthy background, clocks and
    PCIe links that rest when idle. ``plant`` overrides columns of one device from then on.
    """

    def __init__(self, vendor: str, engine: Engine, *, host: str = "h1", gpus: int = 8, seed: int = 1) -> None:
        self.vendor, self.engine, self.host, self.gpus = vendor, engine, host, gpus
        self.random = random.Random(f"{vendor}/{host}/{seed}")
        self.now = START
        self.boot, self.booted_at = 1, START - 3600 * SECOND
        self.busy = True
        self.epoch = 0
        self.planted: dict[int, dict[str, Any]] = {}
        self.energy = [1e6 * (1 + i) for i in range(gpus)]
        self.background = [self.random.randrange(50) for _ in range(gpus)]

    def device(self, i: int) -> str:
        """Return the id of one device."""
        return f"{self.vendor}-{self.host}-{i}"

    def plant(self, i: int, **columns: Any) -> None:
        """Override columns of one device from now on."""
        self.planted.setdefault(i, {}).update(columns)

    def heal(self, i: int) -> None:
        """Take everything that was planted in one device away."""
        self.planted.pop(i, None)

    def batch(self, kind: str, rows: list[dict[str, Any]]) -> Batch:
        """Return rows as a batch of this host and boot."""
        names = {n for row in rows for n in row}
        columns = {n: [row.get(n) for row in rows] for n in names}
        return Batch(kind, KINDS[kind].VERSION, "c1", self.host, f"boot-{self.boot}", 0, len(rows), columns)

    def _gpu(self, i: int) -> dict[str, Any]:
        noise = self.random.gauss
        busy = self.busy
        limit = 700.0 if self.vendor == "nvidia" else 750.0
        power = min(limit, limit * 0.985 + noise(0, 3)) if busy else 110.0 + noise(0, 2)
        if self.vendor == "amd":
            power = float(round(power))
        self.energy[i] += power * 10
        if self.random.random() < 0.01:
            self.background[i] += 1
        row: dict[str, Any] = {
            "observed_at": self.now,
            "device_id": self.device(i),
            "vendor": self.vendor,
            "model": MODELS[self.vendor],
            "pci_address": f"0000:{16 + i:02x}:00.0",
            "index": i,
            "state": "ok",
            "interval_seconds": 10.0,
            "samples": 10,
            "epoch": self.epoch,
            "power_watts": power,
            "power_min_watts": power - abs(noise(0, 20)),
            "power_max_watts": power + abs(noise(0, 5)),
            "power_limit_watts": limit,
            "energy_joules_total": self.energy[i],
            "temperature_memory_celsius": float(round((72 if busy else 42) + noise(0, 1))),
            "clock_graphics_hertz": 1e6 * round((1600 if busy else 345) + (noise(0, 30) if busy else 0)),
            "activity_compute_ratio": min(1.0, 0.95 + self.random.random() / 10) if busy else 0.0,
            "memory_used_bytes": 10**11 if busy else 10**8,
            "ecc_corrected_total": self.background[i],
            "ecc_uncorrected_total": 0,
            "pcie_generation": 5 if busy else 1,
            "pcie_generation_max": 5,
            "pcie_width": 16,
            "pcie_width_max": 16,
            "processes": 1 if busy else 0,
        }
        core = float(round((66 if busy else 32) + noise(0, 1)))
        if self.vendor == "nvidia":
            row |= {
                "temperature_core_celsius": core,
                "temperature_slowdown_celsius": 89.0,
                "temperature_shutdown_celsius": 95.0,
                "temperature_memory_limit_celsius": 95.0,
                "throttle_ratio": {"power_cap": 0.8} if busy else {"idle": 1.0},
                "ecc_blocks_total": {
                    "dram.corrected": self.background[i],
                    "dram.uncorrected": 0,
                    "sram.uncorrected": 0,
                },
                "ecc_uncorrected_lifetime_total": 3,
                "sram_threshold_exceeded": False,
                "row_remap_pending": False,
                "row_remap_failed": False,
                "row_remap_banks": {"max": 3071, "high": 1, "partial": 0, "low": 0, "none": 0},
                "rows_remapped_uncorrected_total": 1,
                "repair_pending": False,
                "memory_unrepairable": False,
                "pcie_errors_total": {"receiver": 29, "bad_tlp": 32, "recovery": 731 + self.background[i] * 9},
                "links_up": 18,
                "links_total": 18,
                "link_errors_total": {"0.replay": 0, "1.recovery": self.background[i] // 20},
                "fabric_state": "completed",
                "fabric_status": 0,
                "recovery_action": "none",
            }
        else:
            row |= {
                "temperature_hotspot_celsius": core + 12,
                "temperature_slowdown_celsius": 100.0,
                "temperature_shutdown_celsius": 110.0,
                "temperature_memory_limit_celsius": 105.0,
                "throttle_ratio": {"ppt": 0.6, "prochot": 0.0} if busy else {},
                "ecc_blocks_total": {"umc.corrected": self.background[i], "umc.uncorrected": 0, "gfx.uncorrected": 0},
                "ecc_deferred_total": 0,
                "bad_pages_reserved": 2,
                "bad_pages_pending": 0,
                "bad_pages_unreservable": 0,
                "bad_pages_limit": 256,
                "pcie_errors_total": {"replay": self.background[i]},
                "links_up": 7,
                "links_total": 7,
                "link_error_status": 0,
            }
        return row | self.planted.get(i, {})

    def step(self, seconds: float = 10.0, *, ticked: bool = True) -> list[Finding]:
        """Let time pass and feed one row of each device; return what the engine answers."""
        found = self.engine.feed(self.readings(seconds), self.now)
        return found + (self.engine.tick(self.now) if ticked else [])

    def readings(self, seconds: float = 10.0) -> Batch:
        """Let time pass and return one row of each device."""
        self.now += int(seconds * SECOND)
        rows = [self._gpu(i) for i in range(self.gpus)]
        return self.batch("gpu_reading", [row for row in rows if row.pop("present", True)])

    def steps(self, count: int) -> list[Finding]:
        """Do several steps of ten seconds."""
        return [f for _ in range(count) for f in self.step()]

    def host_reading(self, **columns: Any) -> list[Finding]:
        """Feed one host reading now."""
        row = {
            "observed_at": self.now,
            "uptime_seconds": (self.now - self.booted_at) / SECOND,
            "gpus_expected": {self.vendor: self.gpus},
            "gpus_seen": {self.vendor: self.gpus},
            "services": {"nvidia-fabricmanager": "active" if self.vendor == "nvidia" else "absent"},
            "nic_links": {"mlx5_0/1": "ACTIVE"},
            "nic_errors_total": {"mlx5_0/1.symbol_error": 3, "mlx5_0/1.link_downed": 1},
            "aer_errors_total": {"0000:10:00.0.fatal": 0, "0000:10:00.0.nonfatal": 0},
        }
        return self.engine.feed(self.batch("host_reading", [row | columns]), self.now)

    def host_readings(self, count: int, **columns: Any) -> list[Finding]:
        """Feed host readings ten seconds apart."""
        found = []
        for _ in range(count):
            self.now += 10 * SECOND
            found += self.host_reading(**columns)
        return found

    def fault(self, i: int | None, code: str, letter: str, severity: str = "error", **columns: Any) -> list[Finding]:
        """Feed one fault event now, about a device or (None) the host."""
        row = {
            "observed_at": self.now,
            "device_id": "" if i is None else self.device(i),
            "vendor": self.vendor if i is not None else "host",
            "model": MODELS[self.vendor] if i is not None else "",
            "pci_address": None if i is None else f"0000:{16 + i:02x}:00.0",
            "source": "kernel_log",
            "kind": code.partition(":")[0],
            "code": code,
            "fault_class": letter,
            "severity": severity,
            "blame": "unclear",
            "secondary": False,
            "count": 1,
            "first_at": self.now,
            "last_at": self.now,
            "text": f"a line about {code}",
            "trust": "kernel",
        }
        return self.engine.feed(self.batch("fault_event", [row | columns]), self.now)

    def reboot(self, down_seconds: float = 240.0) -> None:
        """Let the host go down and come up with another boot id; counters begin again."""
        self.now += int(down_seconds * SECOND)
        self.boot += 1
        self.booted_at = self.now
        self.background = [0] * self.gpus
        self.energy = [0.0] * self.gpus
        self.epoch = 0

    def reload_driver(self) -> None:
        """Restart the counters within the boot."""
        self.epoch += 1
        self.background = [0] * self.gpus
        self.energy = [0.0] * self.gpus


MakeRig = Callable[..., Rig]


@pytest.fixture(scope="session")
def make_rig() -> MakeRig:
    """Build a rig with an engine of its own: ``make_rig("amd")``, with ``engine=`` to share one."""

    def make(vendor: str = "nvidia", engine: Engine | None = None, **options: Any) -> Rig:
        return Rig(vendor, engine or Engine(Config()), **options)

    return make
