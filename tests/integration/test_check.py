"""`muster check` as a real command on the real pynvml over the fake NVML, and on hosts that lack everything."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from passmuster.batch import decode, encode, from_records, split_by_header
from passmuster.records import KINDS, Record

ROOT = Path(__file__).parents[2]
HEALTHY = (ROOT / "tests/data/scenarios/h200_x8.txt").read_text()


@pytest.fixture(scope="session")
def nvml() -> str:
    """The folder of the compiled fake libnvidia-ml.so.1."""
    spec = importlib.util.spec_from_file_location("doubles_build", ROOT / "tests/doubles/build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return str(build.nvml())


class Node:
    """A host of files: what its PCI bus, kernel log and NVML show."""

    def __init__(self, root: Path, nvml: str) -> None:
        self.root = root
        self.scenario = root / "scenario.txt"
        (root / "sys").mkdir()
        (root / "proc/sys/kernel/random").mkdir(parents=True)
        (root / "proc/sys/kernel/random/boot_id").write_text("boot-1\n")
        (root / "proc/uptime").write_text("90000.00 1.00\n")
        (root / "kmsg").write_text("")
        self.environment = {
            "LD_LIBRARY_PATH": nvml,
            "FAKE_DEVICE_SCENARIO": str(self.scenario),
            "PASSMUSTER_AGENT__SYS_ROOT": str(root / "sys"),
            "PASSMUSTER_AGENT__PROC_ROOT": str(root / "proc"),
            "PASSMUSTER_AGENT__KERNEL_LOG_PATH": str(root / "kmsg"),
            "PASSMUSTER_SITE__HOST": "node-1",
        }

    def nvml(self, *lines: str) -> None:
        """Eight healthy H200, and these lines, the last of a key counting."""
        self.scenario.write_text(HEALTHY + "".join(f"{line}\n" for line in lines))

    def pci(self, count: int, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        """Show GPUs on the bus, at the addresses of the scenario first."""
        for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB, 0xE0)[:count]:
            folder = self.root / f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
            folder.mkdir(parents=True)
            for name, value in (("vendor", vendor), ("device", "0x2335"), ("class", kind)):
                (folder / name).write_text(value + "\n")

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user does, from a foreign folder."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "passmuster", "check", *options],
            env={"PATH": os.environ["PATH"], **self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            cwd=self.root,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def check(self, *options: str, **environment: str) -> dict[str, Any]:
        """Run with --json; the exit code must be the one that the object names."""
        done = self.run("--json", *options, **environment)
        told: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == told["exit_code"]
        return told


@pytest.fixture
def node(tmp_path: Path, nvml: str) -> Node:
    """A node with eight healthy GPUs, all on its bus."""
    made = Node(tmp_path, nvml)
    made.nvml()
    made.pci(8)
    return made


def test_healthy(node: Node) -> None:
    """Eight healthy GPUs pass, and the page shows each of them."""
    done = node.run()
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["#", "PCI", "address", "model", "state", "temp", "power", "memory", "verdict"]
    row = "0 0000:18:00.0 NVIDIA H200 ok 34 C 76 W 0.0/140 GiB healthy"
    assert " ".join(lines[1].split()) == row
    assert lines[-1] == "node-1: healthy (pass, exit 0)"


def test_json_holds_whole_records(node: Node) -> None:
    """The readings in the JSON are records that travel as they are."""
    told = node.check()
    assert (told["state"], told["gpus_expected"], told["gpus_seen"]) == ("healthy", {"nvidia": 8}, {"nvidia": 8})
    rows: list[Record] = [msgspec.convert(row, KINDS["gpu_reading"]) for row in told["gpu_readings"]]
    rows.append(msgspec.convert(told["host_reading"], KINDS["host_reading"]))
    for group in split_by_header(rows):
        decode(encode(from_records(group)))


@pytest.mark.parametrize(
    ("exit_code", "code", "lines"),
    [
        (2, "memory.row_remap_failed", ["gpu3.remap 0,1,0,1"]),
        (1, "memory.row_remap_pending", ["gpu3.remap 0,1,1,0"]),
        (2, "recovery.node_reboot", ["gpu3.field.230 2"]),
    ],
)
def test_planted_state(node: Node, exit_code: int, code: str, lines: list[str]) -> None:
    """A state that the driver shows is found on its device, named by a stable code, with a next step."""
    node.nvml(*lines)
    told = node.check()
    assert told["exit_code"] == exit_code
    found = [finding for finding in told["findings"] if finding["code"] == code]
    assert [finding["pci_address"] for finding in found] == ["0000:5d:00.0"]
    assert found[0]["next_step"]
    assert [device["state"] != "healthy" for device in told["devices"]].count(True) == 1
    assert code in node.run().stdout


def test_missing_gpu(node: Node) -> None:
    """A GPU that PCI shows and the library does not is a failure."""
    node.nvml("gpu.count 7")
    told = node.check()
    assert (told["exit_code"], told["reasons"][0]) == (2, "1 of 8 nvidia GPUs are missing")


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 8), (0, 4), (2, 9)])
def test_expected_gpus(node: Node, exit_code: int, expected: int) -> None:
    """Fewer than the expected number is a failure; more is none."""
    assert node.check("--expect-gpus", str(expected))["exit_code"] == exit_code


@pytest.mark.parametrize("on_bus", [True, False])
def test_lost_gpu(tmp_path: Path, nvml: str, on_bus: bool) -> None:
    """A GPU that the library counts and cannot name is missing, also where a container hides the PCI bus."""
    node = Node(tmp_path, nvml)
    node.nvml("gpu5.error 15")
    if on_bus:
        node.pci(8)
    told = node.check()
    assert (told["exit_code"], told["reasons"][0]) == (2, "1 of 8 nvidia GPUs are missing")


def test_hung_driver(node: Node) -> None:
    """A driver call that never returns ends within the deadline, as a failure of the devices that PCI shows."""
    node.nvml("gpu2.hang 1")
    started = time.monotonic()
    told = node.check(PASSMUSTER_AGENT__CALL_DEADLINE_SECONDS="2")
    assert time.monotonic() - started < 20
    assert told["exit_code"] == 2
    assert {row["state"] for row in told["gpu_readings"]} == {"hung"}
    assert "did not answer within 2 s" in told["unchecked"][0]


@pytest.mark.parametrize("error", [9, 18, 999])
def test_library_that_does_not_start(node: Node, error: int) -> None:
    """A library that refuses to start leaves the GPUs unchecked: incomplete, not missing and never healthy."""
    node.nvml(f"init.error {error}")
    told = node.check()
    assert told["exit_code"] == 3
    assert "the NVIDIA library" in told["unchecked"][0]
    assert node.check("--expect-gpus", "8")["exit_code"] == 2


@pytest.mark.parametrize("content", [None, b"", b"not a library"])
def test_library_absent_or_garbage(node: Node, tmp_path: Path, content: bytes | None) -> None:
    """GPUs on the bus without a library that loads are incomplete, with a sentence."""
    folder = tmp_path / "empty"
    folder.mkdir()
    if content is not None:
        (folder / "libnvidia-ml.so.1").write_bytes(content)
    done = node.run(LD_LIBRARY_PATH=str(folder))
    assert done.returncode == 3
    assert "NOT CHECKED  the NVIDIA library" in done.stdout


def test_switched_off(node: Node) -> None:
    """A collector that is switched off leaves its GPUs unchecked."""
    told = node.check(PASSMUSTER_AGENT__NVIDIA="off")
    assert told["exit_code"] == 3
    assert told["unchecked"] == ["8 NVIDIA GPUs: their collector is switched off"]


@pytest.mark.parametrize(("exit_code", "options"), [(3, ()), (2, ("--expect-gpus", "1"))])
def test_no_gpu(tmp_path: Path, exit_code: int, options: tuple[str, ...]) -> None:
    """No GPU is incomplete where none is expected, and a failure where one is."""
    done = Node(tmp_path, "").run(*options)
    assert done.returncode == exit_code
    assert done.stdout.splitlines()[-1].startswith("node-1: ")


def test_fault_in_the_kernel_log(node: Node) -> None:
    """An XID of the last minutes counts, at its device; one of an hour ago and one from user space do not."""
    now = 90_000 * 1_000_000
    line = "NVRM: Xid (PCI:0000:{}:00): 79, pid=1, name=x, GPU has fallen off the bus."
    lines = [
        f"4,100,{now - 3_600_000_000},-;{line.format('18')}",
        f"12,101,{now - 5_000_000},-;{line.format('2a')}",
    ]
    (node.root / "kmsg").write_text("\n".join(lines) + "\n")
    assert node.check()["exit_code"] == 0
    lines.append(f"4,102,{now - 5_000_000},-;{line.format('3a')}")
    (node.root / "kmsg").write_text("\n".join(lines) + "\n")
    told = node.check()
    assert told["exit_code"] == 2
    assert {finding["pci_address"] for finding in told["findings"]} == {"0000:3a:00.0"}


def test_hostile_names(node: Node) -> None:
    """What a device calls itself cannot drive a terminal."""
    node.nvml("gpu0.name \x1b[2J\x07evil")
    done = node.run()
    assert "evil" in done.stdout
    assert not {c for c in done.stdout if ord(c) < 32} - {"\n"}


@pytest.mark.parametrize(
    ("words", "options", "environment"),
    [
        ("--expect-gpus", ("--expect-gpus", "-1"), {}),
        ("unknown key", (), {"PASSMUSTER_AGENT__FAST_SECOND": "1"}),
        ("cannot read the configuration", ("--config", "/nowhere.toml"), {}),
    ],
)
def test_usage(node: Node, words: str, options: tuple[str, ...], environment: Mapping[str, str]) -> None:
    """A wrong option or configuration is one sentence and the code of usage."""
    done = node.run(*options, **environment)
    assert (done.returncode, done.stdout) == (64, "")
    assert words in done.stderr
