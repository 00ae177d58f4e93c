"""The kernel-log reader counts each fault once per boot, device and code, and loses and repeats nothing."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.collector import Absent
from collectors.device import DeviceIdentity
from collectors.kernel_log import MAX_EVENTS, Bookmark, KernelLog, code_of
from collectors.kernel_log_classify import classify
from passmuster.records import Trust, Vendor

BOOTED = 1_764_000_000_000_000_000
NOW = BOOTED + 3_600_000_000_000
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python3, Ch 00000008"


def kmsg(*texts: str, start: int = 100, priority: int = 3) -> str:
    """Records as /dev/kmsg gives them, a millisecond apart."""
    return "".join(f"{priority},{start + i},{(start + i) * 1000},-;{text}\n" for i, text in enumerate(texts))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An empty kernel log."""
    path = tmp_path / "kmsg"
    path.touch()
    return path


def reader(path: Path, **given: Any) -> KernelLog:
    """A reader of that log."""
    return KernelLog(cluster="c", host="h", boot_id="boot-1", booted_at=BOOTED, path=path, **given)


def append(path: Path, text: str) -> None:
    """The kernel says something."""
    with path.open("a") as file:
        file.write(text)


def test_a_fault_becomes_a_row_with_its_own_time(log: Path) -> None:
    """The row carries class, device, text and the time of the record, not that of the reading."""
    append(log, kmsg("usb 1-1: new device", XID_79))
    (row,) = reader(log).collect(NOW)
    assert (row.kind, row.code, row.pci_address, row.count) == ("xid", "xid:79", "0000:3b:00.0", 1)
    assert (row.first_at, row.observed_at) == (BOOTED + 101_000_000, NOW)
    assert (row.fault_class.value, row.severity.value, row.trust) == ("B", "critical", Trust.KERNEL)


def test_a_clean_log_is_silent(log: Path) -> None:
    """Banners, all-clears and network chatter yield no row."""
    append(
        log,
        kmsg(
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64",
            "eth0: Link up",
            "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
        ),
    )
    assert list(reader(log).collect(NOW)) == []


def test_a_storm_is_one_row_per_device_and_code(log: Path) -> None:
    """Two thousand lines of 29 faults give 29 rows, whose counts add up to the lines."""
    lines = [f"NVRM: Xid (PCI:0000:{n % 29 + 1:02x}:00): 95, pid={n}, Uncontained" for n in range(2_900)]
    append(log, kmsg(*lines))
    rows = list(reader(log).collect(NOW))
    assert (29, {100}) == (len(rows), {row.count for row in rows})


def test_a_repeat_replaces_its_row(log: Path) -> None:
    """The count grows under the same natural key, across calls."""
    source = reader(log)
    append(log, kmsg(XID_79))
    (first,) = source.collect(NOW)
    append(log, kmsg(XID_79, XID_79, start=101))
    (second,) = source.collect(NOW + 1)
    assert [getattr(first, name) for name in first.KEY] == [getattr(second, name) for name in second.KEY]
    assert (second.count, second.last_at) == (3, BOOTED + 102_000_000)
    assert list(source.collect(NOW + 2)) == []


def test_a_detail_line_raises_no_count(log: Path) -> None:
    """The register dump and the lines that follow a fault are told once, with the fault."""
    append(
        log,
        kmsg(
            "NVRM: Xid (PCI:0000:02:00): 13, pid=1, name=p, Graphics SM Warp Exception on (GPC 2, TPC 0)",
            "NVRM: Xid (PCI:0000:02:00): 13, pid=1, name=p, Graphics Exception: ESR 0x515e48=0x102000e",
        ),
    )
    (row,) = reader(log).collect(NOW)
    assert row.count == 1


def test_a_detail_line_alone_is_still_a_fault(log: Path) -> None:
    """If the fault's own line was overwritten, what tells of it counts as one."""
    append(log, kmsg("NVRM: GPU 0000:09:00.0: rm_init_adapter failed, device minor number 0"))
    (row,) = reader(log).collect(NOW)
    assert (row.kind, row.count) == ("init_failed", 1)


def test_a_detail_line_before_its_fault_is_not_counted_twice(log: Path) -> None:
    """The port's notice comes before the error itself: together they are one."""
    append(
        log,
        kmsg(
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:00:01.0",
            "pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        ),
    )
    (row,) = reader(log).collect(NOW)
    assert (row.count, row.block) == (1, "transaction layer")


def test_reading_goes_on_after_a_restart(log: Path) -> None:
    """With its bookmark a new reader neither forgets nor repeats; on a later boot it starts afresh."""
    append(log, kmsg(XID_79, XID_79))
    first = reader(log)
    (before,) = first.collect(NOW)
    kept = msgspec.json.decode(msgspec.json.encode(first.bookmark()), type=Bookmark)
    append(log, kmsg(XID_79, start=102))
    (after,) = reader(log, bookmark=kept).collect(NOW)
    assert (3, before.first_at) == (after.count, after.first_at)
    (other,) = reader(log, bookmark=msgspec.structs.replace(kept, boot_id="boot-0")).collect(NOW)
    assert other.count == 3


def test_lost_records_are_counted(log: Path) -> None:
    """A gap in the sequence numbers is a number of records that nobody read."""
    append(log, kmsg("a", start=10) + kmsg(XID_79, start=17))
    source = reader(log)
    list(source.collect(NOW))
    assert source.counters.lost == 6


def test_user_space_is_not_believed(log: Path) -> None:
    """A record of another facility is dropped and counted, unless it is asked for."""
    append(log, kmsg(XID_79, priority=12))
    source = reader(log)
    assert list(source.collect(NOW)) == []
    assert source.counters.untrusted == 1
    (row,) = reader(log, trust_user_space=True).collect(NOW)
    assert Trust.USER is row.trust


def test_the_kernels_dictionary_names_the_device(log: Path) -> None:
    """Where the text has no address, the DEVICE line of the record has one."""
    append(log, kmsg("amdgpu: qcm fence wait loop timeout expired") + " SUBSYSTEM=pci\n DEVICE=+pci:0000:c6:00.0\n")
    (row,) = reader(log).collect(NOW)
    assert row.pci_address == "0000:c6:00.0"


def test_an_identified_device_gives_its_serial(log: Path) -> None:
    """Rows of a known device carry its id and model; old lines without an address take the only one there is."""
    gpu = DeviceIdentity(
        device_id="serial-1",
        pci_address="0000:03:00.0",
        index=0,
        vendor=Vendor.AMD,
        model="MI300X",
        values={},
        missing={},
    )
    append(
        log,
        kmsg(
            "amdgpu 0000:03:00.0: amdgpu: device lost from bus!",
            "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3",
        ),
    )
    rows = list(reader(log, devices={gpu.pci_address: gpu}).collect(NOW))
    assert [(row.device_id, row.model) for row in rows] == [("serial-1", "MI300X")] * 2


def test_distinct_faults_are_bounded(log: Path) -> None:
    """A log that names ever new devices fills no memory; what is not kept is counted."""
    texts = [f"NVRM: Xid (PCI:{n:04x}:01:00): 79, x" for n in range(MAX_EVENTS + 5)]
    append(log, kmsg(*texts))
    source = reader(log)
    assert len(list(source.collect(NOW))) == MAX_EVENTS
    assert source.counters.overflowed == 5


def test_a_line_without_its_end_waits(log: Path) -> None:
    """Half a line is not judged before the other half is there."""
    whole = kmsg(XID_31)
    append(log, whole[:40])
    source = reader(log)
    assert list(source.collect(NOW)) == []
    append(log, whole[40:])
    (row,) = source.collect(NOW)
    assert (row.code, row.pid) == ("xid:31", 7)


def test_a_host_without_a_kernel_log_is_absent(tmp_path: Path) -> None:
    """Nothing there is an outcome of its own."""
    with pytest.raises(Absent, match="is not there"):
        reader(tmp_path / "none").collect(NOW)


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        ("xid:79", XID_79),
        ("ras:umc:uncorrectable", "amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block"),
        ("afid:4", "amdgpu 0000:9e:00.0: amdgpu: socket: 0, aid: 2, hbm: 1, fw_status: 0x8, memory training failed"),
        ("ring_timeout", "amdgpu 0000:04:00.0: amdgpu: ring comp_1.0.1 timeout, signaled seq=45, emitted seq=47"),
        ("aer:corrected", "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer"),
    ],
)
def test_codes_are_spelled_as_the_records_do(expected: str, line: str) -> None:
    """One spelling of a fault for store, detectors and pages."""
    assert expected == code_of(classify(line))
