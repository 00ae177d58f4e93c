"""One simulated host as it is now: its boot, load, faults, and the rows that its devices and it give at a tick."""

from __future__ import annotations

import math
import uuid
from random import Random
from typing import Any

from msgspec import Struct

from collectors.simulated_device import Load, constants, reading
from collectors.simulated_effects import Strike
from collectors.simulated_faults import FaultKind
from collectors.simulated_jobs import Jobs
from collectors.simulated_records import HostInfo, host_row
from collectors.simulated_schedule import SECOND, PlantedFault
from passmuster.records import INT64_MAX, DeviceState, FaultEvent

TICK = 10 * SECOND  # one row per device
BOOT_SECONDS = 90
HEAT_SECONDS = 45.0  # time constant with which heat follows load
HEAT_PER_TICK = 1 - math.exp(-TICK / SECOND / HEAT_SECONDS)
# What of a device's identity a row keeps when the device answers nothing.
IDENTITY = ("observed_at", "vendor", "model", "interval_seconds", "device_id", "pci_address", "index")
FROZEN = "frozen_sensor"
STILL = ("power_", "temperature_", "clock_", "energy_", "activity_", "throttle_", "sm_", "tensor_", "dram_", "pcie_")


class Active(Struct):
    """A planted fault on one host, and when it ends there: as planned, or sooner by a repair."""

    fault: PlantedFault
    kind: FaultKind
    until_at: int
    kept: dict[str, Any] | None = None  # values that stand still


class Host:
    """One host. Times in nanoseconds."""

    def __init__(self, info: HostInfo, seed: int, start_at: int) -> None:
        random = Random(f"{seed}/{info.host}")
        self.info = info
        self.seed = seed
        self.boots = 0
        self.boot_at = start_at - int(random.uniform(2, 40) * 86_400 * SECOND)
        self.up_at = start_at  # silent before that: it boots
        self.boot_id = self._new_boot_id()
        self.inlet = 23.0 + Random(f"{seed}/{info.rack}").uniform(0.0, 4.0)
        self.load = Load(inlet_celsius=self.inlet, uptime_seconds=0.0)
        # Before the start it was busy most of the time.
        self.load.work_seconds = 0.7 * (start_at - self.boot_at) / SECOND
        self.jobs = Jobs(random, info.host)
        self.same = constants(info.model)
        self.addresses = [info.model.pci_address(device.index) for device in info.devices]
        self.state = "in_service"
        self.faults: list[Active] = []  # of this boot
        self.events: dict[tuple[str, str], FaultEvent] = {}
        self.seqs: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []  # of the shipment that is under way
        self.ticks = 0
        self.inventory_due = True

    def _new_boot_id(self) -> str:
        return str(uuid.UUID(int=Random(f"{self.seed}/{self.info.host}/boot{self.boots}").getrandbits(128), version=4))

    def reboot(self, at: int) -> None:
        """Start a new boot: counters and kernel log begin again, what was repaired is gone."""
        self.boots += 1
        self.boot_at, self.up_at = at, at + BOOT_SECONDS * SECOND
        self.boot_id = self._new_boot_id()
        self.load = Load(inlet_celsius=self.inlet, uptime_seconds=0.0)
        self.faults = [active for active in self.faults if active.until_at > at]
        self.events, self.seqs, self.rows = {}, {}, []
        self.inventory_due = True

    def repair(self, at: int) -> None:
        """End its faults; reboot where the repair takes that. A rack's switch is not the host's to repair."""
        active = [a for a in self.faults if a.fault.at <= at < a.until_at and not a.kind.whole_rack]
        for fault in active:
            fault.until_at = at
        if any(a.kind.reboot for a in active):
            self.reboot(at)

    def leave_broken(self, at: int) -> None:
        """Let what only a repair ends stay as it is, however long that takes."""
        for active in self.faults:
            if active.kind.reboot and active.fault.at <= at < active.until_at:
                active.until_at = INT64_MAX

    def next_seq(self, kind: str) -> int:
        """Return the sequence number of the next batch of a record kind in this boot."""
        seq = self.seqs.get(kind, 0)
        self.seqs[kind] = seq + 1
        return seq

    def silent(self, at: int) -> bool:
        """Tell whether nothing of this host gets out."""
        return any(a.kind.silent and a.fault.at <= at < a.until_at for a in self.faults)

    def step(self, at: int) -> None:
        """Let load, heat and work follow the job for one tick."""
        load, job = self.load, self.jobs.job
        load.level = job.level(at) if job is not None else 0.0
        load.busy = job is not None
        load.memory_share = job.memory_share if job is not None else 0.0
        load.warm += (load.level - load.warm) * HEAT_PER_TICK
        load.work_seconds += load.level * TICK / SECOND
        load.uptime_seconds = (at - self.boot_at) / SECOND
        # Rooms are a degree warmer in the afternoon.
        load.inlet_celsius = self.inlet + math.sin(2 * math.pi * (at / SECOND / 86_400 - 0.4))

    def device_rows(self, at: int) -> list[dict[str, Any]]:
        """Return one GpuReading row per device that is still listed, without what is `same` in all of them."""
        random = Random(self.seed << 96 ^ int(self.boot_id[:8], 16) << 64 ^ at)
        marking = [
            a
            for a in self.faults
            if a.fault.at <= at and (a.kind.on_device is not None or a.kind.fate or a.kind.name == FROZEN)
        ]
        # A device that answers nothing has no counters to change: what takes its answers away comes last.
        marking.sort(key=lambda a: bool(a.kind.fate))
        rows = []
        for device in self.info.devices:
            row: dict[str, Any] | None = {
                "observed_at": at,
                "device_id": device.device_id,
                "pci_address": self.addresses[device.index],
                "index": device.index,
            } | reading(device, self.load, random)
            hits = [a for a in marking if a.kind.on_siblings or a.fault.device == device.index]
            if hits:
                row = self.same | (row or {})
            for a in hits:
                if row is not None:
                    row = _hit(row, a, self._strike(a, at))
            if row is not None:
                rows.append(row)
        return rows

    def host_reading(self, at: int) -> dict[str, Any]:
        """Return the fields of a HostReading."""
        vendor = self.info.model.vendor.value
        row = host_row(self.info.model, len(self.info.devices), self.load, at)
        for a in self.faults:
            if a.fault.at > at:
                continue
            strike = self._strike(a, at)
            if a.kind.on_host is not None:
                a.kind.on_host(row, strike)
            if strike.active and a.kind.fate == "hung":
                row["gpus_seen"] = None
                row["collectors"] = row["collectors"] | {vendor: "hung"}
                row["missing"] = {"gpus_seen": "stale"}
            elif strike.active and a.kind.fate and row["gpus_seen"] is not None:
                row["gpus_seen"] = {vendor: row["gpus_seen"][vendor] - 1}
        return row

    def _strike(self, active: Active, at: int) -> Strike:
        return Strike(
            seconds=(min(at, active.until_at) - active.fault.at) / SECOND,
            active=at < active.until_at,
            busy=self.load.busy,
            device=active.fault.device,
            model=self.info.model,
        )


def _hit(row: dict[str, Any], active: Active, strike: Strike) -> dict[str, Any] | None:
    """Return the row as the fault leaves it; None where the device is no longer listed."""
    kind = active.kind
    if strike.active and kind.fate == "absent":
        return None
    if strike.active and kind.fate:
        lost = kind.fate == "lost"
        said = {
            "state": (DeviceState.LOST if lost else DeviceState.HUNG).value,
            "samples": 0,
            "epoch": 0,
        } | {name: row[name] for name in IDENTITY}
        nulls = dict.fromkeys(name for name in row if name not in said)
        reason = "failed 15" if lost else "stale"
        missing = row["missing"] | {name: reason for name in nulls if name != "missing"}
        return nulls | said | {"missing": missing}
    if kind.name == FROZEN and strike.active and strike.busy:
        if active.kept is None:
            active.kept = {name: value for name, value in row.items() if name.startswith(STILL)}
        return row | active.kept
    if kind.on_device is not None:
        kind.on_device(row, strike)
    return row
