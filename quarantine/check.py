"""`muster check`: the verdict on this node from one look at everything, without any daemon."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from passmuster import config as configuration
from passmuster.exits import ExitCode
from passmuster.records import DeviceState, FaultEvent, Finding, GpuReading, Health, HostReading, Record, Vendor

if TYPE_CHECKING:
    from collectors.one_shot import Answer
    from collectors.pci import PciGpu
    from quarantine.verdict import HostVerdict

SECOND = 1_000_000_000  # nanoseconds

# Older kernel-log faults are history: if they still matter, the devices show it now. As the detectors hold it.
RECENT_SECONDS = 600.0

NAMES = {"nvidia": "NVIDIA", "amd": "AMD"}
LIBRARIES = {"nvidia": "libnvidia-ml.so.1", "amd": "libamd_smi.so"}


class Sight(Struct, kw_only=True):
    """What one look at the node showed."""

    host: HostReading
    gpus: list[GpuReading]
    faults: list[FaultEvent]
    unchecked: list[str]  # sentences on what should have been read and was not
    expected: dict[str, int]  # GPUs that there must be, by vendor, "any" for the sum
    versions: dict[str, str]


@click.command()
@click.option("--config", "config_path", type=click.Path(), help="Configuration file.")
@click.option("--expect-gpus", type=click.IntRange(0, 4096), help="GPUs that this node must have; fewer is a failure.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def check(config_path: str | None, expect_gpus: int | None, as_json: bool) -> ExitCode:
    """Check this node once, without any daemon.

    Exit 0 healthy, 1 degraded, 2 unhealthy, 3 incomplete: something could not be checked, or there is nothing to check.
    """
    config = configuration.load(config_path)
    if expect_gpus is not None:
        config = replace(config, agent=replace(config.agent, expect_gpus=expect_gpus))
    from collectors import one_shot, pci

    shown = pci.gpus(config.agent.sys_root)
    children = [one_shot.start(vendor) for vendor in vendors(config.agent, shown)]
    # Everything below is imported while the children load the vendor libraries. A pool of threads for matrices that we
    # do not have, and a hunt for garbage among modules, would cost a fifth of it.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    from detectors.engine import Engine
    from passmuster.batch import from_records, split_by_header
    from quarantine import verdict

    engine = Engine(config, one_shot=True)
    gc.enable()
    sight = look(config, shown, children, time.time_ns())
    batches = [from_records(group) for group in split_by_header(records(sight))]
    now = time.time_ns()
    engine.feed_all(batches, now)
    findings = engine.open_findings()
    unchecked = sight.unchecked + [
        f"detector {n} failed: {h.last_error}" for n, h in engine.health().items() if h.errors
    ]
    judged = verdict.judge(
        findings,
        [device_facts(gpu) for gpu in sight.gpus],
        now,
        host=sight.host.host,
        boot_id=sight.host.boot_id,
        valid_seconds=config.agent.verdict_valid_seconds,
        gpus_expected=sight.expected,
        unchecked=unchecked,
    )
    code = verdict.EXITS[judged.state]
    sight.unchecked = unchecked
    click.echo(as_object(sight, findings, judged, code) if as_json else "\n".join(page(sight, findings, judged, code)))
    return code


def vendors(agent: configuration.Agent, shown: Iterable[PciGpu]) -> list[str]:
    """Return the vendors whose library is asked: those that PCI shows; where it shows none, those in sight."""
    on_pci = {gpu.vendor.value for gpu in shown}
    chosen = []
    for vendor, switch in (("nvidia", agent.nvidia), ("amd", agent.amd)):
        wanted = vendor in on_pci or (not on_pci and library_in_sight(vendor, agent))
        if switch == "on" or (switch == "auto" and wanted):
            chosen.append(vendor)
    return chosen


def library_in_sight(vendor: str, agent: configuration.Agent) -> bool:
    """Tell whether a loaded driver or a library in an explicit place speaks for a vendor that PCI does not show.

    In a container the PCI bus may be hidden while driver and library are there.
    """
    driver = {"nvidia": Path(agent.proc_root) / "driver/nvidia/version", "amd": Path(agent.sys_root) / "module/amdgpu"}
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *_rocm_folders()]
    return driver[vendor].exists() or any((Path(f) / LIBRARIES[vendor]).exists() for f in folders if f)


def _rocm_folders() -> Iterator[str]:
    for variable in ("ROCM_PATH", "ROCM_HOME"):
        if variable in os.environ:
            yield f"{os.environ[variable]}/lib"
    yield "/opt/rocm/lib"


def look(config: configuration.Config, shown: list[PciGpu], children: list[Any], now: int) -> Sight:
    """Read host, kernel log and, from the children, the devices."""
    from collectors import one_shot
    from collectors.host import HostCollector

    (host,) = HostCollector(config).collect(now)
    deadline = config.agent.call_deadline_seconds if children else 0.0
    answers = one_shot.finish(children, deadline)
    on_pci = {vendor: sum(gpu.vendor.value == vendor for gpu in shown) for vendor in NAMES}
    expected = dict(host.gpus_expected or {})
    sight = Sight(host=host, gpus=[], faults=[], unchecked=[], expected=expected, versions={})
    for answer in answers:
        _take(sight, answer, [gpu.address for gpu in shown if gpu.vendor.value == answer.vendor], deadline, now)
    asked = {answer.vendor for answer in answers}
    for vendor, name in NAMES.items():
        if on_pci[vendor] and vendor not in asked:
            sight.unchecked.append(f"{on_pci[vendor]} {name} GPUs: their collector is switched off")
            _not_expected(sight, vendor, config)
        if vendor in asked and not any(gpu.vendor.value == vendor for gpu in sight.gpus):
            _not_expected(sight, vendor, config)
    seen = {answer.vendor: len(answer.identities) for answer in answers if answer.identities or answer.status == "ok"}
    sight.host = replace(host, gpus_seen=seen or None, gpus_expected=sight.expected)
    sight.faults = _kernel_log(config, sight, {a.vendor: a for a in answers}, now)
    return sight


def _not_expected(sight: Sight, vendor: str, config: configuration.Config) -> None:
    """What PCI shows and no library answers for is not checked, not missing; a configured number stands."""
    if config.agent.expect_gpus < 0:
        sight.expected.pop(vendor, None)


def _take(sight: Sight, answer: Answer, addresses: list[str], deadline: float, now: int) -> None:
    """Put one vendor's answer into the sight."""
    name = NAMES[answer.vendor]
    sight.versions.update({f"{answer.vendor} {k}": v for k, v in answer.versions.items()})
    host = sight.host
    header = {"cluster": host.cluster, "host": host.host, "boot_id": host.boot_id, "observed_at": now}
    values: dict[str, dict[str, Any]] = {}
    states: dict[str, DeviceState] = {}
    for sample in answer.samples:
        row = values.setdefault(sample.pci_address, {"missing": {}})
        row.update(sample.values)
        row["missing"].update(sample.missing)
        if states.get(sample.pci_address, DeviceState.OK) is DeviceState.OK:
            states[sample.pci_address] = sample.state
    silent = DeviceState.HUNG if answer.status == "hung" else DeviceState.UNREADABLE
    for identity in answer.identities:
        address = identity.pci_address
        row = {
            **header,
            "device_id": identity.device_id,
            "vendor": identity.vendor,
            "model": identity.model,
            "pci_address": address,
            "index": identity.index,
            "state": states.get(address, silent),
            "samples": 1 if states.get(address) is DeviceState.OK else 0,
            **values.get(address, {}),
        }
        sight.gpus.append(msgspec.convert(row, GpuReading))
    if answer.identities:
        # A library that cannot even name a lost GPU leaves a hole in its numbering; PCI, where it is shown, tells more.
        counted = 1 + max(identity.index for identity in answer.identities)
        sight.expected[answer.vendor] = max(counted, sight.expected.get(answer.vendor, 0))
    if answer.status == "ok":
        return
    hung = answer.status == "hung"
    words = f"did not answer within {deadline:g} s: a driver call hangs" if hung else answer.status
    sight.unchecked.append(f"the {name} library {words}" + (f": {answer.sentence}" if answer.sentence else ""))
    if hung and not answer.identities:
        # It never came to naming them; PCI does.
        row = {**header, "vendor": answer.vendor, "model": "", "state": DeviceState.HUNG}
        sight.gpus += [msgspec.convert({**row, "device_id": a, "pci_address": a}, GpuReading) for a in addresses]


def _kernel_log(
    config: configuration.Config, sight: Sight, answers: Mapping[str, Answer], now: int
) -> list[FaultEvent]:
    """Return the faults of the last minutes; a log that may not be read is said, one that is not there is not."""
    if not config.agent.kernel_log:
        return []
    from collectors.collector import Absent, Failed
    from collectors.kernel_log import KernelLog

    host = sight.host
    log = KernelLog(
        cluster=host.cluster,
        host=host.host,
        boot_id=host.boot_id,
        booted_at=now - int((host.uptime_seconds or 0) * SECOND),
        path=Path(config.agent.kernel_log_path),
        devices={i.pci_address: i for answer in answers.values() for i in answer.identities},
        trust_user_space=config.agent.kernel_log_trust_user_space,
    )
    try:
        faults = list(log.collect(now))
    except Absent:
        return []
    except Failed as error:
        sight.unchecked.append(str(error))
        return []
    finally:
        log.close()
    return [fault for fault in faults if now - fault.last_at <= RECENT_SECONDS * SECOND]


def records(sight: Sight) -> list[Record]:
    """Return the sight as records, in the order in which detectors want them."""
    return [sight.host, *sight.faults, *sight.gpus]


def device_facts(gpu: GpuReading) -> Any:
    """Return what the verdict needs of a device."""
    from quarantine.verdict import DeviceFacts

    return DeviceFacts(
        device_id=gpu.device_id, pci_address=gpu.pci_address, vendor=gpu.vendor, model=gpu.model, state=gpu.state
    )


def as_object(sight: Sight, findings: list[Finding], judged: HostVerdict, code: ExitCode) -> str:
    """Return everything as one JSON object."""
    whole = {
        "state": judged.state,
        "exit_code": int(code),
        "host": judged.host,
        "reasons": judged.reasons,
        "codes": judged.codes,
        "gpus_expected": sight.expected,
        "gpus_seen": sight.host.gpus_seen,
        "devices": judged.devices,
        "findings": findings,
        "unchecked": sight.unchecked,
        "versions": sight.versions,
        "host_reading": sight.host,
        "gpu_readings": sight.gpus,
        "fault_events": sight.faults,
    }
    return msgspec.json.encode(whole).decode()


def page(sight: Sight, findings: list[Finding], judged: HostVerdict, code: ExitCode) -> list[str]:
    """Return the lines for a person: devices, findings with the next step, what was not checked, the verdict."""
    from quarantine.verdict import ORDER, printable, weigh

    lines = []
    if sight.gpus:
        states = {device.device_id: device.state for device in judged.devices}
        rows: list[tuple[str, ...]] = [("#", "PCI address", "model", "state", "temp", "power", "memory", "verdict")]
        rows += [_row(i, gpu, states[gpu.device_id]) for i, gpu in enumerate(sight.gpus)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append("")
    for finding in sorted(findings, key=lambda f: -ORDER.index(weigh(f))):
        state = weigh(finding).value if weigh(finding) is not Health.HEALTHY else "note"
        lines.append(f"{state.upper()}  {finding.code}  {finding.pci_address or finding.subject_id}: {finding.title}")
        if finding.next_step:
            lines.append(f"    {finding.next_step}")
    lines += [f"NOT CHECKED  {sentence}" for sentence in sight.unchecked]
    lines += [f"{judged.state.value.upper()}  {r}" for r in judged.reasons if _only_in_verdict(r, sight, judged)]
    lines.append(f"{judged.host}: {judged.state.value} ({code.name.lower()}, exit {int(code)})")
    return [printable(line) for line in lines]


def _only_in_verdict(reason: str, sight: Sight, judged: HostVerdict) -> bool:
    """Tell whether a reason of the verdict is neither a finding nor something unchecked."""
    return reason not in sight.unchecked and not any(reason.startswith(f"{code}: ") for code in judged.codes)


def _row(index: int, gpu: GpuReading, state: Health) -> tuple[str, ...]:
    temperatures = (gpu.temperature_core_celsius, gpu.temperature_hotspot_celsius, gpu.temperature_edge_celsius)
    temperature = next((t for t in temperatures if t is not None), None)
    power = gpu.power_watts if gpu.power_watts is not None else gpu.power_average_watts
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    memory = "-" if used is None or total is None else f"{used / 2**30:.1f}/{total / 2**30:.0f} GiB"
    return (
        str(index if gpu.index is None else gpu.index),
        gpu.pci_address,
        gpu.model or NAMES.get(gpu.vendor.value, Vendor.NONE.value),
        gpu.state.value,
        "-" if temperature is None else f"{temperature:.0f} C",
        "-" if power is None else f"{power:.0f} W",
        memory,
        state.value,
    )
