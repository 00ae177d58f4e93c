"""Reads NVIDIA devices through NVML: the only file that imports `pynvml` (distribution nvidia-ml-py)."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
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
    BATCHES,
    CALLS,
    ECC_KINDS,
    ECC_PLACES,
    EVENT_MASK,
    EVENTS,
    FABRIC_STATES,
    GPM_METRICS,
    GPM_MIN_SECONDS,
    LINK_COUNTERS,
    LINK_VALUES,
    LINKS,
    TIER_FIELDS,
    U32_MAX,
    WRAPPING,
    XID_EVENT,
    Batch,
    Call,
    count,
    fabric_health,
    flag,
    percent,
)
from passmuster.records import DeviceState, Vendor

# Codes of nvmlReturn_t by what they mean for us.
UNSUPPORTED_CODES = frozenset({2, 3, 13, 25, 26})  # invalid argument, not supported, no function, version, deprecated
LOST_CODES = frozenset({15, 28})  # GPU is lost, GPU not found
NO_PERMISSION = 4
TIMEOUT = 10
VANISHED = "failed 28"  # NVML no longer counts the device

# A capability that is absent is asked again after this time: a driver may have been replaced under us.
ASK_AGAIN_SECONDS = 600.0
MAX_DEVICES = 64
MAX_EVENTS = 256  # per call of `events`; what remains is delivered by the next one

_BROKEN = {
    4: "this user may not use the driver: run as root or with access to /dev/nvidia*",
    9: "the NVIDIA kernel driver is not loaded: load it (modprobe nvidia), then start again",
    18: "kernel driver and libnvidia-ml.so.1 are of different versions, as after a driver update: "
    "reboot, or unload and load the driver",
}

_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class _Missing(Exception):
    """A call gave no value; the message is the reason."""


class _Lost(Exception):
    """The driver says that the device is gone; the message is the reason."""


class _Device:
    """One device as NVML last enumerated it, and what we remember of it between polls."""

    def __init__(self, index: int, handle: Any, pci_address: str) -> None:
        self.index = index
        self.handle = handle
        self.pci_address = pci_address
        self.vanished = False
        self.identity: DeviceIdentity | None = None
        self.absent: dict[Hashable, tuple[float, str]] = {}  # call -> ask again at, reason
        self.unwrapped: dict[str, tuple[int, int]] = {}  # field -> last raw value, sum of the wraps
        self.gpm: tuple[Any, Any] | None = None  # older and newer sample buffer
        self.gpm_at: float | None = None  # monotonic time of the newer one


class _Answers:
    """Values and reasons of one device and tier, map fields joined from their members."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self._members: dict[str, dict[str, str]] = {}

    def take(self, field: str, value: Any, member: str | None = None) -> None:
        """Keep a value; None was a sentinel."""
        if value is None:
            self.miss(field, "sentinel", member)
        elif member is None:
            self.values[field] = value
        else:
            self.values.setdefault(field, {})[member] = value

    def miss(self, field: str, reason: str, member: str | None = None) -> None:
        """Keep the reason why there is no value."""
        if member is None:
            self.missing[field] = reason
        else:
            self._members.setdefault(field, {})[member] = reason

    def settle(self) -> None:
        """Give maps without any member a reason; name members that failed beside others that answered."""
        for field, reasons in self._members.items():
            told = {member: reason for member, reason in reasons.items() if reason != "unsupported"}
            if field not in self.values:
                self.missing[field] = next(iter(told.values()), "unsupported")
            else:
                self.missing.update({f"{field}.{member}": reason for member, reason in told.items()})


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
        self._devices: dict[str, _Device] = {}  # by PCI address, in index order
        self._event_set: Any = None
        self._events_unsupported = False
        self._extras: dict[Tier, tuple[Callable[[_Device, _Answers], None], ...]] = {
            Tier.FAST: (),
            Tier.MIDDLE: (self._ecc_places, self._links, self._processes),
            Tier.SLOW: (self._fabric, self._sram, self._retired_pages, self._gpm),
        }

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

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, library and binding, as far as they answer."""
        from importlib.metadata import PackageNotFoundError, version

        found = {}
        for name, function in (("driver", "nvmlSystemGetDriverVersion"), ("nvml", "nvmlSystemGetNVMLVersion")):
            try:
                text = _text(getattr(self._nvml, function)())
            except self._nvml.NVMLError:
                continue
            if text is not None:
                found[name] = text
        with suppress(PackageNotFoundError):  # a copy of pynvml.py beside the program
            found["nvidia-ml-py"] = version("nvidia-ml-py")
        return found

    def identify(self) -> list[DeviceIdentity]:
        """Enumerate again and return who is there; a lost device that NVML still counts keeps its known identity."""
        present = self._enumerate()
        serials = Counter(self._ask_text(device, "nvmlDeviceGetSerial")[0] for device in present)
        for device in present:
            fresh = self._identity(device, serials)
            if fresh is not None:
                device.identity = fresh
        return [device.identity for device in present if device.identity is not None]

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read one tier of every device ever enumerated; those that NVML no longer shows are LOST."""
        if not self._devices:
            self._enumerate()
        return [self._sample(device, tier) for device in self._devices.values()]

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

    def _enumerate(self) -> list[_Device]:
        """Bring the devices up to date and return those that NVML counts now, in index order."""
        nvml = self._nvml
        try:
            total = min(nvml.nvmlDeviceGetCount(), MAX_DEVICES)
        except nvml.NVMLError as error:
            raise LibraryBroken(f"NVML does not count its devices (code {error.value})") from None
        present: dict[int, _Device] = {}
        for index in range(total):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                address = _pci_address(nvml.nvmlDeviceGetPciInfo(handle))
            except nvml.NVMLError:
                continue
            device = self._devices.get(address)
            if device is None:
                device = self._devices[address] = _Device(index, handle, address)
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

    def _identity(self, device: _Device, serials: Counter[str | None]) -> DeviceIdentity | None:
        texts = {
            "serial": "nvmlDeviceGetSerial",
            "uuid": "nvmlDeviceGetUUID",
            "board_part_number": "nvmlDeviceGetBoardPartNumber",
            "vbios": "nvmlDeviceGetVbiosVersion",
            "model": "nvmlDeviceGetName",
        }
        answers = _Answers()
        try:
            for field, function in texts.items():
                text, reason = self._ask_text(device, function)
                answers.take(field, text) if text is not None else answers.miss(field, reason)
            for member, function in {
                "inforom": "nvmlDeviceGetInforomImageVersion",
                "gsp": "nvmlDeviceGetGspFirmwareVersion",
            }.items():
                text, reason = self._ask_text(device, function)
                answers.take("firmware", text, member) if text is not None else answers.miss("firmware", reason, member)
            self._put(device, answers, "architecture", "nvmlDeviceGetArchitecture", _architecture)
            self._put(device, answers, "slot", "nvmlDeviceGetModuleId", str)
            self._put(device, answers, "numa_node", "nvmlDeviceGetNumaNodeId", int)
            self._put(
                device, answers, "memory_total_bytes", "nvmlDeviceGetMemoryInfo", lambda m: count(m.total), 0x02000028
            )
            self._fabric_domain(device, answers)
        except _Lost:
            return None
        if not answers.values:
            return None
        driver = self.versions().get("driver")
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

    def _sample(self, device: _Device, tier: Tier) -> DeviceSample:
        if device.vanished:
            return _lost(device, tier, VANISHED)
        answers = _Answers()
        try:
            for call in CALLS[tier]:
                self._fill(device, answers, call)
            for batch in BATCHES[tier]:
                self._batch(device, answers, batch)
            for extra in self._extras[tier]:
                extra(device, answers)
        except _Lost as lost:
            return _lost(device, tier, str(lost))
        answers.settle()
        failed = any(reason.startswith("failed") for reason in answers.missing.values())
        state = DeviceState.UNREADABLE if failed and not answers.values else DeviceState.OK
        return DeviceSample(pci_address=device.pci_address, state=state, values=answers.values, missing=answers.missing)

    def _fill(self, device: _Device, answers: _Answers, call: Call) -> None:
        try:
            decoded = call.decode(self._call(device, call.function, *call.arguments))
        except _Missing as missing:
            for field in call.fields:
                answers.miss(field, str(missing))
            return
        for field, value in zip(call.fields, decoded, strict=True):
            answers.take(field, value)

    def _call(self, device: _Device, function: str, *arguments: Any, key: Hashable = None) -> Any:
        """Make one call, or raise _Missing or _Lost; ``key`` names it where the arguments cannot."""
        key = key or (function, arguments)
        known = device.absent.get(key)
        if known is not None and self._clock() < known[0]:
            raise _Missing(known[1])
        ask = getattr(self._nvml, function, None)
        if ask is None:  # a binding older than the function
            raise _Missing(self._reason(device, key, 13))
        start = time.perf_counter() if self._meter else 0.0
        try:
            return ask(device.handle, *arguments)
        except self._nvml.NVMLError as error:
            raise _Missing(self._reason(device, key, error.value)) from None
        except UnicodeDecodeError:
            raise _Missing("sentinel") from None
        finally:
            if self._meter:
                shown = key if isinstance(key, str) else f"{function}{arguments or ''}"
                self._meter(shown, time.perf_counter() - start)

    def _reason(self, device: _Device, key: Hashable, code: int) -> str:
        """Return the reason word of a return code, remembering what is absent; raises _Lost."""
        if code in LOST_CODES:
            raise _Lost(f"failed {code}")
        if code not in UNSUPPORTED_CODES and code != NO_PERMISSION:
            return f"failed {code}"
        reason = "permission" if code == NO_PERMISSION else "unsupported"
        device.absent[key] = (self._clock() + ASK_AGAIN_SECONDS, reason)
        return reason

    def _put(
        self,
        device: _Device,
        answers: _Answers,
        field: str,
        function: str,
        decode: Callable[[Any], Any],
        *arguments: Any,
    ) -> None:
        try:
            answers.take(field, decode(self._call(device, function, *arguments)))
        except _Missing as missing:
            answers.miss(field, str(missing))

    def _ask_text(self, device: _Device, function: str) -> tuple[str | None, str]:
        try:
            return _text(self._call(device, function)), "sentinel"
        except _Missing as missing:
            return None, str(missing)
        except _Lost as lost:
            return None, str(lost)

    def _batch(self, device: _Device, answers: _Answers, batch: Batch, link: int | None = None) -> None:
        """Ask the values of a batch that are not known to be absent; ``link`` is the scope of NVLink fields."""
        scope = link or 0
        wanted = []
        for value in batch.values:
            known = device.absent.get((value.id, scope))
            if known is not None and self._clock() < known[0]:
                answers.miss(value.field, known[1], _member(value.member, link))
            else:
                wanted.append(value)
        if not wanted:
            return
        try:
            raws = self._call(
                device,
                "nvmlDeviceGetFieldValues",
                [(value.id, scope) for value in wanted],
                key=f"nvmlDeviceGetFieldValues({batch.name})",
            )
        except _Missing as missing:
            for value in wanted:
                answers.miss(value.field, str(missing), _member(value.member, link))
            return
        for value, raw in zip(wanted, raws, strict=True):
            member = _member(value.member, link)
            if raw.nvmlReturn:
                answers.miss(value.field, self._reason(device, (value.id, scope), raw.nvmlReturn), member)
            elif raw.valueType >= len(_VALUE_MEMBERS):
                answers.miss(value.field, "sentinel", member)
            else:
                number = getattr(raw.value, _VALUE_MEMBERS[raw.valueType])
                if value.field in WRAPPING:
                    number = _unwrap(device, value.field, number)
                answers.take(value.field, value.decode(number), member)

    def _ecc_places(self, device: _Device, answers: _Answers) -> None:
        for place, where in ECC_PLACES.items():
            for kind, severity in ECC_KINDS.items():
                member = f"{where}.{severity}"
                try:
                    raw = self._call(device, "nvmlDeviceGetMemoryErrorCounter", kind, 0, place)
                    answers.take("ecc_blocks_total", count(raw), member)
                except _Missing as missing:
                    answers.miss("ecc_blocks_total", str(missing), member)

    def _links(self, device: _Device, answers: _Answers) -> None:
        for link in range(LINKS):
            try:
                answers.take("links", count(self._call(device, "nvmlDeviceGetNvLinkState", link)), str(link))
            except _Missing as missing:
                answers.miss("links", str(missing), str(link))
        states = answers.values.get("links")
        if not states:
            answers.settle()
            for field in ("links_up", "links_total", "link_errors_total", "link_bytes_total", "link_bit_error_ratio"):
                answers.miss(field, answers.missing["links"])
            return
        answers.take("links_up", sum(1 for state in states.values() if state))
        answers.take("links_total", len(states))
        for link in map(int, states):
            for kind, name in enumerate(LINK_COUNTERS):
                member = f"{link}.{name}"
                try:
                    raw = self._call(device, "nvmlDeviceGetNvLinkErrorCounter", link, kind)
                    answers.take("link_errors_total", count(raw), member)
                except _Missing as missing:
                    answers.miss("link_errors_total", str(missing), member)
            self._batch(device, answers, Batch("links", LINK_VALUES), link)

    def _processes(self, device: _Device, answers: _Answers) -> None:
        try:
            listed = self._call(device, "nvmlDeviceGetComputeRunningProcesses")
        except _Missing as missing:
            answers.miss("processes", str(missing))
            answers.miss("process_memory_bytes", str(missing))
            return
        answers.take("processes", len(listed))
        used = [process.usedGpuMemory for process in listed]
        # None: the driver does not know, as for processes of another container.
        answers.take("process_memory_bytes", None if None in used else sum(used))

    def _fabric_info(self, device: _Device) -> Any:
        for version in ("3", "2"):
            struct = getattr(self._nvml, f"c_nvmlGpuFabricInfo_v{version}_t", None)
            if struct is None:
                continue
            info = struct()
            try:
                self._call(
                    device,
                    "nvmlDeviceGetGpuFabricInfoV",
                    ctypes.byref(info),
                    key=f"nvmlDeviceGetGpuFabricInfoV({version})",
                )
            except _Missing as missing:
                if version == "2" or str(missing) != "unsupported":
                    raise
            else:
                return info
        raise _Missing("unsupported")

    def _fabric(self, device: _Device, answers: _Answers) -> None:
        try:
            info = self._fabric_info(device)
        except _Missing as missing:
            for field in ("fabric_state", "fabric_status", "fabric_health"):
                answers.miss(field, str(missing))
            return
        state = info.state
        answers.take("fabric_state", FABRIC_STATES[state] if state < len(FABRIC_STATES) else str(state))
        if state == 0:
            answers.miss("fabric_status", "unsupported")
            answers.miss("fabric_health", "unsupported")
        else:
            answers.take("fabric_status", count(info.status))
            answers.take("fabric_health", fabric_health(info.healthMask))

    def _fabric_domain(self, device: _Device, answers: _Answers) -> None:
        try:
            info = self._fabric_info(device)
        except _Missing as missing:
            answers.miss("fabric_domain", str(missing))
            return
        if FABRIC_STATES.index("completed") == info.state:
            answers.take("fabric_domain", f"{bytes(info.clusterUuid).hex()}.{info.cliqueId}")
        else:
            answers.miss("fabric_domain", "not_yet" if info.state else "unsupported")

    def _sram(self, device: _Device, answers: _Answers) -> None:
        field = "sram_threshold_exceeded"
        struct = getattr(self._nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if struct is None:
            answers.miss(field, "unsupported")
            return
        status = struct()
        try:
            self._call(
                device, "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status), key="nvmlDeviceGetSramEccErrorStatus"
            )
            answers.take(field, flag(status.bThresholdExceeded))
        except _Missing as missing:
            answers.miss(field, str(missing))

    def _retired_pages(self, device: _Device, answers: _Answers) -> None:
        try:
            # Causes: 0 several single-bit errors, 1 a double-bit error.
            pages = sum(len(self._call(device, "nvmlDeviceGetRetiredPages", cause)) for cause in (0, 1))
            answers.take("bad_pages_reserved", pages)
        except _Missing as missing:
            answers.miss("bad_pages_reserved", str(missing))

    def _gpm(self, device: _Device, answers: _Answers) -> None:
        """Compare the sample kept from the last time with one taken now; never waits for the interval."""
        try:
            metrics = self._gpm_metrics(device)
        except _Missing as missing:
            for field in GPM_METRICS.values():
                answers.miss(field, str(missing))
            return
        for metric, (_, field) in zip(metrics, GPM_METRICS.items(), strict=True):
            if metric.nvmlReturn:
                answers.miss(field, self._reason(device, ("gpm", metric.metricId), metric.nvmlReturn))
            else:
                answers.take(field, percent(metric.value))

    def _gpm_metrics(self, device: _Device) -> list[Any]:
        nvml = self._nvml
        if device.gpm is None:
            support = self._call(device, "nvmlGpmQueryDeviceSupport")
            if not support.isSupportedDevice:
                raise _Missing(self._reason(device, ("nvmlGpmQueryDeviceSupport", ()), 3))
            try:
                device.gpm = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
            except nvml.NVMLError as error:
                raise _Missing(f"failed {error.value}") from None
        older, newer = device.gpm
        if device.gpm_at is not None and self._clock() - device.gpm_at < GPM_MIN_SECONDS:
            raise _Missing("not_yet")
        self._call(device, "nvmlGpmSampleGet", older, key="nvmlGpmSampleGet")
        first = device.gpm_at is None
        device.gpm, device.gpm_at = (newer, older), self._clock()
        if first:
            raise _Missing("not_yet")
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = newer, older
        for slot, metric_id in enumerate(GPM_METRICS):
            request.metrics[slot].metricId = metric_id
        try:
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError as error:
            raise _Missing(self._reason(device, "nvmlGpmMetricsGet", error.value)) from None
        return list(request.metrics[: len(GPM_METRICS)])

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


def _lost(device: _Device, tier: Tier, reason: str) -> DeviceSample:
    reasons = dict.fromkeys(TIER_FIELDS[tier], reason)
    return DeviceSample(pci_address=device.pci_address, state=DeviceState.LOST, values={}, missing=reasons)


def _member(member: str | None, link: int | None) -> str | None:
    return member if link is None else f"{link}.{member}"


def _unwrap(device: _Device, field: str, raw: int) -> int:
    """Continue a counter of 32 bits; more than one wrap between two polls cannot be seen."""
    last, wrapped = device.unwrapped.get(field, (raw, 0))
    if raw < last:
        wrapped += U32_MAX + 1
    device.unwrapped[field] = (raw, wrapped)
    return wrapped + raw


def _architecture(raw: Any) -> str | None:
    number = count(raw)
    return None if number is None else ARCHITECTURES.get(number, str(number))


def _text(raw: Any) -> str | None:
    """Return a bounded text of an answer that some bindings give as bytes; None where it says nothing."""
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    text = "".join(c for c in text if c.isprintable()).strip()[:128]
    return None if text.lower() in {"", "0", "n/a", "[n/a]", "unknown", "unspecified"} else text


def _pci_address(info: Any) -> str:
    """Return dddd:bb:dd.f of a PciInfo; the bus id has a domain of eight digits and may be bytes."""
    bus_id = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else info.busId
    function = bus_id.rpartition(".")[2]
    return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.{function if function.isdigit() else 0}"
