"""Measures what a simulated fleet costs: rows a second, and the share of one core at real time and faster.

Run: python benchmarks/simulated_fleet.py [--hosts 64] [--seconds 600]
"""

from __future__ import annotations

import argparse
import statistics
import time

from collectors.simulated import SimulatedFleet
from passmuster.batch import encode

SECOND = 1_000_000_000
START_AT = 1_767_225_600 * SECOND  # 2026-01-01
RUNS = 3


def main() -> None:
    """Print the medians of several runs, in processor time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=600)
    options = parser.parse_args()
    made, encoded, rows, size = [], [], 0, 0
    for _ in range(RUNS):
        fleet = SimulatedFleet(hosts=options.hosts, start_at=START_AT)
        began = time.process_time()
        batches = list(fleet.batches(START_AT + options.seconds * SECOND))
        made.append(time.process_time() - began)
        began = time.process_time()
        size = sum(len(encode(batch)) for batch in batches)
        encoded.append(time.process_time() - began)
        rows = sum(batch.rows for batch in batches if batch.kind == "gpu_reading")
    share = statistics.median(made) / options.seconds
    print(f"{options.hosts} hosts of 8 GPUs for {options.seconds} s of their time, median of {RUNS} runs")
    print(f"GPU readings a second of fleet time      {rows / options.seconds:12.1f}")
    print(f"GPU readings a second of processor time  {rows / statistics.median(made):12.0f}")
    print(f"share of one core at real time           {share:12.2%}")
    print(f"share of one core at 60 times real time  {60 * share:12.2%}")
    print(f"encoding them, share at real time        {statistics.median(encoded) / options.seconds:12.2%}")
    print(f"bytes a GPU reading on the wire          {size / rows:12.0f}")
    day = 86_400 * SECOND
    began = time.process_time()
    SimulatedFleet(hosts=options.hosts, start_at=START_AT).skip_to(START_AT + day)
    print(f"seconds to go on after a day             {time.process_time() - began:12.1f}")


if __name__ == "__main__":
    main()
