"""The two sources of `muster up`: this machine's own agent, and the simulated fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from collectors.simulated import SimulatedFleet
from collectors.simulated_records import CLUSTER
from dashboards.running import write_atomically
from passmuster.batch import Batch
from passmuster.errors import UserError
from quarantine.actions import Drain, Resume
from quarantine.actuators import Outcome, Recording
from quarantine.service import HostFacts


class Intervention(Struct, frozen=True):
    """What the simulated scheduler did to a host, and for which hold."""

    at: int
    host: str
    state: str
    hold_id: str
    reason: str


class FleetState(Struct):
    """What must be known to go on with a simulated fleet: which fleet, what was done to it, and when it was left."""

    hosts: int
    seed: int
    start_at: int
    now_at: int
    interventions: list[Intervention] = []


class SimulatedSource:
    """The simulated fleet, at real time or faster. Its clock stands still while nobody runs it."""

    name = "simulated fleet"

    def __init__(self, *, hosts: int, seed: int, speed: float, path: Path, started_at: int) -> None:
        self._path = path
        self.state = left_off(path, hosts, seed) or FleetState(hosts, seed, started_at, started_at)
        self.fleet = SimulatedFleet(hosts=hosts, seed=seed, start_at=self.state.start_at)
        for done in self.state.interventions:
            self.fleet.set_scheduler_state(done.host, done.state, done.at)
        self.fleet.skip_to(self.state.now_at)
        self._resumed_at = self.state.now_at
        self.speed = speed
        self._began = time.monotonic()
        self._rest: Iterator[Batch] = iter(())
        self._until = self._complete_until = self.state.now_at
        self._facts = [
            HostFacts(cluster=CLUSTER, host=i.host, device_class=i.model.name, pool=i.pool, rack=i.rack)
            for i in self.fleet.hosts()
        ]

    def start(self) -> None:
        """Let the fleet's time run from now on."""
        self._began = time.monotonic()

    def stop(self) -> None:
        """Nothing to end."""

    def close(self) -> None:
        """Nothing to release."""

    def now(self) -> int:
        """Return the fleet's time: real time scaled by the speed, from where it was left."""
        return self._resumed_at + int((time.monotonic() - self._began) * self.speed * 1e9)

    def drain(self, timeout_seconds: float, at_most: int) -> list[Batch]:
        """Return what the fleet said until now; never waits, because the caller's rounds have a period."""
        fresh = list(islice(self._rest, at_most))
        if not fresh:
            self._until = self.now()
            self._rest = self.fleet.batches(self._until)
            fresh = list(islice(self._rest, at_most))
        if len(fresh) < at_most:
            self._complete_until = self._until
        return fresh

    def checkpoint(self) -> None:
        """Remember how far the store has got."""
        self.state.now_at = self._complete_until
        write_atomically(self._path, msgspec.json.encode(self.state))

    def hosts(self) -> list[HostFacts]:
        """Return the simulated hosts that are in service or drained by us; all of them report to somebody."""
        return self._facts

    def metrics(self) -> bytes:
        """Return nothing: the devices of a simulated fleet are in the store, not on this machine's /metrics."""
        return b""


def left_off(path: Path, hosts: int, seed: int) -> FleetState | None:
    """Read where an earlier run ended; None when there was none. Raises UserError for another or a damaged fleet."""
    if not path.is_file():
        return None
    try:
        state = msgspec.json.decode(path.read_bytes(), type=FleetState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove {path.parent} to start afresh") from None
    if (state.hosts, state.seed) != (hosts, seed):
        raise UserError(
            f"{path.parent} holds a simulated fleet of {state.hosts} hosts, seed {state.seed}: "
            "ask for the same, or name another --data-dir"
        )
    return state


class SimulatedScheduler(Recording):
    """The simulated fleet's scheduler: a drained host gets no jobs, one that comes back was serviced meanwhile."""

    name = "simulated scheduler"

    def __init__(self, source: SimulatedSource) -> None:
        super().__init__()
        self._source = source
        for done in source.state.interventions:
            key = (CLUSTER, done.host)
            if done.state == "drained":
                self.drained[key] = (done.hold_id, done.reason)
            else:
                self.drained.pop(key, None)

    def apply(self, request: Drain | Resume) -> Outcome:
        """Drain or resume in the simulated fleet."""
        key = (request.cluster, request.host)
        before = key in self.drained
        outcome = super().apply(request)
        if (key in self.drained) != before:
            state = "in_service" if before else "drained"
            at = self._source.now()
            self._source.fleet.set_scheduler_state(request.host, state, at)
            done = Intervention(at, request.host, state, request.hold_id, request.reason)
            self._source.state.interventions.append(done)
            self._source.checkpoint()
        return outcome
