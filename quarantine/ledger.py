"""The ledger: an append-only table of hold events that survives kill -9, and the hosts last reported."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from passmuster.records import HoldEvent
from quarantine.service import HostFacts, LedgerError

LEDGER_VERSION = 1  # of the tables that are not derived from HoldEvent
BUSY_SECONDS = 10.0  # how long a writer waits for another before it gives up
WRITING = "ledger_writing"


SENTENCES = {
    sqlite3.SQLITE_BUSY: f"is locked by another process for more than {BUSY_SECONDS:.0f} s; `fuser` on the file tells",
    sqlite3.SQLITE_LOCKED: "is locked by another process; `fuser` on the file tells which",
    sqlite3.SQLITE_READONLY: "cannot be written; check owner and mode of file and folder, and that it is still there",
    sqlite3.SQLITE_NOTADB: "is not an SQLite file; give another path, or move the file away",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup, or move it away to start a new one",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened or created; check that the folder exists and may be written",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full; everything acknowledged before is kept",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error",
    sqlite3.SQLITE_PERM: "may not be opened by this user",
}


def columns_of(record: type[msgspec.Struct]) -> list[sa.Column[Any]]:
    """Derive a table's columns from a record's fields: integers, floats, words, and JSON text for maps.

    Raises TypeError for a field of a kind that no table holds yet.
    """
    return [_column(name, hint) for name, hint in get_type_hints(record).items() if name in record.__struct_fields__]


def _column(name: str, hint: Any) -> sa.Column[Any]:
    nullable = False
    while True:
        if get_origin(hint) is Annotated:
            hint = get_args(hint)[0]
        elif get_origin(hint) in (Union, UnionType):
            nullable = True
            (hint,) = (option for option in get_args(hint) if option is not NoneType)
        else:
            break
    if get_origin(hint) is dict or (isinstance(hint, type) and issubclass(hint, str | Enum)):
        kind: sa.types.TypeEngine[Any] = sa.Text()
    elif hint is int:
        kind = sa.BigInteger()
    elif hint is float:
        kind = sa.Double()
    else:
        raise TypeError(f"no column for field {name} of type {hint!r}")
    return sa.Column(name, kind, nullable=nullable)


METADATA = sa.MetaData()
VERSION = sa.Table(
    "ledger_version",
    METADATA,
    sa.Column("ledger", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("hold_event", sa.Integer, nullable=False),
)
EVENTS = sa.Table(
    "hold_events",
    METADATA,
    # SQLite counts by itself only in a column of exactly this type.
    sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    *columns_of(HoldEvent),
    sa.UniqueConstraint("cluster", "event_id"),
)
HOSTS = sa.Table(
    "reporting_hosts",
    METADATA,
    *[
        sa.Column(name, sa.Boolean if name == "in_service" else sa.Text, nullable=False)
        for name in HostFacts.__struct_fields__
    ],
    sa.PrimaryKeyConstraint("cluster", "host"),
)
FIELDS = HoldEvent.__struct_fields__


class Writing:
    """One transaction that nobody else writes in. What it appends is there, for good, when it ends without an error."""

    def __init__(self, connection: sa.Connection) -> None:
        """Take a connection whose transaction has begun."""
        self._connection = connection

    def after(self, sequence: int) -> tuple[int, list[HoldEvent]]:
        """Return the events after a sequence number, and the last number."""
        return _after(self._connection, sequence)

    def append(self, events: list[HoldEvent]) -> int:
        """Append events in order and return how many were new; one whose id is there already changes nothing."""
        new = 0
        for event in events:
            known = sa.select(EVENTS.c.sequence).where(
                EVENTS.c.cluster == event.cluster, EVENTS.c.event_id == event.event_id
            )
            if self._connection.execute(known).first() is None:
                self._connection.execute(EVENTS.insert().values(**_row(event)))
                new += 1
        return new

    def replace_hosts(self, hosts: list[HostFacts]) -> None:
        """Replace the reporting hosts."""
        self._connection.execute(HOSTS.delete())
        if hosts:
            self._connection.execute(HOSTS.insert(), [msgspec.structs.asdict(facts) for facts in hosts])


class Ledger:
    """The ledger at a path (SQLite) or at a database URL. Threads and processes may share it."""

    def __init__(self, target: str | Path) -> None:
        """Open or create it and bring its tables to this version. Raises LedgerError."""
        self.target = str(target)
        url = self.target if "://" in self.target else f"sqlite:///{self.target}"
        try:
            if "://" not in self.target:
                Path(self.target).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
                # Whatever the umask says: who may write here may hold hosts. SQLite's other files take this mode.
                with suppress(OSError):  # it is there, or SQLite says what is wrong
                    os.close(os.open(self.target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._engine = _engine(url)
        except (OSError, sa.exc.ArgumentError, ImportError) as error:
            raise LedgerError(f"the ledger {self.target} cannot be opened: {error}") from None
        try:
            with self._errors(), self._begin() as connection:
                self._migrate(connection)
        except BaseException:
            self.close()
            raise
        self._opened = self._identity()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def after(self, sequence: int) -> tuple[int, list[HoldEvent]]:
        """Return the events after a sequence number in their order, and the last number."""
        with self._errors(), self._engine.connect() as connection:
            return _after(connection, sequence)

    def hosts(self) -> list[HostFacts]:
        """Return the reporting hosts as they were last written."""
        with self._errors(), self._engine.connect() as connection:
            return [HostFacts(**row) for row in connection.execute(sa.select(HOSTS)).mappings()]

    @contextmanager
    def writing(self) -> Iterator[Writing]:
        """Open the one transaction that may write; it commits when the block ends without an error."""
        if self._identity() != self._opened:
            raise LedgerError(f"the ledger {self.target} was moved, deleted or replaced since it was opened; restart")
        with self._errors(), self._begin() as connection:
            # Other databases than SQLite let several writers begin; this row makes them wait for each other.
            connection.execute(sa.select(VERSION).with_for_update())
            yield Writing(connection)

    def _identity(self) -> tuple[int, int] | None:
        """Return device and inode of an SQLite file: SQLite goes on writing into one that was moved away or deleted."""
        if "://" in self.target:
            return None
        try:
            status = Path(self.target).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            writer = connection.execution_options(**{WRITING: True})
            with writer.begin():
                yield writer

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            code = getattr(error.orig, "sqlite_errorcode", None)
            # The low byte is the primary code, the rest tells which system call failed.
            sentence = SENTENCES.get(code & 0xFF) if isinstance(code, int) else None
            raise LedgerError(f"the ledger {self.target} {sentence or f'refused: {error.orig}'}") from None

    def _migrate(self, connection: sa.Connection) -> None:
        """Create what is missing and add the columns that newer records brought; never drop or rewrite anything."""
        found = set(sa.inspect(connection).get_table_names())
        if VERSION.name in found:
            ledger, hold_event = connection.execute(sa.select(VERSION)).one()
            if ledger > LEDGER_VERSION or hold_event > HoldEvent.VERSION:
                raise LedgerError(
                    f"the ledger {self.target} was written by a newer passmuster (ledger {ledger}, hold event "
                    f"{hold_event}; this one knows {LEDGER_VERSION} and {HoldEvent.VERSION}); upgrade this program"
                )
        METADATA.create_all(connection)
        if EVENTS.name in found:
            present = {column["name"] for column in sa.inspect(connection).get_columns(EVENTS.name)}
            for column in EVENTS.columns:
                if column.name not in present:
                    # Added as nullable whatever it is now: old rows have no value, and reading gives the default.
                    added = sa.Column(column.name, column.type)
                    sa.Table(EVENTS.name, sa.MetaData(), added)
                    definition = CreateColumn(added).compile(dialect=connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {EVENTS.name} ADD COLUMN {definition}")
        wanted = {"ledger": LEDGER_VERSION, "hold_event": HoldEvent.VERSION}
        if connection.execute(sa.select(VERSION)).first() is None:
            connection.execute(VERSION.insert().values(**wanted))
        else:
            connection.execute(VERSION.update().values(**wanted))


def _engine(url: str) -> sa.Engine:
    """Connect. All that only SQLite needs stands here."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late to be IMMEDIATE
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writing = connection.get_execution_options().get(WRITING)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def _after(connection: sa.Connection, sequence: int) -> tuple[int, list[HoldEvent]]:
    query = sa.select(EVENTS).where(EVENTS.c.sequence > sequence).order_by(EVENTS.c.sequence)
    events = []
    for row in connection.execute(query).mappings():
        sequence = row["sequence"]
        events.append(_event(row))
    return sequence, events


def _row(event: HoldEvent) -> dict[str, Any]:
    row = msgspec.to_builtins(event)
    assert isinstance(row, dict)
    return {
        name: msgspec.json.encode(value).decode() if isinstance(value, dict) else value for name, value in row.items()
    }


def _event(row: Any) -> HoldEvent:
    """Read a row back; what an older program did not write takes the field's default."""
    values = {name: row[name] for name in FIELDS if row[name] is not None}
    try:
        if "evidence" in values:
            values["evidence"] = msgspec.json.decode(values["evidence"])
        return msgspec.convert(values, HoldEvent)
    except msgspec.DecodeError as error:  # a ValidationError is one too
        raise LedgerError(f"event {row['event_id']!r} of the ledger is not readable: {error}") from None
