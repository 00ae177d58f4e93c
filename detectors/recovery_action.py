"""What the driver itself asks for: a reset, a drain, a reboot.

NVIDIA drivers from 570 on name a recovery action; it is read before any code table and outranks it. XID 154 says the
same in the kernel log; the action is taken from its text and followed until a reading says "none".
"""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from detectors.casebook import Casebook, Mask, text
from detectors.codes import CODES
from detectors.detector import Detector, State, register
from passmuster.columns import Columns
from passmuster.records import DeviceState, Finding, SubjectKind, Trust

NAME = "recovery_action"

# "none" must be read twice before a finding is closed: during a reset the driver answers both ways.
GOOD_ROWS = 2

WORDS = {
    "gpu reset": "gpu_reset",
    "gpu reset required": "gpu_reset",
    "bus reset": "bus_reset",
    "node reboot": "node_reboot",
    "node reboot required": "node_reboot",
    "system reboot": "system_reboot",
    "drain p2p": "drain_p2p",
    "drain and reset": "drain_and_reset",
    "recover imex domain": "recover_imex_domain",
}
_ACTION = re.compile(
    r"recovery action changed from .{0,80}? to (?:0x[0-9a-f]+ )?\(?(?P<action>[A-Za-z0-9 ]{1,40})", re.IGNORECASE
)


def action_of(line: str) -> str:
    """Return the action that the text of an XID 154 names, "none" for none, "" when it names nothing."""
    found = _ACTION.search(line[:1024])
    if not found:
        return ""
    words = " ".join(found["action"].lower().split())
    return "none" if words == "none" else WORDS.get(words, words.replace(" ", "_"))


def code_of(action: str) -> str:
    """Return the finding code of an action."""
    code = f"recovery.{action}"
    return code if code in CODES else "recovery.other"


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    if records.kind == "fault_event":
        _follow_log(case, records)
        return case.result()
    rows = case.rows(records)
    actions = text(records, "recovery_action")
    asked: Mask = np.array([a not in ("", "none") for a in actions], bool)
    known = np.array([a != "" for a in actions], bool) & (text(records, "state") == DeviceState.OK.value)
    _, calm = case.condition(rows, "action", asked, known, need_good=GOOD_ROWS)
    for i in np.flatnonzero(asked).tolist():
        finding = case.draft(records, i, code_of(actions[i]), evidence={"recovery_action": actions[i]})
        case.see(records.objects("subject")[i], finding)
    # What came from the log alone never opened the condition, so it needs its own look.
    for i in np.flatnonzero(known & ~asked).tolist():
        key = records.objects("subject")[i]
        opened = case.open.get(key)
        at = int(records.objects("observed_at")[i])
        told_by_log = opened is not None and "text" in (opened.evidence or {})
        if opened is not None and (calm[i] or told_by_log) and opened.last_seen_at < at:
            case.clear(key, at, "the driver asks for nothing any more")
    return case.result()


def _follow_log(case: Casebook, records: Columns) -> None:
    for i, code in enumerate(records.objects("code")):
        if code != "xid:154" or records.objects("trust")[i] == Trust.USER.value or not records.objects("device_id")[i]:
            continue
        line = records.objects("text")[i] or ""
        action = action_of(line)
        key = records.objects("subject")[i]
        at = int(records.objects("last_at")[i])
        if action == "none":
            case.clear(key, at, "XID 154: the driver asks for nothing any more")
        elif action:
            finding = case.draft(records, i, code_of(action), evidence={"recovery_action": action, "text": line})
            case.see(key, replace(finding, subject_kind=SubjectKind.DEVICE, opened_at=at, last_seen_at=at))


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("fault_event", "gpu_reading"),
        summary="The driver asks for a reset, a drain or a reboot.",
        observe=observe,
        codes=tuple(code for code in CODES if code.startswith("recovery.")),
        needs={"gpu_reading": ("recovery_action",)},
        bounds={
            "GOOD_ROWS": f"{GOOD_ROWS} rows of 'none' clear a finding: during a reset the driver answers both ways"
        },
    )
)
