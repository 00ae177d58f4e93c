"""Links: PCIe width, speed and errors, NVLink and xGMI links, the fabric, network ports.

Width and generation fall when a device is idle on some boards, so they count only while it works. Error counters of a
healthy device are not zero (an H200 had, since boot, 29 receiver errors, 32 bad TLPs, 27 NAKs, 43 lane errors and 731
recoveries), so rates are judged. How many links a device has differs by board (12 of 18 by design on one): it is
compared with what it had itself, and with its siblings in the host. While a host comes up, links train: nothing is
judged then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from detectors.casebook import SECOND, Casebook, Mask, dedup_key, number, text
from detectors.detector import Detector, State, register
from detectors.maps import total
from detectors.table import Floats, Rows
from passmuster.columns import Columns
from passmuster.records import DeviceState, Finding

NAME = "links"

# A device that works keeps its link up; one sample of activity may be the moment before it speeds up.
BUSY_RATIO = 0.2
BUSY_ROWS = 6  # rows of 10 s

# Never at full width for an hour, busy or not: no power management does that.
NARROW_ROWS = 360

# Three rows: a link that retrains is back within one.
DOWN_ROWS = 3
GOOD_ROWS = 6

# PCIe errors an hour. The healthy H200's largest real error counter had 43 in its boot; a marginal link was never
# below hundreds an hour. Recoveries (L0 to recovery) are part of power management: 731 in that boot were none.
PCIE_PER_HOUR = 120.0
PCIE_WINDOW_SECONDS = 600.0
PCIE_NOT_ERRORS = ("recovery", "replay_rollover", "unsupported_request", "fatal", "nonfatal", "correctable")

# NVLink and xGMI: recoveries and replays are repaired without loss; a healthy link has next to none under load.
LINK_PER_HOUR = 60.0
LINK_WINDOW_SECONDS = 600.0

# InfiniBand's own bound, a bit error ratio of 1e-12, is 360 an hour at 100 Gb/s; twice that is out of specification.
NIC_PER_HOUR = 720.0
NIC_WINDOW_SECONDS = 600.0
NIC_ERRORS = (
    "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors", "local_link_integrity_errors",
    "excessive_buffer_overrun_errors", "rx_crc_errors", "link_error_recovery",
)  # fmt: skip
NIC_FLAPS = ("link_downed",)
FLAPS = 3.0  # in a window; one may be somebody at the cable

# Agents name ports "ACTIVE", "4: ACTIVE", "up", "down", "INIT": up is what contains one of these.
UP_WORDS = ("active", "up", "linkup")


@lru_cache(maxsize=4096)
def _is_pcie_error(kind: str) -> bool:
    return kind not in PCIE_NOT_ERRORS


@lru_cache(maxsize=8192)
def _is_link_error(key: str) -> bool:
    return not key.startswith("all.")


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    rows = case.rows(records)
    if records.kind == "gpu_reading":
        _devices(case, records, rows)
    else:
        _hosts(case, records, rows)
    return case.result()


def _devices(case: Casebook, records: Columns, rows: Rows) -> None:
    same = case.same_epoch(records, rows)
    elapsed = case.seconds_since(records, rows)
    grace = records.values("in_boot_grace").astype(bool)
    ok = (text(records, "state") == DeviceState.OK.value) & ~grace
    busy = ok & (np.fmax(number(records, "activity_compute_ratio"), 0.0) >= BUSY_RATIO)

    width, width_max = number(records, "pcie_width"), number(records, "pcie_width_max")
    narrow = ok & (width < width_max) & (width > 0)
    still_narrow = busy
    if np.count_nonzero(narrow) or "narrow_rows" in case.table:
        rows_narrow = np.where(narrow, case.table.get("narrow_rows", rows, 0.0) + 1, 0.0)
        case.table.put("narrow_rows", rows, rows_narrow)
        still_narrow = busy | (rows_narrow >= NARROW_ROWS)
        if case.one_shot:  # NVIDIA boards lower the generation when idle, not the width
            still_narrow |= narrow & (text(records, "vendor") == "nvidia")
    pcie = ("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "activity_compute_ratio")
    generation, generation_max = number(records, "pcie_generation"), number(records, "pcie_generation_max")
    for code, have, most, judged in (
        ("pcie.width_loss", width, width_max, still_narrow),
        ("pcie.generation_loss", generation, generation_max, busy),
    ):
        known = ~np.isnan(have) & ~np.isnan(most) & (have > 0)
        # Idle rows count for health only: a full link is a full link.
        case.watch(
            records, rows, code, have < most, known & ((judged & (have < most)) | (ok & (have >= most))),
            need_bad=BUSY_ROWS, need_good=2, value=have, bound=most, columns=pcie,
        )  # fmt: skip

    errors = total(records, "pcie_errors_total", _is_pcie_error)
    rate = _rate(case, rows, "pcie", errors, elapsed, same=same, window=PCIE_WINDOW_SECONDS)
    case.watch(
        records, rows, "pcie.error_rate", rate > PCIE_PER_HOUR, ~np.isnan(rate) & ok, need_bad=2, need_good=2,
        value=rate, bound=PCIE_PER_HOUR, columns=("pcie_errors_total",),
    )  # fmt: skip
    for code, kind in (("pcie.fatal", "fatal"), ("pcie.nonfatal", "nonfatal")):
        count = total(records, "pcie_errors_total", lambda k, kind=kind: k == kind)  # type: ignore[misc]
        _news(case, records, rows, code, case.deltas(rows, code, count, same))

    _links_up(case, records, rows, ok)
    link_errors = total(records, "link_errors_total", _is_link_error)
    link_errors = np.where(np.isnan(link_errors), total(records, "link_errors_total", lambda _: True), link_errors)
    rate = _rate(case, rows, "link", link_errors, elapsed, same=same, window=LINK_WINDOW_SECONDS)
    case.watch(
        records, rows, "link.error_rate", rate > LINK_PER_HOUR, ~np.isnan(rate) & ok, need_bad=2, need_good=2,
        value=rate, bound=LINK_PER_HOUR, columns=("link_errors_total", "links"),
    )  # fmt: skip
    sticky = number(records, "link_error_status")
    case.watch(
        records, rows, "link.error_status", sticky > 0, ~np.isnan(sticky) & ok, need_bad=2, need_good=2, value=sticky,
        bound=0.0, columns=("link_error_status", "links"),
    )  # fmt: skip
    _fabric(case, records, rows, ok)


def _links_up(case: Casebook, records: Columns, rows: Rows, ok: Mask) -> None:
    """Judge the number of links that are up by what the device had before and by its siblings of the same model."""
    up = np.where(ok, number(records, "links_up"), np.nan)
    best = np.fmax(case.table.get("links_best", rows), up)
    if np.count_nonzero(best > case.table.get("links_best", rows, -1.0)):
        case.table.put("links_best", rows, best)
    siblings: dict[tuple[str, ...], list[int]] = {}
    names = zip(records.objects("cluster"), records.objects("host"), records.objects("model"), strict=True)
    for i, name in enumerate(names):
        siblings.setdefault(name, []).append(i)
    expected = best.copy()
    for members in siblings.values():
        # Most siblings must agree: one board with more links than the others is the odd one, not they.
        if len(members) >= 3 and not np.isnan(best[members]).all():
            expected[members] = np.fmax(best[members], np.nanmedian(best[members]))
    case.watch(
        records, rows, "link.down", up < expected, ~np.isnan(up), need_bad=DOWN_ROWS, need_good=2, value=up,
        bound=expected, columns=("links_up", "links_total", "links"),
    )  # fmt: skip


def _fabric(case: Casebook, records: Columns, rows: Rows, ok: Mask) -> None:
    states = text(records, "fabric_state")
    known = ok & np.array([s != "" for s in states], bool)
    status = number(records, "fabric_status")
    pending = np.array([s in ("not_started", "in_progress") for s in states], bool)
    failed = (states == "completed") & (status > 0)
    case.watch(
        records, rows, "fabric.not_completed", pending | failed, known, need_bad=DOWN_ROWS, need_good=2, value=status,
        columns=("fabric_state", "fabric_status"),
    )  # fmt: skip
    flags = np.array([bool(f) for f in records.objects("fabric_health")], bool)
    case.watch(
        records, rows, "fabric.unhealthy", flags, known, need_bad=DOWN_ROWS, need_good=2,
        columns=("fabric_health", "fabric_state"),
    )  # fmt: skip


def _hosts(case: Casebook, records: Columns, rows: Rows) -> None:
    """Follow each network port and PCIe address of each host as a subject of its own."""
    grace = records.values("in_boot_grace").astype(bool)
    same = case.same_epoch(records, rows)
    elapsed = case.seconds_since(records, rows)
    for i in range(records.rows):
        if grace[i]:
            continue
        one = records.take(np.array([i]))
        since = elapsed[i : i + 1]
        host_same = same[i : i + 1]
        _ports(case, one, since, host_same)
        for severity in ("fatal", "nonfatal"):
            count = total(one, "aer_errors_total", lambda k, s=severity: k.endswith(f".{s}"))  # type: ignore[misc]
            grew = case.deltas(rows[i : i + 1], f"aer:{severity}", count, host_same)
            _news(case, one, rows[i : i + 1], f"pcie.{severity}", grew)


def _ports(case: Casebook, one: Columns, since: Floats, same: Mask) -> None:
    subject = one.objects("subject")[0]
    states: dict[str, str] = one.objects("nic_links")[0] or {}
    errors: dict[str, int] = one.objects("nic_errors_total")[0] or {}
    by_port: dict[str, dict[str, int]] = {}
    for key, count in errors.items():
        port, _, counter = key.rpartition(".")
        by_port.setdefault(port, {})[counter] = count
    for port in sorted(states.keys() | by_port.keys()):
        row = case.table.rows([f"{subject}/{port}"])
        state = states.get(port, "")
        up = any(w in state.lower() for w in UP_WORDS)
        was_up = case.table.get("was_up", row)[0] > 0
        if up:
            case.table.put("was_up", row, 1.0)
        told = np.array([state != ""])
        down = np.array([not up and was_up])
        _port(case, one, port, row, code="nic.link_down", bad=down, known=told, rows=DOWN_ROWS, state=state)
        flaps = _sum(by_port.get(port, {}), NIC_FLAPS)
        rate = _rate(case, row, "flaps", flaps, since, same=same, window=3_600.0)
        told = ~np.isnan(rate)
        _port(case, one, port, row, code="nic.flapping", bad=rate >= FLAPS, known=told, rows=1, downs_per_hour=rate[0])
        counts = _sum(by_port.get(port, {}), NIC_ERRORS)
        rate = _rate(case, row, "nic", counts, since, same=same, window=NIC_WINDOW_SECONDS)
        told, bad = ~np.isnan(rate), rate > NIC_PER_HOUR
        _port(case, one, port, row, code="nic.error_rate", bad=bad, known=told, rows=2, errors_per_hour=rate[0])


def _sum(counters: dict[str, int], names: tuple[str, ...]) -> Floats:
    found = [v for k, v in counters.items() if k in names]
    return np.array([float(sum(found)) if found else np.nan])


def _port(
    case: Casebook, one: Columns, port: str, row: Rows, *, code: str, bad: Mask, known: Mask, rows: int, **evidence: Any
) -> None:
    seen, cleared = case.condition(row, code, bad, known, need_bad=rows, need_good=2)
    key = f"{code}/{one.objects('subject')[0]}/{port}"
    if seen[0]:
        finding = case.draft(one, 0, code, host_wide=True, evidence={"port": port, **evidence}, detail=port)
        case.see(key, _about(finding, f"{finding.host}/{port}"))
    if cleared[0]:
        case.clear(key, int(one.objects("observed_at")[0]))


def _about(finding: Finding, part: str) -> Finding:
    """Give a finding a key of its own per part of its subject: two ports down are two findings."""
    return replace(finding, dedup_key=dedup_key(NAME, finding.code, part))


def _news(case: Casebook, records: Columns, rows: Rows, code: str, grew: Floats) -> None:
    """Open a finding where an error counter grew; a day without more ends it."""
    column = "aer_errors_total" if records.kind == "host_reading" else "pcie_errors_total"
    if f"last:{code}" not in case.table and not np.count_nonzero(grew > 0):
        return
    at = records.values("observed_at").astype(np.float64)
    last = case.table.get(f"last:{code}", rows)
    last = np.where(grew > 0, at, last)
    quiet = at - last > 86_400.0 * SECOND
    case.table.put(f"last:{code}", rows, np.where(quiet, np.nan, last))
    for i in np.flatnonzero(grew > 0).tolist():
        finding = case.draft(
            records, i, code, host_wide=records.kind == "host_reading", value=float(grew[i]), bound=0.0,
            evidence={column: records.objects(column)[i]},
        )  # fmt: skip
        case.see(f"{code}/{records.objects('subject')[i]}", finding)
    for i in np.flatnonzero(quiet).tolist():
        case.clear(f"{code}/{records.objects('subject')[i]}", int(at[i]), "no more of them for a day")


def _rate(
    case: Casebook, rows: Rows, name: str, count: Floats, elapsed: Floats, *, same: Mask, window: float
) -> Floats:
    """Return errors an hour over about the last window.

    A leaky sum: what was counted fades with the window's length, so that one burst decays and a steady rate shows as
    itself. Before a full window was seen the sum is divided by the whole window all the same: a start is no alarm.
    """
    grew = case.deltas(rows, f"count:{name}", count, same)
    if f"leaky:{name}" not in case.table and not np.count_nonzero(grew > 0):
        return np.where(np.isnan(grew), np.nan, 0.0)
    before = case.table.get(f"leaky:{name}", rows, 0.0)
    leaky = before * np.exp(-np.clip(np.nan_to_num(elapsed), 0.0, None) / window) + np.nan_to_num(grew)
    leaky = np.where(leaky < 1e-6, 0.0, leaky)
    case.table.put(f"leaky:{name}", rows, leaky)
    rate: Floats = np.where(np.isnan(grew), np.nan, leaky * 3_600.0 / window)
    return rate


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("gpu_reading", "host_reading"),
        summary="PCIe, NVLink, xGMI, fabric and network links that are down, narrow, slow or full of errors.",
        observe=observe,
        codes=(
            "pcie.width_loss",
            "pcie.generation_loss",
            "pcie.error_rate",
            "pcie.fatal",
            "pcie.nonfatal",
            "link.down",
            "link.error_rate",
            "link.error_status",
            "fabric.not_completed",
            "fabric.unhealthy",
            "nic.link_down",
            "nic.flapping",
            "nic.error_rate",
        ),
        needs={"gpu_reading": ("pcie_width", "links_up")},
        bounds={
            "BUSY_RATIO": f"{BUSY_RATIO:g} activity: below it a link may rest",
            "BUSY_ROWS": f"{BUSY_ROWS} busy rows of 10 s below full width or speed",
            "NARROW_ROWS": f"{NARROW_ROWS} rows below full width, idle or not: no power management does that",
            "DOWN_ROWS": f"{DOWN_ROWS} rows: a link that retrains is back within one",
            "PCIE_PER_HOUR": f"{PCIE_PER_HOUR:g} errors an hour over {PCIE_WINDOW_SECONDS:g} s; a healthy H200 had 43 "
            "lane errors in its whole boot",
            "LINK_PER_HOUR": f"{LINK_PER_HOUR:g} errors an hour over {LINK_WINDOW_SECONDS:g} s",
            "NIC_PER_HOUR": f"{NIC_PER_HOUR:g} errors an hour over {NIC_WINDOW_SECONDS:g} s; InfiniBand "
            "allows 360 at 100 Gb/s (bit error ratio 1e-12)",
            "FLAPS": f"{FLAPS:g} downs within an hour",
        },
    )
)
