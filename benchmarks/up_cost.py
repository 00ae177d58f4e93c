"""Processor time and memory of a whole `muster up` with a simulated fleet at real time.

    python benchmarks/up_cost.py [--hosts 64] [--seconds 60] [--runs 3]

Starts `muster up` on a fresh data folder, waits until it serves and has stored its first minute, then reads the
processor time of the process and its children over the given seconds. Prints the share of one core per run and the
median.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def processes(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += parents.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Return user and system time, of children that were waited for too."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return total / TICKS


def pss_bytes(pids: list[int]) -> int:
    """Return the proportional set size of the processes."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def health(port: int) -> dict[str, float] | None:
    """Return what the running house says of itself, or None while it does not serve."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/health", timeout=5) as answer:
            body: dict[str, float] = json.load(answer)
            return body
    except OSError:
        return None


def one_run(hosts: int, seconds: float) -> tuple[float, float, float]:
    """Return (share of a core after start, seconds from start to the first stored minute, PSS in MB)."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            sys.executable,
            "-m",
            "passmuster",
            "up",
            "--simulate",
            str(hosts),
            "--port",
            str(port),
            "--data-dir",
            folder,
        ]
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while (state := health(port)) is None or state["rows"] < hosts * 8 * 3:
                if time.monotonic() - began > 180 or process.poll() is not None:
                    raise SystemExit("muster up did not come up within three minutes")
                time.sleep(0.5)
            ready = time.monotonic() - began
            before, at = cpu_seconds(processes(process.pid)), time.monotonic()
            time.sleep(seconds)
            after = cpu_seconds(processes(process.pid))
            share = (after - before) / (time.monotonic() - at)
            return share, ready, pss_bytes(processes(process.pid)) / 1e6
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    shares = []
    for run in range(arguments.runs):
        share, ready, pss = one_run(arguments.hosts, arguments.seconds)
        shares.append(share)
        print(f"run {run + 1}: {share:6.1%} of one core, first minute stored after {ready:5.1f} s, {pss:6.0f} MB")
    print(f"median {statistics.median(shares):.1%} of one core; {arguments.hosts} hosts x 8 GPUs at real time")


if __name__ == "__main__":
    main()
