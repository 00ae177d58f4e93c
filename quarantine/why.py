"""Tells why a host is held: evidence, owner, since when, what was done, what releases it, what to do next."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from quarantine.service import Hold

MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+!|~$&:-])")

STATES = {
    "watch": "is being watched; nothing was done",
    "proposed": "is in service; the policy proposes to hold it and a person decides",
    "refused": "is in service; the policy would hold it and a brake refused",
    "held": "is held",
    "lapsed": "is held, its time is over, and it waits for a person",
    "released": "is released",
}

NEXT = {
    "proposed": "approve it (`muster holds approve {id}`) or decline it (`muster holds release {id}`)",
    "refused": "look at `muster holds brakes`; a person may hold it all the same (`muster holds approve {id}`)",
    "lapsed": "release it (`muster holds release {id}`) or keep it (`muster holds approve {id}`)",
}


def utc(at: int | None) -> str:
    """Return a time in nanoseconds as people read it, to the second."""
    return "never" if at is None else datetime.fromtimestamp(at // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def why_text(hold: Hold) -> str:
    """Return the page as plain text for a terminal."""
    parts = []
    for title, lines in _sections(hold):
        parts.append("\n".join([title, *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


def why_markdown(hold: Hold) -> str:
    """Return the page as Markdown. What hosts and people wrote is escaped: it shows as text, never as markup."""
    parts = []
    for title, lines in _sections(hold):
        parts.append(f"### {as_text(title)}\n\n" + "\n".join(f"- {as_text(line)}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _sections(hold: Hold) -> list[tuple[str, list[str]]]:
    subject = hold.host or f"many hosts of {hold.cluster}"
    headline = f"{subject} {STATES[hold.state]}" + (" (dry run: no scheduler is touched)" if hold.dry_run else "")
    what = [f"why: {hold.reason}", f"hold: {hold.hold_id}", f"check: {hold.check}"]
    if hold.fault_class:
        what.append(f"fault class: {hold.fault_class}")
    if hold.value is not None:
        what.append(f"value: {hold.value:g}" + ("" if hold.bound is None else f", bound: {hold.bound:g}"))
    if hold.device_id:
        what.append(f"device: {hold.device_id}")
    stands = {"cluster": hold.cluster, "model": hold.device_class, "pool": hold.pool, "rack": hold.rack}
    what.append(", ".join(f"{name}: {text}" for name, text in stands.items() if text))
    when = [f"owner: {hold.owner}", f"since: {utc(hold.placed_at)}"]
    if hold.released_at is not None:
        when.append(f"released: {utc(hold.released_at)}")
    elif hold.expires_at is not None:
        then = "ends" if hold.state == "watch" else "goes to a person's queue"
        when.append(f"{then}: {utc(hold.expires_at)}")
    when.append(f"scheduler: {hold.scheduler}")
    steps = [text for text in (hold.next_step, NEXT.get(hold.state, "").format(id=hold.hold_id)) if text]
    evidence = [f"{name}: {text}" for name, text in hold.evidence.items()]
    evidence += [f"finding: {dedup_key}" for dedup_key in hold.findings]
    history = [
        f"{utc(event.observed_at)}  {event.kind.value.replace('_', ' ')} by {event.actor}: {event.reason}"
        for event in hold.events
    ]
    return [
        (_one_line(headline), _plain(what)),
        ("Owner", _plain(when)),
        ("What releases it", _plain([hold.releases_when or "a person releases it"])),
        ("Next step", _plain(steps or ["none"])),
        ("Evidence", _plain(evidence or ["a person's word"])),
        ("What happened", _plain(history)),
    ]


def _plain(lines: list[str]) -> list[str]:
    return [_one_line(line) for line in lines if line]


def _one_line(text: str) -> str:
    """Evidence comes from hosts: no line feed, escape sequence or change of direction reaches a terminal or page."""
    return "".join(char if char.isprintable() else " " for char in text)


def as_text(text: str) -> str:
    """Return Markdown that shows as this text, on one line: a host's model name must not load an image."""
    return MARKDOWN.sub(r"\\\1", _one_line(text))
