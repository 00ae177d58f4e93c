"""The embedded store and its folder: owners, migrations, damage, a full disk, kill -9."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from passmuster import config
from passmuster.batch import Batch
from passmuster.chdb_store import ChdbStore
from passmuster.errors import StoreError
from passmuster.records import GpuReading

NOW = 1_800_000_000 * 10**9
SETTINGS = config.Store(keep_days=20_000)  # the engine deletes by the real clock

# What a child runs: it inserts batches for ever and says each number once it is acknowledged.
WRITER = """
import sys
from passmuster import config
from passmuster.batch import Batch
from passmuster.chdb_store import ChdbStore

now, rows = int(sys.argv[2]), 50
store = ChdbStore(sys.argv[1], config.Store(keep_days=20_000), lambda: now)
print("open", flush=True)
for seq in range(int(sys.argv[3]), 1_000_000):
    at = [now + seq * rows + i for i in range(rows)]
    columns = {"observed_at": at, "device_id": "d", "vendor": "amd", "model": "m", "pci_address": "p", "state": "ok"}
    store.insert([Batch("gpu_reading", 1, "c", "h", "b", seq, rows, columns)])
    print(seq, flush=True)
"""


def open_store(folder: Path) -> ChdbStore:
    """Open a store with a fixed clock."""
    return ChdbStore(folder, SETTINGS, lambda: NOW)


def batch(seq: int, rows: int = 50) -> Batch:
    """Return the batch that the child's writer sends under a number."""
    columns: dict[str, Any] = {"device_id": "d", "vendor": "amd", "model": "m", "pci_address": "p", "state": "ok"}
    columns["observed_at"] = [NOW + seq * rows + i for i in range(rows)]
    return Batch("gpu_reading", 1, "c", "h", "b", seq, rows, columns)


def run_select(store: ChdbStore, sql: str) -> list[dict[str, Any]]:
    """Run a statement of the test's own."""
    return list(store._submit(store._readers, store._query, "test", sql, {}).to_pylist())


def stored(store: ChdbStore) -> int:
    """Return how many readings there are, repeats replaced."""
    (row,) = run_select(store, "SELECT count() AS n FROM gpu_reading FINAL")
    return int(row["n"])


def next_line(child: subprocess.Popen[str], seconds: float = 60.0) -> str:
    """Return the child's next line; fail when none comes in time."""
    assert child.stdout is not None
    assert select.select([child.stdout], [], [], seconds)[0], "the child said nothing"
    return child.stdout.readline().strip()


def start_writer(folder: Path, first: int) -> subprocess.Popen[str]:
    """Start the child and wait until it has the store open."""
    command = [sys.executable, "-c", WRITER, str(folder), str(NOW), str(first)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert next_line(child) == "open"
    return child


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a running child that owns ``store`` in the test's folder."""
    child = start_writer(tmp_path / "store", 0)
    yield child
    child.kill()
    child.communicate()


def test_owner_is_named(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    """A folder that another process has is refused with that process's id."""
    with pytest.raises(StoreError, match=f"in use by process {writer.pid}; stop it"):
        open_store(tmp_path / "store")


def test_acknowledged_rows_survive_kill_9(tmp_path: Path) -> None:
    """After each kill every acknowledged batch is there, and sending all again changes nothing."""
    first = 0
    for _ in range(3):
        child = start_writer(tmp_path / "store", first)
        last = first
        for _ in range(4):
            last = int(next_line(child))
        child.kill()
        rest = child.communicate()[0].split()
        last = int(rest[-1]) if rest else last
        store = open_store(tmp_path / "store")
        try:
            times = run_select(store, "SELECT DISTINCT toUnixTimestamp64Nano(observed_at) AS at FROM gpu_reading FINAL")
            acknowledged = {NOW + n for n in range(50 * (last + 1))}
            assert acknowledged <= {row["at"] for row in times}
            store.insert([batch(seq) for seq in range(last + 2)])
            assert stored(store) == 50 * (last + 2)
        finally:
            store.close()
        first = last + 2


def test_stale_lock_is_no_owner(tmp_path: Path) -> None:
    """A status file that a killed process left behind does not keep the store shut."""
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "status").write_text("PID: 1\n")
    open_store(tmp_path / "store").close()


def test_older_schema_gains_columns(tmp_path: Path) -> None:
    """A store made with fewer columns opens; its rows read null or the default in the new ones, which take values."""
    store = open_store(tmp_path / "store")
    store.insert([batch(0, rows=1)])
    session = store._writer.submit(store._session).result()
    for table in ("gpu_reading", "gpu_reading_latest"):
        session.query(f"ALTER TABLE {table} DROP COLUMN power_watts, DROP COLUMN samples, DROP COLUMN links")
    store.close()
    store = open_store(tmp_path / "store")
    try:
        newer = batch(1, rows=1)
        store.insert([Batch(**{f: getattr(newer, f) for f in newer.__struct_fields__ if f != "columns"},
                            columns=newer.columns | {"power_watts": 5.0, "samples": 3})])  # fmt: skip
        rows = run_select(store, "SELECT power_watts, samples FROM gpu_reading FINAL ORDER BY observed_at")
    finally:
        store.close()
    assert rows == [{"power_watts": None, "samples": 0}, {"power_watts": 5.0, "samples": 3}]


def test_newer_store_is_refused(tmp_path: Path) -> None:
    """An older program does not touch what a newer one wrote."""
    store = open_store(tmp_path / "store")
    newer = GpuReading.VERSION + 1
    statement = f"INSERT INTO record_versions SELECT 'gpu_reading', {newer}, now64(9)"
    store._writer.submit(lambda: store._session().query(statement)).result()
    store.close()
    with pytest.raises(StoreError, match=f"newer passmuster .gpu_reading version {newer}.*upgrade"):
        open_store(tmp_path / "store")


def test_time_to_live_follows_the_configuration(tmp_path: Path) -> None:
    """Another keep_days at the next start is the table's time to live then."""
    open_store(tmp_path / "store").close()
    store = ChdbStore(tmp_path / "store", config.Store(keep_days=7), lambda: NOW)
    try:
        (row,) = run_select(store, "SELECT create_table_query AS ddl FROM system.tables WHERE name = 'gpu_reading'")
    finally:
        store.close()
    assert "toIntervalDay(7)" in row["ddl"]


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    """A file, or a folder with other things in it, is not taken for a store."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not a folder"):
        open_store(tmp_path / "file")
    with pytest.raises(StoreError, match="is not a folder"):
        open_store(tmp_path / "file" / "below")
    with pytest.raises(StoreError, match="neither empty nor a store"):
        open_store(tmp_path)


def test_damaged_table_is_one_sentence(tmp_path: Path) -> None:
    """A table definition that cannot be read stops the start with a sentence that names the folder."""
    folder = tmp_path / "store"
    open_store(folder).close()
    for definition in folder.glob("store/*/*/gpu_reading.sql"):
        definition.write_text("garbage")
    with pytest.raises(StoreError) as refused:
        open_store(folder)
    assert str(folder) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_closed_store_says_so(tmp_path: Path) -> None:
    """Closing twice is fine; what comes after is refused."""
    store = open_store(tmp_path / "store")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.query("findings_open", host="", limit=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a disk of a few megabytes, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_full_disk_keeps_what_was_stored(small_disk: Path) -> None:
    """A full disk is one sentence; what was acknowledged stays, and inserts go on when there is room again."""
    store = open_store(small_disk / "store")
    try:
        store.insert([batch(0)])
        with (small_disk / "filler").open("wb") as filler:
            left = os.statvfs(small_disk)
            os.posix_fallocate(filler.fileno(), 0, left.f_bavail * left.f_frsize)
        with pytest.raises(StoreError, match=r"the disk under .* is full; what was stored before is kept"):
            store.insert([batch(seq) for seq in range(1, 400)])
        assert stored(store) == 50
        (small_disk / "filler").unlink()
        store.insert([batch(1)])
        assert stored(store) == 100
    finally:
        store.close()
