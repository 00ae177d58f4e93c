"""`muster config`: show the configuration in force, or check a file."""

from __future__ import annotations

import click
import msgspec

from passmuster.config import Config, load


@click.group()
def config() -> None:
    """Show or check the configuration."""


@config.command()
@click.option("--config", "path", help="Configuration file (default: ./passmuster.toml, then /etc/passmuster).")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of TOML.")
def show(path: str | None, as_json: bool) -> None:
    """Print every key with the value in force; defaults, file and environment joined."""
    loaded = load(path)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(loaded), indent=2))
    else:
        click.echo(as_toml(loaded), nl=False)


@config.command()
@click.argument("path", required=False)
def check(path: str | None) -> None:
    """Check a configuration file (default: the one in force); 0 when it is right, 64 with the reason if not."""
    load(path)
    click.echo("configuration is valid")


def as_toml(loaded: Config) -> str:
    """Return the configuration as TOML with each key's description; reading it gives the same configuration."""
    lines = []
    for section in Config.__struct_fields__:
        struct = getattr(loaded, section)
        lines.append(f"[{section}]  # {(type(struct).__doc__ or '').strip().splitlines()[0]}")
        tables = []
        for field in msgspec.structs.fields(struct):
            value = getattr(struct, field.name)
            if isinstance(value, dict):
                tables.append((field.name, value))
                continue
            lines.append(f"{field.name} = {toml_value(value)}  # {describe(field)}")
        for name, table in tables:
            lines += ["", f"[{section}.{name}]", *(f"{toml_value(k)} = {toml_value(v)}" for k, v in table.items())]
        lines.append("")
    return "\n".join(lines)


def describe(field: msgspec.structs.FieldInfo) -> str:
    """Return the description beside a configuration field."""
    info = msgspec.inspect.type_info(field.type)
    schema = getattr(info, "extra_json_schema", None) or {}
    return str(schema.get("description", ""))


def toml_value(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    # A JSON string is a valid TOML basic string, numbers are written alike.
    return msgspec.json.encode(value).decode()
