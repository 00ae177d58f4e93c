"""Works through the tables of `collectors.amd_fields` for one device: values in base units, or why there is none."""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collectors.amd_decode import ABSENT, find, number
from collectors.amd_fields import (
    CALLS,
    DIE_RESIDENCIES,
    METRICS,
    METRICS_KEYS,
    PACKAGE_FIELDS,
    RAS_FUNCTIONS,
    RESIDENCIES,
    TIER_FIELDS,
    Call,
    Read,
)
from collectors.device import DeviceIdentity, DeviceSample, LibraryBroken, Tier
from collectors.pseudo_file import Unreadable
from collectors.pseudo_file import read as read_file
from passmuster.records import DeviceState, Vendor

# Codes of amdsmi_status_t by what they mean for us.
UNSUPPORTED_CODES = frozenset({2, 3, 20, 40, 52})  # not supported, not yet, no file, no data, no folder
NO_DATA = 40  # of these the one that may differ at the next call
NO_PERMISSION = 10
LOST_CODES = frozenset({31})  # device not found
HOST_CODES = frozenset({32, 34})  # not initialised any more, driver not loaded
VANISHED = "failed 31"

# A capability that is absent is asked again after this time: a driver may have been replaced under us.
ASK_AGAIN_SECONDS = 600.0

# Which of several reasons for one null is told: the last of these words that was given.
_RANK = ("unsupported", "sentinel", "not_yet", "permission", "failed")


# Asked to make an identity, and no field of `Inventory`.
_NOT_OF_INVENTORY = frozenset({"model", "product_name", "partition"})


class Missing(Exception):
    """A call gave no value; the message is the reason."""


class Lost(Exception):
    """The device is gone; the message is the reason."""


class Answers:
    """Values and reasons of one device, map fields joined from their members."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.missing: dict[str, str] = {}
        self._members: dict[tuple[str, str], str] = {}

    def has(self, read: Read) -> bool:
        """Whether a field, or this member of it, has a value."""
        if read.member is None:
            return read.field in self.values
        return read.member in self.values.get(read.field, {})

    def take(self, read: Read, value: Any) -> None:
        """Keep a value; None was a sentinel."""
        if value is None:
            self.miss(read.field, "sentinel", read.member)
        elif read.member is None:
            self.values[read.field] = value
            self.missing.pop(read.field, None)
        else:
            self.values.setdefault(read.field, {})[read.member] = value
            self._members.pop((read.field, read.member), None)

    def miss(self, field: str, reason: str, member: str | None = None) -> None:
        """Keep why there is no value, unless a more telling reason is known."""
        if member is None:
            self.missing[field] = _stronger(self.missing.get(field), reason)
        else:
            self._members[field, member] = _stronger(self._members.get((field, member)), reason)

    def settle(self, fields: tuple[str, ...]) -> None:
        """Give every field without value a reason; members are named beside others that answered."""
        for (field, member), reason in self._members.items():
            if field not in self.values:
                self.missing[field] = _stronger(self.missing.get(field), reason)
            elif reason != "unsupported":
                self.missing[f"{field}.{member}"] = reason
        for field in fields:
            if field not in self.values:
                self.missing.setdefault(field, "unsupported")


def _stronger(known: str | None, reason: str) -> str:
    if known is None:
        return reason
    ranks = [next((i for i, word in enumerate(_RANK) if text.startswith(word)), 0) for text in (known, reason)]
    return known if ranks[0] >= ranks[1] else reason


def fill(
    calls: tuple[Call, ...],
    answers: Answers,
    ask: Callable[[Call], Any],
    in_vain: Callable[[Call], None] | None = None,
) -> None:
    """Make the calls that some field still needs; ``ask`` returns the binding's answer, or raises Missing or Lost.

    ``in_vain`` is told of a call that only repeated what an earlier one had said: that there is no value.
    """
    tried: set[tuple[str, str | None]] = set()
    for call in calls:
        wanted = [read for read in call.reads if not answers.has(read)]
        if not wanted:
            continue
        again = all((read.field, read.member) in tried for read in wanted)
        tried.update((read.field, read.member) for read in wanted)
        try:
            raw = ask(call)
        except Missing as missing:
            for read in wanted:
                answers.miss(read.field, str(missing), read.member)
            continue
        for read in wanted:
            if not answers.has(read):
                _take(read, raw, answers)
        if in_vain and again and not any(answers.has(read) for read in wanted):
            in_vain(call)


def _take(wanted: Read, raw: Any, answers: Answers) -> None:
    reason = "unsupported"
    for key in wanted.keys:
        found = find(raw, key)
        if found is ABSENT:
            continue
        value = wanted.decode(found)
        if value is not None:
            answers.take(wanted, value)
            return
        reason = "sentinel"
    answers.miss(wanted.field, reason, wanted.member)


class Throttle:
    """Shares and seconds of throttling, from the residency counters of successive gpu_metrics.

    amdsmi_get_violation_status computes the same and sleeps 100 ms for it.
    """

    def __init__(self) -> None:
        self._before: tuple[float, float, dict[str, tuple[float, int]]] | None = None
        self._seconds: dict[str, float] = {}

    def take(self, raw: Any, now: float, answers: Answers) -> None:
        """Compare with the last call; ``now`` is monotonic seconds."""
        ticks = number(find(raw, "accumulation_counter"), 32)
        counters = {
            reason: (value, 1)
            for reason, key in RESIDENCIES.items()
            if (value := number(find(raw, key), 32)) is not None
        }
        counters |= {reason: die for reason, key in DIE_RESIDENCIES.items() if (die := _over_dies(find(raw, key)))}
        if ticks is None or not counters:
            # A part that has no residencies gives all ones for each.
            reason = "unsupported" if find(raw, "accumulation_counter") is ABSENT else "sentinel"
            answers.miss("throttle_ratio", reason)
            answers.miss("throttle_seconds_total", reason)
            return
        before, self._before = self._before, (now, ticks, counters)
        # Fewer ticks than before: the counters began again. As many: the firmware has not been round since.
        if before is None or ticks <= before[1]:
            answers.miss("throttle_ratio", "not_yet")
        else:
            ratios = {}
            for reason, (value, dies) in counters.items():
                earlier, earlier_dies = before[2].get(reason, (value, 0))
                if dies == earlier_dies and value >= earlier:
                    ratios[reason] = min(1.0, (value - earlier) / (dies * (ticks - before[1])))
            for reason, ratio in ratios.items():
                self._seconds[reason] = self._seconds.get(reason, 0.0) + ratio * (now - before[0])
            answers.values["throttle_ratio"] = ratios
        if self._seconds:
            answers.values["throttle_seconds_total"] = dict(self._seconds)
        else:
            answers.miss("throttle_seconds_total", "not_yet")


def fill_tier(
    tier: Tier,
    answers: Answers,
    ask: Callable[[Call], Any],
    throttle: Throttle,
    clock: Callable[[], float],
    in_vain: Callable[[Call], None] | None = None,
) -> None:
    """Make the calls of one tier; in the fast one gpu_metrics also tells how throttling went on."""

    def heard(call: Call) -> Any:
        if call.function != METRICS or tier is not Tier.FAST:
            return ask(call)
        try:
            raw = ask(call)
        except Missing as missing:
            for field in ("throttle_ratio", "throttle_seconds_total"):
                answers.miss(field, str(missing))
            raise
        throttle.take(raw, clock(), answers)
        return raw

    fill(CALLS[tier], answers, heard, in_vain)


def _over_dies(raw: Any) -> tuple[float, int] | None:
    """Return sum and number of what the compute dies counted (lists of lists: partitions of dies)."""
    rows = raw if isinstance(raw, (list, tuple)) else ()
    found = [
        value for row in rows if isinstance(row, (list, tuple)) for die in row if (value := number(die)) is not None
    ]
    return (sum(found), len(found)) if found else None


class Device:
    """One device as the library last enumerated it, and what we remember of it between polls."""

    def __init__(self, index: int, handle: Any, pci_address: str) -> None:
        self.index = index
        self.handle = handle
        self.pci_address = pci_address
        self.vanished = False
        self.seen_on_bus = False
        self.partition: int | None = None  # of a package that is split
        self.identity: DeviceIdentity | None = None
        self.absent: dict[Call, tuple[float, str]] = {}  # ask again at, reason
        self.throttle = Throttle()
        self.cper_cursor = 0


class AmdReader:
    """Reads devices through an initialised binding; ``clock`` and ``meter`` as in `AmdBackend`."""

    def __init__(
        self,
        binding: Any,
        sys_root: Path,
        clock: Callable[[], float],
        meter: Callable[[str, float], None] | None,
    ) -> None:
        self._smi = binding
        self._devices_folder = sys_root / "bus" / "pci" / "devices"
        self._clock = clock
        self._meter = meter
        self._metrics = _metrics_reader(binding)

    def sample(self, device: Device, tier: Tier) -> DeviceSample:
        """Read one tier; a device that is gone is LOST, with a reason for each field."""
        if device.vanished:
            return lost(device.pci_address, tier, VANISHED)
        answers = Answers()
        try:
            self._look_at_bus(device)
            fill_tier(
                tier,
                answers,
                lambda call: self.ask(device, call),
                device.throttle,
                self._clock,
                lambda call: self._let_be(device, call),
            )
        except Lost as gone:
            return lost(device.pci_address, tier, str(gone))
        return settled(device.pci_address, tier, answers, device.partition)

    def ask(self, device: Device, call: Call) -> Any:
        """Make one call. Raises Missing, Lost, or LibraryBroken where the library as a whole has stopped working."""
        known = device.absent.get(call)
        if known is not None and self._clock() < known[0]:
            raise Missing(known[1])
        if call.function in RAS_FUNCTIONS and self._asleep(device):
            raise Missing("not_yet")
        function = self._metrics or self.function(METRICS) if call.function == METRICS else self.function(call.function)
        arguments = [self._member(name) for name, _ in call.arguments]
        if function is None or None in arguments:  # a binding older or newer than the function
            raise Missing(self.reason(device, call, 2))
        start = time.perf_counter() if self._meter else 0.0
        try:
            return function(device.handle, *arguments)
        except self._smi.AmdSmiLibraryException as error:
            raise Missing(self.reason(device, call, error.get_error_code())) from None
        except (
            self._smi.AmdSmiException,
            ArithmeticError,
            AttributeError,
            LookupError,
            OSError,
            TypeError,
            ValueError,
        ) as error:
            # The binding could not make sense of what its library answered.
            raise Missing(f"failed {type(error).__name__}"[:64]) from None
        finally:
            if self._meter:
                words = ".".join([call.function, *(name.rpartition(".")[2] for name, _ in call.arguments)])
                self._meter(words, time.perf_counter() - start)

    def _let_be(self, device: Device, call: Call) -> None:
        """Leave out a call that gives no more than the one before it, such as the edge sensor of an MI300."""
        device.absent[call] = (self._clock() + ASK_AGAIN_SECONDS, "sentinel")

    def function(self, name: str) -> Any:
        """Return a function of the binding, also where its package forgot to export it; None where it has none."""
        inner = getattr(self._smi, "amdsmi_interface", None)
        return getattr(self._smi, name, None) or getattr(inner, name, None)

    def reason(self, device: Device, call: Call, code: int) -> str:
        """Return the reason word of a status code, remembering what is absent; raises Lost or LibraryBroken."""
        if code in LOST_CODES:
            raise Lost(f"failed {code}")
        if code in HOST_CODES:
            raise LibraryBroken(
                f"{call.function} answers {code}: the amdgpu driver or the library was unloaded under us"
            )
        if code not in UNSUPPORTED_CODES and code != NO_PERMISSION:
            return f"failed {code}"
        reason = "permission" if code == NO_PERMISSION else "unsupported"
        if code != NO_DATA:
            device.absent[call] = (self._clock() + ASK_AGAIN_SECONDS, reason)
        return reason

    def _member(self, name: str) -> Any:
        enumeration, _, member = name.partition(".")
        return getattr(getattr(self._smi, enumeration, None), member, None)

    def _look_at_bus(self, device: Device) -> None:
        """Raise Lost for a device that left sysfs: the library then answers "no such file", as for what never was."""
        if (self._devices_folder / device.pci_address).is_dir():
            device.seen_on_bus = True
        elif device.seen_on_bus:
            raise Lost(VANISHED)

    def _asleep(self, device: Device) -> bool:
        # Error counts read from a suspended device wake it and were seen to be absurd.
        try:
            return read_file(self._devices_folder / device.pci_address / "power" / "runtime_status") != "active"
        except Unreadable:
            return False


def _metrics_reader(binding: Any) -> Callable[[Any], dict[str, Any]] | None:
    """Return what reads of gpu_metrics the members that some field needs; None where the binding hides its struct.

    The binding's own function turns all of some 700 numbers into Python values, which costs a millisecond a device.
    """
    wrapper = getattr(getattr(binding, "amdsmi_interface", None), "amdsmi_wrapper", None)
    struct = getattr(wrapper, "amdsmi_gpu_metrics_t", None)
    read_into = getattr(wrapper, METRICS, None)
    if struct is None or read_into is None:
        return None
    fields = {field[0] for field in struct._fields_}
    plain = METRICS_KEYS & fields
    dies = {key: key.removeprefix("xcp_stats.") for key in DIE_RESIDENCIES.values()} if "xcp_stats" in fields else {}

    def read_metrics(handle: Any) -> dict[str, Any]:
        answer = struct()
        code = read_into(handle, ctypes.byref(answer))
        if code:
            raise binding.AmdSmiLibraryException(code)
        found = {key: getattr(answer, key) for key in plain}
        found = {key: list(value) if isinstance(value, ctypes.Array) else value for key, value in found.items()}
        for key, member in dies.items():
            if hasattr(answer.xcp_stats[0], member):
                found[key] = [list(getattr(partition, member)) for partition in answer.xcp_stats]
        return found

    return read_metrics


def identities(answered: Mapping[str, tuple[int, Answers]]) -> dict[str, tuple[DeviceIdentity, int | None]]:
    """Return who the devices are, by address, and which partition of a split package each one is.

    ``answered`` has index and answers of each device by address. Partitions share their package's serial: the first
    keeps it, the others are ``SERIAL.pN``. Where that does not tell two devices apart, the UUID does.
    """

    def place(answers: Answers) -> tuple[str | None, int | None]:
        return answers.values.get("serial"), answers.values.get("partition")

    serials = Counter(place(answers)[0] for _, answers in answered.values())
    places = Counter(place(answers) for _, answers in answered.values())
    found = {}
    for address, (index, answers) in answered.items():
        serial, number = place(answers)
        partition = number if serials[serial] > 1 and places[serial, number] == 1 else None
        known = serial if serials[serial] == 1 or partition is not None else None
        values = {field: value for field, value in answers.values.items() if field not in _NOT_OF_INVENTORY}
        identity = DeviceIdentity(
            device_id=(f"{known}.p{partition}" if known and partition else known)
            or values.get("uuid")
            or f"pci-{address}",
            pci_address=address,
            index=index,
            vendor=Vendor.AMD,
            model=answers.values.get("model") or answers.values.get("product_name") or "",
            values=values,
            missing={field: why for field, why in answers.missing.items() if field not in _NOT_OF_INVENTORY},
        )
        found[address] = (identity, partition)
    return found


def settled(pci_address: str, tier: Tier, answers: Answers, partition: int | None) -> DeviceSample:
    """Return the sample of what was answered; a later partition leaves what belongs to its package to the first one."""
    answers.settle(TIER_FIELDS[tier])
    values, missing = answers.values, answers.missing
    failed = any(reason.startswith("failed") for reason in missing.values())
    state = DeviceState.UNREADABLE if failed and not values else DeviceState.OK
    if partition:
        package = PACKAGE_FIELDS & set(TIER_FIELDS[tier])
        values = {field: value for field, value in values.items() if field not in package}
        missing = {field: why for field, why in missing.items() if field.partition(".")[0] not in PACKAGE_FIELDS}
        missing |= dict.fromkeys(sorted(package), "unsupported")
    if partition is not None and values:
        values = values | {"partition": str(partition)}
    return DeviceSample(pci_address=pci_address, state=state, values=values, missing=missing)


def lost(pci_address: str, tier: Tier, reason: str) -> DeviceSample:
    """Return the sample of a device that is gone."""
    missing = dict.fromkeys(TIER_FIELDS[tier], reason)
    return DeviceSample(pci_address=pci_address, state=DeviceState.LOST, values={}, missing=missing)
