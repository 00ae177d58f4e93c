"""The stable finding codes: what each means in plain words, its class and severity, and what to do next."""

from __future__ import annotations

from msgspec import Struct

from passmuster.records import FaultClass, Severity


class FindingCode(Struct, frozen=True):
    """One code. A detector may raise or lower class and severity where its docstring says so."""

    code: str
    fault_class: FaultClass
    severity: Severity
    title: str
    next_step: str


_RETURN = "Hold the GPU, run the vendor's field diagnostic and start a vendor return."
_RESET_IDLE = "Reset the GPU when it is idle, then check that the state is gone."
_STOP_TEST = "Stop the job, hold the GPU, reset it and run a memory test; release it when that passes."
_REBOOT_ONCE = "Hold the host, collect the logs, reboot once; if it comes back, reseat or replace the part."
_LINK_FIRST = "Look at the link pair, cable and switch before the GPU; reset the link, then compare with its siblings."
_COOLING = "Check airflow, fans, coolant flow and inlet temperature; compare with the neighbours in the rack."
_POWER = "Check power supplies, power cabling and the power limit that was set."
_TELEMETRY = "Check the agent and the driver on this host; the hardware is not judged by silence."

_ROWS = (
    ("memory.uncorrected", "U", "critical", "Uncorrectable memory errors happened", _STOP_TEST),
    (
        "memory.uncorrected_contained",
        "C",
        "error",
        "An uncorrectable memory error happened and the driver contained it",
        "Restart the job that it hit, reset the GPU when idle, and count the repeats.",
    ),
    (
        "memory.uncorrected_since_load",
        "C",
        "error",
        "The GPU counts uncorrectable errors since its driver was loaded; when they happened was not seen",
        "Look for the fault in the kernel log of this boot; reset the GPU when idle.",
    ),
    (
        "memory.block_uncorrected",
        "C",
        "error",
        "A hardware block of the GPU reported uncorrectable errors",
        "Restart the job, reset the GPU when idle, and count the repeats by block.",
    ),
    (
        "memory.deferred",
        "C",
        "error",
        "Uncorrectable data was found and poisoned before anybody used it",
        "Reset the GPU when idle so that the bad pages are taken out of use; count the repeats.",
    ),
    ("memory.sram_threshold", "R", "critical", "SRAM errors passed the vendor's return threshold", _RETURN),
    (
        "memory.corrected_storm",
        "I",
        "warning",
        "Memory errors are corrected at a high rate",
        "Watch the trend and screen the GPU soon; one failing row can hide behind corrections.",
    ),
    ("memory.row_remap_pending", "P", "warning", "A bad memory row waits for a reset to be replaced", _RESET_IDLE),
    (
        "memory.row_remap_failed",
        "R",
        "critical",
        "A bad memory row could not be replaced: the repair failed",
        _RETURN,
    ),
    (
        "memory.no_spare_rows",
        "R",
        "error",
        "Some memory banks have no spare rows left: the next bad row there cannot be repaired",
        _RETURN,
    ),
    ("memory.repair_pending", "P", "warning", "A memory channel or unit repair waits for a reset", _RESET_IDLE),
    ("memory.unrepairable", "R", "critical", "The GPU says that its memory cannot be repaired", _RETURN),
    (
        "memory.bad_pages_pending",
        "P",
        "warning",
        "Bad memory pages wait for a reset to be taken out of use",
        _RESET_IDLE,
    ),
    (
        "memory.bad_pages_near_limit",
        "P",
        "warning",
        "The list of bad memory pages is nearly full",
        "Plan the return: hold the GPU at the end of its job.",
    ),
    ("memory.bad_pages_limit", "R", "critical", "The vendor's limit of bad memory pages is reached", _RETURN),
    ("memory.bad_pages_unreservable", "R", "critical", "A bad memory page could not be taken out of use", _RETURN),
    ("device.lost", "B", "critical", "The GPU is lost: it does not answer on its bus", _REBOOT_ONCE),
    (
        "device.hung",
        "H",
        "error",
        "The driver does not answer for this GPU within its deadline",
        "Do not start work on it; collect a bug report, reset the GPU, reboot once if the reset hangs too.",
    ),
    (
        "device.unreadable",
        "H",
        "error",
        "The GPU answers with errors only",
        "Collect a bug report, reset the GPU; reboot once if it stays so.",
    ),
    ("device.missing", "B", "critical", "The host has fewer GPUs than it should have", _REBOOT_ONCE),
    (
        "recovery.gpu_reset",
        "H",
        "critical",
        "The driver asks for a reset of this GPU",
        "Drain the host and reset the GPU.",
    ),
    ("recovery.bus_reset", "H", "critical", "The driver asks for a bus reset of this GPU", "Drain and reset the bus."),
    (
        "recovery.node_reboot",
        "H",
        "critical",
        "The driver asks for a reboot of this host",
        "Drain and reboot the host.",
    ),
    (
        "recovery.system_reboot",
        "H",
        "critical",
        "The driver asks for a reboot of this host",
        "Drain and reboot the host.",
    ),
    (
        "recovery.drain_p2p",
        "L",
        "error",
        "The driver asks to stop traffic between GPUs before recovery",
        "Let no new multi-GPU job start; drain, then reset the GPUs of this link domain.",
    ),
    (
        "recovery.drain_and_reset",
        "P",
        "warning",
        "The driver asks to drain this GPU and reset it when convenient",
        "Let the running work finish, then reset the GPU.",
    ),
    (
        "recovery.recover_imex_domain",
        "L",
        "error",
        "The driver asks to recover the multi-node memory domain",
        "Restart the IMEX service of the domain; look at its other hosts.",
    ),
    (
        "recovery.other",
        "P",
        "warning",
        "The driver asks for a recovery action that this program does not know",
        "Read the driver's release notes for the action named; reset the GPU when idle.",
    ),
    (
        "thermal.hw_throttle",
        "T",
        "error",
        "The hardware cuts the clocks because of heat",
        _COOLING,
    ),
    ("thermal.sw_throttle", "T", "warning", "The driver holds the clocks down because of heat", _COOLING),
    ("thermal.hot", "T", "warning", "The GPU is within a few degrees of its slowdown temperature", _COOLING),
    ("thermal.shutdown_near", "T", "critical", "The GPU is close to its shutdown temperature", _COOLING),
    ("thermal.memory_hot", "T", "error", "The memory is above its highest allowed temperature", _COOLING),
    ("power.brake", "T", "error", "An outside signal cuts the clocks: power brake or processor hot", _POWER),
    ("power.hw_slowdown", "T", "error", "The hardware cuts the clocks, and gives no closer reason", _POWER),
    (
        "power.capped_below_limit",
        "T",
        "warning",
        "The power cap holds the clocks down although the GPU draws far less than its limit",
        _POWER,
    ),
    (
        "power.limit_reduced",
        "T",
        "warning",
        "The power limit is far below that of the same GPUs in this host",
        "Ask who set the limit; set it back with the vendor's tool.",
    ),
    (
        "pcie.width_loss",
        "L",
        "error",
        "The PCIe link runs with fewer lanes than it has",
        "Reseat the GPU or riser; retrain.",
    ),
    (
        "pcie.generation_loss",
        "L",
        "warning",
        "The PCIe link stays at a lower generation while the GPU works",
        "Retrain the link; check riser and slot settings.",
    ),
    (
        "pcie.error_rate",
        "L",
        "warning",
        "PCIe errors come at a high rate",
        "Check riser, slot and cable; compare siblings.",
    ),
    ("pcie.fatal", "L", "critical", "A fatal PCIe error happened", _LINK_FIRST),
    ("pcie.nonfatal", "L", "error", "An uncorrected PCIe error happened", _LINK_FIRST),
    ("link.down", "L", "error", "A link between GPUs is down", _LINK_FIRST),
    ("link.error_rate", "L", "warning", "Errors on links between GPUs come at a high rate", _LINK_FIRST),
    ("link.error_status", "L", "warning", "The GPU reports an error on its links", _LINK_FIRST),
    (
        "fabric.not_completed",
        "L",
        "error",
        "The GPU has not joined its fabric",
        "Check the fabric manager on this host, then the switches of the domain.",
    ),
    (
        "fabric.unhealthy",
        "L",
        "error",
        "The fabric reports that this GPU's part of it is not healthy",
        "Check the fabric manager, then the switches of the domain.",
    ),
    ("nic.link_down", "L", "error", "A network port that was up is down", "Check cable, module and switch port."),
    ("nic.flapping", "L", "warning", "A network port goes down and up again and again", "Check cable and module."),
    ("nic.error_rate", "L", "warning", "A network port counts errors at a high rate", "Check cable and module."),
    (
        "service.down",
        "M",
        "error",
        "A service that the GPUs need does not run",
        "Start the service and read its log; multi-GPU jobs fail without it.",
    ),
    ("host.silent", "S", "warning", "The host has stopped reporting", _TELEMETRY),
    (
        "rack.silent",
        "S",
        "warning",
        "Most hosts of one rack have stopped reporting",
        "Look at the rack's network and power first; no host is judged by silence.",
    ),
    (
        "pipeline.silent",
        "S",
        "error",
        "Most hosts have stopped reporting: our own path is the likely cause",
        "Look at bus, ingest and this detector's own lag first.",
    ),
    ("device.silent", "S", "warning", "The host reports and this GPU does not", _TELEMETRY),
    (
        "telemetry.frozen",
        "S",
        "warning",
        "Power, temperature and clocks have not moved at all while the GPU works",
        "Restart the agent; if it stays so, reset the GPU: its sensors cannot be believed.",
    ),
    ("telemetry.energy_stuck", "S", "warning", "The energy counter stands still while the GPU draws power", _TELEMETRY),
    (
        "telemetry.activity_zero",
        "S",
        "warning",
        "The GPU draws much power and reports no activity",
        "Believe power and clocks; check driver and library versions.",
    ),
    ("telemetry.field_lost", "S", "warning", "Values that this GPU used to report have become null", _TELEMETRY),
)

CODES: dict[str, FindingCode] = {
    code: FindingCode(code, FaultClass(letter), Severity(severity), title, step)
    for code, letter, severity, title, step in _ROWS
}
"""Every code of the detectors but those of `fault_codes`, whose words are the fault table's (passmuster.faults)."""
