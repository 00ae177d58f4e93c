"""Which GPUs the PCI bus shows: vendor detection and the expected count, without any GPU library."""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct

from collectors.pseudo_file import Unreadable, names, read
from passmuster.records import Vendor

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")

# PCI base and sub class (pci_ids.h): 0300 VGA, 0302 3D controller, 0380 other display, 1200 processing accelerator.
GPU_CLASSES = {
    "0x10de": (Vendor.NVIDIA, ("0x0300", "0x0302")),
    "0x1002": (Vendor.AMD, ("0x0300", "0x0380", "0x1200")),
}


class PciGpu(Struct, frozen=True, kw_only=True):
    """One GPU on the bus."""

    vendor: Vendor
    address: str  # dddd:bb:dd.f
    device: str  # device id, as 0x2335
    driver: str | None  # kernel driver that holds it; null when none does
    numa_node: int | None  # -1 where the kernel knows none
    bridge: str | None  # address of the bridge above it


def gpus(sys_root: str | Path) -> list[PciGpu]:
    """Return the GPUs of this host by address; empty when there is no PCI bus.

    A device that is given to a virtual machine (vfio-pci) and a virtual function beside its physical one are not this
    host's GPUs: no driver here shows them.
    """
    bus = Path(sys_root) / "bus" / "pci" / "devices"
    try:
        addresses = [name for name in names(bus) if ADDRESS.match(name)]
    except Unreadable:
        return []
    found = []
    for address in addresses:
        folder = bus / address
        vendor, classes = GPU_CLASSES.get(_word(folder / "vendor"), (Vendor.NONE, ()))
        if _word(folder / "class")[:6] not in classes or (folder / "physfn").exists():
            continue
        driver = _link(folder / "driver")
        if driver == "vfio-pci":
            continue
        node = _word(folder / "numa_node")
        above = folder.resolve().parent.name
        found.append(
            PciGpu(
                vendor=vendor,
                address=address,
                device=_word(folder / "device"),
                driver=driver,
                numa_node=int(node) if re.fullmatch(r"-1|\d{1,4}", node) else None,
                bridge=above if ADDRESS.match(above) else None,
            )
        )
    return found


def _word(path: Path) -> str:
    try:
        return read(path).lower()
    except Unreadable:
        return ""


def _link(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None
