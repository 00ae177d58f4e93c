"""What drivers and the kernel have written over the years about faults, as one table of patterns per driver.

A pattern is matched at the start of the message body: after the prefix of the log and after the head that names
driver and device (`collectors.kernel_log_classify` takes both off). The first pattern that matches decides.
Named groups fill the fields of the answer. Sources: printk formats of Linux 4.15 to 7.0 (files named beside the
groups), NVIDIA/open-gpu-kernel-modules, and lines quoted in public issues (tests/data/kernel_log/lines.tsv).
"""

# ruff: noqa: E501, ISC004  # one form of line per row reads better than its wrapping
from __future__ import annotations

import re
from functools import cached_property
from typing import Any, NamedTuple

PCI = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"


class Pattern(NamedTuple):
    """One form of line. ``kind`` none says: looks like a fault and is none."""

    regex: re.Pattern[str]
    kind: str
    code: str | None = None  # where the text does not carry the code itself
    continuation: bool = False  # tells more of a fault that another line reports: not counted


class Table:
    """Patterns of one driver: a regular expression and the fields of `Pattern` after it, per row.

    Compiled when a line of that driver comes: all of them cost 0.15 s, which no short command shall pay.
    """

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self._rows = rows

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The rows, compiled."""
        return tuple(Pattern(re.compile(regex), *fields) for regex, *fields in self._rows)


CONTINUED = True

# fmt: off

# drivers/gpu/drm/amd: amdgpu, amdkfd, pm
AMD = Table(
    # amdgpu_ras.c, nbio_v7_*.c; before 5.x "N uncorrectable errors detected in UMC block"
    (r"(?:socket: ?\d+,? ?(?:die: ?\d+,? ?)?)?(?:no|0)(?: new)? (?:un)?(?:correctable|deferred)(?: hardware)? errors?\b", "none"),
    (
        r"(?:socket: ?(?:\d+),? ?(?:die: ?(?:\d+),? ?)?)?(?P<total>\d{1,19}) "
        r"(?P<code>uncorrectable|correctable|deferred)(?: hardware)? errors? detected in total in (?P<block>\w{1,32})",
        "ras", None, CONTINUED,
    ),
    (
        r"(?:socket: ?(?:\d+),? ?(?:die: ?(?:\d+),? ?)?)?(?P<count>\d{1,19}) (?:new )?"
        r"(?P<code>uncorrectable|correctable|deferred)(?: hardware)? errors? detected in (?P<block>\w{1,32})(?P<detail>, instance:)?",
        "ras",
    ),
    # cut before the block was named
    (
        r"(?:socket: ?(?:\d+),? ?(?:die: ?(?:\d+),? ?)?)?(?P<count>\d{1,19}) (?:new )?"
        r"(?P<code>uncorrectable|correctable|deferred)(?: hardware)? err",
        "ras",
    ),
    (r"(?:socket: ?(?:\d+),? ?(?:die: ?(?:\d+),? ?)?)?(?P<total>\d{1,19}) poison consumption detected in total in (?P<block>\w{1,32})", "ras", "poison_consumed", CONTINUED),
    (r"(?:socket: ?(?:\d+),? ?(?:die: ?(?:\d+),? ?)?)?(?P<count>\d{1,19}) (?:new )?poison consumption detected in (?P<block>\w{1,32})", "ras", "poison_consumed"),
    (r"RAS event \(block: (?P<block>\w{1,32})\): (?P<code>uncorrectable|correctable|deferred) error", "ras"),
    (r"uncorrectable hardware error ?\((?P<text>ERREVENT_\w{1,48})\)?", "ras", "fatal"),
    (r"RAS controller interrupt triggered by (?P<block>\w{1,16}) error", "ras", "fatal"),
    (r"(?:RAS )?(?:ATHUB )?err_event_athub", "ras", "fatal"),
    (r"RAS Intr triggered, device disabled|\w{3,8} VCPU state may lost due to RAS", "ras", "fatal", CONTINUED),
    (r"\[Hardware [Ee]rror\]:? ?Accelerator Check Architecture events logged", "ras", "aca"),
    (r"\[Hardware [Ee]rror\]:?", "ras", "aca", CONTINUED),
    (r"(?:aca entry\[|ACA\[)\d", "ras", "aca", CONTINUED),
    (r"Accelerator Check Architecture events logged", "ras", "aca"),
    (r"Poison is created", "ras", "poison_created"),
    (r"[Pp]oison is consumed by client ?(?:\d+)", "ras", "poison_consumed"),
    (r"(?:GPU reset for (?P<block>\w{1,16}) )?RAS poison consumption", "ras", "poison_consumed", CONTINUED),
    (r"CP ECC ERROR IRQ", "ras", "gfx:uncorrectable"),
    (r"Uncorrectable error detected in (?P<block>UMC) inst", "ras", "uncorrectable"),
    (r"(?P<block>GFX) Watchdog Timeout", "ras", "watchdog"),
    (r"(?P<block>GFX|MMHUB|SDMA|UMC) Sub[Bb]lock .{1,120}?(?:SED \d+, )?DED [1-9]", "ras", "uncorrectable", CONTINUED),
    (r"(?P<block>GFX|MMHUB|SDMA|UMC) Sub[Bb]lock .{1,120}?(?:SEC|SED) [1-9]", "ras", "correctable", CONTINUED),
    (r"Instance\[\d+\]: SubBlock \w{1,64}, DED [1-9]", "ras", "uncorrectable", CONTINUED),
    (r"Instance\[\d+\]: SubBlock \w{1,64}, SEC [1-9]", "ras", "correctable", CONTINUED),
    (r"(?:GCEA|MMEA\w{0,4}|EA) err detected at instance", "ras", "gfx:uncorrectable"),
    (r"GFX (?:UTCL2|VML2|VML2 Walker) Mem Ecc Status: 0x", "ras", "gfx:uncorrectable"),
    (r"Poison setting is inconsistent", "other_fault", "poison_setting"),
    # amdgpu_ras.c, boot-time status of the accelerator; the numbers are AFIDs
    (r"socket: ?\d+, aid: ?\d+,(?: hbm: ?(?:\d+),)? fw_status: ?0x[0-9a-f]+, (?P<boot>[a-z ]{4,48})", "init_failed"),
    # amdgpu_ras_eeprom.c, amdgpu_ras.c
    (r"Saved bad pages (?P<count>\d+) reaches threshold value (?:\d+)", "bad_pages", "threshold"),
    (r"RAS records:\s?(?P<count>\d+) exceeds? 90%", "bad_pages", "near_threshold"),
    (r"RAS records:\s?(?P<count>\d+) exceeds? threshold:\s?(?:\d+)", "bad_pages", "threshold"),
    (r"This GPU is in BAD status|Please retire it or set a larger threshold|.{0,40}bad_page_threshold = -\d", "bad_pages", "threshold", CONTINUED),
    (r"Saved (?P<count>\d+) (?:bad )?pages to EEPROM table", "bad_pages", "retired"),
    (r"RAS WARN: (?:reserve vram for retired page|failed to reserve bad page)|[Ff]ailed to reserve bad page", "bad_pages", "unreservable"),
    (r"bad page 0x[0-9a-f]+ reserved", "bad_pages", "retired"),
    (r"RAS WARN: 0x[0-9a-f]+ has already been marked as bad", "bad_pages", "retired", CONTINUED),
    (r"RAS [Tt]able incorrect checksum|RAS header invalid|Failed to (?:load|save) EEPROM table|EEPROM failed reading records", "bad_pages", "record"),
    # heat and power
    (r"(?:ERROR: )?GPU over temperature range|(?:ERROR: )?GPU HW Critical Temperature Fault|ERROR: GPU under temperature range detected", "thermal", "critical"),
    (r"ERROR: System is going to shutdown due to GPU", "thermal", "critical", CONTINUED),
    (r"WARN: GPU (?:is throttled|thermal throttling)", "thermal"),
    # resets: amdgpu_device.c, amdgpu_reset.c, amdgpu_job.c, amdgpu_ring.c, aldebaran.c, gfx_v9_4_3.c
    (r"GPU (?:reset|jobs stop) begin!(?:\. ?Source: {1,4}(?:-?\d+))?", "reset_begin"),
    (r"Starting (?P<link>\S{1,48}) ring reset", "reset_begin", "ring"),
    (r"(?:GPU )?(?:(?:psp|smu|pci config) )?(?:mode-?[0-3]|MODE-?[0-3]|BACO|BAMACO|PCI|link|legacy pci config) reset(?:\b(?! fail| method| error)|$)", "reset_begin", None, CONTINUED),
    (r"reset (?:compute|gfx|sdma) queue \(", "reset_begin", "ring", CONTINUED),
    (r"Pending hive reset|Some block need full reset", "reset_begin", None, CONTINUED),
    (r"GPU reset succeeded, trying to resume", "reset_ok", None, CONTINUED),
    (r"GPU reset\(\d+\) succeeded|GPU reset end with ret = 0\b", "reset_ok"),
    (r"[Rr]ing:? (?P<link>\S{1,48}) (?:pipe )?reset ?:? ?(?:succe\w*)", "reset_ok", "ring"),
    (r"queue id 0x[0-9a-f]+ at pasid 0x[0-9a-f]+ is reset", "reset_ok", "ring"),
    (r"Queues reset on process (?P<name>.{1,32}?) tid (?P<pid>\d+)", "reset_ok", "ring"),
    (r"GPU reset\(\d+\) failed|GPU reset end with ret = -?[1-9]|GPU Recovery Failed", "reset_failed"),
    (r"(?:GPU (?:mode1|pre asic|pci config) reset|(?:GPU )?(?:[Mm]ode-?\d|MODE-?\d|BACO|link) reset|ASIC reset|Reset) failed|GPU reset retry is beyond|Failed to (?:mode|mode2|mode1) reset|[Ff]ailed to send mode2 reset", "reset_failed"),
    (r"soft reset failed|[Rr]ing:? (?P<link>\S{1,48}) (?:pipe )?reset ?:? ?fail", "reset_failed", "ring"),
    (r"(?:failed to reset legacy queue|reset via MES failed|fail to wait on hqd|failed to reset hardware queue|kiq ring test failed after ring)", "reset_failed", "ring", CONTINUED),
    (r"VRAM is lost due to GPU reset", "other_fault", "vram_lost", CONTINUED),
    (r"device wedged, but recovered through reset", "reset_ok", "wedged", CONTINUED),
    (r"device wedged, needs recovery", "reset_failed", "wedged"),
    (r"[Dd]evice lost from bus", "lost"),
    # hangs: amdgpu_job.c, amdgpu_fence.c, mes_v1*.c, kfd_device_queue_manager.c
    (r"ring (?P<link>\S{1,48}) timeout, but soft recovered", "soft_recovered"),
    (r"ring (?P<link>\S{1,48}) timeout(?:, (?:last )?signaled seq|,|$)", "ring_timeout"),
    (r"Process information: process (?P<name>.{0,32}?) pid (?P<pid>\d+)", "ring_timeout", None, CONTINUED),
    (r"Timeout, but no hardware hang", "none"),
    (r"Fence fallback timer expired on ring (?P<link>\S{1,48})", "other_fault", "fence_fallback"),
    (r"IP block:(?P<block>\w{1,32}) is hung", "other_fault", "ip_hung"),
    (r"MES(?:\(\d\))? failed to respon(?:d|se) to msg|MES(?:\(\d\))? failed to respon(?:d|se) msg|MES ring buffer is full", "other_fault", "mes_timeout"),
    (r"MES might be in unrecoverable state|failed to (?:remove|add) hardware queue|failed to (?:suspend|resume) (?:all )?gangs|failed to unmap legacy queue", "other_fault", "mes_timeout", CONTINUED),
    (r"qcm fence wait loop timeout expired|(?:XCC \d+: )?Queue preemption failed|HIQ MQD's queue_doorbell_id", "other_fault", "queue_preemption"),
    (
        r"The cp might be in an unrecoverable state|Failed to (?:evict|remove|restore|suspend|quiesce|resume) (?:all |process |user |queue|KFD)"
        r"|(?:Evicting process queues|Suspending all queues|Resuming all queues|Removing bad queue|unmap queue) failed"
        r"|\w{1,48}: Failed to (?:remove|evict|restore) queue",
        "other_fault", "queue_preemption", CONTINUED,
    ),
    (r"Timeout waiting for (?:VM flush|sem acquire in VM flush)|timeout waiting for kiq fence|failed to write reg [0-9a-f]+ wait reg|Error flushing GPU TLB", "other_fault", "vm_flush"),
    (r"Illegal (?:instruction|opcode|register access) in .{0,16}command stream", "other_fault", "illegal_instruction"),
    (r"Process (?P<pid>\d+) \(pasid 0x[0-9a-f]+\) got unhandled exception", "other_fault", "unhandled_exception"),
    (r"Failed to initialize parser -125", "other_fault", "job_refused", CONTINUED),
    # page faults: gmc_v6_0.c to gmc_v12_0.c
    (r"\[(?:(?:gfx|mm)hub\d{0,2})\] (?:(?:VMC|retry|no-retry) )?page fault(?: \(src_id:\d+ ring:(?P<link>\d+) vmid:\d+ pasid:\d+)?(?:, for process (?P<name>.{0,32}?) pid (?P<pid>\d+))?", "page_fault"),
    (r"GPU fault detected: \d+ 0x[0-9a-f]+(?: for process (?P<name>.{0,32}?) pid (?P<pid>\d+))?", "page_fault"),
    (r"VM fault \(0x[0-9a-f]+, vmid \d+", "page_fault", None, CONTINUED),
    (
        r"(?:in page starting at address 0x|at address 0x|at page 0x|cookie node_id|Faulty UTCL2 client ID|MORE_FAULTS:|WALKER_ERROR:|PERMISSION_FAULTS:"
        r"|MAPPING_ERROR:|RW: 0x|\w{0,4}VM_(?:L2_PROTECTION_FAULT|CONTEXT1_PROTECTION_FAULT)_\w{1,16}|Can't handle page fault)",
        "page_fault", None, CONTINUED,
    ),
    (r"(?:(?:for|in) process|Process) (?P<name>.{0,32}?) pid (?P<pid>\d+) thread", "page_fault", None, CONTINUED),
    # firmware processors: smu_cmn.c, amdgpu_psp.c
    (
        r"SMU: (?:I'm not done|I'm very busy|response:|unknown command)|SMU is in hanged state|Failed to send [Mm]essage:? (?:0x)?[0-9a-f]"
        r"|Msg issuing pre-check failed|SMU: No response|SMU driver if version is not|SMC engine is not correctly up|SMC is not ready",
        "other_fault", "smu",
    ),
    (r"\[(?:Disable|Enable|Power|Set|Get|Prepare|Upload|Check)\w{1,48}\] (?:Failed|Attempt)|Failed to (?:disable|enable) all smu features|Failed to (?:export SMU metrics|get current clock|set soft (?:min|max)|upload DPM|disable DPM|transfer table)", "other_fault", "smu", CONTINUED),
    (r"PSP (?:load \w{1,24}|create ring|ring init|ring stop|tmr init|firmware loading|resume) failed", "init_failed"),
    (r"psp gfx command .{1,48} failed|psp reg \(0x[0-9a-f]+\) wait timed out|failed to load ucode \S{1,40}", "other_fault", "psp"),
    # start-up: amdgpu_kms.c, amdgpu_device.c, atom.c
    (r"Fatal error during GPU init", "init_failed"),
    (r"probe (?:of [0-9a-f:.]{4,20}|with driver amdgpu) failed with error (?:-?\d+)", "init_failed", None, CONTINUED),
    (
        r"(?:early_init|sw_init|hw_init|late_init|resume) of IP block <\w{1,32}> failed|hw_init \d+ failed|amdgpu_device_ip_(?:init|late_init|resume) failed"
        r"|amdgpu asic init failed|asic (?:atom )?init failed|asic reset on init failed|gpu post error|VF exclusive mode timeout"
        r"|atombios stuck|.{0,8}atombios_execute_table|no vBIOS found|Unable to locate a BIOS ROM|amdgpu_atombios_init failed|Failed to process memory training",
        "init_failed",
    ),
    (r"IH ring buffer overflow", "other_fault"),
    (r"suspend of IP block <\w{1,32}> failed", "other_fault", "ip_hung", CONTINUED),
    (r"(?:Direct firmware load for amdgpu/|Failed to load (?:gpu_info )?firmware \"?amdgpu/)", "init_failed", "firmware_file"),
    (r"skipped device [0-9a-f:]{4,12}, PCI rejects atomics", "init_failed", "pcie_atomics"),
    (r"(?:ib )?ring (?P<link>\S{0,48} ?)(?:ib )?test failed|IB test failed on (?:ring )?\S{1,48}", "other_fault", "ring_test"),
    # links between GPUs (amdgpu_xgmi.c)
    (r"(?:(?:XGMI|xGMI|WAFL)[\w ]{0,16}) ?(?P<text>\w{1,40}Err\w{0,8}) detected", "link"),
    (r"XGMI: .{0,80}(?:[Ff]ailed|failure)", "link"),
    # error handlers that PCI calls, in amdgpu_device.c
    (r"PCI error: detected callback", "aer", "nonfatal", CONTINUED),
    (r"PCIe error recovery failed", "aer", "recovery_failed"),
)

# NVRM: printed by the driver's resource manager
NVIDIA = Table(
    (
        rf"(?:GPU \S{{5,20}}: )?Xid \((?:PCI:)?{PCI}(?:[^)]{{0,64}})\): (?P<code>14[4-9]|150),(?: pid=[^,]{{0,32}},(?: name=[^,]{{0,64}},)?)? ?"
        r"(?:[A-Z]{3,6}\w{0,32}) (?P<word>Non-?fatal|Fatal) XC(?:[01]) i\d+ [Ll]ink (?P<link>-?\d+)(?P<text>.*)",
        "xid",
    ),
    (rf"(?:GPU \S{{5,20}}: )?Xid \((?:PCI:)?{PCI}(?:[^)]{{0,64}})\): (?P<code>154),(?P<text>.*)", "xid"),
    (
        rf"(?:GPU \S{{5,20}}: )?Xid \((?:PCI:)?{PCI}(?:[^)]{{0,64}})\): (?P<code>\d{{1,6}})(?P<comma>,)?"
        r"(?: ?pid='?(?P<pid>[^,']{0,32})'?(?:,|$))?(?: ?name=(?P<name>[^,]{0,64})(?:,|$))?,? ?(?P<text>.*)",
        "xid",
    ),
    # cut inside the address or before the code: that there was an Xid is still said
    (rf"(?:GPU \S{{5,20}}: )?Xid \((?:PCI:)?(?:{PCI})?", "xid"),
    (rf"GPU (?:at )?(?:PCI:)?{PCI}: GPU-[0-9a-f-]", "none"),
    # a work-around that the open driver runs at load; seen on a healthy H200 (580.159.04)
    (r"gpuClearFbhubPoisonIntrForBug\w*: FBHUB Interrupt detected\. Clearing it", "none"),
    (rf"GPU (?:at )?(?:PCI:)?{PCI}:? (?:GPU )?(?:has )?fallen off the bus", "lost"),
    (rf"The NVIDIA (?:GPU|probe)? ?{PCI}.{{0,120}}?fallen off the bus", "lost"),
    (r"fallen off the bus and is not responding", "lost"),
    (rf"GPU (?:at )?(?:PCI:)?{PCI}: GPU serial number is|GPU Board Serial Number|(?:GPU \S{{1,20}} )?GPU is on Board", "none"),
    (r"A GPU crash dump has been created", "other_fault", None, CONTINUED),
    (r"os_pci_init_handle: invalid context|os_schedule: Attempted to yield|(?:os_)?dev_is_vgx", "other_fault", None, CONTINUED),
    (rf"GPU (?:at )?(?:PCI:)?{PCI}: RmInitAdapter failed", "init_failed"),
    (rf"GPU (?:at )?(?:PCI:)?{PCI}: rm_init_adapter failed", "init_failed", None, CONTINUED),
    (rf"(?:GPU (?:at )?(?:PCI:)?{PCI}: )?(?:RmInitAdapter|rm_init_adapter)(?:\(\d+\))? failed", "init_failed"),
    (r"(?:GPU\d+ )?(?:RmInitAdapter|osInitNvMapping|RmInitNvDevice|gpumgrAttachGpu|_kgspBootGspRm|_kgspBootReprepare|kgspInitRm\w*|rm_init_private_state)\b", "init_failed", None, CONTINUED),
    (r"This PCI I/O region assigned to your NVIDIA device is invalid", "init_failed", "config"),
    (rf"BAR\d is 0x?[0-9a-f]*M? @ 0x[0-9a-f]+ \(PCI:{PCI}\)", "init_failed", "config", CONTINUED),
    (r"(?:The system BIOS may have misconfigured|Try booting|The BIOS)", "init_failed", "config", CONTINUED),
    (r"The NVIDIA probe routine failed", "init_failed"),
    (r"The NVIDIA probe routine was not called", "init_failed", "config"),
    (r"None of the NVIDIA (?:graphics adapters|devices|GPUs) were (?:initialized|probed)", "init_failed", None, CONTINUED),
    (r"No NVIDIA (?:graphics adapter|GPU|device)s? (?:found|probed)", "init_failed", "config"),
    (rf"The NVIDIA (?:GPU|graphics device|device) {PCI}.{{0,120}}?(?:not supported|requires|legacy)", "init_failed", "config"),
    (r"(?:installed )?in this system is not supported by", "init_failed", "config"),
    (r"failed to (?:copy vbios|map registers|enable MSI)|GPU \S{1,20}: Failed to (?:copy vbios|enable MSI)", "init_failed"),
    (r"request_mem_region failed", "init_failed", "config"),
    (r"API mismatch", "other_fault", "api_mismatch"),
    (r"(?:this kernel module has the version|make sure that this kernel module|the client has the version)", "other_fault", "api_mismatch", CONTINUED),
    (r"krcWatchdog\w*: (?:RC watchdog: )?GPU is probably locked|RC watchdog: GPU is probably locked", "other_fault", "rc_watchdog"),
    (r"(?:GPU\d+ )?(?:_kgsp\w+|GSP RPC buffer|GSP task|GspRm|\*{4,} ?GSP|_issueRpc\w*|rpcRmApi\w*|kgsp\w*|GSP)\b.{0,200}?(?:[Tt]imed? ?-?out|[Ff]ail|[Ee]rror|NV_ERR|crash|RPC buffer contains)", "other_fault", "gsp", CONTINUED),
    (r"GSP RPC buffer contains|(?:GPU\d+ )?GSP RPC buffer|(?:GPU\d+ )?RPC history", "other_fault", "gsp", CONTINUED),
    (r"(?:GPU\d+ )?nv(?:Assert|Check)\w*(?:Failed)?\w*: |.{0,60}Assertion failed", "other_fault", "assert"),
    (r"(?:GPU\d+ )?k?nvlink\w{0,60}:? .{0,200}?(?:[Ff]ail|[Ee]rror|[Tt]imed? ?out|down)|.{0,40}NVLink.{0,80}?(?:[Ff]ail|[Ee]rror|down|degraded)", "link"),
    (r".{0,60}(?:thermal (?:slowdown|shutdown|violation)|over-?temperature|overheat)", "thermal"),
    (r"uvm encountered global fatal error|.{0,40}requiring os reboot to recover", "other_fault", "uvm_fatal"),
    (r"(?:loading|unloading) NVIDIA|Persistence mode|nvidia_uvm", "none"),
    (r"Attempting to remove (?:minor )?device", "other_fault"),
    (r".{0,200}(?:NV_ERR_\w|\b[Ff]ailed\b|\b[Ff]ailure\b|[Ff]atal [Ee]rror|\bERROR\b|error retrieving|[Tt]ime-?out (?:error|was)|FBHUB Interrupt)", "other_fault"),
)

# src/common/nvswitch: nvidia-nvswitchN
NVSWITCH = Table(
    (rf"SXid \(PCI:{PCI}\): (?P<code>\d{{5,6}}), (?:Severity \d|Data \{{|Engine instance|\w{{1,24}} instance \d)", "sxid", None, CONTINUED),
    (rf"SXid \(PCI:{PCI}\): (?P<code>\d{{1,6}})(?P<comma>,)?(?: (?P<word>Fatal|Non-?fatal),?)?(?: ?Link (?P<link>\d{{1,3}}))? ?(?P<text>.*)", "sxid"),
    (rf"SXid \((?:PCI:)?(?:{PCI})?", "sxid"),
    (r".{0,200}(?:\b[Ff]ailed\b|[Ff]atal [Ee]rror|[Tt]imed? ?out)", "other_fault"),
)

# any PCI driver's head: drivers/pci/pcie/aer.c, dpc.c, err.c, hotplug/pciehp_*.c, pci.c
PCI_BUS = Table(
    (r"(?:AER: )?(?:PCI[eE]|CXL) Bus Error: ?(?:severity=)?(?P<code>Correct(?:ed|able)|Uncorrect(?:ed|able)(?: ?\((?:Non-)?Fatal\)?)?|Fatal|Non-Fatal)(?:, type=(?P<block>[\w ]{1,24}))?", "aer"),
    (r"(?:AER: )?(?:PCI[eE]|CXL) Bus Error\b", "aer"),
    (rf"(?:AER: )?(?:Multiple )?(?P<code>Correct(?:ed|able)|Uncorrect(?:ed|able)(?: ?\((?:Non-)?Fatal\))?) error (?:message )?rec(?:ei|ie)ved(?:(?: from|:) {PCI})?", "aer", None, CONTINUED),
    (r"(?:AER: )?(?:device recovery failed|can't recover|subordinate device reset failed)", "aer", "recovery_failed"),
    (r"(?:AER: )?(?:device recovery successful|enabled with IRQ|.{0,12}Port link has been reset|.{0,20}has been reset)", "none"),
    (r"(?:AER: )?(?:can't find device of ID|broadcast error_detected|device has no AER-aware driver|found no error details|buffer overflow in recovery|no pci_dev for)", "aer", None, CONTINUED),
    (
        r"(?:AER: )?\s{0,4}(?:device \[(?P<ids>[0-9a-f]{4}:[0-9a-f]{4})\] error status/mask=|\[ ?\d{1,2}\] [A-Z]\w{2,24}|TLP Header:"
        r"|Error of this Agent|aer_(?:status|layer|uncor_severity|cor_status)|rp_pio_status)",
        "aer", None, CONTINUED,
    ),
    (r"DPC: containment event", "aer", "dpc"),
    (r"DPC: (?:error containment capabilities|enabled)", "none"),
    (r"DPC: (?:unmasked uncorrectable error|ERR_|RP PIO|reserved error|software trigger|TLP|Data Link)", "aer", "dpc", CONTINUED),
    (r"(?:pciehp: )?(?:pcie\d+: )?Slot\([^)]{1,16}\):? Link Down/Up ignored", "none"),
    (r"(?:pciehp: )?(?:pcie\d+: )?Slot\((?P<link>[^)]{1,16})\):? (?:Link Down|Cannot train link|Failed to check link status)", "link", "pcie"),
    (r"(?:pciehp: )?(?:pcie\d+: )?Slot\((?P<link>[^)]{1,16})\):? (?:Card not present|Power fault)", "link", "pcie"),
    (r"(?:pciehp: )?(?:pcie\d+: )?(?:Data Link Layer Link Active not set|Can not enable the link|Link Training Error)", "link", "pcie", CONTINUED),
    (r"broken device, retraining non-functional|retraining failed|PCIe link lost", "link", "pcie"),
    (r"\d[\d.]{0,10} Gb/s available PCIe bandwidth, limited by", "none"),
    (r"Unable to change power state from \w{1,8} to D0, device inaccessible|can't change power state from \w{1,8} to D0 \(config space inaccessible\)|Refused to change power state", "lost"),
    (r"not ready \d+ms after [\w ]{1,24}; giving up", "lost"),
    (r"not ready \d+ms after [\w ]{1,24}; waiting", "lost", None, CONTINUED),
    (r"AMD-Vi: Event logged \[IO_PAGE_FAULT", "other_fault", "io_page_fault"),
)

# The PCI driver of nvidia itself
NVIDIA_PCI = Table((r"probe (?:of \S{1,20} |with driver nvidia )?failed with error", "init_failed", None, CONTINUED))

# drivers/net: mlx5_core, bnxt_en, ice, igb, ...; drivers/infiniband
NETWORK = Table(
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?(?:High [Tt]emperature on sensors|Port module event\[error\]: module \d+, [\w ]{1,24}, High [Tt]emperature)", "thermal"),
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?Port module event(?:\[error\])?: module (?P<link>\d+), Cable (?:error|unplugged|disabled)", "link", "cable"),
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?Detected insufficient power on the PCIe slot", "other_fault", "slot_power"),
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?(?:Fatal error \d+ detected|device's health compromised|health recovery failed|Driver is in error state|health recovery flow aborted)", "other_fault", "nic_firmware"),
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?(?:assert_var\[|assert_exit_ptr|assert_callra|synd 0x|ext_synd|raw fw_ver|irisc_index|starting health recovery flow|handling bad device here)", "other_fault", "nic_firmware", CONTINUED),
    (r"(?:\S{1,64}:\d+:\(pid \d+\): )?(?:\w{1,40}\(0x[0-9a-f]+\) timeout\. Will cause a leak|cmd\[\d+\]: \w{1,40}\(0x[0-9a-f]+\) (?:Async, )?timeout)", "other_fault", "nic_firmware"),
    (r"(?:(?:igb|ixgbe|i40e|ice|bnxt_en): )?(?P<link>[\w.:-]{1,24}?)?:? ?(?:NIC )?Link (?:is )?(?:D|d)own", "link"),
    (r"(?:\w{1,24} )?(?P<link>[\w.-]{1,24}): (?:\w{1,16}: )?(?:\w{1,24} )?(?:NIC )?[Ll]ink (?:is )?[Dd](?:own|OWN)", "link"),
    (r"(?P<link>[\w.-]{1,24})(?: \([^)]{1,32}\))?: (?:TX timeout detected|transmit queue \d+ timed out)", "link"),
    (r"(?:\w{1,16} )?port (?P<link>\d+):? .{0,40}link (?:is )?down", "link"),
)

# messages without a device head
HOST = Table(
    # drivers/acpi/apei/ghes.c, drivers/firmware/efi/cper.c, arch/x86/kernel/cpu/mce, drivers/edac/mce_amd.c
    (r"\[Hardware Error\]:\s{1,4}(?:event severity: )(?P<code>corrected|recoverable|fatal|info)", "mce"),
    (r"\[Hardware Error\]: (?P<code>Corrected error|Deferred error|Uncorrected,? |System Fatal error|Uncorrected error)", "mce"),
    (r"(?:mce: )?(?:\[Hardware Error\]: )?Machine check events logged", "mce", "logged"),
    (r"(?:mce: )?\[Hardware Error\]: (?:CPU \d+: )?Machine Check Exception", "mce", "uncorrected"),
    (r"(?:mce: )?\[Hardware Error\]: Machine check: ", "mce", "uncorrected", CONTINUED),
    (rf"(?:mce: )?\[Hardware Error\]:\s{{0,4}}(?:[\w ]{{1,24}}: ?{PCI})?", "mce", None, CONTINUED),
    (r"mce: (?:CPU\d+: )?(?:Core|Package) temperature (?:is )?above threshold", "thermal"),
    (r"mce: CPU\d+: (?:Core|Package) temperature/speed normal|mce: (?:CPU\d* supports|Using|CPU0: Thermal monitoring|using)", "none"),
    (r"mce: (?:Uncorrected hardware memory error|CPUs not responding|Memory error not recovered|Kernel accessed poison|Uncorrected memory error)", "mce", "uncorrected"),
    (r"(?:\[Firmware (?:Bug|Warn)\]: ?)?BERT: Error records from previous boot", "mce", "logged"),
    (r"BERT: (?:Total records found|Skipped)", "mce", "logged", CONTINUED),
    (r"Memory failure: 0x[0-9a-f]+: (?:recovery action for .{1,64}: (?:Failed|Ignored|Delayed)|(?:Sending|Killing|forcibly killing)|unhandlable|failed to unmap)", "mce", "uncorrected"),
    (r"Memory failure: 0x[0-9a-f]+:", "mce", "uncorrected", CONTINUED),
    (r"(?:RAS: )?Soft-offlining pfn: 0x|[Ss]oft[_ ]offline: 0x", "mce", "corrected"),
    (r"EDAC (?:\w{1,16} )?(?:MC|DEVICE|PCI)\d*:? (?P<count>\d+ )?(?P<code>CE|UE)\b", "mce"),
    (r"EDAC \w{1,16}(?: MC\d+)?: (?:HANDLING |CPU \d+: Machine Check Event|TSC |ADDR |MISC |PROCESSOR )", "mce", None, CONTINUED),
    (r"Kernel panic - not syncing: (?:.{0,24}[Mm]achine check|Fatal hardware error|.{0,24}MCE|Timeout: Not all CPUs entered|Fatal machine check)", "mce", "uncorrected"),
    (r"NMI: PCI system error|NMI: IOCK error|Uhhuh\. NMI received for unknown reason", "mce", "logged"),
    # kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, kernel/workqueue.c
    (r"(?:INFO: )?task (?P<name>.{1,32}?):(?P<pid>\d+) (?:is )?blocked (?:in I/O wait )?for more than (?:\d+)", "hung_task"),
    (r"(?:INFO: )?task .{1,32}?:\d+ is blocked on", "hung_task", None, CONTINUED),
    (r"(?:NMI )?(?:watchdog: )?(?:BUG: )?soft lockup - CPU#\d+ stuck for (?:\d+)s!(?: \[(?P<name>.{1,32}?):(?P<pid>\d+)\])?", "hung_task", "soft_lockup"),
    (r"(?:NMI )?(?:watchdog: )?(?:CPU\d+: )?Watchdog detected hard LOCKUP", "hung_task", "hard_lockup"),
    (r"(?:rcu: )?INFO: \w{1,24} (?:self-)?detected (?:expedited )?stalls? on CPU|(?:rcu: )?INFO: \w{1,24} detected stall", "hung_task", "rcu_stall"),
    (r"(?:rcu: )?\w{1,24} kthread (?:starved for|timer wakeup didn't happen)", "hung_task", "rcu_stall", CONTINUED),
    (r"BUG: workqueue lockup", "hung_task", "workqueue_lockup"),
    (r"\"echo 0 > /proc/sys/kernel/hung_task_timeout_secs\"", "hung_task", None, CONTINUED),
    (r"Kernel panic - not syncing: (?:hung_task|softlockup|RCU Stall|Hard LOCKUP)", "hung_task"),
    # mm/oom_kill.c
    (r"(?:Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): Kill(?:ed)? process (?P<pid>\d+)(?:,? \((?P<name>.{1,32}?)\))?", "oom"),
    (r"Out of memory and no killable processes|Kernel panic - not syncing: (?:Out of memory|System is deadlocked on memory)", "oom"),
    (r"(?P<name>.{1,32}?) invoked oom-killer:", "oom", None, CONTINUED),
    (r"oom-kill:constraint=.{0,400}?(?:,task=(?P<name>.{1,32}?),pid=(?P<pid>\d+))?(?:,|$)", "oom", None, CONTINUED),
    (r"oom_reaper: (?:reaped process|unable to reap pid:)\s?(?P<pid>\d+)", "oom", None, CONTINUED),
    (r"Killed process (?P<pid>\d+)(?:,? UID \d+,?)? \(?(?P<name>[^)]{1,32})\)?,? total-vm", "oom", None, CONTINUED),
    (r"Tasks? in \S{1,256} (?:are going to be )?killed (?:as a result of limit of|due to memory)", "oom", None, CONTINUED),
    (r"Memory cgroup out of memory|Out of memory:", "oom"),
    (r".{1,32}?: page allocation failure", "other_fault", "page_allocation"),
    # drivers/thermal
    (r"(?:CPU\d+: )?(?:Core|Package) temperature (?:is )?above threshold", "thermal"),
    (r"(?:thermal )?thermal_(?:zone\d+|sys): .{0,40}[Cc]ritical temperature reached|[Cc]ritical temperature reached|(?:thermal_sys: )?\S{1,24}: critical temperature reached", "thermal", "critical"),
    # drivers/iommu
    (rf"DMAR: ?\[[^\]]{{1,40}}\] Request device \[{PCI}\]", "other_fault", "io_page_fault"),
    (r"DMAR: DRHD: handling fault", "other_fault", "io_page_fault", CONTINUED),
    (rf"(?:iommu ivhd\d+: )?AMD-Vi: Event logged \[(?:IO_PAGE_FAULT|ILLEGAL_DEV_TABLE_ENTRY|INVALID_DEVICE_REQUEST)(?: device={PCI})?", "other_fault", "io_page_fault"),
    (r"DMAR: VT-d detected Invalidation (?:Time-out|Queue) Error|(?:iommu ivhd\d+: )?AMD-Vi: (?:Completion-Wait loop timed out|Event logged \[IOTLB_INV_TIMEOUT)", "other_fault", "iommu_timeout"),
    (r"infiniband (?P<link>\w{1,24}): .{0,40}link (?:is )?(?:down|DOWN)", "link"),
    (r"NETDEV WATCHDOG: (?:CPU: \d+: )?(?P<link>[\w.-]{1,24}) \([^)]{1,32}\): transmit queue \d+ timed out", "link"),
    (r"(?:bond\S{0,16}|team\S{0,16}): (?:\(slave (?P<link>[\w.-]{1,24})\): )?link status (?:definitely )?down", "link"),
    (r"(?P<link>(?:ib|en|eth|wl|mlx|bond|roce|rdma)[\w.]{0,16}): (?:\w{1,16}: )?(?:NIC )?[Ll]ink (?:is )?(?:status )?(?:definitely )?[Dd](?:own|OWN)", "link"),
    (r"(?:BUG: (?:unable to handle|kernel NULL pointer|Bad page|scheduling while atomic)|general protection fault|Oops: |Kernel panic - not syncing)", "other_fault", "kernel"),
)
# fmt: on
