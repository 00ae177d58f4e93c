"""What the ledger's facts make of each hold and of the fleet: one pure fold, the only place that knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, structs

from passmuster.records import HoldEvent, HoldKind
from quarantine.service import Hold, HostFacts

POLICY_ACTOR = "policy"
ACTUATOR_PREFIX = "actuator:"
HOUR = 3_600_000_000_000
REMEMBERED = 24 * HOUR  # no brake looks further back than a day

# Names under which a fact carries what only quarantine needs; findings cannot set them.
OWN = "hold."
POOL = "hold.pool"
RACK = "hold.rack"
DEVICE_CLASS = "hold.device_class"
DRY_RUN = "hold.dry_run"
FINDING_KEY = "hold.finding"
FINDING_DIGEST = "hold.finding_digest"
BRAKE = "hold.brake"
NEXT_STEP = "hold.next_step"
SCHEDULER = "hold.scheduler"
ORIGIN = "hold.origin."  # job, user, image and software of the evidence, for the job brake

# What the scheduler is known to do with the host of a hold.
NOT_TOLD = "not told"
DRAINED = "drained"
FOREIGN = "drained by another owner"
BY_HAND = "returned by hand"
RESUMED = "resumed"
FAILED = "failed"

HostKey = tuple[str, str]
"""Cluster and host."""


class Case(Struct, frozen=True, kw_only=True):
    """One hold's facts folded: everything about it that does not depend on the time."""

    hold_id: str
    cluster: str
    host: str
    device_id: str
    stage: str  # watch, proposed, refused, held, lapsed, released
    basis: HoldEvent  # the fact that gives reason, check, class and evidence
    owner: str
    placed_at: int
    expires_at: int | None
    dry_run: bool
    events: tuple[HoldEvent, ...]
    keys: frozenset[str]  # idempotency keys of all its facts
    findings: tuple[str, ...] = ()  # dedup keys
    digests: frozenset[str] = frozenset()  # of dedup key and opening time: one occurrence of a finding
    place: HostFacts
    scheduler: str = NOT_TOLD
    attempts: int = 0
    attempted_at: int = 0
    released_at: int | None = None

    @property
    def host_key(self) -> HostKey:
        """Cluster and host."""
        return self.cluster, self.host

    @property
    def is_open(self) -> bool:
        """Whether anybody still has to do something about it."""
        return self.stage != "released"

    @property
    def is_held(self) -> bool:
        """Whether it keeps the host out of service (a lapsed hold still does)."""
        return self.stage in ("held", "lapsed")


class Recent(Struct, frozen=True):
    """A hold, proposal or refusal of the last day, as the brakes count them."""

    at: int
    cluster: str
    host: str
    pool: str
    cause: str
    kind: HoldKind
    by_policy: bool
    origins: tuple[tuple[str, str], ...]
    brake: str


class FleetState(Struct, frozen=True, kw_only=True):
    """All that `decide` knows: the ledger's facts folded, and the hosts that report."""

    cases: dict[str, Case] = {}
    open_by_host: dict[HostKey, str] = {}
    held: dict[HostKey, str] = {}
    person_released: dict[tuple[str, str, str], int] = {}  # cluster, host, dedup key -> when a person let it go
    let_go: frozenset[str] = frozenset()  # digests of the findings that a person let go
    recent: tuple[Recent, ...] = ()
    hosts: dict[HostKey, HostFacts] = {}
    hosts_by_class: dict[tuple[str, str], int] = {}  # cluster, device class -> hosts that report
    hosts_by_pool: dict[tuple[str, str], frozenset[HostKey]] = {}
    out_elsewhere: frozenset[HostKey] = frozenset()  # hosts that report and that anybody keeps out of scheduling

    def open_case(self, cluster: str, host: str) -> Case | None:
        """Return the open case of a host, or None; a host has at most one."""
        hold_id = self.open_by_host.get((cluster, host))
        return None if hold_id is None else self.cases[hold_id]

    def place(self, case: Case) -> HostFacts:
        """Return where the case's host stands: as it reports now, else as it stood when the case began."""
        return self.hosts.get(case.host_key, case.place)

    def held_cases(self) -> list[Case]:
        """Return the cases that keep a host out of service."""
        return [self.cases[hold_id] for hold_id in self.held.values()]


def with_hosts(state: FleetState, hosts: Iterable[HostFacts]) -> FleetState:
    """Return the state with another set of reporting hosts."""
    by_key = {(facts.cluster, facts.host): facts for facts in hosts}
    pools: dict[tuple[str, str], set[HostKey]] = {}
    for key, facts in by_key.items():
        pools.setdefault((facts.cluster, facts.pool), set()).add(key)
    return structs.replace(
        state,
        hosts=by_key,
        hosts_by_class=dict(Counter((facts.cluster, facts.device_class) for facts in by_key.values())),
        out_elsewhere=frozenset(key for key, facts in by_key.items() if not facts.in_service),
        hosts_by_pool={scope: frozenset(members) for scope, members in pools.items()},
    )


def fold(state: FleetState, events: Iterable[HoldEvent]) -> FleetState:
    """Return the state after these facts, in ledger order. A fact that is already in it changes nothing."""
    cases: dict[str, Case] | None = None
    open_by_host, held = state.open_by_host, state.held
    released, let_go, recent = state.person_released, state.let_go, state.recent
    for event in events:
        if cases is None:
            cases, open_by_host, held, released = dict(state.cases), dict(open_by_host), dict(held), dict(released)
        before = cases.get(event.hold_id)
        case = _advance(before, event)
        if case is before:
            continue
        cases[case.hold_id] = case
        if case.host:  # a suspicion about many hosts belongs to none of them
            _index(open_by_host, case, present=case.is_open)
            _index(held, case, present=case.is_held)
        if event.kind == HoldKind.RELEASED and is_person(event.actor):
            let_go |= case.digests
            for dedup_key in case.findings:
                released[case.cluster, case.host, dedup_key] = event.observed_at
        if event.kind in (HoldKind.PLACED, HoldKind.PROPOSED, HoldKind.REFUSED):
            horizon = event.observed_at - REMEMBERED
            recent = (*(entry for entry in recent if entry.at > horizon), _remember(case, event))
    if cases is None:
        return state
    return structs.replace(
        state,
        cases=cases,
        open_by_host=open_by_host,
        held=held,
        person_released=released,
        let_go=let_go,
        recent=recent,
    )


def is_person(actor: str) -> bool:
    """Tell whether a fact was made by a person rather than by the policy or an actuator."""
    return actor != POLICY_ACTOR and not actor.startswith(ACTUATOR_PREFIX)


def view(case: Case, now: int) -> Hold:
    """Return the hold that a case is at this time."""
    basis = case.basis
    evidence = basis.evidence or {}
    overdue = case.stage == "held" and case.expires_at is not None and case.expires_at <= now
    return Hold(
        hold_id=case.hold_id,
        cluster=case.cluster,
        host=case.host,
        device_id=case.device_id,
        state="lapsed" if overdue else case.stage,
        check=basis.check,
        fault_class=None if basis.fault_class is None else basis.fault_class.value,
        owner=case.owner,
        reason=basis.reason,
        value=basis.value,
        bound=basis.bound,
        placed_at=case.placed_at,
        expires_at=case.expires_at,
        releases_when=basis.releases_when,
        dry_run=case.dry_run,
        evidence={name: text for name, text in evidence.items() if not name.startswith(OWN)},
        events=case.events,
        device_class=case.place.device_class,
        pool=case.place.pool,
        rack=case.place.rack,
        findings=case.findings,
        scheduler=NOT_TOLD if case.dry_run else case.scheduler,
        released_at=case.released_at,
        next_step=evidence.get(NEXT_STEP, ""),
    )


def _index(index: dict[HostKey, str], case: Case, *, present: bool) -> None:
    if present:
        index[case.host_key] = case.hold_id
    elif index.get(case.host_key) == case.hold_id:
        del index[case.host_key]


def _advance(case: Case | None, event: HoldEvent) -> Case:
    """Return the case after one fact."""
    if case is None:
        case = _begin(event)
    elif event.idempotency_key in case.keys:
        return case
    else:
        case = structs.replace(case, events=(*case.events, event), keys=case.keys | {event.idempotency_key})
    own = event.evidence or {}
    dedup_key = own.get(FINDING_KEY, "")
    if dedup_key and dedup_key not in case.findings:
        case = structs.replace(case, findings=(*case.findings, dedup_key))
    if digest := own.get(FINDING_DIGEST, ""):
        case = structs.replace(case, digests=case.digests | {digest})
    match event.kind:
        case HoldKind.PROPOSED:
            return structs.replace(
                case, stage="proposed", basis=event, placed_at=event.observed_at, expires_at=None, released_at=None
            )
        case HoldKind.REFUSED:
            # A proposal stays a proposal when a brake refuses to turn it into a hold.
            if case.stage in ("watch", "refused", "released"):
                return structs.replace(case, stage="refused", basis=event, expires_at=None, released_at=None)
            return case
        case HoldKind.PLACED:
            return structs.replace(
                case,
                stage="held",
                basis=event,
                device_id=event.device_id or case.device_id,
                owner=event.actor,
                placed_at=case.placed_at if case.is_held else event.observed_at,
                expires_at=event.expires_at,
                dry_run=own.get(DRY_RUN) == "true",
                # A hold that was only a dry run has told the scheduler nothing yet.
                scheduler=NOT_TOLD if case.dry_run and own.get(DRY_RUN) != "true" else case.scheduler,
                attempts=0,
                released_at=None,
            )
        case HoldKind.APPROVED:
            return structs.replace(
                case,
                stage="held",
                owner=event.actor,
                placed_at=case.placed_at if case.is_held else event.observed_at,
                expires_at=event.expires_at,
                dry_run=own.get(DRY_RUN) == "true",
                scheduler=NOT_TOLD if case.dry_run and own.get(DRY_RUN) != "true" else case.scheduler,
                attempts=0,
            )
        case HoldKind.LAPSED:
            return structs.replace(case, stage="lapsed")
        case HoldKind.RELEASED:
            return structs.replace(case, stage="released", released_at=event.observed_at, attempts=0)
        case HoldKind.ACTED:
            scheduler = own.get(SCHEDULER, case.scheduler)
            attempts = case.attempts + 1 if scheduler == FAILED else 0
            return structs.replace(
                case,
                scheduler=DRAINED if scheduler == FAILED and case.scheduler == DRAINED else scheduler,
                attempts=attempts,
                attempted_at=event.observed_at,
            )
        case HoldKind.READ_BACK:
            return structs.replace(case, scheduler=own.get(SCHEDULER, case.scheduler))
        case HoldKind.SCREENED | HoldKind.NOTED:
            return case


def _begin(event: HoldEvent) -> Case:
    own = event.evidence or {}
    return Case(
        hold_id=event.hold_id,
        cluster=event.cluster,
        host=event.host,
        device_id=event.device_id,
        stage="watch",  # what a note alone amounts to; other kinds set their own below
        basis=event,
        owner=event.actor,
        placed_at=event.observed_at,
        expires_at=event.expires_at,
        dry_run=own.get(DRY_RUN) == "true",
        events=(event,),
        keys=frozenset({event.idempotency_key}),
        place=HostFacts(
            cluster=event.cluster,
            host=event.host,
            device_class=own.get(DEVICE_CLASS, ""),
            pool=own.get(POOL, ""),
            rack=own.get(RACK, ""),
        ),
    )


def _remember(case: Case, event: HoldEvent) -> Recent:
    own = event.evidence or {}
    return Recent(
        at=event.observed_at,
        cluster=event.cluster,
        host=event.host,
        pool=case.place.pool,
        cause=event.check,
        kind=event.kind,
        by_policy=event.actor == POLICY_ACTOR,
        origins=tuple(
            (name.removeprefix(ORIGIN), text) for name, text in sorted(own.items()) if name.startswith(ORIGIN)
        ),
        brake=own.get(BRAKE, ""),
    )
