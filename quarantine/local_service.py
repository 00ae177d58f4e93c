"""Quarantine in this process: decides under a lock, makes facts durable, and only then tells the scheduler."""

from __future__ import annotations

import math
import re
import threading

from msgspec import structs

from passmuster.config import Config
from passmuster.errors import UserError
from passmuster.records import Finding, HoldEvent
from quarantine.actions import (
    Action,
    Drain,
    Event,
    Fact,
    FindingSeen,
    HostsReported,
    PersonApproves,
    PersonExpires,
    PersonPlaces,
    PersonReleases,
    ReadBack,
    Resume,
    Tick,
)
from quarantine.actuators import Actuator, DryRun, Schedule, carry_out
from quarantine.brakes import on_fleet
from quarantine.ledger import Ledger
from quarantine.policy import Policy, decide, plain, root_first
from quarantine.service import Hold, HoldError, HostFacts
from quarantine.state import ACTUATOR_PREFIX, DRAINED, FOREIGN, POLICY_ACTOR, FleetState, fold, view, with_hosts

MAX_REASON_CHARACTERS = 1000
MAX_ACTOR_CHARACTERS = 128
MAX_HOLD_HOURS = 24.0 * 366
RECONCILE_SECONDS = 300.0  # how often the scheduler's state of held hosts is read
HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


class LocalService:
    """A QuarantineService over a ledger. Threads may share it, and other processes may use the same ledger.

    Without a scheduler (the dry-run actuator) every hold is a dry run, whatever the policy says.
    """

    def __init__(self, ledger: Ledger, policy: Policy, actuator: Actuator, *, cluster: str = "default") -> None:
        """Read the ledger and stand where it stands. `cluster` is taken for hosts that nobody has reported."""
        self._ledger = ledger
        self._rehearsal = DryRun()
        self._actuator = actuator
        self._has_scheduler = not isinstance(actuator, DryRun)
        self._policy = policy if self._has_scheduler else structs.replace(policy, act=False)
        self._cluster = cluster
        self._state = with_hosts(FleetState(), ledger.hosts())
        self._sequence = 0
        self._deciding = threading.RLock()
        self._acting = threading.Lock()  # apart, so that a slow scheduler does not stop the pages
        self._reconciled_at: int | None = None
        self._refresh()

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def report_hosts(self, hosts: list[HostFacts], now: int) -> None:
        """Tell the complete set of hosts that report now. Kept in the ledger, so that commands see the same brakes."""
        with self._deciding:
            state, _ = decide(self._state, HostsReported(tuple(hosts)), self._policy, now)
            if state.hosts == self._state.hosts:
                return
            with self._ledger.writing() as writing:
                writing.replace_hosts(list(state.hosts.values()))
            self._state = state

    def hosts(self) -> list[HostFacts]:
        """Return the hosts that report, as last told."""
        return list(self._state.hosts.values())

    def observe(self, findings: list[Finding], now: int) -> list[HoldEvent]:
        """Let the policy decide on findings, roots first; returns the facts that were added to the ledger."""
        return self._run([FindingSeen(finding) for finding in root_first(findings)], now)

    def tick(self, now: int) -> list[HoldEvent]:
        """Let time pass: expiry, retries, and every five minutes a look at what the scheduler really does."""
        events = self._run([Tick()], now)
        due = self._reconciled_at is None or abs(now - self._reconciled_at) >= RECONCILE_SECONDS * 1e9
        if due and self._has_scheduler:
            self._reconciled_at = now
            events += self._run(self._read_back(), now)
        return events

    def holds(self, now: int, *, host: str | None = None, open_only: bool = True) -> list[Hold]:
        """Return holds, newest first."""
        with self._deciding:
            self._refresh()
            cases = self._state.cases.values()
        chosen = [case for case in cases if (host is None or case.host == host) and (case.is_open or not open_only)]
        return [view(case, now) for case in sorted(chosen, key=lambda case: (-case.placed_at, case.hold_id))]

    def why(self, hold_id: str, now: int) -> Hold:
        """Return one hold with all its events; the beginning of an id will do. Raises HoldError for an unknown id."""
        with self._deciding:
            self._refresh()
            return view(self._state.cases[self._full_id(hold_id)], now)

    def place(
        self, host: str, reason: str, actor: str, now: int, *, device_id: str = "", hours: float | None = None
    ) -> Hold:
        """Place a person's hold; it outranks the machine. `hours` None takes the policy's."""
        if HOST_NAME.fullmatch(host) is None:
            raise UserError(f"{plain(host)[:64]!r} is not a host name: letters, digits, dots, dashes, 253 at most")
        if hours is not None and not (math.isfinite(hours) and 0 < hours <= MAX_HOLD_HOURS):
            raise UserError(f"hours is {hours:g}; it must be more than 0 and at most {MAX_HOLD_HOURS:g}")
        if len(device_id) > 256 or plain(device_id) != device_id:
            raise UserError("a device id has at most 256 printable characters")
        clusters = [facts.cluster for facts in self.hosts() if facts.host == host]
        if len(clusters) > 1:
            raise UserError(f"{host} reports from {' and '.join(sorted(clusters))}; only one cluster can be meant")
        event = PersonPlaces(
            cluster=clusters[0] if clusters else self._cluster,
            host=host,
            device_id=device_id,
            reason=_reason(reason),
            actor=_actor(actor),
            hours=hours,
        )
        facts = self._run([event], now)
        return self.why(facts[0].hold_id, now)

    def approve(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Turn a proposal, or what a brake refused, into a hold; renews a lapsed one."""
        hold_id = self._full_id(hold_id)
        self._run([PersonApproves(hold_id=hold_id, reason=_reason(reason), actor=_actor(actor))], now)
        return self.why(hold_id, now)

    def release(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Release a hold of ours, or decline a proposal; never blocked by a brake."""
        hold_id = self._full_id(hold_id)
        self._run([PersonReleases(hold_id=hold_id, reason=_reason(reason), actor=_actor(actor))], now)
        return self.why(hold_id, now)

    def expire(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Let a hold lapse now into a person's queue."""
        hold_id = self._full_id(hold_id)
        self._run([PersonExpires(hold_id=hold_id, reason=_reason(reason), actor=_actor(actor))], now)
        return self.why(hold_id, now)

    def brakes(self, now: int) -> list[dict[str, str | int | float | bool]]:
        """Return each brake: name, scope, used, limit, open (true while it lets a further hold through)."""
        with self._deciding:
            self._refresh()
            state = self._state
        return [
            {"name": brake.name, "scope": brake.scope, "used": brake.used, "limit": brake.limit, "open": brake.open}
            for brake in on_fleet(state, self._policy.limits, now)
        ]

    def facts_after(self, sequence: int) -> tuple[int, list[HoldEvent]]:
        """Return the ledger's facts after a sequence number, and the last number; 0 starts at the beginning."""
        return self._ledger.after(sequence)

    def _refresh(self) -> None:
        """Take in what other processes have written."""
        self._sequence, events = self._ledger.after(self._sequence)
        self._state = fold(self._state, events)

    def _run(self, events: list[Event], now: int) -> list[HoldEvent]:
        """Decide, make the facts durable, then carry requests out. Returns every fact that was added."""
        facts: list[HoldEvent] = []
        with self._deciding:
            self._refresh()
            actions = self._decide(events, now)
            if any(isinstance(action, Fact) for action in actions):
                # Decided again inside the transaction, because another process may have used up a brake meanwhile.
                with self._ledger.writing() as writing:
                    self._sequence, others = writing.after(self._sequence)
                    self._state = fold(self._state, others)
                    actions = self._decide(events, now)
                    facts = [action.event for action in actions if isinstance(action, Fact)]
                    writing.append(facts)
                self._refresh()
        for action in actions:
            if isinstance(action, Drain | Resume):
                facts += self._tell(action, now)
        return facts

    def _decide(self, events: list[Event], now: int) -> list[Action]:
        state, actions = self._state, list[Action]()
        for event in events:
            state, more = decide(state, event, self._policy, now)
            actions += more
        return actions

    def _tell(self, request: Drain | Resume, now: int) -> list[HoldEvent]:
        if not request.dry_run and not self._has_scheduler:
            return []  # the process that has the scheduler does it with its next tick
        with self._acting:
            with self._deciding:
                self._refresh()
                case = self._state.cases[request.hold_id]
            if any(key.startswith(f"{request.key}/") for key in case.keys):
                return []  # another thread was faster
            if case.is_held != isinstance(request, Drain):
                return []  # the hold was released or placed again while the request waited
            facts = carry_out(request, self._rehearsal if request.dry_run else self._actuator, now)
            with self._ledger.writing() as writing:
                writing.append(facts)
            with self._deciding:
                self._refresh()
        return facts

    def _read_back(self) -> list[Event]:
        """Read the actual state of every host that we drained."""
        events: list[Event] = []
        for case in self._state.held_cases():
            if case.dry_run or case.scheduler not in (DRAINED, FOREIGN):
                continue
            actual = self._actuator.read_back(case.cluster, case.host)
            events.append(ReadBack(case.hold_id, actual.schedule == Schedule.IN_SERVICE, actual.detail))
        return events

    def _full_id(self, hold_id: str) -> str:
        """Return the id that begins so; raises HoldError for none and for several."""
        with self._deciding:
            self._refresh()
            if hold_id in self._state.cases:
                return hold_id
            matches = [known for known in self._state.cases if hold_id and known.startswith(hold_id)]
        if len(matches) == 1:
            return matches[0]
        shown = plain(hold_id)[:64]
        if matches:
            raise HoldError(f"{len(matches)} holds begin with {shown!r}; give more of the id")
        raise HoldError(f"there is no hold {shown!r}; `muster holds list --all` shows every id")


def open_service(config: Config, *, ledger: str | None = None, actuator: Actuator | None = None) -> LocalService:
    """Build the service that the configuration describes. Raises LedgerError when the ledger cannot be opened."""
    return LocalService(
        Ledger(ledger or config.quarantine.ledger),
        Policy.from_config(config.quarantine),
        actuator or DryRun(),
        cluster=config.site.cluster,
    )


def _reason(text: str) -> str:
    if len(text) > MAX_REASON_CHARACTERS:
        raise UserError(f"a reason has at most {MAX_REASON_CHARACTERS} characters; this one has {len(text)}")
    cleaned = plain(text)
    if not cleaned:
        raise UserError("a reason in words is needed, for those who read the hold later")
    return cleaned


def _actor(text: str) -> str:
    cleaned = plain(text)
    if not cleaned or len(cleaned) > MAX_ACTOR_CHARACTERS:
        raise UserError(f"the actor must be a person's name of 1 to {MAX_ACTOR_CHARACTERS} characters")
    if cleaned.casefold() == POLICY_ACTOR or cleaned.casefold().startswith(ACTUATOR_PREFIX):
        raise UserError(f"{cleaned!r} names a part of the machine, not a person")
    return cleaned
