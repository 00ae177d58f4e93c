"""The host itself, as far as no GPU library knows it: boot, drivers, services, PCIe AER, InfiniBand, load, memory."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from collectors.pci import PciGpu, gpus
from collectors.pseudo_file import ABSENT, GARBAGE, Unreadable, names, number, read
from passmuster import __version__
from passmuster.config import Config
from passmuster.records import HostReading

SERVICES_SECONDS = 60.0  # asking systemd starts a process, and a unit's state seldom changes
SERVICES_DEADLINE_SECONDS = 3.0
MAX_PORTS = 64
MAX_ENTRIES = 512  # of one map of `HostReading`

# IBTA PortCounters and the mlx5 counters that tell of a bad cable, port or congestion; the rest is traffic.
PORT_ERRORS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_xmit_discards",
    "port_xmit_wait",
)
HARDWARE_ERRORS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
)
AER_SEVERITIES = ("correctable", "nonfatal", "fatal")

_NVIDIA_VERSION = re.compile(r"Kernel Module(?: for \S{1,64})?\s{1,16}(\d{1,6}(?:\.\d{1,6}){1,3})")
_UNIT_FIELD = re.compile(r"(Id|LoadState|ActiveState)=([\w.@:\\-]{1,255})\Z")

Value = TypeVar("Value")


class HostCollector:
    """Reads one `HostReading`; what the agent knows of itself is filled in by the runner."""

    name = "host"

    def __init__(self, config: Config) -> None:
        self._agent = config.agent
        self._cluster = config.site.cluster
        self._host = host_name(config)
        self.period_seconds = config.agent.middle_seconds
        self._services: dict[str, str] = {}
        self._services_reason = ""
        self._services_at: int | None = None
        # A GPU that leaves the bus is still expected: the most that this process saw of each vendor.
        self._most: dict[str, int] = {}

    def collect(self, now: int) -> Iterable[HostReading]:
        """Yield the reading observed at ``now`` (nanoseconds, UTC)."""
        sys_root, proc_root = Path(self._agent.sys_root), Path(self._agent.proc_root)
        missing: dict[str, str] = {}
        shown = gpus(sys_root)
        for vendor, count in expected_gpus(shown, self._agent.expect_gpus).items():
            self._most[vendor] = max(count, self._most.get(vendor, 0))
        memory = _or_null(missing, "memory_total_bytes", lambda: parse_meminfo(read(proc_root / "meminfo")))
        available = None if memory is None else memory[1]
        if available is None:
            missing["memory_available_bytes"] = missing.get("memory_total_bytes", ABSENT)
        ports = read_ports(sys_root, missing)
        yield HostReading(
            cluster=self._cluster,
            host=self._host,
            boot_id=boot_id(proc_root) or "",
            observed_at=now,
            agent_version=__version__,
            kernel=_or_null(missing, "kernel", lambda: read(proc_root / "sys/kernel/osrelease")[:128]),
            drivers=drivers(sys_root, proc_root, missing),
            uptime_seconds=_or_null(missing, "uptime_seconds", lambda: parse_seconds(read(proc_root / "uptime"))),
            gpus_expected=dict(self._most),
            services=self._service_states(now, missing),
            load_ratio=_or_null(missing, "load_ratio", lambda: _load_ratio(sys_root, proc_root)),
            memory_total_bytes=None if memory is None else memory[0],
            memory_available_bytes=available,
            nic_links=ports.get("nic_links"),
            nic_rates=ports.get("nic_rates"),
            nic_errors_total=ports.get("nic_errors_total"),
            aer_errors_total=read_aer(sys_root, shown, missing),
            missing=missing or None,
        )

    def _service_states(self, now: int, missing: dict[str, str]) -> dict[str, str] | None:
        last = self._services_at
        if last is None or not 0 <= now - last < SERVICES_SECONDS * 1e9:
            self._services_at = now
            self._services, self._services_reason = read_services(self._agent.services)
        if self._services_reason:
            missing["services"] = self._services_reason
            return None
        return self._services


def host_name(config: Config) -> str:
    """Return the name under which this host is known."""
    return config.site.host or socket.gethostname()[:256]


def boot_id(proc_root: str | Path) -> str | None:
    """Return the kernel's id of this boot; None when it cannot be read."""
    try:
        return read(Path(proc_root) / "sys/kernel/random/boot_id")[:128]
    except Unreadable:
        return None


def expected_gpus(shown: Iterable[PciGpu], configured: int) -> dict[str, int]:
    """Return by vendor how many GPUs there must be: what PCI shows, or the configured number (-1: none configured).

    The configured number is of the vendor that PCI shows, and of vendor "any" where it shows none or several.
    """
    counts: dict[str, int] = {}
    for gpu in shown:
        counts[gpu.vendor.value] = counts.get(gpu.vendor.value, 0) + 1
    if configured < 0:
        return counts
    if len(counts) == 1:
        return dict.fromkeys(counts, configured)
    return {**counts, "any": configured}


def drivers(sys_root: Path, proc_root: Path, missing: dict[str, str]) -> dict[str, str] | None:
    """Return the version of each GPU driver that is loaded; amdgpu of the kernel's own tree is "in-tree"."""
    found: dict[str, str] = {}
    reason = ABSENT
    try:
        found["nvidia"] = parse_nvidia_version(read(proc_root / "driver/nvidia/version"))
    except Unreadable as error:
        reason = error.reason
    module = sys_root / "module" / "amdgpu"
    if module.is_dir():
        try:
            found["amdgpu"] = read(module / "version")[:256]
        except Unreadable as error:
            found["amdgpu"] = "in-tree" if error.reason == ABSENT else error.reason
    if found:
        return found
    missing["drivers"] = reason
    return None


def parse_nvidia_version(text: str) -> str:
    """Return the driver version in the text of /proc/driver/nvidia/version, of the open or the closed module."""
    match = _NVIDIA_VERSION.search(text[:4096])
    if match is None:
        raise Unreadable(GARBAGE)
    return match[1]


def parse_seconds(text: str) -> float:
    """Return the first number of /proc/uptime or /proc/loadavg."""
    first = (text.split() or [""])[0]
    if not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", first):
        raise Unreadable(GARBAGE)
    return float(first)


def parse_meminfo(text: str) -> tuple[int, int | None]:
    """Return total and available bytes of /proc/meminfo; kernels before 3.14 do not tell what is available."""
    sizes = dict(re.findall(r"^(MemTotal|MemAvailable):\s{0,32}(\d{1,15}) kB$", text, re.MULTILINE))
    if "MemTotal" not in sizes:
        raise Unreadable(GARBAGE)
    return int(sizes["MemTotal"]) * 1024, int(sizes["MemAvailable"]) * 1024 if "MemAvailable" in sizes else None


def parse_cpu_list(text: str) -> int:
    """Return how many CPUs a list such as ``0-63,128`` names."""
    count = 0
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if match is None:
            raise Unreadable(GARBAGE)
        count += int(match[2] or match[1]) - int(match[1]) + 1
    if count < 1:
        raise Unreadable(GARBAGE)
    return count


def _load_ratio(sys_root: Path, proc_root: Path) -> float:
    cpus = parse_cpu_list(read(sys_root / "devices/system/cpu/online"))
    return parse_seconds(read(proc_root / "loadavg")) / cpus


def read_services(units: Iterable[str]) -> tuple[dict[str, str], str]:
    """Return the state of each systemd unit, or a reason why systemd did not say."""
    wanted = list(units)
    if not wanted:
        return {}, ""
    argv = ["systemctl", "show", "--property=Id,LoadState,ActiveState", "--", *wanted]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SERVICES_DEADLINE_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return {}, "unsupported: no systemctl on this host"
    except subprocess.TimeoutExpired:
        return {}, f"failed: systemctl gave no answer in {SERVICES_DEADLINE_SECONDS:g} s"
    except OSError as error:
        return {}, f"failed: systemctl: {error.strerror}"
    states = parse_services(done.stdout, wanted)
    if not states:
        return {}, "unsupported: systemd does not run here"
    return states, ""


def parse_services(text: str, wanted: Iterable[str]) -> dict[str, str]:
    """Return the state of each wanted unit in what ``systemctl show`` printed: absent, active, inactive, failed, ..."""
    shown: dict[str, str] = {}
    for block in text[:65_536].split("\n\n"):
        fields = {m[1]: m[2] for m in map(_UNIT_FIELD.match, block.splitlines()) if m}
        if "Id" in fields and "ActiveState" in fields:
            absent = fields.get("LoadState") == "not-found"
            shown[fields["Id"].removesuffix(".service")] = "absent" if absent else fields["ActiveState"]
    return {unit: shown[key] for unit in wanted if (key := unit.removesuffix(".service")) in shown}


def read_aer(sys_root: Path, shown: Iterable[PciGpu], missing: dict[str, str]) -> dict[str, int] | None:
    """Return the AER totals of each GPU and of the bridge above it, as address.severity.

    A link's errors are counted at its receiving end, so half of them stand at the bridge. Virtual machines have none.
    """
    totals: dict[str, int] = {}
    reason = ABSENT
    for address in dict.fromkeys(a for gpu in shown for a in (gpu.address, gpu.bridge) if a is not None):
        for severity in AER_SEVERITIES:
            try:
                text = read(sys_root / "bus/pci/devices" / address / f"aer_dev_{severity}")
                totals[f"{address}.{severity}"] = parse_aer(text)
            except Unreadable as error:
                reason = error.reason if error.reason != ABSENT else reason
    if totals:
        return dict(list(totals.items())[:MAX_ENTRIES])
    missing["aer_errors_total"] = reason
    return None


def parse_aer(text: str) -> int:
    """Return the total of one aer_dev_* file: its own TOTAL line, else the sum."""
    counts = dict(re.findall(r"^(\w{1,64}) (\d{1,19})$", text, re.MULTILINE))
    if not counts:
        raise Unreadable(GARBAGE)
    total = next((count for name, count in counts.items() if name.startswith("TOTAL_ERR")), None)
    return number(total) if total is not None else min(sum(map(int, counts.values())), 2**63 - 1)


def read_ports(sys_root: Path, missing: dict[str, str]) -> dict[str, Any]:
    """Return state, rate and error counters of the InfiniBand and RoCE ports, as fields of `HostReading`."""
    root = sys_root / "class" / "infiniband"
    links: dict[str, str] = {}
    rates: dict[str, float] = {}
    errors: dict[str, int] = {}
    try:
        ports = [(device, port) for device in names(root) for port in _ports(root / device)]
    except Unreadable as error:
        missing.update(dict.fromkeys(("nic_links", "nic_rates", "nic_errors_total"), error.reason))
        return {}
    for device, port in ports[:MAX_PORTS]:
        folder, key = root / device / "ports" / port, f"{device}/{port}"[:32]
        state = _or_null(missing, f"nic_links.{key}", partial(_parsed, folder / "state", parse_port_state))
        rate = _or_null(missing, f"nic_rates.{key}", partial(_parsed, folder / "rate", parse_port_rate))
        if state is not None:
            links[key] = state
        if rate is not None:
            rates[key] = rate
        for group, counters in (("counters", PORT_ERRORS), ("hw_counters", HARDWARE_ERRORS)):
            for counter in counters:
                try:
                    errors[f"{key}.{counter}"[:64]] = number(read(folder / group / counter))
                except Unreadable as error:
                    if error.reason != ABSENT:  # each product has its own set of counters
                        missing[f"{key}.{counter}"[:64]] = error.reason
    return {"nic_links": links, "nic_rates": rates, "nic_errors_total": dict(list(errors.items())[:MAX_ENTRIES])}


def _ports(device: Path) -> list[str]:
    try:
        return [name for name in names(device / "ports") if name.isdigit()]
    except Unreadable:
        return []


def _parsed(path: Path, parse: Callable[[str], Value]) -> Value:
    return parse(read(path))


def parse_port_state(text: str) -> str:
    """Return the state in ``4: ACTIVE``, in lower case."""
    match = re.fullmatch(r"\d{1,2}: ([A-Za-z_ ]{1,32})", text)
    if match is None:
        raise Unreadable(GARBAGE)
    return match[1].strip().lower()


def parse_port_rate(text: str) -> float:
    """Return bits per second of ``400 Gb/sec (4X NDR)``."""
    match = re.match(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec", text)
    if match is None:
        raise Unreadable(GARBAGE)
    return float(match[1]) * 1e9


def _or_null(missing: dict[str, str], field: str, value: Callable[[], Value]) -> Value | None:
    try:
        return value()
    except Unreadable as error:
        missing[field] = error.reason
        return None
