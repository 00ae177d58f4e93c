"""Reads NVIDIA devices through NVML: the only file that imports `pynvml` (distribution nvidia-ml-py)."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from collectors.device import (
    DeviceIdentity,
    DeviceSample,
    DriverEvent,
    LibraryAbsent,
    LibraryBroken,
    Tier,
)
from collectors.nvidia_fields import (
    ARCHITECTURES,
    EVENT_MASK,
    EVENTS,
    U32_MAX,
    XID_EVENT,
    count,
)
from collectors.nvidia_reading import UNSUPPORTED_CODES, Answers, Device, Lost, NvmlReader, clean_text
from passmuster.records import Vendor

TIMEOUT = 10  # of nvmlReturn_t: no event came
MAX_DEVICES = 64
MAX_EVENTS = 256  # per call of `events`; what remains is delivered by the next one

_BROKEN = {
    4: "this user may not use the driver: run as root or with access to /dev/nvidia*",
    9: "the NVIDIA kernel driver is not loaded: load it (modprobe nvidia), then start again",
    18: "kernel driver and libnvidia-ml.so.1 are of different versions, as after a driver update: "
    "reboot, or unload and load the driver",
}


class NvidiaBackend:
    """`DeviceBackend` over NVML.

    ``clock`` is monotonic seconds; it decides when an absent capability is asked again and whether two GPM samples
    lie far enough apart. ``meter`` is told each call and the seconds it took.
    """

    vendor = Vendor.NVIDIA

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, meter: Callable[[str, float], None] | None = None
    ) -> None:
        self._clock = clock
        self._meter = meter
        self._nvml: Any = None
        self._devices: dict[str, Device] = {}  # by PCI address, in index order
        self._event_set: Any = None
        self._events_unsupported = False
        self._reader: NvmlReader  # from `open` on

    def open(self) -> None:
        """Import pynvml and initialise NVML once; later calls do nothing. Raises LibraryAbsent or LibraryBroken."""
        if self._nvml is not None:
            return
        try:
            import pynvml
        except ImportError:
            raise LibraryAbsent("the Python module pynvml is not installed: pip install nvidia-ml-py") from None
        if not hasattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons"):
            raise LibraryBroken(
                f"the module {pynvml.__file__} is of the deprecated distribution pynvml or too old, and hides "
                "nvidia-ml-py: pip uninstall pynvml, then pip install --force-reinstall nvidia-ml-py"
            )
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            code = error.value
            if code in (12, 13):
                raise LibraryAbsent(f"libnvidia-ml.so.1 is not on this host (NVML {code})") from None
            what = _BROKEN.get(code, "look into the kernel log and run nvidia-smi")
            raise LibraryBroken(f"NVML does not start (code {code}): {what}") from None
        self._nvml = pynvml
        self._reader = NvmlReader(pynvml, self._clock, self._meter)

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, library and binding, as far as they answer."""
        found = {}
        for name, function in (("driver", "nvmlSystemGetDriverVersion"), ("nvml", "nvmlSystemGetNVMLVersion")):
            try:
                text = clean_text(getattr(self._nvml, function)())
            except self._nvml.NVMLError:
                continue
            if text is not None:
                found[name] = text
        # importlib.metadata would take longer than all of NVML; a copy of pynvml.py alone has no such folder.
        for installed in Path(self._nvml.__file__).parent.glob("nvidia_ml_py-*.dist-info"):
            found["nvidia-ml-py"] = installed.name.removesuffix(".dist-info").partition("-")[2]
        return found

    def _driver(self) -> str | None:
        try:
            return clean_text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def identify(self) -> list[DeviceIdentity]:
        """Enumerate again and return who is there; a lost device that NVML still counts keeps its known identity."""
        present = self._enumerate()
        serials = Counter(self._reader.text(device, "nvmlDeviceGetSerial")[0] for device in present)
        for device in present:
            fresh = self._identity(device, serials)
            if fresh is not None:
                device.identity = fresh
        return [device.identity for device in present if device.identity is not None]

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read one tier of every device ever enumerated; those that NVML no longer shows are LOST.

        Handles are those of the last `identify`, which therefore is called again now and then. Raises LibraryBroken
        where NVML cannot even count its devices.
        """
        if not self._devices:
            self._enumerate()
        return [self._reader.sample(device, tier) for device in self._devices.values()]

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Wait for error events, at most ``timeout_seconds``; returns at once where NVML supports no events."""
        nvml = self._nvml
        if self._event_set is None:
            self._register_events()
        found: list[DriverEvent] = []
        wait = max(0, round(timeout_seconds * 1000))
        while self._event_set is not None and len(found) < MAX_EVENTS:
            try:
                raw = nvml.nvmlEventSetWait_v2(self._event_set, wait)
            except nvml.NVMLError as error:
                if error.value != TIMEOUT:
                    # A lost GPU breaks the whole set: the next call registers those that are left.
                    self._free_events()
                break
            wait = 0
            event = self._event(raw)
            if event is not None:
                found.append(event)
        return found

    def close(self) -> None:
        """Free what NVML gave and shut it down; harmless when not open."""
        if self._nvml is None:
            return
        self._free_events()
        for device in self._devices.values():
            for buffer in device.gpm or ():
                self._quietly("nvmlGpmSampleFree", buffer)
        self._devices = {}
        self._quietly("nvmlShutdown")
        self._nvml = None

    def _quietly(self, function: str, *arguments: Any) -> None:
        # An error leaves nothing to be done with what is being given back.
        with suppress(self._nvml.NVMLError):
            getattr(self._nvml, function)(*arguments)

    def _enumerate(self) -> list[Device]:
        """Bring the devices up to date and return those that NVML counts now, in index order."""
        nvml = self._nvml
        try:
            total = min(nvml.nvmlDeviceGetCount(), MAX_DEVICES)
        except nvml.NVMLError as error:
            raise LibraryBroken(f"NVML does not count its devices (code {error.value})") from None
        present: dict[int, Device] = {}
        for index in range(total):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                address = _pci_address(nvml.nvmlDeviceGetPciInfo(handle))
            except nvml.NVMLError:
                continue
            device = self._devices.get(address)
            if device is None:
                device = self._devices[address] = Device(index, handle, address)
            device.index, device.handle, device.vanished = index, handle, False
            present[index] = device
        for device in self._devices.values():
            if device not in present.values():
                # Counted and not answering: it keeps its place. Beyond the count: it has vanished.
                device.vanished = device.index >= total or device.index in present
                if not device.vanished:
                    present[device.index] = device
        self._devices = {d.pci_address: d for d in sorted(self._devices.values(), key=lambda d: d.index)}
        return [present[index] for index in sorted(present)]

    def _identity(self, device: Device, serials: Counter[str | None]) -> DeviceIdentity | None:
        texts = {
            "serial": "nvmlDeviceGetSerial",
            "uuid": "nvmlDeviceGetUUID",
            "board_part_number": "nvmlDeviceGetBoardPartNumber",
            "vbios": "nvmlDeviceGetVbiosVersion",
            "model": "nvmlDeviceGetName",
        }
        answers = Answers()
        try:
            for field, function in texts.items():
                text, reason = self._reader.text(device, function)
                answers.take(field, text) if text is not None else answers.miss(field, reason)
            for member, function in {
                "inforom": "nvmlDeviceGetInforomImageVersion",
                "gsp": "nvmlDeviceGetGspFirmwareVersion",
            }.items():
                text, reason = self._reader.text(device, function)
                answers.take("firmware", text, member) if text is not None else answers.miss("firmware", reason, member)
            self._reader.put(device, answers, "architecture", "nvmlDeviceGetArchitecture", _architecture)
            self._reader.put(device, answers, "slot", "nvmlDeviceGetModuleId", str)
            self._reader.put(device, answers, "numa_node", "nvmlDeviceGetNumaNodeId", int)
            self._reader.put(
                device, answers, "memory_total_bytes", "nvmlDeviceGetMemoryInfo", lambda m: count(m.total), 0x02000028
            )
            self._reader.fabric_domain(device, answers)
        except Lost:
            return None
        if not answers.values:
            return None
        driver = self._driver()
        answers.take("driver", driver) if driver else answers.miss("driver", "unsupported")
        answers.settle()
        values = answers.values
        serial = values.get("serial")
        # Two devices of one board may share its serial; then only the UUID tells them apart.
        unique = serial if serials[serial] == 1 else None
        return DeviceIdentity(
            device_id=unique or values.get("uuid") or f"pci-{device.pci_address}",
            pci_address=device.pci_address,
            index=device.index,
            vendor=self.vendor,
            model=values.pop("model", ""),
            values=values,
            missing=answers.missing,
        )

    def _register_events(self) -> None:
        """Create one event set over every device that can be registered; none leaves the set absent."""
        nvml = self._nvml
        if self._events_unsupported:
            return
        try:
            created = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._events_unsupported = error.value in UNSUPPORTED_CODES
            return
        self._event_set = created
        registered = 0
        for device in self._devices.values():
            if device.vanished:
                continue
            try:
                mask = nvml.nvmlDeviceGetSupportedEventTypes(device.handle) & EVENT_MASK
                if mask:
                    nvml.nvmlDeviceRegisterEvents(device.handle, mask, created)
                    registered += 1
            except nvml.NVMLError:
                continue  # lost or without events: the others are still worth waiting for
        if not registered:
            self._free_events()

    def _free_events(self) -> None:
        if self._event_set is not None:
            self._quietly("nvmlEventSetFree", self._event_set)
            self._event_set = None

    def _event(self, raw: Any) -> DriverEvent | None:
        known = EVENTS.get(raw.eventType)
        if known is None:
            return None
        kind, code = known
        address = self._address_of(raw.device)
        where = "" if raw.gpuInstanceId == U32_MAX else f", GPU instance {raw.gpuInstanceId}"
        if raw.eventType == XID_EVENT:
            code = f"xid:{raw.eventData}"
        text = f"NVML reported {code} (event type {raw.eventType:#x}, data {raw.eventData:#x}{where})"
        return DriverEvent(pci_address=address, kind=kind, code=code, text=text)

    def _address_of(self, handle: Any) -> str:
        """Name the device of an event by its handle, since a lost one answers no question any more."""
        wanted = ctypes.cast(handle, ctypes.c_void_p).value
        for device in self._devices.values():
            if ctypes.cast(device.handle, ctypes.c_void_p).value == wanted:
                return device.pci_address
        return ""


def _architecture(raw: Any) -> str | None:
    number = count(raw)
    return None if number is None else ARCHITECTURES.get(number, str(number))


def _pci_address(info: Any) -> str:
    """Return dddd:bb:dd.f of a PciInfo; the bus id has a domain of eight digits and may be bytes."""
    bus_id = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else info.busId
    function = bus_id.rpartition(".")[2]
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function if function.isdigit() else 0}"
