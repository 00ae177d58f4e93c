"""Serves the latest values to Prometheus, named as the records declare; what is null has no series."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from prometheus_client.core import Metric

from collectors.aggregate import Latest
from collectors.runner import CollectorHealth
from passmuster import __version__
from passmuster.errors import UserError
from passmuster.faults import lookup
from passmuster.records import DeviceState, Finding, HostReading, Inventory, Severity
from passmuster.schema import METRIC_PREFIX, UP_WORDS, MetricSpec, metrics

INFO_LABELS = ("pci_address", "serial", "model", "driver", "vbios", "architecture", "board_part_number")
OTHER_CODE = "other"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the text format of Prometheus
READ_SECONDS = 10.0  # a client that connects and says nothing


class Exposed(Struct, frozen=True, kw_only=True):
    """What there is to show at one moment."""

    devices: list[Latest]
    host: HostReading | None
    inventory: list[Inventory]
    health: dict[str, CollectorHealth]  # by collector
    restarts: dict[str, int]  # of each vendor's child
    events: dict[tuple[str, str, str], int]  # (device id, kind, code) to count
    findings: list[Finding]  # open ones


class Exporter:
    """A Prometheus collector over a snapshot that ``source`` gives at each scrape, from the server's thread."""

    def __init__(self, source: Callable[[], Exposed]) -> None:
        self._source = source
        self._specs = [s for s in metrics() if s.kind in ("gpu_reading", "host_reading") and s.shape != "rows"]

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family that has a series now."""
        seen = self._source()
        families: dict[str, Metric] = {}
        devices = [(_gpu_labels(d), _fields(d)) for d in seen.devices]
        for spec in self._specs:
            if spec.kind == "gpu_reading":
                for labels, values in devices:
                    _add(families, spec, labels, values.get(spec.field))
            elif seen.host is not None:
                _add(families, spec, {}, getattr(seen.host, spec.field))
        yield from families.values()
        yield from _about_devices(seen)
        yield from _about_agent(seen)


def exposition(exporter: Exporter) -> bytes:
    """Return the text of one scrape.

    Written here because prometheus-client checks and escapes every label of every sample anew, 15 ms for eight GPUs;
    between two scrapes only the numbers change.
    """
    lines = []
    for family in exporter.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        text = family.documentation.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {name} {text}\n# TYPE {name} {family.type}\n")
        lines += [f"{_head(s.name, tuple(s.labels.items()))}{s.value!r}\n" for s in family.samples]
    return "".join(lines).encode()


@lru_cache(maxsize=16_384)  # 64 devices with all their series
def _head(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """Return a line up to its number."""
    inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in sorted(labels))
    return f"{name}{{{inside}}} " if inside else f"{name} "


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def serve(exporter: Exporter, address: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve /metrics in a thread; returns the port and what stops it. Port 0 takes a free one.

    Raises UserError when the address cannot be bound.
    """

    class Page(BaseHTTPRequestHandler):
        timeout = READ_SECONDS

        def do_GET(self) -> None:
            """Answer /metrics, and nothing else."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = exposition(exporter)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the library's name
            """Say nothing: a scrape is no news."""

    try:
        server = ThreadingHTTPServer((address, port), Page)
    except (OSError, OverflowError) as error:
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is in use" if in_use else str(error)
        raise UserError(f"the exporter cannot listen on {address} port {port}: {why}; set exporter.port") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.2,), name="exporter", daemon=True).start()

    def stop() -> None:
        server.shutdown()
        server.server_close()

    return server.server_port, stop


def _gpu_labels(device: Latest) -> dict[str, str]:
    identity = device.identity
    return {"gpu": str(identity.index), "uuid": identity.device_id, "vendor": identity.vendor.value}


def _fields(device: Latest) -> dict[str, Any]:
    return {**device.values, "state": device.state}


def _add(families: dict[str, Metric], spec: MetricSpec, labels: dict[str, str], value: Any) -> None:
    if value is None:
        return
    family = families.get(spec.name)
    if family is None:
        family = families[spec.name] = Metric(spec.name.removesuffix("_total"), spec.help, spec.type)
    for more, number in _samples(spec, value):
        family.add_sample(spec.name, {**labels, **spec.labels, **more}, number)


def _samples(spec: MetricSpec, value: Any) -> Iterator[tuple[dict[str, str], float]]:
    names = spec.label_names
    if spec.shape == "value":
        yield {}, float(value)
    elif spec.shape == "up":
        yield {}, 1.0 if value == DeviceState.OK else 0.0
    elif spec.shape == "state":
        yield {names[0]: str(value)}, 1.0
    else:
        for key, entry in value.items():
            if spec.shape == "map":
                parts = str(key).rsplit(".", len(names) - 1)
                if len(parts) == len(names):
                    yield dict(zip(names, parts, strict=True)), float(entry)
            elif spec.shape == "map_up":
                yield {names[0]: str(key)}, 1.0 if entry in UP_WORDS else 0.0
            else:
                yield {names[0]: str(key), "state": str(entry)}, 1.0


def _about_devices(seen: Exposed) -> Iterator[Metric]:
    labels_of = {d.identity.device_id: _gpu_labels(d) for d in seen.devices}
    info = Metric(METRIC_PREFIX + "gpu_info", "who the device is; always 1", "gauge")
    for item in seen.inventory:
        told = {name: str(getattr(item, name) or "") for name in INFO_LABELS}
        info.add_sample(info.name, {**labels_of.get(item.device_id, {}), **told}, 1.0)
    counts: dict[tuple[str, str, str], int] = {}
    for (device_id, kind, code), count in seen.events.items():
        vendor = labels_of.get(device_id, {}).get("vendor", "host")
        # A log line may carry any number: only codes of the table become a label of their own.
        known = kind == "hung_probe" or not lookup(vendor, kind, code.partition(":")[2] or None).is_default
        key = (device_id, kind, code if known else OTHER_CODE)
        counts[key] = counts.get(key, 0) + count
    events = Metric(METRIC_PREFIX + "gpu_events", "faults that driver or kernel reported", "counter")
    for (device_id, kind, code), count in counts.items():
        whose = labels_of.get(device_id, {"gpu": "", "uuid": device_id, "vendor": ""})
        events.add_sample(events.name + "_total", {**whose, "kind": kind, "code": code}, float(count))
    findings = Metric(METRIC_PREFIX + "findings_open", "open findings of the host's own detectors", "gauge")
    for severity in Severity:
        number = sum(f.severity is severity for f in seen.findings)
        findings.add_sample(findings.name, {"severity": severity.value}, float(number))
    yield from (info, events, findings)


def _about_agent(seen: Exposed) -> Iterator[Metric]:
    build = Metric(METRIC_PREFIX + "agent_info", "version of the agent; always 1", "gauge")
    build.add_sample(build.name, {"version": __version__}, 1.0)
    errors = Metric(METRIC_PREFIX + "agent_collect_errors", "runs of a collector that failed", "counter")
    success = Metric(METRIC_PREFIX + "agent_last_success_timestamp_seconds", "when a collector last succeeded", "gauge")
    state = Metric(METRIC_PREFIX + "agent_collector_state", "what a collector's last run came to", "gauge")
    for name, health in seen.health.items():
        errors.add_sample(errors.name + "_total", {"collector": name}, float(health.errors))
        state.add_sample(state.name, {"collector": name, "state": health.outcome.value}, 1.0)
        if health.succeeded_at is not None:
            success.add_sample(success.name, {"collector": name}, health.succeeded_at / 1e9)
    restarts = Metric(METRIC_PREFIX + "agent_backend_restarts", "starts of a device child after its first", "counter")
    for name, count in seen.restarts.items():
        restarts.add_sample(restarts.name + "_total", {"backend": name}, float(max(0, count)))
    yield from (build, errors, success, state, restarts)
