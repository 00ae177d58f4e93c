"""Reads one made-up MI300X host through each release of AMD's Python binding, on a fake library built for it.

`python benchmarks/amd_bindings.py` asks pip for the wheels of `RELEASES` (no dependencies, into a temporary folder)
and prints how many fields each tier answers, what each leaves out, and the milliseconds a tier takes for one device.
The library is fake: times are those of Python, of the binding and of this program, without a driver's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from statistics import median
from time import perf_counter

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from collectors.amd import AmdBackend  # noqa: E402
from collectors.device import Tier  # noqa: E402
from collectors.scenario import parse, write  # noqa: E402
from tests.doubles.build import amdsmi_environment  # noqa: E402

SCENARIO = ROOT / "tests" / "data" / "scenarios" / "mi300x_x8.txt"
# Release of the binding, and a version of the library that belongs to it.
RELEASES = {"6.1.2": "24.5.1", "6.2.4": "24.6.3", "6.3.3": "24.7.1", "6.4.4": "25.5.1", "7.0.2": "26.0.2"}
ROUNDS = 50


def read_here() -> None:
    """Print what the binding of this process answers, as JSON."""
    backend = AmdBackend()
    backend.open()
    devices = backend.identify()
    found: dict[str, object] = {"binding": backend.versions()["amdsmi"], "devices": len(devices)}
    for tier in Tier:
        sample = backend.sample(tier)[0]
        seconds = []
        for _ in range(ROUNDS):
            start = perf_counter()
            backend.sample(tier)
            seconds.append((perf_counter() - start) / len(devices))
        missing = sorted(field for field, reason in sample.missing.items() if reason == "unsupported")
        found[tier.value] = [len(sample.values), missing, median(seconds) * 1000]
    print(json.dumps(found))


def main() -> int:
    """Fetch each release, read with it, and print a line per tier; 1 where one of them does not read every device."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().here:
        read_here()
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for release, library in RELEASES.items():
            place = Path(folder) / release
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(place), f"amdsmi=={release}"]
            subprocess.run(pip, check=True, capture_output=True)
            with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
                wheel.extractall(place)
            scenario = place / "scenario"
            write(scenario, parse(SCENARIO.read_text(encoding="ascii")) | {"lib_version": library})
            environment = {**os.environ, **amdsmi_environment(scenario, place / "amdsmi"), "PYTHONPATH": str(place)}
            command = [sys.executable, __file__, "--here"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{release}: {done.stderr.strip().splitlines()[-1]}")
                failed += 1
                continue
            found = json.loads(done.stdout)
            failed += found["binding"] != release or found["devices"] != 8
            for tier in Tier:
                values, missing, milliseconds = found[tier.value]
                left_out = ", ".join(missing) or "-"
                print(f"{release}  {tier.value:<7}{values:>3} fields {milliseconds:6.2f} ms  without {left_out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
