"""Brings the tables of an embedded store to the records of this program, forward only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from passmuster.batch import record_type
from passmuster.errors import StoreError
from passmuster.records import KINDS
from passmuster.schema import TELEMETRY_KINDS, column_clause, create_table, quote, sql_columns, ttl


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
    for kind in KINDS:
        if kind not in tables:
            session.query(create_table(kind, keep_days))
        else:
            _refuse_other_layout(kind, tables[kind]["sorting_key"], columns[kind], folder)
            for name in sql_columns(kind):
                if name not in columns[kind]:
                    session.query(f"ALTER TABLE {quote(kind)} ADD COLUMN IF NOT EXISTS {column_clause(kind, name)}")
            if kind in TELEMETRY_KINDS and f"toIntervalDay({keep_days})" not in tables[kind]["create_table_query"]:
                session.query(
                    f"ALTER TABLE {quote(kind)} MODIFY TTL {ttl(kind, keep_days)} "
                    "SETTINGS materialize_ttl_after_modify = 0"
                )
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


def _refuse_other_layout(kind: str, sorting_key: str, columns: dict[str, str], folder: Path) -> None:
    ours = ", ".join(record_type(kind).KEY)
    differing = [n for n, t in sql_columns(kind).items() if columns.get(n, t) != t]
    if sorting_key != ours or differing:
        what = f"columns {', '.join(differing)} have other types" if differing else f"key is {sorting_key}, not {ours}"
        raise StoreError(
            f"table {kind} of the store in {folder} is not laid out as this passmuster needs it ({what}); "
            "set store.dir to another folder"
        )
