"""`muster verdict` and the Slurm hook, run by real shells on files of every kind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from passmuster.records import Health
from quarantine.verdict import SECOND, HostVerdict, write_verdict

PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"
BOOT = "3f9c1f0e-0000-4000-8000-000000000001"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
HOUR = 3_600


def hook(run_dir: Path, shell: str = "sh", boot: str = BOOT) -> tuple[int, str, dict[str, int]]:
    """Run the hook; return its exit code, its words and its counts."""
    boot_file = run_dir.parent / "boot_id"
    boot_file.write_text(boot + "\n")
    done = subprocess.run(
        [shell, "sh", str(PROLOG)] if shell == "busybox" else [shell, str(PROLOG)],
        env={"PATH": os.environ["PATH"], "PASSMUSTER_RUN_DIR": str(run_dir), "PASSMUSTER_BOOT_ID_FILE": str(boot_file)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        cwd=run_dir,
    )
    assert done.stdout == ""
    counts = {path.name.removeprefix("hook."): path.stat().st_size for path in run_dir.glob("hook.*")}
    return done.returncode, done.stderr, counts


def written(run_dir: Path, state: Health, refuse: bool, boot_id: str = BOOT) -> None:
    """Write a verdict that holds for an hour."""
    now = time.time_ns()
    verdict = HostVerdict(
        host="h",
        boot_id=boot_id,
        state=state,
        refuse=refuse,
        reasons=("xid.79: GPU has fallen off the bus",),
        computed_at=now,
        valid_until_at=now + HOUR * SECOND,
    )
    write_verdict(run_dir, verdict)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty run folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("shell", SHELLS)
def test_refuses_what_a_person_promoted(run_dir: Path, shell: str) -> None:
    """An unhealthy host whose verdict may refuse turns the job away and says why."""
    written(run_dir, Health.UNHEALTHY, refuse=True)
    words = "passmuster: this host does not pass: xid.79: GPU has fallen off the bus\n"
    assert hook(run_dir, shell) == (1, words, {"refused": 1})


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("state", [Health.HEALTHY, Health.DEGRADED, Health.UNHEALTHY])
def test_lets_start_what_nobody_promoted(run_dir: Path, shell: str, state: Health) -> None:
    """Without the right to refuse the job starts, whatever the state."""
    written(run_dir, state, refuse=False)
    assert hook(run_dir, shell) == (0, "", {"pass": 1})


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\n\n",
        b"unhealthy",
        b"unhealthy 1\n",
        f"unhealthy 1 1 {BOOT} stale\n".encode(),
        b"unhealthy 1 9999999999 another-boot x\n",
        f"unhealthy 1 99999999999999999999 {BOOT} overflow\n".encode(),
        f"unhealthy 1 -5 {BOOT} x\n".encode(),
        f"unhealthy 1 9999999999a {BOOT} x\n".encode(),
        f"unhealthy 1 $((9999999999)) {BOOT} x\n".encode(),
        f"unhealthy 2 9999999999 {BOOT} x\n".encode(),
        f"unknown 1 9999999999 {BOOT} x\n".encode(),
        f"healthy 1 9999999999 {BOOT} x\n".encode(),
        f"* * 9999999999 {BOOT} x\n".encode(),
        b"$(touch owned) `touch owned` ; touch owned\n",
        b"-n -e -a -o ! ( ) = \n",
        b"\x00\xff\x1b" * 4_000,
        b"unhealthy 1 " * 100_000,
    ],
)
def test_fails_open(run_dir: Path, content: bytes | None) -> None:
    """A missing, stale, foreign, broken or hostile line lets the job start, quietly, and is counted."""
    if content is not None:
        (run_dir / "verdict.line").write_bytes(content)
    assert hook(run_dir) == (0, "", {"unknown": 1})
    assert not (run_dir / "owned").exists()


def test_pipe_and_missing_folder(run_dir: Path) -> None:
    """A pipe in place of the line is not waited on; without the folder there is nothing to count in."""
    os.mkfifo(run_dir / "verdict.line")
    assert hook(run_dir) == (0, "", {"unknown": 1})
    shutil.rmtree(run_dir)
    run_dir.mkdir()
    done = subprocess.run(
        ["sh", str(PROLOG)], env={"PASSMUSTER_RUN_DIR": "/nowhere"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_hostile_reason_is_only_printed(run_dir: Path) -> None:
    """What stands in a reason is printed, never run and never expanded."""
    text = f"unhealthy 1 9999999999 {BOOT} $(touch owned) `touch owned` * %s %n \\n \x1b[2J\n"
    (run_dir / "verdict.line").write_text(text)
    words = "passmuster: this host does not pass: $(touch owned) `touch owned` * %s %n \\n [2J\n"
    assert hook(run_dir) == (1, words, {"refused": 1})
    assert not (run_dir / "owned").exists()


def command(run_dir: Path, *options: str) -> tuple[int, str, str]:
    """Run `muster verdict` on a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "passmuster", "verdict", "--run-dir", str(run_dir), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=run_dir,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("code", "state"), [(0, Health.HEALTHY), (1, Health.DEGRADED), (2, Health.UNHEALTHY), (3, Health.UNKNOWN)]
)
def test_command_exit_codes(run_dir: Path, code: int, state: Health) -> None:
    """The command prints state and reasons, and exits by the state."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    written(run_dir, state, refuse=False, boot_id=boot)
    assert command(run_dir) == (code, f"h: {state.value}\n  xid.79: GPU has fallen off the bus\n", "")
    assert command(run_dir, "--json")[1].startswith('{"host":"h","boot_id":')


def test_command_without_verdict(run_dir: Path) -> None:
    """Without a verdict there is one sentence and the code of unknown."""
    code, out, err = command(run_dir)
    assert (code, out) == (3, "")
    assert err == f"muster: there is no verdict at {run_dir}/verdict.json; is `muster agent` running?\n"
