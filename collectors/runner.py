"""Runs the collectors of one host: who is asked when, with which deadline, and what leaves as which batch."""

from __future__ import annotations

import os
import resource
import select
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
from msgspec import Struct

from collectors.aggregate import Aggregate, columnar
from collectors.collector import Absent, Collector, Failed
from collectors.device import DeviceIdentity, DriverEvent, Tier
from collectors.kernel_log import KernelLog
from collectors.probe import Answered, DeviceProbe, Outcome, ProbeCrashed, ProbeHung
from passmuster.batch import Batch, from_records, split_by_header
from passmuster.config import Config
from passmuster.faults import TABLE_VERSION, lookup
from passmuster.records import (
    Blame,
    DeviceState,
    FaultClass,
    FaultEvent,
    HostReading,
    Inventory,
    Record,
    Severity,
    Trust,
    Vendor,
)

SECOND = 1_000_000_000  # nanoseconds
CLOCK_STEP_SECONDS = 1.0
# Faults that libraries report are few; more distinct ones than this are a library gone wild.
MAX_FAULTS = 1024
EVENT_SOURCES = {"nvidia": "nvml", "amd": "amdsmi"}


class Timekeeper:
    """Gives times that only grow, over jumps of the wall clock, and counts the jumps.

    A clock that was set back is followed at half speed until the real one has caught up: intervals stay positive and
    rows keep their order. ``not_before`` is the last time given in this boot.
    """

    def __init__(self, wall: Callable[[], int], monotonic: Callable[[], float], not_before: int = 0) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._seen = (wall(), monotonic())
        self._last = not_before
        self.steps = 0

    def now(self) -> int:
        """Return nanoseconds UTC, more than ever before."""
        wall, mono = self._wall(), self._monotonic()
        elapsed = round((mono - self._seen[1]) * SECOND)
        if abs(wall - self._seen[0] - elapsed) > CLOCK_STEP_SECONDS * SECOND:
            self.steps += 1
        self._seen = (wall, mono)
        self._last = max(wall, self._last + max(1, elapsed // 2))
        return self._last


class Schedule:
    """What is due when, on the monotonic clock. A tick that was missed is skipped, never made up for."""

    def __init__(self, periods: dict[str, float], start: float) -> None:
        self._periods = periods
        self._next = dict.fromkeys(periods, start)
        self.skipped = 0

    def due(self, mono: float) -> list[str]:
        """Return the names that are due, each once."""
        found = [name for name, at in self._next.items() if at <= mono]
        for name in found:
            missed = int((mono - self._next[name]) / self._periods[name])
            self.skipped += missed
            self._next[name] += (missed + 1) * self._periods[name]
        return found

    def next_at(self) -> float:
        """Return the monotonic time of the next tick."""
        return min(self._next.values())


class CollectorHealth(Struct):
    """How one collector is doing."""

    outcome: Outcome = Outcome.STARTING
    reason: str = ""
    seconds: float | None = None  # of the last run
    succeeded_at: int | None = None
    errors: int = 0


class _Run(Struct):
    """A collector at work in its thread."""

    collector: Collector
    deadline: float
    overdue: bool = False


class Runner:
    """The loop. One thread owns it; `wake` may be called from others and from signal handlers.

    ``header`` is cluster, host and boot id. ``ship`` takes what leaves the host; ``watch`` takes everything at once,
    readings each interval, for local judgement; ``next_seq`` numbers shipped batches by kind; ``own_facts`` gives
    `HostReading` fields that the composer knows (the spool's). ``wall`` is nanoseconds, ``monotonic`` seconds.
    """

    def __init__(
        self,
        config: Config,
        header: tuple[str, str, str],
        probes: Sequence[DeviceProbe],
        collectors: Sequence[Collector],
        *,
        ship: Callable[[Batch], None],
        watch: Callable[[Batch], None],
        next_seq: Callable[[str], int],
        own_facts: Callable[[], dict[str, Any]],
        wall: Callable[[], int],
        monotonic: Callable[[], float],
        not_before: int = 0,
    ) -> None:
        agent = config.agent
        self.probes = list(probes)
        self.health = {name: CollectorHealth() for name in (*(p.name for p in probes), *(c.name for c in collectors))}
        self.aggregate = Aggregate(
            {Tier.FAST: agent.fast_seconds, Tier.MIDDLE: agent.middle_seconds, Tier.SLOW: agent.slow_seconds},
            agent.ring_seconds,
        )
        self.time = Timekeeper(wall, monotonic, not_before)
        self.inventory: dict[str, Inventory] = {}  # what holds now, by device id
        self.host_reading: HostReading | None = None
        self.event_counts: dict[tuple[str, str, str], int] = {}  # (device id, kind, code) to faults of this run
        self.seen: dict[str, int] = {}  # devices that each library names
        self._config = config
        self._header = header
        self._collectors = {c.name: c for c in collectors}
        self._ship, self._watch, self._next_seq, self._own_facts = ship, watch, next_seq, own_facts
        self._monotonic = monotonic
        start = monotonic()
        tiers = {Tier.FAST: agent.fast_seconds, Tier.MIDDLE: agent.middle_seconds, Tier.SLOW: agent.slow_seconds}
        self.schedule = Schedule({t.value: p for t, p in tiers.items()}, start)
        self._collect = Schedule({c.name: c.period_seconds for c in collectors}, start) if collectors else None
        self._runs: dict[str, _Run] = {}
        self._results: SimpleQueue[tuple[str, list[Record] | Exception, float]] = SimpleQueue()
        self._wake_read, self.wake_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = False
        self._intervals_to_ship = 1  # the first row leaves at once
        self._faults: dict[tuple[str, str], FaultEvent] = {}
        self._named: dict[str, set[str]] = {p.name: set() for p in probes}  # addresses that each library ever named

    # ---- the loop

    def step(self, limit_seconds: float = 1.0) -> None:
        """Do what is due, then wait for answers until the next is, at most ``limit_seconds``."""
        mono = self._monotonic()
        self._start_probes()
        due = self.schedule.due(mono)
        for probe in self.probes:
            self._ask(probe, due)
        if Tier.MIDDLE in due:
            self._closing = True
        for name in self._collect.due(mono) if self._collect else ():
            self._start_collector(name, mono)
        until = min(mono + limit_seconds, self.schedule.next_at(), *self._deadlines())
        if self._collect:
            until = min(until, self._collect.next_at())
        running = [p for p in self.probes if p.running]
        waiting: list[DeviceProbe | int] = [*running, self._wake_read]
        select.select(waiting, [], [], max(0.0, until - self._monotonic()))
        self._drain_wake()
        for probe in running:
            self._receive(probe)
        self._finish_collectors()
        if self._closing and not any(p.busy for p in self.probes):
            self._close_interval()

    def settled(self) -> bool:
        """Whether everything has answered, or will not, at least once."""
        probes = all(p.outcome is not Outcome.STARTING and not p.busy for p in self.probes)
        waiting = any(self.health[n].outcome is Outcome.STARTING for n in self._collectors)
        return probes and not waiting and not self._closing

    def wake(self) -> None:
        """End the wait of `step` now."""
        os.write(self.wake_fd, b"\0")

    def close(self) -> None:
        """Ship what waits and end the children; a hung one is left behind."""
        self._ship_readings()
        for probe in self.probes:
            probe.close()
        for collector in self._collectors.values():
            if isinstance(collector, KernelLog):
                collector.close()
        os.close(self._wake_read)
        os.close(self.wake_fd)

    # ---- devices

    def _start_probes(self) -> None:
        for probe in self.probes:
            if probe.may_start():
                probe.start()

    def _ask(self, probe: DeviceProbe, due: list[str]) -> None:
        # A probe that still owes an answer is not asked again: its deadline decides, not a queue.
        if not probe.running or probe.busy:
            return
        if Tier.SLOW in due:
            probe.ask("identify")
        for tier in (Tier.SLOW, Tier.MIDDLE, Tier.FAST):
            if tier in due:
                probe.ask("sample", tier.value)
        if Tier.FAST in due:
            probe.ask("events", 0.0)

    def _receive(self, probe: DeviceProbe) -> None:
        health = self.health[probe.name]
        try:
            for answered in probe.receive():
                self._answered(probe, answered, health)
            probe.check()
        except ProbeHung as error:
            health.errors += 1
            self.aggregate.mark(self._named[probe.name], DeviceState.HUNG)
            self._trouble(probe, "hung_probe", "hung_probe", FaultClass.HANG, str(error))
        except ProbeCrashed as error:
            health.errors += 1
            self.aggregate.mark(self._named[probe.name], DeviceState.UNREADABLE)
            self._trouble(probe, "other_fault", "other_fault:probe_crash", FaultClass.HANG, str(error))
        health.outcome, health.reason = probe.outcome, probe.reason
        if probe.outcome is not Outcome.OK:
            self.seen.pop(probe.name, None)  # null, not 0: nobody counted

    def _answered(self, probe: DeviceProbe, answered: Answered, health: CollectorHealth) -> None:
        now = self.time.now()
        if answered.command == "sample":
            health.seconds = answered.seconds  # of the fast tier, which is asked last
        if answered.status != "ok":
            health.errors += 1
            return
        health.succeeded_at = now
        if answered.command == "open":
            # What a device is and all that it says, at once: the schedule's next slow tick may be a minute away.
            probe.ask("identify")
            for tier in (Tier.SLOW, Tier.MIDDLE, Tier.FAST):
                probe.ask("sample", tier.value)
            self._closing = True
        elif answered.command == "identify":
            self._identified(probe, answered.payload, now)
        elif answered.command == "sample":
            self.aggregate.add(Tier(answered.argument), answered.payload, now, self._monotonic())
        elif answered.command == "events":
            self._emit([self._driver_fault(probe, event, now) for event in answered.payload])

    def _identified(self, probe: DeviceProbe, identities: list[DeviceIdentity], now: int) -> None:
        self.aggregate.identify(identities)
        named = {identity.pci_address for identity in identities}
        self.aggregate.mark(self._named[probe.name] - named, DeviceState.LOST)
        self._named[probe.name] |= named
        vendors = {identity.vendor.value for identity in identities} or {probe.name}
        for vendor in vendors:
            self.seen[vendor] = sum(i.vendor == vendor for i in identities)
        for collector in self._collectors.values():
            if isinstance(collector, KernelLog):
                collector.devices = self.aggregate.identities()
        self._emit(self._inventory_changes(identities, vendors, now))

    def _inventory_changes(self, identities: list[DeviceIdentity], vendors: set[str], now: int) -> list[Record]:
        changed: list[Record] = []
        current = {i.device_id: self._inventory_of(i, now) for i in identities}
        for device_id, old in list(self.inventory.items()):
            new = current.get(device_id)
            if new is None and old.vendor not in vendors:
                continue
            if new is not None and new == msgspec.structs.replace(
                old, observed_at=now, valid_from_at=now, boot_id=new.boot_id
            ):
                continue
            changed.append(msgspec.structs.replace(old, observed_at=now, valid_until_at=now, boot_id=self._header[2]))
            del self.inventory[device_id]
        for device_id, new in current.items():
            if device_id not in self.inventory:
                self.inventory[device_id] = new
                changed.append(new)
        return changed

    def _inventory_of(self, identity: DeviceIdentity, now: int) -> Inventory:
        site = self._config.site
        places = {n: getattr(site, n) for n in ("rack", "pool", "power_domain", "cooling_domain", "switch")}
        facts = {
            **{name: value for name, value in identity.values.items() if name in Inventory.__struct_fields__},
            "device_id": identity.device_id,
            "vendor": identity.vendor,
            "model": identity.model,
            "pci_address": identity.pci_address,
            "index": identity.index,
            **{name: value for name, value in places.items() if value},
        }
        cluster, host, boot_id = self._header
        return Inventory(cluster=cluster, host=host, boot_id=boot_id, observed_at=now, valid_from_at=now, **facts)

    # ---- faults

    def _trouble(self, probe: DeviceProbe, kind: str, code: str, fault_class: FaultClass, text: str) -> None:
        now = self.time.now()
        vendor = Vendor(probe.name) if probe.name in ("nvidia", "amd") else Vendor.NONE
        cluster, host, boot_id = self._header
        fault = FaultEvent(
            cluster=cluster,
            host=host,
            boot_id=boot_id,
            observed_at=now,
            vendor=vendor,
            source="agent",
            kind=kind,
            code=f"{code}:{probe.name}",
            fault_class=fault_class,
            severity=Severity.ERROR,
            blame=Blame.UNCLEAR,
            first_at=now,
            last_at=now,
            text=text[:4096],
            trust=Trust.AGENT,
        )
        self._emit([self._counted(fault)])

    def _driver_fault(self, probe: DeviceProbe, event: DriverEvent, now: int) -> FaultEvent:
        identity = self.aggregate.identities().get(event.pci_address)
        vendor = identity.vendor if identity else Vendor(probe.name) if probe.name in EVENT_SOURCES else Vendor.NONE
        row = lookup(vendor.value, event.kind, event.code.partition(":")[2] or event.code)
        cluster, host, boot_id = self._header
        return self._counted(
            FaultEvent(
                cluster=cluster,
                host=host,
                boot_id=boot_id,
                observed_at=now,
                device_id=identity.device_id if identity else event.pci_address,
                vendor=vendor,
                model=identity.model if identity else "",
                pci_address=event.pci_address or None,
                source=EVENT_SOURCES.get(vendor.value, "agent"),
                kind=event.kind,
                code=event.code[:128],
                fault_class=row.fault_class,
                severity=row.severity,
                blame=row.blame,
                secondary=row.secondary,
                first_at=now,
                last_at=now,
                text=event.text[:4096],
                trust=Trust.DRIVER,
                table_version=TABLE_VERSION,
            )
        )

    def _counted(self, fault: FaultEvent) -> FaultEvent:
        """Join a fault to its earlier ones of this run: same device and code, one more."""
        key = (fault.device_id, fault.code)
        known = self._faults.get(key)
        if known is not None:
            fault = msgspec.structs.replace(fault, first_at=known.first_at, count=known.count + 1)
        elif len(self._faults) >= MAX_FAULTS:
            return fault
        self._faults[key] = fault
        return fault

    # ---- the other collectors

    def _start_collector(self, name: str, mono: float) -> None:
        collector = self._collectors[name]
        if name in self._runs:
            return  # still at it
        if isinstance(collector, KernelLog) and any(p.outcome is Outcome.STARTING for p in self.probes):
            return  # its faults are to name devices, and those are not known yet
        deadline = mono + self._config.agent.call_deadline_seconds
        self._runs[name] = _Run(collector, deadline)
        now = self.time.now()
        if isinstance(collector, KernelLog):  # it reads without blocking, every second: a thread would cost more
            self._collect_one(collector, now)
            self._finish_collectors()
            return
        # A thread, because a file of /sys can block when its device does; a daemon, because we never wait for it.
        threading.Thread(target=self._collect_aside, args=(collector, now), name=name, daemon=True).start()

    def _collect_aside(self, collector: Collector, now: int) -> None:
        self._collect_one(collector, now)
        try:
            self.wake()
        except OSError:
            return  # the agent has stopped meanwhile

    def _collect_one(self, collector: Collector, now: int) -> None:
        started = self._monotonic()
        result: list[Record] | Exception
        try:
            result = list(collector.collect(now))
        except Exception as error:  # noqa: BLE001  one collector's fault is its outcome, not the agent's end
            result = error
        self._results.put((collector.name, result, self._monotonic() - started))

    def _finish_collectors(self) -> None:
        while not self._results.empty():
            name, result, seconds = self._results.get()
            self._runs.pop(name, None)
            health = self.health[name]
            health.seconds = seconds
            if isinstance(result, list):
                health.outcome, health.reason, health.succeeded_at = Outcome.OK, "", self.time.now()
                self._emit(self._completed(record) for record in result)
            elif isinstance(result, Absent):
                health.outcome, health.reason = Outcome.ABSENT, str(result)
            else:
                health.errors += 1
                health.outcome = Outcome.FAILED
                health.reason = str(result) if isinstance(result, Failed) else f"{type(result).__name__}: {result}"
        mono = self._monotonic()
        for name, run in self._runs.items():
            if not run.overdue and mono >= run.deadline:
                run.overdue = True
                health = self.health[name]
                health.errors += 1
                health.outcome = Outcome.HUNG
                health.reason = f"no end within {self._config.agent.call_deadline_seconds:g} s"

    def _completed(self, record: Record) -> Record:
        if not isinstance(record, HostReading):
            return record
        cpu, memory = self._cost()
        logs = [c for c in self._collectors.values() if isinstance(c, KernelLog)]
        self.host_reading = msgspec.structs.replace(
            record,
            gpus_seen=dict(self.seen),
            collectors={name: health.outcome.value for name, health in self.health.items()},
            collect_seconds={n: h.seconds for n, h in self.health.items() if h.seconds is not None},
            agent_cpu_seconds_total=cpu,
            agent_memory_bytes=memory,
            kernel_log_lost_total=logs[0].counters.lost if logs else None,
            clock_steps_total=self.time.steps,
            **self._own_facts(),
        )
        return self.host_reading

    def _cost(self) -> tuple[float, int]:
        """CPU seconds and resident bytes of this process and the device children that live."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
        pages = 0
        for pid in (os.getpid(), *(p.pid for p in self.probes)):
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
                if pid != os.getpid():
                    parts = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    cpu += (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError, ValueError):
                continue  # a child that has just ended
        return cpu, pages * resource.getpagesize()

    # ---- what leaves

    def _emit(self, records: Iterable[Record]) -> None:
        for group in split_by_header(records):
            self._out(from_records(group, self._next_seq(group[0].KIND)))
            for record in group:
                if isinstance(record, FaultEvent):
                    self._saw_fault(record)

    def _saw_fault(self, fault: FaultEvent) -> None:
        key = (fault.device_id, fault.kind, fault.code)
        if key in self.event_counts or len(self.event_counts) < MAX_FAULTS:
            self.event_counts[key] = fault.count
        mono = self._monotonic()
        rows = self.aggregate.before_fault(fault.device_id, fault.fault_class.value, mono)
        if rows:
            self._ship(columnar(rows, self._header, self._next_seq("gpu_reading")))

    def _out(self, batch: Batch) -> None:
        self._ship(batch)
        self._watch(batch)

    def _close_interval(self) -> None:
        self._closing = False
        rows = self.aggregate.close_interval(self.time.now(), self._monotonic())
        if rows:
            self._watch(columnar(rows, self._header, 0))
        self._intervals_to_ship -= 1
        if self._intervals_to_ship <= 0:
            self._intervals_to_ship = max(1, round(self._config.agent.ship_seconds / self._config.agent.middle_seconds))
            self._ship_readings()

    def _ship_readings(self) -> None:
        if rows := self.aggregate.take():
            self._ship(columnar(rows, self._header, self._next_seq("gpu_reading")))

    # ---- waiting

    def _deadlines(self) -> list[float]:
        found = [d for p in self.probes if (d := p.deadline()) is not None]
        found += [run.deadline for run in self._runs.values() if not run.overdue]
        return found

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
