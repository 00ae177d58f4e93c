"""Asks NVML about one device: the calls of a tier, what is remembered of absent ones, and why a field has no value."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Hashable
from typing import Any

from collectors.device import DeviceIdentity, DeviceSample, Tier
from collectors.nvidia_fields import (
    BATCHES,
    CALLS,
    ECC_KINDS,
    ECC_PLACES,
    FABRIC_STATES,
    GPM_METRICS,
    GPM_MIN_SECONDS,
    LINK_COUNTERS,
    LINK_VALUES,
    LINKS,
    TIER_FIELDS,
    U32_MAX,
    WRAPPING,
    Batch,
    Call,
    count,
    fabric_health,
    flag,
    percent,
)
from passmuster.records import DeviceState

# Codes of nvmlReturn_t by what they mean for us.
UNSUPPORTED_CODES = frozenset({2, 3, 13, 25, 26})  # invalid argument, not supported, no function, version, deprecated
LOST_CODES = frozenset({15, 28})  # GPU is lost, GPU not found
NO_PERMISSION = 4
VANISHED = "failed 28"  # NVML no longer counts the device

# A capability that is absent is asked again after this time: a driver may have been replaced under us.
ASK_AGAIN_SECONDS = 600.0

_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class Missing(Exception):
    """A call gave no value; the message is the reason."""


class Lost(Exception):
    """The driver says that the device is gone; the message is the reason."""


class Device:
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


class Answers:
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


class NvmlReader:
    """Reads devices through an initialised pynvml module; ``clock`` and ``meter`` as in `NvidiaBackend`."""

    def __init__(self, nvml: Any, clock: Callable[[], float], meter: Callable[[str, float], None] | None) -> None:
        self._nvml = nvml
        self._clock = clock
        self._meter = meter
        self._extras: dict[Tier, tuple[Callable[[Device, Answers], None], ...]] = {
            Tier.FAST: (),
            Tier.MIDDLE: (self._ecc_places, self._links, self._processes),
            Tier.SLOW: (self._fabric, self._sram, self._retired_pages, self._gpm),
        }

    def sample(self, device: Device, tier: Tier) -> DeviceSample:
        """Read one tier; a device that is gone is LOST, with a reason for each field."""
        if device.vanished:
            return _lost(device, tier, VANISHED)
        answers = Answers()
        try:
            for call in CALLS[tier]:
                self._fill(device, answers, call)
            for batch in BATCHES[tier]:
                self._batch(device, answers, batch)
            for extra in self._extras[tier]:
                extra(device, answers)
        except Lost as lost:
            return _lost(device, tier, str(lost))
        answers.settle()
        failed = any(reason.startswith("failed") for reason in answers.missing.values())
        state = DeviceState.UNREADABLE if failed and not answers.values else DeviceState.OK
        return DeviceSample(pci_address=device.pci_address, state=state, values=answers.values, missing=answers.missing)

    def _fill(self, device: Device, answers: Answers, call: Call) -> None:
        try:
            decoded = call.decode(self.call(device, call.function, *call.arguments))
        except Missing as missing:
            for field in call.fields:
                answers.miss(field, str(missing))
            return
        for field, value in zip(call.fields, decoded, strict=True):
            answers.take(field, value)

    def call(self, device: Device, function: str, *arguments: Any, key: Hashable = None) -> Any:
        """Make one call, or raise Missing or Lost; ``key`` names it where the arguments cannot."""
        key = key or (function, arguments)
        known = device.absent.get(key)
        if known is not None and self._clock() < known[0]:
            raise Missing(known[1])
        ask = getattr(self._nvml, function, None)
        if ask is None:  # a binding older than the function
            raise Missing(self._reason(device, key, 13))
        start = time.perf_counter() if self._meter else 0.0
        try:
            return ask(device.handle, *arguments)
        except self._nvml.NVMLError as error:
            raise Missing(self._reason(device, key, error.value)) from None
        except UnicodeDecodeError:
            raise Missing("sentinel") from None
        finally:
            if self._meter:
                shown = key if isinstance(key, str) else f"{function}{arguments or ''}"
                self._meter(shown, time.perf_counter() - start)

    def _reason(self, device: Device, key: Hashable, code: int) -> str:
        """Return the reason word of a return code, remembering what is absent; raises Lost."""
        if code in LOST_CODES:
            raise Lost(f"failed {code}")
        if code not in UNSUPPORTED_CODES and code != NO_PERMISSION:
            return f"failed {code}"
        reason = "permission" if code == NO_PERMISSION else "unsupported"
        device.absent[key] = (self._clock() + ASK_AGAIN_SECONDS, reason)
        return reason

    def put(
        self,
        device: Device,
        answers: Answers,
        field: str,
        function: str,
        decode: Callable[[Any], Any],
        *arguments: Any,
    ) -> None:
        """Make one call and keep the value of one field, or the reason."""
        try:
            answers.take(field, decode(self.call(device, function, *arguments)))
        except Missing as missing:
            answers.miss(field, str(missing))

    def text(self, device: Device, function: str) -> tuple[str | None, str]:
        """Return a text answer, or None and the reason; never raises."""
        try:
            return clean_text(self.call(device, function)), "sentinel"
        except Missing as missing:
            return None, str(missing)
        except Lost as lost:
            return None, str(lost)

    def _batch(self, device: Device, answers: Answers, batch: Batch, link: int | None = None) -> None:
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
            raws = self.call(
                device,
                "nvmlDeviceGetFieldValues",
                [(value.id, scope) for value in wanted],
                key=f"nvmlDeviceGetFieldValues({batch.name})",
            )
        except Missing as missing:
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

    def _ecc_places(self, device: Device, answers: Answers) -> None:
        for place, where in ECC_PLACES.items():
            for kind, severity in ECC_KINDS.items():
                member = f"{where}.{severity}"
                try:
                    raw = self.call(device, "nvmlDeviceGetMemoryErrorCounter", kind, 0, place)
                    answers.take("ecc_blocks_total", count(raw), member)
                except Missing as missing:
                    answers.miss("ecc_blocks_total", str(missing), member)

    def _links(self, device: Device, answers: Answers) -> None:
        for link in range(LINKS):
            try:
                answers.take("links", count(self.call(device, "nvmlDeviceGetNvLinkState", link)), str(link))
            except Missing as missing:
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
                    raw = self.call(device, "nvmlDeviceGetNvLinkErrorCounter", link, kind)
                    answers.take("link_errors_total", count(raw), member)
                except Missing as missing:
                    answers.miss("link_errors_total", str(missing), member)
            self._batch(device, answers, Batch("links", LINK_VALUES), link)

    def _processes(self, device: Device, answers: Answers) -> None:
        try:
            listed = self.call(device, "nvmlDeviceGetComputeRunningProcesses")
        except Missing as missing:
            answers.miss("processes", str(missing))
            answers.miss("process_memory_bytes", str(missing))
            return
        answers.take("processes", len(listed))
        used = [process.usedGpuMemory for process in listed]
        # None: the driver does not know, as for processes of another container.
        answers.take("process_memory_bytes", None if None in used else sum(used))

    def _fabric_info(self, device: Device) -> Any:
        for version in ("3", "2"):
            struct = getattr(self._nvml, f"c_nvmlGpuFabricInfo_v{version}_t", None)
            if struct is None:
                continue
            info = struct()
            try:
                self.call(
                    device,
                    "nvmlDeviceGetGpuFabricInfoV",
                    ctypes.byref(info),
                    key=f"nvmlDeviceGetGpuFabricInfoV({version})",
                )
            except Missing as missing:
                if version == "2" or str(missing) != "unsupported":
                    raise
            else:
                return info
        raise Missing("unsupported")

    def _fabric(self, device: Device, answers: Answers) -> None:
        try:
            info = self._fabric_info(device)
        except Missing as missing:
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

    def fabric_domain(self, device: Device, answers: Answers) -> None:
        """Keep the NVLink domain: cluster and clique, once the fabric has formed."""
        try:
            info = self._fabric_info(device)
        except Missing as missing:
            answers.miss("fabric_domain", str(missing))
            return
        if FABRIC_STATES.index("completed") == info.state:
            answers.take("fabric_domain", f"{bytes(info.clusterUuid).hex()}.{info.cliqueId}")
        else:
            answers.miss("fabric_domain", "not_yet" if info.state else "unsupported")

    def _sram(self, device: Device, answers: Answers) -> None:
        field = "sram_threshold_exceeded"
        struct = getattr(self._nvml, "c_nvmlEccSramErrorStatus_v1_t", None)
        if struct is None:
            answers.miss(field, "unsupported")
            return
        status = struct()
        try:
            self.call(
                device, "nvmlDeviceGetSramEccErrorStatus", ctypes.byref(status), key="nvmlDeviceGetSramEccErrorStatus"
            )
            answers.take(field, flag(status.bThresholdExceeded))
        except Missing as missing:
            answers.miss(field, str(missing))

    def _retired_pages(self, device: Device, answers: Answers) -> None:
        try:
            # Causes: 0 several single-bit errors, 1 a double-bit error.
            pages = sum(len(self.call(device, "nvmlDeviceGetRetiredPages", cause)) for cause in (0, 1))
            answers.take("bad_pages_reserved", pages)
        except Missing as missing:
            answers.miss("bad_pages_reserved", str(missing))

    def _gpm(self, device: Device, answers: Answers) -> None:
        """Compare the sample kept from the last time with one taken now; never waits for the interval."""
        try:
            metrics = self._gpm_metrics(device)
        except Missing as missing:
            for field in GPM_METRICS.values():
                answers.miss(field, str(missing))
            return
        for metric, (_, field) in zip(metrics, GPM_METRICS.items(), strict=True):
            if metric.nvmlReturn:
                answers.miss(field, self._reason(device, ("gpm", metric.metricId), metric.nvmlReturn))
            else:
                answers.take(field, percent(metric.value))

    def _gpm_metrics(self, device: Device) -> list[Any]:
        nvml = self._nvml
        if device.gpm is None:
            support = self.call(device, "nvmlGpmQueryDeviceSupport")
            if not support.isSupportedDevice:
                raise Missing(self._reason(device, ("nvmlGpmQueryDeviceSupport", ()), 3))
            try:
                device.gpm = (nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc())
            except nvml.NVMLError as error:
                raise Missing(f"failed {error.value}") from None
        older, newer = device.gpm
        if device.gpm_at is not None and self._clock() - device.gpm_at < GPM_MIN_SECONDS:
            raise Missing("not_yet")
        self.call(device, "nvmlGpmSampleGet", older, key="nvmlGpmSampleGet")
        first = device.gpm_at is None
        device.gpm, device.gpm_at = (newer, older), self._clock()
        if first:
            raise Missing("not_yet")
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = newer, older
        for slot, metric_id in enumerate(GPM_METRICS):
            request.metrics[slot].metricId = metric_id
        try:
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError as error:
            raise Missing(self._reason(device, "nvmlGpmMetricsGet", error.value)) from None
        return list(request.metrics[: len(GPM_METRICS)])


def _lost(device: Device, tier: Tier, reason: str) -> DeviceSample:
    reasons = dict.fromkeys(TIER_FIELDS[tier], reason)
    return DeviceSample(pci_address=device.pci_address, state=DeviceState.LOST, values={}, missing=reasons)


def _member(member: str | None, link: int | None) -> str | None:
    return member if link is None else f"{link}.{member}"


def _unwrap(device: Device, field: str, raw: int) -> int:
    """Continue a counter of 32 bits; more than one wrap between two polls cannot be seen."""
    last, wrapped = device.unwrapped.get(field, (raw, 0))
    if raw < last:
        wrapped += U32_MAX + 1
    device.unwrapped[field] = (raw, wrapped)
    return wrapped + raw


def clean_text(raw: Any) -> str | None:
    """Return a bounded text of an answer that some bindings give as bytes; None where it says nothing."""
    text = raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)
    text = "".join(c for c in text if c.isprintable()).strip()[:128]
    return None if text.lower() in {"", "0", "n/a", "[n/a]", "unknown", "unspecified"} else text
