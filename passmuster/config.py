"""The configuration: one TOML file and environment overrides, parsed and validated once into frozen structs.

An environment variable overrides a key: ``PASSMUSTER_AGENT__FAST_SECONDS=2`` is ``[agent] fast_seconds = 2``.
Unknown keys are refused with the nearest known name. Every default stands here, with its unit in its name.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from passmuster.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0.0, le=86_400.0 * 366)]
# Floats, not ints: typing takes Annotated[float, 0] and Annotated[float, 0.0] for the same, whichever came first.
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
PathText = Annotated[str, Meta(min_length=1, max_length=4096)]

ENV_PREFIX = "PASSMUSTER_"
DEFAULT_PATHS = ("passmuster.toml", "/etc/passmuster/passmuster.toml")
MAX_FILE_BYTES = 2**20


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: frozen, unknown keys refused."""


class Site(Section, frozen=True, kw_only=True):
    """Where this host stands; travels with every record."""

    cluster: Annotated[str, Meta(max_length=128, description="name of the cluster")] = "default"
    host: Annotated[str, Meta(max_length=256, description="host name; empty takes the kernel's")] = ""
    rack: Annotated[str, Meta(max_length=128, description="rack")] = ""
    pool: Annotated[str, Meta(max_length=128, description="scheduler pool")] = ""
    power_domain: Annotated[str, Meta(max_length=128, description="power domain")] = ""
    cooling_domain: Annotated[str, Meta(max_length=128, description="cooling domain")] = ""
    switch: Annotated[str, Meta(max_length=128, description="leaf switch")] = ""


class Agent(Section, frozen=True, kw_only=True):
    """The host agent."""

    fast_seconds: Annotated[Seconds, Meta(description="period of the fast tier")] = 1.0
    middle_seconds: Annotated[
        Seconds, Meta(description="period of the middle tier, and the interval of one shipped row")
    ] = 10.0
    slow_seconds: Annotated[Seconds, Meta(description="period of the slow tier")] = 60.0
    ship_seconds: Annotated[
        Seconds, Meta(description="readings leave the host this often; faults and findings at once")
    ] = 30.0
    ring_seconds: Annotated[Seconds, Meta(description="fast samples kept in memory and shipped with a fault")] = 600.0
    call_deadline_seconds: Annotated[
        Seconds, Meta(description="a vendor library that stays silent longer than this is hung")
    ] = 5.0
    open_deadline_seconds: Annotated[Seconds, Meta(description="the same for loading and initialising the library")] = (
        30.0
    )
    nvidia: Annotated[str, Meta(pattern="^(auto|on|off)$", description="NVIDIA collector: auto looks at PCI")] = "auto"
    amd: Annotated[str, Meta(pattern="^(auto|on|off)$", description="AMD collector: auto looks at PCI")] = "auto"
    kernel_log: Annotated[bool, Meta(description="read the kernel log")] = True
    kernel_log_path: Annotated[PathText, Meta(description="kernel log device")] = "/dev/kmsg"
    kernel_log_trust_user_space: Annotated[
        bool, Meta(description="believe lines that user space wrote to the kernel log; for tests only")
    ] = False
    sys_root: Annotated[PathText, Meta(description="root of sysfs")] = "/sys"
    proc_root: Annotated[PathText, Meta(description="root of procfs")] = "/proc"
    expect_gpus: Annotated[
        int, Meta(ge=-1, le=4096, description="GPUs that this host must have; -1 takes what PCI shows")
    ] = -1
    services: Annotated[tuple[str, ...], Meta(max_length=64, description="systemd units whose state is recorded")] = (
        "nvidia-fabricmanager",
        "nvidia-persistenced",
    )
    run_dir: Annotated[PathText, Meta(description="folder of verdict.json and its one-line twin")] = "/run/passmuster"
    verdict_valid_seconds: Annotated[Seconds, Meta(description="a verdict older than this is stale")] = 180.0
    boot_grace_seconds: Annotated[
        Seconds, Meta(description="after boot, what is still coming up is unknown, not bad")
    ] = 300.0


class Spool(Section, frozen=True, kw_only=True):
    """The on-disk spool before the bus."""

    dir: Annotated[PathText, Meta(description="folder of the spool")] = "/var/lib/passmuster/spool"
    max_bytes: Annotated[Positive, Meta(description="the oldest low-value batches go first when it is full")] = (
        1_073_741_824
    )
    max_age_seconds: Annotated[Seconds, Meta(description="unsent batches older than this are dropped and counted")] = (
        604_800.0
    )
    keep_acknowledged_seconds: Annotated[Seconds, Meta(description="sent segments stay this long for a resend")] = (
        3_600.0
    )
    segment_bytes: Annotated[Positive, Meta(description="size at which a new segment file begins")] = 8_388_608


class Exporter(Section, frozen=True, kw_only=True):
    """The Prometheus exporter of the agent."""

    enabled: Annotated[bool, Meta(description="serve /metrics")] = True
    address: Annotated[str, Meta(max_length=256, description="address to bind; loopback unless you mean otherwise")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, Meta(description="port")] = 9465


class Store(Section, frozen=True, kw_only=True):
    """The embedded store."""

    dir: Annotated[PathText, Meta(description="folder of the embedded store; one process owns it")] = "var/store"
    query_seconds: Annotated[Seconds, Meta(description="a query that runs longer is stopped")] = 10.0
    query_memory_bytes: Annotated[Positive, Meta(description="a query that needs more memory is stopped")] = (
        1_073_741_824
    )
    keep_days: Annotated[Positive, Meta(description="readings older than this are deleted")] = 90


class DetectorModes(Section, frozen=True, kw_only=True):
    """What findings may lead to. Keys of `modes`: "detector", "detector/CLASS", "detector/CLASS/model"."""

    default_mode: Annotated[
        str, Meta(pattern="^(off|store|shadow|act)$", description="mode of everything that nobody promoted")
    ] = "shadow"
    modes: Annotated[
        dict[str, str],
        Meta(max_length=1024, description="mode by detector, class and model; the longest key wins"),
    ] = {}
    promoted_by: Annotated[
        str, Meta(max_length=128, description="the person who promoted to act; required with any act")
    ] = ""


class Quarantine(Section, frozen=True, kw_only=True):
    """Holds and brakes."""

    act: Annotated[bool, Meta(description="false is dry-run: holds are proposals, no scheduler is touched")] = False
    ledger: Annotated[PathText, Meta(description="SQLite file of the ledger")] = "var/ledger.sqlite"
    max_held_share: Annotated[
        Share, Meta(description="brake: share of the reporting hosts of one device class that may be held")
    ] = 0.10
    max_held_hosts: Annotated[Positive, Meta(description="brake: hosts held at once in one pool")] = 50
    max_held_per_rack: Annotated[Positive, Meta(description="brake: hosts held at once in one rack")] = 2
    max_held_per_hour: Annotated[Positive, Meta(description="brake: new holds within an hour in one pool")] = 10
    max_same_cause_per_hour: Annotated[
        Positive, Meta(description="brake: new holds of one cause within an hour; more is common mode")
    ] = 5
    min_in_service_share: Annotated[
        Share,
        Meta(description="brake: share of a pool's reporting hosts that stays in service, whoever took the others out"),
    ] = 0.5
    hold_hours: Annotated[
        Seconds,
        Meta(description="a hold goes to a person's queue after this many hours; it never lapses into service"),
    ] = 72.0


class Dash(Section, frozen=True, kw_only=True):
    """`muster up`: pages, API and /metrics on one port."""

    address: Annotated[str, Meta(max_length=256, description="address to bind; loopback unless you mean otherwise")] = (
        "127.0.0.1"
    )
    port: Annotated[Port, Meta(description="port")] = 8765
    data_dir: Annotated[PathText, Meta(description="folder of store, ledger and spool of `muster up`")] = "var"
    ingest_seconds: Annotated[Seconds, Meta(description="batches are written to the store this often")] = 2.0


class Config(Section, frozen=True, kw_only=True):
    """All sections."""

    site: Site = Site()
    agent: Agent = Agent()
    spool: Spool = Spool()
    exporter: Exporter = Exporter()
    store: Store = Store()
    detectors: DetectorModes = DetectorModes()
    quarantine: Quarantine = Quarantine()
    dash: Dash = Dash()


def load(path: str | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read the file (given, or the first that exists of `DEFAULT_PATHS`, or none) and the environment.

    Raises ConfigError with the file, the key and what would be right.
    """
    environ = os.environ if environ is None else environ
    chosen = path or next((p for p in DEFAULT_PATHS if Path(p).is_file()), None)
    data = _read(Path(chosen)) if chosen else {}
    where = chosen or "defaults"
    _overrides(data, environ)
    _refuse_unknown(data, Config, where, "")
    try:
        config = msgspec.convert(data, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where} (with PASSMUSTER_ variables): {_readable(error)}") from None
    _check(config, where)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has {len(raw)} bytes; a configuration has at most {MAX_FILE_BYTES}")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _overrides(data: dict[str, Any], environ: Mapping[str, str]) -> None:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX) or "__" not in variable:
            continue
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
        if section not in Config.__struct_fields__:
            raise ConfigError(f"environment variable {variable}: {_unknown(section, Config.__struct_fields__)}")
        hints = get_type_hints(type(getattr(Config(), section)), include_extras=True)
        if key not in hints:
            raise ConfigError(f"environment variable {variable}: {_unknown(key, tuple(hints))}")
        table = data.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"[{section}] must be a table, because {variable} sets a key in it")
        table[key] = _from_text(text, hints[key], variable)


def _from_text(text: str, annotation: Any, variable: str) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if annotation is str:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        raise ConfigError(f"environment variable {variable}: {text[:64]!r} is not a TOML value") from None


def _refuse_unknown(data: Any, section: Any, where: str, prefix: str) -> None:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: {prefix.rstrip('.') or 'the file'} must be a table")
    hints = get_type_hints(section)
    for key, value in data.items():
        if key not in hints:
            raise ConfigError(f"{where}: {_unknown(prefix + key, [prefix + h for h in hints])}")
        if isinstance(hints[key], type) and issubclass(hints[key], Section):
            _refuse_unknown(value, hints[key], where, f"{prefix}{key}.")


def _unknown(key: str, known: Any) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return f"unknown key {key[:128]!r}; {hint}"


def _readable(error: msgspec.ValidationError) -> str:
    text, _, place = str(error).partition(" - at `$.")
    return f"{place.rstrip('`')}: {text}" if place else text


def _check(config: Config, where: str) -> None:
    """Refuse what each key allows and the whole does not."""
    agent, detectors = config.agent, config.detectors
    if not agent.fast_seconds <= agent.middle_seconds <= agent.slow_seconds:
        raise ConfigError(f"{where}: agent.fast_seconds <= agent.middle_seconds <= agent.slow_seconds must hold")
    for key, mode in detectors.modes.items():
        if mode not in ("off", "store", "shadow", "act"):
            raise ConfigError(f"{where}: detectors.modes.{key} is {mode!r}; it must be off, store, shadow or act")
    acts = detectors.default_mode == "act" or "act" in detectors.modes.values()
    if acts and not detectors.promoted_by:
        raise ConfigError(f"{where}: a mode is 'act', so detectors.promoted_by must name the person who promoted it")
