"""Writes the golden records that are missing: python tests/make_golden.py.

A golden file freezes one version of one record kind: its fields, a batch with every field set, and a batch with the
required ones only. It is written once, when the version is new, and never changed: batches of every version that was
ever written must parse for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from passmuster.batch import Batch
from passmuster.records import HEADER, KINDS
from passmuster.schema import Field, fields

GOLDEN = Path(__file__).parent / "data" / "golden"


def value(f: Field, row: int) -> Any:
    """Return a value that the field takes, different per row where it can be."""
    if f.choices:
        return f.choices[row % len(f.choices)]
    one: dict[str, Any] = {
        "float": 0.25 + row / 4,
        "int": row,
        "bool": row % 2 == 0,
        "word": f"{f.name}-{row}",
        "text": f"{f.name} {row} \u00b5",
        "nanos": 1_764_547_200_000_000_000 + row,
    }
    if f.base == "map":
        return {"a.b": one[f.value or "text"], "c": one[f.value or "text"]}
    return [one[f.value or "text"]] if f.base == "list" else one[f.base]


def golden(kind: str) -> dict[str, Any]:
    """Return the content of a kind's golden file."""
    version = KINDS[kind].VERSION
    own = [f for f in fields(kind) if f.name not in HEADER]
    header = (kind, version, "cluster-a", "host-1", "boot-1", 7)
    full = Batch(*header, 3, {f.name: [value(f, row) for row in range(3)] for f in own})
    minimal = Batch(*header, 1, {f.name: value(f, 0) for f in own if f.required})
    return {"fields": [f.name for f in fields(kind)], "full": full, "minimal": minimal}


def main() -> None:
    """Write what is missing."""
    for kind, record in KINDS.items():
        path = GOLDEN / kind / f"v{record.VERSION}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.format(msgspec.json.encode(golden(kind)), indent=1) + b"\n")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
