"""Page one, for the person who was paged: what is wrong now, what was done about it, what to do next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboards.current import House, house
from dashboards.fleet_state import HELD_STATES, HostState, host_states
from dashboards.words import CLASS_WORDS, SECOND, SEVERITIES, STATE_COLORS, age, at, span
from passmuster.errors import UserError
from quarantine.service import Hold
from quarantine.why import as_text, why_markdown

LOOK_BACK = 3_600 * SECOND
LAG_LIMIT_SECONDS = 120.0


def header(running: House, states: list[HostState], now: int) -> None:
    """Say how many hosts are in which state, and whether the page itself can be believed."""
    progress = running.progress
    st.title("What is wrong now")
    st.caption(f"{running.source_name()}, {at(now)} UTC, data {span(progress.lag_seconds)} behind")
    if progress.failed:
        st.error(f"Nothing is being stored: {as_text(progress.failed)}")
    elif progress.lag_seconds > LAG_LIMIT_SECONDS:
        st.error(f"The data is {span(progress.lag_seconds)} behind; what is shown is not the state of now.")
    if progress.dead_letters:
        st.warning(
            f"{progress.dead_letters} batches could not be taken; they are in dead-letters.jsonl with the reason."
        )
    counts = Counter(s.state for s in states)
    for column, state in zip(st.columns(len(STATE_COLORS)), STATE_COLORS, strict=True):
        column.metric(f"hosts: {state}", counts[state])


def grid(states: list[HostState]) -> None:
    """Draw every host as one square, by rack."""
    if not states:
        st.info("No host has reported in the last hour.")
        return
    rows = []
    seats: Counter[str] = Counter()
    for s in states:
        rack = s.rack or "(no rack)"
        rows.append(
            {"rack": rack, "seat": seats[rack], "host": s.host, "model": s.model, "state": s.state, "why": s.why}
        )
        seats[rack] += 1
    chart = (
        alt.Chart(pd.DataFrame(rows))
        .mark_square(size=220)
        .encode(
            x=alt.X("seat:O", axis=None),
            y=alt.Y("rack:N", title=None),
            color=alt.Color(
                "state:N", scale=alt.Scale(domain=list(STATE_COLORS), range=list(STATE_COLORS.values())), title=None
            ),
            tooltip=["host", "model", "state", "why"],
        )
        .properties(height=24 * max(2, len(seats)) + 20)
    )
    st.altair_chart(chart, width="stretch")


def hold_table(running: House, holds: list[Hold], now: int) -> None:
    """List the holds, and let a named person act on one."""
    st.subheader(f"Holds ({len(holds)})")
    if not holds:
        st.write("None.")
        return
    table = pd.DataFrame(
        {
            "host": h.host or "(several)",
            "device": h.device_id,
            "state": f"{h.state} (dry-run)" if h.dry_run and h.state in HELD_STATES else h.state,
            "check": h.check,
            "why": h.reason,
            "since": age(h.placed_at, now),
            "owner": h.owner,
            "hold": h.hold_id,
        }
        for h in holds
    )
    chosen = st.dataframe(table, hide_index=True, on_select="rerun", selection_mode="single-row", key="holds")
    selected: list[int] = chosen["selection"]["rows"]
    if not selected or selected[0] >= len(holds):
        st.caption("Choose a row to see why, and to act.")
        return
    hold = holds[selected[0]]
    st.markdown(why_markdown(hold))
    act_on(running, hold, now)


def act_on(running: House, hold: Hold, now: int) -> None:
    """Approve, release or let a hold lapse, in a person's name and with a reason."""
    with st.form(f"act-{hold.hold_id}"):
        name = st.text_input("Your name", max_chars=64)
        reason = st.text_input("Reason", max_chars=512)
        approve, release, lapse = st.columns(3)
        pressed = {
            "approve": approve.form_submit_button("Approve the hold"),
            "release": release.form_submit_button("Release, or decline"),
            "expire": lapse.form_submit_button("Hand to a person now"),
        }
    for act, is_pressed in pressed.items():
        if not is_pressed:
            continue
        if not name.strip() or not reason.strip():
            st.error("An act on a hold needs your name and a reason.")
            return
        try:
            getattr(running.service, act)(hold.hold_id, name.strip(), reason.strip(), now)
        except UserError as error:
            st.error(as_text(str(error)))
        else:
            st.rerun()


def finding_table(findings: list[dict[str, Any]], now: int) -> None:
    """List the open findings, worst first."""
    st.subheader(f"Open findings ({len(findings)})")
    if not findings:
        st.write("None.")
        return
    table = pd.DataFrame(
        {
            "severity": f["severity"],
            "host": f["host"] or f["subject_id"],
            "device": f["device_id"],
            "what": f["title"],
            "class": f"{f['fault_class']} {CLASS_WORDS.get(f['fault_class'], '')}",
            "since": age(f["opened_at"], now),
            "next step": f["next_step"],
            "mode": f["mode"],
            "code": f["code"],
        }
        for f in findings
    )
    st.dataframe(table, hide_index=True)


@st.fragment(run_every="5s")
def body() -> None:
    """Draw the page; runs again every five seconds."""
    running = house()
    now = running.now()
    store = running.store
    findings = store.query("findings_open", host="", limit=500)
    findings.sort(key=lambda f: SEVERITIES.index(f["severity"]))
    holds = running.service.holds(now)
    checks = store.query("checks_latest", host="")
    states = host_states(
        store.query("fleet_hosts", since_at=now - LOOK_BACK, now_at=now),
        findings,
        holds,
        {(h.cluster, h.host): (h.pool, h.rack) for h in running.hosts()},
        {(c["cluster"], c["host"]) for c in checks if c["state"] == "healthy"},
    )
    header(running, states, now)
    grid(states)
    hold_table(running, holds, now)
    finding_table(findings, now)


body()
