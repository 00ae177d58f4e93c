"""Decides what follows from a finding, a person's act or the time: pure, so that a month can be replayed in a test."""

from __future__ import annotations

import hashlib
from typing import assert_never

import msgspec
from msgspec import Struct, structs

from passmuster.config import Quarantine
from passmuster.records import Finding, HoldEvent, HoldKind, Mode, Severity
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
from quarantine.brakes import Brake, Limits, on_hold
from quarantine.rules import RANK, RULES, Outcome, outcome_of
from quarantine.service import HoldError, HostFacts
from quarantine.state import (
    BRAKE,
    BY_HAND,
    DEVICE_CLASS,
    DRAINED,
    DRY_RUN,
    FAILED,
    FINDING_DIGEST,
    FINDING_KEY,
    FOREIGN,
    HOUR,
    NEXT_STEP,
    NOT_TOLD,
    ORIGIN,
    OWN,
    POLICY_ACTOR,
    POOL,
    RACK,
    SCHEDULER,
    Case,
    FleetState,
    fold,
    with_hosts,
)

POLICY_VERSION = 1  # raised with every change of RULES or of decide, so that a fact tells which rules made it
MINUTE = HOUR // 60
MAX_EVIDENCE = 64
MAX_EVIDENCE_CHARACTERS = 2048
MAX_REASON_CHARACTERS = 4096
REQUEST_VALID = 10 * MINUTE

ORIGINS = ("job", "user", "image", "software")


class Policy(Struct, frozen=True, kw_only=True):
    """The numbers that decide; `act` false makes every hold a dry run."""

    act: bool = False
    hold_hours: float = 72.0
    watch_hours: float = 24.0
    max_evidence_age_seconds: float = 600.0  # older evidence is history: nothing acts on it unless it is seen again
    attempts: int = 5  # to tell the scheduler, then a person is told; each wait doubles from one minute
    limits: Limits

    @classmethod
    def from_config(cls, config: Quarantine) -> Policy:
        """Take the numbers of the configuration's [quarantine]."""
        limits = {name: getattr(config, name) for name in Limits.__struct_fields__}
        return cls(act=config.act, hold_hours=config.hold_hours, limits=Limits(**limits))

    @property
    def digest(self) -> str:
        """Short hash of all numbers and rules; stands in every fact that this policy makes."""
        return _digest(msgspec.json.encode([POLICY_VERSION, self]).decode())


class _At(Struct, frozen=True):
    """The moment of a decision: what is known, by which rules, when."""

    state: FleetState
    policy: Policy
    now: int


def decide(state: FleetState, event: Event, policy: Policy, now: int) -> tuple[FleetState, list[Action]]:
    """Return the state after the event and what follows from it.

    Deciding on the same event again changes nothing. `now` is nanoseconds UTC. Raises HoldError when a person asks
    for what cannot be.
    """
    at = _At(state, policy, now)
    actions: list[Action]
    match event:
        case FindingSeen():
            actions = _finding(at, event.finding)
        case Tick():
            actions = _tick(at)
        case HostsReported():
            return with_hosts(state, event.hosts), []
        case ReadBack():
            actions = _read_back(at, event)
        case PersonPlaces():
            actions = _person_places(at, event)
        case PersonApproves():
            actions = _person_approves(at, event)
        case PersonReleases():
            actions = _person_releases(at, event)
        case PersonExpires():
            actions = _person_expires(at, event)
        case _:
            assert_never(event)
    return fold(state, [action.event for action in actions if isinstance(action, Fact)]), actions


def root_first(findings: list[Finding]) -> list[Finding]:
    """Order findings so that a root comes before what follows from it, and the worst before the lesser."""
    severities = list(Severity)
    return sorted(
        findings, key=lambda finding: (finding.secondary, -severities.index(finding.severity), finding.opened_at)
    )


# ---- Findings ----


def _finding(at: _At, finding: Finding) -> list[Action]:
    if finding.mode in (Mode.OFF, Mode.STORE) or not finding.host:
        return []
    digest = _occurrence(finding)
    case = at.state.open_case(finding.cluster, finding.host)
    if finding.cleared_at is not None:
        return _cleared(at, case, finding)
    if abs(at.now - finding.last_seen_at) > at.policy.max_evidence_age_seconds * 1e9:
        return []  # a cold start that reads old findings must not act on them, nor on a clock far ahead
    if _let_go(at, finding):
        return []
    outcome = outcome_of(finding)
    if outcome == Outcome.STORE:
        return []
    wanted = min(outcome, Outcome.PROPOSE, key=RANK.index) if finding.mode == Mode.SHADOW else outcome
    if case is None:
        earlier = at.state.cases.get(_hold_id(finding.cluster, finding.host, digest))
        if finding.secondary or (earlier is not None and wanted == Outcome.WATCH):
            return []  # what follows another fault never acts alone; a watch that is over does not begin again
        return _open(at, earlier, finding, wanted)
    # A dry run gives way to the real thing once a person has switched acting on.
    rehearsed = case.stage == "held" and case.dry_run and at.policy.act and case.owner == POLICY_ACTOR
    rises = RANK.index(wanted) > RANK.index(REACHED.get(case.stage, Outcome.HOLD))
    if not finding.secondary and (rises or (rehearsed and wanted == Outcome.HOLD)):
        return _open(at, case, finding, wanted)
    if digest in case.digests:
        return []
    reason = f"joined by {finding.code}: {plain(finding.title)}"
    return [Note(_fact(at, HoldKind.NOTED, case, finding, key=f"join/{digest}", reason=reason))]


REACHED = {"watch": Outcome.WATCH, "proposed": Outcome.PROPOSE, "refused": Outcome.PROPOSE}
"""How far a case has come, by its stage; every other stage is a hold."""


def _let_go(at: _At, finding: Finding) -> bool:
    """Tell whether a person has seen this very evidence and let the host go all the same."""
    released_at = at.state.person_released.get((finding.cluster, finding.host, finding.dedup_key))
    # The occurrence is remembered too, because a clock may have jumped back before the person's act.
    return (released_at is not None and finding.opened_at <= released_at) or _occurrence(finding) in at.state.let_go


def _open(at: _At, case: Case | None, finding: Finding, wanted: Outcome) -> list[Action]:
    """Open a watch, proposal or hold, or raise a case to it; a brake may refuse the hold."""
    digest, title = _occurrence(finding), plain(finding.title)
    if wanted == Outcome.WATCH:
        until = at.now + int(at.policy.watch_hours * HOUR)
        return [Watch(_fact(at, HoldKind.NOTED, case, finding, key=f"watch/{digest}", reason=title, expires_at=until))]
    if wanted == Outcome.PROPOSE:
        shadow = finding.mode == Mode.SHADOW and outcome_of(finding) == Outcome.HOLD
        reason = f"would hold (the detector is in shadow mode): {title}" if shadow else title
        return [Propose(_fact(at, HoldKind.PROPOSED, case, finding, key=f"propose/{digest}", reason=reason))]
    brakes = on_hold(
        at.state,
        (finding.cluster, finding.host),
        at.policy.limits,
        at.now,
        cause=finding.code,
        fault_class=finding.fault_class,
        origins=_origins(finding),
    )
    shut = next((brake for brake in brakes if not brake.open), None)
    if shut is not None:
        return _refuse(at, case, finding, shut)
    event = _fact(
        at,
        HoldKind.PLACED,
        case,
        finding,
        key=f"place/{digest}/{'real' if at.policy.act else 'dry'}",
        reason=title,
        expires_at=at.now + int(at.policy.hold_hours * HOUR),
        own={DRY_RUN: _dry(at)},
    )
    return [Place(event), *_told(at, event)]


def _refuse(at: _At, case: Case | None, finding: Finding, brake: Brake) -> list[Action]:
    key = f"refuse/{_occurrence(finding)}/{brake.name}"
    if case is not None and key in case.keys:
        return []
    reason = f"not held: {brake.sentence()} ({plain(finding.title)})"
    event = _fact(at, HoldKind.REFUSED, case, finding, key=key, reason=reason, own={BRAKE: brake.name})
    known = brake.name != "cause" or any(
        entry.brake == "cause" and (entry.cluster, entry.cause) == (finding.cluster, finding.code)
        for entry in at.state.recent
        if entry.at > at.now - HOUR
    )
    if not known:
        return [Refuse(event), Watch(_common_mode(at, finding, brake))]
    return [Refuse(event)]


def _common_mode(at: _At, finding: Finding, brake: Brake) -> HoldEvent:
    """One event for the whole suspicion: many hosts with one new cause are rarely many broken hosts."""
    hold_id = f"common-{_digest(f'{finding.cluster}/{finding.code}/{at.now}')}"
    return HoldEvent(
        cluster=finding.cluster,
        host="",
        boot_id="",
        observed_at=at.now,
        event_id=_event_id(hold_id, HoldKind.NOTED, "common"),
        hold_id=hold_id,
        kind=HoldKind.NOTED,
        actor=POLICY_ACTOR,
        reason=f"common mode suspected: {brake.used + 1} hosts have {finding.code} within an hour; machine holds for "
        "it are stopped. Look for what they share: a roll-out, a job, a rack, power or cooling.",
        check=finding.code,
        fault_class=finding.fault_class,
        value=float(brake.used + 1),
        bound=float(brake.limit),
        expires_at=at.now + int(at.policy.watch_hours * HOUR),
        releases_when="a person closes it, or a day has passed",
        policy_hash=at.policy.digest,
        idempotency_key="common",
    )


def _cleared(at: _At, case: Case | None, finding: Finding) -> list[Action]:
    """A condition that is gone ends a watch; it never ends a hold or a proposal: release needs a person."""
    digest = _occurrence(finding)
    key = f"cleared/{digest}"
    if case is None or digest not in case.digests or key in case.keys:
        return []
    others = {f"cleared/{other}" for other in case.digests if other != digest}
    if case.stage == "watch" and others <= case.keys:
        reason = f"{finding.code} is gone"
        return [Release(_again(at, case, HoldKind.RELEASED, actor=POLICY_ACTOR, reason=reason, key=key))]
    reason = f"{finding.code} is gone; that alone releases nothing"
    return [Note(_again(at, case, HoldKind.NOTED, actor=POLICY_ACTOR, reason=reason, key=key))]


# ---- Time and the scheduler ----


def _tick(at: _At) -> list[Action]:
    actions: list[Action] = []
    for case in at.state.cases.values():
        overdue = case.expires_at is not None and case.expires_at <= at.now
        if overdue and case.stage == "held":
            reason = "its time is over and nobody released it: it stays out of service and waits for a person"
            key = f"lapse/{case.expires_at}"
            actions.append(Lapse(_again(at, case, HoldKind.LAPSED, actor=POLICY_ACTOR, reason=reason, key=key)))
        if overdue and case.stage == "watch":
            key = f"over/{case.expires_at}"
            reason = "the watch is over"
            actions.append(Release(_again(at, case, HoldKind.RELEASED, actor=POLICY_ACTOR, reason=reason, key=key)))
        actions.extend(_wanted_of_scheduler(at, case))
    return actions


def _told(at: _At, event: HoldEvent) -> list[Action]:
    """Return what the scheduler must be told once this fact stands."""
    return _wanted_of_scheduler(at, fold(at.state, [event]).cases[event.hold_id])


def _wanted_of_scheduler(at: _At, case: Case) -> list[Action]:
    """Return the request that brings the scheduler to what the case wants, when it is due."""
    number = _count(case, HoldKind.ACTED)
    drain = case.is_held and case.scheduler in (NOT_TOLD, FAILED)
    resume = case.stage == "released" and case.scheduler == DRAINED
    if not drain and not resume:
        return []
    if case.attempts >= at.policy.attempts:
        key = f"gave-up/{number}"
        if key in case.keys:
            return []
        reason = f"the scheduler could not be told in {case.attempts} attempts; a person must do it"
        return [Note(_again(at, case, HoldKind.NOTED, actor=POLICY_ACTOR, reason=reason, key=key))]
    if case.attempts and at.now < case.attempted_at + MINUTE * 2 ** (case.attempts - 1):
        return []
    return [_request(at, Drain, case, f"drain/{number}") if drain else _request(at, Resume, case, f"resume/{number}")]


def _read_back(at: _At, event: ReadBack) -> list[Action]:
    """Note a host that a person put back by hand and do not fight it; put our drain where a foreign one went away."""
    case = at.state.cases.get(event.hold_id)
    if case is None or not case.is_held or not event.in_service:
        return []
    if case.scheduler == FOREIGN:
        return [_request(at, Drain, case, f"drain/{_count(case, HoldKind.ACTED)}")]
    if case.scheduler != DRAINED:
        return []
    reason = f"somebody returned the host to service by hand ({plain(event.detail)}); it is not drained again"
    key = f"by-hand/{_count(case, HoldKind.READ_BACK)}"
    fact = _again(at, case, HoldKind.READ_BACK, actor=POLICY_ACTOR, reason=reason, key=key)
    return [Note(structs.replace(fact, evidence={SCHEDULER: BY_HAND}))]


def _request(at: _At, kind: type[Drain | Resume], case: Case, key: str) -> Drain | Resume:
    basis = case.basis
    words = [f"passmuster {case.hold_id} {basis.check}"]
    if case.device_id:
        words.append(f"device {case.device_id}")
    if basis.value is not None:
        words.append(f"value {basis.value:g}")
    if basis.bound is not None:
        words.append(f"bound {basis.bound:g}")
    return kind(
        hold_id=case.hold_id,
        cluster=case.cluster,
        host=case.host,
        device_id=case.device_id,
        reason=f"{' '.join(words)}: {basis.reason}"[:256],
        requested_at=at.now,
        expires_at=at.now + REQUEST_VALID,
        key=key,
        dry_run=case.dry_run,
    )


# ---- People ----


def _person_places(at: _At, event: PersonPlaces) -> list[Action]:
    case = at.state.open_case(event.cluster, event.host)
    if case is not None and case.is_held and case.owner != POLICY_ACTOR:
        raise HoldError(f"{event.host} is already held by {case.owner} as {case.hold_id}; release that first")
    facts = at.state.hosts.get((event.cluster, event.host))
    hold_id = case.hold_id if case else _hold_id(event.cluster, event.host, f"{event.actor}@{at.now}")
    key = f"person-place/{len(case.events) if case else 0}"
    hours = at.policy.hold_hours if event.hours is None else event.hours
    fact = HoldEvent(
        cluster=event.cluster,
        host=event.host,
        boot_id="",
        observed_at=at.now,
        event_id=_event_id(hold_id, HoldKind.PLACED, key),
        hold_id=hold_id,
        device_id=event.device_id or (case.device_id if case else ""),
        kind=HoldKind.PLACED,
        actor=event.actor,
        reason=event.reason,
        check="person",
        expires_at=at.now + int(hours * HOUR),
        releases_when="a person releases it",
        policy_hash=at.policy.digest,
        idempotency_key=key,
        evidence=_place_of(facts, case) | {DRY_RUN: _dry(at)},
    )
    return [Place(fact), *_told(at, fact)]


def _person_approves(at: _At, event: PersonApproves) -> list[Action]:
    case = _known(at, event.hold_id)
    if case.stage not in ("proposed", "refused", "lapsed"):
        raise HoldError(f"{event.hold_id} is {case.stage}: only a proposal, a refused or a lapsed hold can be approved")
    key = f"approve/{len(case.events)}"
    fact = structs.replace(
        _again(at, case, HoldKind.APPROVED, actor=event.actor, reason=event.reason, key=key),
        expires_at=at.now + int(at.policy.hold_hours * HOUR),
        evidence={DRY_RUN: _dry(at)},
    )
    return [Approve(fact), *_told(at, fact)]


def _person_releases(at: _At, event: PersonReleases) -> list[Action]:
    case = _known(at, event.hold_id)
    if not case.is_open:
        raise HoldError(f"{event.hold_id} is already released; there is nothing to do")
    key = f"release/{len(case.events)}"
    fact = _again(at, case, HoldKind.RELEASED, actor=event.actor, reason=event.reason, key=key)
    return [Release(fact), *_told(at, fact)]


def _person_expires(at: _At, event: PersonExpires) -> list[Action]:
    case = _known(at, event.hold_id)
    if case.stage != "held":
        raise HoldError(f"{event.hold_id} is {case.stage}: only a hold that stands can expire")
    key = f"lapse/{len(case.events)}"
    return [Lapse(_again(at, case, HoldKind.LAPSED, actor=event.actor, reason=event.reason, key=key))]


def _known(at: _At, hold_id: str) -> Case:
    case = at.state.cases.get(hold_id)
    if case is None:
        raise HoldError(f"there is no hold {plain(hold_id)[:64]!r}; `muster holds list --all` shows every id")
    return case


# ---- Facts ----


def _fact(
    at: _At,
    kind: HoldKind,
    case: Case | None,
    finding: Finding,
    *,
    key: str,
    reason: str,
    expires_at: int | None = None,
    own: dict[str, str] | None = None,
) -> HoldEvent:
    """Return a fact that rests on a finding; the deciding evidence is copied, for rows do not live for ever."""
    digest = _occurrence(finding)
    hold_id = case.hold_id if case else _hold_id(finding.cluster, finding.host, digest)
    ours = _place_of(at.state.hosts.get((finding.cluster, finding.host)), case) | {
        FINDING_KEY: finding.dedup_key,
        FINDING_DIGEST: digest,
        NEXT_STEP: plain(finding.next_step)[:MAX_EVIDENCE_CHARACTERS],
        **{ORIGIN + name: text for name, text in _origins(finding).items()},
        **(own or {}),
    }
    theirs = {
        name: text[:MAX_EVIDENCE_CHARACTERS]
        for name, text in (finding.evidence or {}).items()
        if not name.startswith(OWN)
    }
    return HoldEvent(
        cluster=finding.cluster,
        host=finding.host,
        boot_id=finding.boot_id,
        observed_at=at.now,
        event_id=_event_id(hold_id, kind, key),
        hold_id=hold_id,
        device_id=finding.device_id,
        kind=kind,
        actor=POLICY_ACTOR,
        reason=reason[:MAX_REASON_CHARACTERS],
        check=finding.code,
        fault_class=finding.fault_class,
        value=finding.value,
        bound=finding.bound,
        expires_at=expires_at,
        releases_when=RULES[finding.fault_class].releases_when,
        policy_hash=at.policy.digest,
        idempotency_key=key,
        evidence=dict(list((ours | theirs).items())[:MAX_EVIDENCE]),
    )


def _again(at: _At, case: Case, kind: HoldKind, *, actor: str, reason: str, key: str) -> HoldEvent:
    """Return a further fact about a case."""
    return HoldEvent(
        cluster=case.cluster,
        host=case.host,
        boot_id="",
        observed_at=at.now,
        event_id=_event_id(case.hold_id, kind, key),
        hold_id=case.hold_id,
        device_id=case.device_id,
        kind=kind,
        actor=actor,
        reason=reason[:MAX_REASON_CHARACTERS],
        check=case.basis.check,
        fault_class=case.basis.fault_class,
        expires_at=case.expires_at,
        policy_hash=at.policy.digest,
        idempotency_key=key,
    )


def _place_of(facts: HostFacts | None, case: Case | None) -> dict[str, str]:
    place = facts or (case.place if case else None)
    return {} if place is None else {POOL: place.pool, RACK: place.rack, DEVICE_CLASS: place.device_class}


def _origins(finding: Finding) -> dict[str, str]:
    evidence = finding.evidence or {}
    return {name: evidence[name][:256] for name in ORIGINS if evidence.get(name)}


def _dry(at: _At) -> str:
    return "false" if at.policy.act else "true"


def _count(case: Case, kind: HoldKind) -> int:
    return sum(event.kind == kind for event in case.events)


def plain(text: str) -> str:
    """Return text without control characters: it ends on terminals, in scheduler reasons and on pages."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def _occurrence(finding: Finding) -> str:
    """Name one occurrence of a condition on one host: the same condition that opens again is another."""
    return _digest(f"{finding.cluster}/{finding.host}/{finding.dedup_key}@{finding.opened_at}")


def _hold_id(cluster: str, host: str, seed: str) -> str:
    return f"hold-{_digest(f'{cluster}/{host}/{seed}')}"


def _event_id(hold_id: str, kind: HoldKind, key: str) -> str:
    return f"{hold_id}/{kind.value}/{key}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
