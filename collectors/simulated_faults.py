"""The faults that can be planted in a simulated fleet, as a table: kernel-log lines, traces in readings, what to find.

Lines are what the drivers print, taken through the same classifier as on a real host. `{bdf}` is the device's bus
address without function, `{pid}` the process that runs there.
"""
# ruff: noqa: E501 - a kernel-log line stands on one line, as the driver prints it

from __future__ import annotations

from msgspec import Struct

from collectors import simulated_effects as effects
from collectors.simulated_effects import Effect
from collectors.simulated_models import DeviceModel
from passmuster.records import FaultClass, Vendor

NVIDIA, AMD = Vendor.NVIDIA, Vendor.AMD


class FaultKind(Struct, frozen=True, kw_only=True):
    """One kind of fault that can be planted."""

    name: str
    fault_class: FaultClass
    vendors: tuple[Vendor, ...]
    what: str
    finding: str | None  # finding code that should come of it; None: nothing may
    lasts_seconds: float = 2400.0
    lines: tuple[tuple[float, str], ...] = ()  # seconds after it struck, kernel-log line
    on_device: Effect | None = None
    on_siblings: bool = False  # `on_device` holds for every device of the host
    on_host: Effect | None = None
    fate: str = ""  # lost, hung: no values; absent: no row either
    silent: bool = False  # the host sends nothing
    whole_rack: bool = False
    kills_job: bool = False
    blocks_jobs: bool = False
    reboot: bool = False  # repaired by a reboot, after which counters start again


_RESET = "amdgpu {bdf}.0: amdgpu: GPU reset begin!. Source:  1"
_RESET_OK = "amdgpu {bdf}.0: amdgpu: GPU reset(1) succeeded!"

KINDS: tuple[FaultKind, ...] = (
    FaultKind(
        name="device_lost",
        fault_class=FaultClass.BUS,
        vendors=(NVIDIA,),
        what="the GPU leaves the PCIe bus (XID 79) and answers GPU_IS_LOST",
        finding="device.lost",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
            (0.0, "NVRM: GPU {bdf}.0: GPU has fallen off the bus."),
            (0.2, "NVRM: Xid (PCI:{bdf}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        ),
        fate="lost",
        kills_job=True,
        blocks_jobs=True,
        reboot=True,
    ),
    FaultKind(
        name="umc_uncorrectable",
        fault_class=FaultClass.UNCONTAINED,
        vendors=(AMD,),
        what="uncorrectable HBM errors are consumed; the driver resets the GPU, bad pages wait for a reload",
        finding="memory.uncorrected",
        lines=(
            (0.0, "amdgpu {bdf}.0: amdgpu: poison is consumed by client 10, kick off gpu reset flow"),
            (0.1, "amdgpu {bdf}.0: {{1}}socket: 0, die: 2, 2 new uncorrectable hardware errors detected in umc block"),
            (0.3, _RESET),
            (4.0, _RESET_OK),
        ),
        on_device=effects.umc,
        kills_job=True,
        reboot=True,
    ),
    FaultKind(
        name="application_fault",
        fault_class=FaultClass.APPLICATION,
        vendors=(NVIDIA,),
        what="a job writes outside its memory (XID 31, 13); the next job runs well",
        finding=None,
        lasts_seconds=300.0,
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 31, pid={pid}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f1c_84000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"),
            (0.1, "NVRM: Xid (PCI:{bdf}): 13, pid={pid}, name=python3, Graphics SM Warp Exception on (GPC 2, TPC 3, SM 1): Out Of Range Address"),
            (0.2, "NVRM: Xid (PCI:{bdf}): 45, pid={pid}, name=python3, Ch 00000008"),
        ),
        kills_job=True,
    ),
    FaultKind(
        name="link_down",
        fault_class=FaultClass.LINK,
        vendors=(NVIDIA,),
        what="one NVLink of the GPU goes down (XID 74)",
        finding="link.down",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"),
        ),
        on_device=effects.link_down,
        kills_job=True,
        reboot=True,
    ),
    FaultKind(
        name="thermal_throttling",
        fault_class=FaultClass.THERMAL,
        vendors=(NVIDIA, AMD),
        what="a blocked coolant path: the GPU reaches its slowdown temperature under load",
        finding="thermal.hw_throttle",
        lasts_seconds=3000.0,
        on_device=effects.hot,
    ),
    FaultKind(
        name="uncontained_memory_error",
        fault_class=FaultClass.UNCONTAINED,
        vendors=(NVIDIA,),
        what="a double-bit DRAM error escapes (XID 48, 95); a row remap waits for a reset",
        finding="memory.uncorrected",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 48, pid={pid}, name=python3, An uncorrectable double bit error (DBE) has been detected on GPU (00000001 00000000)."),
            (0.1, "NVRM: Xid (PCI:{bdf}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000024f1a5b0) marked for remapping, reset gpu to activate."),
            (0.2, "NVRM: Xid (PCI:{bdf}): 95, pid={pid}, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No"),
            (0.3, "NVRM: Xid (PCI:{bdf}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
            (0.4, "NVRM: Xid (PCI:{bdf}): 45, pid={pid}, name=python3, Ch 00000008"),
        ),
        on_device=effects.remap_pending,
        kills_job=True,
        blocks_jobs=True,
        reboot=True,
    ),
    FaultKind(
        name="contained_memory_error",
        fault_class=FaultClass.CONTAINED,
        vendors=(NVIDIA,),
        what="a contained DRAM error (XID 94, 63): the job dies, a row remap waits for a reset",
        finding="memory.uncorrected_contained",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000024f1a5b0) marked for remapping, reset gpu to activate."),
            (0.1, "NVRM: Xid (PCI:{bdf}): 94, pid={pid}, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
        ),
        on_device=effects.contained,
        kills_job=True,
        reboot=True,
    ),
    FaultKind(
        name="poison_contained",
        fault_class=FaultClass.CONTAINED,
        vendors=(AMD,),
        what="a deferred HBM error: poison is created and contained, a bad page waits for a reload",
        finding="memory.deferred",
        lines=((0.0, "amdgpu {bdf}.0: {{2}}socket: 0, die: 1, 1 new deferred hardware errors detected in umc block"),),
        on_device=effects.deferred,
        reboot=True,
    ),
    FaultKind(
        name="row_remap_failed",
        fault_class=FaultClass.REPAIR_FAILED,
        vendors=(NVIDIA,),
        what="a row remap fails (XID 64)",
        finding="memory.row_remap_failed",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 64, pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row (0x0000000024f1a5b0)"),
        ),
        on_device=effects.remap_failed,
        kills_job=True,
        reboot=True,
    ),
    FaultKind(
        name="spare_rows_exhausted",
        fault_class=FaultClass.REPAIR_FAILED,
        vendors=(NVIDIA,),
        what="a memory bank has no spare rows left",
        finding="memory.no_spare_rows",
        on_device=effects.no_spare_rows,
        reboot=True,
    ),
    FaultKind(
        name="sram_threshold",
        fault_class=FaultClass.REPAIR_FAILED,
        vendors=(NVIDIA,),
        what="SRAM errors pass the vendor's return threshold",
        finding="memory.sram_threshold",
        on_device=effects.sram_threshold,
        reboot=True,
    ),
    FaultKind(
        name="bad_page_limit",
        fault_class=FaultClass.REPAIR_FAILED,
        vendors=(AMD,),
        what="the bad-page threshold is reached",
        finding="memory.bad_pages_limit",
        lines=((0.0, "amdgpu {bdf}.0: amdgpu: Saved bad pages {pages} reaches threshold value {limit}"),),
        on_device=effects.bad_page_limit,
        reboot=True,
    ),
    FaultKind(
        name="corrected_storm",
        fault_class=FaultClass.INFO,
        vendors=(NVIDIA, AMD),
        what="corrected memory errors at forty a second",
        finding="memory.corrected_storm",
        on_device=effects.corrected_storm,
    ),
    FaultKind(
        name="device_missing",
        fault_class=FaultClass.BUS,
        vendors=(AMD,),
        what="the GPU is lost from the bus and no longer listed",
        finding="device.lost",
        lines=((0.0, "amdgpu {bdf}.0: amdgpu: device lost from bus!"),),
        fate="absent",
        kills_job=True,
        blocks_jobs=True,
        reboot=True,
    ),
    FaultKind(
        name="gsp_timeout",
        fault_class=FaultClass.HANG,
        vendors=(NVIDIA,),
        what="the GPU's system processor does not answer (XID 119)",
        finding="xid.119",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 119, pid={pid}, name=python3, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801348 0x410)."),
            (0.3, "NVRM: Xid (PCI:{bdf}): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ),
        on_device=effects.firmware_dead,
        kills_job=True,
        blocks_jobs=True,
        reboot=True,
    ),
    FaultKind(
        name="ring_timeout",
        fault_class=FaultClass.HANG,
        vendors=(AMD,),
        what="a compute ring hangs and the driver resets the GPU",
        finding="ring_timeout",
        lines=(
            (0.0, "amdgpu {bdf}.0: amdgpu: ring comp_1.0.0 timeout, signaled seq=1705630, emitted seq=1705633"),
            (0.1, "amdgpu {bdf}.0: amdgpu: Process information: process python3 pid {pid} thread python3 pid {pid}"),
            (0.3, _RESET),
            (5.0, _RESET_OK),
        ),
        kills_job=True,
    ),
    FaultKind(
        name="page_fault",
        fault_class=FaultClass.APPLICATION,
        vendors=(AMD,),
        what="a job reads outside its memory (GPU page fault); the next job runs well",
        finding=None,
        lasts_seconds=300.0,
        lines=(
            (0.0, "amdgpu {bdf}.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32771, for process python3 pid {pid} thread python3 pid {pid})"),
        ),
        kills_job=True,
    ),
    FaultKind(
        name="channel_cleanup",
        fault_class=FaultClass.INFO,
        vendors=(NVIDIA,),
        what="the driver cleans up after a job that was killed (XID 45 alone)",
        finding=None,
        lasts_seconds=120.0,
        lines=((0.0, "NVRM: Xid (PCI:{bdf}): 45, pid={pid}, name=python3, Ch 00000010"),),
    ),
    FaultKind(
        name="forged_line",
        fault_class=FaultClass.INFO,
        vendors=(NVIDIA,),
        what="a user writes an XID 79 line into the kernel log; nobody may believe it",
        finding=None,
        lasts_seconds=120.0,
        # 12: facility 1, user space.
        lines=((0.0, "12,83124,94021334512,-;NVRM: Xid (PCI:{bdf}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),),
    ),
    FaultKind(
        name="power_brake",
        fault_class=FaultClass.THERMAL,
        vendors=(NVIDIA,),
        what="a power supply fails: the power brake holds all GPUs of the host down",
        finding="power.brake",
        on_device=effects.power_brake,
        on_siblings=True,
    ),
    FaultKind(
        name="pcie_width",
        fault_class=FaultClass.LINK,
        vendors=(NVIDIA, AMD),
        what="the PCIe link runs at 8 lanes of 16",
        finding="pcie.width_loss",
        on_device=effects.half_width,
        reboot=True,
    ),
    FaultKind(
        name="replay_storm",
        fault_class=FaultClass.LINK,
        vendors=(NVIDIA, AMD),
        what="PCIe replays at several a second",
        finding="pcie.error_rate",
        on_device=effects.replay_storm,
        on_host=effects.aer,
        reboot=True,
    ),
    FaultKind(
        name="link_errors",
        fault_class=FaultClass.LINK,
        vendors=(NVIDIA,),
        what="CRC errors and replays on one NVLink that stays up",
        finding="link.error_rate",
        on_device=effects.link_errors,
        reboot=True,
    ),
    FaultKind(
        name="xgmi_errors",
        fault_class=FaultClass.LINK,
        vendors=(AMD,),
        what="an xGMI link reports uncorrectable errors and goes down",
        finding="link.down",
        lines=(
            (0.0, "amdgpu {bdf}.0: {{3}}socket: 0, die: 0, 1 new uncorrectable hardware errors detected in xgmi_wafl block"),
        ),
        on_device=effects.link_down,
        kills_job=True,
        reboot=True,
    ),
    FaultKind(
        name="fabric_manager",
        fault_class=FaultClass.MISCONFIGURED,
        vendors=(NVIDIA,),
        what="the fabric manager died; the GPUs are not registered with the fabric",
        finding="service.down",
        on_device=effects.fabric_lost,
        on_siblings=True,
        on_host=effects.fabric_manager,
    ),
    FaultKind(
        name="recovery_action",
        fault_class=FaultClass.PENDING,
        vendors=(NVIDIA,),
        what="the driver asks to drain and reset the GPU",
        finding="recovery.drain_and_reset",
        lines=(
            (0.0, "NVRM: Xid (PCI:{bdf}): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"),
        ),
        on_device=effects.drain_and_reset,
        reboot=True,
    ),
    FaultKind(
        name="nic_flap",
        fault_class=FaultClass.LINK,
        vendors=(NVIDIA, AMD),
        what="a network port goes down and up",
        finding="nic.flapping",
        lasts_seconds=900.0,
        lines=((0.0, "mlx5_core 0000:63:00.0 ens2np0: Link down"),),
        on_host=effects.nic_flap,
    ),
    FaultKind(
        name="hung_probe",
        fault_class=FaultClass.HANG,
        vendors=(NVIDIA, AMD),
        what="a driver call never returns: the agent's probe hangs",
        finding="device.hung",
        lasts_seconds=1200.0,
        on_siblings=True,
        fate="hung",
        kills_job=True,
        blocks_jobs=True,
        reboot=True,
    ),
    FaultKind(
        name="silent_host",
        fault_class=FaultClass.SILENT,
        vendors=(NVIDIA, AMD),
        what="the host's agent stops reporting",
        finding="host.silent",
        lasts_seconds=900.0,
        silent=True,
    ),
    FaultKind(
        name="frozen_sensor",
        fault_class=FaultClass.SILENT,
        vendors=(NVIDIA, AMD),
        what="the GPU's readings stand still under load",
        finding="telemetry.frozen",
        # The device model itself keeps the frozen values: no closed form knows them.
    ),
    FaultKind(
        name="silent_rack",
        fault_class=FaultClass.SILENT,
        vendors=(NVIDIA, AMD),
        what="a rack's switch fails: all its hosts stop reporting",
        finding="rack.silent",
        lasts_seconds=900.0,
        silent=True,
        whole_rack=True,
    ),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}


def line_text(template: str, model: DeviceModel, device: int, pid: int) -> str:
    """Fill in a kernel-log line for one device."""
    limit = model.bad_page_limit or 0
    return template.format(bdf=model.pci_address(device).removesuffix(".0"), pid=pid, pages=limit + 1, limit=limit)
