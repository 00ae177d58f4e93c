"""The state of each host as the page shows it, from the store's rows and the holds; computed by one pure function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from quarantine.service import Hold

HELD_STATES = ("held", "lapsed")

# Readings leave a host every 30 s; four missed shipments are silence.
SILENT_AFTER_SECONDS = 120.0


class HostState(Struct, frozen=True, kw_only=True):
    """One host on the page; ``state`` is a key of `dashboards.words.STATE_COLORS`."""

    cluster: str
    host: str
    vendor: str
    model: str
    pool: str
    rack: str
    state: str
    why: str
    devices: int
    devices_ok: int
    last_at: int


def host_states(
    rows: Sequence[dict[str, Any]],
    findings: Sequence[dict[str, Any]],
    holds: Sequence[Hold],
    places: dict[tuple[str, str], tuple[str, str]],
    checked: set[tuple[str, str]],
) -> list[HostState]:
    """Return one state per host.

    ``rows`` are of the query fleet_hosts, ``findings`` of findings_open (worst first), ``places`` maps (cluster, host)
    to (pool, rack), ``checked`` holds the hosts of which any check has said healthy. A host that is silent, or of which
    no check has said anything, is unknown: silence is not health.
    """
    held = {(h.cluster, h.host): h for h in reversed(holds) if h.state in HELD_STATES and h.host}
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for finding in findings:
        if not finding["secondary"] and finding["mode"] in ("shadow", "act"):
            worst.setdefault((finding["cluster"], finding["host"]), finding)
    states = []
    for row in rows:
        key = (row["cluster"], row["host"])
        pool, rack = places.get(key, ("", ""))
        state, why = _state(row, held.get(key), worst.get(key), checked=key in checked)
        states.append(
            HostState(
                cluster=row["cluster"],
                host=row["host"],
                vendor=row["vendor"],
                model=row["model"],
                pool=pool,
                rack=rack,
                state=state,
                why=why,
                devices=row["devices"],
                devices_ok=row["ok"],
                last_at=row["observed_at"],
            )
        )
    return states


def _state(row: dict[str, Any], hold: Hold | None, finding: dict[str, Any] | None, *, checked: bool) -> tuple[str, str]:
    if hold is not None:
        return "held", hold.reason
    if row["silent_seconds"] > SILENT_AFTER_SECONDS:
        return "unknown", f"silent for {row['silent_seconds']:.0f} s"
    if finding is not None and finding["fault_class"] != "S":
        if finding["severity"] in ("critical", "error"):
            return "unhealthy", finding["title"]
        if finding["severity"] == "warning":
            return "degraded", finding["title"]
    if row["ok"] < row["devices"]:
        return "degraded", f"{row['devices'] - row['ok']} of {row['devices']} devices do not answer as they should"
    if not checked:
        return "unknown", "no check has answered yet"
    return "passes", ""
