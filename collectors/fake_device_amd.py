"""What the fake device answers when it plays AMD's library: a scenario's keys in the shape of the binding's answers.

The tables are those of `collectors.amd_fields`; the keys are AMD SMI's own words, as tests/doubles/fake_amdsmi.c has
them. Firmware versions are left out: their names stand in the binding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from collectors.amd_decode import ABSENT, architecture, find, serial, words
from collectors.amd_fields import (
    EVENT_NUMBERS,
    EVENTS,
    IDENTITY,
    METRICS,
    Call,
)
from collectors.amd_reading import Answers, Lost, Missing, Throttle, fill, fill_tier, identities, lost, settled
from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, Tier

Gate = Callable[[int, str], None]
"""Hangs, waits or refuses a function of a device; raises Missing or Lost."""

_LINKS = {0: "D", 1: "U", 2: "X"}  # amdsmi_xgmi_link_status_type_t
_PARTITIONS = {1: "SPX", 2: "DPX", 3: "TPX", 4: "QPX", 5: "CPX"}  # amdsmi_accelerator_partition_type_t
_LISTS = ("amdsmi_get_gpu_bad_page_info", "amdsmi_get_gpu_process_list")


class AmdVoice:
    """The AMD side of `FakeBackend`. ``values`` gives the scenario as it is now."""

    def __init__(self, values: Callable[[], Mapping[str, str]], gate: Gate) -> None:
        self._values = values
        self._gate = gate
        self._partitions: dict[str, int | None] = {}
        self._throttles: dict[str, Throttle] = {}

    def identify(self, present: Mapping[str, int]) -> dict[str, DeviceIdentity]:
        """Return the identities of those of ``present`` (address to index) that answer."""
        answered = {}
        for address, index in present.items():
            answers = Answers()
            try:
                fill(IDENTITY, answers, lambda call, index=index: self._ask(index, call))  # type: ignore[misc]
            except Lost:
                continue
            answers.settle(("firmware",))
            if answers.values:
                answered[address] = (index, answers)
        found = {}
        for address, (identity, partition) in identities(answered).items():
            found[address], self._partitions[address] = identity, partition
        return found

    def sample(self, index: int, address: str, tier: Tier, present: bool) -> DeviceSample:
        """Answer one tier of one device."""
        if not present:
            return lost(address, tier, "failed 31")
        answers = Answers()
        throttle = self._throttles.setdefault(address, Throttle())
        try:
            fill_tier(tier, answers, lambda call: self._ask(index, call), throttle, time.monotonic)
        except Lost as gone:
            return lost(address, tier, str(gone))
        return settled(address, tier, answers, self._partitions.get(address))

    def event(self, address: str, number: int, message: str) -> DriverEvent | None:
        """Return the event of an AMDSMI_EVT_NOTIF_* number that all releases share; others are no faults."""
        name = EVENT_NUMBERS.get(number)
        if name is None:
            return None
        kind, code = EVENTS[name]
        return DriverEvent(pci_address=address, kind=kind, code=code, text=f"{name}: {message}")

    def _ask(self, index: int, call: Call) -> Any:
        self._gate(index, call.function)
        raw = answer(self._values(), index, call)
        # The library fills what is not named with all ones.
        for key in (key for read in call.reads for key in read.keys[:1]):
            if key and isinstance(raw, dict) and find(raw, key) is ABSENT:
                _put(raw, key, "N/A")
        return raw


def answer(values: Mapping[str, str], index: int, call: Call) -> Any:
    """Return what the binding would for one call. Raises Missing where the scenario has no key for it."""
    function = call.function
    texts = {key for read in call.reads if read.decode in (words, serial, architecture) for key in read.keys}
    if function == "amdsmi_get_gpu_device_uuid":
        return _scalar(values, f"gpu{index}.uuid", texts)
    selectors = [str(number) for _, number in call.arguments]
    if function == "amdsmi_get_power_cap_info":
        selectors = ["0"]  # the sensor, which the binding chooses
    prefix = ".".join([f"gpu{index}.{function}", *selectors])
    if function in _LISTS:
        total = int(_scalar(values, f"{prefix}.count", set()))
        return [_struct(values, f"{prefix}.{i}", texts) for i in range(min(total, 1000))]
    if prefix in values:
        return _scalar(values, prefix, texts)
    raw = _struct(values, prefix, texts)
    if not raw or function == "amdsmi_get_fw_info":
        raise Missing("unsupported")
    shape = _SHAPES.get(function)
    return shape(raw) if shape else raw


def _scalar(values: Mapping[str, str], key: str, texts: set[str]) -> Any:
    if key not in values:
        raise Missing("unsupported")
    return values[key] if "" in texts else _number(values[key])


def _struct(values: Mapping[str, str], prefix: str, texts: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, text in values.items():
        if key.startswith(prefix + "."):
            field = key.removeprefix(prefix + ".")
            _put(found, field, text if field in texts else _number(text))
    return found


def _put(found: dict[str, Any], field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for part in parents:
        found = found.setdefault(part, {})
    found[last] = value


def _number(text: str) -> Any:
    if "," in text:
        return [_number(part) for part in text.split(",")]
    with suppress(ValueError):
        return int(text, 0)
    with suppress(ValueError):
        return float(text)
    return text


def _asic(raw: dict[str, Any]) -> dict[str, Any]:
    if "asic_serial" in raw:
        raw["asic_serial"] = f"0x{int(raw['asic_serial'], 16):016X}"
    version = raw.get("target_graphics_version")
    if version is not None:
        raw["target_graphics_version"] = f"gfx{int(version, 0):x}"
    return raw


def _metrics(raw: dict[str, Any]) -> dict[str, Any]:
    # xcp_stats[PARTITION].COUNTER of the library is COUNTER by partition in the binding.
    for name in [name for name in raw if name.startswith("xcp_stats[")]:
        for counter, dies in raw.pop(name).items():
            raw.setdefault(f"xcp_stats.{counter}", []).append(dies if isinstance(dies, list) else [dies])
    return raw


def _links(raw: dict[str, Any]) -> dict[str, Any]:
    states = raw.get("status", [])
    states = states if isinstance(states, list) else [states]
    return {"status": [_LINKS.get(state, "N/A") for state in states][: raw.get("total_links", 0)]}


_SHAPES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "amdsmi_get_gpu_asic_info": _asic,
    METRICS: _metrics,
    "amdsmi_get_gpu_xgmi_link_status": _links,
    "amdsmi_get_energy_count": lambda raw: {
        "energy_accumulator": raw.get("0", "N/A"),
        "counter_resolution": raw.get("1", "N/A"),
    },
    "amdsmi_get_gpu_accelerator_partition_profile": lambda raw: {
        "partition_profile": {"profile_type": _PARTITIONS.get(raw.get("0", {}).get("profile_type"), "N/A")}
    },
}
