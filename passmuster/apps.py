"""Where the four application folders are: in the checkout they are on the path, in the wheel under `_apps`."""

from __future__ import annotations

import sys
from pathlib import Path

APPS = Path(__file__).parent / "_apps"


def add_apps_to_path() -> None:
    """Put the wheel's private application folder first on `sys.path`, when this is a wheel.

    First, so that a hostile or unrelated ``detectors/`` in the current folder is never taken for ours. Only
    our own entry points call this; importing `passmuster` in somebody's trainer changes nothing.
    """
    if APPS.is_dir() and str(APPS) not in sys.path:
        sys.path.insert(0, str(APPS))
