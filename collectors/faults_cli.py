"""The commands `muster faults`: classify kernel-log lines, list the table of fault codes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import BinaryIO

import click
import msgspec

from collectors.kernel_log_classify import LogStream
from collectors.kernel_log_prefix import MAX_JSON
from passmuster.faults import TABLE_VERSION, rows


@click.group()
def faults() -> None:
    """Classify kernel-log lines; list the fault codes."""


@faults.command()
@click.argument("lines", type=click.File("rb"), default="-")
def classify(lines: BinaryIO) -> None:
    """Read kernel-log lines (raw kmsg, dmesg, journal, syslog) and print one JSON object for each."""
    stream = LogStream()
    encode = msgspec.json.encode
    out = sys.stdout.buffer
    for line in bounded_lines(lines):
        out.write(encode(stream.classify(line)) + b"\n")
        out.flush()


def bounded_lines(stream: BinaryIO, limit: int = MAX_JSON) -> Iterator[bytes]:
    """Lines of a stream, each cut at ``limit`` bytes: what follows up to the line's end is passed over."""
    while line := stream.readline(limit):
        yield line
        while not line.endswith(b"\n") and (line := stream.readline(limit)):
            pass


@faults.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per row.")
@click.option("--vendor", type=click.Choice(["nvidia", "amd", "host"]), help="Only rows of this vendor.")
def list_codes(vendor: str | None, *, as_json: bool) -> None:
    """Print the table of fault codes; a code "*" is the default for codes that are not listed."""
    chosen = [row for row in rows() if vendor in {None, row.vendor}]
    if as_json:
        for row in chosen:
            click.echo(msgspec.json.encode(row))
        return
    click.echo(f"table version {TABLE_VERSION}, {len(chosen)} rows")
    for row in chosen:
        where = f"{row.vendor} {row.kind} {row.code}"
        click.echo(f"{where:<32} {row.fault_class} {row.severity:<8} {row.blame:<11} {row.meaning}. {row.next_step}")
