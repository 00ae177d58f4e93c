"""The exit codes, one enum for every command."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command answers to the shell, to Slurm and to a node probe."""

    PASS = 0  # healthy, or done
    DEGRADED = 1  # works with less than it should have
    FAIL = 2  # unhealthy, or the command failed
    INCOMPLETE = 3  # not run, incomplete or unknown: never a pass
    USAGE = 64  # the command line or the configuration is wrong (EX_USAGE of sysexits.h)
