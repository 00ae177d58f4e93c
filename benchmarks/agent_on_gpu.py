"""What the agent costs and says on a real GPU: run it for a while beside a matrix product and keep what it spooled.

    python -m benchmarks.agent_on_gpu OUT [--seconds 540]

Writes into OUT: once.json (`muster agent --once --json`), check.json, metrics.txt, verdict.json and the spool; prints
the agent's processor time, memory, scrape cost and rows. Needs a GPU; torch for the load.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.up_cost import cpu_seconds, free_port, processes, pss_bytes


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    arguments = parser.parse_args()
    out: Path = arguments.out
    muster = [sys.executable, "-m", "passmuster"]
    for name, command in (("once", ["agent", "--once", "--json"]), ("check", ["check", "--json"])):
        began = time.monotonic()
        done = subprocess.run([*muster, *command], capture_output=True, text=True, check=False)
        (out / f"{name}.json").write_text(done.stdout)
        print(f"{name}: exit {done.returncode} after {time.monotonic() - began:.2f} s {done.stderr.strip()[-500:]}")
    port = free_port()
    environ = {
        **os.environ,
        "PASSMUSTER_SPOOL__DIR": "/tmp/agent_on_gpu/spool",
        "PASSMUSTER_AGENT__RUN_DIR": "/tmp/agent_on_gpu/run",
        "PASSMUSTER_EXPORTER__PORT": str(port),
    }
    shutil.rmtree("/tmp/agent_on_gpu", ignore_errors=True)
    with (out / "agent.log").open("w") as log:
        agent = subprocess.Popen([*muster, "agent"], env=environ, stdout=log, stderr=log)
    time.sleep(15.0)
    load = [sys.executable, str(Path(__file__).with_name("gpu_load.py")), "--rest", "10"]
    busy = subprocess.Popen([*load, "--seconds", str(arguments.seconds - 60)])
    before, began = cpu_seconds(processes(agent.pid)), time.monotonic()
    time.sleep(arguments.seconds - 40)
    steady = (cpu_seconds(processes(agent.pid)) - before) / (time.monotonic() - began)
    before = cpu_seconds(processes(agent.pid))
    for _ in range(20):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            (out / "metrics.txt").write_bytes(answer.read())
    scrape = (cpu_seconds(processes(agent.pid)) - before) / 20
    memory = pss_bytes(processes(agent.pid)) / 1e6
    print(f"agent: {steady:.2%} of a core, {memory:.1f} MB PSS, {scrape * 1e3:.1f} ms a scrape")
    busy.wait(timeout=60)
    agent.send_signal(signal.SIGTERM)
    print(f"agent: exit {agent.wait(timeout=20)}")
    shutil.copy("/tmp/agent_on_gpu/run/verdict.json", out)
    shutil.make_archive(str(out / "spool"), "gztar", "/tmp/agent_on_gpu/spool")
    print((out / "agent.log").read_text())


if __name__ == "__main__":
    main()
