"""Services that GPUs need and that do not run: a dead fabric manager went unseen for 20 days once (NVSentinel#883).

"Failed" counts on every host. "Inactive" counts only where the service ran before in the same boot: it is installed and
rightly idle on hosts without switches.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from detectors.casebook import Casebook, boot_number, dedup_key
from detectors.detector import Detector, State, register
from passmuster.columns import Columns
from passmuster.records import Finding

NAME = "services"

# Host readings; a restart takes one.
DOWN_ROWS = 3
GOOD_ROWS = 2


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    for i, services in enumerate(records.objects("services")):
        for service, word in sorted((services or {}).items()):
            row = case.table.rows([f"{records.objects('subject')[i]}/{service}"])
            boot = boot_number(records.objects("boot_id")[i])
            if word == "active":
                case.table.put("active_in", row, boot)
            ran = case.table.get("active_in", row)[0] == boot
            down = word == "failed" or (word == "inactive" and ran)
            known = word in ("active", "failed", "inactive") and not records.objects("in_boot_grace")[i]
            seen, cleared = case.condition(
                row, "service.down", np.array([down]), np.array([known]), need_bad=DOWN_ROWS, need_good=GOOD_ROWS
            )
            key = f"{records.objects('subject')[i]}/{service}"
            if seen[0]:
                finding = case.draft(
                    records, i, "service.down", host_wide=True, evidence={"service": service, "state": word},
                    detail=f"{service} is {word}",
                )  # fmt: skip
                key_of_service = dedup_key(NAME, finding.code, f"{finding.host}/{service}")
                case.see(key, replace(finding, dedup_key=key_of_service))
            if cleared[0]:
                case.clear(key, int(records.objects("observed_at")[i]))
    return case.result()


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("host_reading",),
        summary="Services that GPUs need and that have failed or stopped.",
        observe=observe,
        codes=("service.down",),
        needs={"host_reading": ("services",)},
        bounds={
            "DOWN_ROWS": f"{DOWN_ROWS} host readings: a restart takes one",
            "GOOD_ROWS": f"{GOOD_ROWS} host readings that run end it",
        },
    )
)
