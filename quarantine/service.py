"""The one door to quarantine: pages, commands and later an HTTP API act and read only through it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from passmuster.errors import UserError
from passmuster.exits import ExitCode
from passmuster.records import Finding, HoldEvent


class HoldError(UserError):
    """There is no such hold, or it is not in a state in which this can be done."""

    exit_code = ExitCode.FAIL


class LedgerError(UserError):
    """The ledger cannot be opened, read or written."""

    exit_code = ExitCode.INCOMPLETE


class HostFacts(Struct, frozen=True, kw_only=True):
    """A host that reports now, and where it stands. The brakes count only these hosts."""

    cluster: str
    host: str
    device_class: str  # product name of its devices; the cohort that the brakes count
    pool: str = ""
    rack: str = ""  # empty where it is not known; then no rack brake applies
    in_service: bool = True  # false when anybody's drain, not only ours, keeps it out of scheduling


class Hold(Struct, frozen=True, kw_only=True):
    """A hold as its events and the time make it; computed, never stored."""

    hold_id: str
    cluster: str
    host: str  # empty for a suspicion that concerns many hosts
    device_id: str
    state: str  # watch, proposed, refused, held, lapsed (waits for a person), released
    check: str
    fault_class: str | None
    owner: str  # policy or a person's name
    reason: str
    value: float | None
    bound: float | None
    placed_at: int
    expires_at: int | None
    releases_when: str
    dry_run: bool
    evidence: dict[str, str]
    events: tuple[HoldEvent, ...]
    device_class: str = ""
    pool: str = ""
    rack: str = ""
    findings: tuple[str, ...] = ()  # dedup keys of all findings that joined it, the deciding one first
    scheduler: str = "not told"  # or drained, drained by another owner, returned by hand, resumed, failed
    released_at: int | None = None
    next_step: str = ""


class QuarantineService(Protocol):
    """Everything that a person, page or program may ask of quarantine. `actor` is a person's name.

    All times are nanoseconds UTC. Text from people is cleaned and bounded; what cannot be taken raises UserError
    with one clear sentence.
    """

    def report_hosts(self, hosts: list[HostFacts], now: int) -> None:
        """Tell the complete set of hosts that report now; the composition root calls it as the set changes."""

    def observe(self, findings: list[Finding], now: int) -> list[HoldEvent]:
        """Let the policy decide on findings; returns the facts that were added to the ledger."""

    def tick(self, now: int) -> list[HoldEvent]:
        """Let time pass: expiry, read-back, retries of actions."""

    def holds(self, now: int, *, host: str | None = None, open_only: bool = True) -> list[Hold]:
        """Return holds, newest first."""

    def why(self, hold_id: str, now: int) -> Hold:
        """Return one hold with all its events. Raises UserError for an unknown id."""

    def place(
        self, host: str, reason: str, actor: str, now: int, *, device_id: str = "", hours: float | None = None
    ) -> Hold:
        """Place a person's hold; it outranks the machine."""

    def approve(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Turn a proposal, or what a brake refused, into a hold; renews a lapsed one."""

    def release(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Release a hold of ours, or decline a proposal; never blocked by a brake."""

    def expire(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Let a hold lapse now into a person's queue."""

    def brakes(self, now: int) -> list[dict[str, str | int | float | bool]]:
        """Return each brake: name, scope, used, limit, open (true while it lets a further hold through)."""

    def facts_after(self, sequence: int) -> tuple[int, list[HoldEvent]]:
        """Return the ledger's facts after a sequence number, and the last number; 0 starts at the beginning."""
