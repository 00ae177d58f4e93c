"""`muster holds` as a person runs it: words, JSON and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from passmuster.errors import UserError
from passmuster.exits import ExitCode
from passmuster.records import FaultClass, Finding, Mode, Severity, SubjectKind
from quarantine.actuators import DryRun
from quarantine.brakes import Limits
from quarantine.cli import holds
from quarantine.ledger import Ledger
from quarantine.local_service import LocalService
from quarantine.policy import Policy
from quarantine.service import HoldError, HostFacts, LedgerError

NOW = 1_790_000_000_000_000_000


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one proposal of a shadow detector on host h1, one of four hosts."""
    path = tmp_path / "ledger.sqlite"
    limits = Limits(
        max_held_share=0.5,
        max_held_hosts=9,
        max_held_per_rack=9,
        max_held_per_hour=9,
        max_same_cause_per_hour=9,
        min_in_service_share=0.5,
    )
    service = LocalService(Ledger(path), Policy(limits=limits), DryRun(), cluster="default")
    service.report_hosts(
        [HostFacts(cluster="default", host=f"h{n}", device_class="MI300X", pool="p") for n in range(4)], NOW
    )
    service.observe(
        [
            Finding(
                cluster="default",
                host="h1",
                boot_id="b",
                observed_at=NOW,
                dedup_key="memory_repair/memory.bad_pages/h1",
                opened_at=NOW,
                last_seen_at=NOW,
                detector="memory_repair",
                mode=Mode.SHADOW,
                code="memory.bad_pages_limit",
                subject_kind=SubjectKind.DEVICE,
                subject_id="s",
                device_id="s",
                fault_class=FaultClass.REPAIR_FAILED,
                severity=Severity.CRITICAL,
                title="Bad pages at the limit",
                value=256.0,
                bound=256.0,
            )
        ],
        NOW,
    )
    service.close()
    return path


def muster(ledger: Path, *arguments: str) -> str:
    """Run a command that succeeds and return what it printed."""
    result = CliRunner().invoke(holds, ["--ledger", str(ledger), *arguments], catch_exceptions=False)
    assert ExitCode.PASS == result.exit_code, result.output
    return result.stdout


def listed(ledger: Path, *arguments: str) -> list[dict[str, Any]]:
    """The holds that `list --json` prints."""
    found = json.loads(muster(ledger, "list", "--json", *arguments))
    assert isinstance(found, list)
    return found


def test_list_says_what_is_open_in_words(ledger: Path) -> None:
    """One line a hold, with state, host, check, owner and reason."""
    text = muster(ledger, "list")
    for word in ("proposed", "h1", "memory.bad_pages_limit", "policy", "2026-09-21", "would hold"):
        assert word in text


def test_a_hold_from_proposal_to_release(ledger: Path) -> None:
    """Approve, explain, expire, release: each command says what the hold has become."""
    (hold,) = listed(ledger)
    hold_id = hold["hold_id"]
    assert f"{hold_id} held: h1 (dry run" in muster(ledger, "approve", hold_id, "--reason", "yes", "--actor", "alice")
    page = muster(ledger, "why", hold_id)
    for word in (
        "h1 is held",
        "value: 256, bound: 256",
        "owner: alice",
        "the device is replaced",
        "approved by alice: yes",
    ):
        assert word in page
    assert "lapsed" in muster(ledger, "expire", hold_id, "--reason", "look", "--actor", "bob")
    assert "released" in muster(ledger, "release", hold_id, "--reason", "new board", "--actor", "bob")
    assert "no open holds" in muster(ledger, "list")
    assert ["released"] == [each["state"] for each in listed(ledger, "--all")]


def test_place_and_list_by_host(ledger: Path) -> None:
    """A person's hold appears for its host, with device and expiry."""
    muster(ledger, "place", "h2", "--reason", "smoke", "--actor", "alice", "--device", "s2", "--hours", "1.5")
    (hold,) = listed(ledger, "--host", "h2")
    assert ("held", "alice", "s2", "smoke") == (hold["state"], hold["owner"], hold["device_id"], hold["reason"])
    assert int(1.5 * 3600e9) == hold["expires_at"] - hold["placed_at"]


def test_a_host_that_does_not_report_is_pointed_out(ledger: Path) -> None:
    """A typing error in the name is held, for a dead host looks the same, and pointed out."""
    result = CliRunner().invoke(
        holds, ["--ledger", str(ledger), "place", "h22", "--reason", "r", "--actor", "a"], catch_exceptions=False
    )
    assert "h22 is not among the 4 hosts that report" in result.stderr


def test_brakes_show_used_and_limit(ledger: Path) -> None:
    """The command counts with the hosts that the service last reported."""
    assert "device_class" in muster(ledger, "brakes")
    brakes = {(brake["name"], brake["scope"]): brake for brake in json.loads(muster(ledger, "brakes", "--json"))}
    assert {"name": "device_class", "scope": "MI300X", "used": 0, "limit": 5, "open": True} | {"limit": 1} == brakes[
        "device_class", "MI300X"
    ]  # the default configuration's tenth of four hosts is one


@pytest.mark.parametrize(
    ("arguments", "error", "sentence", "code"),
    [
        (["why", "nope"], HoldError, "there is no hold 'nope'", ExitCode.FAIL),
        (["release", "\x1b[31m", "--reason", "r", "--actor", "a"], HoldError, "there is no hold", ExitCode.FAIL),
        (["expire", "hold-", "--reason", "r", "--actor", "a"], HoldError, "is proposed", ExitCode.FAIL),
        (["place", "bad host", "--reason", "r"], UserError, "is not a host name", ExitCode.USAGE),
        (["place", "h2", "--reason", "\x00"], UserError, "a reason in words", ExitCode.USAGE),
        (["place", "h2", "--reason", "r", "--actor", "policy"], UserError, "part of the machine", ExitCode.USAGE),
        (["place", "h2", "--reason", "r", "--hours", "nan"], UserError, "hours is nan", ExitCode.USAGE),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    ledger: Path, arguments: list[str], error: type[UserError], sentence: str, code: ExitCode
) -> None:
    """Each refusal is a UserError with its exit code, and changes nothing."""
    before = listed(ledger, "--all")
    with pytest.raises(error, match=sentence) as caught:
        CliRunner().invoke(holds, ["--ledger", str(ledger), *arguments], catch_exceptions=False)
    assert code == caught.value.exit_code
    assert before == listed(ledger, "--all")


def test_reading_a_ledger_that_is_not_there_makes_none(tmp_path: Path) -> None:
    """A wrong path is said, not answered with an empty list."""
    with pytest.raises(LedgerError, match="there is no ledger at"):
        CliRunner().invoke(holds, ["--ledger", str(tmp_path / "none"), "list"], catch_exceptions=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["list"], ExitCode.PASS),
        (["why", "nope"], ExitCode.FAIL),
        (["place", "bad host", "--reason", "r"], ExitCode.USAGE),
        (["approve"], ExitCode.USAGE),
    ],
)
def test_the_whole_command_exits_with_our_codes(ledger: Path, arguments: list[str], code: ExitCode) -> None:
    """The shell sees the enum's codes and one line, never a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "passmuster", "holds", "--ledger", str(ledger), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert code == done.returncode
    assert "Traceback" not in done.stderr


def test_without_the_ledgers_library_it_says_what_to_install(ledger: Path) -> None:
    """An agent-only installation has no SQLAlchemy; that is one sentence."""
    program = "import sys; sys.modules['sqlalchemy'] = None; from passmuster.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "holds", "--ledger", str(ledger), "list"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ExitCode.INCOMPLETE == done.returncode
    assert "muster: the ledger needs sqlalchemy: pip install 'passmuster[dash]'\n" == done.stderr
