"""This machine's own agent as the source of `muster up`: it spools in a thread, the joining thread reads the spool."""

from __future__ import annotations

import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from collectors.exporter import Exporter, exposition
from passmuster.batch import Batch
from passmuster.config import Config
from passmuster.errors import BadRecord, SpoolFull
from passmuster.spool import Position, Spool
from quarantine.host import STATE_FILE, HostAgent
from quarantine.service import HostFacts

log = structlog.get_logger("muster.agent")


class AgentSource:
    """The host agent, its spool, verdict and state files under the data folder."""

    name = "this machine"
    speed = 1.0

    def __init__(self, config: Config, folder: Path) -> None:
        config = replace(
            config,
            agent=replace(config.agent, run_dir=str(folder / "run")),
            spool=replace(config.spool, dir=str(folder / "spool")),
        )
        self._spool = Spool(config.spool.dir, config.spool, time.time_ns)
        self._agent = HostAgent(
            config,
            ship=self._ship,
            next_seq=lambda kind: self._spool.next_seq(self._agent.header[1], self._agent.header[2], kind),
            own_facts=self._own_facts,
            state_file=folder / "spool" / STATE_FILE,
            say=log.info,
        )
        self._exporter = Exporter(self._agent.exposed)
        self._config = config
        self._taken: dict[str, Position] = {}  # by lane: what the last drain gave and nobody has stored yet
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    def start(self) -> None:
        """Let the agent run in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End the agent; what it ships at its end is in the spool for the last drain."""
        self._stopping.set()
        self._agent.runner.wake()
        self._thread.join(timeout=10)

    def close(self) -> None:
        """Let the spool go, after the last drain."""
        self._acknowledge()
        self._spool.close()

    def now(self) -> int:
        """Return the real time."""
        return time.time_ns()

    def drain(self, timeout_seconds: float, at_most: int) -> list[Batch]:
        """Return what lies in the spool. What the drain before gave is stored by now, and acknowledged."""
        self._acknowledge()
        batches = []
        for position, frame in islice(self._spool.read(), at_most):
            self._taken[position.lane] = position
            try:
                batches.append(frame.batch())
            except BadRecord as error:
                log.warning("spooled batch left out", kind=frame.kind, seq=frame.seq, reason=str(error))
        return batches

    def checkpoint(self) -> None:
        """Nothing to remember: the spool does."""

    def hosts(self) -> list[HostFacts]:
        """Return this host once its devices are known."""
        devices = self._agent.runner.aggregate.latest(time.monotonic())
        if not devices:
            return []
        cluster, host, _ = self._agent.header
        site = self._config.site
        return [
            HostFacts(
                cluster=cluster, host=host, device_class=devices[0].identity.model, pool=site.pool, rack=site.rack
            )
        ]

    def metrics(self) -> bytes:
        """Return the exposition of this machine's devices."""
        return exposition(self._exporter)

    def _acknowledge(self) -> None:
        for position in self._taken.values():
            self._spool.acknowledge(position)
        self._taken.clear()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._agent.step()
        finally:
            self._agent.close()

    def _ship(self, batch: Batch) -> None:
        try:
            self._spool.append(batch)
        except SpoolFull as error:
            log.error("spool", reason=str(error))  # noqa: TRY400  the sentence says it all

    def _own_facts(self) -> dict[str, Any]:
        stats = self._spool.stats()
        return {
            "spool_bytes": stats.waiting_bytes,
            "spool_oldest_seconds": stats.oldest_seconds,
            "spool_dropped_total": stats.dropped_total,
        }
