"""Page three: how often things fail, as faults per 1,000 GPU-days with the exposure and the uncertainty shown."""

from __future__ import annotations

import altair as alt
import pandas as pd
import streamlit as st

from dashboards.current import house
from dashboards.words import CLASS_WORDS, SECOND, at
from passmuster.failure_rates import FailureRate, failure_rates

WINDOWS = {"1 hour": 3_600, "1 day": 86_400, "7 days": 604_800, "30 days": 2_592_000, "90 days": 7_776_000}
REPEAT_SECONDS = 3_600.0  # a code that comes again on its device within this is the same failure
CONFIDENCE = 0.95


def table_of(rates: list[FailureRate]) -> pd.DataFrame:
    """Return the rates as the page shows them."""
    return pd.DataFrame(
        {
            "vendor": r.vendor,
            "model": r.model or "(unknown)",
            "class": f"{r.fault_class} {CLASS_WORDS.get(r.fault_class, '')}",
            "failures": r.failures,
            "GPU-days": r.gpu_days,
            "per 1,000 GPU-days": r.rate,
            "low": r.low,
            "high": r.high,
            "devices hit": r.devices,
            "events said": r.events,
            "codes": ", ".join(r.codes),
        }
        for r in rates
    )


def main() -> None:
    """Draw the page."""
    running = house()
    now = running.now()
    st.title("How often things fail")
    window = st.selectbox("Window", list(WINDOWS), index=1)
    since = now - WINDOWS[window] * SECOND
    rates = failure_rates(running.store, since, now, repeat_seconds=REPEAT_SECONDS, confidence=CONFIDENCE)
    watched = sum(row["gpu_days"] for row in running.store.query("exposure", since_at=since, until_at=now))
    st.caption(
        f"{at(since)} to {at(now)} UTC, {watched:,.1f} GPU-days watched. Exposure is the time for which a device has "
        f"readings; a code that repeats on its device within {REPEAT_SECONDS / 3600:.0f} h counts once; intervals are "
        f"exact Poisson, {CONFIDENCE:.0%}. Secondary codes and lines that user space wrote are left out."
    )
    if not watched:
        st.info("No device was watched in this window.")
        return
    table = table_of(rates)
    if table.empty:
        st.write(f"No failure in {watched:,.1f} GPU-days.")
        return
    base = alt.Chart(table.dropna(subset=["low"])).encode(
        y=alt.Y("class:N", title=None, axis=alt.Axis(labelLimit=240)),
        color=alt.Color("model:N"),
        yOffset=alt.YOffset("model:N"),
    )
    # Logarithmic, but with a place for none at all.
    scale = alt.Scale(type="symlog", constant=1)
    axis = alt.Axis(values=[0, 1, 10, 100, 1_000, 10_000, 100_000], title="failures per 1,000 GPU-days")
    rule = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q")
    point = base.mark_point(filled=True, size=70).encode(
        x=alt.X("per 1,000 GPU-days:Q", scale=scale, axis=axis),
        tooltip=["model:N", "class:N", "failures:Q", "GPU-days:Q", "per 1,000 GPU-days:Q", "low:Q", "high:Q"],
    )
    st.altair_chart((rule + point).properties(height=alt.Step(12)), width="stretch")
    st.dataframe(table.round(3), hide_index=True)


main()
