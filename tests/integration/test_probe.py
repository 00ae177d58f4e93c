"""The device child and its parent, as real processes with the shipped fake device."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.device import LibraryAbsent, LibraryBroken, Tier
from collectors.probe import INVALID, DeviceProbe, Outcome, ProbeCrashed, ProbeHung, decode_payload
from passmuster.config import Agent

ONE_GPU = "vendor nvidia\ngpu.count 1\ngpu0.bdf 0000:06:00.0\ngpu0.serial 165\ngpu0.temp.0 61\n"


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """A scenario of one GPU."""
    path = tmp_path / "one.txt"
    path.write_text(ONE_GPU)
    return path


@pytest.fixture
def probe(scenario: Path) -> Iterator[DeviceProbe]:
    """A probe of it with short deadlines."""
    found = DeviceProbe(f"fake:{scenario}", Agent(call_deadline_seconds=0.5))
    yield found
    found.close()


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process ends in time; one that waits to be reaped has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        select.select([], [], [], 0.02)
    return False


def test_conversation(probe: DeviceProbe) -> None:
    """Identity and samples come through the pipes with their types."""
    probe.open()
    assert ["165"] == [i.device_id for i in probe.identify()]
    assert 61.0 == probe.sample(Tier.FAST)[0].values["temperature_core_celsius"]
    assert Outcome.OK is probe.outcome


def test_hang_is_evidence_and_the_child_is_killed(probe: DeviceProbe, scenario: Path) -> None:
    """A call that never returns is told with the place where it hangs, within the deadline and a moment."""
    probe.open()
    pid = probe.pid
    assert pid
    scenario.write_text(ONE_GPU + "gpu0.hang 1\n")
    started = time.monotonic()
    with pytest.raises(ProbeHung, match=r"no answer to sample fast within 0\.\d s.*fake_device\.py"):
        probe.sample(Tier.FAST)
    assert time.monotonic() - started < 3.0
    assert (Outcome.HUNG, False) == (probe.outcome, probe.running)
    assert gone(pid)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_crash_is_evidence(probe: DeviceProbe, number: signal.Signals) -> None:
    """A library that takes its process down is told with the signal."""
    probe.open()
    assert probe.pid
    os.kill(probe.pid, number)
    assert gone(probe.pid)
    with pytest.raises(ProbeCrashed, match=number.name):
        probe.identify()


def test_back_off_before_the_next_start(scenario: Path) -> None:
    """After a hang the next child waits; a library that answers again is forgiven."""
    clock = [0.0]
    probe = DeviceProbe(f"fake:{scenario}", Agent(), monotonic=lambda: clock[0])
    assert probe.may_start()
    probe.start()
    clock[0] = 31.0
    with pytest.raises(ProbeHung):
        probe.check()
    waits = []
    for at in (31.0, 35.9, 36.2):
        clock[0] = at
        waits.append(probe.may_start())
    probe.close()
    assert [False, False, True] == waits


def test_error_of_a_call_is_an_answer(tmp_path: Path) -> None:
    """A scenario that cannot be read, like a broken library, is one sentence and no traceback."""
    probe = DeviceProbe(f"fake:{tmp_path / 'none.txt'}", Agent())
    with pytest.raises((LibraryAbsent, LibraryBroken), match=r"none\.txt"):
        probe.open()
    assert not probe.running
    assert probe.outcome in (Outcome.ABSENT, Outcome.FAILED)
    probe.close()


def test_child_ends_with_a_parent_that_was_killed(scenario: Path) -> None:
    """Even while the library hangs, no child outlives its parent."""
    program = (
        "import sys, time\nfrom collectors.probe import DeviceProbe\nfrom collectors.device import Tier\n"
        "from passmuster.config import Agent\n"
        "p = DeviceProbe(sys.argv[1], Agent())\np.open()\np.ask('sample', 'fast')\n"
        "print(p.pid, flush=True)\ntime.sleep(60)\n"
    )
    scenario.write_text(ONE_GPU + "gpu0.hang 1\n")
    parent = subprocess.Popen([sys.executable, "-c", program, f"fake:{scenario}"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(child)


def test_frames_stay_clean_when_the_library_prints(tmp_path: Path) -> None:
    """What a binding prints on standard output, from Python or from C, is kept apart from the answers."""
    program = (
        "import os, sys\nfrom collectors import probe_child\n"
        "requests, answers = probe_child._own_pipes()\n"
        "print('from python')\nos.write(1, b'from C\\n')\nanswers.write(b'frame')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], input=b"", capture_output=True, check=True)
    assert (b"frame", b"from python\nfrom C\n") == (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "values",
    [
        {"power_watts": "N/A", "temperature_core_celsius": 60.0},
        {"activity_compute_ratio": 655.35, "temperature_core_celsius": 60.0},
        {"memory_used_bytes": -1, "temperature_core_celsius": 60.0},
        {"no_such_field": 1, "power_watts": [1], "temperature_core_celsius": 60.0},
    ],
)
def test_garbage_becomes_null_with_a_reason(values: dict[str, Any]) -> None:
    """A value outside its field's bounds is null; its siblings stand."""
    row = {"pci_address": "0000:06:00.0", "state": "ok", "values": values, "missing": {}}
    (sample,) = decode_payload("sample", msgspec.msgpack.encode([row]))
    assert {"temperature_core_celsius": 60.0} == {k: v for k, v in sample.values.items() if k != "no_such_field"}
    bad = set(values) & {"power_watts", "activity_compute_ratio", "memory_used_bytes"}
    assert dict.fromkeys(bad, INVALID) == {k: v for k, v in sample.missing.items() if k in bad}


@pytest.mark.parametrize(
    "make", [lambda: b"\xc1", lambda: msgspec.msgpack.encode("x"), lambda: msgspec.msgpack.encode([1])]
)
def test_an_answer_that_is_none(make: Callable[[], bytes]) -> None:
    """Bytes that are no answer raise, they are not taken for an empty one."""
    with pytest.raises((msgspec.DecodeError, AttributeError, TypeError)):
        decode_payload("sample", make())
