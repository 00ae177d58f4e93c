"""Decodes single AMD SMI answers into base units, or into None where the answer is a vendor sentinel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from passmuster.records import INT64_MAX

Decode = Callable[[Any], Any]
"""Turns one raw answer into a value in base units, or into None where the answer is a vendor sentinel."""

MAX_TEXT = 128
MAX_MEMBERS = 64  # of a map: links, HBM stacks, firmware blocks


def number(raw: Any, bits: int = 64) -> int | float | None:
    """Return a number, None for what is none: text, truth values, all ones of ``bits`` or wider, negative, not finite.

    The binding replaces all ones by 'N/A' in some places only, and widens 16-bit fields in others.
    """
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw <= INT64_MAX:
        return None
    all_ones = {2**width - 1 for width in (8, 16, 32, 64) if width >= bits}
    return None if raw in all_ones else raw


def scaled(factor: float, bits: int) -> Decode:
    """Return a decoder of a number of that width into base units."""

    def decode(raw: Any) -> float | None:
        found = number(raw, bits)
        return None if found is None else found * factor

    return decode


def counter(bits: int = 64) -> Decode:
    """Return a decoder of a counter of that width."""

    def decode(raw: Any) -> int | None:
        found = number(raw, bits)
        return None if found is None else int(found)

    return decode


count = counter()
microwatts = scaled(1e-6, 16)  # power_info gives 65535 in a 32-bit field for no value
watts = scaled(1.0, 16)
megahertz = scaled(1e6, 16)


def celsius(raw: Any) -> float | None:
    """Return a temperature; None outside of what silicon can be at and answer."""
    found = number(raw, 16)
    return float(found) if found is not None and found < 255 else None


def percent(raw: Any) -> float | None:
    """Return a ratio from per cent; None above 100."""
    found = number(raw)
    return found / 100 if found is not None and found <= 100 else None


def mean_megahertz(raw: Any) -> float | None:
    """Return hertz, the mean over the compute dies that run; None for no list of clocks."""
    clocks = [c for c in (megahertz(value) for value in _list(raw)) if c is not None]
    running = [c for c in clocks if c > 0]
    return sum(running) / len(running) if running else (0.0 if clocks else None)


# Rate per lane in MT/s to PCIe generation.
GENERATIONS = {2500: 1, 5000: 2, 8000: 3, 16000: 4, 32000: 5, 64000: 6}


def generation(raw: Any) -> int | None:
    """Return the PCIe generation of a rate in MT/s."""
    found = number(raw, 32)
    return None if found is None else GENERATIONS.get(int(found))


def words(raw: Any) -> str | None:
    """Return a short text; None for 'N/A' and its like."""
    text = raw.strip() if isinstance(raw, str) else ""
    return None if text.lower() in ("", "n/a", "unknown", "invalid") else text[:MAX_TEXT]


def architecture(raw: Any) -> str | None:
    """Return gfx942 and its like; the binding spells all ones out as a name."""
    text = words(raw)
    return None if text is None or not text.startswith("gfx") or len(text) > 12 else text


def serial(raw: Any) -> str | None:
    """Return a serial number; None also for all zeros."""
    text = words(raw)
    return text if text and text.lower().removeprefix("0x").strip("0") else None


def hbm(raw: Any) -> dict[str, float] | None:
    """Return the temperature per HBM stack."""
    found = {str(i): value for i, raw_value in enumerate(_list(raw)) if (value := celsius(raw_value)) is not None}
    return found or None


ENERGY_UNIT_JOULES = 2.0**-16  # kgd_pp_interface.h: energy_accumulator counts 15.259 uJ


def energy(raw: Any) -> float | None:
    """Return joules of amdsmi_get_energy_count, whose resolution (uJ) the library rounds to 15.3."""
    counted = number(_first(raw, ("energy_accumulator", "power")))
    unit = number(_first(raw, ("counter_resolution",)), 32)
    if counted is None or not unit:
        return None
    return counted * (ENERGY_UNIT_JOULES if 15.2 < unit < 15.4 else unit * 1e-6)


LINK_STATES = {"U": 1, "D": 0}  # X is disabled: such a link does not exist for us


def links(raw: Any) -> dict[str, int] | None:
    """Return the state per xGMI link: 1 up, 0 down."""
    found = {str(i): LINK_STATES[state] for i, state in enumerate(_list(raw)) if state in LINK_STATES}
    return found or None


def links_up(raw: Any) -> int | None:
    """Return how many xGMI links are up."""
    found = links(raw)
    return None if found is None else sum(found.values())


def links_total(raw: Any) -> int | None:
    """Return how many xGMI links are up or down."""
    found = links(raw)
    return None if found is None else len(found)


def link_bytes(raw: Any) -> dict[str, int] | None:
    """Return bytes per link and direction of amdsmi_get_link_metrics (KiB)."""
    total = number(_first(raw, ("num_links",)), 32)
    rows = _list(_first(raw, ("links",)))[: int(total or 0)]
    return _bytes([_first(row, ("read",)) for row in rows], [_first(row, ("write",)) for row in rows])


def metrics_link_bytes(raw: Any) -> dict[str, int] | None:
    """Return the same from gpu_metrics."""
    return _bytes(_list(_first(raw, ("xgmi_read_data_acc",))), _list(_first(raw, ("xgmi_write_data_acc",))))


def _bytes(received: Sequence[Any], sent: Sequence[Any]) -> dict[str, int] | None:
    found = {}
    for direction, kibibytes in (("receive", received), ("transmit", sent)):
        for link, raw in enumerate(kibibytes[:MAX_MEMBERS]):
            value = number(raw)
            if value is not None and value <= INT64_MAX // 1024:
                found[f"{link}.{direction}"] = int(value) * 1024
    return found or None


def pages(status: int) -> Decode:
    """Return a decoder that counts the bad pages of one status: 0 reserved, 1 pending, 2 not reservable."""

    def decode(raw: Any) -> int | None:
        if isinstance(raw, str) and raw.lower().startswith("no "):  # "No bad pages found." of older bindings
            return 0
        if not isinstance(raw, (list, tuple)):
            return None
        return sum(1 for page in raw if _first(page, ("status",)) == status)

    return decode


def fabric_state(raw: Any) -> str | None:
    """Return whether the device is in an xGMI hive."""
    found = number(raw)
    return None if found is None else "completed" if found else "not_supported"


def hive(raw: Any) -> str | None:
    """Return the hive's id in hex; None for a device in none."""
    found = number(raw)
    return f"{int(found):016x}" if found else None


def process_count(raw: Any) -> int | None:
    """Return how many processes have the device open."""
    return len(raw) if isinstance(raw, (list, tuple)) else None


def process_memory(raw: Any) -> int | None:
    """Return the device memory of all processes; None where one is not known."""
    if not isinstance(raw, (list, tuple)):
        return None
    sizes = [number(_first(process, ("memory_usage.vram_mem", "mem"))) for process in raw]
    return None if None in sizes else min(int(sum(size for size in sizes if size)), INT64_MAX)


def firmware(raw: Any) -> dict[str, str] | None:
    """Return firmware versions by block."""
    found = {}
    for entry in _list(raw):
        name, version = _first(entry, ("fw_name",)), words(_first(entry, ("fw_version",)))
        name = str(getattr(name, "name", name)).removeprefix("AMDSMI_FW_ID_").removeprefix("FW_ID_").lower()
        if version and name:
            found[name[:64]] = version
    return found or None


def _list(raw: Any) -> Sequence[Any]:
    return raw[:MAX_MEMBERS] if isinstance(raw, (list, tuple)) else ()


ABSENT = object()
"""What `find` returns where the answer has no such key."""


def find(raw: Any, key: str) -> Any:
    """Return what stands under a dotted path, or ABSENT."""
    if key == "":
        return raw
    if isinstance(raw, Mapping) and key in raw:  # gpu_metrics has keys with dots in them
        return raw[key]
    for part in key.split("."):
        if not isinstance(raw, Mapping) or part not in raw:
            return ABSENT
        raw = raw[part]
    return raw


def _first(raw: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        found = find(raw, key)
        if found is not ABSENT:
            return found
    return None
