"""Columns whose values are maps (throttle reasons, errors by block, by link), reduced to arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from detectors.table import Floats
from passmuster.columns import Columns


def total(records: Columns, name: str, chosen: Callable[[str], bool]) -> Floats:
    """Return per row the sum of the entries whose key is chosen; NaN where the map is null or has no such key."""
    out = np.full(records.rows, np.nan)
    if not records.has(name):
        return out
    for i, entries in enumerate(records.objects(name)):
        if entries:
            found = [v for k, v in entries.items() if chosen(k)]
            if found:
                out[i] = sum(found)
    return out


def highest(records: Columns, name: str, keys: Collection[str]) -> Floats:
    """Return per row the highest entry among keys, 0 where the map has none of them; NaN where it is null."""
    out = np.full(records.rows, np.nan)
    if not records.has(name):
        return out
    for i, entries in enumerate(records.objects(name)):
        if entries is not None:
            out[i] = max([v for k, v in entries.items() if k in keys], default=0.0)
    return out
