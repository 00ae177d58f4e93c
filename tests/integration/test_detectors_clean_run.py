"""Six simulated hours of eight healthy devices of each vendor: no finding at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

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


def test_six_healthy_hours_find_nothing() -> None:
    """Load and rest in turns, driver reloads in hour three, reboots in hour five; both vendors under one engine."""
    engine = Engine(Config())
    rigs = [rig_class()(vendor, engine, host=vendor) for vendor in ("nvidia", "amd")]
    found = []
    for i in range(6 * ROWS_PER_HOUR):
        for rig in rigs:
            rig.busy = i // 90 % 4 != 3
            if i == 3 * ROWS_PER_HOUR:
                rig.reload_driver()
            if i == 5 * ROWS_PER_HOUR:
                rig.reboot()
            if i % 6 == 0:
                found += rig.host_reading()
        found += engine.feed_all([rig.readings() for rig in rigs], rigs[0].now)
        found += engine.tick(rigs[0].now)
    assert found == []
    assert dict.fromkeys(engine.health(), "") == {n: h.last_error for n, h in engine.health().items()}
