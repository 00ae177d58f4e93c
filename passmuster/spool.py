"""The on-disk spool: every batch lies here, checked by a CRC, until the bus has taken it, and an hour longer.

Two lanes of append-only segment files: ``events`` (faults, findings, results: synced at once, dropped last) and
``readings`` (synced every few seconds, dropped first). A segment's modification time is the time of its last
frame and, once all of it is acknowledged, the time of that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from passmuster.batch import Batch
from passmuster.config import Spool as SpoolConfig
from passmuster.errors import SpoolFull, UserError
from passmuster.exits import ExitCode
from passmuster.spool_frame import Frame, find, pack, parse

LANES = ("events", "readings")  # in the order in which they are read
READINGS = frozenset({"gpu_reading", "host_reading", "step_timing", "kernel_timing"})
READINGS_SYNC_SECONDS = 5.0  # what a power cut may cost; a sync of every reading would keep a disk busy
# A whole segment is dropped at a time, so one must stay a small part of the spool.
LEAST_SEGMENTS = 8

MAX_SEQS = 65_536  # a simulated fleet's hosts times kinds, and a host's last boots; older boots are forgotten

NANOS = 1_000_000_000


class SpoolBusy(UserError):
    """Another live process owns the folder."""

    exit_code = ExitCode.FAIL


class Position(NamedTuple):
    """Where a frame ends; acknowledging it acknowledges all before it in its lane."""

    lane: str
    segment: int
    offset: int


class SpoolStats(Struct, frozen=True):
    """How the spool is doing, for `HostReading` and the exporter."""

    waiting_bytes: int  # not acknowledged yet
    oldest_seconds: float | None  # age of the oldest batch that waits; null when none does
    total_bytes: int  # on disk, acknowledged segments included
    dropped_total: dict[str, int]  # batches lost before they were sent, by kind
    corrupt_total: int  # places in the middle of a segment that were skipped
    torn_total: int  # unfinished last frames that were cut after a crash
    blocked: str | None  # why the disk takes nothing at present


class _State(Struct):
    """What outlives the process beside the segments themselves."""

    # JSON has no tuple keys: [host, boot, kind, next]
    seqs: list[tuple[str, str, str, int]] = []
    acknowledged: dict[str, tuple[int, int]] = {}


class _Segment(Struct):
    number: int
    path: Path
    size: int
    touched_at: int


def lane_of(kind: str) -> str:
    """Return the lane of a record kind."""
    return "readings" if kind in READINGS else "events"


class Spool:
    """The spool in one folder. Safe to use from several threads; one process owns the folder.

    `clock` gives nanoseconds UTC. Raises SpoolBusy when another live process has the folder, UserError when the folder
    cannot be used.
    """

    def __init__(self, folder: str | Path, config: SpoolConfig, clock: Callable[[], int]) -> None:
        self.folder = Path(folder)
        self._config = config
        self._clock = clock
        self._lock = threading.RLock()
        self._dropped: Counter[str] = Counter()
        self._corrupt = 0
        self._bad_places: set[tuple[str, int, int]] = set()
        self._torn = 0
        self._blocked: str | None = None
        self._segment_bytes = min(config.segment_bytes, max(config.max_bytes // LEAST_SEGMENTS, 1))
        self._active: dict[str, int] = {}
        self._synced_at = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._lock_fd = _own(self.folder)
        except OSError as error:
            raise UserError(
                f"cannot use the spool folder {self.folder}: {error.strerror}; set spool.dir to a folder that this "
                "user may write"
            ) from None
        self._seqs: dict[tuple[str, str, str], int] = {}
        # Given out and not appended yet: never saved, because a number without its batch would look like a loss.
        self._reserved: dict[tuple[str, str, str], int] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        known = self._load_state()
        self._segments = {lane: self._find(lane) for lane in LANES}
        for lane in LANES:
            self._recover(lane, known)

    # ---- writing

    def next_seq(self, host: str, boot_id: str, kind: str) -> int:
        """Return the next sequence number of this host, boot and kind: 0, 1, 2, ... also over restarts."""
        with self._lock:
            key = (host, boot_id, kind)
            seq = max(self._seqs.get(key, 0), self._reserved.get(key, 0))
            self._reserved[key] = seq + 1
            return seq

    def append(self, batch: Batch) -> None:
        """Write a batch. When it returns, an event is on the disk and a reading is with the kernel.

        Raises SpoolFull when the disk begins to refuse; what was there before is kept. Until there is room again,
        further batches are counted as dropped and nothing is raised.
        """
        lane = lane_of(batch.kind)
        with self._lock:
            now = self._clock()
            frame = pack(batch, now)
            if not self._make_room(lane, len(frame), now):
                self._drop_new(batch)
                return
            while True:
                try:
                    self._write(lane, frame, now)
                except OSError as error:
                    if self._free_on_full_disk(lane):
                        continue
                    self._drop_new(batch)
                    if self._blocked is not None:
                        return
                    self._blocked = error.strerror or str(error)
                    raise SpoolFull(
                        f"the disk under the spool {self.folder} takes nothing more ({self._blocked}); what was "
                        "spooled is kept, new batches are dropped and counted until there is room"
                    ) from None
                break
            self._blocked = None
            self._saw(batch.host, batch.boot_id, batch.kind, batch.seq)

    def _drop_new(self, batch: Batch) -> None:
        """Count a batch that could not be written; its number is used, so that the gap shows."""
        self._dropped[batch.kind] += 1
        self._saw(batch.host, batch.boot_id, batch.kind, batch.seq)

    def sync(self) -> None:
        """Force everything to the disk."""
        with self._lock:
            for fd in self._active.values():
                os.fdatasync(fd)
            self._synced_at = self._clock()

    # ---- reading

    def read(self) -> Iterator[tuple[Position, Frame]]:
        """Yield what is not acknowledged yet, events first, oldest first, up to the end as it is by then.

        May be called again at any time: it begins behind what is acknowledged. Frames whose CRC is wrong are
        skipped and counted.
        """
        for lane in LANES:
            with self._lock:
                number, offset = self._acknowledged.get(lane, (0, 0))
            while (segment := self._segment(lane, number)) is not None:
                start = offset if segment.number == number else 0
                for end, frame in self._frames(lane, segment, start):
                    yield Position(lane, segment.number, end), frame
                number, offset = segment.number + 1, 0

    def acknowledge(self, position: Position) -> None:
        """Note that the bus has everything up to this position of its lane; going back changes nothing."""
        with self._lock:
            if (position.segment, position.offset) <= self._acknowledged.get(position.lane, (0, 0)):
                return
            before = self._acknowledged.get(position.lane, (0, 0))[0]
            self._acknowledged[position.lane] = (position.segment, position.offset)
            now = self._clock()
            for segment in self._segments[position.lane]:
                if segment.number >= before and self._is_acknowledged(position.lane, segment):
                    self._touch(segment, now)
            self._prune(now)
            # Unsynced, and not needed: an acknowledgement that is lost costs a redelivery, which replaces itself.
            with contextlib.suppress(OSError):
                self._save_state()

    def resend(self, boot_id: str, kind: str, seq_from: int, seq_to: int) -> Iterator[Frame]:
        """Yield the frames of one boot and kind with ``seq_from <= seq <= seq_to`` that are still here."""
        lane = lane_of(kind)
        number = 0
        while (segment := self._segment(lane, number)) is not None:
            for _, frame in self._frames(lane, segment, 0):
                if frame.kind == kind and frame.boot_id == boot_id and seq_from <= frame.seq <= seq_to:
                    yield frame
            number = segment.number + 1

    def stats(self) -> SpoolStats:
        """Return sizes, ages and counters as they are now."""
        with self._lock:
            waiting, total, oldest = 0, 0, None
            for lane, segments in self._segments.items():
                number, offset = self._acknowledged.get(lane, (0, 0))
                total += sum(s.size for s in segments)
                waits = [(s, offset if s.number == number else 0) for s in segments if s.number >= number]
                waiting += sum(s.size - start for s, start in waits)
                for segment, start in waits:
                    first = next(self._frames(lane, segment, start), None)
                    if first is not None:
                        oldest = first[1].at if oldest is None else min(oldest, first[1].at)
                        break
            age = None if oldest is None else max(0.0, (self._clock() - oldest) / NANOS)
            return SpoolStats(waiting, age, total, dict(self._dropped), self._corrupt, self._torn, self._blocked)

    def close(self) -> None:
        """Sync, remember the sequence numbers, let the folder go; harmless when closed."""
        with self._lock:
            if self._lock_fd < 0:
                return
            with contextlib.suppress(OSError):  # a full disk loses no frame here, only the state, which is recovered
                self.sync()
                self._save_state()
            for fd in self._active.values():
                os.close(fd)
            self._active.clear()
            os.close(self._lock_fd)
            self._lock_fd = -1

    # ---- segments

    def _find(self, lane: str) -> list[_Segment]:
        segments = []
        for path in self.folder.glob(f"{lane}-*.seg"):
            number = path.stem.removeprefix(f"{lane}-")
            if number.isdigit():
                info = path.stat()
                segments.append(_Segment(int(number), path, info.st_size, info.st_mtime_ns))
        return sorted(segments, key=lambda s: s.number)

    def _segment(self, lane: str, number: int) -> _Segment | None:
        """Return the first segment from this number on: those before it may be gone."""
        with self._lock:
            return next((s for s in self._segments[lane] if s.number >= number), None)

    def _is_acknowledged(self, lane: str, segment: _Segment) -> bool:
        number, offset = self._acknowledged.get(lane, (0, 0))
        return segment.number < number or (segment.number == number and offset >= segment.size)

    def _recover(self, lane: str, known: bool) -> None:
        """Cut a torn end off the newest segment, and learn the sequence numbers that the state does not hold."""
        if not self._segments[lane]:
            return
        newest = self._segments[lane][-1]
        good = 0
        # The state is saved before a segment begins, so only the newest can know more; unless the state was lost.
        for segment in [newest] if known else self._segments[lane]:
            for end, frame in self._frames(lane, segment, 0):
                good = end if segment is newest else 0
                self._saw(frame.host, frame.boot_id, frame.kind, frame.seq)
        if good < newest.size:
            os.truncate(newest.path, good)
            newest.size = good
            self._torn += 1
            torn = {place for place in self._bad_places if place[:2] == (lane, newest.number) and place[2] >= good}
            self._bad_places -= torn
            self._corrupt -= len(torn)
        number, offset = self._acknowledged.get(lane, (0, 0))
        if number == newest.number and offset > newest.size:
            # A power cut took frames that were sent; what is written in their place is not.
            self._acknowledged[lane] = (number, newest.size)

    def _saw(self, host: str, boot_id: str, kind: str, seq: int) -> None:
        """Remember a used sequence number; the latest used stand last."""
        key = (host, boot_id, kind)
        self._seqs[key] = max(self._seqs.pop(key, 0), seq + 1)
        if self._reserved.get(key, 0) <= self._seqs[key]:
            self._reserved.pop(key, None)

    def _frames(self, lane: str, segment: _Segment, start: int) -> Iterator[tuple[int, Frame]]:
        """Yield (end, frame) from an offset on; what is broken in between is skipped and counted once."""
        try:
            file = segment.path.open("rb")
        except FileNotFoundError:  # dropped for room or age meanwhile, and counted there
            return
        with file:
            offset = start
            while (size := segment.size) > offset:
                found = parse(file, offset, size)
                if found is None:
                    place = (lane, segment.number, offset)
                    self._corrupt += place not in self._bad_places
                    self._bad_places.add(place)
                    following = find(file, offset + 1, size)
                    if following is None:
                        return
                    offset = following
                    continue
                offset, frame = found
                yield offset, frame

    def _write(self, lane: str, frame: bytes, now: int) -> None:
        segments = self._segments[lane]
        if lane not in self._active or (segments[-1].size and segments[-1].size + len(frame) > self._segment_bytes):
            self._begin_segment(lane, now)
        segment, fd = segments[-1], self._active[lane]
        try:
            written = 0
            while written < len(frame):
                written += os.write(fd, memoryview(frame)[written:])
            if lane == "events":
                os.fdatasync(fd)
            elif now - self._synced_at >= READINGS_SYNC_SECONDS * NANOS:
                os.fdatasync(fd)
                self._synced_at = now
        except OSError:
            # Half a frame must not stand before the next one.
            os.ftruncate(fd, segment.size)
            raise
        segment.size += len(frame)
        segment.touched_at = now

    def _begin_segment(self, lane: str, now: int) -> None:
        """Close the active segment and start one; after a restart the newest goes on if it has room."""
        segments = self._segments[lane]
        if lane in self._active:
            previous = self._active.pop(lane)
            os.fdatasync(previous)
            os.close(previous)
            self._touch(segments[-1], segments[-1].touched_at)
        elif segments and segments[-1].size < self._segment_bytes // 2:
            self._active[lane] = os.open(segments[-1].path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            return
        self._save_state()
        # A number is never used twice, or an old acknowledgement would cover new frames.
        newest = max([s.number for s in segments[-1:]] + [self._acknowledged.get(lane, (0, 0))[0]])
        path = self.folder / f"{lane}-{newest + 1:012d}.seg"
        self._active[lane] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        segments.append(_Segment(newest + 1, path, 0, now))
        _sync_folder(self.folder)

    def _touch(self, segment: _Segment, at: int) -> None:
        segment.touched_at = at
        with contextlib.suppress(FileNotFoundError):
            os.utime(segment.path, ns=(at, at))

    # ---- bounds

    def _prune(self, now: int) -> None:
        """Delete what was acknowledged long enough ago, drop what waited too long; both from the oldest on."""
        for lane in LANES:
            for segment in list(self._segments[lane]):
                age = (now - segment.touched_at) / NANOS
                if self._is_acknowledged(lane, segment):
                    if age < self._config.keep_acknowledged_seconds or self._is_active(lane, segment):
                        break
                    self._delete(lane, segment)
                elif age >= self._config.max_age_seconds:
                    self._drop(lane, segment)
                else:
                    break

    def _make_room(self, lane: str, wanted: int, now: int) -> bool:
        """Keep the spool below its size: sent segments go first, then the oldest readings, then the oldest events."""
        self._prune(now)
        if wanted > self._config.max_bytes:
            return False
        while sum(s.size for segments in self._segments.values() for s in segments) + wanted > self._config.max_bytes:
            if self._delete_oldest_acknowledged() or self._drop_oldest("readings"):
                continue
            # Events never give way to a reading.
            if lane == "readings" or not self._drop_oldest("events"):
                return False
        return True

    def _free_on_full_disk(self, lane: str) -> bool:
        """Give back disk when it is full: what was sent goes; for an event, the oldest waiting readings too."""
        return self._delete_oldest_acknowledged() or (lane == "events" and self._drop_oldest("readings"))

    def _delete_oldest_acknowledged(self) -> bool:
        done = [
            (segment.touched_at, lane, segment)
            for lane in LANES
            for segment in self._segments[lane]
            if segment.size and self._is_acknowledged(lane, segment)
        ]
        if not done:
            return False
        _, lane, segment = min(done, key=lambda item: item[0])
        self._delete(lane, segment)
        return True

    def _drop_oldest(self, lane: str) -> bool:
        segment = next((s for s in self._segments[lane] if s.size), None)
        if segment is None:
            return False
        self._drop(lane, segment)
        return True

    def _drop(self, lane: str, segment: _Segment) -> None:
        number, offset = self._acknowledged.get(lane, (0, 0))
        start = offset if segment.number == number else 0
        self._dropped.update(frame.kind for _, frame in self._frames(lane, segment, start))
        self._delete(lane, segment)

    def _is_active(self, lane: str, segment: _Segment) -> bool:
        return lane in self._active and segment is self._segments[lane][-1]

    def _delete(self, lane: str, segment: _Segment) -> None:
        """Remove the oldest segment of a lane; the reading position moves behind it."""
        if self._is_active(lane, segment):
            os.close(self._active.pop(lane))
        self._acknowledged[lane] = max(self._acknowledged.get(lane, (0, 0)), (segment.number, segment.size))
        self._segments[lane].remove(segment)
        self._bad_places = {place for place in self._bad_places if place[:2] != (lane, segment.number)}
        segment.path.unlink(missing_ok=True)

    # ---- state

    def _load_state(self) -> bool:
        """Read the state; tell whether it was there and whole."""
        try:
            state = msgspec.json.decode((self.folder / "state.json").read_bytes(), type=_State)
        except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
            # A power cut can leave it empty. Everything is sent again; the sequence goes on from the frames.
            return False
        self._seqs = {(host, boot, kind): seq for host, boot, kind, seq in state.seqs}
        self._acknowledged = {lane: at for lane, at in state.acknowledged.items() if lane in LANES}
        return True

    def _save_state(self) -> None:
        seqs = [(host, boot, kind, seq) for (host, boot, kind), seq in self._seqs.items()][-MAX_SEQS:]
        path = self.folder / "state.json"
        temporary = self.folder / "state.json.new"
        try:
            temporary.write_bytes(msgspec.json.encode(_State(seqs, self._acknowledged)))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _own(folder: Path) -> int:
    """Take the folder for this process; the kernel gives it back however the process ends."""
    path = folder / "lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(fd, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise SpoolBusy(
            f"the spool folder {folder} is in use by process {owner}; stop that process or set another spool.dir"
        ) from None
    with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only without a name on it
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
