"""Put the four application folders under `passmuster/_apps` in a real wheel, never in an editable install.

An editable install reads the folders where they lie; files forced into it would be copies that go stale.
"""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

APPLICATIONS = ("collectors", "detectors", "quarantine", "dashboards")


class AppsHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's own base is not parametrised by users
    """Adds the applications to the wheel's file list."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add one entry per application unless the build is editable."""
        if version == "editable":
            return
        for name in APPLICATIONS:
            build_data["force_include"][name] = f"passmuster/_apps/{name}"
