"""What a scrape shows."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.aggregate import Latest
from collectors.device import DeviceIdentity
from collectors.exporter import Exporter, Exposed, exposition, serve
from collectors.probe import Outcome
from collectors.runner import CollectorHealth
from passmuster.errors import UserError
from passmuster.records import DeviceState, Vendor

GPU = {"gpu": "0", "uuid": "s1", "vendor": "nvidia"}
IDENTITY = DeviceIdentity(
    device_id="s1", pci_address="0000:06:00.0", index=0, vendor=Vendor.NVIDIA, model="H200", values={}, missing={}
)


def exposed(values: dict[str, Any], state: DeviceState = DeviceState.OK, **more: Any) -> Exposed:
    """One GPU with these values."""
    facts: dict[str, Any] = {
        "devices": [Latest(IDENTITY, state, 0, values, {}, 0.5)],
        "host": None, "inventory": [], "health": {}, "restarts": {}, "events": {}, "findings": [],
    }  # fmt: skip
    return Exposed(**(facts | more))


def series(shown: Exposed) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every series of a scrape, as Prometheus' own parser reads it."""
    text = exposition(Exporter(lambda: shown)).decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {(s.name, frozenset(s.labels.items())): s.value for s in samples}


@pytest.mark.parametrize(
    ("field", "value", "name", "labels", "number"),
    [
        ("power_watts", 700.5, "gpu_power_watts", {"window": "instant"}, 700.5),
        ("row_remap_pending", True, "gpu_row_remap_pending", {}, 1.0),
        ("ecc_corrected_total", 3, "gpu_ecc_errors_total", {"severity": "corrected", "scope": "volatile"}, 3.0),
        ("recovery_action", "none", "gpu_recovery_action", {"action": "none"}, 1.0),
        ("throttle_ratio", {"idle": 0.5}, "gpu_throttle_active", {"reason": "idle"}, 0.5),
        ("link_errors_total", {"3.replay": 7}, "gpu_link_errors_total", {"link": "3", "kind": "replay"}, 7.0),
    ],
)
def test_value_becomes_series(field: str, value: Any, name: str, labels: dict[str, str], number: float) -> None:
    """A value has the name and labels that its record field declares, and whose GPU it is."""
    found = series(exposed({field: value}))
    assert number == found["passmuster_" + name, frozenset({**GPU, **labels}.items())]


def test_null_has_no_series() -> None:
    """What could not be read is absent, not 0."""
    assert not [name for name, _ in series(exposed({})) if "power" in name]


@pytest.mark.parametrize(("state", "up"), [(DeviceState.OK, 1.0), (DeviceState.HUNG, 0.0), (DeviceState.LOST, 0.0)])
def test_up(state: DeviceState, up: float) -> None:
    """Only a device that answers is up."""
    assert up == series(exposed({}, state))["passmuster_gpu_up", frozenset(GPU.items())]


def test_unknown_codes_share_one_label() -> None:
    """A log that is full of made-up codes makes one series, a known code has its own."""
    events = {("s1", "xid", f"xid:{code}"): 1 for code in (79, 90001, 90002)}
    found = {
        dict(labels)["code"]: n for (name, labels), n in series(exposed({}, events=events)).items() if "events" in name
    }
    assert {"xid:79": 1.0, "other": 2.0} == found


def test_collectors_tell_their_state() -> None:
    """A hung collector is seen as hung."""
    found = series(exposed({}, health={"nvidia": CollectorHealth(Outcome.HUNG)}))
    key = frozenset({"collector": "nvidia", "state": "hung"}.items())
    assert 1.0 == found["passmuster_agent_collector_state", key]


def test_port_in_use_is_one_sentence() -> None:
    """Another program's port gives the address and what to set."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1 port {port}: the port is in use; set exporter\.port"):
            serve(Exporter(lambda: exposed({})), "127.0.0.1", port)
