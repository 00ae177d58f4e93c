"""What each class of finding may lead to at most, and what ends a hold for it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from passmuster.records import FaultClass, Finding, Severity, SubjectKind


class Outcome(StrEnum):
    """The most that a finding of a class may lead to."""

    HOLD = "hold"
    PROPOSE = "propose"  # a person decides
    WATCH = "watch"  # remembered for a day, then it lapses by itself
    STORE = "store"  # nothing


class Rule(Struct, frozen=True):
    """What a fault class leads to, and what ends a hold for it."""

    outcome: Outcome
    releases_when: str


RULES: dict[FaultClass, Rule] = {
    FaultClass.UNCONTAINED: Rule(Outcome.HOLD, "the device is reset and passes a memory test; then a person releases"),
    FaultClass.REPAIR_FAILED: Rule(Outcome.HOLD, "the device is replaced; then a person releases"),
    FaultClass.HANG: Rule(
        Outcome.HOLD,
        "the device is reset, or the host rebooted once, and stays clean under load; then a person releases",
    ),
    FaultClass.BUS: Rule(
        Outcome.HOLD, "the host is rebooted once and the device is back in the inventory; then a person releases"
    ),
    FaultClass.MISCONFIGURED: Rule(Outcome.PROPOSE, "the configuration is put right; then a person releases"),
    FaultClass.CONTAINED: Rule(
        Outcome.PROPOSE, "the running job has ended and the device was reset; then a person releases"
    ),
    FaultClass.PENDING: Rule(
        Outcome.PROPOSE,
        "the running job has ended, the device was reset and the repair is done; then a person releases",
    ),
    FaultClass.LINK: Rule(
        Outcome.PROPOSE,
        "the fault is pinned on a cable, switch or device and that part is put right; then a person releases",
    ),
    FaultClass.THERMAL: Rule(Outcome.WATCH, "the device is back within its limits, or a day has passed"),
    FaultClass.APPLICATION: Rule(Outcome.STORE, ""),
    FaultClass.INFO: Rule(Outcome.STORE, ""),
    FaultClass.LEGACY: Rule(Outcome.STORE, ""),
    FaultClass.SILENT: Rule(Outcome.STORE, ""),  # silence is unknown, never a verdict on hardware
}
"""One rule per class, after the peers' default actions; a class that is missing here would be an error."""

CEILING = {
    Severity.INFO: Outcome.STORE,
    Severity.WARNING: Outcome.WATCH,
    Severity.ERROR: Outcome.HOLD,
    Severity.CRITICAL: Outcome.HOLD,
}
"""A warning never takes a host out, whatever its class."""

RANK = (Outcome.STORE, Outcome.WATCH, Outcome.PROPOSE, Outcome.HOLD)

ONE_HOST = frozenset({SubjectKind.HOST, SubjectKind.DEVICE, SubjectKind.UNIT})
"""Subjects that are a host or lie in one; a switch, rack or cohort is never answered by holding a host."""

# Who could have made the evidence up; such evidence never takes a host out.
UNTRUSTED = {"origin": "job", "trust": "user"}


def outcome_of(finding: Finding) -> Outcome:
    """Return the most that this finding may lead to by its class, severity, subject and evidence; mode apart."""
    evidence = finding.evidence or {}
    bounds = [RULES[finding.fault_class].outcome, CEILING[finding.severity]]
    if finding.subject_kind not in ONE_HOST or not finding.host:
        bounds.append(Outcome.STORE)
    if any(evidence.get(name) == text for name, text in UNTRUSTED.items()):
        bounds.append(Outcome.WATCH)
    return min(bounds, key=RANK.index)
