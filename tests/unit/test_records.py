"""The records: golden files of every version must parse, and a field cannot be added without raising the version."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from passmuster.batch import decode_json, to_records
from passmuster.records import HEADER, KINDS
from passmuster.schema import fields

GOLDEN = sorted((Path(__file__).parent.parent / "data" / "golden").glob("*/v*.json"))
FILES = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in GOLDEN]


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("form", ["full", "minimal"])
def test_golden_parses(path: Path, form: str) -> None:
    """A batch of any version that was ever written becomes records."""
    golden = msgspec.json.decode(path.read_bytes())
    batch = decode_json(msgspec.json.encode(golden[form]))
    assert golden[form]["rows"] == len(to_records(batch))


@pytest.mark.parametrize("path", FILES)
def test_golden_keeps_every_value(path: Path) -> None:
    """Parsing a full batch loses and changes nothing."""
    golden = msgspec.json.decode(path.read_bytes())["full"]
    assert golden == msgspec.to_builtins(decode_json(msgspec.json.encode(golden)))


@pytest.mark.parametrize("path", FILES)
def test_fields_of_a_version_never_change(path: Path) -> None:
    """A field that is added without raising the version, renamed or removed, breaks the frozen list."""
    kind, version = path.parent.name, int(path.stem[1:])
    frozen = msgspec.json.decode(path.read_bytes())["fields"]
    now = [f.name for f in fields(kind) if f.since <= version]
    assert frozen == now, (
        f"{kind}: a new field needs since={KINDS[kind].VERSION + 1} and VERSION {KINDS[kind].VERSION + 1}, then "
        "python tests/make_golden.py; a field of a written version is never renamed or removed"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_version_is_the_newest_field(kind: str) -> None:
    """VERSION is the highest `since`, and that version has its golden file."""
    assert max(f.since for f in fields(kind)) == KINDS[kind].VERSION
    assert f"v{KINDS[kind].VERSION}" in {p.stem for p in GOLDEN if p.parent.name == kind}, "python tests/make_golden.py"


@pytest.mark.parametrize("kind", KINDS)
def test_later_fields_may_be_absent(kind: str) -> None:
    """A field that version 1 did not have has a default, or old batches would not parse."""
    assert [f.name for f in fields(kind) if f.since > 1 and f.required] == []


@pytest.mark.parametrize("kind", KINDS)
def test_natural_key_is_never_null(kind: str) -> None:
    """Each part of the natural key is a field of the record, and cannot be null, a map or a list."""
    by_name = {f.name: f for f in fields(kind)}
    assert [k for k in KINDS[kind].KEY if by_name[k].nullable or by_name[k].base in ("map", "list")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_names_and_units_agree(kind: str) -> None:
    """A time is nanoseconds and ends in _at, and a field whose unit is a base unit says so in its name."""
    wrong = []
    for f in fields(kind):
        if (f.base == "nanos") != f.name.endswith("_at"):
            wrong.append(f.name)
        if f.unit in ("watts", "joules", "celsius", "hertz", "bytes") and f.unit not in f.name and f.base != "map":
            wrong.append(f.name)
        if not f.description:
            wrong.append(f.name)
    assert wrong == []


def test_header_stands_in_every_record() -> None:
    """Every kind carries cluster, host, boot and time."""
    assert {kind: [*HEADER, "observed_at"] for kind in KINDS} == {k: [f.name for f in fields(k)][:4] for k in KINDS}
