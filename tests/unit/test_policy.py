"""What the policy makes of findings, people and time."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from passmuster.records import FaultClass, Finding, HoldKind, Mode, Severity, SubjectKind
from quarantine.actions import (
    Action,
    Approve,
    Drain,
    Event,
    Fact,
    FindingSeen,
    HostsReported,
    Lapse,
    Note,
    PersonApproves,
    PersonExpires,
    PersonPlaces,
    PersonReleases,
    Place,
    Propose,
    ReadBack,
    Refuse,
    Release,
    Resume,
    Tick,
    Watch,
)
from quarantine.brakes import Limits
from quarantine.policy import Policy, decide, root_first
from quarantine.rules import RULES, Outcome
from quarantine.service import HoldError, HostFacts
from quarantine.state import HOUR, FleetState, fold, view

NOW = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
WIDE = Limits(
    max_held_share=1.0,
    max_held_hosts=1000,
    max_held_per_rack=1000,
    max_held_per_hour=1000,
    max_same_cause_per_hour=1000,
    min_in_service_share=0.0,
)
ACTING = Policy(act=True, limits=WIDE)


def finding(host: str = "h1", **changes: Any) -> Finding:
    """An uncorrectable memory error of a promoted detector, unless changed."""
    base = Finding(
        cluster="c",
        host=host,
        boot_id="b1",
        observed_at=NOW,
        dedup_key=f"uncorrectable_memory/memory.uncorrected/{host}/serial-1",
        opened_at=NOW,
        last_seen_at=NOW,
        detector="uncorrectable_memory",
        mode=Mode.ACT,
        code="memory.uncorrected",
        subject_kind=SubjectKind.DEVICE,
        subject_id="serial-1",
        device_id="serial-1",
        fault_class=FaultClass.UNCONTAINED,
        severity=Severity.CRITICAL,
        title="Uncorrectable memory error",
        next_step="Reset the device.",
        value=2.0,
        bound=0.0,
        evidence={"counter": "ecc_uncorrected_total"},
    )
    return structs.replace(base, **changes)


def fleet(*names: str) -> FleetState:
    """Hosts of one class, pool and rack."""
    hosts = tuple(HostFacts(cluster="c", host=name, device_class="H200", pool="p", rack="r1") for name in names)
    return decide(FleetState(), HostsReported(hosts), ACTING, NOW)[0]


def run(state: FleetState, *events: Event, policy: Policy = ACTING, now: int = NOW) -> tuple[FleetState, list[Action]]:
    """Decide on events one after the other."""
    actions: list[Action] = []
    for event in events:
        state, more = decide(state, event, policy, now)
        actions += more
    return state, actions


def kinds(actions: list[Action]) -> list[type]:
    """What kinds of actions these are."""
    return [type(action) for action in actions]


def acted(state: FleetState, scheduler: str, at: int, key: str = "drain/0") -> FleetState:
    """The state after an actuator reported back."""
    case = next(iter(state.cases.values()))
    event = structs.replace(
        case.events[0],
        kind=HoldKind.ACTED,
        observed_at=at,
        actor="actuator:test",
        idempotency_key=f"{key}/acted",
        event_id=f"{case.hold_id}/{key}/acted",
        evidence={"hold.scheduler": scheduler},
    )
    return fold(state, [event])


def test_every_fault_class_has_a_rule() -> None:
    """A class without a rule would be an accident in production."""
    assert set(FaultClass) == set(RULES)


@pytest.mark.parametrize(
    ("fault_class", "expected"),
    [
        (FaultClass.UNCONTAINED, [Place, Drain]),
        (FaultClass.REPAIR_FAILED, [Place, Drain]),
        (FaultClass.HANG, [Place, Drain]),
        (FaultClass.BUS, [Place, Drain]),
        (FaultClass.MISCONFIGURED, [Propose]),
        (FaultClass.CONTAINED, [Propose]),
        (FaultClass.PENDING, [Propose]),
        (FaultClass.LINK, [Propose]),
        (FaultClass.THERMAL, [Watch]),
        (FaultClass.APPLICATION, []),
        (FaultClass.INFO, []),
        (FaultClass.LEGACY, []),
        (FaultClass.SILENT, []),
    ],
)
def test_what_each_class_leads_to(fault_class: FaultClass, expected: list[type]) -> None:
    """The class decides the most that an acting finding leads to."""
    assert expected == kinds(run(fleet("h1"), FindingSeen(finding(fault_class=fault_class)))[1])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mode": Mode.OFF}, []),
        ({"mode": Mode.STORE}, []),
        ({"mode": Mode.SHADOW}, [Propose]),
        ({"severity": Severity.INFO}, []),
        ({"severity": Severity.WARNING}, [Watch]),
        ({"severity": Severity.ERROR}, [Place, Drain]),
        ({"secondary": True}, []),
        ({"evidence": {"trust": "user"}}, [Watch]),
        ({"evidence": {"origin": "job"}}, [Watch]),
        ({"subject_kind": SubjectKind.RACK}, []),
        ({"subject_kind": SubjectKind.LINK_PAIR}, []),
        ({"subject_kind": SubjectKind.HOST}, [Place, Drain]),
        ({"host": ""}, []),
        ({"last_seen_at": NOW - 600 * SECOND}, [Place, Drain]),
        ({"last_seen_at": NOW - 600 * SECOND - 1}, []),
        ({"last_seen_at": NOW + 601 * SECOND}, []),
        ({"cleared_at": NOW}, []),
    ],
)
def test_what_lowers_a_finding(changes: dict[str, Any], expected: list[type]) -> None:
    """Mode, severity, subject, trust and age each bound what a class alone would lead to."""
    assert expected == kinds(run(fleet("h1"), FindingSeen(finding(**changes)))[1])


def test_a_hold_names_device_host_value_bound_and_what_releases_it() -> None:
    """Those who read the hold, or the reason in the scheduler's list, need no other source."""
    state, actions = run(fleet("h1"), FindingSeen(finding()))
    drain = actions[1]
    assert isinstance(drain, Drain)
    for word in ("memory.uncorrected", "serial-1", "value 2", "bound 0"):
        assert word in drain.reason
    hold = view(next(iter(state.cases.values())), NOW)
    assert (
        hold.host, hold.device_id, hold.value, hold.bound, hold.device_class, hold.pool, hold.rack,
    ) == ("h1", "serial-1", 2.0, 0.0, "H200", "p", "r1")  # fmt: skip
    assert hold.evidence == {"counter": "ecc_uncorrected_total"}
    assert "memory test" in hold.releases_when
    assert hold.expires_at == NOW + 72 * HOUR


def test_shadow_says_what_it_would_have_done() -> None:
    """A proposal of a detector in shadow is marked as such."""
    _, actions = run(fleet("h1"), FindingSeen(finding(mode=Mode.SHADOW)))
    assert isinstance(actions[0], Propose)
    assert actions[0].event.reason.startswith("would hold")


def test_without_acting_a_hold_is_a_dry_run() -> None:
    """With act off the hold is placed all the same, and marked."""
    state, actions = run(fleet("h1"), FindingSeen(finding()), policy=Policy(act=False, limits=WIDE))
    assert [Place, Drain] == kinds(actions)
    assert isinstance(actions[1], Drain)
    assert actions[1].dry_run
    assert view(next(iter(state.cases.values())), NOW).dry_run


def test_switching_acting_on_turns_a_dry_run_into_a_hold() -> None:
    """A rehearsed hold whose fault is still there becomes a real one, once."""
    state, _ = run(fleet("h1"), FindingSeen(finding()), policy=Policy(act=False, limits=WIDE))
    state = acted(state, "drained", NOW)
    state, actions = run(state, FindingSeen(finding()))
    assert [Place, Drain] == kinds(actions)
    assert run(acted(state, "drained", NOW, "drain/1"), FindingSeen(finding()))[1] == []


def test_findings_cannot_set_what_is_ours() -> None:
    """Evidence from a host cannot make a hold look like a rehearsal or move it to another rack."""
    hostile = {"hold.dry_run": "true", "hold.rack": "r9", "hold.scheduler": "drained"}
    state, _ = run(fleet("h1"), FindingSeen(finding(evidence=hostile)))
    case = next(iter(state.cases.values()))
    assert (case.dry_run, case.place.rack, case.scheduler) == (False, "r1", "not told")


def test_text_from_hosts_loses_control_characters() -> None:
    """A title cannot carry escape sequences into a terminal or a scheduler's reason."""
    _, actions = run(fleet("h1"), FindingSeen(finding(title="a\x1b[31m\nb\x00\u202ec")))
    assert isinstance(actions[0], Place)
    assert actions[0].event.reason == "a [31m b c"


def test_the_same_finding_changes_nothing() -> None:
    """Seen again a thousand times, a finding is one hold."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    again, actions = run(state, *[FindingSeen(finding(last_seen_at=NOW + i)) for i in range(5)])
    assert [kind for kind in kinds(actions) if kind is not Drain] == []
    assert state == again


def test_replaying_all_events_gives_the_same_state() -> None:
    """A restart that reads everything again decides nothing new."""
    events = [
        FindingSeen(finding("h1")),
        FindingSeen(finding("h2", mode=Mode.SHADOW)),
        FindingSeen(finding("h1", dedup_key="other", code="xid.48")),
        FindingSeen(finding("h3", fault_class=FaultClass.THERMAL)),
        FindingSeen(finding("h3", fault_class=FaultClass.THERMAL, cleared_at=NOW)),
    ]
    state, _ = run(fleet("h1", "h2", "h3"), *events)
    again, actions = run(state, *events)
    assert actions == []
    assert state == again


def test_facts_alone_rebuild_the_state() -> None:
    """What decide returns as state is what the ledger's facts fold to."""
    state, actions = run(
        fleet("h1", "h2"), FindingSeen(finding("h1")), FindingSeen(finding("h2", mode=Mode.SHADOW)), Tick()
    )
    facts = [action.event for action in actions if isinstance(action, Fact)]
    assert state == fold(fleet("h1", "h2"), facts)
    assert state == fold(state, facts)


def test_several_findings_join_one_hold_root_first() -> None:
    """One host has one hold, resting on the root; what follows is noted in it."""
    root = finding(code="xid.79", dedup_key="root", fault_class=FaultClass.BUS)
    follower = finding(code="xid.45", dedup_key="follower", secondary=True, opened_at=NOW - 5)
    lesser = finding(code="xid.54", dedup_key="lesser", severity=Severity.ERROR)
    ordered = root_first([follower, lesser, root])
    state, actions = run(fleet("h1"), *[FindingSeen(item) for item in ordered])
    assert [Place, Drain, Note, Note] == kinds(actions)
    (case,) = state.cases.values()
    assert case.basis.check == "xid.79"
    assert case.findings == ("root", "lesser", "follower")


def test_a_watch_rises_to_a_proposal_and_to_a_hold() -> None:
    """Worse evidence raises the open case of a host; milder evidence never lowers it."""
    state, _ = run(fleet("h1"), FindingSeen(finding(dedup_key="t", fault_class=FaultClass.THERMAL)))
    state, actions = run(state, FindingSeen(finding(dedup_key="l", fault_class=FaultClass.LINK)))
    assert [Propose] == kinds(actions)
    state, actions = run(state, FindingSeen(finding(dedup_key="u")))
    assert [Place, Drain] == kinds(actions)
    _, actions = run(state, FindingSeen(finding(dedup_key="t2", fault_class=FaultClass.THERMAL)))
    assert [Note] == kinds(actions)
    assert len(state.cases) == 1


def test_a_cleared_finding_ends_a_watch_and_no_hold() -> None:
    """Heat that passed is over; a memory error that stopped is not repaired."""
    hot = finding("h1", fault_class=FaultClass.THERMAL)
    state, actions = run(fleet("h1", "h2"), FindingSeen(hot), FindingSeen(structs.replace(hot, cleared_at=NOW)))
    assert [Watch, Release] == kinds(actions)
    worn = finding("h2")
    state, actions = run(state, FindingSeen(worn), FindingSeen(structs.replace(worn, cleared_at=NOW)))
    assert [Place, Drain, Note] == kinds(actions)
    assert state.open_case("c", "h2") is not None


def test_a_watch_that_is_over_does_not_begin_again() -> None:
    """The same occurrence is watched once; a new occurrence is watched anew."""
    hot = finding(fault_class=FaultClass.THERMAL)
    state, _ = run(fleet("h1"), FindingSeen(hot))
    later = NOW + 25 * HOUR
    state, actions = run(state, Tick(), now=later)
    assert [Release] == kinds(actions)
    assert run(state, FindingSeen(structs.replace(hot, last_seen_at=later)), now=later)[1] == []
    anew = structs.replace(hot, opened_at=later, last_seen_at=later)
    assert [Watch] == kinds(run(state, FindingSeen(anew), now=later)[1])


def test_expiry_never_returns_a_host_to_service() -> None:
    """An overdue hold lapses into a person's queue, once, and nothing is resumed."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    state = acted(state, "drained", NOW)
    assert run(state, Tick(), now=NOW + 72 * HOUR - 1)[1] == []
    state, actions = run(state, Tick(), now=NOW + 72 * HOUR)
    assert [Lapse] == kinds(actions)
    assert run(state, Tick(), now=NOW + 1000 * HOUR)[1] == []
    (case,) = state.cases.values()
    assert case.is_held


def test_an_overdue_hold_reads_as_lapsed_before_any_tick() -> None:
    """The state of a hold follows from facts and time, not from whether a tick came."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    (case,) = state.cases.values()
    assert view(case, NOW + 72 * HOUR - 1).state == "held"
    assert view(case, NOW + 72 * HOUR).state == "lapsed"


def release(state: FleetState, **changes: Any) -> PersonReleases:
    """Alice releases the one open case."""
    (hold_id,) = (case.hold_id for case in state.cases.values() if case.is_open)
    return PersonReleases(hold_id=hold_id, reason="tested by hand", actor="alice", **changes)


@pytest.mark.parametrize("released_at", [NOW + 60 * SECOND, NOW - 60 * SECOND])
def test_a_persons_release_stands(released_at: int) -> None:
    """The same occurrence does not hold again after a person let it go, not even when the clock had jumped back."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    state, actions = run(acted(state, "drained", NOW), release(state), now=released_at)
    assert [Release, Resume] == kinds(actions)
    state = acted(state, "resumed", NOW, "resume/1")
    later = NOW + 120 * SECOND
    assert run(state, FindingSeen(finding(last_seen_at=later)), now=later)[1] == []


def test_new_evidence_after_a_persons_release_holds_again() -> None:
    """The person saw what there was; what opens later is news."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    state, _ = run(state, release(state), now=NOW + 1)
    state, actions = run(state, FindingSeen(finding(opened_at=NOW + 2, last_seen_at=NOW + 2)), now=NOW + 2)
    assert [Place, Drain] == kinds(actions)
    assert len(state.cases) == 2


def test_a_declined_proposal_stays_declined() -> None:
    """Releasing a proposal is a person's no to this evidence."""
    shadow = finding(mode=Mode.SHADOW)
    state, _ = run(fleet("h1"), FindingSeen(shadow))
    state, _ = run(state, release(state), now=NOW + 1)
    assert run(state, FindingSeen(shadow), FindingSeen(finding()), now=NOW + 1)[1] == []


def test_a_person_approves_a_proposal() -> None:
    """Approval makes the person the owner and starts the clock."""
    state, _ = run(fleet("h1"), FindingSeen(finding(mode=Mode.SHADOW)))
    (hold_id,) = state.cases
    state, actions = run(state, PersonApproves(hold_id=hold_id, reason="yes", actor="alice"), now=NOW + 7)
    assert [Approve, Drain] == kinds(actions)
    hold = view(state.cases[hold_id], NOW + 7)
    assert (hold.state, hold.owner, hold.expires_at) == ("held", "alice", NOW + 7 + 72 * HOUR)


def test_a_person_takes_over_a_machine_hold() -> None:
    """Placing on a held host makes the person its owner; a second person is told who holds it."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    place = PersonPlaces(cluster="c", host="h1", device_id="", reason="mine", actor="alice", hours=1.0)
    state, _ = run(state, place)
    (case,) = state.cases.values()
    assert (case.owner, case.expires_at, case.device_id) == ("alice", NOW + HOUR, "serial-1")
    with pytest.raises(HoldError, match="already held by alice"):
        run(state, structs.replace(place, actor="bob"))


def test_a_lapsed_hold_can_be_renewed() -> None:
    """A person who is asked may keep the hold."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    (hold_id,) = state.cases
    state, _ = run(state, PersonExpires(hold_id=hold_id, reason="look at it", actor="alice"))
    assert view(state.cases[hold_id], NOW).state == "lapsed"
    state, _ = run(state, PersonApproves(hold_id=hold_id, reason="keep", actor="bob"), now=NOW + HOUR)
    assert (state.cases[hold_id].stage, state.cases[hold_id].owner) == ("held", "bob")


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (PersonApproves(hold_id="hold-x", reason="r", actor="a"), "there is no hold 'hold-x'"),
        (PersonReleases(hold_id="hold-\x1b", reason="r", actor="a"), "there is no hold 'hold-'"),
        (PersonExpires(hold_id="", reason="r", actor="a"), "there is no hold ''"),
    ],
)
def test_unknown_ids_are_answered_in_words(act: Event, sentence: str) -> None:
    """An id that is not there is one sentence with the way to find the right one."""
    with pytest.raises(HoldError, match=sentence):
        run(fleet("h1"), act)


def test_acts_in_the_wrong_state_are_refused() -> None:
    """What is over cannot be released, what stands cannot be approved, what is proposed cannot expire."""
    state, _ = run(fleet("h1"), FindingSeen(finding(mode=Mode.SHADOW)))
    (hold_id,) = state.cases
    with pytest.raises(HoldError, match="is proposed"):
        run(state, PersonExpires(hold_id=hold_id, reason="r", actor="a"))
    state, _ = run(state, PersonApproves(hold_id=hold_id, reason="r", actor="a"))
    with pytest.raises(HoldError, match="is held"):
        run(state, PersonApproves(hold_id=hold_id, reason="r", actor="a"))
    state, _ = run(state, PersonReleases(hold_id=hold_id, reason="r", actor="a"))
    with pytest.raises(HoldError, match="already released"):
        run(state, PersonReleases(hold_id=hold_id, reason="r", actor="a"))


def test_failed_drains_are_retried_ever_later_and_then_a_person_is_told() -> None:
    """Attempts wait 1, 2, 4, 8 minutes; after five the hold says so once and no more is tried."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    at, waits = NOW, []
    for attempt in range(4):
        state = acted(state, "failed", at, f"drain/{attempt}")
        began = at
        while not kinds(run(state, Tick(), now=at)[1]):
            at += 60 * SECOND
        waits.append((at - began) // (60 * SECOND))
    assert waits == [1, 2, 4, 8]
    state = acted(state, "failed", at, "drain/4")
    state, actions = run(state, Tick(), now=at + HOUR)
    assert [Note] == kinds(actions)
    assert run(state, Tick(), now=at + 2 * HOUR)[1] == []


def test_a_crash_between_fact_and_act_is_mended_by_the_next_tick() -> None:
    """A hold that the scheduler was never told of is told of at the next tick, with the same key."""
    state, actions = run(fleet("h1"), FindingSeen(finding()))
    _, again = run(state, Tick())
    assert isinstance(actions[1], Drain)
    assert isinstance(again[0], Drain)
    assert actions[1].key == again[0].key


def test_a_host_returned_by_hand_is_noted_and_not_fought() -> None:
    """Somebody lifted our drain: one note, no second drain, and no resume at the release."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    state = acted(state, "drained", NOW)
    (hold_id,) = state.cases
    seen = ReadBack(hold_id, in_service=True, detail="IDLE")
    state, actions = run(state, seen)
    assert [Note] == kinds(actions)
    assert run(state, seen, Tick())[1] == []
    assert [Release] == kinds(run(state, release(state))[1])


def test_a_foreign_drain_is_never_lifted_and_replaced_only_when_gone() -> None:
    """While another owner drains the host we do nothing; when that drain goes, the hold needs its own."""
    state, _ = run(fleet("h1"), FindingSeen(finding()))
    state = acted(state, "drained by another owner", NOW)
    (hold_id,) = state.cases
    assert run(state, ReadBack(hold_id, in_service=False, detail=""), Tick())[1] == []
    assert [Release] == kinds(run(state, release(state))[1])
    assert [Drain] == kinds(run(state, ReadBack(hold_id, in_service=True, detail=""))[1])


def test_what_a_person_places_on_a_host_that_does_not_report() -> None:
    """A dead host can be held by a person; the machine cannot hold what it cannot place in a rack."""
    place = PersonPlaces(cluster="c", host="dead", device_id="", reason="r", actor="alice", hours=None)
    assert [Place, Drain] == kinds(run(fleet("h1"), place)[1])
    assert [Refuse] == kinds(run(fleet("h1"), FindingSeen(finding("dead")))[1])


def test_the_digest_tells_policies_apart() -> None:
    """A fact's policy hash changes with any number of the policy."""
    other = structs.replace(ACTING, limits=structs.replace(WIDE, max_held_hosts=7))
    assert ACTING.digest == Policy(act=True, limits=WIDE).digest
    assert ACTING.digest != other.digest


def test_a_hold_outcome_needs_an_unattended_release_rule() -> None:
    """Whatever may hold a host says what releases it."""
    assert [word for word, rule in RULES.items() if rule.outcome != Outcome.STORE and not rule.releases_when] == []
