"""Carrying actions out: each member of the closed set, and the two schedulers of our own."""

from __future__ import annotations

import pytest
from msgspec import structs

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
    Resume,
    Watch,
)
from quarantine.actuators import Actuator, DryRun, HostSchedule, Outcome, Recording, Schedule, carry_out
from quarantine.state import SCHEDULER

NOW = 1_790_000_000_000_000_000
FACT = HoldEvent(
    cluster="c", host="h", boot_id="", observed_at=NOW, event_id="e", hold_id="hold-1", kind=HoldKind.NOTED, actor="a"
)
DRAIN = Drain(
    hold_id="hold-1",
    cluster="c",
    host="h",
    device_id="s",
    reason="why",
    requested_at=NOW,
    expires_at=NOW + 10,
    key="drain/0",
    dry_run=False,
)
RESUME = Resume(**structs.asdict(structs.replace(DRAIN, key="resume/1")))


class Liar:
    """A scheduler that reports success and does nothing."""

    name = "liar"

    def apply(self, request: Drain | Resume) -> Outcome:
        """Report success."""
        return Outcome(done=True, detail=f"done with {request.host}")

    def read_back(self, cluster: str, host: str) -> HostSchedule:
        """Tell the truth."""
        return HostSchedule(Schedule.IN_SERVICE)


@pytest.mark.parametrize("kind", [Propose, Watch, Place, Approve, Release, Lapse, Refuse, Note])
def test_a_fact_is_itself(kind: type[Place]) -> None:
    """Facts touch no scheduler."""
    scheduler = Recording()
    assert carry_out(kind(FACT), scheduler, NOW) == [FACT]
    assert scheduler.applied == []


@pytest.mark.parametrize(
    ("action", "actuator", "expected"),
    [
        (DRAIN, Recording(), "drained"),
        (DRAIN, DryRun(), "drained"),
        (DRAIN, Liar(), "failed"),
        (RESUME, Recording(), "resumed"),
    ],
)
def test_what_a_request_comes_to(action: Action, actuator: Actuator, expected: str) -> None:
    """The state read back decides; a success that changed nothing is a failure."""
    facts = carry_out(action, actuator, NOW)
    assert facts[0].evidence == {SCHEDULER: expected}
    assert facts[0].kind == HoldKind.ACTED
    assert facts[0].actor == f"actuator:{actuator.name}"


def test_a_request_that_is_too_old_is_not_carried_out() -> None:
    """A drain that waited too long for a scheduler fails, and is decided anew."""
    scheduler = Recording()
    (fact,) = carry_out(DRAIN, scheduler, NOW + 11)
    assert fact.evidence == {SCHEDULER: "failed"}
    assert scheduler.applied == []


def test_the_recording_scheduler_keeps_owners_apart() -> None:
    """Draining twice is one drain; another owner's drain is neither replaced nor lifted."""
    scheduler = Recording()
    assert scheduler.apply(RESUME).done
    for _ in range(2):
        assert scheduler.apply(DRAIN).done
    assert scheduler.read_back("c", "h").schedule == Schedule.DRAINED_BY_US
    scheduler.drained["c", "h"] = ("bob", "cooling")
    for request in (DRAIN, RESUME):
        assert "another owner" in scheduler.apply(request).detail
    assert scheduler.read_back("c", "h") == HostSchedule(Schedule.DRAINED_BY_OTHER, "cooling")
