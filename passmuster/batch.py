"""The batch: one host, one record kind, one boot, as columns; the unit that moves everywhere.

On the wire a batch is JSON, compressed with zstd. A scalar column holds the same value in every row, a list
holds one value per row, an absent column is null in every row. A field whose own type is a list is always given
per row. The header fields (cluster, host, boot_id) are not repeated among the columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import zstandard
from msgspec import Meta, Struct

from passmuster.errors import BadRecord, FutureVersion
from passmuster.records import HEADER, INT64_MAX, KINDS, Record

MAX_ROWS = 100_000
MAX_BYTES = 64 * 2**20  # of decoded JSON; a hostile frame must not fill the memory

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]


class Batch(Struct, frozen=True, forbid_unknown_fields=True):
    """One host, one record kind, one boot. `seq` counts up per (host, boot, kind) and shows gaps."""

    kind: Annotated[str, Meta(max_length=64)]
    version: Annotated[int, Meta(ge=1, le=65535)]
    cluster: Annotated[str, Meta(max_length=128)]
    host: Annotated[str, Meta(max_length=256)]
    boot_id: Annotated[str, Meta(max_length=128)]
    seq: Count
    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    columns: dict[str, Any]


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch whose columns are still JSON, so that they are decoded once, with the types of their kind."""

    kind: Annotated[str, Meta(max_length=64)]
    version: Annotated[int, Meta(ge=1, le=65535)]
    cluster: Annotated[str, Meta(max_length=128)]
    host: Annotated[str, Meta(max_length=256)]
    boot_id: Annotated[str, Meta(max_length=128)]
    seq: Count
    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    columns: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def record_type(kind: str) -> type[Record]:
    """Return the record class of a kind; raise BadRecord for a kind that does not exist."""
    try:
        return KINDS[kind]
    except KeyError:
        raise BadRecord(f"unknown record kind {kind[:64]!r}; known kinds: {', '.join(KINDS)}") from None


@cache
def field_types(kind: str) -> dict[str, Any]:
    """Return the annotated type of each field of a kind, header fields included."""
    hints = get_type_hints(record_type(kind), include_extras=True)
    return {name: hints[name] for name in record_type(kind).__struct_fields__}


def _plain(annotation: Any) -> Any:
    """Replace an Enum by the literal words that stand for it on the wire, all else as it is."""
    if get_origin(annotation) is Annotated:
        base, *metas = get_args(annotation)
        return Annotated[(_plain(base), *[Meta(**_bounds(m)) for m in metas if isinstance(m, Meta)])]
    args = get_args(annotation)
    if args and any(a is type(None) for a in args):
        plain = None
        for arg in args:
            plain = _plain(arg) if plain is None else plain | _plain(arg)
        return plain
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Literal[tuple(member.value for member in annotation)]
    return annotation


def _bounds(meta: Meta) -> dict[str, Any]:
    names = ("gt", "ge", "lt", "le", "min_length", "max_length", "pattern")
    return {n: getattr(meta, n) for n in names if getattr(meta, n) is not None}


def _is_list(annotation: Any) -> bool:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) is list


@cache
def _columns_decoder(kind: str) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any, Any]] = []
    for name, annotation in field_types(kind).items():
        if name in HEADER:
            continue
        one = _plain(annotation)
        fields.append((name, list[one] if _is_list(annotation) else one | list[one] | None, None))  # type: ignore[valid-type]
    columns = msgspec.defstruct(f"{kind}_columns", fields, forbid_unknown_fields=True)
    return msgspec.json.Decoder(columns)


def encode(batch: Batch) -> bytes:
    """Return the wire form: JSON under zstd. NaN and infinities travel as null."""
    return zstandard.ZstdCompressor(level=3).compress(_encode(batch))


def decode(data: bytes) -> Batch:
    """Read and validate a wire form of `encode`.

    Raises FutureVersion for a record version that this program does not know (keep the bytes for a newer
    one), BadRecord for everything else that cannot be taken: not zstd, not JSON, too large, unknown kind or
    column, wrong type, a column whose length is not `rows`.
    """
    try:
        size = zstandard.frame_content_size(data)
        if size < 0 or size > MAX_BYTES:
            raise BadRecord(f"batch of unknown or too large size ({size} bytes; at most {MAX_BYTES})")
        # A decompressor may not be shared between threads.
        raw = zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_BYTES, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadRecord(f"batch is not a zstd frame: {error}") from None
    return decode_json(raw)


def decode_json(raw: bytes) -> Batch:
    """Read and validate the uncompressed JSON of a batch; errors as in `decode`."""
    try:
        envelope = _decode_envelope(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"batch is not valid: {error}") from None
    known = record_type(envelope.kind)
    if envelope.version > known.VERSION:
        raise FutureVersion(
            f"batch of {envelope.kind} version {envelope.version}; this program knows up to {known.VERSION}: "
            "upgrade it, the batch is kept"
        )
    try:
        typed = _columns_decoder(envelope.kind).decode(envelope.columns)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(f"batch of {envelope.kind} from {envelope.host[:64]!r}: {error}") from None
    columns = {}
    for name in typed.__struct_fields__:
        value = getattr(typed, name)
        if value is None:
            continue
        if isinstance(value, list) and len(value) != envelope.rows:
            raise BadRecord(f"batch of {envelope.kind}: column {name} has {len(value)} values for {envelope.rows} rows")
        columns[name] = value
    for name in required_columns(envelope.kind):
        column = columns.get(name)
        if envelope.rows and (column is None or (isinstance(column, list) and any(v is None for v in column))):
            raise BadRecord(f"batch of {envelope.kind}: required column {name} is missing or null")
    return Batch(
        envelope.kind,
        envelope.version,
        envelope.cluster,
        envelope.host,
        envelope.boot_id,
        envelope.seq,
        envelope.rows,
        columns,
    )


@cache
def required_columns(kind: str) -> tuple[str, ...]:
    """Return the columns that may not be null: the record's fields that have no default."""
    fields = msgspec.structs.fields(record_type(kind))
    return tuple(f.name for f in fields if f.required and f.name not in HEADER)


def from_records(records: Sequence[Record], seq: int = 0) -> Batch:
    """Build a batch from records of one kind, host and boot.

    Raises ValueError where they differ in kind or header: that is the caller's mistake, not input.
    """
    first = records[0]
    header = tuple(getattr(first, h) for h in HEADER)
    if any(type(r) is not type(first) or tuple(getattr(r, h) for h in HEADER) != header for r in records):
        raise ValueError("a batch holds one kind of one cluster, host and boot")
    columns: dict[str, Any] = {}
    for name, annotation in field_types(first.KIND).items():
        if name in HEADER:
            continue
        values = [_wire(getattr(r, name)) for r in records]
        if all(v is None for v in values):
            continue
        same = not _is_list(annotation) and all(v == values[0] for v in values)
        columns[name] = values[0] if same else values
    cluster, host, boot_id = header
    return Batch(first.KIND, first.VERSION, cluster, host, boot_id, seq, len(records), columns)


def _wire(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: v for k, v in value.items() if not isinstance(v, float) or math.isfinite(v)}
    return value


def to_records(batch: Batch) -> list[Record]:
    """Return the rows of a batch as records. For tests, tools and rare kinds: the data path stays columnar."""
    record = record_type(batch.kind)
    header = {h: getattr(batch, h) for h in HEADER}
    rows = []
    for i in range(batch.rows):
        row = {n: (v[i] if isinstance(v, list) else v) for n, v in batch.columns.items()}
        rows.append(msgspec.convert({**header, **{n: v for n, v in row.items() if v is not None}}, record))
    return rows


def split_by_header(records: Iterable[Record]) -> list[list[Record]]:
    """Group records into runs that may share a batch: one kind, one cluster, host and boot, order kept."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        groups.setdefault((record.KIND, *(getattr(record, h) for h in HEADER)), []).append(record)
    return list(groups.values())
