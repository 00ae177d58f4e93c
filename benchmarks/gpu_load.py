"""A matrix product that keeps one GPU busy for a while, to be run beside the agent on a real device.

    python benchmarks/gpu_load.py [--seconds 60] [--rest 0]

Alternates load with `--rest` seconds of idling, so that clocks, power and activity move. Needs torch with a GPU.
"""

from __future__ import annotations

import argparse
import time

import torch


def main() -> None:
    """Multiply random bf16 matrices until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rest", type=float, default=0.0)
    arguments = parser.parse_args()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        pause = time.monotonic() + 20.0
        while time.monotonic() < min(pause, end):
            for _ in range(50):
                torch.mm(a, b)
            torch.cuda.synchronize()
        time.sleep(min(arguments.rest, max(0.0, end - time.monotonic())))


if __name__ == "__main__":
    main()
