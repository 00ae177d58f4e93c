"""`muster agent`: composes one host's collectors, spool, local detectors, verdict file and exporter."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

# numpy's linear algebra starts a thread and a buffer per core when it is imported; the detectors use none of it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import click
import msgspec
from msgspec import Struct

from collectors.collector import Collector
from collectors.host import HostCollector, boot_id, host_name
from collectors.kernel_log import Bookmark, KernelLog
from collectors.probe import DeviceProbe, Outcome, wanted_vendors
from collectors.runner import CollectorHealth, Runner
from passmuster import config as configuration
from passmuster.batch import Batch
from passmuster.config import Config
from passmuster.errors import SpoolFull
from passmuster.exits import ExitCode
from passmuster.records import Finding, Inventory

if TYPE_CHECKING:
    from collectors.exporter import Exposed

STATE_FILE = "agent_state.json"
STATE_VERSION = 1
MAX_STATE_BYTES = 16 * 2**20
SECOND = 1_000_000_000  # nanoseconds


class AgentState(Struct, kw_only=True):
    """What outlives the agent's process within a boot."""

    version: int = STATE_VERSION
    boot_id: str
    observed_at: int
    inventory: list[Inventory]
    kernel_log: Bookmark | None
    detectors: msgspec.Raw = msgspec.Raw(b"null")


def load_state(path: Path) -> tuple[AgentState | None, str]:
    """Return the saved state, or None and why there is none that can be used."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_STATE_BYTES:
            return None, f"{path} has {len(raw)} bytes, more than any state; starting afresh"
        state = msgspec.json.decode(raw, type=AgentState)
    except FileNotFoundError:
        return None, ""
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        return None, f"{path} cannot be used ({error}); starting afresh"
    if state.version != STATE_VERSION:
        return None, f"{path} is of version {state.version}, this program writes {STATE_VERSION}; starting afresh"
    return state, ""


class HostAgent:
    """One host's agent without its command line: call `step` until done, then `close`. One thread owns it.

    ``ship`` takes each batch that leaves, ``next_seq`` numbers them by kind, ``own_facts`` gives `HostReading` fields
    that only the caller knows. ``fakes`` are scenario files of the shipped fake device, instead of vendor libraries.
    """

    def __init__(
        self,
        config: Config,
        *,
        ship: Callable[[Batch], None],
        next_seq: Callable[[str], int],
        own_facts: Callable[[], dict[str, Any]] = dict,
        fakes: tuple[str, ...] = (),
        judging: bool = True,
        state_file: Path | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.config = config
        self._say = say
        self._ship = ship
        self._next_seq = next_seq
        self._state_file = state_file
        self.boot_id = boot_id(config.agent.proc_root) or ""
        self.header = (config.site.cluster, host_name(config), self.boot_id)
        state = None
        if state_file is not None:
            state, problem = load_state(state_file)
            if problem:
                say(problem)
        now = time.time_ns()
        self._findings: list[Finding] = []
        self.engine = None
        if judging:
            from detectors.engine import Engine

            self.engine = Engine(config)
            saved = bytes(state.detectors) if state else b"null"
            if saved != b"null" and (problem := self.engine.restore(saved)):
                say(f"the detectors start afresh: {problem}")
        same_boot = state if state and state.boot_id == self.boot_id else None
        wanted = wanted_vendors(config.agent)
        vendors = [f"fake:{path}" for path in fakes] or [v for v, o in wanted.items() if o is Outcome.STARTING]
        collectors: list[Collector] = [HostCollector(config)]
        self.kernel_log = self._kernel_log(same_boot, now)
        if self.kernel_log is not None:
            collectors.append(self.kernel_log)
        self.runner = Runner(
            config,
            self.header,
            [DeviceProbe(vendor, config.agent) for vendor in vendors],
            collectors,
            ship=ship,
            watch=self._watch,
            next_seq=next_seq,
            own_facts=own_facts,
            wall=time.time_ns,
            monotonic=time.monotonic,
            not_before=same_boot.observed_at if same_boot else 0,
        )
        if not fakes:
            why = {Outcome.ABSENT: "PCI shows no such device", Outcome.DISABLED: "switched off by configuration"}
            for vendor, outcome in wanted.items():
                if outcome in why:
                    self.runner.health[vendor] = CollectorHealth(outcome, why[outcome])
        if self.kernel_log is None:
            self.runner.health["kernel_log"] = CollectorHealth(Outcome.DISABLED, "switched off by configuration")
        if state:
            self.runner.inventory = {item.device_id: item for item in state.inventory}
        self._saved_at = self._judged_at = time.monotonic()

    def _kernel_log(self, state: AgentState | None, now: int) -> KernelLog | None:
        agent = self.config.agent
        if not agent.kernel_log:
            return None
        return KernelLog(
            cluster=self.header[0],
            host=self.header[1],
            boot_id=self.boot_id,
            # The log's clock stops in suspend, as CLOCK_MONOTONIC does.
            booted_at=now - time.clock_gettime_ns(time.CLOCK_MONOTONIC),
            path=Path(agent.kernel_log_path),
            bookmark=state.kernel_log if state else None,
            trust_user_space=agent.kernel_log_trust_user_space,
        )

    def step(self) -> None:
        """Run the collectors once around, let time pass for the detectors, keep verdict and state fresh."""
        self.runner.step()
        mono = time.monotonic()
        if mono - self._judged_at >= self.config.agent.middle_seconds:
            self._judged_at = mono
            self._judge()
        if mono - self._saved_at >= self.config.agent.ship_seconds:
            self._saved_at = mono
            self.save()

    def _watch(self, batch: Batch) -> None:
        # What is found here stays here, in the verdict and the metrics: a host ships what it observed, and findings
        # that can hold a host are made where no host can write them.
        if self.engine is None:
            return
        findings = self.engine.feed(batch, self.runner.time.now())
        if findings:
            self.write_verdict()

    def _judge(self) -> None:
        if self.engine is None:
            return
        now = self.runner.time.now()
        self.engine.tick(now)
        self.write_verdict()

    def write_verdict(self) -> None:
        """Judge the host by what is open now and write the verdict file."""
        if self.engine is None:
            return
        from quarantine.verdict import DeviceFacts, judge, write_verdict

        self._findings = self.engine.open_findings()
        devices = [
            DeviceFacts(
                device_id=d.identity.device_id,
                pci_address=d.identity.pci_address,
                vendor=d.identity.vendor,
                model=d.identity.model,
                state=d.state,
            )
            for d in self.runner.aggregate.latest(time.monotonic())
        ]
        unchecked = [
            f"collector {name} {health.outcome.value}: {health.reason}"
            for name, health in self.runner.health.items()
            if health.outcome in (Outcome.FAILED, Outcome.HUNG)
        ]
        unchecked += [f"detector {n}: {h.last_error}" for n, h in self.engine.health().items() if h.last_error]
        reading = self.runner.host_reading
        verdict = judge(
            self._findings,
            devices,
            self.runner.time.now(),
            host=self.header[1],
            boot_id=self.boot_id,
            valid_seconds=self.config.agent.verdict_valid_seconds,
            gpus_expected=(reading.gpus_expected or {}) if reading else {},
            unchecked=unchecked,
        )
        try:
            write_verdict(self.config.agent.run_dir, verdict)
        except OSError as error:
            self._say(f"cannot write the verdict to {self.config.agent.run_dir}: {error.strerror}")

    def exposed(self) -> Exposed:
        """Return what the exporter shows; may be called from its thread."""
        from collectors.exporter import Exposed

        runner = self.runner
        return Exposed(
            devices=runner.aggregate.latest(time.monotonic()),
            host=runner.host_reading,
            inventory=list(runner.inventory.values()),
            health=dict(runner.health),
            restarts={p.name: p.restarts for p in runner.probes},
            events=dict(runner.event_counts),
            findings=self._findings,
        )

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        if self._state_file is None:
            return
        state = AgentState(
            boot_id=self.boot_id,
            observed_at=self.runner.time.now(),
            inventory=list(self.runner.inventory.values()),
            kernel_log=self.kernel_log.bookmark() if self.kernel_log else None,
            detectors=msgspec.Raw(self.engine.snapshot() if self.engine else b"null"),
        )
        fresh = self._state_file.with_suffix(".tmp")
        try:
            with fresh.open("wb") as file:
                file.write(msgspec.json.encode(state))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._state_file)
        except OSError as error:
            self._say(f"cannot save the agent's state to {self._state_file}: {error.strerror}")

    def close(self) -> None:
        """Ship what waits, save the state, end the children."""
        self.runner.close()
        self._judge()
        self.save()


@click.command()
@click.option("--config", "config_path", type=click.Path(), help="Configuration file.")
@click.option("--once", is_flag=True, help="Take one sample of everything, print it and end; nothing is written.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print JSON, with the reason of every null.")
@click.option("--no-exporter", is_flag=True, help="Serve no /metrics.")
@click.option("--no-detectors", is_flag=True, help="Collect only: no findings, no verdict.")
@click.option("--fake", "fakes", multiple=True, type=click.Path(), help="Scenario of the fake device, for trying out.")
def agent(
    config_path: str | None, once: bool, as_json: bool, no_exporter: bool, no_detectors: bool, fakes: tuple[str, ...]
) -> ExitCode:
    """Run the host agent: read devices, kernel log and host; spool, judge and export what they say."""
    if as_json and not once:
        raise click.UsageError("--json goes with --once")
    config = configuration.load(config_path)
    if once:
        from quarantine.one_sample import take_one

        return take_one(config, fakes, as_json=as_json)
    return _run(config, fakes, exporting=config.exporter.enabled and not no_exporter, judging=not no_detectors)


def _run(config: Config, fakes: tuple[str, ...], *, exporting: bool, judging: bool) -> ExitCode:
    from passmuster.spool import Spool

    spool = Spool(config.spool.dir, config.spool, time.time_ns)

    def ship(batch: Batch) -> None:
        try:
            spool.append(batch)
        except SpoolFull as error:
            _say(str(error))

    def own_facts() -> dict[str, Any]:
        stats = spool.stats()
        return {
            "spool_bytes": stats.waiting_bytes,
            "spool_oldest_seconds": stats.oldest_seconds,
            "spool_dropped_total": stats.dropped_total,
        }

    host = HostAgent(
        config,
        ship=ship,
        next_seq=lambda kind: spool.next_seq(host.header[1], host.header[2], kind),
        own_facts=own_facts,
        fakes=fakes,
        judging=judging,
        state_file=Path(config.spool.dir) / STATE_FILE,
        say=_say,
    )
    stopping: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stopping.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # A signal ends the wait at once instead of at the next tick.
    signal.set_wakeup_fd(host.runner.wake_fd, warn_on_full_buffer=False)
    stop_exporter: Callable[[], None] | None = None
    try:
        if exporting:
            from collectors.exporter import Exporter, serve

            port, stop_exporter = serve(Exporter(host.exposed), config.exporter.address, config.exporter.port)
            _say(f"metrics at http://{config.exporter.address}:{port}/metrics")
        _say(f"agent of {host.header[1]} runs: {', '.join(f'{n} {h.outcome}' for n, h in host.runner.health.items())}")
        told: dict[str, str] = {}
        while not stopping:
            host.step()
            for name, health in host.runner.health.items():
                now = f"{health.outcome.value} {health.reason}".strip()
                if health.outcome is not Outcome.STARTING and told.get(name) != now:
                    told[name] = now
                    _say(f"collector {name}: {now}")
    finally:
        signal.set_wakeup_fd(-1)
        if stop_exporter is not None:
            stop_exporter()
        host.close()
        spool.close()
    _say("agent stopped")
    return ExitCode.PASS


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        print(f"muster: {sentence}", file=sys.stderr, flush=True)
