"""What follows from the records' annotations: columns of the store, JSON Schema, Arrow schema, metric metadata.

Nothing here knows a field by name. The store's layout, stated once:

* One table per kind, a ReplacingMergeTree ordered by the kind's natural key; of rows with one key the one with the
  highest ``observed_at`` stays, and of equal ones the last inserted. So a redelivery replaces itself, and an old
  batch that is sent again never hides what came after it. Exact questions read ``FINAL``.
* Null is ``Nullable``; a map or list cannot be null in ClickHouse, so there the empty map or list is null, and
  `missing` says why as for every other null.
* All integers are Int64: the records bound them so, and differences stay signed.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from passmuster.batch import field_types, record_type
from passmuster.records import HEADER, KINDS, Record

if TYPE_CHECKING:
    import pyarrow as pa

METRIC_PREFIX = "passmuster_"

Base = Literal["float", "int", "bool", "word", "text", "nanos", "map", "list"]


class Field(Struct, frozen=True, kw_only=True):
    """One field of one record kind, as its annotation declares it."""

    name: str
    base: Base
    value: Base | None  # of a map's values or a list's items
    nullable: bool
    required: bool
    default: Any  # None where required or nullable
    choices: tuple[str, ...]  # words of an enum; empty where any value goes
    description: str
    unit: str
    nvidia: str
    amd: str
    null: str
    metric: str
    metric_type: str
    labels: str
    since: int


Shape = Literal["value", "up", "state", "map", "map_up", "map_state", "rows"]
"""How a value becomes samples:

value      a number, or a boolean as 0 or 1
up         an enum: 1 for "ok", else 0
state      a word: one sample of value 1, the word in the one label of `label_names`
map        a map: one sample per entry, the key split on its last dots into `label_names`
map_up     a map of words: 1 for a word of `UP_WORDS`, else 0; the key is the label
map_state  a map of words: one sample of value 1 per entry, the key in the first label, the word in ``state``
rows       a kind without devices (faults, checks, findings): labels are fields of the row
"""
UP_WORDS = frozenset({"ok", "up", "active"})
_ROW_KINDS = ("fault_event", "check_state", "finding")


class MetricSpec(Struct, frozen=True, kw_only=True):
    """One exported metric of one field. Several fields may share a `name`; then they differ in `labels`."""

    kind: str
    field: str
    name: str  # with prefix and, for counters, `_total`
    type: Literal["gauge", "counter"]
    unit: str
    help: str  # one text per name
    labels: dict[str, str]  # fixed labels
    label_names: tuple[str, ...]  # labels taken from the value, see `Shape`
    shape: Shape


@cache
def fields(kind: str) -> tuple[Field, ...]:
    """Return the fields of a kind in their order, header first. Raises BadRecord for an unknown kind."""
    declared = {f.name: f for f in msgspec.structs.fields(record_type(kind))}
    return tuple(_field(name, annotation, declared[name]) for name, annotation in field_types(kind).items())


def _field(name: str, annotation: Any, declared: msgspec.structs.FieldInfo) -> Field:
    plain, metas, nullable = _unwrap(annotation)
    description = next((m.description for m in reversed(metas) if m.description), "")
    extra: dict[str, Any] = {}
    for meta in metas:
        extra |= meta.extra or {}
    base, value = _base(plain, extra)
    default = declared.default if declared.default is not msgspec.NODEFAULT else None
    if declared.default_factory is not msgspec.NODEFAULT:
        default = declared.default_factory()
    choices = tuple(m.value for m in plain) if isinstance(plain, type) and issubclass(plain, Enum) else ()
    return Field(
        name=name,
        base=base,
        value=value,
        nullable=nullable,
        required=declared.required,
        default=default.value if isinstance(default, Enum) else default,
        choices=choices,
        description=description,
        unit=extra.get("unit", ""),
        nvidia=extra.get("nvidia", ""),
        amd=extra.get("amd", ""),
        null=extra.get("null", ""),
        metric=extra.get("metric", ""),
        metric_type=extra.get("metric_type", "gauge"),
        labels=extra.get("labels", ""),
        since=extra.get("since", 1),
    )


def _unwrap(annotation: Any) -> tuple[Any, list[Meta], bool]:
    """Return the bare type, its metas from the inside out, and whether null is allowed."""
    if get_origin(annotation) is Annotated:
        inner, *metas = get_args(annotation)
        plain, below, nullable = _unwrap(inner)
        return plain, [*below, *metas], nullable
    args = get_args(annotation)
    if type(None) in args:
        (inner,) = (a for a in args if a is not type(None))
        plain, below, _ = _unwrap(inner)
        return plain, below, True
    return annotation, [], False


def _base(plain: Any, extra: dict[str, Any]) -> tuple[Base, Base | None]:
    origin = get_origin(plain)
    if origin in (dict, list):
        item, metas, _ = _unwrap(get_args(plain)[-1])
        inner: dict[str, Any] = {}
        for meta in metas:
            inner |= meta.extra or {}
        return ("map" if origin is dict else "list"), _base(item, inner)[0]
    if isinstance(plain, type) and issubclass(plain, Enum):
        return "word", None
    if plain is str:
        return ("word" if extra.get("sql", "").startswith("LowCardinality") else "text"), None
    if plain is int:
        return ("nanos" if extra.get("sql", "").startswith("DateTime64") else "int"), None
    simple: dict[Any, Base] = {float: "float", bool: "bool"}
    return simple[plain], None


# ---- metrics


@cache
def metrics() -> tuple[MetricSpec, ...]:
    """Return every exported metric, in the order of the records."""
    declared = [(kind, f) for kind in KINDS for f in fields(kind) if f.metric]
    help_of: dict[str, list[str]] = {}
    for _, f in declared:
        help_of.setdefault(f.metric, []).append(f.description)
    return tuple(_metric(kind, f, "; ".join(help_of[f.metric])) for kind, f in declared)


def _metric(kind: str, f: Field, text: str) -> MetricSpec:
    words = [w for w in f.labels.split(",") if w]
    return MetricSpec(
        kind=kind,
        field=f.name,
        name=METRIC_PREFIX + f.metric,
        type="counter" if f.metric_type == "counter" else "gauge",
        unit=f.unit,
        help=text,
        labels=dict(w.split("=", 1) for w in words if "=" in w),
        label_names=tuple(w for w in words if "=" not in w),
        shape=_shape(kind, f),
    )


def _shape(kind: str, f: Field) -> Shape:
    if kind in _ROW_KINDS:
        return "rows"
    if f.base == "map":
        if f.value in ("word", "text"):
            return "map_up" if f.metric.endswith("_up") else "map_state"
        return "map"
    if f.choices:
        return "up"
    return "state" if f.base in ("word", "text") else "value"


# ---- ClickHouse

# Kinds that grow with the fleet and the time: a partition a day, deleted after config.store.keep_days. All others
# are facts that reliability questions need for years: a partition a month, kept.
TELEMETRY_KINDS = ("gpu_reading", "host_reading", "step_timing", "kernel_timing")

# Kinds whose newest row per subject is also kept in a table of its own, so that "what is the fleet doing now" costs
# what the fleet is large, not what its history is long. Written by the same insert; `observed_at` is its version too,
# so a late or repeated batch never turns it back.
LATEST_KINDS = ("gpu_reading", "host_reading")

# Acknowledged means on the disk. Small granules, because most questions are of one host over a short time. An insert
# of a few thousand rows stays one file: a file per column would mean a hundred fsyncs.
TABLE_SETTINGS = {
    "fsync_after_insert": 1,
    "fsync_part_directory": 1,
    "index_granularity": 1024,
    "min_bytes_for_wide_part": 64 * 2**20,
}

# What the store adds to every row.
OWN_COLUMNS = {"schema_version": "UInt16", "ingested_at": "DateTime64(9, 'UTC')"}

_SCALAR_SQL: dict[Base, str] = {
    "float": "Float64",
    "int": "Int64",
    "bool": "Bool",
    "word": "LowCardinality(String)",
    "text": "String",
    "nanos": "DateTime64(9, 'UTC')",
}


def quote(name: str) -> str:
    """Return a name of ours in backticks: some are reserved words (`index`, `partition`, `check`)."""
    if not name.isidentifier():
        raise ValueError(f"not a name of a table or column: {name!r}")
    return f"`{name}`"


def sql_type(f: Field) -> str:
    """Return the ClickHouse type of a field."""
    if f.base == "map":
        return f"Map(LowCardinality(String), {_SCALAR_SQL[f.value or 'text']})"
    if f.base == "list":
        return f"Array({_SCALAR_SQL[f.value or 'text']})"
    if not f.nullable:
        return _SCALAR_SQL[f.base]
    if f.base == "word":
        return "LowCardinality(Nullable(String))"
    return f"Nullable({_SCALAR_SQL[f.base]})"


def sql_columns(kind: str) -> dict[str, str]:
    """Return name to ClickHouse type of every column of a kind's table."""
    return {f.name: sql_type(f) for f in fields(kind)} | OWN_COLUMNS


def column_clause(kind: str, name: str) -> str:
    """Return one column's definition: quoted name, type, default, codec. For CREATE TABLE and ADD COLUMN."""
    return f"{quote(name)} {sql_columns(kind)[name]}{_default(kind, name)}{_codec(kind, name)}"


def _default(kind: str, name: str) -> str:
    f = next((f for f in fields(kind) if f.name == name), None)
    if f is None or f.nullable or f.default is None or f.base in ("map", "list"):
        return ""
    value = f.default
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f" DEFAULT '{escaped}'"
    return f" DEFAULT {str(value).lower()}"


def _codec(kind: str, name: str) -> str:
    """Times and counters rise slowly, so their differences are small; everything else is left to the default."""
    kind_of = sql_columns(kind)[name]
    if "DateTime64" in kind_of:
        return " CODEC(DoubleDelta, ZSTD(1))"
    if name.endswith("_total") and kind_of == "Nullable(Int64)":
        return " CODEC(Delta, ZSTD(1))"
    if kind_of.startswith("LowCardinality"):
        return ""
    return " CODEC(ZSTD(1))"


def partition_time(kind: str) -> str:
    """Return the time by which a kind's table is partitioned: the one in its natural key, else observed_at.

    A row and its replacement then always lie in one partition, where merges drop the older one.
    """
    times = {f.name for f in fields(kind) if f.base == "nanos"}
    return next((k for k in record_type(kind).KEY if k in times), "observed_at")


def create_table(kind: str, keep_days: int, *, latest: bool = False) -> str:
    """Return the CREATE TABLE IF NOT EXISTS statement of a kind; telemetry is deleted after `keep_days`.

    With `latest`, the table that keeps only the newest row of each subject of a telemetry kind.
    """
    telemetry = kind in TELEMETRY_KINDS and not latest
    at = quote(partition_time(kind))
    order = latest_key(kind) if latest else sorting_key(kind)
    columns = ",\n    ".join(column_clause(kind, name) for name in sql_columns(kind))
    lines = [
        f"CREATE TABLE IF NOT EXISTS {quote(latest_table(kind) if latest else kind)}\n(\n    {columns}\n)",
        f"ENGINE = ReplacingMergeTree({quote('observed_at')})",
        f"ORDER BY ({', '.join(quote(k) if k.isidentifier() else k for k in order)})",
    ]
    if not latest:
        lines.insert(2, f"PARTITION BY {'toYYYYMMDD' if telemetry else 'toYYYYMM'}({at})")
    if telemetry:
        lines.append(f"TTL {ttl(kind, keep_days)}")
    settings = TABLE_SETTINGS | ({"ttl_only_drop_parts": 1} if telemetry else {})
    lines.append("SETTINGS " + ", ".join(f"{k} = {v}" for k, v in settings.items()))
    return "\n".join(lines)


def sorting_key(kind: str) -> tuple[str, ...]:
    """Return the order of a kind's table: its natural key, for readings the hour before it.

    The hour follows from the key, so what replaces what stays the same. But parts then follow each other in time:
    FINAL need not merge what does not overlap, and a question about the last hour reads the last hour.
    """
    key = record_type(kind).KEY
    return ("toStartOfHour(observed_at)", *key) if kind in TELEMETRY_KINDS and "observed_at" in key else key


def latest_table(kind: str) -> str:
    """Return the name of the table of the newest rows of a kind of `LATEST_KINDS`."""
    return f"{kind}_latest"


def latest_key(kind: str) -> tuple[str, ...]:
    """Return what tells the subjects of a kind apart and orders its latest table: its natural key without the time."""
    return tuple(k for k in record_type(kind).KEY if k != "observed_at")


def ttl(kind: str, keep_days: int) -> str:
    """Return the TTL expression of a telemetry kind."""
    return f"toDateTime({quote(partition_time(kind))}) + {ttl_interval(keep_days)}"


def ttl_interval(keep_days: int) -> str:
    """Return the interval in the TTL expression."""
    # A ClickHouse DateTime ends in 2106; a sum beyond it wraps to the past and would delete everything at once.
    return f"toIntervalDay({min(int(keep_days), 20_000)})"


def clickhouse_sql(keep_days: int) -> str:
    """Return the whole DDL, for reading and for servers that are set up by hand."""
    head = "-- Generated from passmuster/records.py by `muster records docs --write`.\n"
    tables = [create_table(kind, keep_days) for kind in KINDS]
    tables += [create_table(kind, keep_days, latest=True) for kind in LATEST_KINDS]
    return head + "".join(f"\n{table};\n" for table in tables)


# ---- JSON Schema


@cache
def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the wire: a batch of any kind, and each kind's record by its name."""
    (*_,), components = msgspec.json.schema_components(KINDS.values(), ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = dict(components)
    for kind, record in KINDS.items():
        row = definitions[record.__name__]
        for f in fields(kind):
            row["properties"][f.name] |= {"x-since": f.since} | ({"x-unit": f.unit} if f.unit else {})
        row["x-kind"], row["x-version"], row["x-key"] = kind, record.VERSION, list(record.KEY)
        definitions[f"{record.__name__}Batch"] = _batch_schema(kind, record)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "passmuster batch",
        "description": "One host, one record kind, one boot, as columns: a scalar holds for every row, an array has "
        "one value per row, an absent column is null in every row. Generated from passmuster/records.py.",
        "oneOf": [{"$ref": f"#/$defs/{record.__name__}Batch"} for record in KINDS.values()],
        "$defs": dict(sorted(definitions.items())),
    }


def _batch_schema(kind: str, record: type[Record]) -> dict[str, Any]:
    columns = {}
    for f in fields(kind):
        if f.name in HEADER:
            continue
        one = {"$ref": f"#/$defs/{record.__name__}/properties/{f.name}"}
        many = {"type": "array", "items": one if f.required else {"anyOf": [one, {"type": "null"}]}}
        columns[f.name] = many if f.base == "list" else {"anyOf": [one, many, {"type": "null"}]}
    text = {"type": "string"}
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["kind", "version", "cluster", "host", "boot_id", "seq", "rows", "columns"],
        "properties": {
            "kind": {"const": kind},
            "version": {"type": "integer", "minimum": 1, "maximum": record.VERSION},
            "cluster": text,
            "host": text,
            "boot_id": text,
            "seq": {"type": "integer", "minimum": 0},
            "rows": {"type": "integer", "minimum": 0},
            "columns": {"type": "object", "additionalProperties": False, "properties": columns},
        },
    }


# ---- Arrow


@cache
def arrow_schema(kind: str) -> pa.Schema:
    """Return the Arrow schema in which rows of a kind enter the store, `OWN_COLUMNS` last. Needs pyarrow."""
    import pyarrow as pa

    at = pa.timestamp("ns", tz="UTC")
    types: dict[Base, Any] = {
        "float": pa.float64(),
        "int": pa.int64(),
        "bool": pa.bool_(),
        "word": pa.string(),
        "text": pa.string(),
        "nanos": at,
    }
    columns = []
    for f in fields(kind):
        inner = types.get(f.value or "text")
        kind_of = {"map": pa.map_(pa.string(), inner), "list": pa.list_(inner)}.get(f.base) or types[f.base]
        columns.append(pa.field(f.name, kind_of, nullable=f.nullable))
    own = [pa.field("schema_version", pa.uint16(), nullable=False), pa.field("ingested_at", at, nullable=False)]
    return pa.schema([*columns, *own])
