"""The text that drives a fake device: "key value" lines, read alike by the C doubles of the tests and by `fake_device`.

Keys stay near the vendor library. Those that every vendor shares:

    vendor nvidia                   which library is played (nvidia or amd); the doubles do not need it
    gpu.count 2                     devices that the library counts; may shrink while it runs
    driver_version 580.95           also nvml_version, lib_version
    init.error 9                    what initialising answers
    gpu0.error 15                   every call on device 0 answers this code
    gpu0.error.FUNCTION 3           one function does
    gpu0.delay_ms 100               every call on device 0 takes that long; gpu0.delay_ms.FUNCTION one does
    gpu0.hang 1                     calls on device 0 never come back; gpu0.hang.FUNCTION one does not
    event.1 0 0x8 79                first event: device, type, data; event.2 is the next one, in order

AMD's are ``gpu0.FUNCTION[.SELECTOR...][.FIELD]`` in the words of amdsmi.h; tests/data/scenarios/mi300x_x8.txt has them.
Blank lines and lines that begin with # say nothing. The last line of a key counts. A reader looks again at the file
before each call and takes it up anew when it was replaced, so `write` is a live change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from passmuster.errors import UserError

ENVIRONMENT = "FAKE_DEVICE_SCENARIO"  # where the doubles look for the path of the file
MAX_BYTES = 4 * 1024 * 1024
MAX_LINE = 4000  # of the C reader's buffer


class BadScenario(UserError):
    """A scenario file that cannot be read."""


def parse(text: str) -> dict[str, str]:
    """Return the values by key. Raises BadScenario with the line that has no value or is too long."""
    found = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        key, *value = line.split(None, 1)
        if not value or len(line) > MAX_LINE:
            raise BadScenario(
                f"scenario line {number} is not 'key value' of at most {MAX_LINE} characters: {line[:80]!r}"
            )
        found[key] = value[0]
    return found


def render(values: Mapping[str, object]) -> str:
    """Return the text of a scenario; truth values become 1 and 0."""
    return "".join(f"{key} {int(value) if isinstance(value, bool) else value}\n" for key, value in values.items())


def write(path: Path, values: Mapping[str, object] | str) -> None:
    """Put a scenario in place of the one at ``path`` in one step, so that no reader sees half of it."""
    text = values if isinstance(values, str) else render(values)
    parse(text)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="ascii")
    fresh.replace(path)


class ScenarioFile:
    """A scenario read from a file, and read again whenever the file was replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._values: dict[str, str] = {}

    def values(self) -> dict[str, str]:
        """Return the values as they are now. Raises BadScenario where the file cannot be read."""
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                if status.st_size > MAX_BYTES:
                    raise BadScenario(f"scenario {self.path} has {status.st_size} bytes; at most {MAX_BYTES}")
                self._values = parse(self.path.read_text(encoding="ascii"))
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            raise BadScenario(f"scenario {self.path} cannot be read: {error}") from None
        return self._values
