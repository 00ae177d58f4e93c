"""A fleet that does not exist: batches of records as real hosts would ship them, with planted faults, from a seed.

Everything follows from the seed, the start and what was done to the fleet (`set_scheduler_state`, `repair`, `plant`),
so that a second start goes on where the first ended. Whoever runs it has the clock; nothing here waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from collectors.simulated_device import make_device
from collectors.simulated_faults import BY_NAME, line_text
from collectors.simulated_host import TICK, Active, Host
from collectors.simulated_models import MODELS
from collectors.simulated_records import CLUSTER, HostInfo, hung_event, inventory, line_event
from collectors.simulated_schedule import SECOND, FaultSchedule, Place, PlantedFault, planted
from passmuster import __version__
from passmuster.batch import Batch, from_records
from passmuster.errors import UserError
from passmuster.records import GpuReading, HostReading, JobOutcome, JobRun, Record

TICKS_PER_SHIPMENT = 3
RACK_HOSTS = 4
HUNG_SECONDS = 5.0  # after which the agent gives a driver call up

STATES = ("in_service", "draining", "drained")
"""Scheduler states: gets jobs; ends its job and gets no other; has its job stopped and gets no other."""

Step = Callable[[int], Iterator[Batch]]
"""What happens at a time (nanoseconds), and what is shipped then."""


class SimulatedFleet:
    """A mixed fleet under training load.

    The same arguments and the same interventions at the same times give the same batches.
    """

    def __init__(
        self,
        *,
        hosts: int = 64,
        gpus_per_host: int = 8,
        seed: int = 1,
        start_at: int,
        faults: bool = True,
        fault_gap_seconds: float = 300.0,
    ) -> None:
        self._hosts = {info.host: Host(info, seed, start_at) for info in fleet(hosts, gpus_per_host, seed)}
        self._places = {name: _place(host.info) for name, host in self._hosts.items()}
        # A fresh one tells what is ahead; one of them is lived through.
        self._fresh = partial(FaultSchedule, list(self._places.values()), seed, start_at, fault_gap_seconds)
        self._schedule = self._fresh() if faults else None
        self._by_hand: list[PlantedFault] = []
        self._now = start_at
        self._order = 0
        self._queue: list[tuple[int, int, Step]] = []
        self._ship = True  # False while time is skipped
        self._rows_from = start_at
        for number, host in enumerate(self._hosts.values()):
            # Agents do not start together: their shipments spread over the interval.
            self._push(start_at + SECOND + TICK * number // max(len(self._hosts), 1), partial(self._tick, host))
            host.ticks = number % TICKS_PER_SHIPMENT

    def hosts(self) -> list[HostInfo]:
        """Return every host: name, rack, pool, model, devices."""
        return [host.info for host in self._hosts.values()]

    def schedule(self, until: int) -> list[PlantedFault]:
        """Return what was planted, and will be up to ``until``, in order of time."""
        drawn = self._fresh().until(until) if self._schedule is not None else []
        return sorted(drawn + [f for f in self._by_hand if f.at <= until], key=lambda fault: fault.at)

    def plant(self, kind: str, host: str, at: int, device: int = 0) -> PlantedFault:
        """Plant one fault by hand, not before what was already given out. Raises UserError for unknown names."""
        if kind not in BY_NAME:
            raise UserError(f"no fault is called {kind!r}; known: {', '.join(BY_NAME)}")
        rack = self._host(host).info.rack
        group = [self._places[host]]
        if BY_NAME[kind].whole_rack:
            group = [place for place in self._places.values() if place.rack == rack]
        fault = planted(BY_NAME[kind], group, device % len(group[0].device_ids), max(at, self._now))
        self._by_hand.append(fault)
        self._strike(fault)
        return fault

    def set_scheduler_state(self, host: str, state: str, at: int | None = None) -> None:
        """Tell what the scheduler does with a host from ``at`` (default: now): in_service, draining or drained.

        A host out of service keeps its faults until it comes back, and was serviced then. Raises UserError for an
        unknown host or state.
        """
        if state not in STATES:
            raise UserError(f"no scheduler state is called {state!r}; known: {', '.join(STATES)}")
        subject = self._host(host)

        def change(now: int) -> Iterator[Batch]:
            if state == "in_service" and subject.state != "in_service":
                subject.repair(now)
            elif state != "in_service":
                subject.leave_broken(now)
            subject.state = state
            yield from ()

        self._push(max(at or 0, self._now), change)

    def repair(self, host: str, at: int | None = None) -> None:
        """End every fault of a host at ``at`` (default: now); it reboots where the repair takes that."""
        subject = self._host(host)

        def end(now: int) -> Iterator[Batch]:
            subject.repair(now)
            yield from ()

        self._push(max(at or 0, self._now), end)

    def skip_to(self, at: int) -> None:
        """Let the fleet live up to ``at`` without shipping, to go on where an earlier run of it ended."""
        # Rows of a shipment that is under way then belong to the first one after it.
        self._ship, self._rows_from = False, at - TICKS_PER_SHIPMENT * TICK
        try:
            for _ in self.batches(at):
                pass
        finally:
            self._ship = True

    def batches(self, until: int) -> Iterator[Batch]:
        """Yield what the hosts ship up to ``until`` and was not yielded before, in order of time."""
        if self._schedule is not None:
            for fault in self._schedule.until(until):
                self._strike(fault)
        while self._queue and self._queue[0][0] <= until:
            at, _, step = heapq.heappop(self._queue)
            self._now = max(self._now, at)
            yield from step(at)
        self._now = max(self._now, until)

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            raise UserError(f"no simulated host is called {name[:64]!r}")
        return self._hosts[name]

    def _push(self, at: int, step: Step) -> None:
        self._order += 1
        heapq.heappush(self._queue, (at, self._order, step))

    def _strike(self, fault: PlantedFault) -> None:
        kind = BY_NAME[fault.kind]
        for name in fault.hosts:
            host = self._hosts[name]
            active = Active(fault, kind, fault.until_at)
            host.faults.append(active)
            for delay, template in kind.lines:
                self._push(fault.at + int(delay * SECOND), partial(self._speak, host, active, template))
            if kind.fate == "hung":
                self._push(fault.at + int(HUNG_SECONDS * SECOND), partial(self._speak, host, active, ""))

    def _speak(self, host: Host, active: Active, template: str, at: int) -> Iterator[Batch]:
        """Ship the fault event that a kernel-log line, or the agent's own watch over its probe, makes."""
        if at < host.up_at or at >= active.until_at or host.silent(at):
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
        yield from self._batch(host, [event])

    def _batch(self, host: Host, records: list[Any]) -> Iterator[Batch]:
        seq = host.next_seq(records[0].KIND)
        if self._ship:
            yield from_records(records, seq)

    def _tick(self, host: Host, at: int) -> Iterator[Batch]:
        self._push(at + TICK, partial(self._tick, host))
        host.ticks += 1
        repaired = [a.until_at for a in host.faults if a.kind.reboot and host.boot_at < a.until_at <= at]
        if repaired:
            host.reboot(max(repaired))
        if at < host.up_at:
            yield from self._stop_job(host, at, "node_fail")
            return
        active = [a for a in host.faults if a.fault.at <= at < a.until_at]
        yield from self._follow_job(host, at, active)
        host.step(at)
        if any(a.kind.silent for a in active):
            host.rows = []
            return
        if self._ship or at > self._rows_from:
            host.rows += host.device_rows(at)
        if host.ticks % TICKS_PER_SHIPMENT == 0:
            yield from self._shipment(host, at)

    def _shipment(self, host: Host, at: int) -> Iterator[Batch]:
        if host.inventory_due:
            host.inventory_due = False
            yield from self._batch(host, inventory(host.info, host.boot_id, at))
        rows, host.rows = host.rows, []
        readings, own = host.next_seq(GpuReading.KIND), host.next_seq(HostReading.KIND)
        if self._ship:
            if rows:
                yield _columns(host, GpuReading, rows, host.same, readings)
            yield _columns(host, HostReading, [host.host_reading(at)], {"agent_version": __version__}, own)

    def _follow_job(self, host: Host, at: int, active: list[Active]) -> Iterator[Batch]:
        """Start, end or kill the host's job."""
        jobs = host.jobs
        if jobs.job is not None:
            if any(a.kind.kills_job and a.fault.at > at - TICK for a in active):
                yield from self._stop_job(host, at, "failed")
            elif host.state == "drained":
                yield from self._stop_job(host, at, "cancelled")
            elif at >= jobs.job.ends_at:
                yield from self._stop_job(host, at, "completed")
            return
        if host.state != "in_service" or any(a.kind.blocks_jobs for a in active):
            return
        job = jobs.start(at)
        if job is None:
            return
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
        yield from self._batch(host, [run])

    def _stop_job(self, host: Host, at: int, outcome: str) -> Iterator[Batch]:
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
        yield from self._batch(host, [end])


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


def _columns(host: Host, record: type[Record], rows: list[dict[str, Any]], same: dict[str, Any], seq: int) -> Batch:
    """Put rows into columns; what no row says itself is `same` in all of them."""
    said = dict.fromkeys(name for row in rows for name in row)
    columns = {name: value for name, value in same.items() if name not in said}
    for name in said:
        values = [row.get(name, same.get(name)) for row in rows]
        if any(value is not None for value in values):
            columns[name] = values
    return Batch(record.KIND, record.VERSION, CLUSTER, host.info.host, host.boot_id, seq, len(rows), columns)
