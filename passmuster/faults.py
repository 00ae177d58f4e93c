"""What a fault code means: its class, severity, likely origin and next step, from one table with a source per row."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from msgspec import Struct

from passmuster.records import Blame, FaultClass, Severity

# Raised with every change of a row, so that a stored fault tells which table classified it.
TABLE_VERSION = 2

COLUMNS = (
    "vendor",
    "kind",
    "code",
    "class",
    "severity",
    "blame",
    "secondary",
    "meaning",
    "next_step",
    "source",
)
DEFAULT_CODE = "*"
TABLE = Path(__file__).parent / "data" / "fault_codes.tsv"


class FaultCode(Struct, frozen=True):
    """One row: what a code of a vendor means and what to do about it."""

    vendor: str  # nvidia, amd or host
    kind: str  # xid, sxid, afid, ras, ras_block or a kind of kernel-log line
    code: str  # a number, "first-last", a word, or "*" for codes that are not listed
    fault_class: FaultClass
    severity: Severity
    blame: Blame
    secondary: bool  # follows another fault; never acts alone
    meaning: str
    next_step: str
    source: str

    @property
    def is_default(self) -> bool:
        """Whether the code itself is not in the table."""
        return self.code == DEFAULT_CODE


UNLISTED = FaultCode(
    vendor="none",
    kind="other_fault",
    code=DEFAULT_CODE,
    fault_class=FaultClass.LEGACY,
    severity=Severity.WARNING,
    blame=Blame.UNCLEAR,
    secondary=False,
    meaning="A fault of a kind that the table does not know",
    next_step="Store it; report if it is new in this fleet.",
    source="declared default",
)


def _parse(line: str) -> FaultCode:
    vendor, kind, code, letter, severity, blame, secondary, meaning, next_step, source = line.split("\t")
    return FaultCode(
        vendor=vendor,
        kind=kind,
        code=code,
        fault_class=FaultClass(letter),
        severity=Severity(severity),
        blame=Blame(blame),
        secondary=secondary == "1",
        meaning=meaning,
        next_step=next_step,
        source=source,
    )


@cache
def rows() -> tuple[FaultCode, ...]:
    """Every row of the table, in its order."""
    text = TABLE.read_text(encoding="utf-8")
    return tuple(_parse(line) for line in text.splitlines()[1:])


@cache
def _exact() -> dict[tuple[str, str, str], FaultCode]:
    return {(row.vendor, row.kind, row.code): row for row in rows()}


@cache
def _ranges() -> tuple[tuple[int, int, FaultCode], ...]:
    """Ranges, the narrowest first: a range inside another one is the exception to it."""
    found = []
    for row in rows():
        first, dash, last = row.code.partition("-")
        if dash and first.isdigit():
            found.append((int(first), int(last), row))
    return tuple(sorted(found, key=lambda item: item[1] - item[0]))


# Bounded: codes come from log lines, which anybody may fill with fresh numbers.
@lru_cache(maxsize=4096)
def lookup(vendor: str, kind: str, code: int | str | None = None) -> FaultCode:
    """Return the row for a code, else the declared default of its vendor and kind.

    Words of the form
    ``block:code`` fall back to ``code``. Never raises: a vendor or kind that is not known gives UNLISTED.
    """
    table = _exact()
    word = DEFAULT_CODE if code is None else str(code)
    row = table.get((vendor, kind, word))
    if row is None and ":" in word:
        row = table.get((vendor, kind, word.rpartition(":")[2]))
    if row is None and word.isdigit():
        number = int(word[:12])
        row = next(
            (
                found
                for first, last, found in _ranges()
                if first <= number <= last and (found.vendor, found.kind) == (vendor, kind)
            ),
            None,
        )
    # The host's rows serve every device: a PCIe or IOMMU error means the same whoever's device it is.
    for key in (
        ((vendor, kind, DEFAULT_CODE),)
        if vendor == "host"
        else (
            ("host", kind, word),
            (vendor, kind, DEFAULT_CODE),
            ("host", kind, DEFAULT_CODE),
        )
    ):
        row = row or table.get(key)
    return row or UNLISTED
