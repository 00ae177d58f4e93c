"""A fleet that does not exist: batches of records as real hosts would ship them, with planted faults, from a seed.

Everything follows from the seed, the start and what was done to the fleet (`set_scheduler_state`, `repair`), so that a
second start goes on where the first ended. Whoever runs it has the clock; nothing here waits.
"""

from __future__ import annotations

import heapq
import math
import uuid
from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from collectors.simulated_device import Load, constants, make_device, reading
from collectors.simulated_effects import Strike
from collectors.simulated_faults import BY_NAME, FaultKind, line_text
from collectors.simulated_host import Jobs, host_row
from collectors.simulated_models import MODELS
from collectors.simulated_records import CLUSTER, HostInfo, hung_event, inventory, line_event
from collectors.simulated_schedule import SECOND, FaultSchedule, Place, PlantedFault, planted
from passmuster import __version__
from passmuster.batch import Batch, from_records
from passmuster.errors import UserError
from passmuster.records import (
    DeviceState,
    FaultEvent,
    GpuReading,
    HostReading,
    JobOutcome,
    JobRun,
    Record,
)

TICK = 10 * SECOND  # one row per device
TICKS_PER_SHIPMENT = 3
RACK_HOSTS = 4
BOOT_SECONDS = 90
HEAT_SECONDS = 45.0  # time constant with which heat follows load
# What of a device's identity a row keeps when the device answers nothing.
IDENTITY = ("vendor", "model", "interval_seconds", "device_id", "pci_address", "index")

STATES = ("in_service", "draining", "drained")
"""Scheduler states: gets jobs; ends its job and gets no other; has its job stopped and gets no other."""


class _Active(Struct):
    """A planted fault on one host, and when it ends there: as planned, or sooner by a repair."""

    fault: PlantedFault
    kind: FaultKind
    until_at: int
    kept: dict[str, Any] | None = None  # values that stand still


class _Host:
    """One host as it is now. Times in nanoseconds."""

    def __init__(self, info: HostInfo, seed: int, start_at: int) -> None:
        random = Random(f"{seed}/{info.host}")
        self.info = info
        self.seed = seed
        self.boots = 0
        self.boot_at = start_at - int(random.uniform(2, 40) * 86_400 * SECOND)
        self.up_at = start_at  # silent before that: it boots
        self.boot_id = self._new_boot_id()
        self.inlet = 23.0 + Random(f"{seed}/{info.rack}").uniform(0.0, 4.0)
        # Before the start it was busy three quarters of the time.
        self.load = Load(inlet_celsius=self.inlet, uptime_seconds=0.0)
        self.load.work_seconds = 0.7 * (start_at - self.boot_at) / SECOND
        self.jobs = Jobs(random, info.host)
        self.same = constants(info.model)
        self.addresses = [info.model.pci_address(device.index) for device in info.devices]
        self.state = "in_service"
        self.faults: list[_Active] = []  # of this boot
        self.events: dict[tuple[str, str], FaultEvent] = {}
        self.seqs: dict[str, int] = {}
        self.rows: list[dict[str, Any]] = []
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


class SimulatedFleet:
    """A mixed fleet under training load.

    The same arguments and the same interventions give the same batches. ``resume_at`` goes on from that time as if
    the fleet had run since ``start_at``; what was done to it before must be told again, with its times.
    """

    def __init__(
        self,
        *,
        hosts: int = 64,
        gpus_per_host: int = 8,
        seed: int = 1,
        start_at: int,
        resume_at: int | None = None,
        faults: bool = True,
        fault_gap_seconds: float = 300.0,
    ) -> None:
        self.start_at = start_at
        self._seed = seed
        self._hosts = {info.host: _Host(info, seed, start_at) for info in fleet(hosts, gpus_per_host, seed)}
        places = [_place(host.info) for host in self._hosts.values()]
        self._places = {place.host: place for place in places}
        self._schedule = FaultSchedule(places, seed, start_at, fault_gap_seconds) if faults else None
        self._planted: list[PlantedFault] = []
        self._now = start_at
        self._order = 0
        self._queue: list[tuple[int, int, _Host, tuple[_Active, str] | None]] = []
        for number, host in enumerate(self._hosts.values()):
            # Agents do not start together: their shipments spread over the interval.
            self._push(start_at + SECOND + TICK * number // max(len(self._hosts), 1), host, None)
            host.ticks = number % TICKS_PER_SHIPMENT
        self._resume_at = resume_at
        self._rows_from = (resume_at or start_at) - TICKS_PER_SHIPMENT * TICK

    def hosts(self) -> list[HostInfo]:
        """Return every host: name, rack, pool, model, devices."""
        return [host.info for host in self._hosts.values()]

    def schedule(self, until: int) -> list[PlantedFault]:
        """Return what was planted, and will be up to `until`, in order of time."""
        ahead = []
        if self._schedule is not None:
            fork = FaultSchedule(list(self._places.values()), self._seed, self.start_at, self._schedule.gap_seconds)
            ahead = fork.until(until)
        by_hand = [fault for fault in self._planted if fault.at <= until]
        return sorted(ahead + by_hand, key=lambda fault: fault.at)

    def plant(self, kind: str, host: str, at: int, device: int = 0) -> PlantedFault:
        """Plant one fault by hand, not before what was already given out. Raises UserError for unknown names."""
        if kind not in BY_NAME:
            raise UserError(f"no fault is called {kind!r}; known: {', '.join(BY_NAME)}")
        rack = self._host(host).info.rack
        group = [self._places[host]]
        if BY_NAME[kind].whole_rack:
            group = [place for place in self._places.values() if place.rack == rack]
        fault = planted(BY_NAME[kind], group, device % len(group[0].device_ids), max(at, self._now))
        self._planted.append(fault)
        self._strike(fault)
        return fault

    def set_scheduler_state(self, host: str, state: str, at: int | None = None) -> None:
        """Tell what the scheduler does with a host: in_service, draining or drained.

        A host that comes back into service was serviced meanwhile: its faults are repaired. Raises UserError for an
        unknown host or state.
        """
        if state not in STATES:
            raise UserError(f"no scheduler state is called {state!r}; known: {', '.join(STATES)}")
        subject = self._host(host)
        if state == "in_service" and subject.state != "in_service":
            self.repair(host, at)
        subject.state = state

    def repair(self, host: str, at: int | None = None) -> None:
        """End every fault of a host now; it reboots where the repair takes that."""
        subject, now = self._host(host), self._now if at is None else max(at, self._now)
        active = [a for a in subject.faults if a.fault.at <= now < a.until_at and not a.kind.whole_rack]
        for fault in active:
            fault.until_at = now
        if any(a.kind.reboot for a in active):
            subject.reboot(now)

    def batches(self, until: int) -> Iterator[Batch]:
        """Yield what the hosts ship up to `until` and was not yielded before, in order of time."""
        if self._resume_at is not None:
            resume_at, self._resume_at = self._resume_at, None
            for _ in self._run(resume_at, ship=False):
                pass
        yield from self._run(until, ship=True)

    def _run(self, until: int, *, ship: bool) -> Iterator[Batch]:
        if self._schedule is not None:
            for fault in self._schedule.until(until):
                self._strike(fault)
        while self._queue and self._queue[0][0] <= until:
            at, _, host, line = heapq.heappop(self._queue)
            self._now = max(self._now, at)
            if line is not None:
                yield from self._speak(host, *line, at, ship=ship)
                continue
            self._push(at + TICK, host, None)
            yield from self._tick(host, at, ship=ship)
        self._now = max(self._now, until)

    def _host(self, name: str) -> _Host:
        if name not in self._hosts:
            raise UserError(f"no simulated host is called {name[:64]!r}")
        return self._hosts[name]

    def _push(self, at: int, host: _Host, line: tuple[_Active, str] | None) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, host, line))

    def _strike(self, fault: PlantedFault) -> None:
        kind = BY_NAME[fault.kind]
        for name in fault.hosts:
            host = self._hosts[name]
            active = _Active(fault, kind, fault.until_at)
            host.faults.append(active)
            for delay, template in kind.lines:
                self._push(fault.at + int(delay * SECOND), host, (active, template))
            if kind.fate == "hung":
                self._push(fault.at + 5 * SECOND, host, (active, ""))

    def _speak(self, host: _Host, active: _Active, template: str, at: int, *, ship: bool) -> Iterator[Batch]:
        """Ship the fault event that a kernel-log line, or the agent's own watch over its probe, makes."""
        if at < host.up_at or at >= active.until_at or _silent(host, at):
            return
        info, device = host.info, active.fault.device
        if template:
            pid = 40_000 + 17 * host.jobs.number + device
            event = line_event(info, host.boot_id, line_text(template, info.model, device, pid), at)
        else:
            event = hung_event(info, host.boot_id, at)
        if event is None:
            return
        before = host.events.get((event.device_id, event.code))
        if before is not None:
            event = replace(event, first_at=before.first_at, count=before.count + 1)
        host.events[event.device_id, event.code] = event
        yield from self._batch(host, [event], ship=ship)

    def _batch(self, host: _Host, records: list[Any], *, ship: bool) -> Iterator[Batch]:
        """Number a batch of records; the number counts on where nothing is shipped."""
        seq = host.seqs.get(records[0].KIND, 0)
        host.seqs[records[0].KIND] = seq + 1
        if ship:
            yield from_records(records, seq)

    def _tick(self, host: _Host, at: int, *, ship: bool) -> Iterator[Batch]:
        host.ticks += 1
        rebooted = [a for a in host.faults if a.kind.reboot and host.boot_at < a.until_at <= at]
        if rebooted:
            host.reboot(max(a.until_at for a in rebooted))
        if at < host.up_at:
            yield from self._stop_job(host, at, "node_fail", ship=ship)
            return
        struck = [a for a in host.faults if a.fault.at <= at]
        active = [a for a in struck if at < a.until_at]
        yield from self._schedule_jobs(host, at, active, ship=ship)
        _step(host, at)
        silent = any(a.kind.silent for a in active)
        # Rows of a shipment that was under way at the cut belong to the first one after it.
        if (ship or at > self._rows_from) and not silent:
            host.rows += _rows(host, at, struck)
        elif silent:
            host.rows = []
        if host.ticks % TICKS_PER_SHIPMENT == 0 and not silent:
            yield from self._shipment(host, at, struck, ship=ship)

    def _shipment(self, host: _Host, at: int, struck: list[_Active], *, ship: bool) -> Iterator[Batch]:
        if host.inventory_due:
            host.inventory_due = False
            yield from self._batch(host, inventory(host.info, host.boot_id, at), ship=ship)
        rows, host.rows = host.rows, []
        seq = host.seqs.get(GpuReading.KIND, 0)
        host.seqs[GpuReading.KIND] = seq + 1
        if ship and rows:
            yield _columns(host, GpuReading, rows, host.same, seq)
        seq = host.seqs.get(HostReading.KIND, 0)
        host.seqs[HostReading.KIND] = seq + 1
        if ship:
            row = host_row(host.info.model, len(host.info.devices), host.load, at)
            for a in struck:
                strike = _strike_at(a, at, host)
                if a.kind.on_host is not None:
                    a.kind.on_host(row, strike)
                if strike.active and a.kind.fate == "hung":
                    row["gpus_seen"] = None
                    row["collectors"] = row["collectors"] | {host.info.model.vendor.value: "hung"}
                elif strike.active and a.kind.fate:
                    row["gpus_seen"] = {k: v - 1 for k, v in row["gpus_seen"].items()}
            yield _columns(host, HostReading, [row], {"agent_version": __version__}, seq)

    def _schedule_jobs(self, host: _Host, at: int, active: list[_Active], *, ship: bool) -> Iterator[Batch]:
        """Start, end or kill the host's job."""
        jobs = host.jobs
        if jobs.job is not None:
            if any(a.kind.kills_job and a.fault.at > at - TICK for a in active):
                yield from self._stop_job(host, at, "failed", ship=ship)
            elif host.state == "drained":
                yield from self._stop_job(host, at, "cancelled", ship=ship)
            elif at >= jobs.job.ends_at:
                yield from self._stop_job(host, at, "completed", ship=ship)
        elif host.state == "in_service" and not any(a.kind.blocks_jobs for a in active):
            job = jobs.start(at)
            if job is not None:
                run = JobRun(
                    cluster=CLUSTER,
                    host=host.info.host,
                    boot_id=host.boot_id,
                    observed_at=at,
                    job=job.name,
                    tenant=job.tenant,
                    workload=job.workload,
                    devices=[d.device_id for d in host.info.devices],
                    world_size=len(host.info.devices),
                    batch_size=1024 * len(host.info.devices),
                    started_at=at,
                )
                yield from self._batch(host, [run], ship=ship)

    def _stop_job(self, host: _Host, at: int, outcome: str, *, ship: bool) -> Iterator[Batch]:
        job = host.jobs.stop(at)
        if job is None:
            return
        end = JobOutcome(
            cluster=CLUSTER,
            host=host.info.host,
            boot_id=host.boot_id,
            observed_at=at,
            job=job.name,
            tenant=job.tenant,
            ended_at=at,
            duration_seconds=(at - job.started_at) / SECOND,
            exit_code={"completed": 0, "failed": 1}.get(outcome),
            outcome=outcome,
        )
        yield from self._batch(host, [end], ship=ship)


def fleet(hosts: int, gpus_per_host: int, seed: int) -> list[HostInfo]:
    """Lay out racks of up to four hosts of one model each; the models take racks by their share of the fleet."""
    per_rack = max(1, min(RACK_HOSTS, hosts // len(MODELS)))
    given = dict.fromkeys(MODELS, 0)
    found: list[HostInfo] = []
    while len(found) < hosts:
        # The model that is furthest behind its share takes the next rack; each has one before any has two.
        model = min(MODELS, key=lambda m: (given[m] > 0, given[m] / m.share))
        rack = f"rack{len(found) // per_rack:02d}"
        for _ in range(min(per_rack, hosts - len(found))):
            given[model] += 1
            name = f"{rack}-{model.slug}-{given[model]:03d}"
            random = Random(f"{seed}/{name}/devices")
            devices = tuple(make_device(model, index, random) for index in range(gpus_per_host))
            pool = f"train-{model.vendor.value}"
            found.append(HostInfo(host=name, rack=rack, pool=pool, model=model, devices=devices))
    return found


def _place(info: HostInfo) -> Place:
    return Place(info.host, info.rack, info.model.vendor, tuple(d.device_id for d in info.devices))


def _silent(host: _Host, at: int) -> bool:
    return any(a.kind.silent and a.fault.at <= at < a.until_at for a in host.faults)


def _strike_at(active: _Active, at: int, host: _Host) -> Strike:
    return Strike(
        seconds=(min(at, active.until_at) - active.fault.at) / SECOND,
        active=at < active.until_at,
        busy=host.load.busy,
        device=active.fault.device,
        model=host.info.model,
    )


def _step(host: _Host, at: int) -> None:
    """Let load, heat and work of a host follow its job for one tick."""
    load, job = host.load, host.jobs.job
    load.level = job.level(at) if job is not None else 0.0
    load.busy = job is not None
    load.memory_share = job.memory_share if job is not None else 0.0
    load.warm += (load.level - load.warm) * (1 - math.exp(-TICK / SECOND / HEAT_SECONDS))
    load.work_seconds += load.level * TICK / SECOND
    load.uptime_seconds = (at - host.boot_at) / SECOND
    # Rooms are a degree warmer in the afternoon.
    load.inlet_celsius = host.inlet + math.sin(2 * math.pi * (at / SECOND / 86_400 - 0.4))


def _rows(host: _Host, at: int, struck: list[_Active]) -> list[dict[str, Any]]:
    """Return one row per device that is still listed."""
    info = host.info
    random = Random(hash((host.seed, at, info.devices[0].index)) ^ int(host.boot_id[:8], 16))
    marking = [a for a in struck if a.kind.on_device is not None or a.kind.fate or a.kind.name == FROZEN]
    rows = []
    for device in info.devices:
        row: dict[str, Any] | None = {
            "observed_at": at,
            "device_id": device.device_id,
            "pci_address": host.addresses[device.index],
            "index": device.index,
        } | reading(device, host.load, random)
        hits = [a for a in marking if a.kind.on_siblings or a.fault.device == device.index]
        if hits:
            row = host.same | (row or {})
        for a in hits:
            if row is not None:
                row = _hit(row, a, _strike_at(a, at, host))
        if row is not None:
            rows.append(row)
    return rows


FROZEN = "frozen_sensor"
STILL = ("power_", "temperature_", "clock_", "energy_", "activity_", "throttle_", "sm_", "tensor_", "dram_", "pcie_")


def _hit(row: dict[str, Any], active: _Active, strike: Strike) -> dict[str, Any] | None:
    """Return the row as the fault leaves it; None where the device is no longer listed."""
    kind = active.kind
    if strike.active and kind.fate == "absent":
        return None
    if strike.active and kind.fate:
        state = DeviceState.LOST if kind.fate == "lost" else DeviceState.HUNG
        reason = "failed 15" if kind.fate == "lost" else "stale"
        kept = {name: row[name] for name in ("observed_at", *IDENTITY)}
        nothing = {name: None for name in row if name not in kept}
        missing = {
            name: reason for name in row if name not in kept and name not in ("state", "samples", "epoch", "missing")
        }
        return nothing | kept | {"state": state.value, "samples": 0, "epoch": 0, "missing": row["missing"] | missing}
    if kind.name == FROZEN and strike.active and strike.busy:
        if active.kept is None:
            active.kept = {name: value for name, value in row.items() if name.startswith(STILL)}
        return row | active.kept
    if kind.on_device is not None:
        kind.on_device(row, strike)
    return row


def _columns(host: _Host, record: type[Record], rows: list[dict[str, Any]], same: dict[str, Any], seq: int) -> Batch:
    """Put rows into columns; what no row says itself is `same` in all of them."""
    said = dict.fromkeys(name for row in rows for name in row)
    columns = {name: value for name, value in same.items() if name not in said}
    for name in said:
        values = [row.get(name, same.get(name)) for row in rows]
        if any(value is not None for value in values):
            columns[name] = values
    return Batch(record.KIND, record.VERSION, CLUSTER, host.info.host, host.boot_id, seq, len(rows), columns)
