"""Reads every device once, each vendor in its child process, all within one deadline: for checks without a daemon."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from collectors.device import DeviceIdentity, DeviceSample, Tier

# The whole conversation is sent at once: the child answers in order, and we import the detectors meanwhile.
REQUESTS = (
    ("open", None),
    ("identify", None),
    *(("sample", tier.value) for tier in Tier),
    ("close", None),
)
MAX_FRAME_BYTES = 8 * 2**20  # as the child's own bound


class Answer(Struct):
    """What one vendor's library came to."""

    vendor: str
    status: str = "hung"  # ok, absent, broken, error, hung or crashed
    sentence: str = ""  # why, unless ok
    versions: dict[str, str] = {}
    identities: list[DeviceIdentity] = []
    samples: list[DeviceSample] = []  # of all tiers


class _Child(Struct):
    process: subprocess.Popen[bytes]
    answer: Answer
    received: bytearray
    frames: int = 0


def start(vendor: str) -> _Child:
    """Start a vendor's child and send it everything that we want to know."""
    process = subprocess.Popen(
        # -P: nothing of the current folder is imported.
        [sys.executable, "-P", "-m", "passmuster", "_device", vendor],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    )
    assert process.stdin is not None
    body = b"".join(_request(number, *request) for number, request in enumerate(REQUESTS))
    with contextlib.suppress(BrokenPipeError):  # it died at once; the missing answer tells
        process.stdin.write(body)
    return _Child(process, Answer(vendor), bytearray())


def finish(children: Iterable[_Child], deadline_seconds: float) -> list[Answer]:
    """Take the answers of all children that come within the deadline, and end the children.

    A child that is stuck in the kernel cannot be killed; it is left behind and never waited for.
    """
    children = list(children)
    until = time.monotonic() + deadline_seconds
    open_children = {_out(child): child for child in children}
    while open_children:
        ready, _, _ = select.select(list(open_children), [], [], max(0.0, until - time.monotonic()))
        if not ready:
            break
        for fd in ready:
            child = open_children[fd]
            data = os.read(fd, 2**20)
            child.received += data
            if not data and child.answer.status == "hung":
                child.answer.status = "crashed"
            if not data or _take(child):
                del open_children[fd]
    for child in children:
        _end(child)
    return [child.answer for child in children]


def _out(child: _Child) -> int:
    assert child.process.stdout is not None
    return child.process.stdout.fileno()


def _request(number: int, command: str, argument: str | None) -> bytes:
    body = msgspec.msgpack.encode([number, command, argument])
    return len(body).to_bytes(4, "big") + body


def _take(child: _Child) -> bool:
    """Take the frames that are there; tell whether the conversation is over."""
    data = child.received
    while len(data) >= 4:
        length = int.from_bytes(data[:4], "big")
        if length > MAX_FRAME_BYTES:
            child.answer.status, child.answer.sentence = "error", f"its child process sent a frame of {length} bytes"
            return True
        if len(data) < 4 + length:
            return False
        body = bytes(data[4 : 4 + length])
        del data[: 4 + length]
        command, argument = REQUESTS[child.frames]
        try:
            done = _fill(child.answer, command, argument, msgspec.msgpack.decode(body))
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            child.answer.status, child.answer.sentence = "error", f"its child process answered nonsense: {error}"
            done = True
        child.frames += 1
        if done or child.frames == len(REQUESTS):
            return True
    return False


def _fill(answer: Answer, command: str, argument: str | None, frame: Any) -> bool:
    """Put one answer in its place; tell whether no later one is worth waiting for."""
    _, status, payload, _ = frame
    if status != "ok":
        answer.status, answer.sentence = str(status), f"{command} {argument or ''}".strip() + f": {payload}"
        return command in ("open", "identify")
    if command == "open":
        answer.versions = msgspec.convert(payload, dict[str, str])
    elif command == "identify":
        answer.identities = msgspec.convert(payload, list[DeviceIdentity])
    elif command == "sample":
        answer.samples = answer.samples + msgspec.convert(payload, list[DeviceSample])
        if argument == Tier.SLOW.value and answer.status == "hung":
            answer.status = "ok"
            # Closing is the child's own end; killing it is as good and sooner.
            return True
    return False


def _end(child: _Child) -> None:
    process = child.process
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.2)
        if child.answer.status == "crashed" and not child.answer.sentence:
            child.answer.sentence = f"its child process ended with {'signal' if code < 0 else 'code'} {abs(code)}"
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
