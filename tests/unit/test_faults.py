"""The fault-code table is complete, well formed and answers for every code."""

import pytest

from passmuster import faults
from passmuster.records import Blame, FaultClass, Severity


@pytest.mark.parametrize(("vendor", "kind", "last"), [("nvidia", "xid", 173), ("amd", "afid", 34)])
def test_every_listed_number_has_a_row_of_its_own(vendor: str, kind: str, last: int) -> None:
    """Each number that the vendor lists is decided by itself, none by a default or a range."""
    numbers = [str(number) for number in range(1, last + 1)]
    assert numbers == [faults.lookup(vendor, kind, number).code for number in numbers]


def test_every_row_is_whole() -> None:
    """No row lacks its meaning, next step or source, and no key stands twice."""
    rows = faults.rows()
    assert [row for row in rows if not (row.meaning and row.next_step and row.source)] == []
    keys = [(row.vendor, row.kind, row.code) for row in rows]
    assert len(set(keys)) == len(keys)


def test_the_header_names_the_columns() -> None:
    """The first line of the table is its header, in the order that the parser takes."""
    assert "\t".join(faults.COLUMNS) == faults.TABLE.read_text().splitlines()[0]


def test_ranges_are_not_empty() -> None:
    """A range runs from its lower to its higher number."""
    spans = [row.code.split("-") for row in faults.rows() if "-" in row.code]
    assert spans
    assert [span for span in spans if int(span[0]) >= int(span[1])] == []


@pytest.mark.parametrize(
    ("letter", "vendor", "kind", "code"),
    [
        ("C", "nvidia", "xid", 94),
        ("P", "nvidia", "xid", 63),
        ("I", "nvidia", "xid", 45),
        ("H", "nvidia", "xid", 109),
        ("A", "nvidia", "xid", 31),
        ("H", "nvidia", "xid", 62),
        ("L", "nvidia", "xid", 121),
        ("V", "nvidia", "xid", 142),
        ("L", "nvidia", "xid", 149),
        ("I", "nvidia", "xid", 163),
    ],
)
def test_disputed_codes_take_the_decision_made_here(letter: str, vendor: str, kind: str, code: int | str) -> None:
    """Where the public sources contradict each other, one class is declared."""
    assert letter == faults.lookup(vendor, kind, code).fault_class.value


def test_secondary_codes_are_marked() -> None:
    """What only follows another fault says so, or it would hold hosts alone."""
    assert [faults.lookup("nvidia", "xid", code).secondary for code in (45, 154, 79)] == [True, True, False]


def test_the_narrowest_range_decides() -> None:
    """A number inside a small range is not taken by the block around it."""
    assert FaultClass.LINK is faults.lookup("nvidia", "sxid", 11018).fault_class
    assert FaultClass.INFO is faults.lookup("nvidia", "sxid", 11999).fault_class


@pytest.mark.parametrize(
    ("vendor", "kind", "code"),
    [("nvidia", "xid", 999), ("nvidia", "sxid", 99999), ("amd", "afid", 99), ("amd", "other_fault", "new")],
)
def test_an_unknown_code_gets_the_declared_default(vendor: str, kind: str, code: int | str) -> None:
    """Codes that a later driver brings are stored with a default class and never act."""
    row = faults.lookup(vendor, kind, code)
    assert row.is_default
    assert row.severity is Severity.WARNING


def test_an_unknown_vendor_and_kind_is_answered() -> None:
    """Nothing that a log can hold makes the lookup raise."""
    assert faults.UNLISTED is faults.lookup("acme", "sparks", 3)


def test_a_block_makes_its_own_row_count() -> None:
    """Uncorrectable errors of the memory controller are worse than those of another block."""
    assert FaultClass.UNCONTAINED is faults.lookup("amd", "ras", "umc:uncorrectable").fault_class
    assert FaultClass.CONTAINED is faults.lookup("amd", "ras", "sdma:uncorrectable").fault_class


def test_pcie_errors_mean_the_same_on_every_device() -> None:
    """Kinds that only the host's rows know serve all vendors."""
    expected = faults.lookup("host", "aer", "fatal")
    assert [expected, expected] == [faults.lookup(vendor, "aer", "fatal") for vendor in ("nvidia", "amd")]
    assert Blame.HARDWARE is expected.blame
