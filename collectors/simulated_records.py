"""What the agent of a simulated host says besides its GPU readings: inventory, fault events, the host itself."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from collectors.kernel_log import classify, code_of
from collectors.simulated_device import Device, Load
from collectors.simulated_models import DeviceModel
from passmuster.faults import TABLE_VERSION
from passmuster.records import Blame, FaultClass, FaultEvent, Inventory, Severity, Trust, Vendor

CLUSTER = "simulated"
PORTS = 8  # network ports of a host


class HostInfo(Struct, frozen=True, kw_only=True):
    """Where a simulated host stands."""

    host: str
    rack: str
    pool: str
    model: DeviceModel
    devices: tuple[Device, ...]


def inventory(info: HostInfo, boot_id: str, at: int) -> list[Inventory]:
    """Return what stands where in the host."""
    model = info.model
    number = int(info.rack.removeprefix("rack"))
    return [
        Inventory(
            cluster=CLUSTER,
            host=info.host,
            boot_id=boot_id,
            observed_at=at,
            device_id=device.device_id,
            valid_from_at=at,
            vendor=model.vendor,
            model=model.name,
            architecture=model.architecture,
            serial=device.device_id,
            pci_address=model.pci_address(device.index),
            index=device.index,
            board_part_number=model.part_number,
            memory_total_bytes=model.memory_bytes,
            memory_vendor=model.memory_vendor,
            vbios=model.vbios,
            driver=model.driver,
            numa_node=device.index * 2 // max(len(info.devices), 1),
            slot=f"module{device.index}",
            rack=info.rack,
            pool=info.pool,
            power_domain=f"pdu{number:02d}",
            cooling_domain=f"cdu{number // 4:02d}",
            switch=f"leaf{number:02d}",
            fabric_domain=f"{model.link_word}-{info.host}",
        )
        for device in info.devices
    ]


def line_event(info: HostInfo, boot_id: str, line: str, at: int) -> FaultEvent | None:
    """Take a kernel-log line the way the agent takes it; None where it names no fault or tells more of another."""
    found = classify(line)
    if found.kind == "none" or found.continuation or found.severity is None or found.fault_class is None:
        return None
    model = info.model
    device = next((d for d in info.devices if model.pci_address(d.index) == found.pci), None)
    return FaultEvent(
        cluster=CLUSTER,
        host=info.host,
        boot_id=boot_id,
        observed_at=at,
        device_id=device.device_id if device is not None else found.pci or "",
        vendor=found.vendor,
        model=model.name if device is not None else "",
        pci_address=found.pci,
        source="kernel_log",
        kind=found.kind,
        code=code_of(found),
        block=found.block,
        fault_class=found.fault_class,
        severity=found.severity,
        blame=found.blame,
        secondary=found.secondary,
        first_at=at,
        last_at=at,
        text=found.text,
        trust=found.trust,
        link=found.link,
        pid=found.pid,
        process=found.process,
        table_version=TABLE_VERSION,
    )


def hung_event(info: HostInfo, boot_id: str, at: int) -> FaultEvent:
    """Return what the agent reports when a driver call does not come back."""
    vendor = info.model.vendor
    return FaultEvent(
        cluster=CLUSTER,
        host=info.host,
        boot_id=boot_id,
        observed_at=at,
        vendor=vendor,
        source="agent",
        kind="hung_probe",
        code=f"hung_probe:{vendor.value}",
        fault_class=FaultClass.HANG,
        severity=Severity.ERROR,
        blame=Blame.UNCLEAR,
        first_at=at,
        last_at=at,
        text="the driver did not answer within its deadline",
        trust=Trust.AGENT,
        table_version=TABLE_VERSION,
    )


def host_row(model: DeviceModel, devices: int, load: Load, at: int) -> dict[str, Any]:
    """Return a healthy HostReading's fields at one instant."""
    nvidia = model.vendor is Vendor.NVIDIA
    ports = [f"mlx5_{n}/1" for n in range(PORTS)]
    addresses = [model.pci_address(n) for n in range(devices)]
    return {
        "observed_at": at,
        "kernel": "6.8.0-60-generic",
        "drivers": {"nvidia" if nvidia else "amdgpu": model.driver},
        "uptime_seconds": load.uptime_seconds,
        "gpus_expected": {model.vendor.value: devices},
        "gpus_seen": {model.vendor.value: devices},
        "services": dict.fromkeys(("nvidia-fabricmanager", "nvidia-persistenced"), "active" if nvidia else "absent"),
        "load_ratio": round(0.03 + 0.3 * load.level, 3),
        "memory_total_bytes": 2 * 2**40,
        "memory_available_bytes": int(2**40 * (1.9 - 0.8 * load.level)),
        "nic_links": dict.fromkeys(ports, "active"),
        "nic_rates": dict.fromkeys(ports, 400e9),
        "nic_errors_total": {f"{port}.{name}": 0 for port in ports for name in ("link_downed", "symbol_error")},
        "aer_errors_total": {
            f"{a}.{severity}": 0 for a in addresses for severity in ("correctable", "nonfatal", "fatal")
        },
        "collectors": {model.vendor.value: "ok", "kernel_log": "ok", "host": "ok"},
        "collect_seconds": {model.vendor.value: 0.012, "kernel_log": 0.0004, "host": 0.006},
        "agent_cpu_seconds_total": round(load.uptime_seconds * 0.007, 2),
        "agent_memory_bytes": 58 * 2**20,
        "spool_bytes": 0,
        "spool_oldest_seconds": 0.0,
        "spool_dropped_total": {},
        "kernel_log_lost_total": 0,
        "clock_steps_total": 0,
    }
