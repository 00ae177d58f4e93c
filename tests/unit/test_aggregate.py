"""Rows made of fast samples."""

from __future__ import annotations

from typing import Any

import pytest

from collectors.aggregate import Aggregate, columnar
from collectors.device import DeviceIdentity, DeviceSample, Tier
from passmuster.batch import Batch, decode, encode
from passmuster.records import DeviceState, Vendor

HEADER = ("c", "h", "b")
PCI = "0000:06:00.0"
PERIODS = {Tier.FAST: 1.0, Tier.MIDDLE: 10.0, Tier.SLOW: 60.0}


def identity(device_id: str = "s1", pci: str = PCI) -> DeviceIdentity:
    """One H200."""
    return DeviceIdentity(
        device_id=device_id, pci_address=pci, index=0, vendor=Vendor.NVIDIA, model="H200", values={}, missing={}
    )


def sample(values: dict[str, Any], state: DeviceState = DeviceState.OK, **missing: str) -> DeviceSample:
    """One answer of it."""
    return DeviceSample(pci_address=PCI, state=state, values=values, missing=missing)


@pytest.fixture
def aggregate() -> Aggregate:
    """It, known."""
    found = Aggregate(PERIODS, 600.0)
    found.identify([identity()])
    return found


def batch_of(aggregate: Aggregate, mono: float = 10.0) -> Batch:
    """Close the interval and take it over the wire, so that every column is of its type."""
    aggregate.close_interval(int(mono * 1e9), mono)
    return decode(encode(columnar(aggregate.take(), HEADER, 0)))


def test_last_least_and_most(aggregate: Aggregate) -> None:
    """A row holds the last value of the interval and its extremes."""
    for second, watts in enumerate((300.0, 700.0, 100.0, 400.0)):
        aggregate.add(Tier.FAST, [sample({"power_watts": watts})], second, float(second))
    columns = batch_of(aggregate, 4.0).columns
    found = tuple(columns[n] for n in ("power_watts", "power_min_watts", "power_max_watts", "samples"))
    assert (400.0, 100.0, 700.0, 4) == found


def test_extremes_begin_again(aggregate: Aggregate) -> None:
    """The next interval knows nothing of the last one's extremes."""
    aggregate.add(Tier.FAST, [sample({"power_watts": 700.0})], 1, 1.0)
    batch_of(aggregate, 2.0)
    aggregate.add(Tier.FAST, [sample({"power_watts": 100.0})], 3, 3.0)
    assert 100.0 == batch_of(aggregate, 4.0).columns["power_max_watts"]


def test_throttle_share_of_samples(aggregate: Aggregate) -> None:
    """A reason that was active in one of four samples has the share 0.25."""
    for second, share in enumerate((0.0, 1.0, 0.0, 0.0)):
        aggregate.add(Tier.FAST, [sample({"throttle_ratio": {"hw_thermal": share}})], second, float(second))
    assert {"hw_thermal": 0.25} == batch_of(aggregate, 4.0).columns["throttle_ratio"]


@pytest.mark.parametrize(
    ("first", "second", "epoch"),
    [
        ({"ecc_corrected_total": 5}, {"ecc_corrected_total": 6}, 0),
        ({"ecc_corrected_total": 5}, {"ecc_corrected_total": 0}, 1),
        ({"pcie_errors_total": {"replay": 5}}, {"pcie_errors_total": {"replay": 2}}, 1),
        (
            {"ecc_corrected_total": 5, "energy_joules_total": 9.0},
            {"ecc_corrected_total": 0, "energy_joules_total": 1.0},
            1,
        ),
        ({"ecc_corrected_lifetime_total": 5}, {"ecc_corrected_lifetime_total": 4}, 0),
    ],
)
def test_epoch_grows_when_a_counter_restarts(
    aggregate: Aggregate, first: dict[str, Any], second: dict[str, Any], epoch: int
) -> None:
    """A volatile counter that goes back begins one new epoch, however many went back with it."""
    aggregate.add(Tier.MIDDLE, [sample(first)], 1, 1.0)
    aggregate.add(Tier.MIDDLE, [sample(second)], 2, 2.0)
    assert epoch == batch_of(aggregate, 3.0).columns["epoch"]


def test_epoch_survives_a_gap(aggregate: Aggregate) -> None:
    """A counter that could not be read in between is compared with what it was before."""
    aggregate.add(Tier.FAST, [sample({"ecc_corrected_total": 5})], 1, 1.0)
    aggregate.add(Tier.FAST, [sample({}, DeviceState.UNREADABLE)], 2, 2.0)
    aggregate.add(Tier.FAST, [sample({"ecc_corrected_total": 0})], 3, 3.0)
    assert 1 == batch_of(aggregate, 4.0).columns["epoch"]


def test_null_is_not_the_last_value(aggregate: Aggregate) -> None:
    """A value that can no longer be read is null with its reason, in the last value and in the extremes."""
    aggregate.add(Tier.FAST, [sample({"power_watts": 700.0})], 1, 1.0)
    aggregate.add(Tier.FAST, [sample({}, power_watts="failed 999")], 2, 2.0)
    columns = batch_of(aggregate, 3.0).columns
    assert (None, None, {"power_watts": "failed 999"}) == (
        columns.get("power_watts"), columns.get("power_max_watts"), columns["missing"],
    )  # fmt: skip


def test_slow_values_are_carried_until_stale(aggregate: Aggregate) -> None:
    """A slow tier's value stands in every row until 2.5 periods passed without an answer."""
    aggregate.add(Tier.SLOW, [sample({"memory_total_bytes": 7})], 0, 0.0)
    assert 7 == batch_of(aggregate, 100.0).columns["memory_total_bytes"]
    columns = batch_of(aggregate, 151.0).columns
    assert (None, "stale") == (columns.get("memory_total_bytes"), columns["missing"]["memory_total_bytes"])


def test_hung_device_has_a_row_without_values(aggregate: Aggregate) -> None:
    """A device whose library hangs is in the telemetry as hung, with no value that looks alive."""
    aggregate.add(Tier.FAST, [sample({"power_watts": 700.0})], 1, 1.0)
    aggregate.mark([PCI], DeviceState.HUNG)
    columns = batch_of(aggregate, 3.0).columns
    assert ("hung", None) == (columns["state"], columns.get("power_watts"))


def test_not_finite_is_null(aggregate: Aggregate) -> None:
    """NaN from a driver is no value."""
    aggregate.add(Tier.FAST, [sample({"power_watts": float("nan")})], 1, 1.0)
    assert "power_watts" not in batch_of(aggregate, 3.0).columns


def test_ring_is_shipped_once_an_hour_and_class(aggregate: Aggregate) -> None:
    """The seconds before a fault leave the host once per device, class and hour, as instants."""
    for second in range(700):
        aggregate.add(Tier.FAST, [sample({"power_watts": float(second)})], second, float(second))
    rows = aggregate.before_fault("s1", "B", 700.0)
    assert (600, 100.0, 0.0) == (len(rows), rows[0]["power_watts"], rows[0]["interval_seconds"])
    shipped = [bool(aggregate.before_fault("s1", *ask)) for ask in (("B", 4000.0), ("T", 4000.0), ("B", 4300.0))]
    assert [False, True, True] == shipped


def test_several_ticks_are_one_batch(aggregate: Aggregate) -> None:
    """Three intervals leave as one batch; what is the same in all rows is written once."""
    for tick in range(3):
        aggregate.add(Tier.FAST, [sample({"power_watts": float(tick), "power_limit_watts": 700.0})], tick, float(tick))
        aggregate.close_interval(tick, float(tick))
    batch = columnar(aggregate.take(), HEADER, 4)
    assert (3, [0.0, 1.0, 2.0], 700.0, 4) == (
        batch.rows, batch.columns["power_watts"], batch.columns["power_limit_watts"], batch.seq,
    )  # fmt: skip
