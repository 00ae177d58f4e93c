"""The two closed sets around a decision: what may happen to the fleet, and what may follow from it."""

from __future__ import annotations

from msgspec import Struct

from passmuster.records import Finding, HoldEvent
from quarantine.service import HostFacts


class FindingSeen(Struct, frozen=True):
    """A finding opened, was seen again or cleared."""

    finding: Finding


class Tick(Struct, frozen=True):
    """Time passed."""


class HostsReported(Struct, frozen=True):
    """The complete set of hosts that report."""

    hosts: tuple[HostFacts, ...]


class ReadBack(Struct, frozen=True):
    """What the scheduler really does with a held host: one of the words of `Hold.scheduler`, or in_service."""

    hold_id: str
    in_service: bool
    detail: str


class PersonPlaces(Struct, frozen=True, kw_only=True):
    """A person takes a host out."""

    cluster: str
    host: str
    device_id: str
    reason: str
    actor: str
    hours: float | None


class PersonApproves(Struct, frozen=True, kw_only=True):
    """A person turns a proposal or a refused hold into a hold, or renews a lapsed one."""

    hold_id: str
    reason: str
    actor: str


class PersonReleases(Struct, frozen=True, kw_only=True):
    """A person ends a hold, or declines a proposal."""

    hold_id: str
    reason: str
    actor: str


class PersonExpires(Struct, frozen=True, kw_only=True):
    """A person moves a hold into the queue of those that wait for a person."""

    hold_id: str
    reason: str
    actor: str


Event = FindingSeen | Tick | HostsReported | ReadBack | PersonPlaces | PersonApproves | PersonReleases | PersonExpires


class Fact(Struct, frozen=True):
    """An action that is a fact for the ledger: with its time, expiry and idempotency key in the event."""

    event: HoldEvent


class Propose(Fact, frozen=True):
    """Ask a person to hold."""


class Watch(Fact, frozen=True):
    """Remember it for a while; it ends by itself."""


class Place(Fact, frozen=True):
    """Hold."""


class Approve(Fact, frozen=True):
    """A person agreed."""


class Release(Fact, frozen=True):
    """End it."""


class Lapse(Fact, frozen=True):
    """Move it into a person's queue."""


class Refuse(Fact, frozen=True):
    """A brake said no."""


class Note(Fact, frozen=True):
    """Write it down."""


class Request(Struct, frozen=True, kw_only=True):
    """An action on a scheduler; carrying it out twice changes nothing."""

    hold_id: str
    cluster: str
    host: str
    device_id: str
    reason: str  # names check, device, value and bound, for those who read the scheduler's own list
    requested_at: int
    expires_at: int  # not carried out after this: the world has moved on
    key: str
    dry_run: bool


class Drain(Request, frozen=True, kw_only=True):
    """Let running jobs end and give the host no new ones."""


class Resume(Request, frozen=True, kw_only=True):
    """Lift our own drain."""


Action = Propose | Watch | Place | Approve | Release | Lapse | Refuse | Note | Drain | Resume
