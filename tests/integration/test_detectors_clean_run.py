"""Six simulated hours of eight healthy devices of each vendor: no finding at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from detectors.engine import Engine
from passmuster.config import Config

ROWS_PER_HOUR = 360


def rig_class() -> Any:
    """Return the generator of the unit tests; test folders are no packages."""
    path = Path(__file__).parent.parent / "unit" / "conftest.py"
    spec = importlib.util.spec_from_file_location("unit_rig", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Rig


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_six_healthy_hours_find_nothing(vendor: str) -> None:
    """Load and rest in turns, a driver reload in hour three, a reboot in hour five."""
    engine = Engine(Config())
    rig = rig_class()(vendor, engine)
    found = []
    for i in range(6 * ROWS_PER_HOUR):
        rig.busy = i // 90 % 4 != 3
        if i == 3 * ROWS_PER_HOUR:
            rig.reload_driver()
        if i == 5 * ROWS_PER_HOUR:
            rig.reboot()
        found += rig.step()
        if i % 3 == 0:
            found += rig.host_reading()
    assert found == []
    assert {name: "" for name in engine.health()} == {n: h.last_error for n, h in engine.health().items()}
