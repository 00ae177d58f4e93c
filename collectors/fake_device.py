"""A `DeviceBackend` without hardware for tests of one's own: it answers what a scenario text says.

The text is that of `collectors.scenario`. The same one drives the C doubles of the vendor libraries, and one contract
test holds both to the same answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from collectors import amd_reading
from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, LibraryAbsent, LibraryBroken, Tier
from collectors.fake_device_amd import AmdVoice
from collectors.nvidia_fields import (
    ARCHITECTURES,
    BATCHES,
    CALLS,
    ECC_KINDS,
    ECC_PLACES,
    EVENTS,
    FABRIC_STATES,
    GPM_METRICS,
    LINK_COUNTERS,
    LINK_VALUES,
    LINKS,
    TIER_FIELDS,
    U32_MAX,
    WRAPPING,
    XID_EVENT,
    count,
    fabric_health,
    flag,
    percent,
)
from collectors.scenario import BadScenario, ScenarioFile
from passmuster.records import DeviceState, Vendor

# Scenario key of each NVML call, and the names of its parts where the answer is a struct ("" for a plain list).
_KEYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nvmlDeviceGetTemperature": ("temp", ()),
    "nvmlDeviceGetPowerUsage": ("power_mw", ()),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_mw", ()),
    "nvmlDeviceGetClockInfo": ("clock_mhz", ()),
    "nvmlDeviceGetCurrentClocksEventReasons": ("clock_reasons", ()),
    "nvmlDeviceGetUtilizationRates": ("util", ("gpu", "memory")),
    "nvmlDeviceGetMemoryInfo": ("mem", ("total", "used", "reserved")),
    "nvmlDeviceGetTotalEccErrors": ("ecc", ()),
    "nvmlDeviceGetRemappedRows": ("remap", ("",)),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_mj", ()),
    "nvmlDeviceGetTemperatureThreshold": ("temp_threshold", ()),
    "nvmlDeviceGetMarginTemperature": ("temp_margin", ()),
    "nvmlDeviceGetMaxClockInfo": ("clock_max_mhz", ()),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pcie_gen", ()),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("pcie_gen_max", ()),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie_width", ()),
    "nvmlDeviceGetMaxPcieLinkWidth": ("pcie_width_max", ()),
    "nvmlDeviceGetEccMode": ("ecc_mode", ("",)),
    "nvmlDeviceGetMigMode": ("mig_mode", ("",)),
    "nvmlDeviceGetRowRemapperHistogram": ("remap_hist", ("max", "high", "partial", "low", "none")),
    "nvmlDeviceGetRepairStatus": ("repair", ("",)),
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": ("unrepairable", ()),
    "nvmlDeviceGetRetiredPagesPendingStatus": ("retired_pending", ()),
}
_IDENTITY: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "serial": ("nvmlDeviceGetSerial", "serial", str),
    "uuid": ("nvmlDeviceGetUUID", "uuid", str),
    "board_part_number": ("nvmlDeviceGetBoardPartNumber", "part_number", str),
    "vbios": ("nvmlDeviceGetVbiosVersion", "vbios", str),
    "model": ("nvmlDeviceGetName", "name", str),
    "architecture": ("nvmlDeviceGetArchitecture", "arch", lambda text: ARCHITECTURES.get(int(text, 0), text)),
    "slot": ("nvmlDeviceGetModuleId", "module_id", str),
    "numa_node": ("nvmlDeviceGetNumaNodeId", "numa_node", int),
}
_FIRMWARE = {
    "inforom": ("nvmlDeviceGetInforomImageVersion", "inforom"),
    "gsp": ("nvmlDeviceGetGspFirmwareVersion", "gsp"),
}
_UNSUPPORTED = {Vendor.NVIDIA: {2, 3, 13, 25, 26}, Vendor.AMD: {2, 3, 20, 40, 52}}
_LOST = {Vendor.NVIDIA: {15, 28}, Vendor.AMD: {31}}
_PERMISSION = {Vendor.NVIDIA: 4, Vendor.AMD: 10}
_VANISHED = "failed 28"
_ABSENT = {Vendor.NVIDIA: {12, 13}, Vendor.AMD: set[int]()}


class _Missing(amd_reading.Missing):
    """A call of the scenario gives no value; the message is the reason."""


class _Lost(amd_reading.Lost):
    """The scenario says that the device is gone."""


class _Answers:
    """Values and reasons of one device; a map field takes members."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}

    def put(
        self, field: str, member: str | None, decode: Callable[[Any], Any], ask: Callable[..., Any], *of: Any
    ) -> None:
        """Keep what ``decode`` makes of ``ask(*of)``, None being a sentinel, or the reason why there is nothing."""
        try:
            value = decode(ask(*of))
        except _Missing as missing:
            self.miss(field, member, str(missing))
            return
        if value is None:
            self.miss(field, member, "sentinel")
        elif member is None:
            self.values[field] = value
        else:
            self.values.setdefault(field, {})[member] = value

    def miss(self, field: str, member: str | None, reason: str) -> None:
        """Keep a reason; a member that is merely not supported is no news."""
        if member is None:
            self.missing[field] = reason
        elif reason != "unsupported":
            self.missing[f"{field}.{member}"] = reason

    def settle(self, fields: tuple[str, ...]) -> None:
        """Give every field without a value one reason; members are named only beside others that answered."""
        for field in fields:
            if field in self.values or field in self.missing:
                continue
            members = [name for name in self.missing if name.startswith(f"{field}.")]
            reasons = [self.missing.pop(name) for name in members]
            self.missing[field] = reasons[0] if reasons else "unsupported"


class FakeBackend:
    """`DeviceBackend` over a scenario file; the key ``vendor`` says whose library it plays.

    Delays really wait and hangs never return, as a driver's would. Unlike the real backends it remembers no absent
    capability, so a scenario may add one while the program runs.
    """

    def __init__(self, scenario: Path | str) -> None:
        self._file = ScenarioFile(Path(scenario))
        self.vendor = Vendor.NVIDIA
        self._known: dict[str, int] = {}  # PCI address -> index
        self._identities: dict[str, DeviceIdentity] = {}
        self._wrapped: dict[tuple[int, str], tuple[int, int]] = {}
        self._gpm_taken: set[int] = set()
        self._delivered = 0
        self._amd = AmdVoice(self._file.values, self._gate)

    def open(self) -> None:
        """Read the scenario. Raises LibraryAbsent without a file, LibraryBroken for init.error or a broken one."""
        if not self._file.path.exists():
            raise LibraryAbsent(f"no scenario at {self._file.path}")
        try:
            values = self._file.values()
            self.vendor = Vendor(values.get("vendor", Vendor.NVIDIA))
        except (BadScenario, ValueError) as error:
            raise LibraryBroken(str(error)) from None
        code = values.get("init.error")
        if code is not None:
            if int(code, 0) in _ABSENT[self.vendor]:
                raise LibraryAbsent(f"the scenario plays a host without the library (code {code})")
            raise LibraryBroken(f"the library does not start (code {code}): the scenario says init.error")

    def versions(self) -> dict[str, str]:
        """Return the versions that the scenario names."""
        keys = {"driver": "driver_version", "nvml": "nvml_version", "library": "lib_version"}
        values = self._file.values()
        return {name: values[key] for name, key in keys.items() if key in values}

    def identify(self) -> list[DeviceIdentity]:
        """Return the devices within gpu.count; a lost one keeps the identity that it had."""
        values = self._file.values()
        self._enumerate()
        if self.vendor is Vendor.AMD:
            present = {address: index for address, index in self._known.items() if index < self._count()}
            self._identities |= self._amd.identify(present)
            return [self._identities[address] for address in present if address in self._identities]
        serials = [values.get(f"gpu{index}.serial") for index in range(self._count())]
        found = []
        for address, index in self._known.items():
            if index >= self._count():
                continue
            with suppress(_Lost):
                self._identities[address] = self._identity(index, address, serials)
            if address in self._identities:
                found.append(self._identities[address])
        return found

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Answer one tier for every device ever seen."""
        if not self._known:
            self._enumerate()
        return [self._sample(index, address, tier) for address, index in self._known.items()]

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Return the events not yet told, waiting for the first one at most ``timeout_seconds``."""
        found: list[DriverEvent] = []
        until = time.monotonic() + timeout_seconds
        while True:
            values = self._file.values()
            while (text := values.get(f"event.{self._delivered + 1}")) is not None:
                self._delivered += 1
                event = self._event(text)
                if event is not None:
                    found.append(event)
            if found or time.monotonic() >= until:
                return found
            time.sleep(0.005)

    def close(self) -> None:
        """Forget the devices; harmless when not open."""
        self._known = {}

    def _count(self) -> int:
        return max(0, min(64, int(self._file.values().get("gpu.count", "0"))))

    def _enumerate(self) -> None:
        values = self._file.values()
        for index in range(self._count()):
            key = f"gpu{index}.bdf"
            try:
                self._gate(index, "nvmlDeviceGetHandleByIndex_v2")
            except (_Missing, _Lost):
                continue
            if key in values:
                self._known.setdefault(_pci_address(values[key]), index)

    def _gate(self, index: int, function: str) -> None:
        """Hang, wait or refuse as the scenario says for this device and function."""
        values = self._file.values()

        def of(what: str) -> str | None:
            return values.get(f"gpu{index}.{what}.{function}", values.get(f"gpu{index}.{what}"))

        if int(of("hang") or "0", 0):
            threading.Event().wait()
        time.sleep(int(of("delay_ms") or "0", 0) / 1000)
        code = of("error")
        if code is not None:
            self._refuse(int(code, 0))

    def _refuse(self, code: int) -> None:
        """Raise what a return code means; 0 means nothing."""
        if code == 0:
            return
        if code in _LOST[self.vendor]:
            raise _Lost(f"failed {code}")
        if code in _UNSUPPORTED[self.vendor]:
            raise _Missing("unsupported")
        raise _Missing("permission" if code == _PERMISSION[self.vendor] else f"failed {code}")

    def _text(self, index: int, function: str, key: str) -> str:
        self._gate(index, function)
        text = self._file.values().get(f"gpu{index}.{key}")
        if text is None:
            raise _Missing("unsupported")
        return text

    def _number(self, index: int, function: str, key: str) -> int:
        return int(self._text(index, function, key), 0)

    def _list(self, index: int, function: str, key: str) -> list[int]:
        return [int(part, 0) for part in self._text(index, function, key).split(",")]

    def _identity(self, index: int, address: str, serials: list[str | None]) -> DeviceIdentity:
        answers = self._nvidia_identity(index)
        values = answers.values
        serial = values.get("serial")
        unique = serial if serials.count(serial) == 1 else None
        return DeviceIdentity(
            device_id=unique or values.get("uuid") or f"pci-{address}",
            pci_address=address,
            index=index,
            vendor=self.vendor,
            model=values.pop("model", ""),
            values=values,
            missing=answers.missing,
        )

    def _nvidia_identity(self, index: int) -> _Answers:
        answers = _Answers()
        for field, (function, key, decode) in _IDENTITY.items():
            answers.put(field, None, decode, self._text, index, function, key)
        for member, (function, key) in _FIRMWARE.items():
            answers.put("firmware", member, str, self._text, index, function, key)
        memory = self._list, index, "nvmlDeviceGetMemoryInfo_v2", "mem"
        answers.put("memory_total_bytes", None, lambda numbers: count(numbers[0]), *memory)
        answers.put("fabric_domain", None, str, self._fabric_domain, index)
        driver = self._file.values().get("driver_version")
        if driver:
            answers.values["driver"] = driver
        answers.settle(("firmware", "driver"))
        return answers

    def _fabric(self, index: int) -> list[int]:
        try:
            return self._list(index, "nvmlDeviceGetGpuFabricInfoV", "fabric")
        except _Missing as missing:
            if str(missing) != "unsupported" or f"gpu{index}.fabric" in self._file.values():
                raise
            return [0, 0, 0, 0]  # the real library answers so where there is no fabric

    def _fabric_domain(self, index: int) -> str:
        state, _, clique, _ = self._fabric(index)
        if state != FABRIC_STATES.index("completed"):
            raise _Missing("not_yet" if state else "unsupported")
        return f"{'ab' * 16}.{clique}"

    def _sample(self, index: int, address: str, tier: Tier) -> DeviceSample:
        if self.vendor is Vendor.AMD:
            return self._amd.sample(index, address, tier, index < self._count())
        fields = TIER_FIELDS[tier]
        answers = _Answers()
        try:
            self._present(index)
            self._nvidia(index, tier, answers)
        except _Lost as lost:
            reasons = dict.fromkeys(fields, str(lost))
            return DeviceSample(pci_address=address, state=DeviceState.LOST, values={}, missing=reasons)
        answers.settle(fields)
        failed = any(reason.startswith("failed") for reason in answers.missing.values())
        state = DeviceState.UNREADABLE if failed and not answers.values else DeviceState.OK
        return DeviceSample(pci_address=address, state=state, values=answers.values, missing=answers.missing)

    def _present(self, index: int) -> None:
        if index >= self._count():
            raise _Lost(_VANISHED)

    def _nvidia(self, index: int, tier: Tier, answers: _Answers) -> None:
        for call in CALLS[tier]:
            try:
                values = call.decode(self._raw(index, call.function, call.arguments))
            except _Missing as missing:
                answers.missing.update(dict.fromkeys(call.fields, str(missing)))
                continue
            for field, value in zip(call.fields, values, strict=True):
                answers.put(field, None, lambda v: v, lambda v: v, value)
        for batch in BATCHES[tier]:
            for value in batch.values:
                answers.put(value.field, value.member, value.decode, self._field, index, value.id, value.field)
        if tier is Tier.MIDDLE:
            self._middle_extras(index, answers)
        if tier is Tier.SLOW:
            self._slow_extras(index, answers)

    def _raw(self, index: int, function: str, arguments: tuple[int, ...]) -> Any:
        key, parts = _KEYS[function]
        if function == "nvmlDeviceGetMemoryInfo":
            function, arguments = "nvmlDeviceGetMemoryInfo_v2", ()
        numbers = self._list(index, function, ".".join((key, *map(str, arguments))))
        if not parts:
            return numbers[0]
        return numbers if parts == ("",) else SimpleNamespace(**dict(zip(parts, numbers, strict=True)))

    def _field(self, index: int, field_id: int, field: str = "", scope: int | None = None) -> int:
        self._gate(index, "nvmlDeviceGetFieldValues")
        values = self._file.values()

        def of(what: str) -> str | None:
            return values.get(f"gpu{index}.{what}.{field_id}.{scope or 0}", values.get(f"gpu{index}.{what}.{field_id}"))

        self._refuse(int(of("field_error") or "0", 0))
        text = of("field")
        if text is None:
            raise _Missing("unsupported")
        raw = int(text, 0)
        if field not in WRAPPING:
            return raw
        last, wraps = self._wrapped.get((index, field), (raw, 0))
        wraps += U32_MAX + 1 if raw < last else 0
        self._wrapped[index, field] = (raw, wraps)
        return wraps + raw

    def _middle_extras(self, index: int, answers: _Answers) -> None:
        for place, where in ECC_PLACES.items():
            for kind, severity in ECC_KINDS.items():
                ask = self._number, index, "nvmlDeviceGetMemoryErrorCounter", f"ecc.{kind}.0.{place}"
                answers.put("ecc_blocks_total", f"{where}.{severity}", count, *ask)
        for link in range(LINKS):
            ask = self._number, index, "nvmlDeviceGetNvLinkState", f"nvlink_state.{link}"
            answers.put("links", str(link), count, *ask)
        states = answers.values.get("links", {})
        if states:
            answers.values["links_up"] = sum(1 for state in states.values() if state)
            answers.values["links_total"] = len(states)
        for link in map(int, states):
            for kind, name in enumerate(LINK_COUNTERS):
                ask = self._number, index, "nvmlDeviceGetNvLinkErrorCounter", f"nvlink_err.{link}.{kind}"
                answers.put("link_errors_total", f"{link}.{name}", count, *ask)
            for value in LINK_VALUES:
                answers.put(value.field, f"{link}.{value.member}", value.decode, self._field, index, value.id, "", link)
        listed = self._text, index, "nvmlDeviceGetComputeRunningProcesses_v3", "procs"
        answers.put("processes", None, lambda text: len(_processes(text)), *listed)
        answers.put("process_memory_bytes", None, _memory, *listed)

    def _slow_extras(self, index: int, answers: _Answers) -> None:
        answers.put("fabric_state", None, lambda fabric: FABRIC_STATES[fabric[0]], self._fabric, index)
        if answers.values.get("fabric_state") != "not_supported":
            answers.put("fabric_status", None, lambda fabric: fabric[1], self._fabric, index)
            answers.put("fabric_health", None, lambda fabric: fabric_health(fabric[3]), self._fabric, index)
        ask = self._number, index, "nvmlDeviceGetSramEccErrorStatus", "sram_threshold"
        answers.put("sram_threshold_exceeded", None, flag, *ask)
        answers.put("bad_pages_reserved", None, int, self._retired, index)
        for metric, field in GPM_METRICS.items():
            answers.put(field, None, percent, self._gpm, index, metric)
        self._gpm_taken.add(index)

    def _retired(self, index: int) -> int:
        return sum(self._number(index, "nvmlDeviceGetRetiredPages", f"retired.{cause}") for cause in (0, 1))

    def _gpm(self, index: int, metric: int) -> str:
        if not self._number(index, "nvmlGpmQueryDeviceSupport", "gpm"):
            raise _Missing("unsupported")
        if index not in self._gpm_taken:
            raise _Missing("not_yet")
        values = self._file.values()
        self._refuse(int(values.get(f"gpu{index}.gpm_error.{metric}", "0"), 0))
        return self._text(index, "nvmlGpmSampleGet", f"gpm.{metric}")

    def _event(self, text: str) -> DriverEvent | None:
        number, type_text, *rest = text.split(None, 2)
        device, event_type = int(number, 0), int(type_text, 0)
        address = next((a for a, index in self._known.items() if index == device), "")
        if self.vendor is Vendor.AMD:
            return self._amd.event(address, event_type, rest[0] if rest else "")
        known = EVENTS.get(event_type)
        if known is None:
            return None
        kind, code = known
        data = int(rest[0], 0) if rest else 0
        if event_type == XID_EVENT:
            code = f"xid:{data}"
        text = f"NVML reported {code} (event type {event_type:#x}, data {data:#x})"
        return DriverEvent(pci_address=address, kind=kind, code=code, text=text)


def _processes(text: str) -> list[str]:
    return [part for part in text.split(",") if part and part != "none"]


def _memory(text: str) -> int | None:
    sizes = [part.partition(":")[2] for part in _processes(text)]
    return None if "" in sizes else sum(int(size, 0) for size in sizes)


def _pci_address(text: str) -> str:
    domain, bus, rest = text.split(":")
    slot, _, function = rest.partition(".")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(slot, 16):02x}.{int(function or '0', 16):x}"
