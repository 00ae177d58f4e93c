"""Brings the tables of an embedded store to the records of this program, forward only."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from passmuster.batch import record_type
from passmuster.errors import StoreError
from passmuster.records import KINDS
from passmuster.schema import (
    LATEST_KINDS,
    TELEMETRY_KINDS,
    column_clause,
    create_table,
    latest_key,
    latest_table,
    quote,
    sorting_key,
    sql_columns,
    ttl,
    ttl_interval,
)


def migrate(session: Any, folder: Path, keep_days: int, now: int) -> None:
    """Create missing tables, add the columns that records have gained, set the time to live.

    `session` is open on the database. Running it again changes nothing, so a crash in the middle is mended by the
    next start. Raises StoreError when a newer program wrote the store, or its tables are not ours.
    """
    session.query(
        "CREATE TABLE IF NOT EXISTS record_versions "
        "(`kind` String, `version` UInt16, `since_at` DateTime64(9, 'UTC')) "
        "ENGINE = ReplacingMergeTree ORDER BY (`kind`, `version`) "
        "SETTINGS fsync_after_insert = 1, fsync_part_directory = 1"
    )
    written = {
        row["kind"]: row["version"]
        for row in _select(session, "SELECT kind, max(version) AS version FROM record_versions GROUP BY kind")
    }
    _refuse_newer(written, folder)
    tables = {
        row["name"]: row
        for row in _select(
            session,
            "SELECT name, sorting_key, create_table_query FROM system.tables WHERE database = currentDatabase()",
        )
    }
    columns: dict[str, dict[str, str]] = {}
    for row in _select(session, "SELECT table, name, type FROM system.columns WHERE database = currentDatabase()"):
        columns.setdefault(row["table"], {})[row["name"]] = row["type"]
    for kind, latest in chain(((k, False) for k in KINDS), ((k, True) for k in LATEST_KINDS)):
        name = latest_table(kind) if latest else kind
        if name not in tables:
            session.query(create_table(kind, keep_days, latest=latest))
            continue
        key = latest_key(kind) if latest else sorting_key(kind)
        if trouble := _layout_trouble(tables[name]["sorting_key"], key, columns[name], sql_columns(kind)):
            raise StoreError(
                f"table {name} of the store in {folder} is not laid out as this passmuster needs it ({trouble}); "
                "set store.dir to another folder"
            )
        for column in sql_columns(kind):
            if column not in columns[name]:
                session.query(f"ALTER TABLE {quote(name)} ADD COLUMN IF NOT EXISTS {column_clause(kind, column)}")
        has_ttl = kind in TELEMETRY_KINDS and not latest
        if has_ttl and ttl_interval(keep_days) not in tables[name]["create_table_query"]:
            session.query(
                f"ALTER TABLE {quote(name)} MODIFY TTL {ttl(kind, keep_days)} SETTINGS materialize_ttl_after_modify = 0"
            )
    for kind in KINDS:
        version = record_type(kind).VERSION
        if written.get(kind) != version:
            session.query(
                f"INSERT INTO record_versions SELECT '{kind}', {version}, "
                f"fromUnixTimestamp64Nano(toInt64({int(now)}), 'UTC')"
            )


def _select(session: Any, sql: str) -> list[dict[str, Any]]:
    lines = session.query(sql, "JSONEachRow").bytes().splitlines()
    return [json.loads(line) for line in lines]


def _refuse_newer(written: dict[str, int], folder: Path) -> None:
    for kind, version in sorted(written.items()):
        known = KINDS[kind].VERSION if kind in KINDS else 0
        if version > known:
            knows = f"knows {kind} up to version {known}" if known else f"does not know {kind}"
            raise StoreError(
                f"the store in {folder} was written by a newer passmuster ({kind} version {version}; this one "
                f"{knows}); upgrade passmuster, or set store.dir to another folder"
            )


def _layout_trouble(found: str, key: tuple[str, ...], columns: dict[str, str], needed: dict[str, str]) -> str:
    """Say in what a table differs so that adding columns does not help; empty when it does."""
    if found != ", ".join(key):
        return f"its key is {found}"
    differing = [n for n, t in needed.items() if columns.get(n, t) != t]
    return f"columns {', '.join(differing)} have other types" if differing else ""
