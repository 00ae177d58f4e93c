"""The rarer records of a simulated host: its inventory, and fault events as its agent would make them."""

from __future__ import annotations

from msgspec import Struct

from collectors.kernel_log import classify, code_of
from collectors.simulated_device import Device
from collectors.simulated_models import DeviceModel
from passmuster.faults import TABLE_VERSION
from passmuster.records import Blame, FaultClass, FaultEvent, Inventory, Severity, Trust

CLUSTER = "simulated"


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
