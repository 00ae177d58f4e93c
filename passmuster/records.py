"""The records: the one language in which collectors, detectors, quarantine and dashboards speak.

Everything else that knows a field (wire JSON, JSON Schema, ClickHouse DDL, docs/records.md, Prometheus
metadata) is derived from the annotations in this file by `passmuster.schema`. To add a field: add one line
here with ``since`` one above the kind's VERSION, raise VERSION, and run ``make docs``.

Rules. Null is never 0: a value that could not be read is null and `missing` (or a reason field) says why.
Vendor sentinels have become null before a record is made. Counters are cumulative and end in ``_total``;
``epoch`` changes when they restart. Times are integer nanoseconds since 1970 in UTC and end in ``_at``.
Base units stand in the names: watts, joules, celsius, hertz, bytes, seconds, ratio (0 to 1).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

INT64_MAX = 2**63 - 1


class Vendor(StrEnum):
    """Who made the device."""

    NVIDIA = "nvidia"
    AMD = "amd"
    HOST = "host"  # the machine itself: CPU, DIMM, PCIe root, NIC
    NONE = "none"  # not known, or no device concerned


class DeviceState(StrEnum):
    """What the last poll of a device came to."""

    OK = "ok"  # it answered
    LOST = "lost"  # the driver says that it is gone, or it left the bus
    HUNG = "hung"  # a call did not come back within its deadline
    UNREADABLE = "unreadable"  # it answered errors only
    UNKNOWN = "unknown"  # not polled yet, or the library is absent


class Health(StrEnum):
    """State of one check on one subject. Only HEALTHY is healthy."""

    HEALTHY = "healthy"  # checked, and within its bound
    DEGRADED = "degraded"  # works, with less than it should have
    UNHEALTHY = "unhealthy"  # must not be given work
    UNKNOWN = "unknown"  # should have been checked and could not be
    UNSUPPORTED = "unsupported"  # this device or driver cannot be asked
    SKIPPED = "skipped"  # left out this time, for a reason that is given
    DISABLED = "disabled"  # switched off by a person


class Severity(StrEnum):
    """How urgent a fault or finding is."""

    INFO = "info"  # trend only
    WARNING = "warning"  # look at it in working hours
    ERROR = "error"  # work is or will be lost; the device needs attention
    CRITICAL = "critical"  # stop giving it work now


class Blame(StrEnum):
    """Where a fault most likely comes from."""

    HARDWARE = "hardware"
    APPLICATION = "application"  # the running program did it
    UNCLEAR = "unclear"
    NONE = "none"  # not a fault


class FaultClass(StrEnum):
    """One class for the codes of both vendors (docs/fault_codes.md)."""

    INFO = "I"  # informational, trend only
    APPLICATION = "A"  # suspect the workload; count distinct jobs
    CONTAINED = "C"  # contained memory error: restart the job, reset when idle
    PENDING = "P"  # a repair waits or was just used: reset when idle
    UNCONTAINED = "U"  # uncontained memory error: stop, hold, test
    REPAIR_FAILED = "R"  # repair capacity used up or failed: return candidate
    HANG = "H"  # hang or firmware death: reset, reboot once, inspect
    LINK = "L"  # link or fabric: blame a pair, cable or switch first
    BUS = "B"  # lost from the bus: reboot once, then inspect
    MISCONFIGURED = "M"  # site, mechanical, software or security configuration
    LEGACY = "V"  # legacy or not expected in data centres: store, no action
    THERMAL = "T"  # heat or power keeps it below its clocks
    SILENT = "S"  # telemetry is silent: unknown, never a verdict on hardware


class Trust(StrEnum):
    """Who could have written the evidence."""

    KERNEL = "kernel"  # the kernel's own log facility
    DRIVER = "driver"  # a vendor library's answer
    AGENT = "agent"  # the host agent saw it itself
    USER = "user"  # user space could have written it


class Mode(StrEnum):
    """What a finding of this detector, class and model may lead to."""

    OFF = "off"
    STORE = "store"  # kept, shown nowhere else
    SHADOW = "shadow"  # shown, and what it would have done is told
    ACT = "act"  # promoted by a named person


class SubjectKind(StrEnum):
    """What a check, finding or hold is about."""

    HOST = "host"
    DEVICE = "device"
    UNIT = "unit"  # an SM, CU, XCD or memory channel of a device
    LINK_PAIR = "link_pair"
    SWITCH = "switch"
    RACK = "rack"
    COHORT = "cohort"
    SOFTWARE = "software"
    JOB = "job"
    PIPELINE = "pipeline"  # our own telemetry path


class HoldKind(StrEnum):
    """A fact of the quarantine ledger."""

    PROPOSED = "proposed"  # the policy would hold; a person may approve
    PLACED = "placed"  # the hold stands
    APPROVED = "approved"  # a person agreed to a proposal
    ACTED = "acted"  # an actuator was told
    READ_BACK = "read_back"  # the actual state was read after acting
    SCREENED = "screened"  # a screen ran on the subject
    RELEASED = "released"  # the hold is over
    LAPSED = "lapsed"  # expired into a person's queue; never a release
    REFUSED = "refused"  # a brake said no
    NOTED = "noted"  # a person wrote something down


class Verdict(StrEnum):
    """Outcome of one numerical or performance check."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not_run"  # with a reason; never a pass
    INCONCLUSIVE = "inconclusive"


def col(
    description: str,
    *,
    unit: str = "",
    nvidia: str = "",
    amd: str = "",
    null: str = "",
    metric: str = "",
    metric_type: str = "gauge",
    labels: str = "",
    since: int = 1,
    **bounds: Any,
) -> Meta:
    """Declare one field: meaning, unit, source call per vendor, null rule, exported metric.

    ``labels`` is ``name=value`` pairs for a scalar field, or bare label names for a map field whose keys are
    split on dots. ``since`` is the record version that brought the field.
    """
    extra = {
        "unit": unit,
        "nvidia": nvidia,
        "amd": amd,
        "null": null,
        "metric": metric,
        "metric_type": metric_type,
        "labels": labels,
        "since": since,
    }
    return Meta(description=description, extra={k: v for k, v in extra.items() if v != ""}, **bounds)


# Bounded scalars. `extra["sql"]` is the ClickHouse type where the Python type alone does not tell.
Nanos = Annotated[int, Meta(ge=0, le=INT64_MAX, extra={"sql": "DateTime64(9, 'UTC')"})]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Word = Annotated[str, Meta(max_length=128, extra={"sql": "LowCardinality(String)"})]
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=4096)]
Key = Annotated[str, Meta(max_length=64)]
Counts = Annotated[dict[Key, Count], Meta(max_length=512)]
Floats = Annotated[dict[Key, float], Meta(max_length=512)]
Words = Annotated[dict[Key, Annotated[str, Meta(max_length=256)]], Meta(max_length=512)]
Evidence = Annotated[dict[Key, Annotated[str, Meta(max_length=2048)]], Meta(max_length=64)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
ExitStatus = Annotated[int, Meta(ge=-1024, le=1024)]
Index = Annotated[int, Meta(ge=-1, le=65536)]


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every record carries. Subclasses set KIND, VERSION and KEY (natural key, see `HEADER`)."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int]
    KEY: ClassVar[tuple[str, ...]]

    cluster: Annotated[Word, col("cluster that the record is of")]
    host: Annotated[Name, col("host that the record is of; empty where it is of no single host")]
    boot_id: Annotated[Word, col("kernel boot id at that time; empty where no host is concerned")]
    observed_at: Annotated[Nanos, col("when it was observed on the host", unit="nanoseconds")]


HEADER = ("cluster", "host", "boot_id")


class GpuReading(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU over one shipped interval: last, min and max of what was sampled faster."""

    KIND: ClassVar[str] = "gpu_reading"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "host", "device_id", "observed_at")

    device_id: Annotated[Name, col("vendor serial, else UUID, else host and PCI address; never the index")]
    vendor: Annotated[Vendor, col("maker of the device")]
    model: Annotated[Word, col("product name as the driver says it")]
    pci_address: Annotated[Word, col("dddd:bb:dd.f in lower case")]
    index: Annotated[Index | None, col("index of the vendor library at that time; not an identity")] = None
    partition: Annotated[Word | None, col("MIG or compute partition id; null for a whole device")] = None
    state: Annotated[DeviceState, col("what the last poll came to", metric="gpu_up")] = DeviceState.UNKNOWN
    interval_seconds: Annotated[float, col("length of the interval that the row stands for", unit="seconds", ge=0.0)] = 0.0
    samples: Annotated[Count, col("polls that succeeded in the interval")] = 0
    epoch: Annotated[Count, col("grows by one each time a counter of this device restarts within a boot")] = 0

    power_watts: Annotated[float | None, col("instant board power, last", unit="watts", nvidia="field 186", amd="power_info.current_socket_power", metric="gpu_power_watts", labels="window=instant")] = None
    power_min_watts: Annotated[float | None, col("lowest instant power in the interval", unit="watts")] = None
    power_max_watts: Annotated[float | None, col("highest instant power in the interval", unit="watts")] = None
    power_average_watts: Annotated[float | None, col("driver's own average power", unit="watts", nvidia="nvmlDeviceGetPowerUsage, field 185", amd="power_info.average_socket_power", metric="gpu_power_watts", labels="window=average")] = None
    power_limit_watts: Annotated[float | None, col("enforced power limit", unit="watts", nvidia="nvmlDeviceGetEnforcedPowerLimit", amd="power_cap_info.power_cap", metric="gpu_power_limit_watts")] = None
    energy_joules_total: Annotated[float | None, col("energy since driver load", unit="joules", nvidia="nvmlDeviceGetTotalEnergyConsumption", amd="energy_count accumulator x resolution", metric="gpu_energy_joules_total", metric_type="counter")] = None

    temperature_core_celsius: Annotated[float | None, col("core temperature", unit="celsius", nvidia="nvmlDeviceGetTemperature", amd="none: amdgpu has edge and hotspot", metric="gpu_temperature_celsius", labels="sensor=core")] = None
    temperature_core_max_celsius: Annotated[float | None, col("highest core temperature in the interval", unit="celsius")] = None
    temperature_edge_celsius: Annotated[float | None, col("edge temperature (absent on MI300 and later)", unit="celsius", amd="temp_metric EDGE", metric="gpu_temperature_celsius", labels="sensor=edge")] = None
    temperature_hotspot_celsius: Annotated[float | None, col("hotspot (junction) temperature", unit="celsius", nvidia="none: NVML exposes no hotspot", amd="temp_metric HOTSPOT", metric="gpu_temperature_celsius", labels="sensor=hotspot")] = None
    temperature_hotspot_max_celsius: Annotated[float | None, col("highest hotspot temperature in the interval", unit="celsius")] = None
    temperature_memory_celsius: Annotated[float | None, col("memory temperature", unit="celsius", nvidia="field 82", amd="temp_metric VRAM", metric="gpu_temperature_celsius", labels="sensor=memory")] = None
    temperature_memory_max_celsius: Annotated[float | None, col("highest memory temperature in the interval", unit="celsius")] = None
    temperature_hbm_celsius: Annotated[Floats | None, col("temperature per HBM stack, by stack number", unit="celsius", amd="temp_metric HBM_n", metric="gpu_temperature_hbm_celsius", labels="stack")] = None
    temperature_margin_celsius: Annotated[float | None, col("degrees left to slowdown", unit="celsius", nvidia="nvmlDeviceGetMarginTemperature", metric="gpu_temperature_margin_celsius")] = None
    temperature_slowdown_celsius: Annotated[float | None, col("temperature at which the device slows down", unit="celsius", nvidia="threshold 1", amd="HOTSPOT CRITICAL", metric="gpu_temperature_limit_celsius", labels="limit=slowdown")] = None
    temperature_shutdown_celsius: Annotated[float | None, col("temperature at which the device shuts down", unit="celsius", nvidia="threshold 0", amd="HOTSPOT EMERGENCY", metric="gpu_temperature_limit_celsius", labels="limit=shutdown")] = None
    temperature_memory_limit_celsius: Annotated[float | None, col("highest allowed memory temperature", unit="celsius", nvidia="threshold 2", amd="VRAM CRITICAL", metric="gpu_temperature_limit_celsius", labels="limit=memory")] = None

    clock_graphics_hertz: Annotated[float | None, col("graphics (shader) clock, last; mean over XCCs on AMD", unit="hertz", nvidia="clock 0", amd="clock_info GFX, gpu_metrics current_gfxclks", metric="gpu_clock_hertz", labels="domain=graphics")] = None
    clock_graphics_min_hertz: Annotated[float | None, col("lowest graphics clock in the interval", unit="hertz")] = None
    clock_graphics_max_hertz: Annotated[float | None, col("highest graphics clock in the interval", unit="hertz")] = None
    clock_graphics_limit_hertz: Annotated[float | None, col("highest graphics clock that the device can run", unit="hertz", nvidia="nvmlDeviceGetMaxClockInfo 0", amd="clock_info GFX max_clk", metric="gpu_clock_limit_hertz", labels="domain=graphics")] = None
    clock_sm_hertz: Annotated[float | None, col("SM clock", unit="hertz", nvidia="clock 1", metric="gpu_clock_hertz", labels="domain=sm")] = None
    clock_memory_hertz: Annotated[float | None, col("memory clock", unit="hertz", nvidia="clock 2", amd="clock_info MEM", metric="gpu_clock_hertz", labels="domain=memory")] = None
    clock_soc_hertz: Annotated[float | None, col("SoC clock", unit="hertz", amd="clock_info SOC", metric="gpu_clock_hertz", labels="domain=soc")] = None

    activity_compute_ratio: Annotated[Ratio | None, col("share of time in which any kernel ran, last", unit="ratio", nvidia="utilization.gpu", amd="gfx_activity", metric="gpu_utilization_ratio", labels="engine=compute")] = None
    activity_compute_min_ratio: Annotated[Ratio | None, col("lowest compute activity in the interval", unit="ratio")] = None
    activity_compute_max_ratio: Annotated[Ratio | None, col("highest compute activity in the interval", unit="ratio")] = None
    activity_memory_ratio: Annotated[Ratio | None, col("share of time in which memory was read or written", unit="ratio", nvidia="utilization.memory", amd="umc_activity", metric="gpu_utilization_ratio", labels="engine=memory")] = None
    sm_activity_ratio: Annotated[Ratio | None, col("share of SMs busy", unit="ratio", nvidia="GPM 2", amd="none: profiler only", metric="gpu_sm_activity_ratio")] = None
    sm_occupancy_ratio: Annotated[Ratio | None, col("share of warp slots filled", unit="ratio", nvidia="GPM 3", amd="none: profiler only", metric="gpu_sm_occupancy_ratio")] = None
    tensor_activity_ratio: Annotated[Ratio | None, col("share of time in which matrix units worked", unit="ratio", nvidia="GPM 5", amd="none: profiler only", metric="gpu_tensor_activity_ratio")] = None
    dram_activity_ratio: Annotated[Ratio | None, col("share of memory bandwidth used", unit="ratio", nvidia="GPM 10", amd="none: profiler only", metric="gpu_dram_activity_ratio")] = None

    memory_total_bytes: Annotated[Count | None, col("device memory", unit="bytes", nvidia="nvmlDeviceGetMemoryInfo v2 total", amd="gpu_memory_total VRAM", metric="gpu_memory_total_bytes")] = None
    memory_used_bytes: Annotated[Count | None, col("device memory in use, without the driver's reserve", unit="bytes", nvidia="memory info v2 used", amd="gpu_memory_usage VRAM", metric="gpu_memory_used_bytes")] = None
    memory_reserved_bytes: Annotated[Count | None, col("device memory kept by the driver", unit="bytes", nvidia="memory info v2 reserved", metric="gpu_memory_reserved_bytes")] = None

    throttle_ratio: Annotated[Floats | None, col("share of samples in the interval in which a reason held the clocks down, by reason (power_cap, sw_thermal, hw_thermal, hw_slowdown, power_brake, sync_boost, app_clocks, idle, prochot, ppt, socket_thermal, vr_thermal, hbm_thermal)", unit="ratio", nvidia="clocks event reasons", amd="delta residency / delta accumulator", metric="gpu_throttle_active", labels="reason")] = None
    throttle_seconds_total: Annotated[Floats | None, col("time throttled since driver load, by reason", unit="seconds", nvidia="violation status, fields 269 to 271", amd="integrated residency", metric="gpu_throttle_seconds_total", metric_type="counter", labels="reason")] = None

    ecc_enabled: Annotated[bool | None, col("ECC mode", nvidia="nvmlDeviceGetEccMode", amd="gpu_ecc_enabled", metric="gpu_ecc_enabled")] = None
    ecc_corrected_total: Annotated[Count | None, col("corrected errors since driver load, all blocks", nvidia="total ECC volatile", amd="total_ecc_count", metric="gpu_ecc_errors_total", metric_type="counter", labels="severity=corrected,scope=volatile")] = None
    ecc_uncorrected_total: Annotated[Count | None, col("uncorrected errors since driver load, all blocks", nvidia="total ECC volatile", amd="total_ecc_count", metric="gpu_ecc_errors_total", metric_type="counter", labels="severity=uncorrected,scope=volatile")] = None
    ecc_deferred_total: Annotated[Count | None, col("deferred (poisoned) errors since driver load", amd="total_ecc_count deferred", metric="gpu_ecc_errors_total", metric_type="counter", labels="severity=deferred,scope=volatile")] = None
    ecc_corrected_lifetime_total: Annotated[Count | None, col("corrected errors over the life of the board", nvidia="total ECC aggregate", metric="gpu_ecc_errors_total", metric_type="counter", labels="severity=corrected,scope=lifetime")] = None
    ecc_uncorrected_lifetime_total: Annotated[Count | None, col("uncorrected errors over the life of the board", nvidia="total ECC aggregate", metric="gpu_ecc_errors_total", metric_type="counter", labels="severity=uncorrected,scope=lifetime")] = None
    ecc_blocks_total: Annotated[Counts | None, col("errors since driver load as block.severity (dram.uncorrected, sram.corrected, umc.deferred)", nvidia="memory error counter DRAM and SRAM", amd="gpu_ecc_count per block", metric="gpu_ecc_block_errors_total", metric_type="counter", labels="block,severity")] = None
    sram_threshold_exceeded: Annotated[bool | None, col("SRAM errors passed the vendor's return threshold", nvidia="SramEccErrorStatus.bThresholdExceeded", metric="gpu_sram_threshold_exceeded")] = None

    rows_remapped_corrected_total: Annotated[Count | None, col("rows remapped after corrected errors", nvidia="nvmlDeviceGetRemappedRows", metric="gpu_rows_remapped", labels="cause=corrected")] = None
    rows_remapped_uncorrected_total: Annotated[Count | None, col("rows remapped after uncorrected errors", nvidia="nvmlDeviceGetRemappedRows", metric="gpu_rows_remapped", labels="cause=uncorrected")] = None
    row_remap_pending: Annotated[bool | None, col("a remap waits for a reset", nvidia="nvmlDeviceGetRemappedRows", metric="gpu_row_remap_pending")] = None
    row_remap_failed: Annotated[bool | None, col("a remap failed", nvidia="nvmlDeviceGetRemappedRows", metric="gpu_row_remap_failed")] = None
    row_remap_banks: Annotated[Counts | None, col("memory banks by spare rows left (max, high, partial, low, none)", nvidia="row remapper histogram", metric="gpu_row_remap_banks", labels="availability")] = None
    repair_pending: Annotated[bool | None, col("a channel or TPC repair waits for a reset", nvidia="nvmlDeviceGetRepairStatus", metric="gpu_repair_pending")] = None
    memory_unrepairable: Annotated[bool | None, col("the device says that its memory cannot be repaired", nvidia="UnrepairableMemoryFlag", metric="gpu_memory_unrepairable")] = None
    bad_pages_reserved: Annotated[Count | None, col("bad pages taken out of use", nvidia="retired pages (before Ampere)", amd="bad_page_info status 0", metric="gpu_bad_pages", labels="state=reserved")] = None
    bad_pages_pending: Annotated[Count | None, col("bad pages that wait for a reset", nvidia="retired pages pending", amd="bad_page_info status 1", metric="gpu_bad_pages", labels="state=pending")] = None
    bad_pages_unreservable: Annotated[Count | None, col("bad pages that could not be taken out of use", amd="bad_page_info status 2", metric="gpu_bad_pages", labels="state=unreservable")] = None
    bad_pages_limit: Annotated[Count | None, col("bad pages at which the vendor wants the board back", amd="bad_page_threshold (needs root)", metric="gpu_bad_page_limit")] = None

    pcie_generation: Annotated[Count | None, col("PCIe generation now; falls when idle on some boards", nvidia="CurrPcieLinkGeneration", amd="pcie_metric.pcie_speed", metric="gpu_pcie_link_generation")] = None
    pcie_generation_max: Annotated[Count | None, col("highest PCIe generation of device and slot", nvidia="MaxPcieLinkGeneration", amd="pcie_static.max_pcie_speed", metric="gpu_pcie_link_generation_max")] = None
    pcie_width: Annotated[Count | None, col("PCIe lanes now", nvidia="CurrPcieLinkWidth", amd="pcie_metric.pcie_width", metric="gpu_pcie_link_width_lanes")] = None
    pcie_width_max: Annotated[Count | None, col("highest PCIe lanes of device and slot", nvidia="MaxPcieLinkWidth", amd="pcie_static.max_pcie_width", metric="gpu_pcie_link_width_max_lanes")] = None
    pcie_errors_total: Annotated[Counts | None, col("PCIe errors by kind (replay, replay_rollover, recovery, correctable, bad_tlp, bad_dllp, nak_sent, nak_received, receiver, nonfatal, fatal, unsupported_request, lcrc, lane); a healthy device shows some", nvidia="fields 94, 95, 169, 173 to 183", amd="pcie_metric", metric="gpu_pcie_errors_total", metric_type="counter", labels="kind")] = None
    pcie_transmit_bytes_total: Annotated[Count | None, col("bytes sent over PCIe, 32-bit counter unwrapped: a lower bound, at full speed it wraps many times between two samples", unit="bytes", nvidia="field 197", metric="gpu_pcie_bytes_total", metric_type="counter", labels="direction=transmit")] = None
    pcie_receive_bytes_total: Annotated[Count | None, col("bytes received over PCIe, 32-bit counter unwrapped: a lower bound, at full speed it wraps many times between two samples", unit="bytes", nvidia="field 198", metric="gpu_pcie_bytes_total", metric_type="counter", labels="direction=receive")] = None

    links_up: Annotated[Count | None, col("NVLink or xGMI links that are up", nvidia="nvmlDeviceGetNvLinkState", amd="xgmi_link_status U", metric="gpu_links_up")] = None
    links_total: Annotated[Count | None, col("NVLink or xGMI links that the device reports", nvidia="links that answer", amd="xgmi_link_status total", metric="gpu_links")] = None
    links: Annotated[Counts | None, col("state per link number: 1 up, 0 down", nvidia="nvmlDeviceGetNvLinkState", amd="xgmi_link_status", metric="gpu_link_up", labels="link")] = None
    link_errors_total: Annotated[Counts | None, col("link errors as link.kind (3.replay, 3.recovery, 3.crc_flit, all.crc_flit)", nvidia="NvLinkErrorCounter, fields 161 to 163, 201 to 222", amd="none per link", metric="gpu_link_errors_total", metric_type="counter", labels="link,kind")] = None
    link_bytes_total: Annotated[Counts | None, col("bytes as link.direction", unit="bytes", nvidia="fields 202 and 204", amd="link_metrics read and write", metric="gpu_link_bytes_total", metric_type="counter", labels="link,direction")] = None
    link_bit_error_ratio: Annotated[Floats | None, col("bit error rate as link.kind (3.effective, 3.symbol); never summed over links", unit="ratio", nvidia="fields 220 and 222, decoded from mantissa and exponent", metric="gpu_link_bit_error_ratio", labels="link,kind")] = None
    link_error_status: Annotated[Count | None, col("sticky xGMI error status: 0 none, 1 one, 2 several", amd="gpu_xgmi_error_status", metric="gpu_link_error_status")] = None
    fabric_state: Annotated[Word | None, col("fabric registration: not_supported, not_started, in_progress, completed", nvidia="GpuFabricInfoV", amd="hive id present", metric="gpu_fabric_state", labels="state")] = None
    fabric_status: Annotated[Count | None, col("error code of the fabric registration, 0 good", nvidia="GpuFabricInfoV status")] = None
    fabric_health: Annotated[Words | None, col("fabric health groups that are not false (degraded_bandwidth, route_recovery, route_unhealthy, access_timeout, misconfiguration)", nvidia="GpuFabricInfoV healthMask")] = None

    recovery_action: Annotated[Word | None, col("what the driver asks for: none, gpu_reset, node_reboot, drain_p2p, drain_and_reset, recover_imex_domain, bus_reset, system_reboot", nvidia="field 230", metric="gpu_recovery_action", labels="action")] = None
    processes: Annotated[Count | None, col("compute processes on the device", nvidia="ComputeRunningProcesses", amd="gpu_process_list", metric="gpu_processes")] = None
    process_memory_bytes: Annotated[Count | None, col("memory of these processes", unit="bytes", metric="gpu_process_memory_bytes")] = None
    mig_enabled: Annotated[bool | None, col("MIG mode", nvidia="nvmlDeviceGetMigMode", metric="gpu_mig_enabled")] = None
    compute_partition: Annotated[Word | None, col("SPX, DPX, TPX, QPX or CPX", amd="gpu_compute_partition")] = None
    memory_partition: Annotated[Word | None, col("NPS1, NPS2, NPS4 or NPS8", amd="gpu_memory_partition")] = None
    missing: Annotated[Words | None, col("why a value is null, by field name: unsupported, failed CODE, permission, stale, sentinel, not_yet")] = None


class HostReading(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One host at one instant, and how its own agent is doing."""

    KIND: ClassVar[str] = "host_reading"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "host", "observed_at")

    agent_version: Annotated[Word, col("passmuster version of the agent")] = ""
    kernel: Annotated[Word | None, col("kernel release")] = None
    drivers: Annotated[Words | None, col("driver version by name (nvidia, amdgpu)")] = None
    uptime_seconds: Annotated[float | None, col("since boot", unit="seconds", metric="host_uptime_seconds")] = None
    gpus_expected: Annotated[Counts | None, col("GPUs by vendor that PCI shows or the configuration expects", metric="host_gpus_expected", labels="vendor")] = None
    gpus_seen: Annotated[Counts | None, col("GPUs by vendor that the vendor library shows", null="library absent or not answering", metric="host_gpus_seen", labels="vendor")] = None
    services: Annotated[Words | None, col("state of the services that GPUs need (nvidia-fabricmanager, nvidia-persistenced, ...): active, inactive, failed, absent", metric="host_service_state", labels="service")] = None
    load_ratio: Annotated[float | None, col("one-minute load over cores", unit="ratio", metric="host_load_ratio")] = None
    memory_total_bytes: Annotated[Count | None, col("host memory", unit="bytes", metric="host_memory_total_bytes")] = None
    memory_available_bytes: Annotated[Count | None, col("host memory available", unit="bytes", metric="host_memory_available_bytes")] = None
    nic_links: Annotated[Words | None, col("InfiniBand or RoCE port state by device/port", metric="host_nic_link_up", labels="port")] = None
    nic_rates: Annotated[Floats | None, col("port rate in bits per second by device/port", unit="bits_per_second")] = None
    nic_errors_total: Annotated[Counts | None, col("port errors as device/port.counter", metric="host_nic_errors_total", metric_type="counter", labels="port,counter")] = None
    aer_errors_total: Annotated[Counts | None, col("PCIe AER totals as address.severity; absent inside most virtual machines", metric="host_aer_errors_total", metric_type="counter", labels="address,severity")] = None
    collectors: Annotated[Words | None, col("state of each collector: ok, absent, failed, hung, disabled")] = None
    collect_seconds: Annotated[Floats | None, col("duration of each collector's last run", unit="seconds", metric="agent_collect_seconds", labels="collector")] = None
    agent_cpu_seconds_total: Annotated[float | None, col("CPU time of the agent and its children", unit="seconds", metric="agent_cpu_seconds_total", metric_type="counter")] = None
    agent_memory_bytes: Annotated[Count | None, col("resident memory of the agent and its children", unit="bytes", metric="agent_memory_bytes")] = None
    spool_bytes: Annotated[Count | None, col("bytes waiting in the spool", unit="bytes", metric="agent_spool_bytes")] = None
    spool_oldest_seconds: Annotated[float | None, col("age of the oldest waiting batch", unit="seconds", metric="agent_spool_oldest_seconds")] = None
    spool_dropped_total: Annotated[Counts | None, col("batches dropped, by record kind", metric="agent_spool_dropped_total", metric_type="counter", labels="kind")] = None
    kernel_log_lost_total: Annotated[Count | None, col("kernel-log records overwritten before they were read", metric="agent_kernel_log_lost_total", metric_type="counter")] = None
    clock_steps_total: Annotated[Count | None, col("times the wall clock jumped by more than a second against the monotonic one", metric="agent_clock_steps_total", metric_type="counter")] = None
    missing: Annotated[Words | None, col("why a value is null, by field name")] = None


class Inventory(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is where, from when until when."""

    KIND: ClassVar[str] = "inventory"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("device_id", "valid_from_at")

    device_id: Annotated[Name, col("as in GpuReading")]
    valid_from_at: Annotated[Nanos, col("first seen in this place and state", unit="nanoseconds")]
    valid_until_at: Annotated[Nanos | None, col("replaced or gone since; null while it holds", unit="nanoseconds")] = None
    vendor: Annotated[Vendor, col("maker of the device")]
    model: Annotated[Word, col("product name")] = ""
    architecture: Annotated[Word | None, col("hopper, blackwell, gfx942, gfx950, ...")] = None
    serial: Annotated[Name | None, col("vendor serial")] = None
    uuid: Annotated[Name | None, col("vendor UUID")] = None
    pci_address: Annotated[Word, col("dddd:bb:dd.f")] = ""
    index: Annotated[Index | None, col("index of the vendor library")] = None
    board_part_number: Annotated[Word | None, col("board part number")] = None
    memory_total_bytes: Annotated[Count | None, col("device memory", unit="bytes")] = None
    memory_vendor: Annotated[Word | None, col("maker of the HBM")] = None
    vbios: Annotated[Word | None, col("VBIOS or IFWI version")] = None
    firmware: Annotated[Words | None, col("firmware versions by name")] = None
    driver: Annotated[Word | None, col("driver version")] = None
    numa_node: Annotated[Index | None, col("NUMA node; -1 where the kernel knows none")] = None
    slot: Annotated[Word | None, col("physical slot or module id")] = None
    rack: Annotated[Word | None, col("rack, from configuration")] = None
    pool: Annotated[Word | None, col("scheduler pool, from configuration")] = None
    power_domain: Annotated[Word | None, col("power domain, from configuration")] = None
    cooling_domain: Annotated[Word | None, col("cooling domain, from configuration")] = None
    switch: Annotated[Word | None, col("leaf switch, from configuration")] = None
    fabric_domain: Annotated[Name | None, col("NVLink clique or xGMI hive")] = None
    in_service_at: Annotated[Nanos | None, col("in-service date, from configuration", unit="nanoseconds")] = None


class FaultEvent(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that a driver, the firmware or the kernel said; repeats raise `count`."""

    KIND: ClassVar[str] = "fault_event"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "host", "boot_id", "device_id", "code", "first_at")

    device_id: Annotated[Name, col("as in GpuReading; empty for the host itself; the PCI address while the device is not identified")] = ""
    vendor: Annotated[Vendor, col("whose code it is")]
    model: Annotated[Word, col("product name where known")] = ""
    pci_address: Annotated[Word | None, col("dddd:bb:dd.f where the text names one")] = None
    source: Annotated[Word, col("kernel_log, nvml, amdsmi, cper, sysfs, agent")]
    kind: Annotated[Word, col("xid, sxid, lost, init_failed, ras, reset_begin, reset_ok, reset_failed, ring_timeout, soft_recovered, page_fault, bad_pages, aer, mce, hung_task, link, thermal, oom, hung_probe, other_fault")]
    code: Annotated[Word, col("kind and number or block, e.g. xid:79, ras:umc:uncorrectable, afid:19")]
    block: Annotated[Word | None, col("hardware block where named")] = None
    fault_class: Annotated[FaultClass, col("class of the code table")]
    severity: Annotated[Severity, col("severity of the code table")]
    blame: Annotated[Blame, col("likely origin")] = Blame.UNCLEAR
    secondary: Annotated[bool, col("follows another fault; never acts alone")] = False
    count: Annotated[Count, col("how often since first_at", metric="gpu_events_total", metric_type="counter", labels="kind,code")] = 1
    first_at: Annotated[Nanos, col("first time", unit="nanoseconds")]
    last_at: Annotated[Nanos, col("last time", unit="nanoseconds")]
    text: Annotated[Text, col("raw text, cut")] = ""
    trust: Annotated[Trust, col("who could have written it")]
    link: Annotated[Word | None, col("link number where named")] = None
    pid: Annotated[Count | None, col("process id where named")] = None
    process: Annotated[Word | None, col("process name where named")] = None
    table_version: Annotated[Count, col("version of the code table that classified it")] = 0


class CheckState(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One check on one subject: checked and fine is recorded, so that silence is not health."""

    KIND: ClassVar[str] = "check_state"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "host", "subject_kind", "subject_id", "check", "since_at")

    subject_kind: Annotated[SubjectKind, col("what was checked")]
    subject_id: Annotated[Name, col("device id, host name, ...")]
    check: Annotated[Word, col("name of the check")]
    check_version: Annotated[Count, col("version of the check")] = 1
    state: Annotated[Health, col("what it came to", metric="check_state", labels="state")]
    since_at: Annotated[Nanos, col("since when it is in this state", unit="nanoseconds")]
    reason: Annotated[Text, col("why, in plain words")] = ""
    value: Annotated[float | None, col("deciding value")] = None
    bound: Annotated[float | None, col("bound that it was held against")] = None


class CheckResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One numerical or performance check."""

    KIND: ClassVar[str] = "check_result"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("screen_id", "device_id", "workload", "seed", "unit")

    screen_id: Annotated[Name, col("screen that it belongs to")]
    mode: Annotated[Word, col("prolog, idle, repair, burn-in, in-job")] = ""
    device_id: Annotated[Name, col("as in GpuReading")]
    vendor: Annotated[Vendor, col("maker of the device")]
    model: Annotated[Word, col("product name")] = ""
    workload: Annotated[Word, col("name of the workload")]
    seed: Annotated[Count, col("seed that replays it")]
    unit: Annotated[Word, col("SM, CU or XCD; empty for the whole device")] = ""
    executions: Annotated[Count, col("times it ran")] = 0
    mismatches: Annotated[Count, col("times it differed")] = 0
    classes: Annotated[list[Word], col("fault classes that it covers", max_length=32)] = []
    digest: Annotated[Name | None, col("digest of the result")] = None
    reference: Annotated[Name | None, col("digest that it was held against")] = None
    kernel: Annotated[Name | None, col("kernel and launch hash")] = None
    cohort: Annotated[Name | None, col("cohort fingerprint")] = None
    voters: Annotated[Count | None, col("devices that voted")] = None
    log_odds: Annotated[float | None, col("log-odds of a faulty device")] = None
    temperature_celsius: Annotated[float | None, col("device temperature", unit="celsius")] = None
    power_watts: Annotated[float | None, col("device power", unit="watts")] = None
    clock_hertz: Annotated[float | None, col("graphics clock", unit="hertz")] = None
    latency_seconds: Annotated[float | None, col("time per run, median", unit="seconds")] = None
    rate: Annotated[float | None, col("FLOP or bytes per second")] = None
    verdict: Annotated[Verdict, col("outcome")]
    reason: Annotated[Text, col("why it did not run or failed")] = ""
    origin: Annotated[Word, col("agent, screen or job; job evidence never places a hold")] = "agent"


class JobRun(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job attempt at its start."""

    KIND: ClassVar[str] = "job_run"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "job", "attempt")

    job: Annotated[Name, col("job id of the scheduler")]
    attempt: Annotated[Count, col("attempt, from 0")] = 0
    tenant: Annotated[Word, col("user or account")] = ""
    workload: Annotated[Word, col("name of the workload")] = ""
    devices: Annotated[list[Name], col("device ids on this host", max_length=4096)] = []
    world_size: Annotated[Count | None, col("ranks")] = None
    batch_size: Annotated[Count | None, col("samples per step over all ranks")] = None
    software: Annotated[Name | None, col("software fingerprint")] = None
    started_at: Annotated[Nanos, col("start", unit="nanoseconds")]


class JobOutcome(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job attempt at its end."""

    KIND: ClassVar[str] = "job_outcome"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "job", "attempt")

    job: Annotated[Name, col("job id of the scheduler")]
    attempt: Annotated[Count, col("attempt, from 0")] = 0
    tenant: Annotated[Word, col("user or account")] = ""
    ended_at: Annotated[Nanos, col("end", unit="nanoseconds")]
    duration_seconds: Annotated[float | None, col("wall time", unit="seconds")] = None
    exit_code: Annotated[ExitStatus | None, col("exit code")] = None
    outcome: Annotated[Word, col("completed, failed, cancelled, timeout, node_fail, unknown")] = "unknown"
    cause: Annotated[Word | None, col("attributed cause")] = None
    cause_confidence: Annotated[Ratio | None, col("confidence of the attribution", unit="ratio")] = None


class StepTiming(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training step of one rank."""

    KIND: ClassVar[str] = "step_timing"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "job", "attempt", "rank", "step")

    job: Annotated[Name, col("job id")]
    attempt: Annotated[Count, col("attempt, from 0")] = 0
    tenant: Annotated[Word, col("user or account")] = ""
    rank: Annotated[Count, col("rank")]
    step: Annotated[Count, col("step number")]
    device_id: Annotated[Name, col("as in GpuReading")] = ""
    wall_seconds: Annotated[float | None, col("wall time of the step", unit="seconds")] = None
    compute_seconds: Annotated[float | None, col("time with a compute kernel running", unit="seconds")] = None
    exposed_communication_seconds: Annotated[float | None, col("communication not hidden by compute", unit="seconds")] = None
    idle_seconds: Annotated[float | None, col("device idle", unit="seconds")] = None
    data_wait_seconds: Annotated[float | None, col("waiting for input", unit="seconds")] = None
    samples: Annotated[Count | None, col("samples in the step")] = None
    energy_joules: Annotated[float | None, col("device energy in the step", unit="joules")] = None
    peak_memory_bytes: Annotated[Count | None, col("memory high-water mark", unit="bytes")] = None


class KernelTiming(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kernel name in one window on one device."""

    KIND: ClassVar[str] = "kernel_timing"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "job", "attempt", "rank", "window_at", "kernel")

    job: Annotated[Name, col("job id")]
    attempt: Annotated[Count, col("attempt, from 0")] = 0
    tenant: Annotated[Word, col("user or account")] = ""
    rank: Annotated[Count, col("rank")] = 0
    window_at: Annotated[Nanos, col("start of the window", unit="nanoseconds")]
    device_id: Annotated[Name, col("as in GpuReading")] = ""
    vendor: Annotated[Vendor, col("maker of the device")]
    provider: Annotated[Word, col("who wrote the kernel: cublas, triton, inductor, aten, ...")] = ""
    kernel: Annotated[Text, col("kernel name")]
    category: Annotated[Word, col("kernel category")] = "other"
    sub_category: Annotated[Word, col("sub-category")] = ""
    workload: Annotated[Word, col("name of the workload")] = ""
    steps: Annotated[Count, col("steps in the window")] = 0
    calls: Annotated[Count, col("launches")] = 0
    sum_seconds: Annotated[float | None, col("sum of durations", unit="seconds")] = None
    union_seconds: Annotated[float | None, col("union of intervals", unit="seconds")] = None
    exclusive_seconds: Annotated[float | None, col("time with no other stream busy", unit="seconds")] = None
    p50_seconds: Annotated[float | None, col("median duration", unit="seconds")] = None
    p99_seconds: Annotated[float | None, col("99th percentile of duration", unit="seconds")] = None
    moved_bytes: Annotated[Count | None, col("bytes moved where known", unit="bytes")] = None
    flop: Annotated[float | None, col("floating-point operations where known")] = None
    classifier_version: Annotated[Count, col("version of the classifier")] = 0
    software: Annotated[Name | None, col("software fingerprint")] = None
    coverage_ratio: Annotated[Ratio | None, col("share of device time that the window's names cover", unit="ratio")] = None


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A detector's conclusion, with a copy of the evidence that decided it."""

    KIND: ClassVar[str] = "finding"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "dedup_key", "opened_at")

    dedup_key: Annotated[Name, col("same condition, same key: detector/code/subject")]
    opened_at: Annotated[Nanos, col("first seen", unit="nanoseconds")]
    last_seen_at: Annotated[Nanos, col("last seen", unit="nanoseconds")]
    cleared_at: Annotated[Nanos | None, col("condition gone; null while open", unit="nanoseconds")] = None
    detector: Annotated[Word, col("name of the detector")]
    detector_version: Annotated[Count, col("version of the detector")] = 1
    mode: Annotated[Mode, col("what it may lead to")] = Mode.SHADOW
    code: Annotated[Word, col("stable code, e.g. memory.row_remap_failed, xid.79")]
    subject_kind: Annotated[SubjectKind, col("what it is about")]
    subject_id: Annotated[Name, col("device id, host name, rack, ...")]
    device_id: Annotated[Name, col("device concerned; empty where none")] = ""
    vendor: Annotated[Vendor, col("maker of the device")] = Vendor.NONE
    model: Annotated[Word, col("product name")] = ""
    pci_address: Annotated[Word | None, col("dddd:bb:dd.f")] = None
    fault_class: Annotated[FaultClass, col("class")]
    severity: Annotated[Severity, col("severity", metric="findings_open", labels="severity")]
    secondary: Annotated[bool, col("follows another fault; never acts alone")] = False
    title: Annotated[Text, col("what is wrong, in plain words")]
    next_step: Annotated[Text, col("what to do")] = ""
    log_odds: Annotated[float | None, col("log-odds where the detector computes them")] = None
    value: Annotated[float | None, col("deciding value")] = None
    bound: Annotated[float | None, col("bound that it was held against")] = None
    evidence: Annotated[Evidence | None, col("copy of the deciding evidence, name to value")] = None


class HoldEvent(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact of the quarantine ledger; observed_at is when it happened."""

    KIND: ClassVar[str] = "hold_event"
    VERSION: ClassVar[int] = 1
    KEY: ClassVar[tuple[str, ...]] = ("cluster", "event_id")

    event_id: Annotated[Name, col("derived from hold, kind and idempotency key; the same fact has the same id")]
    hold_id: Annotated[Name, col("hold that it belongs to")]
    device_id: Annotated[Name, col("device whose fault it is; empty for the whole host")] = ""
    kind: Annotated[HoldKind, col("what happened")]
    actor: Annotated[Word, col("policy, a person's name, or an actuator")]
    reason: Annotated[Text, col("why, in plain words")] = ""
    check: Annotated[Word, col("finding code or check that it rests on")] = ""
    fault_class: Annotated[FaultClass | None, col("class of the evidence")] = None
    value: Annotated[float | None, col("deciding value")] = None
    bound: Annotated[float | None, col("bound that it was held against")] = None
    expires_at: Annotated[Nanos | None, col("when it goes to a person's queue", unit="nanoseconds")] = None
    releases_when: Annotated[Text, col("what releases the hold")] = ""
    policy_hash: Annotated[Word, col("hash of the policy that decided")] = ""
    idempotency_key: Annotated[Name, col("key under which a repeat changes nothing")] = ""
    evidence: Annotated[Evidence | None, col("copy of the deciding evidence")] = None


KINDS: dict[str, type[Record]] = {
    record.KIND: record
    for record in (
        GpuReading,
        HostReading,
        Inventory,
        FaultEvent,
        CheckState,
        CheckResult,
        JobRun,
        JobOutcome,
        StepTiming,
        KernelTiming,
        Finding,
        HoldEvent,
    )
}
"""Every record kind by its name on the wire, in the store and on the bus."""
