"""What is derived from the records: names, types and references agree with each other and are fresh."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from passmuster import schema_docs
from passmuster.records import KINDS
from passmuster.schema import (
    MetricSpec,
    arrow_schema,
    create_table,
    fields,
    json_schema,
    metrics,
    partition_time,
    quote,
    sql_columns,
)

DOCS = Path(__file__).parent.parent.parent / "docs"
UNITS = ("watts", "joules", "celsius", "hertz", "bytes", "seconds", "ratio")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("records.md", schema_docs.records_reference),
        ("metrics.md", schema_docs.metrics_reference),
        ("records.schema.json", schema_docs.json_schema_text),
        ("clickhouse.sql", schema_docs.clickhouse_text),
    ],
)
def test_reference_is_fresh(name: str, text: Callable[[], str]) -> None:
    """The committed reference is what the records say."""
    assert text() == (DOCS / name).read_text("utf-8"), "run `make docs`"


def test_metrics_of_one_name_are_one_family() -> None:
    """Fields that share a metric name agree in type, unit, help and label names, and differ in labels."""
    families = defaultdict(list)
    for m in metrics():
        families[m.name].append(m)
    for name, members in families.items():
        shapes = {(m.type, m.unit, m.help, tuple(m.labels), m.label_names) for m in members}
        assert len(shapes) == 1, name
        assert len(members) == len({tuple(m.labels.values()) for m in members}), name


@pytest.mark.parametrize("metric", metrics(), ids=lambda m: f"{m.kind}.{m.field}")
def test_metric_follows_prometheus(metric: MetricSpec) -> None:
    """Names have our prefix and their unit; counters, and only they, end in _total; maps name their labels."""
    assert re.fullmatch(r"passmuster_[a-z][a-z0-9_]*", metric.name)
    assert (metric.type == "counter") == metric.name.endswith("_total")
    if metric.unit in UNITS and metric.shape != "map_up" and not metric.name.endswith("throttle_active"):
        assert metric.unit in metric.name
    assert (metric.shape in ("map", "map_up", "map_state", "state", "rows")) == bool(metric.label_names)


@pytest.mark.parametrize("kind", KINDS)
def test_forms_have_the_same_columns(kind: str) -> None:
    """Table, Arrow and JSON Schema know the same fields."""
    names = [f.name for f in fields(kind)]
    rows = json_schema()["$defs"][KINDS[kind].__name__]
    assert [*names, "schema_version", "ingested_at"] == list(sql_columns(kind)) == arrow_schema(kind).names
    assert sorted(names) == sorted(rows["properties"])
    assert sorted(f.name for f in fields(kind) if f.required) == sorted(rows["required"])


@pytest.mark.parametrize("kind", KINDS)
def test_replacements_lie_in_one_partition(kind: str) -> None:
    """Where the key has a time, the table is partitioned by it, so that merges find what replaces what."""
    times = [f.name for f in fields(kind) if f.base == "nanos" and f.name in KINDS[kind].KEY]
    assert partition_time(kind) == (times or ["observed_at"])[0]
    assert f"({quote(partition_time(kind))})" in create_table(kind, 90)


def test_telemetry_expires_and_facts_stay() -> None:
    """Readings have the time to live that was asked for; findings have none."""
    assert "toIntervalDay(7)" in create_table("gpu_reading", 7)
    assert "TTL" not in create_table("finding", 7)


def test_very_long_keeping_does_not_wrap() -> None:
    """A time to live that would pass the end of DateTime (2106) is cut, because it would wrap and delete all."""
    assert create_table("gpu_reading", 10**6) == create_table("gpu_reading", 20_000)


def test_names_cannot_carry_sql() -> None:
    """Only identifiers are quoted; anything else is refused."""
    with pytest.raises(ValueError, match="not a name"):
        quote("a` String) ENGINE = Null --")
