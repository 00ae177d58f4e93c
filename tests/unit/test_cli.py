"""The command line: every command exists, starts light, and answers mistakes in one line."""

import subprocess
import sys
from typing import Any

import click
import pytest

from passmuster.cli import COMMANDS, muster
from passmuster.exits import ExitCode


def run(*args: str, cwd: Any = None) -> Any:
    """Run `muster` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "passmuster", *args], capture_output=True, text=True, timeout=60, check=False, cwd=cwd
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_has_help(name: Any) -> None:
    """The lazy table points at real commands, and each says what it does."""
    command = muster.get_command(click.Context(muster), name)

    assert command is not None
    assert command.help


def test_a_mistake_of_the_user_is_one_line_and_64(tmp_path: Any) -> None:
    """No traceback reaches a user."""
    path = tmp_path / "broken.toml"
    path.write_text("[agent]\nfast_second = 1\n")

    result = run("config", "check", str(path))

    assert ExitCode.USAGE == result.returncode
    assert 1 == result.stderr.count("\n")
    assert "did you mean" in result.stderr


def test_an_unknown_command_is_64() -> None:
    """Usage errors have the code of sysexits."""
    assert ExitCode.USAGE == run("chekc").returncode
