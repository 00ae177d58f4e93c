"""The test's side of `child.py`: a `DeviceBackend` whose vendor library lives in a child process beside its double."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, LibraryAbsent, LibraryBroken, Tier
from passmuster.records import Vendor

DOUBLES = Path(__file__).parent


class ChildBackend:
    """`DeviceBackend` whose library is loaded in a child process. Raises TimeoutError where no answer comes."""

    def __init__(self, vendor: str, environment: Mapping[str, str], deadline_seconds: float = 20.0) -> None:
        self.vendor = Vendor(vendor)
        self.deadline_seconds = deadline_seconds
        self.process = subprocess.Popen(
            [sys.executable, str(DOUBLES / "child.py"), vendor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(DOUBLES.parent.parent), **environment},
        )

    def ask(self, call: str, argument: Any = None, kind: Any = Any) -> Any:
        """Make one call in the child and return its answer as ``kind``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode([call, argument]) + b"\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], self.deadline_seconds)[0]:
            raise TimeoutError(call)
        reply = msgspec.json.decode(self.process.stdout.readline())
        if "error" in reply:
            raise {"LibraryAbsent": LibraryAbsent, "LibraryBroken": LibraryBroken}[reply["error"]](reply["text"])
        return msgspec.convert(reply["value"], kind)

    def open(self) -> None:
        """Open the library in the child."""
        self.ask("open")

    def versions(self) -> dict[str, str]:
        """Ask the child for its versions."""
        found: dict[str, str] = self.ask("versions", kind=dict[str, str])
        return found

    def identify(self) -> list[DeviceIdentity]:
        """Ask the child who is there."""
        found: list[DeviceIdentity] = self.ask("identify", kind=list[DeviceIdentity])
        return found

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Ask the child for one tier."""
        found: list[DeviceSample] = self.ask("sample", tier.value, list[DeviceSample])
        return found

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Ask the child for events."""
        found: list[DriverEvent] = self.ask("events", timeout_seconds, list[DriverEvent])
        return found

    def close(self) -> None:
        """Close the library in the child."""
        self.ask("close")

    def end(self) -> None:
        """Kill the process, hung or not, and close its pipes."""
        self.process.kill()
        self.process.communicate()
