"""Every page opens on a seeded store and shows what it must; and says so when there is nothing or it cannot be read."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from streamlit.testing.v1 import AppTest

from dashboards.current import set_house
from dashboards.running import Running
from dashboards.sources import SimulatedScheduler, SimulatedSource
from dashboards.up import simulation
from detectors.engine import Engine
from passmuster.batch import from_records
from passmuster.chdb_store import ChdbStore
from passmuster.config import Config
from passmuster.records import HostReading
from quarantine.ledger import Ledger
from quarantine.local_service import LocalService
from quarantine.policy import Policy

VIEWS = Path(__file__).parents[2] / "dashboards" / "views"
START = 1_796_000_000_000_000_000
SECOND = 1_000_000_000


class StandingClock(SimulatedSource):
    """A simulated fleet whose clock a test moves by hand."""

    ahead = 0

    def now(self) -> Any:
        """Return the time that the test has set."""
        return START + self.ahead


@pytest.fixture(scope="module")
def house(tmp_path_factory: Any) -> Any:
    """Ten minutes of four hosts with planted faults, judged and stored; no thread runs."""
    folder = tmp_path_factory.mktemp("house")
    config = simulation(Config())
    source = StandingClock(hosts=4, seed=1, speed=1.0, path=folder / "fleet.json", started_at=START)
    store = ChdbStore(folder / "store", config.store, clock=source.now)
    service = LocalService(
        Ledger(folder / "ledger.sqlite"), Policy.from_config(config.quarantine), SimulatedScheduler(source)
    )
    running = Running(
        config=config,
        source=source,
        store=store,
        engine=Engine(config),
        service=service,
        checkpoint=folder / "detectors.json",
    )
    for minute in range(1, 11):
        source.ahead = minute * 60 * SECOND
        running.pump(0.0)
    set_house(running)
    yield running
    set_house(None)
    service.close()
    store.close()


def page(name: Any) -> Any:
    """Run a page to its end and return it."""
    test = AppTest.from_file(str(VIEWS / f"{name}.py"), default_timeout=60).run()
    assert [] == [e.value for e in test.exception]
    return test


def test_a_finding_that_a_host_sends_is_a_dead_letter(house: Any) -> None:
    """Conclusions are made here: what a host says of another, or of itself, never reaches the page."""
    finding = house.engine.open_findings()[0]
    forged = from_records([replace(finding, host="victim", dedup_key="forged", observed_at=house.now())])
    reading = HostReading(cluster="simulated", host="honest", boot_id="b", observed_at=house.now())
    before = house.progress.dead_letters

    kept = house._acceptable([forged, from_records([reading])])

    assert ["host_reading"] == [b.kind for b in kept]
    assert before + 1 == house.progress.dead_letters
    assert b"never taken from a host" in (house._checkpoint.parent / "dead-letters.jsonl").read_bytes()
    house.progress.dead_letters = before


def test_what_is_wrong_now_shows_states_holds_and_findings(house: Any) -> None:
    """The first page counts the hosts by state and lists holds and findings as the service and the store have them."""
    test = page("wrong_now")

    shown = {m.label: int(m.value) for m in test.metric}
    held = {h.host for h in house.service.holds(house.now()) if h.state == "held"}
    assert len(held) == shown["hosts: held"] > 0
    assert 4 == sum(shown.values())
    assert any(s.value.startswith("Open findings (") for s in test.subheader)


def test_lag_and_a_failing_store_are_said_aloud(house: Any) -> None:
    """A page that shows old data as if it were news is worse than none."""
    before = replace(house.progress)
    house.progress.failed, house.progress.lag_seconds = "the disk is full", 0.0
    failing = page("wrong_now")
    house.progress.failed, house.progress.lag_seconds = "", 3_600.0
    behind = page("wrong_now")
    house.progress.failed, house.progress.lag_seconds = before.failed, before.lag_seconds

    assert ["Nothing is being stored: the disk is full"] == [e.value for e in failing.error]
    assert "60 min behind" in behind.error[0].value


def test_a_hosts_story_names_the_fault_and_the_hold(house: Any) -> None:
    """The story of a held host holds its fault, its finding and what was done."""
    test = page("host_story")

    happened = test.dataframe[-1].value
    assert {"fault", "finding opened", "hold placed"} <= set(happened["what"])
    assert any("What releases it" in m.value for m in test.markdown)


def test_failure_rates_stand_beside_their_exposure(house: Any) -> None:
    """Each rate has its failures, its GPU-days, and an interval around it."""
    test = page("failure_rates")

    table = test.dataframe[0].value
    seen = table[table["failures"] > 0]
    seen, unwatched = seen[seen["GPU-days"] > 0], seen[seen["GPU-days"] == 0]
    assert len(seen) > 0
    assert unwatched["per 1,000 GPU-days"].isna().all()
    assert ((seen["low"] < seen["per 1,000 GPU-days"]) & (seen["per 1,000 GPU-days"] < seen["high"])).all()
