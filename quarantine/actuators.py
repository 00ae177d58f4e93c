"""Carries decided actions out on a scheduler: the dry run that only says what it would do, and a recording one."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, assert_never

from msgspec import Struct

from passmuster.records import HoldEvent, HoldKind
from quarantine.actions import (
    Action,
    Approve,
    Drain,
    Lapse,
    Note,
    Place,
    Propose,
    Refuse,
    Release,
    Request,
    Resume,
    Watch,
)
from quarantine.state import ACTUATOR_PREFIX, DRAINED, FAILED, FOREIGN, RESUMED, SCHEDULER


class Schedule(StrEnum):
    """What a scheduler does with a host."""

    IN_SERVICE = "in service"
    DRAINED_BY_US = "drained by us"
    DRAINED_BY_OTHER = "drained by another owner"
    UNKNOWN = "unknown"  # the scheduler did not answer, or does not know the host


class HostSchedule(Struct, frozen=True):
    """The actual state of one host, as read from its scheduler."""

    schedule: Schedule
    detail: str = ""


class Outcome(Struct, frozen=True):
    """What an attempt came to, in words; what was really done, not what was asked."""

    done: bool
    detail: str


class Actuator(Protocol):
    """One scheduler. Each method keeps a deadline of its own and tells the scheduler's troubles without raising."""

    name: str

    def apply(self, request: Drain | Resume) -> Outcome:
        """Drain or resume. Idempotent. A drain of another owner is neither replaced nor lifted."""

    def read_back(self, cluster: str, host: str) -> HostSchedule:
        """Read the actual state."""


class DryRun:
    """Touches nothing; its outcomes say what would have been done."""

    name = "dry-run"

    def apply(self, request: Drain | Resume) -> Outcome:
        """Say what would be done."""
        verb = "drain" if isinstance(request, Drain) else "resume"
        return Outcome(done=True, detail=f"would {verb} {request.host} with the reason: {request.reason}")

    def read_back(self, cluster: str, host: str) -> HostSchedule:
        """Answer that nothing is known: no scheduler was asked."""
        return HostSchedule(Schedule.UNKNOWN, f"dry run: no scheduler was asked about {host} of {cluster}")


class Recording:
    """A scheduler in memory, for tests and demonstrations: hosts, who drained them, and all that was asked of it."""

    name = "recording"

    def __init__(self) -> None:
        """Start with every host in service."""
        self.drained: dict[tuple[str, str], tuple[str, str]] = {}  # host -> owner (hold id or a name), reason
        self.applied: list[Drain | Resume] = []
        self.out_of_order = ""  # set to a sentence, and every attempt fails with it

    def apply(self, request: Drain | Resume) -> Outcome:
        """Drain or resume in memory."""
        self.applied.append(request)
        if self.out_of_order:
            return Outcome(done=False, detail=self.out_of_order)
        key = request.cluster, request.host
        owner, _ = self.drained.get(key, ("", ""))
        if owner not in ("", request.hold_id):
            return Outcome(done=True, detail=f"drained by {owner}, another owner; left as it is")
        if isinstance(request, Drain):
            self.drained[key] = (request.hold_id, request.reason)
            return Outcome(done=True, detail=f"drained {request.host}")
        self.drained.pop(key, None)
        return Outcome(done=True, detail=f"resumed {request.host}")

    def read_back(self, cluster: str, host: str) -> HostSchedule:
        """Read from memory."""
        if self.out_of_order:
            return HostSchedule(Schedule.UNKNOWN, self.out_of_order)
        owner, reason = self.drained.get((cluster, host), ("", ""))
        if not owner:
            return HostSchedule(Schedule.IN_SERVICE, "no drain is set")
        ours = owner.startswith("hold-")
        return HostSchedule(Schedule.DRAINED_BY_US if ours else Schedule.DRAINED_BY_OTHER, reason)


def carry_out(action: Action, actuator: Actuator, now: int) -> list[HoldEvent]:
    """Carry one action out and return the facts that it adds to the ledger.

    Facts are themselves; a request goes to the actuator and its outcome and the state read back afterwards are facts.
    The caller makes facts durable before it carries requests out, so that a crash in between repeats the request.
    """
    match action:
        case Propose() | Watch() | Place() | Approve() | Release() | Lapse() | Refuse() | Note():
            return [action.event]
        case Drain() | Resume():
            if now > action.expires_at:
                outcome, actual = Outcome(done=False, detail="too old to be carried out"), None
            else:
                outcome = actuator.apply(action)
                # A dry run changes nothing that could be read back.
                actual = None if action.dry_run else actuator.read_back(action.cluster, action.host)
            return _told(action, outcome, actual, actuator, now)
        case _:
            assert_never(action)


def _told(
    request: Drain | Resume, outcome: Outcome, actual: HostSchedule | None, actuator: Actuator, now: int
) -> list[HoldEvent]:
    if isinstance(request, Drain):
        wanted, reached = Schedule.DRAINED_BY_US, DRAINED
    else:
        wanted, reached = Schedule.IN_SERVICE, RESUMED
    scheduler = reached if outcome.done else FAILED
    detail = outcome.detail
    if outcome.done and actual is not None and actual.schedule not in (wanted, Schedule.UNKNOWN):
        # The scheduler's own answer decides: an attempt that reports success and changes nothing has failed.
        foreign = actual.schedule == Schedule.DRAINED_BY_OTHER
        scheduler = (FOREIGN if isinstance(request, Drain) else RESUMED) if foreign else FAILED
        detail = f"{detail}; read back: {actual.schedule.value}"
    actor = f"{ACTUATOR_PREFIX}{actuator.name}"
    facts = [_event(request, HoldKind.ACTED, now, actor=actor, reason=detail, own={SCHEDULER: scheduler})]
    if actual is not None:
        words = f"{actual.schedule.value}: {actual.detail}" if actual.detail else actual.schedule.value
        facts.append(_event(request, HoldKind.READ_BACK, now, actor=actor, reason=words, own=None))
    return facts


def _event(
    request: Request, kind: HoldKind, now: int, *, actor: str, reason: str, own: dict[str, str] | None
) -> HoldEvent:
    key = f"{request.key}/{kind.value}"
    return HoldEvent(
        cluster=request.cluster,
        host=request.host,
        boot_id="",
        observed_at=now,
        event_id=f"{request.hold_id}/{key}",
        hold_id=request.hold_id,
        device_id=request.device_id,
        kind=kind,
        actor=actor,
        reason=reason[:4096],
        idempotency_key=key,
        evidence=own,
    )
