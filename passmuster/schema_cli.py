"""`muster records`: print what is derived from the records."""

from __future__ import annotations

import click

from passmuster.config import Store
from passmuster.records import KINDS


@click.group()
def records() -> None:
    """Print what is derived from the records."""


@records.command("list")
def list_kinds() -> None:
    """List the record kinds: name, version, natural key, what a row is."""
    for kind, record in KINDS.items():
        click.echo(f"{kind}\tv{record.VERSION}\t{', '.join(record.KEY)}\t{(record.__doc__ or '').splitlines()[0]}")


@records.command("json-schema")
def json_schema() -> None:
    """Print the JSON Schema of the wire form (a batch of any kind)."""
    from passmuster.schema_docs import json_schema_text

    click.echo(json_schema_text(), nl=False)


@records.command()
@click.option(
    "--keep-days",
    type=click.IntRange(min=1),
    default=Store().keep_days,
    show_default=True,
    help="Days after which telemetry is deleted.",
)
def ddl(keep_days: int) -> None:
    """Print the ClickHouse tables."""
    from passmuster.schema import clickhouse_sql

    click.echo(clickhouse_sql(keep_days), nl=False)
