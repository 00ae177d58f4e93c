"""What `muster up` serves beside the pages: a read-only API and /metrics, to names that this machine answers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.running import Running
from passmuster.errors import UserError

LIMIT = 1_000


def routes(running: Running) -> list[Route]:
    """Return the routes; every one of them only reads."""

    async def health(request: Request) -> Response:
        progress = running.progress
        return _json(
            {"source": running.source_name(), "now_at": running.now(), **msgspec.structs.asdict(progress)},
            status=503 if progress.failed else 200,
        )

    async def findings(request: Request) -> Response:
        return await _answer(lambda: running.store.query("findings_open", host="", limit=LIMIT))

    async def holds(request: Request) -> Response:
        return await _answer(lambda: running.service.holds(running.now())[:LIMIT])

    async def metrics(request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(HouseMetrics(running))
        body = await run_in_threadpool(generate_latest, registry)
        return Response(body + running.source.metrics(), media_type=CONTENT_TYPE_LATEST)

    return [
        Route("/api/v1/health", health),
        Route("/api/v1/findings", findings),
        Route("/api/v1/holds", holds),
        Route("/metrics", metrics),
    ]


def middleware(address: str) -> list[Middleware]:
    """Refuse requests whose Host header is not ours, while we are bound to loopback.

    Else a web page anywhere could point its own name at 127.0.0.1 and read the fleet through the visitor's browser.
    """
    names = ["localhost", "127.0.0.1", "[::1]", "::1"]
    if not _is_loopback(address):
        return []
    return [Middleware(TrustedHostMiddleware, allowed_hosts=names)]


def _is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:  # a name
        return False


async def _answer(read: Any) -> Response:
    try:
        return _json(await run_in_threadpool(read))
    except UserError as error:
        return _json({"error": str(error)}, status=503)


def _json(body: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


class HouseMetrics(Collector):
    """How the house itself is doing, and how much is wrong in the fleet."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def collect(self) -> Iterable[Metric]:
        """Yield the families of this moment."""
        running = self._running
        progress = running.progress
        yield _gauge("passmuster_lag_seconds", "Age of the newest stored record.", progress.lag_seconds)
        yield _gauge("passmuster_store_up", "1 while the store takes what it is given.", float(not progress.failed))
        yield from self._counters()
        findings = GaugeMetricFamily("passmuster_findings_open", "Open findings.", labels=["severity"])
        severities = [f.severity.value for f in running.engine.open_findings()]
        for severity in ("info", "warning", "error", "critical"):
            findings.add_metric([severity], severities.count(severity))
        yield findings
        holds = GaugeMetricFamily("passmuster_holds", "Holds that are not released.", labels=["state"])
        states = [h.state for h in running.service.holds(running.now())]
        for state in sorted(set(states) | {"held", "proposed", "lapsed", "watch"}):
            holds.add_metric([state], states.count(state))
        yield holds

    def _counters(self) -> Iterator[Metric]:
        progress = self._running.progress
        for name, text, value in (
            ("batches", "Batches stored.", progress.batches),
            ("rows", "Rows stored.", progress.rows),
            ("findings", "Findings that opened, changed or cleared.", progress.findings),
            ("hold_events", "Facts added to the quarantine ledger.", progress.hold_events),
            ("dead_letters", "Batches that could not be taken.", progress.dead_letters),
        ):
            family = CounterMetricFamily(f"passmuster_{name}", text)
            family.add_metric([], value)
            yield family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    family.add_metric([], value)
    return family
