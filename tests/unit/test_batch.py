"""The batch: what goes in comes out, and nothing hostile gets through or breaks it."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from passmuster.batch import MAX_BYTES, Batch, decode, decode_json, encode, from_records, split_by_header, to_records
from passmuster.errors import BadRecord, FutureVersion
from passmuster.records import GpuReading, Record, Vendor

ENVELOPE: dict[str, Any] = {
    "kind": "gpu_reading",
    "version": 1,
    "cluster": "c",
    "host": "h",
    "boot_id": "b",
    "seq": 0,
    "rows": 1,
    "columns": {"observed_at": 1, "device_id": "d", "vendor": "amd", "model": "m", "pci_address": "p"},
}
NO_SURROGATES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def reading(**changes: Any) -> GpuReading:
    """Return a reading with the required fields and `changes`."""
    required = {"cluster": "c", "host": "h", "boot_id": "b", "observed_at": 1, "device_id": "d", "model": "m"}
    return GpuReading(**{**required, "vendor": Vendor.AMD, "pci_address": "p", **changes})


readings = st.builds(
    reading,
    observed_at=st.integers(0, 2**63 - 1),
    device_id=NO_SURROGATES,
    power_watts=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    activity_compute_ratio=st.none() | st.floats(0, 1),
    ecc_corrected_total=st.none() | st.integers(0, 2**63 - 1),
    row_remap_failed=st.none() | st.booleans(),
    links=st.none() | st.dictionaries(NO_SURROGATES, st.integers(0, 1), max_size=3),
    missing=st.none() | st.dictionaries(NO_SURROGATES, NO_SURROGATES, max_size=3),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(readings, min_size=1, max_size=5))
def test_round_trip(rows: list[GpuReading]) -> None:
    """Records to the wire and back are the same records."""
    assert list[Record](rows) == to_records(decode(encode(from_records(rows, seq=3))))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    """Noise is refused with our own error, plain or compressed."""
    for attempt in (data, zstandard.compress(data)):
        with pytest.raises(BadRecord):
            decode(attempt)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_damaged_frame_is_right_or_refused(place: int, noise: bytes) -> None:
    """A frame damaged anywhere decodes to a batch or is refused; no other error comes out."""
    frame = bytearray(encode(from_records([reading()])))
    place %= len(frame)
    frame[place : place + len(noise)] = noise
    with contextlib.suppress(BadRecord):
        assert isinstance(decode(bytes(frame)), Batch)


def test_not_finite_becomes_null() -> None:
    """NaN and infinities travel as null, alone and as an entry of a map."""
    rows = [reading(power_watts=math.nan, temperature_hbm_celsius={"0": math.inf, "1": 50.0}), reading(power_watts=1.0)]
    batch = decode(encode(from_records(rows)))
    assert batch.columns["power_watts"] == [None, 1.0]
    assert batch.columns["temperature_hbm_celsius"] == [{"1": 50.0}, None]


def test_same_value_is_a_scalar_and_null_is_absent() -> None:
    """Columns that hold one value are sent once, columns that are null are not sent."""
    batch = from_records([reading(power_watts=1.0), reading(power_watts=1.0)])
    assert batch.columns["power_watts"] == 1.0
    assert "energy_joules_total" not in batch.columns


def test_mixed_headers_are_a_mistake() -> None:
    """A batch of two hosts cannot be built; split_by_header makes two of them."""
    rows = [reading(), reading(host="other"), reading()]
    with pytest.raises(ValueError, match="one cluster, host and boot"):
        from_records(rows)
    assert [len(group) for group in split_by_header(rows)] == [2, 1]


def changed(**changes: Any) -> bytes:
    """Return the JSON of an envelope with changes."""
    return json.dumps(ENVELOPE | changes).encode()


def columns(**changes: Any) -> bytes:
    """Return the JSON of an envelope with changed columns."""
    return changed(columns=ENVELOPE["columns"] | changes)


def test_the_plain_envelope_is_right() -> None:
    """What the refusals below change is itself taken."""
    assert Batch(**ENVELOPE) == decode_json(changed())


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        pytest.param(b"", "not valid", id="empty"),
        pytest.param(changed()[:-20], "not valid", id="cut in half"),
        pytest.param(changed(kind="x" * 65), "not valid", id="long kind"),
        pytest.param(changed(kind="nothing"), "unknown record kind", id="unknown kind"),
        pytest.param(changed(extra=1), "not valid", id="unknown envelope field"),
        pytest.param(changed(rows=-1), "not valid", id="negative rows"),
        pytest.param(changed(rows=10**9), "not valid", id="too many rows"),
        pytest.param(changed(seq=2**63), "not valid", id="seq over 64 bits"),
        pytest.param(changed(version=0), "not valid", id="version zero"),
        pytest.param(changed(host="h" * 257), "not valid", id="long host"),
        pytest.param(changed(columns=[1]), "gpu_reading", id="columns not an object"),
        pytest.param(changed(columns={}), "required column", id="required column missing"),
        pytest.param(columns(bogus=1), "bogus", id="unknown column"),
        pytest.param(columns(power_watts="hot"), "power_watts", id="wrong type"),
        pytest.param(columns(power_watts=[1.0, 2.0]), "2 values for 1 rows", id="wrong length"),
        pytest.param(columns(device_id=[None]), "device_id", id="required value null"),
        pytest.param(columns(vendor="intel"), "vendor", id="unknown word of an enum"),
        pytest.param(columns(observed_at=2**63), "observed_at", id="time over 64 bits"),
        pytest.param(columns(observed_at=-1), "observed_at", id="time before 1970"),
        pytest.param(columns(activity_compute_ratio=1.5), "activity_compute_ratio", id="ratio over 1"),
        pytest.param(columns(memory_total_bytes=10**40), "memory_total_bytes", id="huge integer"),
        pytest.param(columns(links={"0": 1.5}), "links", id="wrong type in a map"),
        pytest.param(columns(missing={"k" * 65: "v"}), "missing", id="long map key"),
        pytest.param(columns(missing={str(i): "" for i in range(513)}), "missing", id="too many map entries"),
        pytest.param(columns(model="m" * 129), "model", id="long word"),
        pytest.param(changed().replace(b'"m"', b'"\\ud800"'), "", id="lone surrogate"),
        pytest.param(changed().replace(b'"m"', b'"\xff"'), "", id="not UTF-8"),
        pytest.param(b"[" * 100_000, "not valid", id="deep nesting"),
        pytest.param(changed().replace(b'"m"', b"[" * 100_000), "", id="deep nesting in a column"),
    ],
)
def test_hostile_envelope_is_refused(raw: bytes, words: str) -> None:
    """Each is refused with one sentence that names the trouble."""
    with pytest.raises(BadRecord) as refused:
        decode_json(raw)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_duplicate_keys_keep_the_last() -> None:
    """A column that comes twice is one column: its last value."""
    raw = changed().replace(b'"model": "m"', b'"model": "x", "model": "m"')
    assert Batch(**ENVELOPE) == decode_json(raw)


def test_future_version_is_told_apart() -> None:
    """A newer record version is no bad record of its host: the bytes are worth keeping."""
    with pytest.raises(FutureVersion, match="upgrade"):
        decode_json(changed(version=9))


def test_bomb_is_refused_by_its_size() -> None:
    """A frame that says that it unpacks to more than the bound is not unpacked."""
    with pytest.raises(BadRecord, match="too large"):
        decode(zstandard.compress(b" " * (MAX_BYTES + 1)))


def test_bomb_without_a_size_is_refused() -> None:
    """A frame that hides its size is refused as well."""
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(msgspec.json.encode(ENVELOPE))
    with pytest.raises(BadRecord, match="unknown or too large"):
        decode(hidden)


@pytest.mark.parametrize("more", ["garbage", "itself"])
def test_what_follows_the_frame_is_refused(more: Any) -> None:
    """A batch is one frame: a second one behind it would be lost without a word."""
    whole = encode(Batch("host_reading", 1, "c", "h", "b", 0, 1, {"observed_at": 1}))

    with pytest.raises(BadRecord, match="not a zstd frame"):
        decode(whole + (whole if more == "itself" else b"garbage"))
