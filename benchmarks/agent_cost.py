"""What `muster agent` costs on eight GPUs of the fake NVML, beside Meta's `gcm nvml_monitor` on the same library.

    python benchmarks/agent_cost.py [--seconds 60] [--gcm PATH-OF-GCM]

`gcm` is from `pip install gpucm` in a virtual environment of its own. All run at the same time, so that a busy machine
is busy for each. CPU is of the process and its children; from 5 s after the start, and as a whole with the start.
PSS is the sum over the processes at the end. Metrics are the values of one GPU: series of a scrape for ours, the
values that its monitor reads for the peer.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GPUS = 8
START_SECONDS = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


def scenario() -> str:
    """The first GPU of the test scenario, eight times, each with an identity of its own."""
    text = (ROOT / "tests/data/scenarios/nvidia_two_gpus.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("gpu")]
    lines.append(f"gpu.count {GPUS}")
    for gpu in range(GPUS):
        own = {
            "serial": f"165000000000{gpu}",
            "uuid": f"GPU-{gpu:08d}-2222-3333-4444-555555555555",
            "bdf": f"0000:{6 + gpu:02x}:00.0",
        }
        for line in text.splitlines():
            key, _, value = line.partition(" ")
            if key.startswith("gpu0."):
                name = key.removeprefix("gpu0.")
                lines.append(f"gpu{gpu}.{name} {own.get(name, value)}")
    return "\n".join(lines) + "\n"


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [p for child in (task / "children").read_text().split() for p in family(int(child))]
    return found


def cpu_seconds(pid: int) -> float:
    total = 0
    for one in family(pid):
        parts = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(p) for p in parts[11:13])
    return total / TICKS


def pss_bytes(pid: int) -> int:
    texts = [Path(f"/proc/{one}/smaps_rollup").read_text() for one in family(pid)]
    return sum(int(size) * 1024 for text in texts for size in re.findall(r"^Pss:\s+(\d+) kB", text, re.MULTILINE))


def agent(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    folder.mkdir()
    own = {
        "AGENT__NVIDIA": "on",
        "AGENT__AMD": "off",
        "AGENT__RUN_DIR": f"{folder}/run",
        "SPOOL__DIR": f"{folder}/spool",
        "EXPORTER__PORT": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "passmuster", "agent", *arguments],
        env=environment | {f"PASSMUSTER_{k}": v for k, v in own.items()},
        stderr=(folder / "said").open("w"),
        text=True,
    )


def scrape_cost(pid: int, said: Path, times: int = 20) -> tuple[float, float]:
    """CPU milliseconds of one scrape, over the agent's own running cost, and series a GPU."""
    url = re.search(r"http://\S+", said.read_text())
    assert url
    text = ""
    before, started = cpu_seconds(pid), time.monotonic()
    for _ in range(times):
        text = urllib.request.urlopen(url[0]).read().decode()
    spent, seconds = cpu_seconds(pid) - before, time.monotonic() - started
    before, started = cpu_seconds(pid), time.monotonic()
    time.sleep(10.0)
    idle = (cpu_seconds(pid) - before) / (time.monotonic() - started)
    return (spent - idle * seconds) / times * 1000, len(re.findall(r'^passmuster_gpu_.*gpu="0"', text, re.MULTILINE))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--gcm", type=Path)
    chosen = options.parse_args()
    build = [sys.executable, str(ROOT / "tests/doubles/build.py"), "nvml"]
    library = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scenario.txt").write_text(scenario())
        environment = os.environ | {"LD_LIBRARY_PATH": library, "FAKE_DEVICE_SCENARIO": str(folder / "scenario.txt")}
        running: dict[str, subprocess.Popen[Any]] = {
            "agent, detectors": agent(folder / "all", environment),
            "agent, no detectors": agent(folder / "bare", environment, "--no-detectors"),
        }
        if chosen.gcm:
            peer = [
                "nvml_monitor",
                "--collect-interval",
                "1",
                "--push-interval",
                "10",
                "--sink",
                "do_nothing",
                "--log-folder",
            ]
            running["gcm nvml_monitor"] = subprocess.Popen(
                [str(chosen.gcm), *peer, str(folder)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=(folder / "gcm.err").open("w"),
            )
        time.sleep(START_SECONDS)
        start = {label: cpu_seconds(p.pid) for label, p in running.items() if p.poll() is None}
        time.sleep(chosen.seconds)
        print(f"{'':22}{'CPU % steady':>14}{'CPU s in all':>14}{'PSS MB':>9}")
        for label, process in running.items():
            if process.poll() is not None:
                print(f"{label:22} ended with {process.returncode}: {(folder / 'gcm.err').read_text()[-300:]}")
                continue
            now = cpu_seconds(process.pid)
            share = (now - start[label]) / chosen.seconds * 100
            print(f"{label:22}{share:14.2f}{now:14.2f}{pss_bytes(process.pid) / 1e6:9.1f}")
        whole = running["agent, detectors"]
        milliseconds, series = scrape_cost(whole.pid, folder / "all" / "said")
        print(f"one scrape of {GPUS} GPUs: {milliseconds:.1f} ms of CPU, {series:.0f} series a GPU")
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(10)


if __name__ == "__main__":
    main()
