"""What a driver's line leads to, by class."""

from __future__ import annotations

from typing import Any

import pytest

SECOND = 1_000_000_000


def codes(findings: list[Any]) -> list[str]:
    """Return the codes of the findings that are open."""
    return [f.code for f in findings if f.cleared_at is None]


@pytest.mark.parametrize(
    ("vendor", "code", "letter", "severity", "found"),
    [
        ("nvidia", "xid:48", "U", "critical", True),
        ("nvidia", "xid:95", "U", "critical", True),
        ("nvidia", "xid:94", "C", "error", True),
        ("nvidia", "xid:64", "R", "critical", True),
        ("nvidia", "xid:119", "H", "critical", True),
        ("nvidia", "xid:74", "L", "error", True),
        ("nvidia", "xid:999", "V", "warning", True),
        ("nvidia", "xid:92", "I", "warning", False),
        ("nvidia", "xid:31", "A", "warning", False),
        ("nvidia", "sxid:20034", "L", "critical", True),
        ("amd", "ras:umc:uncorrectable", "U", "critical", True),
        ("amd", "afid:19", "R", "critical", True),
        ("amd", "ring_timeout:gfx", "H", "error", True),
        ("amd", "soft_recovered", "I", "info", False),
        ("amd", "page_fault", "A", "warning", False),
        ("amd", "thermal", "T", "warning", False),
    ],
)
def test_one_line_by_its_class(make_rig: Any, vendor: str, code: str, letter: str, severity: str, found: bool) -> None:
    """Classes C, P, U, R, H, L, M, V open at once, I never, A and mere warnings of H, L, T not by one line."""
    rig = make_rig(vendor, gpus=2)
    rig.steps(2)
    expected = [code.replace(":", ".")] if found else []
    got = rig.fault(0, code, letter, severity)
    assert expected == codes(got)
    if found:
        assert (letter, severity) == (got[0].fault_class.value, got[0].severity.value)
        assert got[0].next_step


def test_what_user_space_could_have_written_opens_nothing(make_rig: Any) -> None:
    """A line of untrusted origin is ignored, whatever it says."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    for code, letter in (("xid:48", "U"), ("xid:79", "B"), ("xid:154", "I")):
        text = "recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        assert rig.fault(0, code, letter, "critical", trust="user", text=text) == []


@pytest.mark.parametrize("order", ["root first", "secondary first"])
def test_secondary_codes_attach_to_their_root_and_never_act_alone(make_rig: Any, order: str) -> None:
    """XID 45 near a root fault of the same device is its evidence; alone it opens nothing."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    steps = [("xid:119", "H", False), ("xid:45", "I", True)]
    for code, letter, secondary in steps if order == "root first" else reversed(steps):
        rig.fault(0, code, letter, "critical", secondary=secondary)
        rig.now += 5 * SECOND
    rig.fault(1, "xid:45", "I", "info", secondary=True)
    (finding,) = rig.engine.open_findings()
    assert ("xid.119", True) == (finding.code, finding.device_id == rig.device(0))
    (again,) = rig.fault(0, "xid:119", "H", "critical", first_at=rig.now, count=2, last_at=rig.now + 301 * SECOND)
    assert any(k.startswith("with xid:45") for k in again.evidence)


def test_one_program_that_crashes_is_one_job_and_unrelated_jobs_are_the_devices_fault(make_rig: Any) -> None:
    """XID 31 of one process name again and again opens nothing; of a second one it does, as class A."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    for pid in range(5):
        rig.now += SECOND
        assert rig.fault(0, "xid:31", "A", "warning", process="train", pid=100 + pid, first_at=rig.now) == []
    (finding,) = rig.fault(0, "xid:31", "A", "warning", process="serve", pid=7, first_at=rig.now + 1)
    assert ("A", "2 unrelated jobs") == (finding.fault_class.value, finding.title[-16:])


def test_the_same_row_again_adds_nothing_and_its_growth_adds_the_growth(make_rig: Any) -> None:
    """Counts grow by replacement: three flaps in one row open a finding, the same row again none."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    at = rig.now
    assert rig.fault(None, "link", "L", "warning", first_at=at, count=1) == []
    assert rig.fault(None, "link", "L", "warning", first_at=at, count=1) == []
    assert rig.fault(None, "link", "L", "warning", first_at=at, count=2) == []
    assert ["link"] == codes(rig.fault(None, "link", "L", "warning", first_at=at, count=3))
    assert rig.fault(None, "link", "L", "warning", first_at=at, count=3) == []


def test_xid_63_is_decided_by_the_remap_state_where_it_is_known(make_rig: Any) -> None:
    """With a remap state in the readings the line opens nothing; without one it is class P."""
    rig = make_rig("nvidia", gpus=2)
    rig.plant(1, row_remap_pending=None, row_remap_failed=None)
    rig.steps(2)
    assert rig.fault(0, "xid:63", "P", "warning") == []
    assert ["xid.63"] == codes(rig.fault(1, "xid:63", "P", "warning"))


@pytest.mark.parametrize("order", ["gpu first", "switch first"])
def test_a_switch_fault_takes_the_gpus_xid_74_over(make_rig: Any, order: str) -> None:
    """SXid and XID 74 of one minute are one finding about the switch; the GPU's own is secondary."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)

    def gpu() -> None:
        rig.fault(0, "xid:74", "L")

    def switch() -> None:
        rig.fault(None, "sxid:20034", "L", "critical", vendor="nvidia", pci_address="0000:c1:00.0")

    for say in (gpu, switch) if order == "gpu first" else (switch, gpu):
        say()
        rig.now += 10 * SECOND
    by_code = {f.code: f for f in rig.engine.open_findings()}
    assert ("switch", "h1/0000:c1:00.0") == (by_code["sxid.20034"].subject_kind.value, by_code["sxid.20034"].subject_id)
    assert not by_code["sxid.20034"].secondary
    assert by_code["xid.74"].secondary


def test_a_reset_ends_a_hang_and_not_a_failed_repair(make_rig: Any) -> None:
    """Another counter epoch ends class H; class R needs a person."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    rig.fault(0, "xid:119", "H", "critical")
    rig.fault(0, "xid:64", "R", "critical")
    rig.reload_driver()
    rig.steps(2)
    assert ["xid.64"] == codes(rig.engine.open_findings())


def test_an_application_fault_ends_with_a_quiet_day(make_rig: Any) -> None:
    """Time alone ends what time can end."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(2)
    rig.fault(0, "xid:999", "V", "warning")
    assert ["xid.999"] == codes(rig.engine.open_findings())
    cleared = rig.engine.tick(rig.now + 90_000 * SECOND)
    assert ["xid.999"] == [f.code for f in cleared if f.cleared_at]


def test_link_faults_while_a_host_comes_up_are_training(make_rig: Any) -> None:
    """XID 74 in the boot grace opens nothing; XID 48 does."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(1)
    rig.reboot()
    rig.host_reading()
    rig.step()
    assert codes(rig.fault(0, "xid:74", "L")) == []
    assert ["xid.48"] == codes(rig.fault(0, "xid:48", "U", "critical"))


def test_a_fault_that_knows_only_the_address_is_given_its_device(make_rig: Any) -> None:
    """A line names a PCI address; readings say whose it is."""
    rig = make_rig("nvidia", gpus=2)
    rig.steps(1)
    (finding,) = rig.fault(1, "xid:48", "U", "critical", device_id="0000:11:00.0")
    assert rig.device(1) == finding.device_id
