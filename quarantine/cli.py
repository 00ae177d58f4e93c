"""The commands `muster holds`: read, place, approve, release, expire and explain holds, and show the brakes."""

from __future__ import annotations

import getpass
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from passmuster import config as configuration
from passmuster.errors import UserError
from quarantine.service import Hold, LedgerError
from quarantine.why import utc, why_text

if TYPE_CHECKING:
    from quarantine.local_service import LocalService


class Door(msgspec.Struct, frozen=True):
    """What the group's options say about where to act and how to answer."""

    config: str | None
    ledger: str | None

    def open(self, *, create: bool = False) -> LocalService:
        """Open the service. A ledger that is not there is made only for a new hold."""
        config = configuration.load(self.config)
        target = self.ledger or config.quarantine.ledger
        if "://" not in target and not Path(target).exists():
            if not create:
                raise LedgerError(f"there is no ledger at {target}; give --ledger or --config")
            click.echo(f"muster: a new ledger begins at {target}", err=True)
        try:
            from quarantine.local_service import open_service
        except ModuleNotFoundError as error:
            # Agents are installed without the ledger's library; people who read holds need it.
            raise LedgerError(f"the ledger needs {error.name}: pip install 'passmuster[dash]'") from None
        return open_service(config, ledger=target)


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
ACTOR = click.option("--actor", help="Who acts; the login name if left out.")
REASON = click.option("--reason", required=True, help="Why, in words.")


@click.group()
@click.option("--config", "config_path", help="Configuration file.")
@click.option("--ledger", help="SQLite file or database URL of the ledger; the configuration's if left out.")
@click.pass_context
def holds(context: click.Context, config_path: str | None, ledger: str | None) -> None:
    """List, place, approve, release and explain holds."""
    context.obj = Door(config_path, ledger)


@holds.command("list")
@click.option("--host", help="Only this host's.")
@click.option("--all", "everything", is_flag=True, help="Released ones too.")
@AS_JSON
@click.pass_obj
def list_holds(door: Door, host: str | None, everything: bool, as_json: bool) -> None:
    """List holds, newest first."""
    with closing(door.open()) as service:
        found = service.holds(time.time_ns(), host=host, open_only=not everything)
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found:
        click.echo("no holds" if everything else "no open holds")
        return
    rows = [("ID", "STATE", "HOST", "CHECK", "OWNER", "SINCE", "WHY")]
    rows += [
        (
            hold.hold_id,
            hold.state + (" (dry run)" if hold.dry_run else ""),
            hold.host or "(many)",
            hold.check,
            hold.owner,
            utc(hold.placed_at),
            hold.reason if len(hold.reason) <= 80 else f"{hold.reason[:79]}\N{HORIZONTAL ELLIPSIS}",
        )
        for hold in found
    ]
    _table(rows)


@holds.command()
@click.argument("hold_id")
@AS_JSON
@click.pass_obj
def why(door: Door, hold_id: str, as_json: bool) -> None:
    """Explain one hold; the beginning of its id will do."""
    with closing(door.open()) as service:
        hold = service.why(hold_id, time.time_ns())
    click.echo(msgspec.json.encode(hold) if as_json else why_text(hold))


@holds.command()
@click.argument("host")
@REASON
@click.option("--device", default="", help="Serial of the device whose fault it is.")
@click.option("--hours", type=float, help="Goes to a person's queue after so many hours; the policy's if left out.")
@ACTOR
@AS_JSON
@click.pass_obj
def place(
    door: Door, *, host: str, reason: str, device: str, hours: float | None, actor: str | None, as_json: bool
) -> None:
    """Hold a host; no brake applies to a person."""
    now = time.time_ns()
    with closing(door.open(create=True)) as service:
        hold = service.place(host, reason, _person(actor), now, device_id=device, hours=hours)
        known = {facts.host for facts in service.hosts()}
    if known and host not in known:
        click.echo(f"muster: {host} is not among the {len(known)} hosts that report; check the name", err=True)
    _done(hold, as_json)


@holds.command()
@click.argument("hold_id")
@REASON
@ACTOR
@AS_JSON
@click.pass_obj
def approve(door: Door, hold_id: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Turn a proposal, or what a brake refused, into a hold; renew a lapsed one."""
    with closing(door.open()) as service:
        _done(service.approve(hold_id, _person(actor), reason, time.time_ns()), as_json)


@holds.command()
@click.argument("hold_id")
@REASON
@ACTOR
@AS_JSON
@click.pass_obj
def release(door: Door, hold_id: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Release a hold of ours, or decline a proposal."""
    with closing(door.open()) as service:
        _done(service.release(hold_id, _person(actor), reason, time.time_ns()), as_json)


@holds.command()
@click.argument("hold_id")
@REASON
@ACTOR
@AS_JSON
@click.pass_obj
def expire(door: Door, hold_id: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Move a hold into a person's queue now; the host stays out of service."""
    with closing(door.open()) as service:
        _done(service.expire(hold_id, _person(actor), reason, time.time_ns()), as_json)


@holds.command()
@AS_JSON
@click.pass_obj
def brakes(door: Door, as_json: bool) -> None:
    """Show how much each brake has let through, and its limit."""
    with closing(door.open()) as service:
        found = service.brakes(time.time_ns())
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found:
        click.echo("no host has reported yet, so there is nothing to count and no machine hold is placed")
        return
    rows = [("BRAKE", "SCOPE", "USED", "LIMIT", "STATE")]
    rows += [
        (
            str(brake["name"]),
            str(brake["scope"]) or "-",
            str(brake["used"]),
            str(brake["limit"]),
            "lets holds through" if brake["open"] else "refuses holds",
        )
        for brake in found
    ]
    _table(rows)


def _person(actor: str | None) -> str:
    if actor is not None:
        return actor
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise UserError("this user has no login name; say who acts with --actor") from None


def _done(hold: Hold, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(hold))
        return
    rehearsed = " (dry run: no scheduler was touched)" if hold.dry_run else ""
    click.echo(f"{hold.hold_id} {hold.state}: {hold.host or 'many hosts'}{rehearsed}")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
