"""`muster up` as a newcomer meets it: a planted fault becomes a finding, a hold and a story, in a browser."""

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


def text_of(browser, url, *words):
    """Open a page and return its text once it shows all the words."""
    browser.get(url)
    body = ""

    def shows(driver):
        nonlocal body
        body = driver.find_element(By.TAG_NAME, "body").text
        return all(word in body for word in words)

    WebDriverWait(browser, 60, ignored_exceptions=[Exception]).until(
        shows, message=f"{url} does not show {words}; it shows: {body[:500]}"
    )
    return body


def test_a_planted_fault_becomes_a_finding_and_a_hold(house):
    """The whole path: simulated device, batch, detector, finding, decision, ledger."""
    findings = house.until("/api/v1/findings", lambda f: any(x["severity"] in ("critical", "error") for x in f))
    holds = house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))

    held = next(h for h in holds if h["state"] == "held")
    assert held["evidence"]
    assert findings[0]["next_step"]


def test_the_browser_shows_finding_hold_and_story(house, browser):
    """What is stored is what a person sees."""
    holds = house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))
    host = next(h for h in holds if h["state"] == "held")["host"]

    text_of(browser, house.url, "What is wrong now", "Holds (", "Open findings (", "hosts: held")
    story = text_of(browser, f"{house.url}/host_story?host={host}", "One host's story", "What happened (", "Hold:")

    assert host in story


def test_the_browser_shows_failure_rates_with_exposure(house, browser):
    """A rate stands beside what it was counted over."""
    house.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))

    text_of(browser, f"{house.url}/failure_rates", "How often things fail", "GPU-days watched", "exact Poisson")


def test_metrics_are_served_beside_the_pages(house):
    """One port serves pages, API and /metrics."""
    metrics = house.get("/metrics")

    assert "passmuster_store_up 1.0" in metrics
    assert 'passmuster_findings_open{severity="critical"}' in metrics


def test_a_foreign_host_header_is_refused(house):
    """A page elsewhere cannot read the fleet by pointing its name at loopback."""
    request = urllib.request.Request(house.url + "/api/v1/holds", headers={"Host": "evil.example"})

    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)

    assert 400 == caught.value.code
    caught.value.close()


def test_a_second_owner_of_the_folder_is_told_the_pid(house):
    """The store's folder belongs to one process; the second start names it."""
    data = house.log.parent / "data"
    argv = [sys.executable, "-m", "passmuster", "up", "--simulate", "8", "--port", "0", "--data-dir", str(data)]
    argv[argv.index("0")] = str(_free_port())

    second = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)

    assert second.returncode not in (0, 1)
    assert str(house.process.pid) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_port_in_use_is_one_sentence(house, tmp_path):
    """The port is tried before anything else is started."""
    argv = [sys.executable, "-m", "passmuster", "up", "--simulate", "2", "--port", str(house.port)]

    second = subprocess.run(
        [*argv, "--data-dir", str(tmp_path / "d")], capture_output=True, text=True, timeout=60, check=False
    )

    assert 64 == second.returncode
    assert f"cannot listen on 127.0.0.1:{house.port}" in second.stderr
    assert not (tmp_path / "d").exists()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_and_a_second_start_go_on_with_the_same_data(tmp_path, how):
    """Ctrl-C stops cleanly; even a kill loses no hold, and the fleet's clock goes on."""
    from conftest import House

    first = House(tmp_path, "--simulate", "4", "--speed", "60")
    holds = first.until("/api/v1/holds", lambda h: any(x["state"] == "held" for x in h))
    first.until("/api/v1/health", lambda h: h["rounds"] >= 12)
    before = json.loads(first.get("/api/v1/health"))
    status = first.stop(how)

    second = House(tmp_path, "--simulate", "4", "--speed", "60")
    try:
        again = second.until("/api/v1/holds", lambda h: len(h) > 0)
        after = second.until("/api/v1/health", lambda h: h["rows"] > 0)
    finally:
        second.stop()

    assert "Traceback" not in first.log.read_text()
    assert how == signal.SIGKILL or status == 0
    assert {h["hold_id"] for h in holds if h["state"] == "held"} <= {h["hold_id"] for h in again}
    assert after["now_at"] > before["now_at"] - 60 * 40 * 1_000_000_000
