"""How many hosts the machine may hold: every limit counted at the moment of a decision, without clock or I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from msgspec import Struct

from passmuster.records import FaultClass, HoldKind
from quarantine.service import HostFacts
from quarantine.state import HOUR, FleetState, HostKey, Recent

DAY = 24 * HOUR

# A program can hang a device; it cannot wear out memory or pull a card off the bus. Only where a program may be the
# cause does one job's (user's, image's, software's) evidence count against it.
PROGRAM_CAN_CAUSE = frozenset({FaultClass.HANG, FaultClass.APPLICATION})


class Limits(Struct, frozen=True, kw_only=True):
    """The numbers of the configuration's [quarantine] that the brakes need."""

    max_held_share: float
    max_held_hosts: int
    max_held_per_rack: int
    max_held_per_hour: int
    max_same_cause_per_hour: int
    min_in_service_share: float


class Brake(Struct, frozen=True):
    """One limit in one scope. It lets one more hold through while `used` is below `limit`."""

    name: str
    scope: str
    used: int
    limit: int

    @property
    def open(self) -> bool:
        """Whether one more hold may pass."""
        return self.used < self.limit

    def sentence(self) -> str:
        """Say in plain words why it refuses."""
        return f"{WORDS[self.name].format(scope=self.scope or 'unnamed')}: {self.used} of {self.limit}"


WORDS = {
    "unreported": "host {scope} is not among those that report, so its pool and rack are not known",
    "device_class": "hosts with {scope} held at once",
    "pool": "hosts of pool {scope} held at once",
    "rack": "hosts of rack {scope} held at once",
    "rate": "new holds in pool {scope} within an hour",
    "cause": "hosts with the new cause {scope} within an hour, which looks like a common cause",
    "capacity": "hosts of pool {scope} out of service for any reason",
    "job": "hosts held within a day on evidence of {scope}, which looks like the program",
}
"""Name of each brake: what it counts, in plain words."""


def share_of(share: float, count: int) -> int:
    """Return the whole hosts in a share, rounded down. 0.29 of 100 is 29, whatever floats say."""
    return math.floor(Fraction(str(share)) * count)


def on_hold(
    state: FleetState,
    key: HostKey,
    limits: Limits,
    now: int,
    *,
    cause: str,
    fault_class: FaultClass,
    origins: dict[str, str],
) -> Iterator[Brake]:
    """Yield every brake that applies to a machine hold of this host, the host itself not counted as held.

    The common cause comes first, because it explains the others; counting stops at a limit, because a storm of refused
    findings asks again and again.
    """
    facts = state.hosts.get(key)
    if facts is None:
        yield Brake("unreported", key[1], 0, 0)
        return
    at = _At(state, limits, now, facts.cluster, key)
    yield _cause(at, cause)
    yield _device_class(at, facts.device_class)
    yield _pool(at, facts.pool)
    if facts.rack:
        yield _rack(at, facts.rack)
    yield _capacity(at, facts.pool)
    yield _rate(at, facts.pool)
    if fault_class in PROGRAM_CAN_CAUSE:
        for name, text in sorted(origins.items()):
            yield _origin(at, name, text)


def on_fleet(state: FleetState, limits: Limits, now: int) -> list[Brake]:
    """Return every brake as it stands, for the page: each device class, pool, rack and recent cause."""
    brakes: list[Brake] = []
    for cluster, device_class in sorted(state.hosts_by_class):
        brakes.append(_device_class(_At(state, limits, now, cluster, None), device_class))
    for cluster, pool in sorted(state.hosts_by_pool):
        brakes.append(_pool(_At(state, limits, now, cluster, None), pool))
        brakes.append(_rate(_At(state, limits, now, cluster, None), pool))
        brakes.append(_capacity(_At(state, limits, now, cluster, None), pool))
    racks = {(case.cluster, state.place(case).rack) for case in state.held_cases()}
    brakes.extend(_rack(_At(state, limits, now, cluster, None), rack) for cluster, rack in sorted(racks) if rack)
    causes = {(entry.cluster, entry.cause) for entry in state.recent if entry.at > now - HOUR and entry.host}
    brakes.extend(_cause(_At(state, limits, now, cluster, None), cause) for cluster, cause in sorted(causes))
    return brakes


class _At(Struct, frozen=True):
    """Where and when is counted; `other` is the host that the hold would be for, which counts only once."""

    state: FleetState
    limits: Limits
    now: int
    cluster: str
    other: HostKey | None

    def held(self) -> list[HostFacts]:
        """Return where the other held hosts of this cluster stand."""
        return [
            self.state.place(case)
            for case in self.state.held_cases()
            if case.cluster == self.cluster and case.host_key != self.other
        ]

    def hosts_of(self, span: int, counts: Callable[[Recent], bool], enough: int) -> int:
        """Count other hosts to which the policy did something of this kind within the span, up to `enough`."""
        hosts: set[str] = set()
        for entry in reversed(self.state.recent):
            # A fact from the future (a clock that jumped back) counts too: a brake errs on the side of stopping.
            if entry.at <= self.now - span or not entry.by_policy or not entry.host or entry.cluster != self.cluster:
                continue
            if counts(entry) and (entry.cluster, entry.host) != self.other:
                hosts.add(entry.host)
                if len(hosts) >= enough:
                    break
        return len(hosts)


def _device_class(at: _At, device_class: str) -> Brake:
    used = sum(facts.device_class == device_class for facts in at.held())
    share = share_of(at.limits.max_held_share, at.state.hosts_by_class.get((at.cluster, device_class), 0))
    # A small fleet could never hold anything if a tenth of it were less than one host.
    return Brake("device_class", device_class, used, max(1, share) if at.limits.max_held_share > 0 else 0)


def _pool(at: _At, pool: str) -> Brake:
    return Brake("pool", pool, sum(facts.pool == pool for facts in at.held()), at.limits.max_held_hosts)


def _rack(at: _At, rack: str) -> Brake:
    return Brake("rack", rack, sum(facts.rack == rack for facts in at.held()), at.limits.max_held_per_rack)


def _rate(at: _At, pool: str) -> Brake:
    limit = at.limits.max_held_per_hour
    used = at.hosts_of(HOUR, lambda entry: entry.kind == HoldKind.PLACED and entry.pool == pool, limit)
    return Brake("rate", pool, used, limit)


def _cause(at: _At, cause: str) -> Brake:
    """Count proposals and refusals too: a cause does not become less common because we stopped holding for it."""
    limit = at.limits.max_same_cause_per_hour
    return Brake("cause", cause, at.hosts_of(HOUR, lambda entry: entry.cause == cause, limit), limit)


def _capacity(at: _At, pool: str) -> Brake:
    members = at.state.hosts_by_pool.get((at.cluster, pool), frozenset())
    # The few that are out are looked up among the members, not the other way round.
    out = {key for key in at.state.out_elsewhere | at.state.held.keys() if key in members and key != at.other}
    stay = math.ceil(Fraction(str(at.limits.min_in_service_share)) * len(members))
    return Brake("capacity", pool, len(out), len(members) - stay)


def _origin(at: _At, name: str, text: str) -> Brake:
    used = at.hosts_of(DAY, lambda entry: entry.kind == HoldKind.PLACED and (name, text) in entry.origins, 1)
    return Brake("job", f"{name} {text}", used, 1)
