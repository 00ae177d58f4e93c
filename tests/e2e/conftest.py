"""A whole `muster up` in a process of its own, and a real browser to look at it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

START_SECONDS = 90


def free_port() -> Any:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class House:
    """A started `muster up`; `get` reads its API, `stop` ends it as Ctrl-C does."""

    def __init__(self, folder: Any, *options: str, environ: Any = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = Path(folder) / f"up-{self.port}.log"
        argv = [sys.executable, "-m", "passmuster", "up", "--port", str(self.port)]
        argv += ["--data-dir", str(Path(folder) / "data"), *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environ or {})}
            )

    def get(self, path: Any) -> Any:
        """Return the body of one of its pages as text."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def until(self, path: Any, good: Any, seconds: Any = START_SECONDS) -> Any:
        """Poll a JSON path until `good` of its body is true, and return the body."""
        deadline = time.monotonic() + seconds
        body = None
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            try:
                body = json.loads(self.get(path))
            except OSError:
                body = None
            if body is not None and good(body):
                return body
            time.sleep(0.3)
        raise AssertionError(f"{path} did not become so within {seconds} s: {str(body)[:2000]}\n{self.log.read_text()}")

    def stop(self, how: Any = signal.SIGINT) -> Any:
        """Send the signal and return the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(timeout=30)


@pytest.fixture(scope="session")
def start() -> Any:
    """Return what starts a `muster up` with a folder, options and environment."""
    return House


@pytest.fixture(scope="session")
def house(tmp_path_factory: Any) -> Any:
    """A simulated fleet of eight hosts at thirty times real time."""
    started = House(tmp_path_factory.mktemp("up"), "--simulate", "8", "--speed", "30")
    started.until("/api/v1/health", lambda health: health["rows"] > 0)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: Any) -> Any:
    """Headless Chromium. CI requires it; elsewhere a machine without one says so and skips."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        if os.environ.get("PASSMUSTER_REQUIRE_BROWSER"):
            pytest.fail("chromium and chromedriver are required here and are not installed")
        pytest.skip("no chromium and chromedriver on this machine; CI runs this test")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--window-size=1400,1800",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()
