"""The spool on a disk that is really full, and under a writer that is really killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from passmuster.batch import Batch
from passmuster.config import Spool as SpoolConfig
from passmuster.errors import SpoolFull
from passmuster.spool import Spool, SpoolBusy

WRITER = """
import sys, time
from passmuster.batch import Batch
from passmuster.config import Spool as SpoolConfig
from passmuster.spool import Spool
spool = Spool(sys.argv[1], SpoolConfig(segment_bytes=4096), time.time_ns)
while True:
    for kind in ("fault_event", "gpu_reading"):
        seq = spool.next_seq("h", "b", kind)
        spool.append(Batch(kind, 1, "c", "h", "b", seq, 1, {"text": "x" * 50}))
        print(kind, seq, flush=True)
"""

# Files may grow to 20,000 bytes: the kernel refuses the rest with EFBIG, as a full disk does with ENOSPC.
LIMITED = """
import resource, sys, time
from passmuster.batch import Batch
from passmuster.config import Spool as SpoolConfig
from passmuster.errors import SpoolFull
from passmuster.spool import Spool
import os
spool = Spool(sys.argv[1], SpoolConfig(), time.time_ns)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
raised = []
for seq in range(60):
    try:
        spool.append(Batch("fault_event", 1, "c", "h", "b", seq, 1, {"text": os.urandom(250).hex()}))
    except SpoolFull as error:
        raised.append(str(error))
kept = [frame.seq for _, frame in spool.read()]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.append(Batch("fault_event", 1, "c", "h", "b", 60, 1, {"text": "there is room"}))
again = [frame.seq for _, frame in spool.read()]
assert len(raised) == 1, raised
assert "takes nothing more (File too large)" in raised[0], raised
assert kept == list(range(len(kept))) and 0 < len(kept) < 60, kept
assert again == [*kept, 60], again
assert spool.stats().dropped_total == {"fault_event": 60 - len(kept)}
assert spool.stats().blocked is None
"""


def batch(kind: str, seq: int, size: int = 1_000) -> Batch:
    """A batch that no compression makes smaller."""
    return Batch(kind, 1, "c", "h", "b", seq, 1, {"text": os.urandom(size // 2).hex()})


def fill(spool: Spool) -> None:
    """Write far more than the small disk takes."""
    for seq in range(200):
        spool.append(batch("gpu_reading", seq))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "passmuster-test", str(folder)], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs; the RLIMIT_FSIZE test runs everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_keeps_what_it_had(small_disk: Path) -> None:
    """A full disk is told once, loses nothing of what was spooled, and is used again when there is room."""
    (small_disk / "else").write_bytes(bytes(64 * 1024))
    spool = Spool(small_disk / "spool", SpoolConfig(), time.time_ns)
    raised = []
    for seq in range(200):
        try:
            spool.append(batch("fault_event", seq))
        except SpoolFull as error:
            raised.append(str(error))
    kept = [frame.seq for _, frame in spool.read()]
    assert len(raised) == 1
    assert "takes nothing more (No space left on device)" in raised[0]
    assert kept == list(range(len(kept)))
    assert 20 < len(kept) < 200
    assert spool.stats().dropped_total == {"fault_event": 200 - len(kept)}
    (small_disk / "else").unlink()
    spool.append(batch("fault_event", 200))
    assert [frame.seq for _, frame in spool.read()] == [*kept, 200]
    assert spool.stats().blocked is None
    spool.close()


def test_full_disk_gives_readings_for_an_event(small_disk: Path) -> None:
    """On a full disk a fault takes the place of the oldest readings, which are counted."""
    spool = Spool(small_disk / "spool", msgspec.convert({"segment_bytes": 16_384}, SpoolConfig), time.time_ns)
    with pytest.raises(SpoolFull):
        fill(spool)
    spool.append(batch("fault_event", 0))
    left = [(frame.kind, frame.seq) for _, frame in spool.read()]
    assert left[0] == ("fault_event", 0)
    assert left[1][1] > 0
    assert spool.stats().dropped_total["gpu_reading"] >= left[1][1]
    spool.close()


def test_start_on_a_full_disk(small_disk: Path) -> None:
    """A spool opens on a full disk, and shows what it has."""
    spool = Spool(small_disk / "spool", SpoolConfig(), time.time_ns)
    spool.append(batch("fault_event", 0))
    spool.close()
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "else").write_bytes(bytes(256 * 1024))
    again = Spool(small_disk / "spool", SpoolConfig(), time.time_ns)
    assert [frame.seq for _, frame in again.read()] == [0]
    again.close()


def test_file_size_limit(tmp_path: Path) -> None:
    """The same as a full disk where nothing may be mounted: the kernel refuses to let a file grow."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_killed_writer_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After each of 8 kills, everything whose append returned is there, in order, without a gap or a repeat."""
    told = {"fault_event": -1, "gpu_reading": -1}
    for round_number in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            try:
                for _ in range(30 + 13 * round_number):
                    kind, seq = writer.stdout.readline().split()
                    assert int(seq) == told[kind] + 1
                    told[kind] = int(seq)
                with pytest.raises(SpoolBusy, match=f"in use by process {writer.pid}"):
                    Spool(tmp_path, SpoolConfig(), time.time_ns)
            finally:
                writer.kill()
        spool = Spool(tmp_path, SpoolConfig(), time.time_ns)
        frames = [frame for _, frame in spool.read()]
        for kind, last in told.items():
            seqs = [frame.seq for frame in frames if frame.kind == kind]
            assert seqs == list(range(len(seqs)))
            assert len(seqs) > last
        told = {kind: sum(frame.kind == kind for frame in frames) - 1 for kind in told}
        assert spool.stats().corrupt_total == 0
        spool.close()
