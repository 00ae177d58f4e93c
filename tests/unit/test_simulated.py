from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from collectors.simulated import SimulatedFleet
from collectors.simulated_faults import KINDS, FaultKind
from collectors.simulated_models import MODELS
from passmuster.batch import Batch, decode, encode, to_records
from passmuster.errors import UserError
from passmuster.records import FaultEvent, GpuReading, JobOutcome, JobRun, Record, Vendor

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND


def small(**options: Any) -> SimulatedFleet:
    """One host of each model, two devices each, no faults."""
    return SimulatedFleet(**{"hosts": 4, "gpus_per_host": 2, "start_at": START, "faults": False} | options)


def of_kind(batches: list[Batch], record: type[Record]) -> list[Any]:
    """Rows of one kind as records."""
    return [row for batch in batches if batch.kind == record.KIND for row in to_records(batch)]


def run(fleet: SimulatedFleet, seconds: float) -> list[Batch]:
    """What the fleet ships from where it is until so many seconds after its start."""
    return list(fleet.batches(START + int(seconds * SECOND)))


def host_of(fleet: SimulatedFleet, vendor: Vendor) -> str:
    """The first host of a vendor."""
    return next(info.host for info in fleet.hosts() if info.model.vendor is vendor)


def test_same_seed_gives_the_same_batches() -> None:
    """The fleet follows from its seed alone."""
    assert run(small(faults=True), 200) == run(small(faults=True), 200)


def test_another_seed_gives_another_fleet() -> None:
    """Two seeds have no device in common."""
    ids = [{d.device_id for info in small(seed=seed).hosts() for d in info.devices} for seed in (1, 2)]
    assert set() == ids[0] & ids[1]


def test_how_often_it_is_asked_changes_nothing() -> None:
    """Asking in many small steps gives what one large step gives."""
    stepwise = small(faults=True)
    steps = [batch for seconds in range(0, 201, 7) for batch in run(stepwise, seconds)]
    assert run(small(faults=True), 196) == steps


def test_a_second_start_goes_on_where_the_first_ended() -> None:
    """After `skip_to` the batches after that time are those of an uninterrupted run."""
    whole = small(faults=True)
    run(whole, 300)
    resumed = small(faults=True)
    resumed.skip_to(START + 300 * SECOND)
    assert run(whole, 400) == run(resumed, 400)


def test_every_batch_is_valid_on_the_wire() -> None:
    """What the fleet ships survives encoding and validation unchanged."""
    batches = run(SimulatedFleet(hosts=8, gpus_per_host=1, start_at=START, fault_gap_seconds=15.0), 250)
    assert batches == [decode(encode(batch)) for batch in batches]


def test_hosts_ship_in_order_of_time_and_without_gaps() -> None:
    """Per host and kind, sequence numbers count up and times never fall."""
    last: dict[tuple[str, str, str], tuple[int, int]] = {}
    for batch in run(small(), 300):
        key = (batch.host, batch.boot_id, batch.kind)
        at = batch.columns["observed_at"]
        first = at[0] if isinstance(at, list) else at
        seq, before = last.get(key, (-1, 0))
        assert (seq + 1, True) == (batch.seq, first >= before)
        last[key] = (batch.seq, first)


def test_the_smallest_mixed_fleet_has_every_model() -> None:
    """Four hosts show all four products."""
    assert {m.name for m in MODELS} == {info.model.name for info in small().hosts()}


def test_readings_come_every_ten_seconds_and_leave_every_thirty() -> None:
    """One row per device and ten seconds; a shipment holds three of them."""
    batches = run(small(), 300)
    shipped = [b.rows for b in batches if b.kind == GpuReading.KIND and b.host == batches[0].host]
    assert [6] * (len(shipped) - 1) == shipped[1:]
    rows: dict[str, list[int]] = defaultdict(list)
    for row in of_kind(batches, GpuReading):
        rows[row.device_id].append(row.observed_at)
    assert {10 * SECOND} == {b - a for times in rows.values() for a, b in pairwise(times)}


def test_every_null_of_a_healthy_device_has_its_reason() -> None:
    """A field without a value stands in `missing`, and none that has one does."""
    for row in of_kind(run(small(), 60), GpuReading):
        null = {name for name in GpuReading.__struct_fields__ if getattr(row, name) is None and name != "partition"}
        assert null == set(row.missing)


def test_a_clean_fleet_is_clean() -> None:
    """Without faults there are no events, no lost devices, no throttling by heat and no uncorrected errors."""
    batches = run(small(gpus_per_host=1), 500)
    assert of_kind(batches, FaultEvent) == []
    for row in of_kind(batches, GpuReading):
        heat = {k: v for k, v in row.throttle_ratio.items() if v and k not in ("idle", "power_cap", "ppt")}
        assert (row.state, heat, row.ecc_uncorrected_total) == ("ok", {}, 0)
        assert row.power_watts <= row.power_limit_watts


def test_counters_of_a_boot_never_fall() -> None:
    """Energy, PCIe errors and corrected errors only grow, whatever the load does."""
    before: dict[str, tuple[float, int, int]] = {}
    for row in of_kind(run(small(gpus_per_host=1), 500), GpuReading):
        now = (row.energy_joules_total, row.ecc_corrected_total, sum(row.pcie_errors_total.values()))
        was = before.get(row.device_id, (0, 0, 0))
        assert all(a <= b for a, b in zip(was, now, strict=True))
        before[row.device_id] = now


def by_host(batches: list[Batch]) -> dict[str, list[Batch]]:
    """Batches of each host."""
    found: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches:
        found[batch.host].append(batch)
    return found


@pytest.fixture(scope="module")
def unharmed() -> dict[str, list[Batch]]:
    """What a fleet without faults ships."""
    fleet = small(hosts=8, gpus_per_host=1)
    fleet.skip_to(START + 90 * SECOND)
    return by_host(run(fleet, 150))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_planted_fault_is_in_the_data(kind: FaultKind, unharmed: dict[str, list[Batch]]) -> None:
    """Each kind of fault changes what its hosts ship, against the same fleet without it, and nothing else."""
    fleet = small(hosts=8, gpus_per_host=1)
    fleet.skip_to(START + 90 * SECOND)
    fault = fleet.plant(kind.name, host_of(fleet, kind.vendors[0]), START + 100 * SECOND)
    harmed = by_host(run(fleet, 150))
    changed = {host for host in unharmed if harmed[host] != unharmed[host]}
    # Nobody believes the forged line, so nothing may come of it.
    assert changed == (set() if kind.name == "forged_line" else set(fault.hosts))


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.AMD])
def test_one_device_can_have_every_fault(vendor: Vendor) -> None:
    """Faults that pile up on a device, in either order, still make valid batches."""
    for kinds in (KINDS, KINDS[::-1]):
        fleet = small(gpus_per_host=1)
        for second, kind in enumerate(kinds):
            if vendor in kind.vendors and not kind.silent:
                fleet.plant(kind.name, host_of(fleet, vendor), START + (60 + second) * SECOND)
        batches = run(fleet, 160)
        assert batches == [decode(encode(batch)) for batch in batches]


def test_kernel_log_lines_go_through_the_classifier() -> None:
    """An XID 79 line becomes the event that the agent would make of it."""
    fleet = small()
    host = host_of(fleet, Vendor.NVIDIA)
    fault = fleet.plant("device_lost", host, START + 100 * SECOND)
    event = next(e for e in of_kind(run(fleet, 110), FaultEvent) if e.code == "xid:79")
    assert (fault.device_id, fault.at, "B") == (event.device_id, event.first_at, event.fault_class)


def test_a_lost_device_stays_lost_until_it_is_repaired() -> None:
    """It answers nothing until the repair; then the host has booted anew and the device is back."""
    fleet = small()
    host = host_of(fleet, Vendor.NVIDIA)
    fault = fleet.plant("device_lost", host, START + 100 * SECOND)
    lost = [
        r for r in of_kind(run(fleet, 600), GpuReading) if r.device_id == fault.device_id and r.observed_at > fault.at
    ]
    fleet.repair(host)
    back = [r for r in of_kind(run(fleet, 900), GpuReading) if r.device_id == fault.device_id]
    assert ({"lost"}, {None}) == ({r.state for r in lost}, {r.power_watts for r in lost})
    assert {"ok"} == {r.state for r in back}
    assert {lost[0].boot_id}.isdisjoint({r.boot_id for r in back})


def test_a_held_host_keeps_its_fault_until_it_is_released() -> None:
    """Long after its planned end the device is still lost; the release finds it repaired."""
    fleet = small(hosts=1, gpus_per_host=1)
    host = fleet.hosts()[0].host
    fault = fleet.plant("device_lost", host, START + 100 * SECOND)
    fleet.set_scheduler_state(host, "drained", START + 130 * SECOND)
    fleet.skip_to(fault.until_at + 600 * SECOND)
    held = list(fleet.batches(fault.until_at + 660 * SECOND))
    fleet.set_scheduler_state(host, "in_service")
    released = list(fleet.batches(fault.until_at + 900 * SECOND))
    assert ({"lost"}, {"ok"}) == tuple(
        {row.state for row in of_kind(batches, GpuReading)} for batches in (held, released)
    )


def test_a_drained_host_gets_no_job_and_a_released_one_does() -> None:
    """Draining stops the job; nothing runs until the host is back in service."""
    fleet = small(hosts=1, gpus_per_host=1)
    host = fleet.hosts()[0].host
    run(fleet, 200)
    fleet.set_scheduler_state(host, "drained")
    drained = [b for b in run(fleet, 1500) if b.host == host]
    assert (
        [o.outcome for o in of_kind(drained, JobOutcome)],
        of_kind(drained, JobRun),
    ) == (["cancelled"], [])
    assert {0} == {r.processes for r in of_kind(drained, GpuReading)[3:]}
    fleet.set_scheduler_state(host, "in_service")
    assert len(of_kind([b for b in run(fleet, 2200) if b.host == host], JobRun)) >= 1


def test_the_schedule_is_told_beforehand_and_kept() -> None:
    """What is announced is what strikes: every event of the fleet stands near a planted fault of its host."""
    fleet = SimulatedFleet(hosts=8, gpus_per_host=1, start_at=START, fault_gap_seconds=30.0)
    announced = fleet.schedule(START + 400 * SECOND)
    events = of_kind(run(fleet, 400), FaultEvent)
    assert events
    for event in events:
        assert any(event.host in f.hosts and f.at <= event.first_at <= f.until_at for f in announced)
    assert announced == fleet.schedule(START + 400 * SECOND)


def test_the_first_fault_strikes_within_twenty_seconds() -> None:
    """A newcomer sees a fault that is worth a hold at once."""
    fault = SimulatedFleet(hosts=64, start_at=START).schedule(START + 20 * SECOND)[0]
    assert fault.fault_class == "B"


@pytest.mark.parametrize(
    "mistake",
    [
        lambda fleet: fleet.plant("gremlin", fleet.hosts()[0].host, START),
        lambda fleet: fleet.repair("nowhere"),
        lambda fleet: fleet.set_scheduler_state(fleet.hosts()[0].host, "asleep"),
    ],
)
def test_unknown_names_are_refused(mistake: Callable[[SimulatedFleet], object]) -> None:
    """A fault, host or state that does not exist is a clear error."""
    with pytest.raises(UserError):
        mistake(small())
