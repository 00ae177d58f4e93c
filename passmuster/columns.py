"""Columns of one record kind as numpy arrays with null masks, the form in which detectors read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from passmuster.batch import Batch, from_records, split_by_header
from passmuster.records import HEADER, Record


class Columns:
    """Rows of one kind in order of `observed_at`, possibly of many hosts. Build with `of`.

    Every array has length `rows`. A null is a False in `valid(name)`; the slot in `values(name)` then holds
    NaN (floats), 0 (integers and booleans), "" (text) or None (maps and lists) and must not be read.
    """

    def __init__(self, kind: str, columns: dict[str, list[Any]], rows: int) -> None:
        self.kind = kind
        self.rows = rows
        self._columns = columns
        self._values: dict[str, NDArray[Any]] = {}
        self._valid: dict[str, NDArray[np.bool_]] = {}
        self._numbers: dict[str, NDArray[np.float64]] = {}

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> Columns:
        """Join batches of one kind, sorted by time (stable). Raises ValueError when there are none or kinds differ."""
        batches = list(batches)
        kinds = {b.kind for b in batches}
        if len(kinds) != 1:
            raise ValueError(f"columns are of one kind, got {sorted(kinds)}")
        names = {n for b in batches for n in b.columns}
        rows = sum(b.rows for b in batches)
        columns: dict[str, list[Any]] = {h: [] for h in HEADER} | {n: [] for n in names}
        for b in batches:
            for h in HEADER:
                columns[h].extend([getattr(b, h)] * b.rows)
            for name in names:
                value = b.columns.get(name)
                columns[name].extend(value if isinstance(value, list) else [value] * b.rows)
        at = columns.get("observed_at", [])
        if any(a > b for a, b in pairwise(at)):
            order = sorted(range(rows), key=at.__getitem__)
            columns = {n: [c[i] for i in order] for n, c in columns.items()}
        return cls(kinds.pop(), columns, rows)

    @classmethod
    def of_records(cls, records: Sequence[Record]) -> Columns:
        """Build from records of one kind. For tests and rare kinds."""
        return cls.of(from_records(group) for group in split_by_header(records))

    def has(self, name: str) -> bool:
        """Tell whether any row has a value in this column."""
        return name in self._columns and bool(self.valid(name).any())

    def objects(self, name: str) -> list[Any]:
        """Return the plain Python values, None for null."""
        return self._columns.get(name) or [None] * self.rows

    def valid(self, name: str) -> NDArray[np.bool_]:
        """Return the mask of rows that have a value, shape (rows,)."""
        if name not in self._valid:
            column = self._columns.get(name)
            mask = np.zeros(self.rows, bool) if column is None else np.array([v is not None for v in column], bool)
            self._valid[name] = mask
        return self._valid[name]

    def values(self, name: str) -> NDArray[Any]:
        """Return the values, shape (rows,): float64, int64, bool, or object for text, maps and lists.

        The type follows the values present; an all-null column is float64 NaN.
        """
        if name not in self._values:
            self._values[name] = _array(self.objects(name))
        return self._values[name]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a numeric or boolean column as float64 with NaN for null, shape (rows,). Do not write into it."""
        if name not in self._numbers:
            column = self._columns.get(name)
            self._numbers[name] = (
                np.full(self.rows, np.nan)
                if column is None
                else np.array([np.nan if v is None else v for v in column], np.float64)
            )
        return self._numbers[name]

    def adding(self, **columns: list[Any]) -> Columns:
        """Return the same rows with more columns, each a list of length `rows`; arrays already built are shared."""
        more = Columns(self.kind, {**self._columns, **columns}, self.rows)
        more._values = {n: v for n, v in self._values.items() if n not in columns}
        more._valid = {n: v for n, v in self._valid.items() if n not in columns}
        return more

    def take(self, rows: NDArray[Any]) -> Columns:
        """Return the chosen rows (indices or a mask), order kept."""
        index = np.flatnonzero(rows) if rows.dtype == bool else rows
        columns = {n: [c[i] for i in index] for n, c in self._columns.items()}
        return Columns(self.kind, columns, len(index))


def _array(column: list[Any]) -> NDArray[Any]:
    present = [v for v in column if v is not None]
    if not present or any(isinstance(v, float) for v in present):
        return np.array([np.nan if v is None else v for v in column], np.float64)
    if isinstance(present[0], bool):
        return np.array([bool(v) for v in column], bool)
    if isinstance(present[0], int):
        return np.array([0 if v is None else v for v in column], np.int64)
    fill = "" if isinstance(present[0], str) else None
    array = np.empty(len(column), object)
    array[:] = [fill if v is None else v for v in column]
    return array
