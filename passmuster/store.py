"""The store as everybody sees it: batches go in, named queries come out; which engine is below, nobody knows.

SQL is written once, in ClickHouse's dialect, one file per query under ``passmuster/sql``. Its first line says what
it answers; its ``{name:Type}`` placeholders are its parameters. No SQL text ever comes from anywhere else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from passmuster.batch import Batch
from passmuster.errors import BadRecord
from passmuster.records import INT64_MAX
from passmuster.schema import TELEMETRY_KINDS, partition_time

if TYPE_CHECKING:
    import pyarrow as pa

SQL_FOLDER = Path(__file__).parent / "sql"

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
# A host whose clock is ahead by more than this is wrong about the time, and its rows would lie in partitions of
# their own for ever.
MAX_AHEAD = DAY
# Facts (findings, faults, inventories) are kept; one that claims to be older than this is a broken clock's.
MAX_FACT_AGE = 20 * 366 * DAY


class Store(Protocol):
    """Where records live. All methods may be called from any thread."""

    def insert(self, batches: Sequence[Batch]) -> None:
        """Store batches, one insert per kind; when it returns they are on the disk.

        The same batch may be inserted again at any time: its rows replace themselves. Raises BadRecord for a batch
        that `check_times` refuses (nothing was stored then), StoreError when the store cannot take it (parts may be
        stored; insert all of it again later).
        """

    def query(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """Run ``sql/<name>.sql``. Times come back as integer nanoseconds UTC, maps as dicts (empty means null).

        Raises StoreError when it takes too long, needs too much memory or the store fails; ValueError for an
        unknown query or parameter, which is a mistake in our own code.
        """

    def query_arrow(self, name: str, **params: Any) -> pa.Table:
        """Run ``sql/<name>.sql``. Times come back as timestamp[ns, UTC]; errors as in `query`."""

    def close(self) -> None:
        """Finish what runs and let go of the data; a second call does nothing."""


class Query(Struct, frozen=True):
    """One SQL file: what it answers, its text, and its parameters' ClickHouse types by name."""

    name: str
    summary: str
    sql: str
    params: dict[str, str]


_PLACEHOLDER = re.compile(r"\{(\w+):([^{}]+)\}")


def query_names() -> list[str]:
    """Return the names of all queries, sorted."""
    return sorted(p.stem for p in SQL_FOLDER.glob("*.sql"))


@cache
def load_query(name: str) -> Query:
    """Read one SQL file of ours. Raises ValueError for a name that has none."""
    if name not in query_names():
        raise ValueError(f"unknown query {name!r}; known: {', '.join(query_names())}")
    text = (SQL_FOLDER / f"{name}.sql").read_text("utf-8")
    summary = text.partition("\n")[0].removeprefix("--").strip()
    return Query(name, summary, text, {n: t.strip() for n, t in _PLACEHOLDER.findall(text)})


def bind(query: Query, params: dict[str, Any]) -> dict[str, str]:
    """Return the parameters as ClickHouse takes them, each checked against the type in the SQL.

    Raises ValueError for a missing, unknown or wrongly typed one.
    """
    if params.keys() != query.params.keys():
        raise ValueError(f"query {query.name} takes {sorted(query.params)}, got {sorted(params)}")
    return {name: _text(params[name], sql_type, name) for name, sql_type in query.params.items()}


# The engine reads a parameter as a TSV field, so text is escaped as one and null is \N. An array is read in its
# literal form instead, with quoted strings, which takes the same escapes once.
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})
_QUOTED_ESCAPES = _ESCAPES | str.maketrans({"'": "\\'"})


def _text(value: Any, sql_type: str, name: str) -> str:
    if sql_type.startswith("Nullable("):
        return "\\N" if value is None else _text(value, sql_type[9:-1], name)
    if sql_type == "Array(String)" and isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
        return "[" + ",".join(f"'{_utf8(v).translate(_QUOTED_ESCAPES)}'" for v in value) + "]"
    if sql_type == "String" and isinstance(value, str):
        return _utf8(value).translate(_ESCAPES)
    lowest = {"Int64": -INT64_MAX, "UInt64": 0}.get(sql_type)
    if lowest is not None and isinstance(value, int) and lowest <= value <= INT64_MAX:
        return str(int(value))
    if sql_type == "Float64" and isinstance(value, int | float) and math.isfinite(value):
        return repr(float(value))
    raise ValueError(f"parameter {name} is {sql_type}, got {value!r:.64}")


def _utf8(text: str) -> str:
    """Replace lone surrogates: the store holds none, so what asks for one finds nothing."""
    return text.encode("utf-8", "replace").decode("utf-8")


def check_times(batch: Batch, now: int, keep_days: int) -> None:
    """Raise BadRecord for a batch whose times would fill the store with partitions of their own.

    Rows of the future (a broken clock) and telemetry that is already older than `keep_days` are refused.
    """
    name = partition_time(batch.kind)
    column = batch.columns.get(name)
    times = column if isinstance(column, list) else [column]
    if not batch.rows or not times:
        return
    oldest = now - (keep_days * DAY if batch.kind in TELEMETRY_KINDS else MAX_FACT_AGE)
    bad = next((t for t in times if not isinstance(t, int) or not oldest <= t <= now + MAX_AHEAD), None)
    if bad is not None or None in times:
        raise BadRecord(
            f"batch of {batch.kind} from {batch.host[:64]!r}: {name} {bad} is not between {oldest} and "
            f"{now + MAX_AHEAD}; check that host's clock"
        )
