"""A process that holds one vendor library and answers a test: a call as a JSON line in, its answer as one out.

Vendor libraries find their file when the process starts, so a double needs a process of its own.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import Any

import msgspec

from collectors.device import DeviceBackend, LibraryAbsent, LibraryBroken, Tier

BACKENDS = {"nvidia": ("collectors.nvidia", "NvidiaBackend"), "amd": ("collectors.amd", "AmdBackend")}


class ShiftedClock:
    """The monotonic clock, which a test may put forward."""

    def __init__(self) -> None:
        self.shift = 0.0

    def __call__(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic() + self.shift


def answer(backend: DeviceBackend, clock: ShiftedClock, call: str, argument: Any) -> Any:
    """Make one call of the backend; "advance" puts the clock forward by that many seconds."""
    if call == "advance":
        clock.shift += argument
        return None
    if call == "sample":
        return backend.sample(Tier(argument))
    if call == "events":
        return backend.events(argument)
    return getattr(backend, call)()


def main() -> None:
    """Serve until the input ends."""
    module, name = BACKENDS[sys.argv[1]]
    clock = ShiftedClock()
    roots = {"sys_root": os.environ["FAKE_SYS_ROOT"]} if "FAKE_SYS_ROOT" in os.environ else {}
    backend: DeviceBackend = getattr(import_module(module), name)(clock=clock, **roots)
    for line in sys.stdin:
        call, argument = msgspec.json.decode(line)
        try:
            reply = {"value": answer(backend, clock, call, argument)}
        except (LibraryAbsent, LibraryBroken) as error:
            reply = {"error": type(error).__name__, "text": str(error)}
        sys.stdout.write(msgspec.json.encode(reply).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
