"""The kernel log through real processes and pipes: the command, a pipe that is being written, this machine's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.collector import Failed
from collectors.kernel_log import KernelLog

XID_95 = "NVRM: Xid (PCI:0000:{bus:02x}:00): 95, pid={pid}, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"


def muster(*words: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "passmuster", *words], input=given, capture_output=True, timeout=60, check=False
    )


def reader(path: Path) -> KernelLog:
    """A reader of that log."""
    return KernelLog(cluster="c", host="h", boot_id="b", booted_at=0, path=path)


def test_classify_answers_every_line_in_order() -> None:
    """One JSON object for each line of input, whatever the line is, and exit code 0."""
    lines = [
        b"[12345.678901] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.",
        b"",
        b"\xff\xfe\x00rubbish",
        b"A" * 1_000_000,
        b"amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware err",
    ]
    done = muster("faults", "classify", "-", given=b"\n".join(lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["kind"] for answer in answers] == ["xid", "none", "none", "none", "ras"]
    assert (answers[0]["code"], answers[0]["class"], answers[0]["blame"]) == (79, "B", "hardware")
    assert (done.returncode, done.stderr) == (0, b"")


def test_classify_answers_while_its_input_is_open() -> None:
    """Behind `journalctl -f` an answer comes with the line, not with the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "passmuster", "faults", "classify", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"[1.2] amdgpu 0000:75:00.0: amdgpu: device lost from bus!\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["kind"] == "lost"
        child.stdin.close()
        assert child.wait(timeout=30) == 0


def test_list_prints_the_table() -> None:
    """Every row as JSON, with its source."""
    done = muster("faults", "list", "--json", given=b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["severity"] for row in rows if (row["kind"], row["code"]) == ("xid", "79")] == ["critical"]
    assert all(row["source"] for row in rows)


def test_a_storm_through_a_pipe_is_29_rows(tmp_path: Path) -> None:
    """Eighty thousand lines of 29 faults, written while they are read, end as 29 rows that count them all."""
    pipe = tmp_path / "kmsg"
    os.mkfifo(pipe)
    writer = (
        "import sys\n"
        f"text = {XID_95!r}\n"
        "with open(sys.argv[1], 'w') as log:\n"
        "    for n in range(80_000):\n"
        "        print(f'3,{n},{n},-;' + text.format(bus=n % 29 + 1, pid=n), file=log)\n"
    )
    source = reader(pipe)
    assert list(source.collect(1)) == []
    rows = {}
    with subprocess.Popen([sys.executable, "-c", writer, str(pipe)]) as child:
        deadline = time.monotonic() + 50
        while source.counters.records < 80_000 and time.monotonic() < deadline:
            rows.update({row.device_id: row for row in source.collect(10**12)})
        assert child.wait(timeout=10) == 0
    source.close()
    assert (len(rows), sum(row.count for row in rows.values()), source.counters.lost) == (29, 80_000, 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read_says_what_to_do(tmp_path: Path) -> None:
    """No permission is not the same as not there, and comes with a way out."""
    path = tmp_path / "kmsg"
    path.touch(mode=0)
    with pytest.raises(Failed, match="CAP_SYSLOG"):
        reader(path).collect(1)


def test_this_machines_own_log_is_read_or_refused() -> None:
    """On a real /dev/kmsg the reader ends at the newest record without blocking."""
    path = Path("/dev/kmsg")
    if not os.access(path, os.R_OK):
        pytest.skip("/dev/kmsg may not be read here")
    source = reader(path)
    started = time.monotonic()
    list(source.collect(time.time_ns()))
    source.close()
    assert time.monotonic() - started < 10
