"""What goes into the store's SQL: parameters by type, names of files only, times within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from passmuster.batch import Batch
from passmuster.errors import BadRecord
from passmuster.store import DAY, Query, bind, check_times, load_query, query_names

NOW = 1_800_000_000 * 10**9


def query(sql_type: str) -> Query:
    """Return a query with one parameter x."""
    return Query("test", "", "", {"x": sql_type})


@pytest.mark.parametrize(
    ("sql_type", "value", "text"),
    [
        ("String", "plain", "plain"),
        ("String", "a\\b\tc\nd", r"a\\b\tc\nd"),
        ("String", "\\N", r"\\N"),
        ("String", "'; DROP TABLE x --", "'; DROP TABLE x --"),
        ("String", "\ud800", "?"),
        ("Nullable(String)", None, r"\N"),
        ("Nullable(String)", "a\tb", r"a\tb"),
        ("Int64", -5, "-5"),
        ("UInt64", 5, "5"),
        ("Float64", 2, "2.0"),
        ("Array(String)", ["a", "b'c\\d"], r"['a','b\'c\\d']"),
        ("Array(String)", [], "[]"),
    ],
)
def test_parameter_is_escaped(sql_type: str, value: Any, text: str) -> None:
    """Each value has exactly the text that the engine reads back as that value."""
    assert bind(query(sql_type), {"x": value}) == {"x": text}


@pytest.mark.parametrize(
    ("sql_type", "value"),
    [
        ("Int64", "1; DROP TABLE x"),
        ("Int64", 2**64),
        ("Int64", 1.5),
        ("UInt64", -1),
        ("Float64", float("nan")),
        ("String", 1),
        ("String", None),
        ("Array(String)", ["a", 1]),
        ("Map(String, String)", {}),
    ],
)
def test_wrong_type_is_refused(sql_type: str, value: Any) -> None:
    """A value that is not of the parameter's type never reaches the engine."""
    with pytest.raises(ValueError, match="parameter x is"):
        bind(query(sql_type), {"x": value})


@pytest.mark.parametrize("params", [{}, {"x": "a", "y": "b"}, {"y": "a"}])
def test_parameters_must_be_exactly_those(params: dict[str, Any]) -> None:
    """A missing or unknown parameter is a mistake that shows at once."""
    with pytest.raises(ValueError, match="query test takes"):
        bind(query("String"), params)


@pytest.mark.parametrize("name", ["../../etc/passwd", "nothing", "findings_open.sql", ""])
def test_only_our_files_are_queries(name: str) -> None:
    """A name that is no file of ours is refused."""
    with pytest.raises(ValueError, match="unknown query"):
        load_query(name)


@pytest.mark.parametrize("name", query_names())
def test_query_says_what_it_answers(name: str) -> None:
    """The first line of each SQL file is a sentence, and the file is one statement without a semicolon."""
    loaded = load_query(name)
    assert loaded.summary.endswith(".")
    assert ";" not in "\n".join(line for line in loaded.sql.splitlines() if not line.lstrip().startswith("--"))


def batch(kind: str, **columns: Any) -> Batch:
    """Return a batch of one row."""
    return Batch(kind, 1, "c", "h", "b", 0, 1, columns)


@pytest.mark.parametrize(
    "right",
    [
        batch("gpu_reading", observed_at=NOW),
        batch("gpu_reading", observed_at=[NOW - 89 * DAY]),
        batch("finding", opened_at=NOW - 900 * DAY, observed_at=0),
        Batch("gpu_reading", 1, "c", "h", "b", 0, 0, {}),
    ],
)
def test_times_within_bounds_pass(right: Batch) -> None:
    """Telemetry within its time to live and old facts are taken; so is a batch of no rows."""
    check_times(right, NOW, 90)


@pytest.mark.parametrize(
    "wrong",
    [
        batch("gpu_reading", observed_at=NOW + 2 * DAY),
        batch("gpu_reading", observed_at=[NOW, 0]),
        batch("gpu_reading", observed_at=NOW - 91 * DAY),
        batch("gpu_reading", observed_at=[None]),
        batch("gpu_reading"),
        batch("finding", opened_at=1, observed_at=NOW),
    ],
)
def test_times_out_of_bounds_are_refused(wrong: Batch) -> None:
    """A broken clock is named with its host, and does not get partitions of its own."""
    with pytest.raises(BadRecord, match=r"from 'h'.*check that host's clock"):
        check_times(wrong, NOW, 90)
