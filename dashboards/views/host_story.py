"""Page two: one host's story on one time axis, what its devices did and what was said, found and decided meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboards.current import house
from dashboards.words import CLASS_WORDS, SECOND, at
from quarantine.why import as_text, why_markdown

WINDOWS = {"15 minutes": 900, "1 hour": 3_600, "6 hours": 21_600, "1 day": 86_400, "7 days": 604_800}
BUCKETS = 300  # points per line and window; more cannot be seen

LANES = {
    "fault": "#c8452c",
    "finding opened": "#e0a100",
    "finding cleared": "#2e8b57",
    "hold": "#7b3fa0",
    "check": "#3f6fa0",
    "device": "#8a8f98",
}
SERIES = {
    "power_watts": "power, W",
    "temperature_celsius": "temperature, °C",
    "temperature_memory_celsius": "memory temperature, °C",
    "clock_graphics_hertz": "clock, GHz",
    "activity_compute_ratio": "activity",
    "ecc_uncorrected_total": "uncorrected errors",
}


def lane(what: str) -> str:
    """Return the lane of a row of the story."""
    return next((name for name in LANES if what.startswith(name)), "device")


def story_chart(story: list[dict[str, Any]], series: pd.DataFrame, since: int, until: int) -> alt.VConcatChart:
    """Stack the events and every measured series over one shared time axis, in UTC."""
    time = alt.X(
        "at:T",
        scale=alt.Scale(domain=[datetime.fromtimestamp(t / 1e9, UTC) for t in (since, until)], type="utc"),
        axis=alt.Axis(title=None, labelAngle=0, grid=True, format="%H:%M", formatType="utc"),
    )
    events = pd.DataFrame(
        [
            {
                "at": pd.Timestamp(row["at"], unit="ns", tz="UTC"),
                "lane": lane(row["what"]),
                "what": row["what"],
                "device": row["device_id"],
                "title": row["title"],
                "code": row["code"],
                "detail": row["detail"],
            }
            for row in story
        ],
        columns=["at", "lane", "what", "device", "title", "code", "detail"],
    )
    story_lanes = (
        alt.Chart(events)
        .mark_point(filled=True, size=90, shape="diamond")
        .encode(
            x=time,
            y=alt.Y("lane:N", title=None, sort=list(LANES)),
            color=alt.Color("lane:N", scale=alt.Scale(domain=list(LANES), range=list(LANES.values())), legend=None),
            tooltip=["at:T", "what:N", "code:N", "device:N", "title:N", "detail:N"],
        )
        .properties(width=900, height=130)
    )
    lines = []
    for column, title in SERIES.items():
        if column not in series or series[column].isna().all():
            continue
        lines.append(
            alt.Chart(series[["at", "gpu", column]].dropna())
            .mark_line(interpolate="step-after", clip=True)
            .encode(
                x=time,
                y=alt.Y(f"{column}:Q", title=title, scale=alt.Scale(zero=False)),
                color=alt.Color("gpu:N", title="GPU"),
                tooltip=["at:T", "gpu:N", f"{column}:Q"],
            )
            .properties(width=900, height=110)
        )
    # One legend for all lines; the lanes above have colours of their own.
    chart: alt.VConcatChart = alt.vconcat(story_lanes, *([alt.vconcat(*lines)] if lines else [])).resolve_scale(
        color="independent"
    )
    return chart


def main() -> None:
    """Draw the page."""
    running = house()
    now = running.now()
    st.title("One host's story")
    hosts = running.store.query("fleet_hosts", since_at=now - 7 * 86_400 * SECOND, now_at=now)
    if not hosts:
        st.info("No host has reported in the last seven days.")
        return
    names = [h["host"] for h in hosts]
    wanted = st.query_params.get("host", "")
    left, right = st.columns([3, 1])
    troubled = next((h["host"] for h in hosts if h["critical"]), names[0])
    name = left.selectbox("Host", names, index=names.index(wanted if wanted in names else troubled))
    window = right.selectbox("Window", list(WINDOWS), index=0)
    chosen = hosts[names.index(name)]
    since = now - WINDOWS[window] * SECOND
    model = as_text(chosen["model"] or "")
    st.caption(f"{chosen['devices']} x {model}, last reading {at(chosen['observed_at'])} UTC; times are UTC")

    story = running.store.query(
        "host_story", cluster=chosen["cluster"], host=name, since_at=since, until_at=now, limit=2_000
    )
    series = running.store.query_arrow(
        "device_series",
        cluster=chosen["cluster"],
        host=name,
        since_at=since,
        until_at=now,
        bucket_seconds=max(10, WINDOWS[window] // BUCKETS),
    ).to_pandas()
    if len(series):
        series["gpu"] = series["index"].astype("Int64").astype("string").fillna("?")
        series["clock_graphics_hertz"] = series["clock_graphics_hertz"] / 1e9
    shown = [row for row in story if not row["what"].startswith("check healthy")]
    st.altair_chart(story_chart(shown, series, since, now))

    for hold in running.service.holds(now, host=name, open_only=False)[:5]:
        with st.expander(
            f"Hold: {as_text(hold.check or hold.reason)} ({hold.state})", expanded=hold.state in ("held", "proposed")
        ):
            st.markdown(why_markdown(hold))
    st.subheader(f"What happened ({len(shown)})")
    st.dataframe(
        pd.DataFrame(
            [
                {
                    "at": at(row["at"]),
                    "what": row["what"],
                    "device": row["device_id"],
                    "severity": row["severity"],
                    "class": CLASS_WORDS.get(row["fault_class"], ""),
                    "code": row["code"],
                    "in words": row["title"],
                    "detail": row["detail"],
                }
                for row in shown
            ]
        ),
        hide_index=True,
    )


main()
