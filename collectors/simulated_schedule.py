"""When and where faults strike a simulated fleet, drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from collectors.simulated_faults import BY_NAME, KINDS, FaultKind
from passmuster.records import FaultClass, Vendor

SECOND = 1_000_000_000

# What a newcomer sees first: a lost GPU, an AMD memory fault, and a program's fault that holds nothing.
OPENING = (("device_lost", 15.0), ("umc_uncorrectable", 45.0), ("application_fault", 75.0), ("link_down", 105.0))
# A host rests this long between two planted faults, so that each is found on its own.
REST_SECONDS = 900.0


class PlantedFault(Struct, frozen=True, kw_only=True):
    """One fault of the schedule: what was planted, and what should be found."""

    at: int
    until_at: int
    host: str
    device_id: str  # empty where the host or rack is concerned
    fault_class: FaultClass
    kind: str
    what: str
    finding: str | None
    hosts: tuple[str, ...]  # all hosts concerned
    device: int


class Place(Struct, frozen=True):
    """Where a fault can be planted."""

    host: str
    rack: str
    vendor: Vendor
    device_ids: tuple[str, ...]


class FaultSchedule:
    """Draws planted faults one after the other; the same seed gives the same faults whatever else happens."""

    def __init__(self, places: Sequence[Place], seed: int, start_at: int, gap_seconds: float) -> None:
        self._places = places
        self._random = Random(f"{seed}/faults")
        self._start_at = start_at
        self.gap_seconds = gap_seconds
        self._next_at = start_at + int(OPENING[0][1] * SECOND)
        self._drawn = 0
        self._round: list[str] = []
        self._free_at: dict[str, int] = {}
        self.planted: list[PlantedFault] = []

    def until(self, at: int) -> list[PlantedFault]:
        """Return the faults that strike up to `at` and were not returned before, in order."""
        new = []
        while self._next_at <= at:
            fault = self._draw(self._next_kind(), self._next_at)
            if fault is not None:
                new.append(fault)
            self._drawn += 1
            if self._drawn < len(OPENING):
                self._next_at = self._start_at + int(OPENING[self._drawn][1] * SECOND)
            else:
                self._next_at += int(self.gap_seconds * self._random.uniform(0.7, 1.3) * SECOND)
        self.planted.extend(new)
        return new

    def _next_kind(self) -> FaultKind:
        if self._drawn < len(OPENING):
            return BY_NAME[OPENING[self._drawn][0]]
        if not self._round:
            opened = {name for name, _ in OPENING} if self._drawn == len(OPENING) else set()
            self._round = [kind.name for kind in KINDS if kind.name not in opened]
            self._random.shuffle(self._round)
        return BY_NAME[self._round.pop()]

    def _draw(self, kind: FaultKind, at: int) -> PlantedFault | None:
        """Choose a place; None where every host that fits has, or lately had, another fault."""
        racks: dict[str, list[Place]] = {}
        for place in self._places:
            racks.setdefault(place.rack, []).append(place)
        fits = [
            group
            for group in (list(racks.values()) if kind.whole_rack else [[place] for place in self._places])
            if all(p.vendor in kind.vendors and self._free_at.get(p.host, 0) <= at for p in group)
            and (not kind.whole_rack or len(group) > 1)
        ]
        # Drawn whether it fits or not, so that what comes later does not depend on it.
        pick, device = self._random.random(), self._random.random()
        if not fits:
            return None
        group = fits[int(pick * len(fits))]
        fault = planted(kind, group, int(device * len(group[0].device_ids)), at)
        for place in group:
            self._free_at[place.host] = fault.until_at + int(REST_SECONDS * SECOND)
        return fault


def planted(kind: FaultKind, group: Sequence[Place], device: int, at: int) -> PlantedFault:
    """Return the fault of this kind on a host, or on all hosts of a rack."""
    on_host = kind.on_device is None and not kind.fate and not kind.lines and kind.name != "frozen_sensor"
    return PlantedFault(
        at=at,
        until_at=at + int(kind.lasts_seconds * SECOND),
        host=group[0].host,
        device_id="" if on_host or kind.on_siblings or kind.name == "nic_flap" else group[0].device_ids[device],
        fault_class=kind.fault_class,
        kind=kind.name,
        what=kind.what,
        finding=kind.finding,
        hosts=tuple(place.host for place in group),
        device=device,
    )
