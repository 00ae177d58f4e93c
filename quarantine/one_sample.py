"""One sample of everything on this host, with the reason of every null: `muster agent --once`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click
import msgspec

from collectors.aggregate import Latest
from collectors.probe import Outcome
from passmuster.batch import Batch, to_records
from passmuster.config import Config
from passmuster.exits import ExitCode
from passmuster.records import DeviceState, FaultEvent, HostReading, Record
from passmuster.schema import fields
from quarantine.host import HostAgent

# Of one poll there is no least, no most and no interval.
OF_INTERVAL = ("_min_", "_max_")
HEADER = ("cluster", "host", "boot_id", "observed_at")
IDENTITY = ("device_id", "vendor", "model", "pci_address", "index", "partition", "state", "missing")
AGENT_ONLY = "only the running agent has it"


def take_one(config: Config, fakes: tuple[str, ...], *, as_json: bool) -> ExitCode:
    """Sample everything once, print it, and tell by the exit code whether all devices answered."""
    seq: Counter[str] = Counter()
    faults: list[Record] = []

    def next_seq(kind: str) -> int:
        seq[kind] += 1
        return seq[kind] - 1

    def ship(batch: Batch) -> None:
        if batch.kind == FaultEvent.KIND:
            faults.extend(to_records(batch))

    host = HostAgent(
        config, ship=ship, next_seq=next_seq, fakes=fakes, judging=False, say=lambda s: click.echo(s, err=True)
    )
    runner = host.runner
    limit = time.monotonic() + config.agent.open_deadline_seconds + 3 * config.agent.call_deadline_seconds
    while not runner.settled() and time.monotonic() < limit:
        runner.step(0.2)
    devices = runner.aggregate.latest(time.monotonic())
    code = _exit_code(host, devices)
    sample = {
        "host": _host(runner.host_reading),
        "devices": [_device(d) for d in devices],
        "inventory": list(runner.inventory.values()),
        "collectors": {
            n: {"state": h.outcome.value, "reason": h.reason, "seconds": h.seconds} for n, h in runner.health.items()
        },
        "libraries": {p.name: p.versions for p in runner.probes},
        "kernel_log": host.kernel_log.counters if host.kernel_log else None,
        "faults": faults,
        "exit_code": int(code),
    }
    if as_json:
        plain = msgspec.to_builtins(sample)
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        _summary(sample, devices)
    runner.close()
    return code


def _exit_code(host: HostAgent, devices: list[Latest]) -> ExitCode:
    if any(d.state in (DeviceState.LOST, DeviceState.HUNG) for d in devices):
        return ExitCode.FAIL
    bad = (Outcome.FAILED, Outcome.HUNG, Outcome.STARTING)
    if not devices or any(h.outcome in bad for h in host.runner.health.values()):
        return ExitCode.INCOMPLETE
    return ExitCode.PASS if all(d.state is DeviceState.OK for d in devices) else ExitCode.INCOMPLETE


def _device(device: Latest) -> dict[str, Any]:
    identity = device.identity
    values: dict[str, Any] = {}
    why: dict[str, str] = {}
    for field in fields("gpu_reading"):
        name = field.name
        if name in HEADER or name in IDENTITY or not field.nullable or any(word in name for word in OF_INTERVAL):
            continue
        values[name] = device.values.get(name)
        if values[name] is not None:
            continue
        source = {"nvidia": field.nvidia, "amd": field.amd}.get(identity.vendor.value, "")
        if name in device.missing:
            why[name] = device.missing[name]
        elif device.state is not DeviceState.OK:
            why[name] = f"the device is {device.state.value}"
        elif not source or source.startswith("none"):
            why[name] = f"{identity.vendor.value} has no source for it"
        else:
            why[name] = "the backend did not report it"
    return {
        "device_id": identity.device_id,
        "vendor": identity.vendor.value,
        "model": identity.model,
        "pci_address": identity.pci_address,
        "index": identity.index,
        "state": device.state.value,
        "values": values,
        "null_because": why,
    }


def _host(reading: HostReading | None) -> dict[str, Any]:
    if reading is None:
        return {"values": None, "null_because": {"all": "the host collector did not answer"}}
    values = msgspec.to_builtins(reading)
    missing = values.pop("missing") or {}
    why = {
        n: missing.get(n, AGENT_ONLY if n.startswith("spool") else "not read") for n, v in values.items() if v is None
    }
    return {"values": values, "null_because": why}


def _summary(sample: dict[str, Any], devices: list[Latest]) -> None:
    for device, told in zip(devices, sample["devices"], strict=True):
        values = told["values"]
        words = [
            _figure(values["power_watts"], "W"),
            _figure(values["temperature_core_celsius"] or values["temperature_hotspot_celsius"], "C"),
            _figure(values["activity_compute_ratio"], "% busy", 100),
            f"{sum(v is not None for v in values.values())} values, {len(told['null_because'])} null",
        ]
        click.echo(f"{told['pci_address']}  {device.identity.model}  {told['state']}  {'  '.join(words)}")
    if not devices:
        click.echo("no GPU answered")
    for name, told in sample["collectors"].items():
        click.echo(f"collector {name}: {told['state']}{': ' + told['reason'] if told['reason'] else ''}")
    for fault in sample["faults"]:
        click.echo(f"fault {fault.code} {fault.pci_address or 'host'} x{fault.count}: {fault.text[:100]}")


def _figure(value: float | None, unit: str, times: float = 1) -> str:
    return f"- {unit}" if value is None else f"{value * times:.0f} {unit}"
