"""Makes shipped rows of fast samples: last, least and most of an interval, and a ring of what came before a fault."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from collectors.device import DeviceIdentity, DeviceSample, Tier
from passmuster.batch import Batch
from passmuster.records import HEADER, DeviceState, GpuReading

SECOND = 1_000_000_000  # nanoseconds
HOUR_SECONDS = 3600.0
# A value older than this many periods of its tier is no longer the device's.
STALE_PERIODS = 2.5
# Reasons come from a library; a storm of classes must not grow memory.
MAX_SHIPPED_KEYS = 4096

IDENTITY = ("device_id", "vendor", "model", "pci_address", "index", "partition", "observed_at")
OWN = ("state", "interval_seconds", "samples", "epoch", "missing")
FIELDS = tuple(f for f in GpuReading.__struct_fields__ if f not in HEADER)
NOT_NULL = frozenset(f.name for f in msgspec.structs.fields(GpuReading) if f.required or f.name in OWN)


def _extremes(word: str) -> dict[str, str]:
    """Map a value's field to the field of its extreme: power_watts to power_min_watts."""
    return {
        f.replace(f"_{word}_", "_"): f for f in FIELDS if f"_{word}_" in f and f.replace(f"_{word}_", "_") in FIELDS
    }


LEAST, MOST = _extremes("min"), _extremes("max")
# Counters that begin again when the driver is loaded again. The board's own life counters never do.
VOLATILE = tuple(
    f for f in FIELDS if f.endswith("_total") and "lifetime" not in f and not f.startswith(("rows_", "links_"))
)


class _Device(Struct):
    """What is known of one device, and of the interval that is open."""

    identity: DeviceIdentity
    epoch: int = 0
    state: DeviceState = DeviceState.UNKNOWN
    answered_at: float | None = None  # monotonic
    values: dict[str, Any] = {}
    missing: dict[str, str] = {}
    read_at: dict[str, float] = {}  # monotonic time of each tier's last answer
    tier_of: dict[str, str] = {}  # field to tier
    counters: dict[str, Any] = {}  # last seen, kept over gaps
    samples: int = 0
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    throttled: dict[str, float] = {}
    throttle_samples: int = 0


class Latest(Struct, frozen=True):
    """One device as it was last read."""

    identity: DeviceIdentity
    state: DeviceState
    epoch: int
    values: dict[str, Any]
    missing: dict[str, str]
    age_seconds: float | None  # since it last answered; null if never


class Aggregate:
    """Takes samples of all tiers, gives rows; `latest` may be called from other threads.

    Times: ``now`` is nanoseconds UTC, ``mono`` monotonic seconds. ``periods`` is the period of each tier in seconds,
    ``ring_seconds`` how much of the fast tier is kept.
    """

    def __init__(self, periods: dict[Tier, float], ring_seconds: float) -> None:
        self._periods = {tier.value: period for tier, period in periods.items()}
        self._devices: dict[str, _Device] = {}  # by PCI address: what a sample names
        self._ring: dict[str, deque[tuple[int, bytes]]] = {}  # by device id
        self._ring_length = max(1, round(ring_seconds / periods[Tier.FAST]))
        self._pending: list[dict[str, Any]] = []
        self._closed_at: float | None = None
        self._shipped: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()  # one thread changes, the exporter's reads

    def identify(self, identities: Iterable[DeviceIdentity]) -> None:
        """Learn who is at which address. What is no longer named stays known: it is lost, not forgotten."""
        with self._lock:
            for identity in identities:
                known = self._devices.get(identity.pci_address)
                if known is None or known.identity.device_id != identity.device_id:
                    self._devices[identity.pci_address] = _Device(identity)
                else:
                    known.identity = identity

    def identities(self) -> dict[str, DeviceIdentity]:
        """Return every device seen in this boot, by PCI address."""
        return {address: device.identity for address, device in self._devices.items()}

    def mark(self, addresses: Iterable[str], state: DeviceState) -> None:
        """Set the state of devices whose library hangs, ended, or no longer names them; no value of theirs holds."""
        with self._lock:
            for address in addresses:
                device = self._devices[address]
                device.state, device.values, device.missing = state, {}, {}

    def add(self, tier: Tier, samples: Iterable[DeviceSample], now: int, mono: float) -> None:
        """Take one tier's answer for all devices of a vendor."""
        for sample in samples:
            device = self._devices.get(sample.pci_address)
            if device is None:
                continue
            with self._lock:
                self._add_one(device, tier, sample, mono)
            if tier is Tier.FAST:
                device_id = device.identity.device_id
                ring = self._ring.setdefault(device_id, deque(maxlen=self._ring_length))
                # Packed: a dict per second and device would cost tens of megabytes.
                ring.append((now, msgspec.msgpack.encode([sample.state, sample.values])))

    def _add_one(self, device: _Device, tier: Tier, sample: DeviceSample, mono: float) -> None:
        device.state = sample.state
        if sample.state is not DeviceState.OK:
            device.values, device.missing = {}, dict(sample.missing)
            return
        device.answered_at = device.read_at[tier.value] = mono
        values = {n: v for n, v in sample.values.items() if not isinstance(v, float) or math.isfinite(v)}
        for name in sample.missing:
            device.values.pop(name, None)
            device.tier_of[name] = tier.value
        for name in values:
            device.missing.pop(name, None)
            device.tier_of[name] = tier.value
        device.missing.update(sample.missing)
        device.values.update(values)
        self._count_restart(device, values)
        if tier is not Tier.FAST:
            return
        device.samples += 1
        for name in LEAST.keys() & values.keys():
            device.least[name] = min(device.least.get(name, values[name]), values[name])
        for name in MOST.keys() & values.keys():
            device.most[name] = max(device.most.get(name, values[name]), values[name])
        reasons = values.get("throttle_ratio")
        if reasons is not None:
            device.throttle_samples += 1
            for reason, share in reasons.items():
                device.throttled[reason] = device.throttled.get(reason, 0.0) + share

    @staticmethod
    def _count_restart(device: _Device, values: dict[str, Any]) -> None:
        """Begin a new epoch when a counter went back: the driver was loaded again, or the device reset."""
        restarted = False
        for name in VOLATILE:
            new = values.get(name)
            if new is None:
                continue
            old = device.counters.get(name)
            if isinstance(new, dict):
                restarted |= isinstance(old, dict) and any(new[k] < old[k] for k in new.keys() & old.keys())
            else:
                restarted |= old is not None and new < old
            device.counters[name] = new
        device.epoch += restarted

    def close_interval(self, now: int, mono: float) -> list[dict[str, Any]]:
        """End the interval: returns one row per known device; they also wait for `take`."""
        interval = 0.0 if self._closed_at is None else max(0.0, mono - self._closed_at)
        self._closed_at = mono
        rows = []
        for device in self._devices.values():
            rows.append(self._row(device, now, mono, interval))
            device.samples, device.throttle_samples = 0, 0
            device.least, device.most, device.throttled = {}, {}, {}
        self._pending += rows
        return rows

    def _row(self, device: _Device, now: int, mono: float, interval: float) -> dict[str, Any]:
        values, missing = self._fresh(device, mono)
        row = _identified(device.identity, now) | values
        row |= {
            "state": device.state.value,
            "interval_seconds": interval,
            "samples": device.samples,
            "epoch": device.epoch,
            "missing": missing or None,
        }
        if values:
            row |= {LEAST[n]: v for n, v in device.least.items() if n in values}
            row |= {MOST[n]: v for n, v in device.most.items() if n in values}
            if device.throttle_samples and "throttle_ratio" in values:
                row["throttle_ratio"] = {r: s / device.throttle_samples for r, s in device.throttled.items()}
        return row

    def _fresh(self, device: _Device, mono: float) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the values that still hold, and why the others do not."""
        stale = {
            tier for tier, at in device.read_at.items() if mono - at > STALE_PERIODS * self._periods.get(tier, math.inf)
        }
        missing = dict(device.missing)
        if not stale:
            return dict(device.values), missing
        values = {}
        for name, value in device.values.items():
            if device.tier_of.get(name) in stale:
                missing[name] = "stale"
            else:
                values[name] = value
        return values, missing

    def latest(self, mono: float) -> list[Latest]:
        """Return every known device as it is now, for the exporter and the verdict."""
        found = []
        with self._lock:
            for device in self._devices.values():
                values, missing = self._fresh(device, mono)
                age = None if device.answered_at is None else mono - device.answered_at
                found.append(Latest(device.identity, device.state, device.epoch, values, missing, age))
        return found

    def take(self) -> list[dict[str, Any]]:
        """Return the rows closed since the last call."""
        rows, self._pending = self._pending, []
        return rows

    def before_fault(self, device_id: str, fault_class: str, mono: float) -> list[dict[str, Any]]:
        """Return the rows of a device's ring, once per device, class and hour; none otherwise.

        They are instants (``interval_seconds`` 0), so that they add no exposure to the rows of their interval.
        """
        last = self._shipped.get((device_id, fault_class))
        ring = self._ring.get(device_id)
        if not ring or (last is not None and mono - last < HOUR_SECONDS):
            return []
        if len(self._shipped) >= MAX_SHIPPED_KEYS:
            self._shipped.pop(next(iter(self._shipped)))
        self._shipped[device_id, fault_class] = mono
        device = next(d for d in self._devices.values() if d.identity.device_id == device_id)
        rows = []
        for at, packed in ring:
            state, values = msgspec.msgpack.decode(packed)
            row = _identified(device.identity, at) | values
            row |= {"state": state, "interval_seconds": 0.0, "samples": 1, "epoch": device.epoch}
            rows.append(row)
        return rows


def _identified(identity: DeviceIdentity, at: int) -> dict[str, Any]:
    return {
        "device_id": identity.device_id,
        "vendor": identity.vendor.value,
        "model": identity.model,
        "pci_address": identity.pci_address,
        "index": identity.index,
        "observed_at": at,
    }


def columnar(rows: list[dict[str, Any]], header: tuple[str, str, str], seq: int) -> Batch:
    """Build a batch of `GpuReading` from plain rows, at least one; ``header`` is cluster, host, boot id."""
    columns: dict[str, Any] = {}
    for name in FIELDS:
        column = [row.get(name) for row in rows]
        first = column[0]
        if all(v == first for v in column):
            if first is not None:
                columns[name] = first
        else:
            columns[name] = column
    return Batch(GpuReading.KIND, GpuReading.VERSION, *header, seq, len(rows), columns)
