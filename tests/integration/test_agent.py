"""`muster agent` as a process: on the compiled double, on the fake, and on hosts where something is missing."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from passmuster.exits import ExitCode

ROOT = Path(__file__).parents[2]
NVIDIA = ROOT / "tests/data/scenarios/nvidia_two_gpus.txt"
AMD = ROOT / "tests/data/scenarios/amd_one_gpu.txt"
MUSTER = [sys.executable, "-m", "passmuster"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An agent's surroundings in a folder of its own, quick, with no vendor library."""
    (tmp_path / "kmsg").touch()
    own = {
        "AGENT__NVIDIA": "off", "AGENT__AMD": "off", "AGENT__KERNEL_LOG_PATH": f"{tmp_path}/kmsg",
        "AGENT__RUN_DIR": f"{tmp_path}/run", "SPOOL__DIR": f"{tmp_path}/spool", "EXPORTER__PORT": "0",
        "AGENT__FAST_SECONDS": "0.2", "AGENT__MIDDLE_SECONDS": "0.4", "AGENT__SHIP_SECONDS": "0.8",
        "AGENT__SLOW_SECONDS": "0.8", "AGENT__CALL_DEADLINE_SECONDS": "1.0", "SITE__HOST": "h1",
    }  # fmt: skip
    return {**os.environ, **{f"PASSMUSTER_{name}": value for name, value in own.items()}}


@pytest.fixture
def double(environment: dict[str, str], tmp_path: Path) -> Path:
    """The compiled NVML double in these surroundings; returns its scenario file."""
    spec = spec_from_file_location("doubles_build", ROOT / "tests/doubles/build.py")
    assert spec
    assert spec.loader
    build = module_from_spec(spec)
    spec.loader.exec_module(build)
    scenario = tmp_path / "scenario.txt"
    scenario.write_text(NVIDIA.read_text())
    environment.update(build.nvml_environment(scenario), PASSMUSTER_AGENT__NVIDIA="on")
    return scenario


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start an agent whose words go to the file `said`; it is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def go(*arguments: str) -> subprocess.Popen[str]:
        with (tmp_path / "said").open("w") as said:
            started.append(subprocess.Popen([*MUSTER, "agent", *arguments], env=environment, stderr=said, text=True))
        return started[-1]

    yield go
    for process in started:
        process.kill()
        process.wait()


def until(said: Path, pattern: str, seconds: float = 20.0) -> str:
    """Wait until the agent has said it; returns the match."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if match := re.search(pattern, said.read_text()):
            return match[0]
        select.select([], [], [], 0.05)
    raise AssertionError(f"never said {pattern!r}: {said.read_text()}")


def once(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one sample."""
    command = [*MUSTER, "agent", "--once", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_once_tells_everything_and_why_each_null_is_null(environment: dict[str, str], double: Path) -> None:
    """Every field of a device is a value or has a reason, never both."""
    done = once(environment, "--json")
    sample = json.loads(done.stdout)
    assert (ExitCode.PASS, 2) == (done.returncode, len(sample["devices"])), done.stderr
    for device in sample["devices"]:
        nulls = {name for name, value in device["values"].items() if value is None}
        assert nulls == set(device["null_because"])
        assert all(device["null_because"].values())
    assert 61.0 == sample["devices"][0]["values"]["temperature_core_celsius"]


def test_once_with_both_vendors(environment: dict[str, str]) -> None:
    """A host of two vendors is one sample, in words too."""
    done = once(environment, "--fake", str(NVIDIA), "--fake", str(AMD))
    assert ExitCode.PASS == done.returncode
    assert all(word in done.stdout for word in ("NVIDIA H200", "MI300X", "collector host: ok"))


@pytest.mark.parametrize("library", [None, b"not a library"])
def test_no_or_broken_library(environment: dict[str, str], tmp_path: Path, library: bytes | None) -> None:
    """Without a working library the agent says what is missing; nothing was checked, and no traceback is shown."""
    if library is not None:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(library)
    environment.update(PASSMUSTER_AGENT__NVIDIA="on", LD_LIBRARY_PATH=str(tmp_path))
    done = once(environment)
    assert ExitCode.INCOMPLETE == done.returncode
    assert "no GPU answered" in done.stdout
    assert re.search(r"collector nvidia: (absent|failed): .*(NVML|libnvidia-ml)", done.stdout)
    assert "Traceback" not in done.stdout + done.stderr


def test_no_kernel_log(environment: dict[str, str], tmp_path: Path) -> None:
    """A host without /dev/kmsg is sampled all the same."""
    environment["PASSMUSTER_AGENT__KERNEL_LOG_PATH"] = f"{tmp_path}/none"
    done = once(environment, "--fake", str(NVIDIA))
    assert f"collector kernel_log: absent: {tmp_path}/none is not there" in done.stdout


def test_hung_library_does_not_stop_the_agent(
    double: Path, start: Start, tmp_path: Path, environment: dict[str, str]
) -> None:
    """A hang becomes a record and a verdict, the other collectors go on, and SIGTERM still ends it in two seconds."""
    process = start()
    said = tmp_path / "said"
    url = until(said, r"http://127\.0\.0\.1:\d+/metrics")
    until(said, "collector nvidia: ok")
    double.write_text(NVIDIA.read_text() + "gpu0.hang.nvmlDeviceGetTemperature 1\n")
    until(said, r"collector nvidia: hung .*nvmlDeviceGetTemperature")
    with urllib.request.urlopen(url) as reply:
        text = reply.read().decode()
    assert 'passmuster_agent_collector_state{collector="host",state="ok"} 1.0' in text
    assert re.search(r'passmuster_gpu_events_total\{code="hung_probe:nvidia".*kind="hung_probe".*\} 1\.0', text)
    assert re.search(r'passmuster_gpu_up\{gpu="0",.*\} 0\.0', text)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert ExitCode.PASS == process.wait(10)
    assert time.monotonic() - started < 2.0
    assert "unhealthy" == (tmp_path / "run/verdict.line").read_text().split()[0]


def test_restart_goes_on(start: Start, tmp_path: Path, environment: dict[str, str]) -> None:
    """A second start reads the state of the first: same inventory, from the same time."""
    found = []
    for _ in range(2):
        process = start("--fake", str(NVIDIA), "--no-exporter")
        until(tmp_path / "said", "collector fake_nvidia_two_gpus: ok")
        # Its readings lie in the spool: it has identified the devices, this run too.
        lane = tmp_path / "spool/readings-000000000001.seg"
        before, end = lane.stat().st_size if lane.exists() else 0, time.monotonic() + 20
        while time.monotonic() < end and (not lane.exists() or lane.stat().st_size < before + 2000):
            select.select([], [], [], 0.05)
        process.send_signal(signal.SIGINT)
        assert ExitCode.PASS == process.wait(10)
        state = json.loads((tmp_path / "spool/agent_state.json").read_text())
        found.append({i["device_id"]: i["valid_from_at"] for i in state["inventory"]})
    assert {"1650000000001", "1650000000002"} == set(found[0])
    assert found[0] == found[1]


def test_garbage_state_is_told_and_left(start: Start, tmp_path: Path) -> None:
    """A state file that cannot be read costs its content, not the agent."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool/agent_state.json").write_bytes(b"\xff{")
    start("--fake", str(NVIDIA), "--no-exporter")
    until(tmp_path / "said", r"agent_state\.json cannot be used .*starting afresh")
    until(tmp_path / "said", "collector fake_nvidia_two_gpus: ok")


def test_second_agent_is_refused(start: Start, tmp_path: Path, environment: dict[str, str]) -> None:
    """Two agents on one spool: the second is told which process has it."""
    process = start("--fake", str(NVIDIA), "--no-exporter")
    until(tmp_path / "said", "collector host: ok")
    command = [*MUSTER, "agent", "--no-exporter"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert ExitCode.PASS != done.returncode
    assert str(process.pid) in done.stderr
    assert "Traceback" not in done.stderr
