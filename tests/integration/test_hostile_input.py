"""What a hostile browser, a broken disk or a broken clock does loses nothing and stops nothing."""

import asyncio
import os
import stat
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from dashboards.http import middleware
from dashboards.running import Running
from detectors.engine import Engine
from passmuster.batch import from_records
from passmuster.config import Config
from passmuster.errors import StoreError
from passmuster.records import FaultClass, Finding, HostReading, Severity, SubjectKind
from passmuster.store import check_times
from quarantine.ledger import Ledger
from quarantine.service import LedgerError
from quarantine.why import as_text

START = 1_796_000_000_000_000_000
YEAR = 365 * 86_400 * 1_000_000_000


class Rig:
    """Source, engine, service and store in one, each of which can be made to fail once."""

    speed = 1.0

    def __init__(self) -> None:
        self.clock = START
        self.coming: list[Any] = []
        self.findings: list[Any] = []
        self.observed: list[Any] = []
        self.stored: list[Any] = []
        self.ledger_full = self.store_full = False

    def now(self) -> int:
        """Return the time that the test has set."""
        return self.clock

    def drain(self, timeout_seconds: float, at_most: int) -> list[Any]:
        """Return what the test laid down."""
        coming, self.coming = self.coming, []
        return coming

    def feed(self, batch: Any, now: int) -> list[Any]:
        """Break on a batch of the host that the test calls poison."""
        return self.feed_all([batch], now)

    def feed_all(self, batches: Any, now: int) -> list[Any]:
        """Return the findings that the test laid down, or break on poison."""
        if any(b.host == "poison" for b in batches):
            raise OverflowError("cannot convert float infinity to integer")
        found, self.findings = self.findings, []
        return found

    def observe(self, findings: list[Any], now: int) -> None:
        """Take findings, or be full."""
        if self.ledger_full:
            raise LedgerError("the disk is full")
        self.observed += findings

    def insert(self, batches: list[Any]) -> None:
        """Take batches as the store does, or be full."""
        if self.store_full:
            raise StoreError("the disk is full")
        for batch in batches:
            check_times(batch, self.clock, 30)
        self.stored += batches


def assemble(rig: Rig, folder: Any) -> Running:
    """Return the house around a rig; no thread runs."""
    store: Any = rig
    source: Any = SimpleNamespace(now=rig.now, drain=rig.drain, hosts=list, speed=1.0)
    engine: Any = SimpleNamespace(feed=rig.feed, feed_all=rig.feed_all, tick=lambda _: [], check_states=lambda _: [])
    service: Any = SimpleNamespace(
        report_hosts=lambda *_: None, observe=rig.observe, tick=lambda _: [], facts_after=lambda n: (n, [])
    )
    return Running(
        config=Config(),
        source=source,
        store=store,
        engine=engine,
        service=service,
        checkpoint=folder / "detectors.json",
    )


def reading(at: int, host: str = "n1") -> Any:
    """Return a batch of one host reading."""
    return from_records([HostReading(cluster="c", host=host, boot_id="b", observed_at=at)])


@pytest.fixture
def finding() -> Any:
    """Return one finding; what it says does not matter here."""
    return Finding(
        cluster="c",
        host="n1",
        boot_id="b",
        observed_at=START,
        dedup_key="codes/xid.79/n1",
        opened_at=START,
        last_seen_at=START,
        detector="codes",
        code="xid.79",
        subject_kind=SubjectKind.HOST,
        subject_id="n1",
        fault_class=FaultClass.BUS,
        severity=Severity.CRITICAL,
        title="a GPU fell off the bus",
    )


def test_a_refusing_ledger_loses_no_finding(tmp_path: Any, finding: Any) -> None:
    """The engine tells a finding once: when the ledger's disk is full, it waits with its batches and comes again."""
    rig = Rig()
    running = assemble(rig, tmp_path)
    rig.coming, rig.findings, rig.ledger_full = [reading(START)], [finding], True
    with pytest.raises(LedgerError):
        running.pump(0.0)

    rig.ledger_full = False
    running.pump(0.0)

    assert [finding] == rig.observed
    assert ["host_reading", "finding"] == [b.kind for b in rig.stored]


def test_a_batch_that_breaks_the_detectors_takes_no_other_with_it(tmp_path: Any) -> None:
    """The culprit is a dead letter with the reason; its siblings are judged and stored."""
    rig = Rig()
    running = assemble(rig, tmp_path)
    rig.coming = [reading(START), reading(START, host="poison"), reading(START, host="n2")]

    running.pump(0.0)

    assert ["n1", "n2"] == [b.host for b in rig.stored]
    assert 1 == running.progress.dead_letters


def test_a_clock_set_back_does_not_block_the_store(tmp_path: Any) -> None:
    """What waits for the store and has become far future is a dead letter; what comes after it is stored."""
    rig = Rig()
    running = assemble(rig, tmp_path)
    rig.coming, rig.store_full = [reading(START)], True
    with pytest.raises(StoreError):
        running.pump(0.0)

    rig.clock, rig.store_full = START - YEAR, False
    running.pump(0.0)
    rig.coming = [reading(START - YEAR, "n2")]
    running.pump(0.0)

    assert ["n2"] == [b.host for b in rig.stored]
    assert 1 == running.progress.dead_letters


def test_a_dead_letter_that_cannot_be_written_stops_no_other(tmp_path: Any) -> None:
    """One batch from 1970 on a full disk must not take its siblings along."""
    rig = Rig()
    running = assemble(rig, tmp_path)
    (tmp_path / "dead-letters.jsonl").symlink_to("/dev/full")
    rig.coming = [reading(1), reading(START, "n2")]

    running.pump(0.0)

    assert ["n2"] == [b.host for b in rig.stored]
    assert 1 == running.progress.dead_letters


@pytest.mark.parametrize(
    ("address", "host", "status"),
    [
        ("127.0.0.1", "127.0.0.1:8600", 200),
        ("::1", "[::1]:8600", 200),
        ("localhost", "localhost", 200),
        ("127.0.0.1", "rebound.example", 400),
        ("127.0.0.1", "127.0.0.1.rebound.example:8600", 400),
        ("::1", "", 400),
        ("node7.example", "node7.example:8600", 200),
    ],
)
def test_only_our_own_names_are_answered(address: str, host: str, status: int) -> None:
    """On loopback a name that somebody pointed at it gets nothing, forwarded or not; a bound name starts at all."""

    async def page(_: Any) -> Response:
        return Response("secret")

    app = Starlette(routes=[Route("/", page)], middleware=middleware(address))
    headers = [(b"host", host.encode()), (b"x-forwarded-host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))

    assert status == sent[0]["status"]


def test_the_ledger_is_its_owners_alone(tmp_path: Any) -> None:
    """Whatever the umask: who may write the ledger may hold hosts."""
    before = os.umask(0)
    try:
        Ledger(tmp_path / "ledger.sqlite").close()
    finally:
        os.umask(before)

    assert 0o600 == stat.S_IMODE((tmp_path / "ledger.sqlite").stat().st_mode)


def test_a_model_name_loads_no_image() -> None:
    """What a host wrote has no Markdown left and stays on its line."""
    assert r"\!\[x\]\(http\://evil/p\) \# a" == as_text("![x](http://evil/p)\n# a")


def test_an_endless_uptime_stops_no_other_host(tmp_path: Any) -> None:
    """A host that has been up for 1e308 seconds is judged as one whose boot is not known."""
    batches = [
        from_records([HostReading(cluster="c", host=host, boot_id="b", observed_at=START, uptime_seconds=uptime)])
        for host, uptime in (("n1", 1e308), ("n2", 100.0))
    ]

    engine = Engine(Config())
    engine.feed_all(batches, START)

    assert {"n1", "n2"} == {s.host for s in engine.check_states(START)}
