"""Reads AMD devices through AMD SMI, or through sysfs where its library is absent.

Not proven on hardware: the binding is the real one in releases 6.1 to 7.0, its library in our tests is a fake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from collectors import amd_binding
from collectors.amd_fields import EVENTS, IDENTITY, TIER_FIELDS, Call
from collectors.amd_reading import UNSUPPORTED_CODES, AmdReader, Answers, Device, Lost, Missing, fill, identities
from collectors.amd_sysfs import AmdSysfsBackend
from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, LibraryAbsent, LibraryBroken, Tier
from collectors.pci import gpus
from passmuster.records import DeviceState, Vendor

MAX_DEVICES = 64
MAX_EVENTS = 256  # per call of `events`; what remains is delivered by a later one
EVENTS_PER_READ = 10
NO_DATA = 40  # of amdsmi_status_t: no event came
MORE_DATA = 39
REGISTER_AGAIN_SECONDS = 600.0  # after events were not supported
RECOVER_SECONDS = 10.0  # after waiting for events failed

CPER_SECONDS = 10.0  # between two looks for error records of one device
CPER_BUFFER_BYTES = 1 << 20
CPER_ROUNDS = 16  # of 20 records each, in one look
ALL_SEVERITIES = 0b111

NO_LIBRARY = "no_library"
# What sysfs cannot tell; the reason for it is NO_LIBRARY while the library is absent.
LIBRARY_ONLY = frozenset(
    {
        "temperature_hbm_celsius",
        "temperature_slowdown_celsius",
        "temperature_shutdown_celsius",
        "temperature_memory_limit_celsius",
        "clock_soc_hertz",
        "clock_graphics_limit_hertz",
        "throttle_ratio",
        "throttle_seconds_total",
        "energy_joules_total",
        "ecc_enabled",
        "bad_pages_limit",
        "links",
        "links_up",
        "links_total",
        "link_bytes_total",
        "link_error_status",
        "fabric_state",
        "processes",
        "process_memory_bytes",
    }
)

_BDF = Call("amdsmi_get_gpu_device_bdf", (), ())
_DRIVER = Call("amdsmi_get_gpu_driver_info", (), ())


class AmdBackend:
    """`DeviceBackend` over AMD SMI.

    A device's id is its board's serial. Partitions of one package share it: the first one keeps it and tells what
    belongs to the package (power, temperatures, errors, links), the others are named ``SERIAL.pN``.

    ``clock`` is monotonic seconds; it decides when an absent capability is asked again, and measures throttling.
    ``meter`` is told each call and the seconds it took.
    """

    vendor = Vendor.AMD

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        meter: Callable[[str, float], None] | None = None,
        sys_root: str | Path = "/sys",
    ) -> None:
        self._clock = clock
        self._meter = meter
        self._root = Path(sys_root)
        self._smi: Any = None
        self._reader: AmdReader | None = None
        self._sysfs: AmdSysfsBackend | None = None
        self._devices: dict[str, Device] = {}  # by PCI address, in index order
        self._event_readers: list[Any] = []
        self._register_at = 0.0
        self._cper_at: dict[str, float] = {}

    def open(self) -> None:
        """Load and initialise the library once, or turn to sysfs. Raises LibraryAbsent or LibraryBroken."""
        if self._smi is not None or self._sysfs is not None:
            return
        try:
            binding = amd_binding.load()
            amd_binding.refuse_mixed(binding)
            on_bus = sum(1 for gpu in gpus(self._root) if gpu.vendor is Vendor.AMD)
            amd_binding.initialise(binding, on_bus)
        except LibraryAbsent as absent:
            sysfs = AmdSysfsBackend(self._root)
            try:
                sysfs.open()
            except LibraryAbsent:
                raise absent from None
            self._sysfs = sysfs
            return
        self._smi = binding
        self._reader = AmdReader(binding, self._root, self._clock, self._meter)

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, library and binding, and their files."""
        if self._sysfs is not None:
            return self._sysfs.versions() | {"amdsmi": "absent, reading sysfs"}
        found = amd_binding.versions(self._smi)
        reader = self._opened()
        for device in self._devices.values() or self._enumerate():
            with suppress(Missing, Lost):
                driver = str(reader.ask(device, _DRIVER).get("driver_version", ""))[:64]
                if driver:
                    return found | {"driver": driver}
        return found

    def identify(self) -> list[DeviceIdentity]:
        """Enumerate again and return who is there; a device that does not answer keeps its known identity."""
        if self._sysfs is not None:
            return self._sysfs.identify()
        present = self._enumerate()
        reader = self._opened()
        answered: dict[str, tuple[int, Answers]] = {}
        for device in present:
            answers = Answers()
            with suppress(Lost):
                fill(IDENTITY, answers, lambda call, device=device: reader.ask(device, call))  # type: ignore[misc]
                answers.settle(("firmware",))
                if answers.values:
                    answered[device.pci_address] = (device.index, answers)
        for address, (identity, partition) in identities(answered).items():
            self._devices[address].identity = identity
            self._devices[address].partition = partition
        return [device.identity for device in present if device.identity is not None]

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read one tier of every device ever enumerated; those that the library no longer shows are LOST."""
        if self._sysfs is not None:
            return [_without_library(sample, tier) for sample in self._sysfs.sample(tier)]
        if not self._devices:
            self._enumerate()
        reader = self._opened()
        return [reader.sample(device, tier) for device in self._devices.values()]

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Return driver events, waiting at most ``timeout_seconds``, and error records (CPER, root only).

        The first look finds every record since the driver was loaded; the text has each one's own time.
        """
        if self._sysfs is not None:
            return []
        if not self._event_readers and self._clock() >= self._register_at:
            self._register_events()
        found = self._error_records()
        wait = 0 if found else max(0, round(timeout_seconds * 1000))
        while self._event_readers and len(found) < MAX_EVENTS:
            try:
                # One read gives the events of every registered device.
                raws = self._event_readers[0].read(wait, EVENTS_PER_READ)
            except self._smi.AmdSmiLibraryException as error:
                if error.get_error_code() != NO_DATA:
                    self._stop_events()
                break
            except (UnicodeDecodeError, ValueError):  # an event that the binding cannot decode
                continue
            wait = 0
            found += [event for raw in raws if (event := self._event(raw)) is not None]
            if len(raws) < EVENTS_PER_READ:
                break
        return found

    def close(self) -> None:
        """Stop events and shut the library down; harmless when not open."""
        if self._sysfs is not None:
            self._sysfs.close()
            self._sysfs = None
        if self._smi is not None:
            self._stop_events()
            with suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()
            self._smi = self._reader = None
            self._devices = {}

    def _opened(self) -> AmdReader:
        if self._reader is None:
            raise LibraryBroken("AMD SMI is not open")
        return self._reader

    def _enumerate(self) -> list[Device]:
        """Bring the devices up to date and return those that the library shows now, in index order."""
        reader = self._opened()
        try:
            handles = self._smi.amdsmi_get_processor_handles()[:MAX_DEVICES]
        except self._smi.AmdSmiException as error:
            code = getattr(error, "err_code", None)
            raise LibraryBroken(f"AMD SMI does not count its devices (code {code})") from None
        by_handle = {device.handle.value: device for device in self._devices.values()}
        present: list[Device] = []
        for index, handle in enumerate(handles):
            fresh = Device(index, handle, "")
            try:
                address = str(reader.ask(fresh, _BDF)).lower()
            except (Missing, Lost):
                # Shown and not answering: it keeps its place.
                known = by_handle.get(handle.value)
            else:
                known = self._devices.get(address)
                if known is None:
                    fresh.pci_address = address
                    known = self._devices[address] = fresh
            if known is not None:
                known.index, known.handle = index, handle
                present.append(known)
        for device in self._devices.values():
            device.vanished = device not in present
        self._devices = {d.pci_address: d for d in sorted(self._devices.values(), key=lambda d: d.index)}
        return present

    def _register_events(self) -> None:
        """Ask for the error events that this release knows, from every device that can tell them (needs /dev/kfd)."""
        self._register_at = self._clock() + REGISTER_AGAIN_SECONDS
        names = getattr(self._smi, "AmdSmiEvtNotificationType", None)
        reader = getattr(self._smi, "AmdSmiEventReader", None)
        types = [kind for name in EVENTS if (kind := getattr(names, name, None)) is not None]
        if reader is None or not types:
            return
        for device in list(self._devices.values()) or self._enumerate():
            if not device.vanished:
                with suppress(self._smi.AmdSmiException):
                    self._event_readers.append(reader(device.handle, types))

    def _stop_events(self) -> None:
        for reader in self._event_readers:
            with suppress(self._smi.AmdSmiException):
                reader.stop()
        self._event_readers = []
        self._register_at = self._clock() + RECOVER_SECONDS

    def _event(self, raw: Any) -> DriverEvent | None:
        known = EVENTS.get(str(raw.get("event")))
        if known is None:
            return None
        handle = getattr(raw.get("processor_handle"), "value", None)
        address = next((d.pci_address for d in self._devices.values() if d.handle.value == handle), "")
        kind, code = known
        return DriverEvent(
            pci_address=address, kind=kind, code=code, text=f"{raw['event']}: {raw.get('message', '')}"[:1000]
        )

    def _error_records(self) -> list[DriverEvent]:
        reader = self._opened()
        entries = reader.function("amdsmi_get_gpu_cper_entries")
        afids = reader.function("amdsmi_get_afids_from_cper")
        found: list[DriverEvent] = []
        if entries is None or afids is None:
            return found
        for device in self._devices.values():
            if device.vanished or self._clock() < self._cper_at.get(device.pci_address, 0.0):
                continue
            self._cper_at[device.pci_address] = self._clock() + CPER_SECONDS
            for _ in range(CPER_ROUNDS):
                try:
                    headers, cursor, records, status = entries(
                        device.handle, ALL_SEVERITIES, CPER_BUFFER_BYTES, device.cper_cursor
                    )
                except self._smi.AmdSmiLibraryException as error:
                    if error.get_error_code() in UNSUPPORTED_CODES | {10}:
                        self._cper_at[device.pci_address] = self._clock() + REGISTER_AGAIN_SECONDS
                    break
                except (self._smi.AmdSmiException, LookupError, TypeError, ValueError):
                    break
                moved, device.cper_cursor = cursor > device.cper_cursor, cursor
                for number, record in enumerate(records):
                    found += self._decoded(device, headers.get(number, {}), record, afids)
                if status != MORE_DATA or not moved or len(found) >= MAX_EVENTS:
                    break
        return found

    def _decoded(self, device: Device, header: Any, record: Any, afids: Callable[..., Any]) -> list[DriverEvent]:
        """Return one event per AFID of a record, or one for a record without any."""
        severity, at = str(header.get("error_severity", ""))[:32], str(header.get("timestamp", ""))[:32]
        try:
            # The binding gives signed bytes and refuses them itself.
            numbers = sorted({int(n) for n in afids(bytes(b & 0xFF for b in record["bytes"]))[0]})
        except (self._smi.AmdSmiException, LookupError, TypeError, ValueError):
            numbers = []
        codes = [("afid", f"afid:{n}") for n in numbers] or [("ras", f"ras:cper:{severity or 'unknown'}")]
        text = f"CPER {severity} of {at}, AFIDs {', '.join(map(str, numbers)) or 'none'}"
        return [DriverEvent(pci_address=device.pci_address, kind=kind, code=code, text=text) for kind, code in codes]


def _without_library(sample: DeviceSample, tier: Tier) -> DeviceSample:
    if sample.state is DeviceState.LOST:
        return sample
    absent = dict.fromkeys((f for f in TIER_FIELDS[tier] if f in LIBRARY_ONLY), NO_LIBRARY)
    return msgspec.structs.replace(sample, missing=absent | sample.missing)
