"""The fixture of the fake vendor libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.doubles.child_backend import ChildBackend


@pytest.fixture
def child_backend() -> Iterator[Callable[[str, Mapping[str, str]], ChildBackend]]:
    """Start child processes by vendor and environment; all are killed afterwards."""
    started: list[ChildBackend] = []

    def start(vendor: str, environment: Mapping[str, str]) -> ChildBackend:
        started.append(ChildBackend(vendor, environment))
        return started[-1]

    yield start
    for backend in started:
        backend.end()
