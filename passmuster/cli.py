"""The command line `muster`: a table of names, each command imported only when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from passmuster import __version__
from passmuster.apps import add_apps_to_path
from passmuster.errors import UserError
from passmuster.exits import ExitCode

COMMANDS = {
    "up": ("dashboards.up:up", "Run everything on this machine: agent or simulated fleet, store, pages."),
    "agent": ("quarantine.host:agent", "Run the host agent."),
    "check": ("quarantine.check:check", "One-shot verdict of this node, without any daemon."),
    "verdict": ("quarantine.verdict:verdict", "Print the verdict that the agent keeps."),
    "faults": ("collectors.faults_cli:faults", "Classify kernel-log lines; list the fault codes."),
    "holds": ("quarantine.cli:holds", "List, place, approve, release and explain holds."),
    "config": ("passmuster.config_cli:config", "Show or check the configuration."),
    "docs": ("passmuster.docs_cli:docs", "Write or check the generated references of a checkout."),
    "records": ("passmuster.schema_cli:records", "Print what is derived from the records."),
}
"""Command name: where it lives, and its line in the help (so that the help imports nothing)."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, so that none pays for another's imports."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's own lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="muster")
def muster() -> None:
    """Decide for every GPU host whether it passes muster.

    Exit codes of every command: 0 pass, 1 degraded, 2 fail, 3 not run or unknown, 64 usage.
    """


def main() -> None:
    """Run the command line; errors that a user can mend become one line and an exit code."""
    add_apps_to_path()
    try:
        code = muster.main(standalone_mode=False)
    except UserError as error:
        click.echo(f"muster: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except BrokenPipeError:
        # The reader went away (`| head`); the rest of the output has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.PASS)
    sys.exit(code if isinstance(code, int) else ExitCode.PASS)
