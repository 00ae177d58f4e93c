"""Cold start to exit of `muster check` beside the public `gpumedic scan`, on eight GPUs of the fake NVML.

    python benchmarks/check_start.py [--runs 20] [--peer PATH-OF-GPUMEDIC]

Pairs of runs, one after the other, so that a busy machine is busy for both; medians, and the median of the ratios.
Without --peer the newest gpumedic is installed from the package index into a virtual environment of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def install(folder: Path) -> Path | None:
    venv.create(folder, with_pip=True)
    done = subprocess.run(
        [folder / "bin/pip", "install", "-q", "gpumedic[nvidia]"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(f"gpumedic cannot be installed, only ours is timed: {done.stderr.strip().splitlines()[-1]}")
        return None
    return folder / "bin/gpumedic"


def timed(argv: list[str], environment: dict[str, str]) -> tuple[float, float, float]:
    """Return seconds from start to exit, processor seconds with children, and peak memory of the largest in MB."""
    started = time.perf_counter()
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = 0
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--peer", type=Path)
    chosen = options.parse_args()
    library = subprocess.run(
        [sys.executable, str(ROOT / "tests/doubles/build.py"), "nvml"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": library,
        "FAKE_DEVICE_SCENARIO": str(ROOT / "tests/data/scenarios/h200_x8.txt"),
    }
    with tempfile.TemporaryDirectory() as folder:
        peer = chosen.peer or install(Path(folder) / "peer")
        commands = {"muster check": [str(Path(sys.executable).parent / "muster"), "check"]}
        if peer:
            commands["gpumedic scan"] = [str(peer), "scan"]
        commands["python -c pass"] = [sys.executable, "-c", "pass"]
        for argv in commands.values():  # once for the page cache and the compiled modules
            timed(argv, environment)
        measured = [{name: timed(argv, environment) for name, argv in commands.items()} for _ in range(chosen.runs)]
    print(f"{'command':16} {'seconds':>8} {'cpu s':>8} {'MB':>6}   medians of {chosen.runs} runs")
    for name in commands:
        rows = [run[name] for run in measured]
        seconds, cpu, memory = (statistics.median(row[i] for row in rows) for i in range(3))
        print(f"{name:16} {seconds:8.3f} {cpu:8.3f} {memory:6.0f}   fastest {min(row[0] for row in rows):.3f} s")
    for name in commands:
        if name != "muster check":
            ratio = statistics.median(run["muster check"][0] / run[name][0] for run in measured)
            print(f"muster check takes {ratio:.1f} times {name}")


if __name__ == "__main__":
    main()
