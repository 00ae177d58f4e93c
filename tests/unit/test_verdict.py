"""The verdict: what makes a host unhealthy, the files, and what counts as no verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from passmuster.exits import ExitCode
from passmuster.records import DeviceState, FaultClass, Finding, Health, Mode, Severity, SubjectKind, Vendor
from quarantine.verdict import (
    EXITS,
    SECOND,
    DeviceFacts,
    HostVerdict,
    NoVerdict,
    judge,
    line,
    read_verdict,
    write_verdict,
)

NOW = 1_700_000_000 * SECOND
BOOT = "3f9c1f0e-0000-4000-8000-000000000001"


def gpu(name: str = "gpu-0", state: DeviceState = DeviceState.OK) -> DeviceFacts:
    """One NVIDIA device."""
    return DeviceFacts(device_id=name, pci_address="0000:17:00.0", vendor=Vendor.NVIDIA, model="H200", state=state)


def finding(**changes: Any) -> Finding:
    """An open critical finding on gpu-0, in shadow mode."""
    fields: dict[str, Any] = {
        "cluster": "c",
        "host": "h",
        "boot_id": BOOT,
        "observed_at": NOW,
        "dedup_key": "d/memory.row_remap_failed/gpu-0",
        "opened_at": NOW,
        "last_seen_at": NOW,
        "detector": "memory_repair",
        "code": "memory.row_remap_failed",
        "subject_kind": SubjectKind.DEVICE,
        "subject_id": "gpu-0",
        "device_id": "gpu-0",
        "fault_class": FaultClass.REPAIR_FAILED,
        "severity": Severity.CRITICAL,
        "title": "A row remap failed",
    }
    return Finding(**(fields | changes))


def judged(*findings: Finding, devices: tuple[DeviceFacts, ...] = (gpu(),), **changes: Any) -> HostVerdict:
    """The verdict on host h at NOW, valid for 180 s."""
    expected: dict[str, Any] = {"gpus_expected": {"nvidia": len(devices)}}
    return judge(findings, devices, NOW, host="h", boot_id=BOOT, valid_seconds=180, **(expected | changes))


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        (Health.UNHEALTHY, {}),
        (Health.UNHEALTHY, {"severity": Severity.ERROR, "fault_class": FaultClass.BUS}),
        (Health.UNHEALTHY, {"subject_kind": SubjectKind.HOST, "subject_id": "h", "device_id": ""}),
        (Health.DEGRADED, {"severity": Severity.WARNING}),
        (Health.DEGRADED, {"secondary": True}),
        (Health.DEGRADED, {"fault_class": FaultClass.PENDING}),
        (Health.DEGRADED, {"fault_class": FaultClass.CONTAINED, "severity": Severity.ERROR}),
        (Health.UNKNOWN, {"fault_class": FaultClass.SILENT}),
        (Health.HEALTHY, {"severity": Severity.INFO}),
        (Health.HEALTHY, {"fault_class": FaultClass.APPLICATION}),
        (Health.HEALTHY, {"cleared_at": NOW}),
        (Health.HEALTHY, {"mode": Mode.STORE}),
        (Health.HEALTHY, {"mode": Mode.OFF}),
        (Health.HEALTHY, {"subject_kind": SubjectKind.JOB}),
    ],
)
def test_finding_to_state(state: Health, changes: dict[str, Any]) -> None:
    """One open finding makes the host what its severity, class, mode and subject say."""
    assert judged(finding(**changes)).state is state


@pytest.mark.parametrize(
    ("state", "device"),
    [
        (Health.HEALTHY, DeviceState.OK),
        (Health.UNHEALTHY, DeviceState.LOST),
        (Health.UNHEALTHY, DeviceState.HUNG),
        (Health.UNKNOWN, DeviceState.UNREADABLE),
        (Health.UNKNOWN, DeviceState.UNKNOWN),
    ],
)
def test_device_to_state(state: Health, device: DeviceState) -> None:
    """A device that does not answer counts, also while no detector has said so."""
    verdict = judged(devices=(gpu(state=device), gpu("gpu-1")))
    assert (verdict.state, verdict.devices[0].state, verdict.devices[1].state) == (state, state, Health.HEALTHY)


@pytest.mark.parametrize("expected", [{"nvidia": 3}, {"any": 3}, {"nvidia": 2, "amd": 1}])
def test_missing_gpus(expected: dict[str, int]) -> None:
    """Fewer GPUs than PCI shows or the configuration expects is unhealthy."""
    verdict = judged(devices=(gpu(), gpu("gpu-1")), gpus_expected=expected)
    assert verdict.state is Health.UNHEALTHY
    assert verdict.reasons[0].endswith("missing")


def test_nothing_to_check_is_unknown() -> None:
    """A host without any GPU, none expected, is unknown and not healthy."""
    verdict = judged(devices=(), gpus_expected={"nvidia": 0})
    assert (verdict.state, EXITS[verdict.state]) == (Health.UNKNOWN, ExitCode.INCOMPLETE)
    assert "nothing to check" in verdict.reasons[0]


def test_unchecked_is_unknown_and_yields_to_unhealthy() -> None:
    """What could not be checked makes a fine host unknown, and does not hide that another one is bad."""
    assert judged(unchecked=["the NVIDIA library does not answer"]).state is Health.UNKNOWN
    both = judged(finding(), unchecked=["the NVIDIA library does not answer"])
    assert both.state is Health.UNHEALTHY
    assert both.reasons[1] == "the NVIDIA library does not answer"


def test_device_part() -> None:
    """A finding stands at its own device only."""
    verdict = judged(finding(), devices=(gpu(), gpu("gpu-1")))
    assert [d.state for d in verdict.devices] == [Health.UNHEALTHY, Health.HEALTHY]
    assert verdict.codes == ("memory.row_remap_failed",)


@pytest.mark.parametrize(
    ("refuse", "changes", "hold_id"),
    [
        (False, {}, ""),  # shadow: told, and no job is turned away
        (True, {"mode": Mode.ACT}, ""),
        (False, {"mode": Mode.ACT, "severity": Severity.WARNING}, ""),
        (False, {"mode": Mode.ACT, "secondary": True}, ""),
        (False, {"mode": Mode.ACT, "cleared_at": NOW}, ""),
        (True, {"cleared_at": NOW}, "hold-1"),
    ],
)
def test_refuse(refuse: bool, changes: dict[str, Any], hold_id: str) -> None:
    """A hook may refuse for a hold or an unhealthy finding in mode act, for nothing else."""
    assert judged(finding(**changes), hold_id=hold_id).refuse is refuse


def test_round_trip(tmp_path: Path) -> None:
    """What is written is read, readable for everybody, with nothing left beside it."""
    verdict = judged(finding())
    write_verdict(tmp_path, verdict)
    write_verdict(tmp_path, verdict)
    assert verdict == read_verdict(tmp_path, BOOT, NOW)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["verdict.json", "verdict.line"]
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o644}


def test_line() -> None:
    """The twin is one line of plain ASCII, however hostile the words in it are."""
    verdict = replace(judged(finding(mode=Mode.ACT)), reasons=("bad\nhealthy 0 9 \x1b[2J näme $(reboot) " + "x" * 500,))
    text = line(verdict)
    assert text.startswith(f"unhealthy 1 1700000180 {BOOT} bad?healthy 0 9 ?[2J n?me $(reboot) xxx")
    assert (text.count("\n"), text[-1], text.isascii()) == (1, "\n", True)
    assert len(text) < 300


@pytest.mark.parametrize(
    ("words", "boot_id", "now"),
    [
        ("stale", BOOT, NOW + 180 * SECOND),
        ("earlier boot", "another", NOW),
        ("in the future", BOOT, NOW - 6 * SECOND),
    ],
)
def test_no_verdict_by_time_and_boot(tmp_path: Path, words: str, boot_id: str, now: int) -> None:
    """A stale verdict, one of another boot and one from the future are no verdict."""
    write_verdict(tmp_path, judged())
    with pytest.raises(NoVerdict, match=words) as caught:
        read_verdict(tmp_path, boot_id, now)
    assert caught.value.exit_code is ExitCode.INCOMPLETE


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("cannot be understood", b""),
        ("cannot be understood", b"{"),
        ("cannot be understood", b"\xff\xfe\x00"),
        ("cannot be understood", b"[" * 100_000),
        ("cannot be understood", b'{"host": 1}'),
        ("at most", b" " * (2**20 + 1)),
    ],
)
def test_no_verdict_by_content(tmp_path: Path, words: str, content: bytes) -> None:
    """A verdict file that holds anything else is no verdict."""
    (tmp_path / "verdict.json").write_bytes(content)
    with pytest.raises(NoVerdict, match=words):
        read_verdict(tmp_path, BOOT, NOW)


def test_state_that_no_host_has(tmp_path: Path) -> None:
    """A state that is of checks only is no verdict."""
    write_verdict(tmp_path, replace(judged(), state=Health.SKIPPED))
    with pytest.raises(NoVerdict, match="no host can have"):
        read_verdict(tmp_path, BOOT, NOW)


def test_no_file_pipe_and_folder(tmp_path: Path) -> None:
    """A missing file, a pipe and a folder in its place are no verdict, and nothing waits on them."""
    with pytest.raises(NoVerdict, match="is `muster agent` running"):
        read_verdict(tmp_path, BOOT, NOW)
    os.mkfifo(tmp_path / "verdict.json")
    with pytest.raises(NoVerdict, match="not a regular file"):
        read_verdict(tmp_path, BOOT, NOW)
    (tmp_path / "verdict.json").unlink()
    (tmp_path / "verdict.json").mkdir()
    with pytest.raises(NoVerdict, match="Is a directory"):
        read_verdict(tmp_path, BOOT, NOW)
