"""`muster up`: the composition root of one machine: source, engine, quarantine, store and pages on one port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from passmuster.config import Config, load
from passmuster.errors import UserError

if TYPE_CHECKING:
    import streamlit as st

    from dashboards.running import Running

DEFAULT_FLEET = 64
SCRIPT = Path(__file__).parent / "app.py"


@click.command()
@click.option(
    "--simulate",
    type=click.IntRange(1, 10_000),
    help=f"Simulated hosts of 8 GPUs; {DEFAULT_FLEET} where there is no GPU.",
)
@click.option(
    "--speed", type=click.FloatRange(0.1, 600.0), default=1.0, show_default=True, help="Simulated seconds per second."
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the simulated fleet and its faults."
)
@click.option("--address", help="Address to bind (default: loopback, from the configuration).")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port (default from the configuration).")
@click.option(
    "--data-dir", type=click.Path(), help="Folder of store, ledger and spool (default from the configuration)."
)
@click.option("--config", "path", help="Configuration file.")
def up(
    simulate: int | None,
    speed: float,
    seed: int,
    address: str | None,
    port: int | None,
    data_dir: str | None,
    path: str | None,
) -> None:
    """Run everything on this machine and show it on one page.

    With GPUs: this machine's own agent, holds in dry-run. Without, or with --simulate N: a fleet of N simulated hosts
    with planted faults and a simulated scheduler. Ctrl-C stops it; the next start goes on with the same data.
    """
    # What devices, jobs and people said lies in the data folder; it is its owner's alone.
    os.umask(0o077)
    configure_log()
    config = load(path)
    dash = config.dash
    dash = replace(
        dash,
        address=address or dash.address,
        port=port or dash.port,
        data_dir=str(Path(data_dir or dash.data_dir).absolute()),
    )
    config = replace(config, dash=dash)
    refuse_taken_port(dash.address, dash.port)
    hosts = simulate if simulate is not None else (0 if has_devices(config) else DEFAULT_FLEET)
    running = compose(config, hosts=hosts, speed=speed, seed=seed)
    say_where(running, dash.address, dash.port)
    serve(running)


def configure_log() -> None:
    """Write events to standard error as plain lines; tracebacks without the values of variables."""
    import structlog

    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def refuse_taken_port(address: str, port: int) -> None:
    """Raise UserError when the port cannot be bound, before anything else was started."""
    try:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {address}:{port}: {error.strerror or error}; name another with --address and --port"
        ) from None


def has_devices(config: Config) -> bool:
    """Tell whether this machine has devices to watch: on its PCI bus, or because the configuration says so."""
    from collectors.probe import Outcome, wanted_vendors

    return Outcome.STARTING in wanted_vendors(config.agent).values()


def compose(config: Config, *, hosts: int, speed: float, seed: int) -> Running:
    """Build everything; nothing runs yet. ``hosts`` is the size of the simulated fleet, 0 for this machine's agent."""
    from dashboards.running import Running, Source
    from dashboards.sources import SimulatedScheduler, SimulatedSource
    from detectors.engine import Engine
    from passmuster.chdb_store import ChdbStore
    from quarantine.actuators import Actuator, DryRun
    from quarantine.ledger import Ledger
    from quarantine.local_service import LocalService
    from quarantine.policy import Policy

    folder = Path(config.dash.data_dir)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot use the data folder {folder}: {error.strerror}; name another with --data-dir"
        ) from None
    store_folder = folder / "store"
    source: Source
    actuator: Actuator
    if hosts:
        config = simulation(config)
        source = SimulatedSource(
            hosts=hosts, seed=seed, speed=speed, path=folder / "fleet.json", started_at=time.time_ns()
        )
        actuator = SimulatedScheduler(source)
    else:
        from dashboards.agent_source import AgentSource

        source = AgentSource(config, folder)
        actuator = DryRun()
    store = ChdbStore(store_folder, config.store, clock=source.now)
    service = LocalService(Ledger(folder / "ledger.sqlite"), Policy.from_config(config.quarantine), actuator)
    return Running(
        config=config,
        source=source,
        store=store,
        engine=Engine(config),
        service=service,
        checkpoint=folder / "detectors.json",
    )


def simulation(config: Config) -> Config:
    """Return the configuration for a simulated fleet: its findings may act, on a scheduler that is simulated too."""
    detectors = replace(config.detectors, default_mode="act", promoted_by="the simulation")
    # A small fleet with a fault every few minutes would stand at the brakes of a large one and show nothing else.
    quarantine = replace(config.quarantine, act=True, max_held_share=0.25, max_same_cause_per_hour=20)
    return replace(config, detectors=detectors, quarantine=quarantine)


def say_where(running: Running, address: str, port: int) -> None:
    """Tell the user what runs and where to look."""
    shown = f"[{address}]" if ":" in address else address
    click.echo(f"muster up: {running.source_name()}, data in {running.config.dash.data_dir}")
    click.echo(f"  pages    http://{shown}:{port}/")
    click.echo(f"  metrics  http://{shown}:{port}/metrics")
    click.echo(f"  API      http://{shown}:{port}/api/v1/health")
    click.echo("  Ctrl-C stops it; the next start goes on with the same data.")


def serve(running: Running) -> None:
    """Serve pages, API and metrics until a signal comes; start and stop the house with the server."""
    from streamlit import App

    from dashboards import http
    from dashboards.current import set_house

    @asynccontextmanager
    async def lifespan(app: st.App) -> AsyncIterator[dict[str, Any] | None]:
        running.start()
        set_house(running)
        try:
            yield None
        finally:
            set_house(None)
            running.stop()

    dash = running.config.dash
    app = App(SCRIPT, lifespan=lifespan, routes=http.routes(running), middleware=http.middleware(dash.address))
    # The server shuts down on a signal and then raises it again; both signals are a stop that was asked for.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        _run(app, dash.address, dash.port)
    click.echo("muster up: stopped")


def _run(app: st.App, address: str, port: int) -> None:
    app.run(
        config={
            "server.address": address,
            "server.port": port,
            "server.headless": True,
            "server.fileWatcherType": "none",
            "server.maxUploadSize": 1,
            "browser.gatherUsageStats": False,
            "client.toolbarMode": "viewer",
            "client.showErrorDetails": "none",
            "logger.level": "warning",
        }
    )
