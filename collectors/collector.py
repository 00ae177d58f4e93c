"""What a collector is: one file, one name, one method that yields records or says why there is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from passmuster.records import Record


class Absent(Exception):  # an outcome, not a fault
    """There is nothing to read here on this host; quiet. The message says what is not there."""


class Failed(Exception):  # as above
    """It is there and reading broke; loud. The message says what, where and what to do."""


class Collector(Protocol):
    """Reads one thing. The runner gives it the time, bounds it, times it and counts its outcome."""

    name: str
    period_seconds: float

    def collect(self, now: int) -> Iterable[Record]:
        """Yield records observed at ``now`` (nanoseconds, UTC). Raises Absent or Failed; never sleeps or retries."""
