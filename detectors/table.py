"""Last values per subject as float64 arrays, the part of a detector's state that a fleet makes large."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

GROW = 64  # rows added at once, so that a new device does not copy every array


class Table:
    """Columns of float64 keyed by subject; NaN is "not known". Copies an array when it is first written.

    Building one with `of` from another shares its arrays, so a detector that returns a new table has not changed the
    old one.
    """

    def __init__(self, ids: dict[str, int], columns: dict[str, Floats]) -> None:
        self._ids = ids
        self._columns = columns
        self._own: set[str] = set()
        self._own_ids = False

    @classmethod
    def of(cls, stored: Table | dict[str, Any] | None) -> Table:
        """Build from another table (shared until written), from `plain`, or empty."""
        if stored is None:
            return cls({}, {})
        if isinstance(stored, Table):
            return cls(stored._ids, dict(stored._columns))  # noqa: SLF001 - its own class
        ids = {str(name): i for i, name in enumerate(stored["ids"])}
        columns = {}
        for name, values in stored["columns"].items():
            column = np.array([np.nan if v is None else v for v in values], np.float64)
            if column.shape != (len(ids),):
                raise ValueError(f"column {name!r} has shape {column.shape} for {len(ids)} subjects")
            columns[str(name)] = column
        return cls(ids, columns)

    def plain(self) -> dict[str, Any]:
        """Return ids and columns as lists, NaN as None, for JSON."""
        count = len(self._ids)
        columns = {}
        for name in self._columns:
            values = self._column(name)[:count]
            columns[name] = [None if np.isnan(v) else v for v in values.tolist()]
        return {"ids": list(self._ids), "columns": columns}

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, name: str) -> bool:
        """Tell whether a column was ever written."""
        return name in self._columns

    def ids(self) -> list[str]:
        """Return the subjects in row order."""
        return list(self._ids)

    def rows(self, ids: Sequence[str]) -> Rows:
        """Return the row of each subject, adding those that are new."""
        known = self._ids
        if any(i not in known for i in ids):
            if not self._own_ids:
                known = self._ids = dict(known)
                self._own_ids = True
            for i in ids:
                known.setdefault(i, len(known))
        return np.array([known[i] for i in ids], np.intp)

    def every(self, name: str, default: float = np.nan) -> Floats:
        """Return a column over all subjects, shape (len(self),)."""
        values = self._column(name)[: len(self._ids)]
        return values if np.isnan(default) else np.where(np.isnan(values), default, values)

    def get(self, name: str, rows: Rows, default: float = np.nan) -> Floats:
        """Return the values of some rows; what is not known is `default`."""
        if name not in self._columns:
            return np.full(len(rows), default)
        values: Floats = self._column(name)[rows]
        return values if np.isnan(default) else np.where(np.isnan(values), default, values)

    def put(self, name: str, rows: Rows, values: Floats | float | NDArray[np.bool_]) -> None:
        """Write some rows of a column."""
        column = self._column(name)
        if name not in self._own:
            column = column.copy()
            self._own.add(name)
        column[rows] = values
        self._columns[name] = column

    def without(self, gone: Collection[str]) -> Table:
        """Return a table that has forgotten some subjects."""
        keep = [i for i in self._ids if i not in gone]
        rows = np.array([self._ids[i] for i in keep], np.intp)
        return Table({name: i for i, name in enumerate(keep)}, {n: self._column(n)[rows] for n in self._columns})

    def _column(self, name: str) -> Floats:
        column = self._columns.get(name)
        count = len(self._ids)
        if column is None or len(column) < count:
            grown = np.full(count + GROW, np.nan)
            if column is not None:
                grown[: len(column)] = column
            self._columns[name] = column = grown
            self._own.add(name)
        return column
