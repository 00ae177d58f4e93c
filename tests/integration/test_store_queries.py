"""The queries of the pages, on a real embedded store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from passmuster import config
from passmuster.batch import decode_json, from_records, split_by_header
from passmuster.chdb_store import ChdbStore
from passmuster.errors import BadRecord, StoreError
from passmuster.failure_rates import failure_rates
from passmuster.records import (
    KINDS,
    Blame,
    CheckState,
    DeviceState,
    FaultClass,
    FaultEvent,
    Finding,
    GpuReading,
    Health,
    HoldEvent,
    HoldKind,
    HostReading,
    Inventory,
    Record,
    Severity,
    SubjectKind,
    Trust,
    Vendor,
)
from passmuster.store import query_names

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
NOW = 1_800_000_000 * SECOND
GOLDEN = Path(__file__).parent.parent / "data" / "golden"

clusters = (f"cluster-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChdbStore]:
    """Return one store for all tests here: each writes hosts or clusters of its own."""
    # The engine deletes by the real clock, whatever clock we give; keep long enough for any year.
    settings = config.Store(keep_days=20_000)
    opened = ChdbStore(tmp_path_factory.mktemp("store") / "store", settings, lambda: NOW)
    yield opened
    opened.close()


@pytest.fixture
def host() -> str:
    """Return a host that no other test writes."""
    return f"host-{next(clusters)}"


def put(store: ChdbStore, *records: Record) -> None:
    """Store records."""
    store.insert([from_records(group) for group in split_by_header(records)])


def select(store: ChdbStore, sql: str) -> list[dict[str, Any]]:
    """Run a statement of the test's own."""
    table = store._submit(store._readers, store._query, "test", sql, {})
    assert isinstance(table.num_rows, int)
    return list(table.to_pylist())


def reading(host: str, at: int = NOW, device: str = "gpu-0", **changes: Any) -> GpuReading:
    """Return a reading of 10 s of one device."""
    base: dict[str, Any] = {
        "cluster": "c",
        "host": host,
        "boot_id": "boot",
        "observed_at": at,
        "device_id": f"{host}/{device}",
        "vendor": Vendor.NVIDIA,
        "model": "H200",
        "pci_address": "0000:1b:00.0",
        "state": DeviceState.OK,
        "interval_seconds": 10.0,
    }
    return GpuReading(**base | changes)


def fault(host: str, at: int = NOW, code: str = "xid:48", **changes: Any) -> FaultEvent:
    """Return a root fault of a device."""
    base: dict[str, Any] = {
        "cluster": "c",
        "host": host,
        "boot_id": "boot",
        "observed_at": at,
        "device_id": f"{host}/gpu-0",
        "vendor": Vendor.NVIDIA,
        "model": "H200",
        "source": "kernel_log",
        "kind": "xid",
        "code": code,
        "fault_class": FaultClass.UNCONTAINED,
        "severity": Severity.CRITICAL,
        "blame": Blame.HARDWARE,
        "first_at": at,
        "last_at": at,
        "trust": Trust.KERNEL,
    }
    return FaultEvent(**base | changes)


def finding(host: str, at: int = NOW, **changes: Any) -> Finding:
    """Return an open finding."""
    base: dict[str, Any] = {
        "cluster": "c",
        "host": host,
        "boot_id": "boot",
        "observed_at": at,
        "dedup_key": f"d/x/{host}",
        "opened_at": NOW - 60 * SECOND,
        "last_seen_at": at,
        "detector": "d",
        "code": "xid.48",
        "subject_kind": SubjectKind.DEVICE,
        "subject_id": "gpu-0",
        "fault_class": FaultClass.UNCONTAINED,
        "severity": Severity.CRITICAL,
        "title": "uncontained memory error",
    }
    return Finding(**base | changes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_stored_whole(store: ChdbStore, kind: str) -> None:
    """What goes in comes out: every field of a full golden batch, for every kind."""
    golden = msgspec.json.decode((GOLDEN / kind / "v1.json").read_bytes())["full"]
    batch = decode_json(msgspec.json.encode(golden | {"cluster": next(clusters)}))
    store.insert([batch])
    order = "observed_at" if "observed_at" in batch.columns else "1"
    rows = select(store, f"SELECT * FROM `{kind}` FINAL WHERE cluster = '{batch.cluster}' ORDER BY `{order}`")
    assert batch.rows == len(rows)
    for i, row in enumerate(rows):
        for name, column in batch.columns.items():
            got = row[name]
            if name.endswith("_at"):
                got = got.value  # pandas' Timestamp, the only type that keeps nanoseconds
            elif isinstance(column[i], dict):
                got = dict(got)
            assert column[i] == got, name


def test_redelivery_changes_nothing(store: ChdbStore, host: str) -> None:
    """A batch that comes three times is there once."""
    for _ in range(3):
        put(store, reading(host), reading(host, NOW + 1))
    (row,) = store.query("presence", since_at=NOW - DAY, until_at=NOW + DAY, bucket_seconds=10 * 86_400, host=host)
    assert row["gpu_seconds"] == 20.0


def test_old_batch_does_not_hide_the_new_one(store: ChdbStore, host: str) -> None:
    """A finding that has cleared stays cleared when its opening is delivered again, later."""
    opened, cleared = finding(host), finding(host, NOW + SECOND, cleared_at=NOW + SECOND)
    put(store, opened)
    assert len(store.query("findings_open", host=host, limit=10)) == 1
    put(store, cleared)
    put(store, opened)
    assert store.query("findings_open", host=host, limit=10) == []
    (row,) = store.query("findings_recent", since_at=NOW, host=host, limit=10)
    assert row["cleared_at"] == NOW + SECOND


def test_latest_reading_is_the_newest_not_the_last_delivered(store: ChdbStore, host: str) -> None:
    """A late batch does not turn a device's latest reading back, and a value that became null is null."""
    put(store, reading(host, NOW - 20 * SECOND, power_watts=100.0))
    put(store, reading(host, NOW, state=DeviceState.LOST), reading(host, NOW - 10 * SECOND, power_watts=200.0))
    put(store, reading(host, NOW - 30 * SECOND, power_watts=300.0))
    (row,) = store.query("fleet_devices", since_at=NOW - DAY, now_at=NOW + 5 * SECOND, host=host)
    assert (row["state"], row["power_watts"], row["silent_seconds"]) == ("lost", None, 5.0)


def test_nulls_stay_null(store: ChdbStore, host: str) -> None:
    """A null is not 0, and a field with a default that was not sent has its default."""
    put(store, reading(host))
    (row,) = select(store, f"SELECT power_watts, ecc_enabled, partition, epoch FROM gpu_reading WHERE host = '{host}'")
    assert row == {"power_watts": None, "ecc_enabled": None, "partition": None, "epoch": 0}


def test_glance_counts_states_and_silence(store: ChdbStore, host: str) -> None:
    """Devices count by state; one whose reading is old counts as silent, whatever it said last."""
    model = f"model of {host}"
    put(
        store,
        reading(host, device="a", model=model, power_watts=100.0),
        reading(host, device="b", model=model, state=DeviceState.HUNG, power_watts=None),
        reading(host, NOW - 500 * SECOND, device="c", model=model, power_watts=900.0),
    )
    rows = store.query("fleet_glance", since_at=NOW - DAY, now_at=NOW, silent_after_seconds=120.0)
    (row,) = [r for r in rows if r["model"] == model]
    expected = {"hosts": 1, "devices": 3, "ok": 1, "hung": 1, "silent": 1, "lost": 0, "power_watts": 100.0}
    assert expected == {k: row[k] for k in expected}


def test_hosts_show_their_findings_and_silence(store: ChdbStore, host: str) -> None:
    """A host's row has its devices, its open findings by severity, and its age; the silent are listed."""
    put(store, reading(host, NOW - 500 * SECOND), finding(host))
    (row,) = [r for r in store.query("fleet_hosts", since_at=NOW - DAY, now_at=NOW) if r["host"] == host]
    assert (row["devices"], row["not_ok"], row["critical"], row["silent_seconds"]) == (1, 0, 1, 500.0)
    silent = store.query("silent_hosts", since_at=NOW - DAY, now_at=NOW, silent_after_seconds=120.0)
    assert host in {r["host"] for r in silent}


def test_host_reading_is_latest(store: ChdbStore, host: str) -> None:
    """The latest host reading comes with its maps as dicts."""
    header: dict[str, Any] = {"cluster": "c", "host": host, "boot_id": "boot"}
    put(
        store,
        HostReading(**header, observed_at=NOW, services={"nvidia-fabricmanager": "failed"}),
        HostReading(**header, observed_at=NOW - SECOND, services={"nvidia-fabricmanager": "active"}),
    )
    (row,) = store.query("host_readings_latest", since_at=NOW - DAY, host=host)
    assert row["services"] == {"nvidia-fabricmanager": "failed"}


def test_story_is_one_axis(store: ChdbStore, host: str) -> None:
    """Faults, findings, holds, checks and devices stand in one order of time, newest first, and only this host's."""
    header: dict[str, Any] = {"cluster": "c", "host": host, "boot_id": "boot"}
    at = [NOW - n * SECOND for n in range(6)]
    put(
        store,
        Inventory(**header, observed_at=at[5], device_id=f"{host}/gpu-0", valid_from_at=at[5], vendor=Vendor.AMD),
        fault(host, at[4]),
        finding(host, at[3], opened_at=at[3], cleared_at=at[0]),
        HoldEvent(**header, observed_at=at[2], event_id=host, hold_id="h", kind=HoldKind.PLACED, actor="policy"),
        CheckState(
            **header,
            observed_at=at[1],
            subject_kind=SubjectKind.HOST,
            subject_id=host,
            check="links",
            state=Health.DEGRADED,
            since_at=at[1],
        ),
        fault(f"not {host}"),
    )
    story = store.query("host_story", cluster="c", host=host, since_at=NOW - DAY, until_at=NOW + 1, limit=100)
    expected = ["finding cleared", "check degraded", "hold placed", "finding opened", "fault", "device seen"]
    assert expected == [row["what"] for row in story]
    assert at == [row["at"] for row in story]
    assert len(store.query("host_story", cluster="c", host=host, since_at=at[2], until_at=NOW, limit=100)) == 2


def test_series_is_bucketed(store: ChdbStore, host: str) -> None:
    """Readings fall into buckets by time; each bucket has its mean, its extremes and its bad readings."""
    start = NOW - NOW % (60 * SECOND) - 120 * SECOND
    put(
        store,
        *(reading(host, start + n * 10 * SECOND, power_watts=100.0 + n) for n in range(12)),
        reading(host, start + 5 * SECOND, state=DeviceState.UNREADABLE),
    )
    rows = store.query("device_series", cluster="c", host=host, since_at=start, until_at=NOW, bucket_seconds=60)
    assert [(start, 102.5, 105.0, 1), (start + 60 * SECOND, 108.5, 111.0, 0)] == [
        (r["at"], r["power_watts"], r["power_max_watts"], r["not_ok"]) for r in rows
    ]


def test_failures_are_counted_once(store: ChdbStore, host: str) -> None:
    """A storm is one failure, what comes after the window is another; secondary, user-written, blameless are none."""
    model = f"model of {host}"
    hour = 3_600 * SECOND
    start = NOW - 100 * DAY
    put(
        store,
        # A storm: lines of one code within the window of each other, though the last is far from the first.
        *(fault(host, start + n * hour // 2, model=model, count=10) for n in range(8)),
        # A long row covers a short one that follows; what comes an hour after the long one's end is new.
        fault(host, start + 10 * DAY, model=model, last_at=start + 10 * DAY + 5 * hour),
        fault(host, start + 10 * DAY + hour, model=model),
        fault(host, start + 10 * DAY + 7 * hour, model=model),
        # Another device of the same host fails on its own account.
        fault(host, start, model=model, device_id=f"{host}/gpu-1"),
        fault(host, start, "xid:45", model=model, secondary=True),
        fault(host, start, "xid:79", model=model, trust=Trust.USER),
        fault(host, start, "xid:43", model=model, blame=Blame.NONE),
    )
    rows = store.query("fault_counts", since_at=start - DAY, until_at=NOW, repeat_seconds=3600.0)
    (row,) = [r for r in rows if r["model"] == model]
    names = ("fault_class", "failures", "events", "devices", "codes")
    assert tuple(row[k] for k in names) == ("U", 4, 84, 2, ["xid:48"])


def test_fault_without_a_model_takes_the_inventory_s(store: ChdbStore, host: str) -> None:
    """The kernel log knows a PCI address only; the inventory says which device and model that is."""
    header: dict[str, Any] = {"cluster": "c", "host": host, "boot_id": "boot", "observed_at": NOW}
    pci = "0000:3b:00.0"
    put(
        store,
        Inventory(**header, device_id=f"serial {host}", valid_from_at=1 * DAY + NOW - 2 * DAY, vendor=Vendor.AMD,
                  model=f"model of {host}", pci_address=pci),
        fault(host, NOW - 200 * DAY, vendor=Vendor.AMD, model="", device_id=pci, pci_address=pci),
    )  # fmt: skip
    rows = store.query("fault_counts", since_at=NOW - 201 * DAY, until_at=NOW - 199 * DAY, repeat_seconds=0.0)
    assert [("amd", f"model of {host}", 1)] == [(r["vendor"], r["model"], r["failures"]) for r in rows]


def test_rate_is_failures_over_presence(store: ChdbStore, host: str) -> None:
    """Exposure is what readings stand for: unknown states and what nobody watched are none, repeats count once."""
    model = f"model of {host}"
    start = NOW - 50 * DAY
    watched = [reading(host, start + n * DAY // 2, model=model, interval_seconds=43_200.0) for n in range(4)]
    unknown = reading(host, start + 3 * DAY, model=model, interval_seconds=43_200.0, state=DeviceState.UNKNOWN)
    put(store, *watched, unknown, fault(host, start, model=model))
    put(store, *watched)
    rates = failure_rates(store, start, start + 4 * DAY)
    (rate,) = [r for r in rates if r.model == model]
    assert (rate.gpu_days, rate.failures, rate.rate) == (2.0, 1, 500.0)
    assert pytest.approx((rate.low, rate.high), rel=1e-3) == (0.02532 * 500, 5.57164 * 500)


@pytest.mark.parametrize("text", ["'", "\\", "\\N", "a\tb\nc\r\0", "' OR 1=1 --", "{host:String}", "\U0001f525", ""])
def test_text_finds_itself(store: ChdbStore, text: str) -> None:
    """A host of any name is found by its name, and never by an expression in it."""
    name = f"{text} {next(clusters)}"
    put(store, finding(name))
    assert [name] == [row["host"] for row in store.query("findings_open", host=name, limit=10)]


def test_broken_clock_is_refused_and_nothing_stored(store: ChdbStore, host: str) -> None:
    """A batch of the far future stops the whole insert before anything is written."""
    bad = from_records([reading(f"bad {host}", NOW + 10 * DAY)])
    with pytest.raises(BadRecord, match="check that host's clock"):
        store.insert([from_records([reading(host)]), bad])
    assert store.query("fleet_devices", since_at=0, now_at=NOW, host=host) == []


def test_slow_query_is_stopped(store: ChdbStore) -> None:
    """A query that takes too long, or too much memory, is one sentence that names the setting."""
    with pytest.raises(StoreError, match=r"store\.query_seconds"):
        select(store, "SELECT sum(sipHash64(number)) FROM numbers(1000000000000) SETTINGS max_execution_time = 0.2")
    with pytest.raises(StoreError, match=r"store\.query_memory_bytes"):
        select(store, "SELECT groupArray(number) FROM numbers(100000000) SETTINGS max_memory_usage = 10000000")


def test_queries_cannot_write(store: ChdbStore) -> None:
    """Even a mistake in one of our files could not delete anything."""
    with pytest.raises(StoreError, match="readonly"):
        select(store, "TRUNCATE TABLE gpu_reading")


def test_every_query_was_tried() -> None:
    """Each SQL file is run by a test of this folder."""
    text = "".join(p.read_text("utf-8") for p in Path(__file__).parent.glob("test_store_*.py"))
    text += (Path(__file__).parent.parent.parent / "passmuster" / "failure_rates.py").read_text("utf-8")
    assert [name for name in query_names() if f'"{name}"' not in text] == []


def test_recent_lists(store: ChdbStore, host: str) -> None:
    """Faults, holds, checks, devices and lag of a host are listed with the columns that pages show."""
    header: dict[str, Any] = {"cluster": "c", "host": host, "boot_id": "boot", "observed_at": NOW}
    check: dict[str, Any] = {"subject_kind": SubjectKind.HOST, "subject_id": host, "check": "links"}
    put(
        store,
        fault(host, text="NVRM: Xid"),
        HoldEvent(**header, event_id=host, hold_id="h", kind=HoldKind.PLACED, actor="policy", evidence={"xid": "48"}),
        CheckState(**header, **check, state=Health.DEGRADED, since_at=NOW - SECOND),
        CheckState(**header, **check, state=Health.HEALTHY, since_at=NOW),
        Inventory(**header, device_id=f"{host}/a", valid_from_at=NOW - SECOND, valid_until_at=NOW, vendor=Vendor.AMD),
        Inventory(**header, device_id=f"{host}/b", valid_from_at=NOW, vendor=Vendor.AMD, rack="r7"),
    )
    assert [r["text"] for r in store.query("faults_recent", since_at=NOW, host=host, limit=5)] == ["NVRM: Xid"]
    assert [r["evidence"] for r in store.query("hold_events", since_at=NOW, host=host, limit=5)] == [{"xid": "48"}]
    assert [r["state"] for r in store.query("checks_latest", host=host)] == ["healthy"]
    assert [r["rack"] for r in store.query("inventory_now", host=host)] == ["r7"]
    assert "fault_event" in {r["kind"] for r in store.query("lag", since_at=NOW - DAY)}
