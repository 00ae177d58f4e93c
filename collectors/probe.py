"""The parent's side of a device child: asks with a deadline, and takes hangs and crashes of it as evidence."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
from msgspec import Meta, Struct

from collectors.device import DeviceIdentity, DeviceSample, DriverEvent, LibraryAbsent, LibraryBroken, Tier
from collectors.pci import gpus
from collectors.probe_child import MAX_FRAME_BYTES, MAX_PRINTED_BYTES
from passmuster.batch import field_types
from passmuster.config import Agent
from passmuster.records import DeviceState, Name, Vendor, Word, Words

BACKOFF_SECONDS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
# A child that is stuck in the kernel cannot be killed. With this many left behind, another would only join them.
MAX_ABANDONED = 2
# How long a hung child gets to print where it hangs, and an ended one to go; both are seldom, and the loop waits.
LAST_WORDS_SECONDS = 0.1
CLOSE_SECONDS = 0.3
MAX_EVIDENCE = 2000  # characters
INVALID = "failed invalid"


class Outcome(StrEnum):
    """How a probe, or any collector, is doing."""

    STARTING = "starting"  # nothing answered yet
    OK = "ok"  # the last answer was good
    ABSENT = "absent"  # nothing of the kind on this host; quiet
    FAILED = "failed"  # there and broken; loud
    HUNG = "hung"  # an answer did not come within its deadline
    DISABLED = "disabled"  # switched off by configuration


class ProbeHung(Exception):
    """The child did not answer within the deadline. The message is the evidence."""


class ProbeCrashed(Exception):
    """The child ended by itself. The message is the evidence."""


class Answer(Struct, array_like=True):
    """One answer of the child, its payload still packed."""

    number: int
    status: str
    payload: msgspec.Raw
    seconds: float


class Answered(NamedTuple):
    """One answer with the question it belongs to; ``payload`` is decoded and within its bounds."""

    command: str
    argument: Any
    status: str
    payload: Any
    seconds: float


class _Asked(NamedTuple):
    number: int
    command: str
    argument: Any


def _typed(name: str, kind: str) -> Any:
    """Dict type of the fields of a record kind, each optional, with the record's own bounds."""
    return TypedDict(name, field_types(kind), total=False)  # type: ignore[operator]


@cache
def _decoder(command: str) -> msgspec.msgpack.Decoder[Any]:
    """Decoder of one command's payload. Built when first needed; building is what costs."""
    index = Annotated[int, Meta(ge=-1, le=65536)]
    sample = msgspec.defstruct(
        "Sample",
        [
            ("pci_address", Word),
            ("state", DeviceState),
            ("values", _typed("Values", "gpu_reading")),
            ("missing", Words),
        ],
    )
    identity = msgspec.defstruct(
        "Identity",
        [
            ("device_id", Name),
            ("pci_address", Word),
            ("index", index),
            ("vendor", Vendor),
            ("model", Word),
            ("values", _typed("Facts", "inventory")),
            ("missing", Words),
        ],
    )
    event = msgspec.defstruct("Event", [(name, Name) for name in ("pci_address", "kind", "code", "text")])
    types: dict[str, Any] = {
        "open": Words,
        "identify": Annotated[list[identity], Meta(max_length=4096)],  # type: ignore[valid-type]
        "sample": Annotated[list[sample], Meta(max_length=4096)],  # type: ignore[valid-type]
        "events": Annotated[list[event], Meta(max_length=4096)],  # type: ignore[valid-type]
        "close": None,
    }
    return msgspec.msgpack.Decoder(types[command])


_BUILD: dict[str, Any] = {"identify": DeviceIdentity, "sample": DeviceSample, "events": DriverEvent}
_KINDS = {"identify": "inventory", "sample": "gpu_reading"}


def decode_payload(command: str, payload: bytes) -> Any:
    """Decode what the child answered to a command, each value within the bounds of its field.

    A value outside them becomes null with the reason `INVALID`; an answer that is no answer raises
    msgspec.ValidationError.
    """
    try:
        found = _decoder(command).decode(payload)
    except msgspec.ValidationError:
        if command not in _KINDS:
            raise
        rows = msgspec.msgpack.decode(payload, type=list[dict[str, Any]])
        for row in rows:
            _drop_invalid(row, field_types(_KINDS[command]))
        return [msgspec.convert(row, _BUILD[command]) for row in rows]
    if command not in _BUILD:
        return found
    build = _BUILD[command]
    return [build(**{f: getattr(row, f) for f in build.__struct_fields__}) for row in found]


def _drop_invalid(row: dict[str, Any], types: dict[str, Any]) -> None:
    values, missing = row.get("values"), row.get("missing")
    if not isinstance(values, dict) or not isinstance(missing, dict):
        raise msgspec.ValidationError("an answer without values or missing")
    for name, value in list(values.items()):
        try:
            msgspec.convert(value, types[name])
        except (msgspec.ValidationError, KeyError):
            del values[name]
            missing[name] = INVALID


def wanted_vendors(config: Agent) -> dict[str, Outcome]:
    """Return each vendor with STARTING where its library is to be asked, else why not, without loading any library."""
    shown = {gpu.vendor.value for gpu in gpus(config.sys_root)}
    found = {}
    for vendor, switch in (("nvidia", config.nvidia), ("amd", config.amd)):
        if switch == "off":
            found[vendor] = Outcome.DISABLED
        else:
            found[vendor] = Outcome.STARTING if switch == "on" or vendor in shown else Outcome.ABSENT
    return found


class DeviceProbe:
    """One vendor's library in a child process.

    For a loop: `start`, `ask`, then `receive` when `fileno` is readable, and `check` by the time of `deadline`. For
    one shot: `open`, `identify`, `sample`, `events`, `close`, each of which blocks up to its deadline. All from one
    thread. ``vendor`` is nvidia, amd or ``fake:PATH``; ``monotonic`` is seconds.
    """

    def __init__(self, vendor: str, config: Agent, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.vendor = vendor
        self.name = f"fake_{Path(vendor).stem}" if vendor.startswith("fake:") else vendor
        self.outcome = Outcome.STARTING
        self.reason = ""
        self.versions: dict[str, str] = {}
        self.restarts = -1  # the first start is none
        self.printed = ""  # what the library printed last
        self._config = config
        self._monotonic = monotonic
        self._child: subprocess.Popen[bytes] | None = None
        self._log = -1  # memory file that takes what the child prints
        self._asked: deque[_Asked] = deque()
        self._since = 0.0  # when the oldest question began to wait
        self._number = 0
        self._buffer = bytearray()
        self._failures = 0
        self._restart_at = 0.0
        self._abandoned: list[subprocess.Popen[bytes]] = []

    # ---- for a loop

    @property
    def running(self) -> bool:
        """Whether there is a child to ask."""
        return self._child is not None

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return bool(self._asked)

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return self._child.pid if self._child else None

    def may_start(self) -> bool:
        """Whether there is no child and its back-off is over."""
        self._reap()
        stuck = len(self._abandoned) >= MAX_ABANDONED
        return self._child is None and not stuck and self._monotonic() >= self._restart_at

    def start(self) -> None:
        """Start the child and ask it to open the library."""
        self.restarts += 1
        self._log = os.memfd_create(f"passmuster-{self.name}")
        # Both sides share the file's offset: only appending keeps the child's writes whole after we empty it.
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "passmuster", "_device", self.vendor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            # Ctrl-C is for us; we end the child.
            start_new_session=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        )
        assert self._child.stdin
        assert self._child.stdout
        os.set_blocking(self._child.stdin.fileno(), False)
        os.set_blocking(self._child.stdout.fileno(), False)
        self._asked.clear()
        self._buffer.clear()
        self.ask("open")

    def ask(self, command: str, argument: Any = None) -> None:
        """Send one question; answers come in order."""
        if self._child is None:
            return
        assert self._child.stdin
        self._number += 1
        body = msgspec.msgpack.encode([self._number, command, argument])
        if not self._asked:
            self._since = self._monotonic()
        self._asked.append(_Asked(self._number, command, argument))
        # A child that is gone or no longer reads is noticed by `receive` and `check`.
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self._child.stdin.write(len(body).to_bytes(4, "big") + body)

    def fileno(self) -> int:
        """Return the descriptor that is readable when there are answers; -1 without a child."""
        return self._child.stdout.fileno() if self._child and self._child.stdout else -1

    def deadline(self) -> float | None:
        """Return the monotonic time by which the next answer must be here; None when none is awaited."""
        if not self._asked:
            return None
        opening = self._asked[0].command == "open"
        return self._since + (self._config.open_deadline_seconds if opening else self._config.call_deadline_seconds)

    def receive(self) -> list[Answered]:
        """Take the answers that are there. Raises ProbeCrashed when the child has ended or talks nonsense."""
        if self._child is None:
            return []
        try:
            while data := os.read(self.fileno(), 2**16):
                self._buffer += data
                if len(data) < 2**16:
                    break
            else:
                raise self._crashed()
        except BlockingIOError:
            pass
        found = []
        while self._child is not None and len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MAX_FRAME_BYTES:
                raise self._crashed(f"an answer of {size} bytes")
            if len(self._buffer) < 4 + size:
                break
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            found.append(self._answered(body))
        # A library that does not open has ended its child by now.
        if self._child is not None and os.fstat(self._log).st_size:
            self.printed = self._last_words()
        return found

    def check(self) -> None:
        """Raise ProbeHung when an answer is overdue; the child is then killed, or left behind where it cannot be."""
        deadline = self.deadline()
        if deadline is None or self._monotonic() < deadline:
            return
        assert self._child
        asked = self._asked[0]
        pid = self._child.pid
        state, kernel = _kernel_place(pid)
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGUSR1)
        for _ in range(10):
            if os.fstat(self._log).st_size:
                break
            select.select([], [], [], LAST_WORDS_SECONDS / 10)
        place = self._last_words()
        waited = self._monotonic() - self._since
        what = f"{asked.command} {asked.argument}" if asked.argument is not None else asked.command
        evidence = (
            f"{self.name}: no answer to {what} within {waited:.1f} s; "
            f"process {pid} is in state {state}, kernel function {kernel}; {place}"
        )[:MAX_EVIDENCE]
        self._end(Outcome.HUNG, evidence)
        raise ProbeHung(evidence)

    def close(self) -> None:
        """End the child: ask, wait a moment, kill. A child that cannot be killed is left to the kernel."""
        if self._child is not None and not self._asked:
            self.ask("close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(CLOSE_SECONDS)
        if self._child is not None:
            self._end(self.outcome, self.reason)
        for child in self._abandoned:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(CLOSE_SECONDS)

    # ---- for one shot

    def open(self) -> dict[str, str]:
        """Start the child and open the library; returns versions by name.

        Raises LibraryAbsent, LibraryBroken, ProbeHung or ProbeCrashed.
        """
        self.start()
        answer = self._wait()
        if answer.status == "absent":
            raise LibraryAbsent(answer.payload)
        if answer.status != "ok":
            raise LibraryBroken(answer.payload)
        return self.versions

    def identify(self) -> list[DeviceIdentity]:
        """Return every device that the library shows. Raises as `open` does."""
        found: list[DeviceIdentity] = self._once("identify")
        return found

    def sample(self, tier: Tier) -> list[DeviceSample]:
        """Read one tier of every device. Raises as `open` does."""
        found: list[DeviceSample] = self._once("sample", tier.value)
        return found

    def events(self, timeout_seconds: float) -> list[DriverEvent]:
        """Return what the driver reported since the last call. Raises as `open` does."""
        found: list[DriverEvent] = self._once("events", timeout_seconds)
        return found

    def _once(self, command: str, argument: Any = None) -> Any:
        self.ask(command, argument)
        answer = self._wait()
        if answer.status != "ok":
            raise LibraryBroken(answer.payload)
        return answer.payload

    def _wait(self) -> Answered:
        while True:
            if self._child is None:
                raise ProbeCrashed(self.reason or f"{self.name}: not open")
            left = max(0.0, (self.deadline() or 0.0) - self._monotonic())
            select.select([self], [], [], left)
            if found := self.receive():
                return found[0]
            self.check()

    # ---- inside

    def _answered(self, body: bytes) -> Answered:
        try:
            answer = msgspec.msgpack.decode(body, type=Answer)
            asked = self._asked.popleft()
            if answer.number != asked.number:
                raise msgspec.ValidationError(f"answer {answer.number} to question {asked.number}")
            payload: Any = (
                decode_payload(asked.command, bytes(answer.payload))
                if answer.status == "ok"
                else msgspec.msgpack.decode(answer.payload, type=str)
            )
        except (msgspec.DecodeError, IndexError, TypeError) as error:
            raise self._crashed(f"an answer that is none: {error}") from None
        self._since = self._monotonic()
        if answer.status == "ok":
            self._failures = 0
            self.outcome, self.reason = Outcome.OK, ""
            if asked.command == "open":
                self.versions = payload
        elif asked.command == "open":
            # The child is of no more use; the library may be installed or mended later.
            self._end(Outcome.ABSENT if answer.status == "absent" else Outcome.FAILED, payload)
        else:
            self.outcome, self.reason = Outcome.FAILED, f"{asked.command}: {payload}"
        return Answered(asked.command, asked.argument, answer.status, payload, answer.seconds)

    def _crashed(self, nonsense: str = "") -> ProbeCrashed:
        assert self._child
        asked = self._asked[0].command if self._asked else "nothing"
        if nonsense:
            how = f"gave {nonsense}"
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(LAST_WORDS_SECONDS)
            code = self._child.returncode
            how = f"died of {_signal_name(-code)}" if code is not None and code < 0 else f"exited with {code}"
        evidence = f"{self.name}: the library's process {how} while asked for {asked}; {self._last_words()}"
        self._end(Outcome.FAILED, evidence[:MAX_EVIDENCE])
        return ProbeCrashed(self.reason)

    def _last_words(self) -> str:
        """Return what the child printed since the last look, and empty the file."""
        text = os.pread(self._log, MAX_PRINTED_BYTES, 0).decode("utf-8", "replace")
        os.ftruncate(self._log, 0)
        return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:MAX_EVIDENCE]

    def _end(self, outcome: Outcome, reason: str) -> None:
        child = self._child
        assert child
        self.outcome, self.reason = outcome, reason
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        os.close(self._log)
        child.kill()
        self._child = None
        self._asked.clear()
        self._abandoned.append(child)
        self._reap()
        self._restart_at = self._monotonic() + BACKOFF_SECONDS[min(self._failures, len(BACKOFF_SECONDS) - 1)]
        self._failures += 1

    def _reap(self) -> None:
        self._abandoned = [child for child in self._abandoned if child.poll() is None]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kernel_place(pid: int) -> tuple[str, str]:
    """Return the process state letter and the kernel function it waits in; "?" where they cannot be read."""
    state = place = "?"
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace") or "?"
    return state, place
