"""Records what a device library answers on a real machine, without naming it, and plays it back as a `DeviceBackend`.

`python -m collectors.recording record --vendor nvidia --seconds 600 --period 1 OUT.jsonl.gz`

One JSON line per answer under gzip: a header, then identities, samples and events with their offset in seconds.
Serials, UUIDs, fabric names and process data are left out; device ids become gpu0, gpu1, ...
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from collectors.device import (
    DeviceBackend,
    DeviceIdentity,
    DeviceSample,
    DriverEvent,
    LibraryAbsent,
    LibraryBroken,
    Tier,
)
from passmuster.errors import BadRecord
from passmuster.exits import ExitCode
from passmuster.records import Vendor

FORMAT = 1
MAX_BYTES = 256 * 1024 * 1024  # of the uncompressed recording
MAX_LINE = 4 * 1024 * 1024
MAX_DEVICES = 64
PRIVATE = frozenset({"serial", "uuid", "fabric_domain"})
# One tick of the fast tier is the period; the others come every so many ticks, as in the agent.
EVERY = {Tier.FAST: 1, Tier.MIDDLE: 10, Tier.SLOW: 60}


class Header(Struct, frozen=True, tag="header", tag_field="line", forbid_unknown_fields=True):
    """What was recorded."""

    format: int
    vendor: Vendor
    versions: Annotated[dict[str, str], Meta(max_length=64)]
    period_seconds: float


class Identities(Struct, frozen=True, tag="identities", tag_field="line", forbid_unknown_fields=True):
    """Answer of `identify`."""

    at_seconds: float
    devices: Annotated[list[DeviceIdentity], Meta(max_length=MAX_DEVICES)]


class Samples(Struct, frozen=True, tag="samples", tag_field="line", forbid_unknown_fields=True):
    """Answer of `sample`."""

    at_seconds: float
    tier: Tier
    samples: Annotated[list[DeviceSample], Meta(max_length=MAX_DEVICES)]


class Events(Struct, frozen=True, tag="events", tag_field="line", forbid_unknown_fields=True):
    """Answer of `events`, where there were any."""

    at_seconds: float
    events: Annotated[list[DriverEvent], Meta(max_length=4096)]


Line = Header | Identities | Samples | Events
_decode = msgspec.json.Decoder(Line).decode


def anonymous(identities: Iterable[DeviceIdentity]) -> list[DeviceIdentity]:
    """Return the identities without what names the hardware; the device id becomes gpu and the index."""
    return [
        msgspec.structs.replace(
            identity,
            device_id=f"gpu{identity.index}",
            values={name: value for name, value in identity.values.items() if name not in PRIVATE},
        )
        for identity in identities
    ]


def record(
    backend: DeviceBackend,
    ticks: int,
    period_seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Line]:
    """Yield the lines of ``ticks`` fast ticks of an open backend.

    ``clock`` is monotonic seconds, ``sleep`` waits that many seconds. Events are asked without waiting.
    """
    versions = {name: text for name, text in backend.versions().items() if not name.endswith("_file")}
    yield Header(FORMAT, backend.vendor, versions, period_seconds)
    start = clock()
    yield Identities(0.0, anonymous(backend.identify()))
    for tick in range(ticks):
        for tier, every in EVERY.items():
            if tick % every == 0:
                at = clock() - start
                yield Samples(at, tier, backend.sample(tier))
        events = backend.events(0.0)
        if events:
            yield Events(clock() - start, events)
        sleep(max(0.0, start + (tick + 1) * period_seconds - clock()))


def read(path: Path) -> Iterator[Line]:
    """Yield the lines of a recording. Raises BadRecord with the line that cannot be taken, OSError as `open` does."""
    size = 0
    with gzip.open(path, "rb") as file:
        for number in range(1, sys.maxsize):
            try:
                raw = file.readline(MAX_LINE)
                size += len(raw)
                if not raw:
                    return
                if size > MAX_BYTES or not raw.endswith(b"\n"):
                    raise BadRecord(f"{path}, line {number}: cut, or longer than a recording may be")
                yield _decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, EOFError, gzip.BadGzipFile) as error:
                raise BadRecord(f"{path}, line {number}: not a line of a recording ({error})") from None


class ReplayBackend:
    """`DeviceBackend` that gives a recording's answers in their order, whatever the time between the calls.

    After the last answer of a tier that answer is repeated. Events come once, in the `events` call that follows
    the fast sample that they followed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.vendor = Vendor.NONE
        self._versions: dict[str, str] = {}
        self._identities: list[DeviceIdentity] = []
        self._samples: dict[Tier, list[list[DeviceSample]]] = {}
        self._events: dict[int, list[DriverEvent]] = {}
        self._given: Counter[Tier] = Counter()

    def open(self) -> None:
        """Read the whole recording. Raises LibraryAbsent where there is none, LibraryBroken where it is not one."""
        samples: dict[Tier, list[list[DeviceSample]]] = {tier: [] for tier in Tier}
        try:
            for line in read(self._path):
                match line:
                    case Header():
                        self.vendor, self._versions = line.vendor, line.versions
                    case Identities():
                        self._identities = line.devices
                    case Samples():
                        samples[line.tier].append(line.samples)
                    case Events():
                        self._events.setdefault(len(samples[Tier.FAST]), []).extend(line.events)
        except OSError as error:
            raise LibraryAbsent(f"no recording: {error}") from None
        except BadRecord as error:
            raise LibraryBroken(str(error)) from None
        self._samples = samples

    def versions(self) -> dict[str, str]:
        """Return the versions of the recorded machine."""
        return self._versions

    def identify(self) -> list[DeviceIdentity]:
        """Return the last identities of the recording."""
        return self._identities

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Return the next answer of this tier."""
        answers = self._samples.get(tier)
        if not answers:
            return []
        answer = answers[min(self._given[tier], len(answers) - 1)]
        self._given[tier] += 1
        return answer

    def events(self, timeout_seconds: float) -> list[DriverEvent]:  # a recording does not wait
        """Return the events up to the fast samples given so far."""
        due = [tick for tick in self._events if tick <= self._given[Tier.FAST]]
        return [event for tick in sorted(due) for event in self._events.pop(tick)]

    def close(self) -> None:
        """Forget the recording."""
        self._samples = {}


class Costs:
    """Time that the library took, per call and tier, in seconds."""

    def __init__(self) -> None:
        self.tier = "identify"
        self.calls: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.tiers: dict[str, list[float]] = defaultdict(list)

    def meter(self, call: str, seconds: float) -> None:
        """Count one call in the tier that is being read."""
        self.calls[self.tier, call].append(seconds)


class _Timed:
    """A backend that tells `Costs` which tier is being read."""

    def __init__(self, backend: DeviceBackend, costs: Costs) -> None:
        self._backend = backend
        self._costs = costs
        self.vendor = backend.vendor
        self.open, self.versions, self.identify = backend.open, backend.versions, backend.identify
        self.close = backend.close

    def sample(self, tier: Tier) -> list[DeviceSample]:
        self._costs.tier = tier.value
        answer = self._timed(tier.value, lambda: self._backend.sample(tier))
        assert isinstance(answer, list)
        return answer

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        self._costs.tier = "events"
        answer = self._timed("events", lambda: self._backend.events(timeout_seconds))
        assert isinstance(answer, list)
        return answer

    def _timed(self, name: str, ask: Callable[[], list[Any]]) -> list[Any]:
        start = time.perf_counter()
        answer = ask()
        self._costs.tiers[name].append((time.perf_counter() - start) / max(1, len(answer)))
        return answer


def _row(name: str, seconds: list[float]) -> str:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    micros = (median(ordered) * 1e6, p99 * 1e6, ordered[-1] * 1e6)
    return f"{name:<58}{len(ordered):>7}" + "".join(f"{value:>11.1f}" for value in micros)


def _summary(costs: Costs, missing: Counter[tuple[str, str, str]]) -> Iterator[str]:
    yield f"{'call, in microseconds':<58}{'calls':>7}{'median':>11}{'p99':>11}{'max':>11}"
    for (tier, call), seconds in sorted(costs.calls.items(), key=lambda item: (item[0][0], -median(item[1]))):
        yield _row(f"{tier:<9}{call}", seconds)
    yield ""
    yield f"{'tier, per device, our own work included':<58}{'reads':>7}{'median':>11}{'p99':>11}{'max':>11}"
    for tier, seconds in costs.tiers.items():
        yield _row(tier, seconds)
    yield ""
    yield f"{'field without a value':<42}{'tier':<10}{'reason':<16}{'times':>6}"
    for (tier, field, reason), times in sorted(missing.items()):
        yield f"{field:<42}{tier:<10}{reason:<16}{times:>6}"


def _backend(vendor: str, costs: Costs) -> DeviceBackend:
    if vendor == "nvidia":
        from collectors.nvidia import NvidiaBackend

        return NvidiaBackend(meter=costs.meter)
    from collectors.amd import AmdBackend

    return AmdBackend(meter=costs.meter)


def main(arguments: list[str] | None = None) -> ExitCode:
    """Record on this machine and print what each call cost and which fields had no value."""
    parser = argparse.ArgumentParser(prog="python -m collectors.recording")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record", help="write a recording of this machine's devices")
    command.add_argument("--vendor", choices=("nvidia", "amd"), required=True)
    command.add_argument("--seconds", type=float, default=600.0)
    command.add_argument("--period", type=float, default=1.0, help="seconds between fast samples")
    command.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    if not (0.01 <= options.period <= 3600 and options.period <= options.seconds <= 86_400):
        parser.error("--period lies between 0.01 and 3600 seconds, --seconds between the period and a day")
    costs = Costs()
    backend = _backend(options.vendor, costs)
    try:
        backend.open()
    except (LibraryAbsent, LibraryBroken) as error:
        print(f"recording: {error}", file=sys.stderr)
        return ExitCode.INCOMPLETE
    ticks = round(options.seconds / options.period)
    missing: Counter[tuple[str, str, str]] = Counter()
    try:
        with gzip.open(options.out, "wb") as file:
            for line in record(_Timed(backend, costs), ticks, options.period, time.monotonic, time.sleep):
                file.write(msgspec.json.encode(line) + b"\n")
                if isinstance(line, Samples):
                    for sample in line.samples:
                        missing.update((line.tier.value, field, reason) for field, reason in sample.missing.items())
    except OSError as error:
        print(f"recording: cannot write {options.out}: {error}", file=sys.stderr)
        return ExitCode.FAIL
    except KeyboardInterrupt:
        print("recording: stopped early; what was recorded is kept", file=sys.stderr)
    finally:
        backend.close()
    print("\n".join(_summary(costs, missing)))
    return ExitCode.PASS


if __name__ == "__main__":
    sys.exit(main())
