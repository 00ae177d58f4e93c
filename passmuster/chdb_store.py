"""The embedded store: the ClickHouse engine in this process (chdb), its files in one folder."""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from passmuster import config, store_migration
from passmuster.batch import Batch
from passmuster.errors import BadRecord, StoreError
from passmuster.records import HEADER
from passmuster.schema import LATEST_KINDS, Field, arrow_schema, fields, latest_key, latest_table, quote, sql_columns
from passmuster.store import bind, check_times, load_query

if TYPE_CHECKING:
    import pyarrow as pa

# One session serialises its statements, so a slow page must not hold up the others. Two cores are busy with three.
QUERY_SESSIONS = 3
DATABASE = "passmuster"

# Codes of ClickHouse (src/Common/ErrorCodes.cpp).
_TIMEOUT, _MEMORY, _NO_SPACE = 159, 241, 243


class ChdbStore:
    """A `passmuster.store.Store` in a folder that this process alone owns.

    `clock` returns nanoseconds UTC; a simulated fleet that runs ahead of the wall clock hands in its own. Opening
    creates what is missing and adds the columns that records have gained. Raises StoreError, in one sentence, when
    another process owns the folder, a newer program wrote it, or it cannot be read or written.
    """

    def __init__(self, folder: str | Path, settings: config.Store, clock: Callable[[], int] = time.time_ns) -> None:
        self._folder = Path(folder).absolute()
        self._settings = settings
        self._clock = clock
        self._closed = False
        self._sessions: list[Any] = []
        self._local = threading.local()
        _claim(self._folder)
        # Statements run off the main thread: inside the engine, Ctrl-C would wait for them.
        self._writer = ThreadPoolExecutor(1, "store-insert")
        self._readers = ThreadPoolExecutor(QUERY_SESSIONS, "store-query")
        try:
            self._writer.submit(self._prepare).result()
        except BaseException:
            self.close()
            raise

    def insert(self, batches: Sequence[Batch]) -> None:
        """See `passmuster.store.Store.insert`."""
        now = self._clock()
        by_kind: dict[str, list[Batch]] = {}
        for batch in batches:
            check_times(batch, now, self._settings.keep_days)
            if batch.rows:
                by_kind.setdefault(batch.kind, []).append(batch)
        tables = {kind: _table(kind, group, now) for kind, group in by_kind.items()}
        # After the rows themselves: a crash between the two is mended when the batches come again.
        tables |= {latest_table(kind): _newest(kind, tables[kind]) for kind in LATEST_KINDS if kind in tables}
        self._submit(self._writer, self._insert, tables)

    def query(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """See `passmuster.store.Store.query`."""
        return _rows(self.query_arrow(name, **params))

    def query_arrow(self, name: str, **params: Any) -> pa.Table:
        """See `passmuster.store.Store.query_arrow`."""
        query = load_query(name)
        return self._submit(self._readers, self._query, name, query.sql, bind(query, params))

    def close(self) -> None:
        """See `passmuster.store.Store.close`."""
        if self._closed:
            return
        self._closed = True
        self._readers.shutdown()
        self._writer.shutdown()
        for session in self._sessions:
            session.close()
        self._sessions.clear()

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[..., Any], *args: Any) -> Any:
        if self._closed:
            raise StoreError(f"the store in {self._folder} is closed")
        return pool.submit(work, *args).result()

    def _session(self, *statements: str) -> Any:
        """Return this thread's session, opened with `statements` when it is new."""
        if not hasattr(self._local, "session"):
            from chdb.session import Session

            open_session: Any = Session  # chdb calls itself typed and is not
            session = open_session(str(self._folder))
            self._sessions.append(session)
            for statement in statements:
                session.query(statement)
            self._local.session = session
        return self._local.session

    def _prepare(self) -> None:
        try:
            session = self._session(
                f"CREATE DATABASE IF NOT EXISTS {quote(DATABASE)} ENGINE = Atomic",
                f"USE {quote(DATABASE)}",
                # Exactness comes from the natural key alone; insert tokens have lost partitions of a batch.
                "SET insert_deduplicate = 0",
                # A backlog may span as many partitions as `check_times` lets through: days kept, or 20 years of months.
                f"SET max_partitions_per_insert_block = {max(self._settings.keep_days, 240) + 16}",
            )
            store_migration.migrate(session, self._folder, self._settings.keep_days, self._clock())
        except StoreError:
            raise
        except Exception as error:  # the engine raises RuntimeError, ChdbError and ValueError for one and the same
            raise self._explain(error, "cannot open the store") from error

    def _insert(self, tables: dict[str, pa.Table]) -> None:
        for name, table in tables.items():
            names = ", ".join(quote(n) for n in table.column_names)
            # Not chdb's send_insert: on a full disk its finish() reports rows that were never stored (4.4 was seen to).
            # A statement over a file in memory raises.
            memory = os.memfd_create("passmuster-insert", os.MFD_CLOEXEC)
            try:
                with os.fdopen(memory, "wb", closefd=False) as file:
                    file.write(_ipc(table))
                self._session().query(
                    f"INSERT INTO {quote(name)} ({names}) SELECT {names} "  # noqa: S608 - names are our own, quoted
                    f"FROM file('/proc/self/fd/{memory}', 'ArrowStream', '{_structure(name, table.column_names)}')"
                )
            except Exception as error:
                raise self._explain(error, f"cannot store {table.num_rows} rows of {name}") from error
            finally:
                os.close(memory)

    def _query(self, name: str, sql: str, params: dict[str, str]) -> pa.Table:
        import pyarrow as pa

        try:
            session = self._session(
                f"USE {quote(DATABASE)}",
                f"SET max_execution_time = {self._settings.query_seconds}",
                f"SET max_memory_usage = {self._settings.query_memory_bytes}",
                # As standard SQL has it: in `avg(x) AS x, max(x)` the second x is the column.
                "SET prefer_column_name_to_alias = 1",
                "SET readonly = 2",
            )
            try:
                return _read_ipc(session.query(sql, "Arrow", params=params).bytes())
            except (pa.ArrowException, OSError):
                # Seen twice on a machine under load, never again in thousands: an answer that was not whole. Cause
                # unknown (chdb 4.4); a query changes nothing, so it is asked once more.
                return _read_ipc(session.query(sql, "Arrow", params=params).bytes())
        except Exception as error:
            raise self._explain(error, f"query {name} failed") from error

    def _explain(self, error: Exception, doing: str) -> StoreError:
        """Turn the engine's words into one sentence that says what to do."""
        text = str(error)
        code = re.search(r"Code: (\d+)", text)
        number = int(code[1]) if code else 0
        if number == _TIMEOUT:
            return StoreError(
                f"{doing}: it took longer than {self._settings.query_seconds:g} s; ask for a shorter time, "
                "or raise store.query_seconds"
            )
        if number == _MEMORY:
            return StoreError(
                f"{doing}: it needed more than {self._settings.query_memory_bytes} bytes of memory; ask for a "
                "shorter time, or raise store.query_memory_bytes"
            )
        if number == _NO_SPACE or "No space left on device" in text or "errno: 28" in text:
            return StoreError(f"{doing}: the disk under {self._folder} is full; what was stored before is kept")
        if "Read-only file system" in text or "Permission denied" in text:
            return StoreError(f"{doing}: {self._folder} cannot be written; check its owner and mount")
        if (owner := _owner(self._folder)) and owner != os.getpid():
            return _owned(self._folder, owner)
        first = re.sub(r"\s+", " ", re.sub(r"Code: \d+\. DB::Exception: ", "", text))
        return StoreError(f"{doing} in {self._folder}: {first[:300]}")


def _claim(folder: Path) -> None:
    """Create the folder when it is missing; refuse one that is another process's, or no store."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = [path.name for path in folder.iterdir()]
    except (NotADirectoryError, FileExistsError):
        raise StoreError(f"{folder} is not a folder; set store.dir to one") from None
    except OSError as error:
        raise StoreError(f"cannot use the store's folder {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StoreError(f"the store's folder {folder} cannot be written; check its owner and mode")
    if names and not {"status", "metadata"} & set(names):  # `status` goes when the engine stops in order
        raise StoreError(f"{folder} is neither empty nor a store; set store.dir to a folder of its own")
    owner = _owner(folder)
    if owner is not None:
        raise _owned(folder, owner)


def _owned(folder: Path, owner: int) -> StoreError:
    who = "this process" if owner == os.getpid() else f"process {owner}" if owner else "another process"
    return StoreError(f"the store in {folder} is in use by {who}; stop it, or set store.dir to another folder")


def _owner(folder: Path) -> int | None:
    """Return the pid that holds the folder (0 when it holds it without saying its pid), None when nobody does.

    The engine locks ``status`` with flock and writes "PID: n" into it; a file that is left behind is not locked.
    """
    try:
        with (folder / "status").open("rb") as status:
            try:
                fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = re.search(rb"PID: (\d+)", status.read(4096))
                return int(pid[1]) if pid else 0
    except OSError:
        return None
    return None


# ---- batches to Arrow, Arrow to rows


def _table(kind: str, batches: list[Batch], now: int) -> pa.Table:
    """Join batches of one kind into a table of the columns that any of them has; the others take their default."""
    import pyarrow as pa

    schema = arrow_schema(kind)
    arrays: dict[str, Any] = {}
    for f in fields(kind):
        if f.name in HEADER:
            columns = [repeat(getattr(b, f.name), b.rows) for b in batches]
        elif any(b.columns.get(f.name) is not None for b in batches):
            columns = [_per_row(b, f) for b in batches]
        else:
            continue
        values = list(chain.from_iterable(columns))
        if not f.nullable and f.default is not None:
            values = [f.default if v is None else v for v in values]
        try:
            arrays[f.name] = _array(values, schema.field(f.name).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            hosts = sorted({b.host[:64] for b in batches})[:4]
            raise BadRecord(f"batch of {kind} from {', '.join(hosts)}: column {f.name}: {error}") from None
    rows = sum(b.rows for b in batches)
    versions = list(chain.from_iterable(repeat(b.version, b.rows) for b in batches))
    arrays["schema_version"] = pa.array(versions, schema.field("schema_version").type)
    arrays["ingested_at"] = pa.repeat(pa.scalar(now, schema.field("ingested_at").type), rows)
    return pa.table(arrays)


def _newest(kind: str, table: pa.Table) -> pa.Table:
    """Return the newest row of each subject."""
    subjects = zip(*(table.column(k).to_pylist() for k in latest_key(kind)), strict=True)
    newest: dict[tuple[str, ...], tuple[int, int]] = {}
    for row, (subject, at) in enumerate(
        zip(subjects, table.column("observed_at").cast("int64").to_pylist(), strict=True)
    ):
        if at >= newest.get(subject, (0, 0))[0]:
            newest[subject] = (at, row)
    return table.take([row for _, row in newest.values()])


def _per_row(batch: Batch, f: Field) -> Any:
    value = batch.columns.get(f.name)
    return value if isinstance(value, list) else repeat(value, batch.rows)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if not pa.types.is_map(kind):
        return pa.array(values, kind)
    offsets, keys, items = [0], list[Any](), list[Any]()
    for value in values:
        if value:
            keys.extend(value)
            items.extend(value.values())
        offsets.append(len(keys))
    return pa.MapArray.from_arrays(offsets, pa.array(keys, kind.key_type), pa.array(items, kind.item_type))


def _structure(table: str, names: list[str]) -> str:
    """Return the columns' types as the argument of a table function; the types hold quotes of their own."""
    types = sql_columns(table.removesuffix("_latest"))
    return ", ".join(f"{quote(n)} {types[n]}" for n in names).replace("'", "\\'")


def _ipc(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _read_ipc(data: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_file(pa.BufferReader(data)).read_all()


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    import pyarrow as pa

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            columns[name] = column.cast(pa.timestamp("ns", tz="UTC")).cast(pa.int64()).to_pylist()
        elif pa.types.is_map(column.type):
            columns[name] = [dict(v) for v in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
