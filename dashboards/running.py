"""Everything of `muster up` in one process: source, engine, quarantine and store, and the thread that joins them.

Data runs one way through `Running.pump`: batches from the bus are judged by the engine, findings go to the
quarantine service, and batches, findings and ledger facts are stored together. Pages read the store and act through the
service only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct

from dashboards.fleet_state import SILENT_AFTER_SECONDS
from detectors.engine import Engine
from passmuster.batch import Batch, from_records, split_by_header
from passmuster.config import Config
from passmuster.errors import BadRecord, StoreError, UserError
from passmuster.records import Finding, Record
from passmuster.store import Store, check_times
from quarantine.service import HostFacts, QuarantineService

log = structlog.get_logger("muster.up")

MAX_GROUP = 2_000
"""Batches that are judged and stored in one go; more wait for the next round, so that memory stays bounded."""


CONCLUSIONS = ("check_state", "finding", "hold_event")
"""Kinds that this process makes itself: what a host sends of them could hold, or clear, another."""

CHECKPOINT_ROUNDS = 10
"""Rounds between two checkpoints: 20 s at the default round of 2 s."""

MAX_DEAD_LETTER_BYTES = 64 * 2**20


class Source(Protocol):
    """Where batches come from: this machine's agent, or the simulated fleet."""

    name: str
    speed: float  # seconds of its clock per real second; 1 for real devices

    def now(self) -> int:
        """Return the source's clock in nanoseconds UTC; a simulated fleet has its own."""

    def drain(self, timeout_seconds: float, at_most: int) -> list[Batch]:
        """Return what has come, waiting at most that long for a first batch."""

    def checkpoint(self) -> None:
        """Learn that everything drained so far is stored and judged for good, and need not be kept."""

    def hosts(self) -> list[HostFacts]:
        """Return the hosts that report, with device class, pool and rack, for the brakes."""

    def metrics(self) -> bytes:
        """Return more of the exposition of /metrics, such as this machine's own devices."""

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End; what is left to drain can still be drained."""

    def close(self) -> None:
        """Release everything, after the last drain."""


class Progress(Struct):
    """How the joining thread is doing; read by the pages, /metrics and /api/v1/health."""

    batches: int = 0
    rows: int = 0
    findings: int = 0
    hold_events: int = 0
    judged_at: int = 0  # the source's clock at the last round that was judged; what the pages call now
    stored_at: int = 0  # time of the newest stored row
    lag_seconds: float = 0.0  # real seconds between the source's clock and the newest stored row
    dead_letters: int = 0
    failed: str = ""  # the last error of the store, empty when it works
    rounds: int = 0


class Running:
    """The running house. `start` and `stop` may each be called once."""

    def __init__(
        self,
        *,
        config: Config,
        source: Source,
        store: Store,
        engine: Engine,
        service: QuarantineService,
        checkpoint: Path,
    ) -> None:
        self.config = config
        self.source = source
        self.store = store
        self.engine = engine
        self.service = service
        self.progress = Progress()
        self._checkpoint = checkpoint
        self._judged: tuple[list[Batch], list[Finding]] | None = None
        self._waiting: list[Batch] = []
        self._heard: dict[tuple[str, str], int] = {}  # host: time of its newest reading
        self._sequence = 0  # of the ledger; from its beginning, because the store may be younger than the ledger
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="ingest", daemon=True)

    def now(self) -> int:
        """Return the time that everything shown is of: the source's clock when it was last judged, ns UTC."""
        return self.progress.judged_at or self.source.now()

    def hosts(self) -> list[HostFacts]:
        """Return the hosts that report now."""
        return self.source.hosts()

    def source_name(self) -> str:
        """Return in words where the data comes from."""
        return self.source.name

    def start(self) -> None:
        """Restore the detectors' state and start the source and the joining thread."""
        if self._checkpoint.is_file():
            trouble = self.engine.restore(self._checkpoint.read_bytes())
            if trouble:
                log.warning("checkpoint", reason=trouble)
        self.source.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop the source, store what has come, write the checkpoint, close the store."""
        self._stopping.set()
        self.source.stop()
        self._thread.join(timeout=30)
        self.source.close()
        self.store.close()

    def _loop(self) -> None:
        period = self.config.dash.ingest_seconds
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                self.pump(period)
            except UserError as error:
                self._trouble(str(error))
            except Exception as error:  # the thread must outlive any one batch; the error is shown, not swallowed
                log.exception("ingest round failed")
                self._trouble(f"{type(error).__name__}: {error}")
            self._stopping.wait(max(0.0, period - (time.monotonic() - started)))
        try:
            self.pump(0.0)
            self.checkpoint()
        except UserError as error:
            self._trouble(str(error))

    def _trouble(self, reason: str) -> None:
        if reason != self.progress.failed:
            log.error("ingest", reason=reason, waiting=len(self._waiting))
        self.progress.failed = reason

    def pump(self, timeout_seconds: float) -> None:
        """Do one round: drain, judge, decide, store, checkpoint.

        What the ledger refuses stays in `_judged`, what the store refuses in `_waiting`, and both are tried again with
        the next round; while they wait, no more is drained, so the bus and its spool hold back the rest. The engine
        tells a finding once: one that is lost here would never hold a host. Raises StoreError and LedgerError.
        """
        if not self._waiting and self._judged is None:
            fresh = self._acceptable(self.source.drain(timeout_seconds, MAX_GROUP))
            now = self.source.now()
            self.progress.judged_at = now
            fresh, findings = self._judge(fresh, now)
            findings += self.engine.tick(now)
            self._hear(fresh)
            self._judged = fresh, findings
        if self._judged is not None:
            fresh, findings = self._judged
            now = self.progress.judged_at
            self.service.report_hosts(self._reporting(now), now)
            self.service.observe(findings, now)
            self.service.tick(now)
            # From the ledger and not from the calls: a person's act at the command line is a fact too.
            self._sequence, facts = self.service.facts_after(self._sequence)
            derived: list[Record] = [*findings, *facts, *self.engine.check_states(now)]
            self._waiting = [*fresh, *as_batches(derived)]
            self._judged = None
            self.progress.findings += len(findings)
            self.progress.hold_events += len(facts)
        if self._waiting:
            try:
                self.store.insert(self._waiting)
            except BadRecord:  # its time was good when it came; the clock was set since, or it waited for days
                self._waiting = self._of_good_times(self._waiting)
                self.store.insert(self._waiting)
            newest = max((_newest(b) for b in self._waiting), default=0)
            self.progress.batches += len(self._waiting)
            self.progress.rows += sum(b.rows for b in self._waiting)
            self.progress.stored_at = max(self.progress.stored_at, newest)
            self._waiting = []
        behind = (self.progress.judged_at - self.progress.stored_at) / 1e9 / self.source.speed
        self.progress.lag_seconds = max(0.0, behind)
        self.progress.failed = ""
        self.progress.rounds += 1
        if self.progress.rounds % CHECKPOINT_ROUNDS == 0:
            self.checkpoint()

    def _hear(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            if batch.kind in ("gpu_reading", "host_reading"):
                key = (batch.cluster, batch.host)
                self._heard[key] = max(self._heard.get(key, 0), _newest(batch))

    def _reporting(self, now: int) -> list[HostFacts]:
        """Return the hosts that were heard of lately; the brakes count no silent ones."""
        since = now - int(SILENT_AFTER_SECONDS * 1e9)
        return [h for h in self.source.hosts() if self._heard.get((h.cluster, h.host), 0) >= since]

    def checkpoint(self) -> None:
        """Write the detectors' memory, then let the source forget what it stands on. Raises StoreError.

        After a kill between two checkpoints the source gives the same batches again; their keys and the findings'
        keys make that harmless.
        """
        write_atomically(self._checkpoint, self.engine.snapshot())
        self.source.checkpoint()

    def _judge(self, batches: list[Batch], now: int) -> tuple[list[Batch], list[Finding]]:
        """Feed the detectors; a batch that breaks them is a dead letter and takes no other with it."""
        try:
            return batches, self.engine.feed_all(batches, now)
        except Exception:
            log.exception("a batch broke the detectors; each is fed alone")
        good, findings = [], []
        for batch in batches:
            try:
                # What was taken before the break is taken no second time: readings are known by their times.
                findings += self.engine.feed(batch, now)
            except Exception as error:  # noqa: BLE001  the reason goes to the dead letters
                self._dead_letter(batch, f"it broke the detectors: {type(error).__name__}: {error}")
            else:
                good.append(batch)
        return good, findings

    def _acceptable(self, batches: Sequence[Batch]) -> list[Batch]:
        """Keep what the store can take; write the rest, with the reason, to the dead letters."""
        told = []
        for batch in batches:
            if batch.kind in CONCLUSIONS:
                self._dead_letter(batch, f"{batch.kind} is concluded here and never taken from a host")
            else:
                told.append(batch)
        return self._of_good_times(told)

    def _of_good_times(self, batches: Sequence[Batch]) -> list[Batch]:
        good = []
        for batch in batches:
            try:
                check_times(batch, self.source.now(), self.config.store.keep_days)
            except BadRecord as error:
                self._dead_letter(batch, str(error))
            else:
                good.append(batch)
        return good

    def _dead_letter(self, batch: Batch, reason: str) -> None:
        self.progress.dead_letters += 1
        log.warning("dead letter", kind=batch.kind, host=batch.host, reason=reason)
        path = self._checkpoint.with_name("dead-letters.jsonl")
        if path.is_file() and path.stat().st_size > MAX_DEAD_LETTER_BYTES:
            return  # a host that floods us with garbage must not fill the disk; it stays counted
        try:
            with path.open("ab") as file:
                file.write(msgspec.json.encode({"reason": reason, "batch": batch}) + b"\n")
        except OSError as error:  # a full disk: the good batches of the round must go on
            log.warning("dead letter not kept", reason=error.strerror)


def as_batches(records: Iterable[Record]) -> list[Batch]:
    """Return records as batches, one per kind and header."""
    return [from_records(group) for group in split_by_header(records)]


def _newest(batch: Batch) -> int:
    at = batch.columns.get("observed_at", 0)
    return max(at, default=0) if isinstance(at, list) else int(at)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or the next start after a crash, sees the old one or the new one whole.

    Raises StoreError when the disk is full or the folder cannot be written.
    """
    temporary = path.with_suffix(".new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; what was stored before is kept") from None
