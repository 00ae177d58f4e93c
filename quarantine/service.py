"""The one door to quarantine: pages, commands and later an HTTP API act and read only through it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from passmuster.records import Finding, HoldEvent


class Hold(Struct, frozen=True, kw_only=True):
    """A hold as its events and the time make it; computed, never stored."""

    hold_id: str
    cluster: str
    host: str
    device_id: str
    state: str  # proposed, held, lapsed (waits for a person), released, refused
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


class QuarantineService(Protocol):
    """Everything that a person, page or program may ask of quarantine. `actor` is a person's name."""

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
        """Turn a proposal into a hold."""

    def release(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Release a hold of ours; never blocked by a brake."""

    def expire(self, hold_id: str, actor: str, reason: str, now: int) -> Hold:
        """Let a hold lapse now into a person's queue."""

    def brakes(self, now: int) -> list[dict[str, str | int | float | bool]]:
        """Return each brake: name, scope, used, limit, open."""
