"""Uncorrectable memory errors: counters that grew, and corrected errors that come in storms.

Which class a growth has: device memory (NVIDIA DRAM and SRAM, AMD UMC) is U, unless the driver said in the same minute
that it contained the error (class C of the fault table, as XID 94, and no U), then C. Other AMD blocks and deferred
(poisoned) errors are C: the data was stopped before it was used. Errors of an AMD link block (xgmi, pcie) are left to
`links`.

Counters since driver load that are not zero when the device is first seen, or after they restarted, did happen in this
boot, at an unknown time: class C, "since load"; a reset or reload clears it. Lifetime counters are never news: they may
be years old.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from detectors.casebook import SECOND, Casebook, Mask, number, text
from detectors.detector import Detector, State, register
from detectors.maps import total
from detectors.table import Floats, Rows
from passmuster.columns import Columns
from passmuster.records import DeviceState, FaultClass, Finding, Trust

NAME = "uncorrectable_memory"

# A kernel-log line and the counter that it is about arrive at most one shipped interval (10 s) and a slow tier (60 s)
# apart.
CONTAINED_SECONDS = 90.0

# One query on a suspended AMD device once added 1,048,560 to a counter. No memory makes that many uncorrectable
# errors between two rows: the driver takes the device away after the first few.
ABSURD_UNCORRECTED = 100_000.0

# Corrected errors are normal: a few a day on a healthy device. A failing stack was seen at up to 17,600 a second
# (NVSentinel#1748). One a second, for a minute, is far from both.
STORM_PER_SECOND = 1.0
STORM_ROWS = 6  # rows of 10 s

# A finding of a counter that grew goes on for a day without more, unless a reset or reboot restarts the counter: then
# the trace in the store is enough.
QUIET_SECONDS = 86_400.0

LINK_BLOCKS = ("xgmi_wafl", "xgmi", "pcie_bif", "bif")
MEMORY_BLOCKS = ("dram", "sram", "umc", "hbm", "device_memory")


@lru_cache(maxsize=4096)
def _part(key: str) -> str:
    """Return what a key of ecc_blocks_total counts: memory, block (any other unit), or "" (not uncorrected, a link)."""
    block, _, severity = key.rpartition(".")
    if severity != "uncorrected" or block in LINK_BLOCKS:
        return ""
    return "memory" if block.split(".")[0] in MEMORY_BLOCKS else "block"


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    rows = case.rows(records)
    if records.kind == "fault_event":
        _remember_faults(case, records, rows)
        return case.result()

    same = case.same_epoch(records, rows)
    elapsed = case.seconds_since(records, rows)
    ok = text(records, "state") == DeviceState.OK.value
    by_block = total(records, "ecc_blocks_total", lambda k: _part(k) == "memory")
    other_blocks = total(records, "ecc_blocks_total", lambda k: _part(k) == "block")
    # The device's own total counts every block. It stands for memory where the blocks are not told apart.
    memory = np.where(
        np.isnan(by_block),
        np.where(np.isnan(other_blocks), number(records, "ecc_uncorrected_total"), by_block),
        by_block,
    )
    at = records.values("observed_at").astype(np.float64)
    contained_ago = (at - case.table.get("contained_at", rows)) / SECOND
    escaped_ago = (at - case.table.get("escaped_at", rows)) / SECOND
    contained = (contained_ago <= CONTAINED_SECONDS) & ~(escaped_ago <= CONTAINED_SECONDS)

    grew = _growth(case, rows, "memory", memory, same=same, ok=ok)
    _note(case, records, rows, "memory.uncorrected", grew=(grew > 0) & ~contained, by=grew, count=memory, same=same)
    _note(
        case,
        records,
        rows,
        "memory.uncorrected_contained",
        grew=(grew > 0) & contained,
        by=grew,
        count=memory,
        same=same,
    )
    block_grew = _growth(case, rows, "block", other_blocks, same=same, ok=ok)
    _note(
        case,
        records,
        rows,
        "memory.block_uncorrected",
        grew=block_grew > 0,
        by=block_grew,
        count=other_blocks,
        same=same,
    )
    deferred = number(records, "ecc_deferred_total")
    deferred_grew = _growth(case, rows, "deferred", deferred, same=same, ok=ok)
    _note(case, records, rows, "memory.deferred", grew=deferred_grew > 0, by=deferred_grew, count=deferred, same=same)

    everything = np.nansum([memory, other_blocks], axis=0)
    known = ok & ~(np.isnan(memory) & np.isnan(other_blocks))
    # Once it is known how the count grew, "since load" has nothing to add.
    first = case.table.get("since_load", rows)
    first = np.where(same & ~np.isnan(first), first, np.where(known, everything, np.nan))
    case.table.put("since_load", rows, first)
    case.watch(
        records, rows, "memory.uncorrected_since_load", first > 0, known,
        value=everything, bound=0.0,
        columns=("ecc_uncorrected_total", "ecc_blocks_total", "ecc_uncorrected_lifetime_total"),
    )  # fmt: skip

    threshold = number(records, "sram_threshold_exceeded")
    case.watch(
        records, rows, "memory.sram_threshold", threshold > 0, ok & ~np.isnan(threshold), need_good=2,
        columns=("sram_threshold_exceeded", "ecc_blocks_total"),
    )  # fmt: skip
    corrected = number(records, "ecc_corrected_total")
    rate = _growth(case, rows, "corrected", corrected, same=same, ok=ok, absurd=np.inf) / elapsed
    case.watch(
        records, rows, "memory.corrected_storm", rate > STORM_PER_SECOND, ~np.isnan(rate),
        need_bad=STORM_ROWS, need_good=STORM_ROWS, value=rate, bound=STORM_PER_SECOND,
        columns=("ecc_corrected_total", "ecc_blocks_total"),
    )  # fmt: skip
    return case.result()


def _remember_faults(case: Casebook, records: Columns, rows: Rows) -> None:
    """Keep when the driver last said that it contained an error, and that one escaped."""
    for i, letter in enumerate(records.objects("fault_class")):
        if records.objects("trust")[i] == Trust.USER.value:
            continue
        if letter in (FaultClass.CONTAINED.value, FaultClass.UNCONTAINED.value):
            column = "contained_at" if letter == FaultClass.CONTAINED.value else "escaped_at"
            case.table.put(column, rows[i : i + 1], float(records.objects("last_at")[i]))


def _growth(
    case: Casebook, rows: Rows, name: str, current: Floats, *, same: Mask, ok: Mask, absurd: float = ABSURD_UNCORRECTED
) -> Floats:
    """Return how much a counter grew; NaN where unknown, absurd, or the device was not awake and well."""
    grew = case.deltas(rows, f"count:{name}", np.where(ok, current, np.nan), same)
    wild = grew >= absurd
    if np.count_nonzero(wild):
        case.table.put(f"absurd:{name}", rows, case.table.get(f"absurd:{name}", rows, 0.0) + wild)
    return np.where(wild, np.nan, grew)


def _note(
    case: Casebook, records: Columns, rows: Rows, code: str, *, grew: Mask, by: Floats, count: Floats, same: Mask
) -> None:
    """Open or renew a finding where a counter grew; clear it when the counter restarted or a day was quiet."""
    if f"last:{code}" not in case.table and not np.count_nonzero(grew):
        return
    at = records.values("observed_at")
    last = case.table.get(f"last:{code}", rows)
    for i in np.flatnonzero(grew).tolist():
        finding = case.draft(
            records, i, code, value=float(by[i]), bound=0.0,
            evidence={"grew_by": by[i], "count_now": count[i]}
            | {c: records.objects(c)[i] for c in ("ecc_blocks_total", "ecc_uncorrected_total", "ecc_deferred_total",
                                                 "row_remap_pending", "bad_pages_pending", "recovery_action")},
        )  # fmt: skip
        case.see(f"{code}/{records.objects('subject')[i]}", finding)
    if np.count_nonzero(grew):
        case.table.put(f"last:{code}", rows, np.where(grew, at.astype(np.float64), last))
    for i in np.flatnonzero(~np.isnan(last) & ~grew).tolist():
        why = ""
        if not same[i]:
            why = "the counter restarted: the GPU was reset, its driver reloaded or the host rebooted"
        elif at[i] - last[i] > QUIET_SECONDS * SECOND:
            why = "no more of them for a day"
        if why:
            case.clear(f"{code}/{records.objects('subject')[i]}", int(at[i]), why)
            case.table.put(f"last:{code}", rows[i : i + 1], np.nan)


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("fault_event", "gpu_reading"),
        summary="Memory errors that could not be corrected, and storms of corrected ones.",
        observe=observe,
        codes=(
            "memory.uncorrected",
            "memory.uncorrected_contained",
            "memory.uncorrected_since_load",
            "memory.block_uncorrected",
            "memory.deferred",
            "memory.sram_threshold",
            "memory.corrected_storm",
        ),
        needs={"gpu_reading": ("ecc_uncorrected_total", "ecc_blocks_total")},
        bounds={
            "CONTAINED_SECONDS": f"{CONTAINED_SECONDS:g} s: fault line and counter are at most this far apart",
            "ABSURD_UNCORRECTED": f"{ABSURD_UNCORRECTED:g} errors between two rows: a suspended device's reading",
            "STORM_PER_SECOND": f"{STORM_PER_SECOND:g} corrected errors a second over {STORM_ROWS} rows: a dying stack "
            "was seen at 17,600 a second (NVSentinel#1748)",
            "QUIET_SECONDS": f"{QUIET_SECONDS:g} s without growth clear the finding",
        },
    )
)
