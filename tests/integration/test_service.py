"""The local service on a real ledger with a scheduler in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from passmuster.config import Config, Quarantine
from passmuster.errors import UserError
from passmuster.records import FaultClass, Finding, HoldKind, Mode, Severity, SubjectKind
from quarantine.actuators import DryRun, Recording
from quarantine.brakes import Limits
from quarantine.ledger import Ledger
from quarantine.local_service import LocalService, open_service
from quarantine.policy import Policy
from quarantine.service import HoldError, HostFacts, QuarantineService
from quarantine.state import HOUR
from quarantine.why import why_markdown, why_text

NOW = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
LIMITS = Limits(
    max_held_share=1.0,
    max_held_hosts=3,
    max_held_per_rack=1000,
    max_held_per_hour=1000,
    max_same_cause_per_hour=1000,
    min_in_service_share=0.0,
)


def finding(host: str, now: int = NOW, **changes: Any) -> Finding:
    """A device of the host left the bus."""
    base = Finding(
        cluster="c",
        host=host,
        boot_id="b1",
        observed_at=now,
        dedup_key=f"device_lost/device.lost/{host}",
        opened_at=now,
        last_seen_at=now,
        detector="device_lost",
        mode=Mode.ACT,
        code="device.lost",
        subject_kind=SubjectKind.DEVICE,
        subject_id=f"serial-{host}",
        device_id=f"serial-{host}",
        fault_class=FaultClass.BUS,
        severity=Severity.CRITICAL,
        title="Lost from the bus",
        next_step="Reboot once.",
        evidence={"pci": "0000:17:00.0"},
    )
    return structs.replace(base, **changes)


def hosts(count: int) -> list[HostFacts]:
    """So many hosts of one class and pool."""
    return [HostFacts(cluster="c", host=f"h{n}", device_class="H200", pool="p", rack=f"r{n}") for n in range(count)]


Open = Callable[..., LocalService]


@pytest.fixture
def scheduler() -> Recording:
    """A scheduler in memory."""
    return Recording()


@pytest.fixture
def another(tmp_path: Path, scheduler: Recording) -> Iterator[Open]:
    """Opens services over one ledger, as several processes would."""
    opened: list[LocalService] = []

    def build(actuator: Any = None, *, act: bool = True) -> LocalService:
        service = LocalService(
            Ledger(tmp_path / "ledger.sqlite"), Policy(act=act, limits=LIMITS), actuator or scheduler, cluster="c"
        )
        opened.append(service)
        return service

    yield build
    for service in opened:
        service.close()


@pytest.fixture
def service(another: Open) -> LocalService:
    """A service that knows ten hosts."""
    built = another()
    built.report_hosts(hosts(10), NOW)
    return built


def test_it_is_a_quarantine_service(service: LocalService) -> None:
    """Pages that know only the Protocol can use it (checked by mypy)."""
    door: QuarantineService = service
    assert door.holds(NOW) == []


def test_a_finding_becomes_a_hold_a_drain_and_what_was_read_back(service: LocalService, scheduler: Recording) -> None:
    """The facts are placed, acted, read back, in this order, and the scheduler has the reason."""
    events = service.observe([finding("h1")], NOW)
    assert [event.kind for event in events] == [HoldKind.PLACED, HoldKind.ACTED, HoldKind.READ_BACK]
    (hold,) = service.holds(NOW)
    assert ("held", "drained", "policy", False) == (hold.state, hold.scheduler, hold.owner, hold.dry_run)
    owner, reason = scheduler.drained["c", "h1"]
    assert owner == hold.hold_id
    assert "device.lost device serial-h1" in reason
    assert service.facts_after(0)[1] == events


def test_seen_again_writes_nothing(service: LocalService) -> None:
    """A standing finding costs no fact and no act."""
    service.observe([finding("h1")], NOW)
    last = service.facts_after(0)[0]
    for second in range(3):
        assert service.observe([finding("h1", last_seen_at=NOW + second)], NOW + second) == []
    assert service.facts_after(last) == (last, [])


def test_a_restart_forgets_nothing(service: LocalService, another: Open) -> None:
    """Another service over the same ledger sees the same holds and brakes, and decides nothing twice."""
    service.observe([finding(f"h{n}") for n in range(5)], NOW)
    again = another()
    assert again.holds(NOW) == service.holds(NOW)
    assert again.brakes(NOW) == service.brakes(NOW)
    assert again.observe([finding(f"h{n}") for n in range(5)], NOW) == []


def test_a_release_resumes_our_own_drain(service: LocalService, scheduler: Recording) -> None:
    """Release lifts the drain that we set."""
    service.observe([finding("h1")], NOW)
    (hold,) = service.holds(NOW)
    released = service.release(hold.hold_id, "alice", "replaced the board", NOW + 1)
    assert ("released", "resumed", NOW + 1) == (released.state, released.scheduler, released.released_at)
    assert scheduler.drained == {}
    assert service.holds(NOW) == []
    assert [hold.hold_id] == [hold.hold_id for hold in service.holds(NOW, open_only=False)]


def test_a_foreign_drain_is_left_alone(service: LocalService, scheduler: Recording) -> None:
    """A host that somebody else drained is held by us in the ledger only, and stays drained when we release it."""
    scheduler.drained["c", "h1"] = ("bob", "cooling works")
    service.observe([finding("h1")], NOW)
    (hold,) = service.holds(NOW)
    assert "drained by another owner" == hold.scheduler
    service.release(hold.hold_id, "alice", "fine", NOW + 1)
    service.tick(NOW + HOUR)
    assert scheduler.drained == {("c", "h1"): ("bob", "cooling works")}


def test_a_host_returned_by_hand_is_noted_once(service: LocalService, scheduler: Recording) -> None:
    """Somebody lifted our drain: the next look at the scheduler notes it and drains nothing."""
    service.observe([finding("h1")], NOW)
    scheduler.drained.clear()
    service.tick(NOW)
    asked = len(scheduler.applied)
    for minutes in (6, 12):
        service.tick(NOW + minutes * 60 * SECOND)
    (hold,) = service.holds(NOW)
    assert "returned by hand" == hold.scheduler
    assert 1 == sum("by hand" in event.reason for event in hold.events)
    assert asked == len(scheduler.applied)


def test_a_scheduler_that_fails_is_tried_again(service: LocalService, scheduler: Recording) -> None:
    """The failure is a fact; a later tick tries again and succeeds."""
    scheduler.out_of_order = "scontrol: connection refused"
    events = service.observe([finding("h1")], NOW)
    assert "scontrol: connection refused" == events[1].reason
    assert "failed" == service.holds(NOW)[0].scheduler
    scheduler.out_of_order = ""
    assert service.tick(NOW + SECOND) == []
    service.tick(NOW + 60 * SECOND)
    assert "drained" == service.holds(NOW)[0].scheduler


def test_a_crash_before_acting_is_mended(another: Open, scheduler: Recording) -> None:
    """A hold whose drain was never asked for is drained at the first tick of a service that has the scheduler."""
    first = another()
    first.report_hosts(hosts(3), NOW)
    scheduler.out_of_order = "down"
    first.observe([finding("h1")], NOW)
    scheduler.out_of_order = ""
    another().tick(NOW + 60 * SECOND)
    assert ("c", "h1") in scheduler.drained


def test_without_a_scheduler_all_is_rehearsal(another: Open) -> None:
    """The dry run places holds that say so, and tells in words what it would do."""
    service = another(DryRun())
    service.report_hosts(hosts(3), NOW)
    events = service.observe([finding("h1")], NOW)
    assert events[1].reason.startswith("would drain h1")
    (hold,) = service.holds(NOW)
    assert (True, "not told") == (hold.dry_run, hold.scheduler)
    assert "dry run" in why_text(hold)


def test_a_process_without_the_scheduler_leaves_acting_to_the_one_that_has_it(
    service: LocalService, another: Open, scheduler: Recording
) -> None:
    """A command releases; the service resumes at its next tick. Nothing is reported done that was not."""
    service.observe([finding("h1")], NOW)
    command = another(DryRun())
    (hold,) = command.holds(NOW)
    assert "drained" == command.release(hold.hold_id, "alice", "fine", NOW + 1).scheduler
    assert ("c", "h1") in scheduler.drained
    service.tick(NOW + 2)
    assert scheduler.drained == {}


def test_the_brake_holds_across_processes_and_threads(service: LocalService, another: Open) -> None:
    """Two services that decide at once on one ledger never hold more than the limit of three."""
    services = [service, another()]

    def observe(door: LocalService, first: int) -> None:
        for number in range(first, 10, 2):
            door.observe([finding(f"h{number}")], NOW)

    threads = [threading.Thread(target=observe, args=(door, first)) for first, door in enumerate(services)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = [hold.state for hold in service.holds(NOW)]
    assert (3, 7) == (states.count("held"), states.count("refused"))


def test_expiry_by_a_person_and_by_time(service: LocalService, scheduler: Recording) -> None:
    """Both lapse the hold, and the host stays drained."""
    service.observe([finding("h1"), finding("h2")], NOW)
    one = service.holds(NOW, host="h1")[0]
    assert "lapsed" == service.expire(one.hold_id, "alice", "needs a look", NOW + 1).state
    service.tick(NOW + 72 * HOUR)
    assert ["lapsed", "lapsed"] == [hold.state for hold in service.holds(NOW + 72 * HOUR)]
    assert 2 == len(scheduler.drained)


def test_ids_may_be_shortened(service: LocalService) -> None:
    """The beginning of an id will do while it is the only one."""
    service.observe([finding("h1")], NOW)
    (hold,) = service.holds(NOW)
    assert hold == service.why(hold.hold_id[:9], NOW)
    service.observe([finding("h2")], NOW)
    with pytest.raises(HoldError, match="2 holds begin with 'hold-'"):
        service.why("hold-", NOW)
    with pytest.raises(HoldError, match="there is no hold 'nope'"):
        service.why("nope", NOW)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reason": ""}, "a reason in words"),
        ({"reason": " \n\x00\u200b"}, "a reason in words"),
        ({"reason": "x" * 1001}, "at most 1000 characters; this one has 1001"),
        ({"actor": "policy"}, "part of the machine"),
        ({"actor": "Actuator:slurm"}, "part of the machine"),
        ({"actor": "\udc80"}, "the actor must be a person's name"),
        ({"actor": "a" * 129}, "the actor must be a person's name"),
        ({"host": "h1; rm -rf /"}, "is not a host name"),
        ({"host": "-h"}, "is not a host name"),
        ({"host": ""}, "is not a host name"),
        ({"host": "h" * 300}, "is not a host name"),
        ({"hours": 0.0}, "hours is 0"),
        ({"hours": -1.0}, "hours is -1"),
        ({"hours": float("nan")}, "hours is nan"),
        ({"hours": float("inf")}, "hours is inf"),
        ({"hours": 1e9}, "hours is 1e"),
        ({"device_id": "a\nb"}, "a device id has"),
    ],
)
def test_hostile_input_is_one_sentence(service: LocalService, changes: dict[str, Any], sentence: str) -> None:
    """What a person or a page sends is checked at the rim, and nothing of it is written."""
    arguments = {"host": "h1", "reason": "r", "actor": "alice"} | changes
    with pytest.raises(UserError, match=sentence):
        service.place(now=NOW, **arguments)
    assert service.facts_after(0)[1] == []


def test_odd_but_harmless_reasons_are_cleaned(service: LocalService) -> None:
    """Other alphabets stay; escape sequences, surrogates and changes of direction go."""
    hold = service.place("h1", "Lüfter\x1b[31m 風扇\udcff\u202e laut\n\n!", "Ólöf", NOW)
    assert ("Lüfter [31m 風扇 laut !", "Ólöf") == (hold.reason, hold.owner)


def test_the_why_page_tells_all(service: LocalService) -> None:
    """Evidence, owner, since when, what was done, what releases it and the next step stand on it."""
    service.observe([finding("h1")], NOW)
    text = why_text(service.holds(NOW)[0])
    for word in (
        "h1 is held",
        "Lost from the bus",
        "device: serial-h1",
        "owner: policy",
        "since: 2026-09-21",
        "pci: 0000:17:00.0",
        "the host is rebooted once",
        "Reboot once.",
        "placed by policy",
        "acted by actuator:recording: drained h1",
        "goes to a person's queue: 2026-09-24",
        "model: H200, pool: p, rack: r1",
    ):
        assert word in text


def test_the_why_page_shows_hostile_text_as_text(service: LocalService) -> None:
    """Markup, links, tables and line feeds from a host do not work on the page."""
    service.observe(
        [finding("h1", title="<script>[x](javascript:1)|`a`", evidence={"# k\n\n": "**v**\n- item :red[x]"})], NOW
    )
    page = why_markdown(service.holds(NOW)[0])
    assert "\\<script\\>\\[x\\]\\(javascript\\:1\\)\\|\\`a\\`" in page
    assert "\\*\\*v\\*\\* \\- item \\:red\\[x\\]" in page


def test_hosts_of_two_clusters_with_one_name(another: Open) -> None:
    """A person's word for a host must mean one host."""
    service = another()
    service.report_hosts([*hosts(2), HostFacts(cluster="d", host="h1", device_class="H200")], NOW)
    with pytest.raises(UserError, match="h1 reports from c and d"):
        service.place("h1", "r", "alice", NOW)


def test_the_configuration_opens_a_dry_run(tmp_path: Path) -> None:
    """What the configuration describes without a scheduler rehearses, even when it says act."""
    config = Config(quarantine=Quarantine(act=True, ledger=str(tmp_path / "sub" / "ledger.sqlite")))
    service = open_service(config)
    assert service.place("h1", "r", "alice", NOW).dry_run
    assert (tmp_path / "sub" / "ledger.sqlite").exists()
    service.close()
