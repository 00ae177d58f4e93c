"""The ledger on a real SQLite file: what is acknowledged is there, and every trouble is one sentence."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from msgspec import structs

from passmuster.exits import ExitCode
from passmuster.records import FaultClass, HoldEvent, HoldKind
from quarantine.ledger import EVENTS, FIELDS, Ledger, columns_of
from quarantine.service import HostFacts, LedgerError

NOW = 1_790_000_000_000_000_000


def event(number: int, hold_id: str = "hold-1") -> HoldEvent:
    """A fact with a value in every field."""
    return HoldEvent(
        cluster="c",
        host="h1",
        boot_id="b",
        observed_at=NOW + number,
        event_id=f"{hold_id}/noted/{number}",
        hold_id=hold_id,
        device_id="serial",
        kind=HoldKind.NOTED,
        actor="alice",
        reason="Lüfter; DROP TABLE hold_events; -- \n'\"",
        check="xid.79",
        fault_class=FaultClass.BUS,
        value=1.5,
        bound=0.1,
        expires_at=2**63 - 1,
        releases_when="never",
        policy_hash="p",
        idempotency_key=str(number),
        evidence={"a": "b\x00\n", "": "\N{PILE OF POO}"},
    )


def test_an_event_comes_back_as_it_went_in(tmp_path: Path) -> None:
    """Every field of every type survives, nulls stay null, and a second process reads the same."""
    bare = HoldEvent(
        cluster="c", host="", boot_id="", observed_at=0, event_id="e", hold_id="x", kind=HoldKind.NOTED, actor="policy"
    )
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with ledger.writing() as writing:
        assert writing.append([event(1), bare]) == 2
    ledger.close()
    again = Ledger(tmp_path / "ledger.sqlite")
    assert (2, [event(1), bare]) == again.after(0)
    assert (2, [bare]) == again.after(1)
    assert again.after(2) == (2, [])
    again.close()


def test_every_field_of_the_record_has_its_column() -> None:
    """The table is derived from the record; nothing is left out."""
    assert [*FIELDS] == [column.name for column in EVENTS.columns if column.name != "sequence"]
    assert {*FIELDS} == {column.name for column in columns_of(HoldEvent)}


def test_the_same_event_twice_is_there_once(tmp_path: Path) -> None:
    """Appending is idempotent by the event's id."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for expected in (1, 0):
        with ledger.writing() as writing:
            assert expected == writing.append([event(1), event(1)])
    assert [event(1)] == ledger.after(0)[1]
    ledger.close()


def test_a_transaction_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """All of a decision's facts are there, or none."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    broken = structs.replace(event(2), observed_at=2**70)  # no database column holds it
    with pytest.raises(OverflowError), ledger.writing() as writing:
        writing.append([event(1), broken])
    assert ledger.after(0)[1] == []
    ledger.close()


def test_the_reporting_hosts_are_replaced_as_a_whole(tmp_path: Path) -> None:
    """A host that no longer reports is not counted after a restart either."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    hosts = [HostFacts(cluster="c", host=f"h{n}", device_class="H200", rack="r", in_service=n > 1) for n in range(3)]
    for expected in (hosts, hosts[:1], []):
        with ledger.writing() as writing:
            writing.replace_hosts(expected)
        assert expected == ledger.hosts()
    ledger.close()


WRITER = """
import sys
from quarantine.ledger import Ledger
import importlib.util
spec = importlib.util.spec_from_file_location("facts", sys.argv[2])
facts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(facts)
ledger = Ledger(sys.argv[1])
for number in range(int(sys.argv[3]), 10**6):
    with ledger.writing() as writing:
        writing.append([facts.event(number, sys.argv[4]), facts.event(number, sys.argv[4] + "-twin")])
    print(number, flush=True)
"""


def start_writer(path: Path, first: int, hold_id: str) -> subprocess.Popen[str]:
    """A process that appends pairs of events and prints the number of each pair once it is acknowledged."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), __file__, str(first), hold_id],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """A writer killed at any moment loses nothing that it had acknowledged, and leaves no half transaction."""
    path = tmp_path / "ledger.sqlite"
    acknowledged: list[int] = []
    for round_number in range(3):
        first = acknowledged[-1] + 2 if acknowledged else 0
        with start_writer(path, first, "hold-k") as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                acknowledged.append(int(line))
                if len(acknowledged) >= (round_number + 1) * 7:
                    writer.send_signal(signal.SIGKILL)
                    break
            acknowledged += [int(line) for line in writer.stdout]
        ledger = Ledger(path)
        _, events = ledger.after(0)
        ledger.close()
        found = {
            hold_id: {int(e.idempotency_key) for e in events if e.hold_id == hold_id}
            for hold_id in ("hold-k", "hold-k-twin")
        }
        assert set(acknowledged) <= found["hold-k"]
        assert found["hold-k"] == found["hold-k-twin"]


def test_two_processes_write_at_once(tmp_path: Path) -> None:
    """Writers wait for each other; nothing is lost and nothing is refused."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    writers = {name: start_writer(path, 0, name) for name in ("hold-a", "hold-b")}
    for writer in writers.values():
        assert writer.stdout is not None
        for _ in range(30):
            assert writer.stdout.readline() != ""
    for writer in writers.values():
        writer.kill()
        writer.communicate()
    ledger = Ledger(path)
    _, events = ledger.after(0)
    ledger.close()
    for name in writers:
        assert set(range(30)) <= {int(e.idempotency_key) for e in events if e.hold_id == name}


def test_threads_write_at_once(tmp_path: Path) -> None:
    """One ledger object serves several threads."""
    ledger = Ledger(tmp_path / "ledger.sqlite")

    def write(name: str) -> None:
        for number in range(20):
            with ledger.writing() as writing:
                writing.append([event(number, name)])

    threads = [threading.Thread(target=write, args=(f"hold-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.after(0)[1]) == 80
    ledger.close()


def test_an_older_ledger_is_brought_forward(tmp_path: Path) -> None:
    """Columns that newer records brought are added; what was written before reads with their defaults."""
    path = tmp_path / "ledger.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ledger_version (ledger INTEGER PRIMARY KEY, hold_event INTEGER NOT NULL)")
        connection.execute("INSERT INTO ledger_version VALUES (0, 0)")
        connection.execute(
            "CREATE TABLE hold_events (sequence INTEGER PRIMARY KEY AUTOINCREMENT, cluster TEXT, host TEXT, "
            "boot_id TEXT, observed_at BIGINT, event_id TEXT, hold_id TEXT, kind TEXT, actor TEXT)"
        )
        connection.execute(
            "INSERT INTO hold_events (cluster, host, boot_id, observed_at, event_id, hold_id, kind, actor) "
            "VALUES ('c', 'h', '', 5, 'old', 'hold-o', 'noted', 'alice')"
        )
    connection.close()
    ledger = Ledger(path)
    with ledger.writing() as writing:
        writing.append([event(1)])
    old, new = ledger.after(0)[1]
    assert (old.event_id, old.reason, old.evidence) == ("old", "", None)
    assert event(1) == new
    ledger.close()


def test_a_newer_ledger_is_left_alone(tmp_path: Path) -> None:
    """A ledger of a future version is refused with what to do, and not touched."""
    path = tmp_path / "ledger.sqlite"
    Ledger(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE ledger_version SET ledger = 99")
    connection.close()
    with pytest.raises(LedgerError, match=r"newer passmuster .*upgrade this program"):
        Ledger(path)


def test_a_file_that_is_no_ledger(tmp_path: Path) -> None:
    """Garbage under the path is named, not overwritten."""
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"this is not a database, it is a text of some length" * 100)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="is not an SQLite file") as caught:
        Ledger(path)
    assert caught.value.exit_code == ExitCode.INCOMPLETE
    assert before == path.read_bytes()


@pytest.mark.parametrize("target", ["/proc/nowhere/ledger.sqlite", "nodialect://x", "/proc/version/ledger.sqlite"])
def test_a_place_where_no_ledger_can_be(target: str) -> None:
    """A folder that cannot be made, or a database that is not known, is one sentence."""
    with pytest.raises(LedgerError, match=r"^the ledger \S+ cannot be opened"):
        Ledger(target)


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    """A folder under the path is one sentence too."""
    with pytest.raises(LedgerError, match="cannot be opened or created"):
        Ledger(tmp_path)


def test_a_ledger_that_vanished_cannot_be_written(tmp_path: Path) -> None:
    """Somebody moved the file away under us: nothing is acknowledged that would be lost."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with ledger.writing() as writing:
        writing.append([event(1)])
    (tmp_path / "ledger.sqlite").rename(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="moved, deleted or replaced"), ledger.writing() as writing:
        writing.append([event(2)])
    ledger.close()


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    """When the file cannot grow, the sentence says so and earlier facts stay."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with ledger.writing() as writing:
        writing.append([event(1)])
    sa.event.listen(ledger._engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=8"))
    ledger._engine.dispose()
    big = structs.replace(event(2), releases_when="x" * 4000)
    with pytest.raises(LedgerError, match="the disk is full"), ledger.writing() as writing:
        writing.append([structs.replace(big, event_id=str(number)) for number in range(50)])
    assert [event(1)] == ledger.after(0)[1]
    ledger.close()


def test_a_read_only_ledger_says_so(tmp_path: Path) -> None:
    """What may not be written is named; reading goes on."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    sa.event.listen(ledger._engine, "connect", lambda connection, _: connection.execute("PRAGMA query_only=ON"))
    ledger._engine.dispose()
    with pytest.raises(LedgerError, match="cannot be written; check owner and mode"), ledger.writing() as writing:
        writing.append([event(1)])
    assert ledger.after(0)[1] == []
    ledger.close()


def test_a_locked_ledger_says_so_after_a_while(tmp_path: Path) -> None:
    """Another process that never lets go is named as the reason, and readers go on meanwhile."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    sa.event.listen(ledger._engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=50"))
    ledger._engine.dispose()
    other = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(LedgerError, match="locked by another process"), ledger.writing():
        pass
    assert time.monotonic() - began < 10
    assert ledger.after(0)[1] == []
    other.close()
    ledger.close()


def test_a_row_that_no_record_can_be_is_named(tmp_path: Path) -> None:
    """A ledger that somebody edited by hand is answered with the event, not with a traceback."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    with ledger.writing() as writing:
        writing.append([event(1)])
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE hold_events SET kind = 'pardoned'")
    connection.close()
    with pytest.raises(LedgerError, match="event 'hold-1/noted/1' of the ledger is not readable"):
        ledger.after(0)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE hold_events SET kind = 'noted', evidence = '{broken'")
    connection.close()
    with pytest.raises(LedgerError, match="not readable"):
        ledger.after(0)
    ledger.close()
