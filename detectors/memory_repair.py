"""Memory repair: what waits for a reset, what failed, and how much is left to repair with.

Reads the state itself, not the log line that announced it: NVIDIA's row remapper, channel repair and unrepairable flag,
AMD's list of bad pages. These are facts that the device keeps, so one reading is enough, and a boot excuses nothing.
"""

from __future__ import annotations

import numpy as np

from detectors.casebook import Casebook, number
from detectors.detector import Detector, State, register
from detectors.maps import total
from passmuster.columns import Columns
from passmuster.records import FaultClass, Finding, Severity

NAME = "memory_repair"

# amdgpu itself warns at 90 % of the bad-page threshold and asks for the board's return at 100 % (peers: ROCm
# legacy-rocm-build#5345 teaches to read the count and not to wait for the record).
NEAR_LIMIT_RATIO = 0.9

# A flag that the driver cleared must be gone in two rows before the finding is closed: a reset shows a moment of both.
GOOD_ROWS = 2


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    rows = case.rows(records)
    remap = ("rows_remapped_corrected_total", "rows_remapped_uncorrected_total", "row_remap_banks")
    for code, column, beside in (
        ("memory.row_remap_pending", "row_remap_pending", remap),
        ("memory.row_remap_failed", "row_remap_failed", remap),
        ("memory.repair_pending", "repair_pending", ()),
        ("memory.unrepairable", "memory_unrepairable", ()),
    ):
        flag = number(records, column)
        case.watch(
            records, rows, code, flag > 0, ~np.isnan(flag), need_good=GOOD_ROWS, value=flag, bound=0.0,
            columns=(column, *beside),
        )  # fmt: skip
    exhausted = total(records, "row_remap_banks", lambda k: k == "none")
    case.watch(
        records, rows, "memory.no_spare_rows", exhausted > 0, ~np.isnan(exhausted), need_good=GOOD_ROWS,
        value=exhausted, bound=0.0, columns=remap,
    )  # fmt: skip

    pages = ("bad_pages_reserved", "bad_pages_pending", "bad_pages_unreservable", "bad_pages_limit")
    for code, column in (
        ("memory.bad_pages_pending", "bad_pages_pending"),
        ("memory.bad_pages_unreservable", "bad_pages_unreservable"),
    ):
        count = number(records, column)
        case.watch(
            records, rows, code, count > 0, ~np.isnan(count), need_good=GOOD_ROWS, value=count, bound=0.0, columns=pages
        )
    limit = number(records, "bad_pages_limit")
    limit = np.where(limit > 0, limit, np.nan)  # 0 is the module's "no limit"
    used = np.where(
        np.isnan(number(records, pages[0])), np.nan, np.nansum([number(records, c) for c in pages[:3]], axis=0)
    )
    known = ~np.isnan(used) & ~np.isnan(limit)
    at_limit = used >= limit
    case.watch(
        records, rows, "memory.bad_pages_near_limit", (used >= NEAR_LIMIT_RATIO * limit) & ~at_limit, known,
        value=used, bound=NEAR_LIMIT_RATIO * limit, columns=pages,
    )  # fmt: skip
    case.watch(
        records, rows, "memory.bad_pages_limit", at_limit, known, value=used, bound=limit, columns=pages,
        fault_class=FaultClass.REPAIR_FAILED, severity=Severity.CRITICAL,
    )  # fmt: skip
    return case.result()


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("gpu_reading",),
        summary="Memory repairs that wait, failed, or have nothing left to repair with.",
        observe=observe,
        codes=(
            "memory.row_remap_pending",
            "memory.row_remap_failed",
            "memory.no_spare_rows",
            "memory.repair_pending",
            "memory.unrepairable",
            "memory.bad_pages_pending",
            "memory.bad_pages_near_limit",
            "memory.bad_pages_limit",
            "memory.bad_pages_unreservable",
        ),
        needs={"gpu_reading": ("row_remap_failed", "bad_pages_reserved", "bad_pages_pending")},
        bounds={
            "NEAR_LIMIT_RATIO": f"{NEAR_LIMIT_RATIO:g} of the bad-page limit: where amdgpu itself begins to warn",
            "GOOD_ROWS": f"{GOOD_ROWS} rows without the flag clear a finding: a reset shows a moment of both",
        },
    )
)
