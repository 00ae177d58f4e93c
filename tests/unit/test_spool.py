"""The spool: order, acknowledgement, bounds, broken frames, restarts."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from passmuster.batch import Batch
from passmuster.bus import LocalBus
from passmuster.config import Spool as SpoolConfig
from passmuster.spool import NANOS, Spool, SpoolBusy

BOOT = "boot-1"


class Clock:
    now = 1_700_000_000 * NANOS

    def __call__(self) -> int:
        """Return what the test set."""
        return self.now


def batch(kind: str, seq: int, *, size: int = 10, boot_id: str = BOOT) -> Batch:
    """A batch that no compression makes smaller."""
    return Batch(kind, 1, "c", "h", boot_id, seq, 1, {"text": os.urandom(size // 2).hex()})


def opened(folder: Path, clock: Clock | None = None, **config: float) -> Spool:
    """A spool with these settings."""
    return Spool(folder, msgspec.convert(config, SpoolConfig), clock or Clock())


def waiting(spool: Spool) -> list[tuple[str, int]]:
    """What is not acknowledged, as kind and sequence number."""
    return [(frame.kind, frame.seq) for _, frame in spool.read()]


def segment(folder: Path, lane: str) -> Path:
    """The newest segment file of a lane."""
    return max(folder.glob(f"{lane}-*.seg"))


def test_read_order(tmp_path: Path) -> None:
    """Events are read before readings, each lane in the order of writing."""
    spool = opened(tmp_path)
    for kind, seq in (("gpu_reading", 0), ("fault_event", 0), ("gpu_reading", 1), ("finding", 0)):
        spool.append(batch(kind, seq))
    assert waiting(spool) == [("fault_event", 0), ("finding", 0), ("gpu_reading", 0), ("gpu_reading", 1)]
    spool.close()


def test_round_trip(tmp_path: Path) -> None:
    """A batch comes back as it was, also after a restart."""
    sent = Batch("job_run", 1, "c", "h", BOOT, 7, 1, {"observed_at": 1, "job": "j", "started_at": 2})
    spool = opened(tmp_path)
    spool.append(sent)
    spool.close()
    again = opened(tmp_path)
    assert [sent] == [frame.batch() for _, frame in again.read()]
    again.close()


def test_acknowledged_is_not_read_again(tmp_path: Path) -> None:
    """What was acknowledged is not read again, also after a restart; the rest is."""
    spool = opened(tmp_path)
    for seq in range(3):
        spool.append(batch("fault_event", seq))
    spool.acknowledge([position for position, _ in spool.read()][1])
    spool.close()
    again = opened(tmp_path)
    assert waiting(again) == [("fault_event", 2)]
    again.close()


def test_acknowledging_backwards_changes_nothing(tmp_path: Path) -> None:
    """An older acknowledgement that comes late does not bring frames back."""
    spool = opened(tmp_path)
    for seq in range(3):
        spool.append(batch("fault_event", seq))
    positions = [position for position, _ in spool.read()]
    spool.acknowledge(positions[2])
    spool.acknowledge(positions[0])
    assert waiting(spool) == []
    spool.close()


@pytest.mark.parametrize("state", ["kept", "lost", "garbage"])
def test_seq_goes_on_after_restart(tmp_path: Path, state: str) -> None:
    """Sequence numbers go on after a restart, over several segments, even if the state file was lost."""
    spool = opened(tmp_path, segment_bytes=512)
    for _ in range(9):
        spool.append(batch("gpu_reading", spool.next_seq("h", BOOT, "gpu_reading"), size=200))
    spool.append(batch("fault_event", spool.next_seq("h", BOOT, "fault_event")))
    spool.close()
    if state == "lost":
        (tmp_path / "state.json").unlink()
    if state == "garbage":
        (tmp_path / "state.json").write_bytes(b"\xff\x00{")
    again = opened(tmp_path)
    assert again.next_seq("h", BOOT, "gpu_reading") == 9
    assert again.next_seq("h", BOOT, "fault_event") == 1
    assert again.next_seq("h", "boot-2", "gpu_reading") == 0
    again.close()


def test_resend(tmp_path: Path) -> None:
    """Acknowledged frames of one boot and kind are there for an hour, then gone."""
    clock = Clock()
    spool = opened(tmp_path, clock, segment_bytes=512)
    for seq in range(8):
        spool.append(batch("gpu_reading", seq, size=200))
        spool.append(batch("gpu_reading", seq, size=200, boot_id="other"))
    for position, _ in spool.read():
        spool.acknowledge(position)
    clock.now += 3_000 * NANOS
    spool.append(batch("gpu_reading", 8))
    assert [frame.seq for frame in spool.resend(BOOT, "gpu_reading", 2, 4)] == [2, 3, 4]
    clock.now += 601 * NANOS
    spool.append(batch("gpu_reading", 9))
    assert [frame.seq for frame in spool.resend(BOOT, "gpu_reading", 2, 4)] == []
    assert waiting(spool) == [("gpu_reading", 8), ("gpu_reading", 9)]
    spool.close()


def test_full_spool_drops_oldest_readings(tmp_path: Path) -> None:
    """The oldest readings make room, events stay, and each loss is counted by kind."""
    spool = opened(tmp_path, max_bytes=16_384)
    for seq in range(4):
        spool.append(batch("fault_event", seq, size=400))
    for seq in range(100):
        spool.append(batch("gpu_reading", seq, size=400))
    left = waiting(spool)
    readings = [seq for kind, seq in left if kind == "gpu_reading"]
    assert [("fault_event", seq) for seq in range(4)] == left[:4]
    assert readings == list(range(100 - len(readings), 100))
    assert readings
    stats = spool.stats()
    assert stats.dropped_total == {"gpu_reading": 100 - len(readings)}
    assert stats.total_bytes <= 16_384
    spool.close()


def test_events_never_give_way_to_readings(tmp_path: Path) -> None:
    """A spool full of events refuses readings and takes events in place of the oldest events."""
    spool = opened(tmp_path, max_bytes=8_192)
    for seq in range(60):
        spool.append(batch("fault_event", seq, size=400))
    before = waiting(spool)
    spool.append(batch("gpu_reading", 0, size=4_000))
    assert waiting(spool) == before
    assert before[-1] == ("fault_event", 59)
    assert spool.stats().dropped_total == {"fault_event": 60 - len(before), "gpu_reading": 1}
    spool.close()


def test_acknowledged_goes_before_waiting(tmp_path: Path) -> None:
    """For room, what was sent is deleted before anything that waits; nothing is counted as lost."""
    spool = opened(tmp_path, max_bytes=16_384)
    for seq in range(20):
        spool.append(batch("fault_event", seq, size=400))
    for position, _ in spool.read():
        spool.acknowledge(position)
    for seq in range(20):
        spool.append(batch("gpu_reading", seq, size=400))
    assert [seq for _, seq in waiting(spool)] == list(range(20))
    assert spool.stats().dropped_total == {}
    spool.close()


def test_too_old_is_dropped(tmp_path: Path) -> None:
    """Batches that waited longer than the bound are dropped and counted."""
    clock = Clock()
    spool = opened(tmp_path, clock, segment_bytes=512, max_age_seconds=1_000)
    for seq in range(4):
        spool.append(batch("gpu_reading", seq, size=400))
    clock.now += 1_001 * NANOS
    spool.append(batch("gpu_reading", 4, size=400))
    assert waiting(spool) == [("gpu_reading", 4)]
    assert spool.stats().dropped_total == {"gpu_reading": 4}
    spool.close()


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_torn_last_frame_is_cut(tmp_path: Path, cut: int) -> None:
    """A last frame that a crash left unfinished is cut and counted; writing goes on behind the whole ones."""
    spool = opened(tmp_path)
    for seq in range(3):
        spool.append(batch("fault_event", seq))
    spool.close()
    path = segment(tmp_path, "events")
    os.truncate(path, path.stat().st_size - cut)
    again = opened(tmp_path)
    again.append(batch("fault_event", 3))
    assert [seq for _, seq in waiting(again)] == [0, 1, 3]
    assert (again.stats().torn_total, again.stats().corrupt_total) == (1, 0)
    again.close()


@pytest.mark.parametrize("where", ["magic", "crc", "length", "payload"])
def test_broken_frame_in_the_middle_is_skipped(tmp_path: Path, where: str) -> None:
    """A broken frame between whole ones is skipped, and counted once however often it is read."""
    spool = opened(tmp_path)
    starts = []
    for seq in range(3):
        starts.append(spool.stats().total_bytes)
        spool.append(batch("fault_event", seq, size=100))
    offset = starts[1] + {"magic": 0, "crc": 4, "length": 10, "payload": 90}[where]
    with segment(tmp_path, "events").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0xFF]))
    assert [seq for _, seq in waiting(spool)] == [0, 2]
    assert [seq for _, seq in waiting(spool)] == [0, 2]
    assert spool.stats().corrupt_total == 1
    spool.close()


def test_segment_of_garbage(tmp_path: Path) -> None:
    """A segment file full of foreign bytes loses nothing else."""
    (tmp_path / "events-000000000001.seg").write_bytes(os.urandom(5_000) + b"\xffPMF" * 10)
    (tmp_path / "events-notes.seg").write_text("not ours")
    spool = opened(tmp_path)
    spool.append(batch("fault_event", 0))
    assert waiting(spool) == [("fault_event", 0)]
    spool.close()


def test_power_cut_takes_sent_frames(tmp_path: Path) -> None:
    """New frames in the place of sent ones that a power cut took are not taken for sent."""
    spool = opened(tmp_path)
    for seq in range(3):
        spool.append(batch("gpu_reading", seq))
    for position, _ in spool.read():
        spool.acknowledge(position)
    spool.close()
    os.truncate(segment(tmp_path, "readings"), 0)
    again = opened(tmp_path)
    again.append(batch("gpu_reading", 3))
    assert waiting(again) == [("gpu_reading", 3)]
    again.close()


def test_stats_tell_what_waits(tmp_path: Path) -> None:
    """Waiting bytes and the age of the oldest waiting batch are given; null age when none waits."""
    clock = Clock()
    spool = opened(tmp_path, clock)
    assert (spool.stats().waiting_bytes, spool.stats().oldest_seconds) == (0, None)
    spool.append(batch("gpu_reading", 0))
    clock.now += 5 * NANOS
    spool.append(batch("fault_event", 0))
    assert spool.stats().oldest_seconds == 5.0
    assert spool.stats().waiting_bytes == spool.stats().total_bytes > 0
    for position, _ in spool.read():
        spool.acknowledge(position)
    assert (spool.stats().waiting_bytes, spool.stats().oldest_seconds) == (0, None)
    spool.close()


def test_owner_is_named(tmp_path: Path) -> None:
    """A folder that is in use is refused in a sentence that names the process; a closed one is free."""
    spool = opened(tmp_path)
    with pytest.raises(SpoolBusy, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    spool.close()
    opened(tmp_path).close()


def test_bus_offers_what_is_spooled(tmp_path: Path) -> None:
    """A subscription gets the kinds that it asked for, and the spool has all of them."""
    bus = LocalBus(opened(tmp_path))
    subscription = bus.subscribe(["fault_event"])
    fault, reading = batch("fault_event", 0), batch("gpu_reading", 0)
    bus.publish(reading)
    bus.publish(fault)
    assert subscription.get(0) is fault
    assert subscription.get(0) is None
    assert len(waiting(bus.spool)) == 2
    bus.unsubscribe(subscription)
    bus.publish(fault)
    assert subscription.get(0) is None
    bus.spool.close()


def test_bus_counts_what_a_slow_reader_misses(tmp_path: Path) -> None:
    """A full subscription counts what it misses and never stops the publisher."""
    bus = LocalBus(opened(tmp_path))
    subscription = bus.subscribe(["gpu_reading"])
    for seq in range(1_026):
        bus.publish(batch("gpu_reading", seq))
    assert subscription.missed == {"gpu_reading": 2}
    bus.spool.close()
