"""`muster up` as a newcomer meets it: a planted fault becomes a finding, a hold and a story, in a browser."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.doubles.build import nvml_environment

TESTS = Path(__file__).parents[1]


def text_of(browser: Any, url: Any, *words: str) -> Any:
    """Open a page and return its text once it shows all the words."""
    browser.get(url)
    body = ""

    def shows(driver: Any) -> Any:
        nonlocal body
        body = driver.find_element(By.TAG_NAME, "body").text
        return all(word in body for word in words)

    WebDriverWait(browser, 60, ignored_exceptions=[Exception]).until(
        shows, message=f"{url} does not show {words}; it shows: {body[:500]}"
    )
    return body


def test_a_planted_fault_becomes_a_finding_and_a_hold(house: Any) -> None:
    """The whole path: simulated device, batch, detector, finding, decision, ledger."""
    findings = house.until("/api/v1/findings", lambda f: any(x["severity"] in ("critical", "error") for x in f))
    holds = house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))

    held = next(h for h in holds if h["state"] == "held")
    assert held["evidence"]
    assert findings[0]["next_step"]


def test_the_browser_shows_finding_hold_and_story(house: Any, browser: Any) -> None:
    """What is stored is what a person sees."""
    holds = house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))
    host = next(h for h in holds if h["state"] == "held")["host"]

    text_of(browser, house.url, "What is wrong now", "Holds (", "Open findings (", "hosts: held")
    story = text_of(browser, f"{house.url}/host_story?host={host}", "One host's story", "What happened (", "Hold:")

    assert host in story


def test_the_browser_shows_failure_rates_with_exposure(house: Any, browser: Any) -> None:
    """A rate stands beside what it was counted over."""
    house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))

    text_of(browser, f"{house.url}/failure_rates", "How often things fail", "GPU-days watched", "exact Poisson")


def test_metrics_are_served_beside_the_pages(house: Any) -> None:
    """One port serves pages, API and /metrics."""
    metrics = house.get("/metrics")

    assert "passmuster_store_up 1.0" in metrics
    assert 'passmuster_findings_open{severity="critical"}' in metrics


def test_a_foreign_host_header_is_refused(house: Any) -> None:
    """A page elsewhere cannot read the fleet by pointing its name at loopback."""
    request = urllib.request.Request(house.url + "/api/v1/holds", headers={"Host": "evil.example"})

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)

    assert 400 == caught.value.code
    caught.value.close()


def test_a_second_owner_of_the_folder_is_told_the_pid(house: Any) -> None:
    """The store's folder belongs to one process; the second start names it."""
    data = house.log.parent / "data"
    port = str(house.port % 60_000 + 1_024)
    argv = [sys.executable, "-m", "passmuster", "up", "--simulate", "8", "--port", port, "--data-dir", str(data)]

    second = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert second.returncode not in (0, 1)
    assert str(house.process.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_one_sentence(house: Any, tmp_path: Any) -> None:
    """The port is tried before anything else is started."""
    argv = [sys.executable, "-m", "passmuster", "up", "--simulate", "2", "--port", str(house.port)]

    second = subprocess.run(
        [*argv, "--data-dir", str(tmp_path / "d")], capture_output=True, text=True, timeout=60, check=False
    )

    assert 64 == second.returncode
    assert f"cannot listen on 127.0.0.1:{house.port}" in second.stderr
    assert not (tmp_path / "d").exists()


def test_a_machine_with_gpus_shows_its_own_devices(start: Any, tmp_path: Any) -> None:
    """Without --simulate the agent reads this machine's devices; here the real bindings on the compiled double."""
    scenario = tmp_path / "scenario"
    shutil.copy(TESTS / "data" / "scenarios" / "h200_x8.txt", scenario)
    environ = {"PASSMUSTER_AGENT__NVIDIA": "on", "PASSMUSTER_AGENT__SHIP_SECONDS": "10", **nvml_environment(scenario)}

    own = start(tmp_path, environ=environ)
    try:
        own.until("/api/v1/health", lambda h: h["source"] == "this machine" and h["rows"] >= 8)
        assert 8 == own.get("/metrics").count("passmuster_gpu_power_limit_watts{")
        text = scenario.read_text().replace("gpu3.remap 0,0,0,0", "gpu3.remap 0,2,0,1")
        scenario.with_suffix(".new").write_text(text)
        scenario.with_suffix(".new").replace(scenario)
        found = own.until("/api/v1/findings", lambda f: any(x["fault_class"] == "R" for x in f))
    finally:
        status = own.stop()

    assert "NVIDIA H200" == found[0]["model"]
    assert 0 == status


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_and_a_second_start_go_on_with_the_same_data(start: Any, tmp_path: Any, how: Any) -> None:
    """Ctrl-C stops cleanly; even a kill loses no hold, and the fleet's clock goes on."""
    first = start(tmp_path, "--simulate", "4", "--speed", "60")
    holds = first.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))
    first.until("/api/v1/health", lambda h: h["rounds"] >= 12)
    before = json.loads(first.get("/api/v1/health"))
    status = first.stop(how)

    second = start(tmp_path, "--simulate", "4", "--speed", "60")
    try:
        again = second.until("/api/v1/holds", lambda h: len(h) > 0)
        after = second.until("/api/v1/health", lambda h: h["rows"] > 0)
    finally:
        second.stop()

    assert "Traceback" not in first.log.read_text()
    assert how == signal.SIGKILL or status == 0
    assert {h["hold_id"] for h in holds if h["state"] == "held"} <= {h["hold_id"] for h in again}
    assert after["now_at"] > before["now_at"] - 60 * 40 * 1_000_000_000
