"""The boundary to a vendor's library: one Protocol, filled by nvidia.py, amd.py and the shipped fake.

A backend answers with plain values under the field names of `GpuReading` and `Inventory`; every field that it
could not read stands in ``missing`` with the reason. It never judges, sleeps or retries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from passmuster.records import DeviceState, Vendor


class Tier(StrEnum):
    """How often a group of calls is made; which call is in which tier follows its measured cost."""

    FAST = "fast"  # every second: calls of microseconds
    MIDDLE = "middle"  # every 10 s: counters that cost up to a millisecond
    SLOW = "slow"  # every 60 s: what costs more or seldom changes


class LibraryAbsent(Exception):  # an outcome, not a fault
    """The vendor's library or binding is not on this host. Quiet when no such device is on PCI."""


class LibraryBroken(Exception):  # as above
    """The library is there and does not work. The message says which one, what it answered, what to do."""


class DeviceSample(Struct, frozen=True, kw_only=True):
    """What one device answered in one tier.

    ``values`` holds fields of `GpuReading` by name, in its units; ``missing`` holds, for each field of this tier
    that has no value, one of: unsupported, permission, sentinel, "failed CODE", not_yet.
    """

    pci_address: str
    state: DeviceState
    values: dict[str, Any]
    missing: dict[str, str]


class DeviceIdentity(Struct, frozen=True, kw_only=True):
    """Who a device is; ``values`` holds fields of `Inventory` by name."""

    device_id: str
    pci_address: str
    index: int
    vendor: Vendor
    model: str
    values: dict[str, Any]
    missing: dict[str, str]


class DriverEvent(Struct, frozen=True, kw_only=True):
    """An event that the library delivered (an XID, an amdgpu reset); ``code`` as in `FaultEvent.code`."""

    pci_address: str
    kind: str
    code: str
    text: str


class DeviceBackend(Protocol):
    """One vendor's devices on this host. All calls come from one thread; none is retried."""

    vendor: Vendor

    def open(self) -> None:
        """Load and initialise the library once. Raises LibraryAbsent or LibraryBroken."""

    def versions(self) -> dict[str, str]:
        """Return driver, library and binding versions by name."""

    def identify(self) -> list[DeviceIdentity]:
        """Return every device that the library shows now, lost ones included where it still names them."""

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read the calls of one tier from every device. A lost device is a sample with its state, no exception."""

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Return what the driver reported since the last call, waiting at most ``timeout_seconds``."""

    def close(self) -> None:
        """Release every handle; harmless when not open."""
