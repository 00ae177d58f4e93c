"""The running house that the pages of this process read; set once by the composition root or by a test."""

from __future__ import annotations

from typing import Protocol

from dashboards.running import Progress
from passmuster.store import Store
from quarantine.service import HostFacts, QuarantineService


class House(Protocol):
    """What pages may use."""

    progress: Progress
    store: Store
    service: QuarantineService

    def now(self) -> int:
        """Return the clock that the data lives on, nanoseconds UTC."""

    def hosts(self) -> list[HostFacts]:
        """Return the hosts that report now."""

    def source_name(self) -> str:
        """Return in words where the data comes from."""


_current: House | None = None


def set_house(house: House | None) -> None:
    """Tell the pages which house they show."""
    global _current  # noqa: PLW0603  # Streamlit runs pages as scripts; a module is the only thing they share
    _current = house


def house() -> House:
    """Return the house. Raises RuntimeError when a page is run outside `muster up`."""
    if _current is None:
        raise RuntimeError("the pages are part of `muster up`; start that")
    return _current
