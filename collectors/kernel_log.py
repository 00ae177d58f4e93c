"""Reads the kernel log of this host and reports its faults, each once per boot and device, with a count."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from collectors.collector import Absent, Failed
from collectors.device import DeviceIdentity
from collectors.kernel_log_classify import Classified, LogStream, classify, normal_pci
from collectors.kernel_log_prefix import Message, strip
from passmuster.faults import TABLE_VERSION
from passmuster.records import FaultEvent, Trust, Vendor

__all__ = ["Bookmark", "Classified", "KernelLog", "KernelLogCounters", "classify"]

# A record is at most 8 kB with its dictionary (CONSOLE_EXT_LOG_MAX, PRINTKRB_RECORD_MAX in kernel/printk).
READ_BYTES = 16_384
# One call takes at most this many records, about a second of work; the rest waits in the kernel's ring.
MAX_RECORDS = 20_000
# Distinct (device, code) pairs of one boot. A real host has seen some dozens at worst.
MAX_EVENTS = 4_096
MAX_BOOKMARKED = 4_096


class Bookmark(Struct, frozen=True):
    """Where to go on after a restart: what was read of which boot, and what it came to."""

    boot_id: str
    sequence: int  # of the last record taken
    events: list[FaultEvent] = []


class KernelLogCounters(Struct):
    """What the reader did since it started; each ends as a metric of the agent's own health."""

    records: int = 0
    faults: int = 0
    lost: int = 0  # overwritten before they were read
    untrusted: int = 0  # written by user space; dropped unless trust_user_space
    overflowed: int = 0  # faults not kept because MAX_EVENTS was reached
    oversized: int = 0  # larger than READ_BYTES


class _Event(Struct):
    """A fault being counted. Lines that only tell more of it raise no count, but without any other they are one."""

    first: FaultEvent
    count: int
    last_at: int


class KernelLog:
    """Yields FaultEvent rows: one per (device, code) of this boot, its count growing by replacement.

    ``booted_at`` is the host's boot time (nanoseconds, UTC); a record's own time is that plus its microseconds.
    ``devices`` maps PCI addresses to identities and may be replaced while running. ``trust_user_space`` takes
    lines that user space wrote to /dev/kmsg as the kernel's: for tests only.
    """

    name = "kernel_log"
    period_seconds = 1.0

    def __init__(
        self,
        *,
        cluster: str,
        host: str,
        boot_id: str,
        booted_at: int,
        path: Path = Path("/dev/kmsg"),
        bookmark: Bookmark | None = None,
        devices: Mapping[str, DeviceIdentity] | None = None,
        trust_user_space: bool = False,
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.boot_id = boot_id
        self.booted_at = booted_at
        self.path = path
        self.devices: Mapping[str, DeviceIdentity] = devices or {}
        self.trust_user_space = trust_user_space
        self.counters = KernelLogCounters()
        self._stream = LogStream()
        self._descriptor: int | None = None
        self._is_device = False  # /dev/kmsg gives a record a read; files and pipes give bytes
        self._rest = b""
        self._sequence = -1
        self._events: dict[tuple[str, str], _Event] = {}
        if bookmark is not None and bookmark.boot_id == boot_id:
            self._sequence = bookmark.sequence
            for event in bookmark.events[:MAX_BOOKMARKED]:
                self._events[event.device_id, event.code] = _Event(event, event.count, event.last_at)

    def collect(self, now: int) -> Iterable[FaultEvent]:
        """Read what is new and return the rows that changed. Never blocks.

        Raises Absent where there is no kernel log, Failed where it may not or cannot be read.
        """
        changed: dict[tuple[str, str], None] = {}
        for record in self._records():
            key = self._take(record, now)
            if key is not None:
                changed[key] = None
        return [self._row(self._events[key], now) for key in changed]

    def bookmark(self) -> Bookmark:
        """What to hand to the constructor after a restart, so that nothing is counted twice or forgotten."""
        return Bookmark(
            boot_id=self.boot_id,
            sequence=self._sequence,
            events=[self._row(event, event.last_at) for event in self._events.values()][:MAX_BOOKMARKED],
        )

    def close(self) -> None:
        """Give the log back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is not None:
            return self._descriptor
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Absent(f"{self.path} is not there") from None
        except PermissionError:
            raise Failed(
                f"{self.path} may not be read: run the agent as root or with CAP_SYSLOG, "
                "or set kernel.dmesg_restrict=0 and give its user read access"
            ) from None
        except OSError as error:
            raise Failed(f"{self.path} cannot be opened: {os.strerror(error.errno or 0)}") from error
        self._descriptor = descriptor
        self._is_device = stat.S_ISCHR(os.fstat(descriptor).st_mode)
        return descriptor

    def _records(self) -> Iterator[bytes]:
        """Records that are there now, oldest first, each with its continuation lines."""
        descriptor = self._open()
        for _ in range(MAX_RECORDS):
            try:
                data = os.read(descriptor, READ_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten; the gap in the sequence numbers says how many
                if error.errno == errno.EINVAL:
                    self.counters.oversized += 1
                    continue
                self.close()
                raise Failed(f"{self.path} cannot be read: {os.strerror(error.errno or 0)}") from error
            if not data:
                return
            if self._is_device:
                yield data
                continue
            # Only whole lines are taken, but a line without an end does not grow without bound.
            lines = (self._rest + data).split(b"\n")
            self._rest = lines.pop()[:READ_BYTES]
            yield from _with_continuations(lines)

    def _take(self, record: bytes, now: int) -> tuple[str, str] | None:
        """Count one record; returns the key of the event that it changed."""
        head, _, dictionary = record.partition(b"\n")
        message = strip(head)
        self.counters.records += 1
        if message.kmsg is not None:
            sequence = message.kmsg[1]
            if sequence <= self._sequence:
                return None
            if self._sequence >= 0:
                self.counters.lost += sequence - self._sequence - 1
            self._sequence = sequence
        if message.trust is Trust.USER:
            self.counters.untrusted += 1
            if not self.trust_user_space:
                return None
        pci = message.pci or _pci_of(dictionary)
        message = msgspec.structs.replace(message, pci=pci)
        found = self._stream.classify_message(message)
        if found.kind == "none":
            return None
        self.counters.faults += 1
        return self._count(found, message, now)

    def _count(self, found: Classified, message: Message, now: int) -> tuple[str, str] | None:
        at = now if message.kmsg is None else min(self.booted_at + message.kmsg[2] * 1000, now)
        device = self._device(found)
        device_id = device.device_id if device is not None else found.pci or ""
        key = (device_id, code_of(found))
        event = self._events.get(key)
        if event is None:
            if len(self._events) >= MAX_EVENTS:
                self.counters.overflowed += 1
                return None
            first = self._first(found, device, device_id, at)
            self._events[key] = _Event(first, 0 if found.continuation else 1, at)
            return key
        event.last_at = max(event.last_at, at)
        if found.continuation:
            return None
        event.count += 1
        # The first line was only a detail: the fault's own line says more.
        if event.count == 1:
            event.first = self._first(found, device, device_id, event.first.first_at)
        return key

    def _device(self, found: Classified) -> DeviceIdentity | None:
        if found.pci is not None:
            return self.devices.get(found.pci) or self.devices.get(found.pci.partition(".")[0] + ".0")
        # Old drivers name no device; with one device of that vendor there is no doubt.
        of_vendor = [device for device in self.devices.values() if device.vendor is found.vendor]
        return of_vendor[0] if len(of_vendor) == 1 and found.vendor is not Vendor.HOST else None

    def _first(self, found: Classified, device: DeviceIdentity | None, device_id: str, at: int) -> FaultEvent:
        assert found.severity is not None
        assert found.fault_class is not None
        return FaultEvent(
            cluster=self.cluster,
            host=self.host,
            boot_id=self.boot_id,
            observed_at=at,
            device_id=device_id,
            vendor=found.vendor,
            model=device.model if device is not None else "",
            pci_address=found.pci,
            source=self.name,
            kind=found.kind,
            code=code_of(found),
            block=found.block,
            fault_class=found.fault_class,
            severity=found.severity,
            blame=found.blame,
            secondary=found.secondary,
            first_at=at,
            last_at=at,
            text=found.text,
            trust=found.trust,
            link=found.link,
            pid=found.pid if found.pid is not None and found.pid >= 0 else None,
            process=found.process,
            table_version=TABLE_VERSION,
        )

    @staticmethod
    def _row(event: _Event, now: int) -> FaultEvent:
        return msgspec.structs.replace(event.first, observed_at=now, count=max(event.count, 1), last_at=event.last_at)


def code_of(found: Classified) -> str:
    """The code as `FaultEvent.code` has it: kind, block and code, e.g. ``xid:79``, ``ras:umc:uncorrectable``."""
    if found.kind == "init_failed" and isinstance(found.code, int):
        return f"afid:{found.code}"
    block = found.block if found.kind == "ras" else None
    return ":".join(str(part) for part in (found.kind, block, found.code) if part is not None)


def _with_continuations(lines: list[bytes]) -> Iterator[bytes]:
    """Join the `` KEY=value`` lines of a record to it, as one read of /dev/kmsg gives them."""
    held: bytes | None = None
    for line in lines:
        if held is not None and line.startswith((b" SUBSYSTEM=", b" DEVICE=")):
            held += b"\n" + line
            continue
        if held is not None:
            yield held
        held = line
    if held is not None:
        yield held


def _pci_of(dictionary: bytes) -> str | None:
    for line in dictionary.split(b"\n")[:8]:
        kind, _, address = line.strip().partition(b"=+pci:")
        if kind == b"DEVICE":
            text = address.decode("ascii", "replace")
            return normal_pci(text) if len(text) <= 24 and text.count(":") in {1, 2} else None
    return None
