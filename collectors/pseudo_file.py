"""One small file of sysfs or procfs, read without trust: every failure is a reason under which the value is null."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

MAX_BYTES = 65_536  # the longest that we read, a full bad-page table, has some ten thousand bytes
INT64_MAX = 2**63 - 1
_DIGITS = re.compile(r"\s*(-?\d{1,20})\s*\Z")

ABSENT = "unsupported"  # no such file: this kernel or device does not have the value
GARBAGE = "garbage"


class Unreadable(Exception):  # an outcome, not a fault
    """The value is null; `reason` is a word of `GpuReading.missing`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read(path: Path) -> str:
    """Return the text of a file, stripped. Raises Unreadable; never waits on a pipe."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(fd, MAX_BYTES)
        finally:
            os.close(fd)
    except OSError as error:
        raise Unreadable(reason_of(error)) from None
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise Unreadable(GARBAGE) from None
    if not text or any(c < " " and c not in "\n\t" for c in text):
        raise Unreadable(GARBAGE)
    return text


def reason_of(error: OSError) -> str:
    """Return the reason word of a failed open or read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.EOPNOTSUPP, errno.ELOOP, errno.EISDIR):
        return ABSENT
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission"
    # EBUSY and EINVAL come from a device that is suspended or in reset, EIO from one that is gone.
    return f"failed {errno.errorcode.get(error.errno or 0, 'unknown')}"


def number(text: str, most: int = INT64_MAX) -> int:
    """Return a count from 0 to `most`. Raises Unreadable for anything else."""
    match = _DIGITS.match(text)
    if match is None or not 0 <= int(match[1]) <= most:
        raise Unreadable(GARBAGE)
    return int(match[1])


def names(folder: Path) -> list[str]:
    """Return the entries of a folder, sorted. Raises Unreadable."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise Unreadable(reason_of(error)) from None
