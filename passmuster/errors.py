"""The errors that a user may see: each is one clear sentence and an exit code."""

from __future__ import annotations

from passmuster.exits import ExitCode


class UserError(Exception):
    """Something that the user can put right. The message says what, where, and what to do."""

    exit_code = ExitCode.USAGE


class ConfigError(UserError):
    """The configuration is broken, or a value in it is."""


class BadRecord(UserError):
    """A batch or record that cannot be taken; it goes to the dead letters with this reason."""

    exit_code = ExitCode.FAIL


class FutureVersion(BadRecord):
    """A batch of a record version newer than this program knows."""


class StoreError(UserError):
    """The store cannot be opened, or refused a statement."""

    exit_code = ExitCode.INCOMPLETE


class SpoolFull(UserError):
    """The disk under the spool is full; what was spooled before is kept."""

    exit_code = ExitCode.INCOMPLETE
