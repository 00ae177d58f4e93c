"""How values are said on the pages: times, ages, states and what each class means."""

from __future__ import annotations

from datetime import UTC, datetime

SECOND = 1_000_000_000

STATE_COLORS = {
    "passes": "#2e8b57",
    "degraded": "#e0a100",
    "unhealthy": "#c8452c",
    "held": "#7b3fa0",
    "unknown": "#8a8f98",
}
"""Colour of each host state, in the order of the legend."""

SEVERITIES = ("critical", "error", "warning", "info")

CLASS_WORDS = {
    "A": "workload suspected",
    "B": "lost from the bus",
    "C": "contained memory error",
    "H": "hang or firmware death",
    "I": "informational",
    "L": "link or fabric",
    "M": "misconfigured",
    "P": "repair pending",
    "R": "repair failed or used up",
    "S": "silent telemetry",
    "T": "heat or power",
    "U": "uncontained memory error",
    "V": "legacy code",
}


def at(nanoseconds: int | None) -> str:
    """Return a time in UTC to the second, or a dash."""
    if not nanoseconds:
        return "-"
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")


def age(nanoseconds: int | None, now: int) -> str:
    """Return how long ago, in one unit; a time in the future is `in ...`."""
    if not nanoseconds:
        return "-"
    seconds = (now - nanoseconds) / 1e9
    text = span(abs(seconds))
    return f"in {text}" if seconds < -1 else text


def span(seconds: float) -> str:
    """Return a duration in the largest unit that leaves at least two of it."""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
