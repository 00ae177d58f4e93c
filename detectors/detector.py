"""What a detector is, and the register of those that exist.

A detector is a pure function over columns and its own state: no clock, no I/O, no log. It returns findings that
opened, were seen again or cleared; the engine stamps cluster, mode and version. A detector registers itself in its own
file; `load_all` imports every file of this folder once.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec import Struct

from passmuster.columns import Columns
from passmuster.records import Finding

State = dict[str, Any]
"""A detector's own state: JSON-able, keyed by device id or subject, so that a restart forgets nothing."""

Observe = Callable[[State, Columns, int], tuple[State, list[Finding]]]
"""``observe(state, records, now)``; ``now`` is nanoseconds UTC. Must not change its arguments.

The engine hands over readings in slices: at most one row per subject, each newer than the last. It adds two columns:
``subject`` (cluster, host and device joined by slashes: the key of state) and ``in_boot_grace``.
"""

Tick = Callable[[State, int], tuple[State, list[Finding]]]
"""``tick(state, now)`` for what only the passing of time can show."""


class Detector(Struct, frozen=True, kw_only=True):
    """One detector: its name is its file's name, and the ``detector`` of its findings."""

    name: str
    version: int
    kinds: tuple[str, ...]  # record kinds that it reads
    summary: str  # one sentence for the docs: what it finds
    observe: Observe
    tick: Tick | None = None
    codes: tuple[str, ...] = ()  # finding codes that it may emit (detectors/codes.py)
    needs: dict[str, tuple[str, ...]] = {}  # by kind: with none of these columns the check could not be made
    local: bool = True  # may run on the host, on that host's records alone
    bounds: dict[str, str] = {}  # name of each bound in the code: value, unit and reason, for the docs


DETECTORS: dict[str, Detector] = {}


def register(detector: Detector) -> Detector:
    """Add a detector under its name; a name that is taken raises ValueError at import."""
    if detector.name in DETECTORS:
        raise ValueError(f"two detectors are called {detector.name!r}")
    DETECTORS[detector.name] = detector
    return detector


def load_all() -> dict[str, Detector]:
    """Import every detector file of this folder and return the register."""
    import detectors

    for module in pkgutil.iter_modules(detectors.__path__):
        if module.name not in ("detector", "engine"):
            import_module(f"detectors.{module.name}")
    return DETECTORS
