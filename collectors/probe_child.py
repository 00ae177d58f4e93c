"""The child process that owns one vendor library, so that a driver call which never returns stops nobody else.

Frames on both pipes are a big-endian 32-bit length and that many bytes of msgpack. A request is
``[id, command, argument]``, an answer ``[id, status, payload, seconds]``; status is one of `STATUSES` and the payload
of all but "ok" is a sentence. Requests are answered in order, so the parent may send several at once.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import sys
import time
from importlib import import_module
from typing import IO, Any

import msgspec

from collectors.device import DeviceBackend, LibraryAbsent, LibraryBroken, Tier

STATUSES = ("ok", "absent", "broken", "error")
COMMANDS = ("open", "identify", "sample", "events", "close")
# 64 devices with every map at its bound stay below this; what is longer is not from our child.
MAX_FRAME_BYTES = 8 * 2**20
# What a library prints lands in a memory file of the parent; a library that prints without end must not fill memory.
MAX_PRINTED_BYTES = 2**20
MAX_SENTENCE = 1000
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def run(vendor: str) -> None:
    """Serve the requests on standard input until it ends or "close" is asked.

    ``vendor`` is nvidia, amd, or ``fake:PATH`` for the shipped fake device with a scenario file.
    """
    requests, answers = _own_pipes()
    _die_with_parent()
    # With the parent's signal the evidence names the library call that hangs, without the GIL or the main thread.
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    faulthandler.enable(file=sys.stderr)
    backend: DeviceBackend | None = None
    while (request := _read(requests)) is not None:
        number, command, argument = request
        started = time.perf_counter()
        try:
            if backend is None:
                backend = _backend(vendor)
            payload, status = _do(backend, command, argument), "ok"
        except LibraryAbsent as error:
            payload, status = str(error)[:MAX_SENTENCE], "absent"
        except LibraryBroken as error:
            payload, status = str(error)[:MAX_SENTENCE], "broken"
        except Exception as error:  # noqa: BLE001  whatever a vendor's binding raises is an answer to the parent
            payload, status = f"{type(error).__name__}: {error}"[:MAX_SENTENCE], "error"
        body = msgspec.msgpack.encode([number, status, payload, time.perf_counter() - started])
        try:
            answers.write(len(body).to_bytes(4, "big") + body)
        except BrokenPipeError:
            return
        if command == "close":
            return
        if command == "open":
            # What is loaded now stays for ever; the collector need not look at it again.
            gc.collect()
            gc.freeze()


def _do(backend: DeviceBackend, command: str, argument: Any) -> Any:
    if command == "open":
        backend.open()
        return backend.versions()
    if command == "identify":
        return backend.identify()
    if command == "sample":
        return backend.sample(Tier(argument))
    if command == "events":
        return backend.events(float(argument))
    if command == "close":
        backend.close()
        return None
    raise ValueError(f"unknown command {command!r}; known: {', '.join(COMMANDS)}")


def _backend(vendor: str) -> DeviceBackend:
    if vendor.startswith("fake:"):
        from collectors.fake_device import FakeBackend

        return FakeBackend(vendor.removeprefix("fake:"))
    if vendor == "nvidia":
        from collectors.nvidia import NvidiaBackend

        return NvidiaBackend()
    if vendor == "amd":
        backend: DeviceBackend = import_module("collectors.amd").AmdBackend()
        return backend
    raise LibraryAbsent(f"no backend for vendor {vendor!r}; known: nvidia, amd, fake:PATH")


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keep the pipes to ourselves; what the library reads is empty, what it prints goes to standard error."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    # Line buffered, so that a binding's print() is there when the parent looks.
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_PRINTED_BYTES, MAX_PRINTED_BYTES))
    return requests, answers


def _die_with_parent() -> None:
    """Ask the kernel for a SIGKILL when the parent is gone: inside a hung call nobody reads the end of the pipe."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(requests: IO[bytes]) -> tuple[int, str, Any] | None:
    head = requests.read(4)
    if len(head) < 4:
        return None
    body = requests.read(min(int.from_bytes(head, "big"), MAX_FRAME_BYTES))
    number, command, argument = msgspec.msgpack.decode(body)
    return number, command, argument
