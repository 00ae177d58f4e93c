"""The brakes at their edges, and in any order of events."""

from __future__ import annotations

from collections import Counter
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from passmuster.config import Quarantine
from passmuster.records import FaultClass, Finding, Mode, Severity, SubjectKind
from quarantine.actions import (
    Action,
    Approve,
    FindingSeen,
    HostsReported,
    PersonApproves,
    PersonPlaces,
    PersonReleases,
    Place,
    Refuse,
    Release,
    Tick,
    Watch,
)
from quarantine.brakes import Limits, on_fleet, share_of
from quarantine.policy import Policy, decide
from quarantine.service import HoldError, HostFacts
from quarantine.state import HOUR, FleetState

NOW = 1_790_000_000_000_000_000
WIDE = Limits(
    max_held_share=1.0,
    max_held_hosts=1000,
    max_held_per_rack=1000,
    max_held_per_hour=1000,
    max_same_cause_per_hour=1000,
    min_in_service_share=0.0,
)


def policy(**limits: Any) -> Policy:
    """Rules with every limit wide but those given."""
    return Policy(act=True, limits=structs.replace(WIDE, **limits))


def fault(host: str, now: int = NOW, **changes: Any) -> FindingSeen:
    """A device of the host left the bus."""
    base = Finding(
        cluster="c",
        host=host,
        boot_id="b1",
        observed_at=now,
        dedup_key=f"fault_codes/xid.79/{host}",
        opened_at=now,
        last_seen_at=now,
        detector="fault_codes",
        mode=Mode.ACT,
        code="xid.79",
        subject_kind=SubjectKind.DEVICE,
        subject_id=host,
        fault_class=FaultClass.BUS,
        severity=Severity.CRITICAL,
        title="Lost from the bus",
    )
    return FindingSeen(structs.replace(base, **changes))


def facts(number: int, **changes: Any) -> HostFacts:
    """One host that reports."""
    return structs.replace(HostFacts(cluster="c", host=f"h{number}", device_class="H200", pool="p"), **changes)


def reported(*hosts: HostFacts) -> FleetState:
    """A fleet of which nothing is known but who reports."""
    return decide(FleetState(), HostsReported(hosts), policy(), NOW)[0]


def placed(state: FleetState, rules: Policy, faults: list[FindingSeen], now: int = NOW) -> tuple[FleetState, list[str]]:
    """Feed faults and return the hosts held, in order."""
    hosts = []
    for event in faults:
        state, actions = decide(state, event, rules, now)
        hosts += [action.event.host for action in actions if isinstance(action, Place)]
    return state, hosts


@pytest.mark.parametrize(
    ("limits", "changes", "expected"),
    [
        ({"max_held_share": 0.29}, {}, 29),  # 0.29 * 100 is 28.999... in floating point
        ({"max_held_share": 0.10}, {}, 10),
        ({"max_held_share": 0.001}, {}, 1),  # less than one host: one, or a small fleet could never act
        ({"max_held_share": 0.0}, {}, 0),
        ({"max_held_hosts": 7}, {}, 7),
        ({"max_held_per_rack": 2}, {"rack": "r1"}, 2),
        ({"max_held_per_rack": 2}, {"rack": ""}, 100),  # racks that nobody named are not one rack
        ({"max_held_per_hour": 4}, {}, 4),
        ({"max_same_cause_per_hour": 5}, {}, 5),
        ({"min_in_service_share": 0.8}, {}, 20),
        ({"min_in_service_share": 1.0}, {}, 0),
        ({}, {}, 100),
    ],
)
def test_each_brake_stops_at_its_edge(limits: dict[str, Any], changes: dict[str, Any], expected: int) -> None:
    """Of 100 faulty hosts exactly as many are held as the one narrow limit allows."""
    state = reported(*[facts(number, **changes) for number in range(100)])
    _, hosts = placed(state, policy(**limits), [fault(f"h{number}") for number in range(100)])
    assert expected == len(hosts)


def test_the_share_counts_reporting_hosts_of_the_same_class_only() -> None:
    """A tenth of ten MI300X is one, however many H200 there are."""
    amd = [facts(number, device_class="MI300X") for number in range(10)]
    state = reported(*amd, *[facts(number) for number in range(100, 200)])
    _, hosts = placed(state, policy(max_held_share=0.1), [fault(f"h{number}") for number in range(10)])
    assert hosts == ["h0"]


@pytest.mark.parametrize(
    ("brake", "changes"), [("max_held_hosts", {"pool": "q"}), ("max_held_per_hour", {"pool": "q"}),
                           ("max_held_per_rack", {"rack": "r2"})],
)  # fmt: skip
def test_a_brake_stops_its_own_scope_only(brake: str, changes: dict[str, Any]) -> None:
    """A pool or rack that is at its limit does not stop its neighbour."""
    state = reported(facts(1, rack="r1"), facts(2, rack="r1"), facts(3, **{"rack": "r1"} | changes))
    _, hosts = placed(state, policy(**{brake: 1}), [fault("h1"), fault("h2"), fault("h3")])
    assert hosts == ["h1", "h3"]


def test_a_refusal_is_told_once_per_finding_and_brake() -> None:
    """Seen again, a refused finding adds nothing; another brake in its way is told too."""
    state = reported(facts(1), facts(2))
    rules = policy(max_held_hosts=1)
    state, _ = placed(state, rules, [fault("h1")])
    state, actions = decide(state, fault("h2"), rules, NOW)
    assert [Refuse] == [type(action) for action in actions]
    assert (state, []) == decide(state, fault("h2"), rules, NOW)
    _, actions = decide(state, fault("h2"), policy(max_held_per_hour=1), NOW)
    assert [Refuse] == [type(action) for action in actions]


def test_a_refused_fault_is_held_when_there_is_room() -> None:
    """The brake delays; it does not forget. A release makes room, and an hour gives back the rate."""
    state = reported(facts(1), facts(2))
    rules = policy(max_held_hosts=1)
    state, _ = placed(state, rules, [fault("h1"), fault("h2")])
    (held,) = state.held_cases()
    state, _ = decide(state, PersonReleases(hold_id=held.hold_id, reason="r", actor="alice"), rules, NOW)
    state, hosts = placed(state, rules, [fault("h2")])
    assert hosts == ["h2"]
    assert len(state.cases) == 2


def test_the_rate_is_given_back_after_an_hour() -> None:
    """The window slides: one nanosecond short of an hour refuses, an hour allows."""
    rules = policy(max_held_per_hour=1)
    state, _ = placed(reported(facts(1), facts(2)), rules, [fault("h1")])
    assert placed(state, rules, [fault("h2", NOW + HOUR - 1)], NOW + HOUR - 1)[1] == []
    assert placed(state, rules, [fault("h2", NOW + HOUR)], NOW + HOUR)[1] == ["h2"]


def test_common_mode_is_one_event() -> None:
    """The same new cause on many hosts stops the holds and is told once, beside each refusal."""
    state = reported(*[facts(number) for number in range(20)])
    rules = policy(max_same_cause_per_hour=3)
    actions: list[Action] = []
    for number in range(20):
        state, more = decide(state, fault(f"h{number}"), rules, NOW + number)
        actions += more
    count = Counter(type(action) for action in actions)
    assert (count[Place], count[Refuse], count[Watch]) == (3, 17, 1)
    (suspicion,) = (action.event for action in actions if isinstance(action, Watch))
    assert "common mode suspected: 4 hosts have xid.79" in suspicion.reason


def test_another_cause_is_not_stopped_by_a_common_mode() -> None:
    """The suspicion concerns one cause."""
    state = reported(*[facts(number) for number in range(5)])
    rules = policy(max_same_cause_per_hour=2)
    state, _ = placed(state, rules, [fault(f"h{number}") for number in range(4)])
    assert placed(state, rules, [fault("h4", code="memory.uncorrected")])[1] == ["h4"]


def test_one_job_holds_one_host_a_day() -> None:
    """A program that hangs devices on host after host is the program; worn memory is not its doing."""
    state = reported(*[facts(number) for number in range(3)])
    job: dict[str, Any] = {"evidence": {"job": "4711"}, "fault_class": FaultClass.HANG}
    state, hosts = placed(state, policy(), [fault("h0", **job), fault("h1", **job)])
    assert hosts == ["h0"]
    worn = job | {"fault_class": FaultClass.UNCONTAINED}
    assert placed(state, policy(), [fault("h2", **worn)])[1] == ["h2"]
    later = NOW + 24 * HOUR
    assert placed(state, policy(), [fault("h1", later, **job)], later)[1] == ["h1"]


def test_capacity_counts_hosts_out_for_any_reason() -> None:
    """Hosts that somebody else drained use up the floor too."""
    hosts = [facts(number, in_service=number >= 4) for number in range(10)]
    state = reported(*hosts)
    _, held = placed(state, policy(min_in_service_share=0.5), [fault("h8"), fault("h9")])
    assert held == ["h8"]


def test_no_brake_stops_a_release_or_a_persons_own_hold() -> None:
    """With every brake shut a person still holds, approves and releases."""
    shut = policy(max_held_share=0.0, max_held_hosts=0, max_held_per_hour=0, min_in_service_share=1.0)
    state, actions = decide(reported(facts(1), facts(2)), fault("h1"), shut, NOW)
    assert isinstance(actions[0], Refuse)
    (hold_id,) = state.cases
    state, actions = decide(state, PersonApproves(hold_id=hold_id, reason="r", actor="alice"), shut, NOW)
    assert isinstance(actions[0], Approve)
    state, actions = decide(state, PersonReleases(hold_id=hold_id, reason="r", actor="alice"), shut, NOW)
    assert isinstance(actions[0], Release)
    person = PersonPlaces(cluster="c", host="h2", device_id="", reason="r", actor="bob", hours=None)
    assert isinstance(decide(state, person, shut, NOW)[1][0], Place)


def test_the_page_shows_each_brake_as_it_stands() -> None:
    """Used, limit and scope of every brake, held hosts counted."""
    state = reported(*[facts(number, rack="r1") for number in range(10)])
    rules = policy(max_held_share=0.2, max_held_per_rack=2)
    state, _ = placed(state, rules, [fault("h0"), fault("h1")])
    shown = {
        (brake.name, brake.scope): (brake.used, brake.limit, brake.open) for brake in on_fleet(state, rules.limits, NOW)
    }
    assert shown["device_class", "H200"] == (2, 2, False)
    assert shown["rack", "r1"] == (2, 2, False)
    assert shown["cause", "xid.79"] == (2, 1000, True)
    assert shown["capacity", "p"] == (2, 10, True)


def test_the_limits_come_from_the_configuration() -> None:
    """Every number of the brakes has its key in the configuration."""
    config = Quarantine(max_held_per_rack=9, min_in_service_share=0.25)
    limits = Policy.from_config(config).limits
    assert (9, 0.25, config.max_held_share) == (
        limits.max_held_per_rack,
        limits.min_in_service_share,
        limits.max_held_share,
    )


@settings(max_examples=50)
@given(share=st.integers(0, 100), count=st.integers(0, 100_000))
def test_a_share_of_whole_percents_is_exact(share: int, count: int) -> None:
    """Floating point never takes a host from a share or adds one."""
    assert share * count // 100 == share_of(share / 100, count)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fault"), st.integers(0, 11), st.sampled_from(["xid.79", "xid.48", "memory.uncorrected"])),
        st.tuples(st.just("person"), st.integers(0, 11), st.just("")),
        st.tuples(st.just("release"), st.integers(0, 11), st.just("")),
        st.tuples(st.just("leave"), st.integers(0, 11), st.just("")),
        st.tuples(st.just("time"), st.integers(1, 5000), st.just("")),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_never_more_machine_holds_than_the_brakes_allow(steps: list[tuple[str, int, str]]) -> None:
    """In any order of faults, people, leaving hosts and time, each machine hold was within every limit when placed."""
    limits = Limits(
        max_held_share=0.4,
        max_held_hosts=4,
        max_held_per_rack=2,
        max_held_per_hour=3,
        max_same_cause_per_hour=2,
        min_in_service_share=0.5,
    )
    rules = Policy(act=True, limits=limits)
    fleet = {f"h{n}": facts(n, device_class=("H200", "MI300X")[n % 2], rack=f"r{n % 3}") for n in range(12)}
    places = dict(fleet)
    now = NOW
    state, _ = decide(FleetState(), HostsReported(tuple(fleet.values())), rules, now)
    out: set[str] = set()  # counted here from the actions alone, apart from the code under test
    machine: list[tuple[int, str, str]] = []
    for step, number, cause in steps:
        host = f"h{number}"
        actions: list[Action] = []
        if step == "fault":
            event = fault(host, now, code=cause, dedup_key=f"{cause}/{host}/{now}")
            state, actions = decide(state, event, rules, now)
        elif step == "person":
            try:
                person = PersonPlaces(cluster="c", host=host, device_id="", reason="r", actor="alice", hours=None)
                state, actions = decide(state, person, rules, now)
            except HoldError:
                continue
        elif step == "release" and (case := state.open_case("c", host)):
            state, actions = decide(state, PersonReleases(hold_id=case.hold_id, reason="r", actor="bob"), rules, now)
        elif step == "leave":
            fleet.pop(host, None)
            state, _ = decide(state, HostsReported(tuple(fleet.values())), rules, now)
        elif step == "time":
            now += number * 1_000_000_000
            state, actions = decide(state, Tick(), rules, now)
        for action in actions:
            if isinstance(action, Place):
                fresh = action.event.host not in out
                out.add(action.event.host)
                if action.event.actor != "policy":
                    continue
                assert fresh
                machine.append((now, action.event.host, action.event.check))
                own = places[action.event.host]
                peers = [f for f in fleet.values() if f.device_class == own.device_class]
                assert len([h for h in out if places[h].device_class == own.device_class]) <= max(
                    1, floor(0.4 * len(peers))
                )
                assert len(out) <= limits.max_held_hosts
                assert len([h for h in out if places[h].rack == own.rack]) <= limits.max_held_per_rack
                last_hour = [entry for entry in machine if entry[0] > now - HOUR]
                assert len({entry[1] for entry in last_hour}) <= limits.max_held_per_hour
                same = {entry[1] for entry in last_hour if entry[2] == action.event.check}
                assert len(same) <= limits.max_same_cause_per_hour
                assert len(set(fleet) - out) >= ceil(0.5 * len(fleet))
            elif isinstance(action, Release):
                out.discard(action.event.host)
