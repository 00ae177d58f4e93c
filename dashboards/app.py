"""The script that Streamlit runs for every visitor: navigation, and nothing else."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

# Not called "pages": Streamlit would show such a folder by itself, beside the navigation.
VIEWS = Path(__file__).parent / "views"

st.set_page_config(page_title="passmuster", page_icon=":material/verified_user:", layout="wide")
st.navigation(
    [
        st.Page(VIEWS / "wrong_now.py", title="What is wrong now", icon=":material/crisis_alert:", default=True),
        st.Page(VIEWS / "host_story.py", title="One host's story", icon=":material/timeline:"),
        st.Page(VIEWS / "failure_rates.py", title="How often things fail", icon=":material/monitoring:"),
    ]
).run()
