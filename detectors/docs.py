"""Writes docs/detectors.md from the register: what each detector finds, reads and means, with its bounds."""

from __future__ import annotations

from inspect import getdoc
from sys import modules

from detectors.codes import CODES
from detectors.detector import load_all

_HEAD = """# Detectors

Generated from the code by `detectors/docs.py`; do not edit. A detector reads records and opens, renews and clears
findings. Every finding carries one of the codes below, a class letter and a severity. What a finding may lead to is its
mode: what nobody promoted is in `shadow` (`[detectors]` in the configuration).

Rows that arrive more than ten minutes late, rows that were seen before and rows out of order change nothing. After a
boot, what is still coming up is unknown, not bad (`agent.boot_grace_seconds`).
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name, detector in sorted(load_all().items()):
        module = modules[detector.observe.__module__]
        text = (getdoc(module) or detector.summary).strip()
        parts.append(f"## {name}\n\n{text}\n")
        time_driven = "; also driven by time" if detector.tick else ""
        parts.append(f"Version {detector.version}. Reads {', '.join(f'`{k}`' for k in detector.kinds)}{time_driven}.\n")
        parts.append("| bound | value and reason |\n| --- | --- |")
        parts.append("\n".join(f"| `{bound}` | {why} |" for bound, why in detector.bounds.items()) + "\n")
        if detector.codes:
            parts.append("| code | class | severity | what it means | next step |\n| --- | --- | --- | --- | --- |")
            parts.append("\n".join(_row(code) for code in detector.codes) + "\n")
        else:
            parts.append("Codes are those of the fault table, as `xid.48`, `sxid.20034`, `ras.umc.uncorrectable`.\n")
    return "\n".join(parts)


def _row(code: str) -> str:
    entry = CODES[code]
    return f"| `{code}` | {entry.fault_class.value} | {entry.severity.value} | {entry.title} | {entry.next_step} |"
