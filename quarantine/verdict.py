"""The verdict that the agent keeps in its run folder, and `muster verdict`, which reads it and nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import click
import msgspec
from msgspec import Meta, Struct

from passmuster import config as configuration
from passmuster.errors import UserError
from passmuster.exits import ExitCode
from passmuster.records import (
    DeviceState,
    FaultClass,
    Finding,
    Health,
    Mode,
    Nanos,
    Severity,
    SubjectKind,
    Text,
    Vendor,
)

VERDICT_FILE = "verdict.json"
LINE_FILE = "verdict.line"
SECOND = 1_000_000_000  # nanoseconds

MAX_FILE_BYTES = 2**20  # 64 devices with all their reasons stay far below
MAX_REASONS = 64
MAX_LINE_REASON = 200  # characters; the hook prints it into a scheduler's log
# A clock that was set back makes a true verdict look a little ahead; one further ahead is not of this clock.
AHEAD_SECONDS = 5.0

EXITS = {
    Health.HEALTHY: ExitCode.PASS,
    Health.DEGRADED: ExitCode.DEGRADED,
    Health.UNHEALTHY: ExitCode.FAIL,
    Health.UNKNOWN: ExitCode.INCOMPLETE,
}
"""The four states that a host can be in, and the exit code of each."""

# From best to worst. Unknown is worse than degraded: what could not be checked may be anything.
ORDER = (Health.HEALTHY, Health.DEGRADED, Health.UNKNOWN, Health.UNHEALTHY)

# What says something about this host; the rest is about jobs, cohorts or our own pipeline.
SUBJECTS = (SubjectKind.HOST, SubjectKind.DEVICE, SubjectKind.UNIT, SubjectKind.LINK_PAIR, SubjectKind.SWITCH)

# The workload's own faults, trends and what is stored only say nothing against the host.
NOT_THE_HOST = (FaultClass.APPLICATION, FaultClass.INFO, FaultClass.LEGACY)

# Contained errors and waiting repairs: the vendor lets work go on until the device can be reset.
WORKS_ON = (FaultClass.CONTAINED, FaultClass.PENDING)

DEVICE_STATES = {
    DeviceState.OK: (Health.HEALTHY, ""),
    DeviceState.LOST: (Health.UNHEALTHY, "is lost: it no longer answers on its bus"),
    DeviceState.HUNG: (Health.UNHEALTHY, "hangs: a driver call did not come back"),
    DeviceState.UNREADABLE: (Health.UNKNOWN, "answers with errors only"),
    DeviceState.UNKNOWN: (Health.UNKNOWN, "was not read"),
}


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """One device as the last poll left it: what `judge` needs of it."""

    device_id: str
    pci_address: str
    vendor: Vendor
    model: str
    state: DeviceState


class DeviceVerdict(Struct, frozen=True, kw_only=True):
    """One device's part of the verdict."""

    device_id: str
    pci_address: str
    vendor: Vendor
    model: str
    state: Health
    reasons: tuple[Text, ...] = ()


class HostVerdict(Struct, frozen=True, kw_only=True):
    """Whether this host may be given work, why, and until when that holds."""

    host: str
    boot_id: str
    state: Health  # healthy, degraded, unhealthy or unknown
    reasons: Annotated[tuple[Text, ...], Meta(max_length=MAX_REASONS)] = ()
    codes: Annotated[tuple[str, ...], Meta(max_length=MAX_REASONS)] = ()  # stable codes of the findings behind it
    refuse: bool = False  # whether a hook may turn a job away: a hold, or a finding that a person promoted to act
    hold_id: str = ""
    computed_at: Nanos
    valid_until_at: Nanos
    devices: Annotated[tuple[DeviceVerdict, ...], Meta(max_length=4096)] = ()


class NoVerdict(UserError):
    """There is no verdict that holds now; the message says why. Never a pass, and never a reason to refuse a job."""

    exit_code = ExitCode.INCOMPLETE


def weigh(finding: Finding) -> Health:
    """Return what one open finding makes of its host: healthy where it says nothing against it."""
    if finding.cleared_at is not None or finding.mode in (Mode.OFF, Mode.STORE):
        return Health.HEALTHY
    if finding.subject_kind not in SUBJECTS or finding.fault_class in NOT_THE_HOST:
        return Health.HEALTHY
    if finding.fault_class is FaultClass.SILENT:
        return Health.UNKNOWN
    if finding.severity is Severity.INFO:
        return Health.HEALTHY
    if finding.severity is Severity.WARNING or finding.secondary or finding.fault_class in WORKS_ON:
        return Health.DEGRADED
    return Health.UNHEALTHY


def judge(
    findings: Iterable[Finding],
    devices: Iterable[DeviceFacts],
    now: int,
    *,
    host: str,
    boot_id: str,
    valid_seconds: float,
    gpus_expected: Mapping[str, int],
    unchecked: Iterable[str] = (),
    hold_id: str = "",
) -> HostVerdict:
    """Return the verdict on a host. Pure.

    ``gpus_expected`` is by vendor, or under "any" where only the sum is known; ``unchecked`` are sentences on what
    should have been checked and was not; ``hold_id`` is the active hold on this host, if any.
    """
    findings = sorted(findings, key=lambda f: (-ORDER.index(weigh(f)), f.secondary, f.code, f.subject_id))
    devices = list(devices)
    told: list[tuple[Health, str, str]] = []
    if hold_id:
        told.append((Health.UNHEALTHY, f"held out of service by hold {hold_id}", ""))
    told += _missing(devices, gpus_expected)
    judged = []
    for device in devices:
        state, words = DEVICE_STATES[device.state]
        own = [f for f in findings if f.device_id == device.device_id and weigh(f) is not Health.HEALTHY]
        reasons = [f"{f.code}: {f.title}" for f in own]
        if words:
            reasons.append(words)
            told.append((state, f"{device.vendor.value} GPU {device.pci_address} {words}", ""))
        judged.append(
            DeviceVerdict(
                device_id=device.device_id,
                pci_address=device.pci_address,
                vendor=device.vendor,
                model=device.model,
                state=worst([state, *(weigh(f) for f in own)]),
                reasons=tuple(reasons[:MAX_REASONS]),
            )
        )
    told += [
        (weigh(f), f"{f.code}: {f.title} ({f.pci_address or f.subject_id})", f.code)
        for f in findings
        if weigh(f) is not Health.HEALTHY
    ]
    told += [(Health.UNKNOWN, sentence, "") for sentence in unchecked]
    if not devices and not told:
        told.append((Health.UNKNOWN, "nothing to check: PCI shows no GPU, and none is expected", ""))
    told.sort(key=lambda item: -ORDER.index(item[0]))
    acting = any(f.mode is Mode.ACT and weigh(f) is Health.UNHEALTHY for f in findings)
    return HostVerdict(
        host=host,
        boot_id=boot_id,
        state=worst([state for state, _, _ in told]),
        reasons=tuple(reason[:4096] for _, reason, _ in told[:MAX_REASONS]),
        codes=tuple(dict.fromkeys(code for _, _, code in told if code))[:MAX_REASONS],
        refuse=bool(hold_id) or acting,
        hold_id=hold_id,
        computed_at=now,
        valid_until_at=now + int(valid_seconds * SECOND),
        devices=tuple(judged),
    )


def worst(states: Iterable[Health]) -> Health:
    """Return the worst of some states; healthy when there are none."""
    return max(states, key=ORDER.index, default=Health.HEALTHY)


def _missing(devices: list[DeviceFacts], expected: Mapping[str, int]) -> list[tuple[Health, str, str]]:
    told = []
    for vendor, count in sorted(expected.items()):
        seen = sum(vendor in ("any", d.vendor.value) for d in devices)
        if seen < count:
            word = "GPUs" if vendor == "any" else f"{vendor} GPUs"
            told.append((Health.UNHEALTHY, f"{count - seen} of {count} {word} are missing", ""))
    return told


def line(verdict: HostVerdict) -> str:
    """Return the one-line twin for shell hooks: state, refuse (0 or 1), valid until (epoch seconds), boot, reason."""
    reason = "; ".join(verdict.reasons) or "-"
    # A reason quotes names that hosts and drivers chose; the hook's reader gets plain printable ASCII.
    plain = "".join(c if " " <= c <= "~" else "?" for c in reason)[:MAX_LINE_REASON]
    until = verdict.valid_until_at // SECOND
    boot = "".join(verdict.boot_id.split()) or "-"
    return f"{verdict.state.value} {int(verdict.refuse)} {until} {boot} {plain}\n"


def write_verdict(run_dir: str | Path, verdict: HostVerdict) -> None:
    """Replace verdict.json, then its one-line twin; a reader sees the old or the new one, whole.

    Raises UserError when the folder cannot be written.
    """
    folder = Path(run_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        _replace(folder / VERDICT_FILE, msgspec.json.format(msgspec.json.encode(verdict)) + b"\n")
        _replace(folder / LINE_FILE, line(verdict).encode())
    except OSError as error:
        raise UserError(
            f"cannot write the verdict into {folder}: {error.strerror}; set agent.run_dir to a folder that this user "
            "may write"
        ) from None


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # of a process that died with this id
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # whatever the umask says: probes run as other users
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_verdict(run_dir: str | Path, boot_id: str, now: int) -> HostVerdict:
    """Return the verdict if it holds now on this boot. Raises NoVerdict with the reason when none does."""
    path = Path(run_dir) / VERDICT_FILE
    try:
        verdict = msgspec.json.decode(_contents(path), type=HostVerdict)
    except FileNotFoundError:
        raise NoVerdict(f"there is no verdict at {path}; is `muster agent` running?") from None
    except OSError as error:
        raise NoVerdict(f"cannot read the verdict {path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoVerdict(f"the verdict {path} cannot be understood: {error}") from None
    if verdict.state not in EXITS:
        raise NoVerdict(f"the verdict {path} has the state {verdict.state.value!r}, which no host can have")
    if verdict.boot_id != boot_id:
        raise NoVerdict(f"the verdict {path} is of an earlier boot; the agent has not judged this one yet")
    ahead = (verdict.computed_at - now) / SECOND
    if ahead > AHEAD_SECONDS:
        raise NoVerdict(f"the verdict {path} was computed {ahead:.0f} s in the future; check this host's clock")
    late = (now - verdict.valid_until_at) / SECOND
    if late >= 0:
        raise NoVerdict(f"the verdict {path} is stale: it was valid until {late:.0f} s ago; is `muster agent` running?")
    return verdict


def _contents(path: Path) -> bytes:
    """Read a small regular file; never waits on a pipe that somebody put in its place."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        if info.st_size > MAX_FILE_BYTES:
            raise OSError(f"it has {info.st_size} bytes; a verdict has at most {MAX_FILE_BYTES}")
        return file.read(MAX_FILE_BYTES)


@click.command()
@click.option("--config", "config_path", type=click.Path(), help="Configuration file.")
@click.option("--run-dir", type=click.Path(), help="Folder of verdict.json; by default that of the configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def verdict(config_path: str | None, run_dir: str | None, as_json: bool) -> ExitCode:
    """Print the verdict that the agent keeps; exit 0 healthy, 1 degraded, 2 unhealthy, 3 unknown."""
    import time

    agent = configuration.load(config_path).agent
    try:
        boot_id = (Path(agent.proc_root) / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoVerdict(f"cannot read this boot's id: {error}") from None
    found = read_verdict(run_dir or agent.run_dir, boot_id, time.time_ns())
    if as_json:
        click.echo(msgspec.json.encode(found))
    else:
        click.echo(f"{found.host}: {found.state.value}")
        for reason in found.reasons:
            click.echo(f"  {printable(reason)}")
    return EXITS[found.state]


def printable(text: str) -> str:
    """Return text for a terminal: what hosts and drivers wrote may hold control sequences."""
    return "".join(c if c.isprintable() else "?" for c in text)
