"""Says of one kernel-log line which fault it names, on which device, how bad it is and where it comes from."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct

from collectors.kernel_log_patterns import (
    AMD,
    HOST,
    NETWORK,
    NVIDIA,
    NVIDIA_PCI,
    NVSWITCH,
    PCI,
    PCI_BUS,
    Pattern,
    Table,
)
from collectors.kernel_log_prefix import Message, strip
from passmuster import faults
from passmuster.records import Blame, FaultClass, Severity, Trust, Vendor

# A kernel record holds about 1 kB; no pattern needs more, and a longer body only costs time.
MAX_BODY = 2048
MAX_TEXT = 400


class Classified(Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    """What a line says. Kind ``none``: no fault; its class, severity and blame then say so too."""

    vendor: Vendor = Vendor.NONE  # whose device or driver; host for CPU, DIMM, PCIe ports, NICs
    kind: str = "none"
    code: int | str | None = None  # XID, SXid or AFID number, or a word of the fault table
    block: str | None = None  # hardware block, PCIe layer or hub
    pci: str | None = None  # dddd:bb:dd.f, lower case
    severity: Severity | None = None
    fault_class: FaultClass | None = None
    blame: Blame = Blame.NONE
    secondary: bool = False  # follows another fault; never acts alone
    continuation: bool = False  # tells more of a fault that another line reports: do not count
    count: int | None = None  # how many are new, where the line says
    total: int | None = None  # how many since boot, where the line says; not news
    link: str | None = None  # link, ring, port or slot
    pid: int | None = None
    process: str | None = None
    related_code: int | None = None  # a second XID that the text names
    recovery_action: int | None = None  # XID 154: the action the driver asks for now, as NVML numbers it
    stamp: str | None = None  # time as the prefix printed it
    trust: Trust = Trust.KERNEL
    text: str = ""


_BDF = PCI.replace("?P<pci>", "?:")
_HEAD = re.compile(
    rf"(?P<driver>[A-Za-z][\w-]{{0,31}}) (?P<pci>{_BDF})(?: (?P<netdev>[\w.-]{{1,24}}))?:\s{{0,32}}"
    r"|\[drm(?::(?P<function>\w{1,64})[\w.]{0,32}(?: \[(?P<module>\w{1,32})\])?)?\]:?\s{0,4}"
    r"|\*ERROR\*:?\s{0,4}"
    r"|(?P<tag>NVRM|amdgpu|kfd kfd|kfd|nvidia-nvswitch\d{0,3}|nvidia-nvlink|nvidia-uvm|nvidia-modeset|nvidia):\s{0,4}"
    r"|\[(?P<part>amdgpu|powerplay|nvidia-drm)\]:?(?: \[GPU ID 0x[0-9a-f]{1,8}\])?\s{0,4}"
    r"|\{\d{1,20}\}\s{0,4}"
)
# Old kernels printed these without any head.
_AMD_BARE = re.compile(
    r"qcm fence wait loop|The cp might be in an unrecoverable"
    r"|(?:\[Hardware Error\]:? ?)?(?:aca entry\[|ACA\[|Accelerator Check Architecture)"
    r"|RAS records:|Saved bad pages|\[powerplay\]|VM fault \(0x"
)
_OTHER_DRM = re.compile(
    r"radeon|r[1-6]00|rv\d|evergreen|cik_|i915|intel|nouveau|nv\d|nv_|xe_|ast_|mgag|virtio|vmw", re.IGNORECASE
)
_NETWORK_DRIVERS = frozenset((
    "mlx4_core", "mlx4_en", "mlx5_core", "mlx5_ib", "bnxt_en", "bnxt_re", "ice", "i40e", "ixgbe", "igb", "igc",
    "e1000e", "tg3", "bnx2x", "qede", "r8169", "irdma", "efa", "ena", "hfi1", "ionic", "sfc", "cxgb4", "atlantic",
))  # fmt: skip
# One of these stands in every host line that has a pattern; the rest of the log is passed over quickly.
_HOST_HINTS = (
    "ardware", "achine check", "mce", "EDAC", "BERT", "emory failure", "offlin", "oom", "Out of memory", "Killed",
    "killed", "blocked", "lock", "LOCKUP", "stall", "kthread", "temperature", "DMAR", "AMD-Vi", "WATCHDOG", "ink ",
    "BUG", "panic", "protection", "Oops", "NMI", "hung_task", "allocation",
)  # fmt: skip
_SECOND_XID = re.compile(r"\b[Xx][Ii][Dd]:? (\d{1,4})\b")
_LINK = re.compile(r"\b[Ll]ink (\d{1,3})\b")
_GRAPHICS_DETAIL = ("Graphics Exception: ESR", "Graphics SM Global Exception")
# A line that the driver itself calls an error, of a form that no pattern knows.
_CALLED_ERROR = Pattern(re.compile(""), "other_fault")
_ACTION = re.compile(r"\bto 0x([0-9a-fA-F]{1,8})\b")
_DIGITS = re.compile(r"-?\d{1,18}")

_BOOT_AFIDS = (
    ("firmware load", 1), ("hbm bist", 2), ("hbm memory test", 3), ("memory training", 4), ("unhandled", 5),
    ("unknown", 6), ("usr cp link", 7), ("usr dp link", 8), ("wafl", 9), ("xgmi", 10), ("data abort", 11),
    ("generic", 12),
)  # fmt: skip
_MCE_CODES = {
    "ce": "corrected", "corrected": "corrected", "corrected error": "corrected", "deferred error": "deferred",
    "info": "logged", "ue": "uncorrected", "recoverable": "uncorrected", "fatal": "uncorrected",
    "system fatal error": "uncorrected", "uncorrected error": "uncorrected",
}  # fmt: skip
# nvmlDeviceGetFieldValues, field 230: what the driver asks for, and how urgent that is.
_ACTION_SEVERITY = {0: Severity.INFO, 1: Severity.ERROR, 2: Severity.CRITICAL, 3: Severity.ERROR, 4: Severity.ERROR}


def classify(line: str | bytes) -> Classified:
    """Classify one line with whatever prefix, in any encoding, whole or cut. Never raises.

    A line that user space can have written (facility or tag other than the kernel's) names no fault.
    """
    message = strip(line)
    if message.trust is Trust.USER:
        return Classified(trust=Trust.USER, stamp=message.stamp, text=message.text[:MAX_TEXT])
    return classify_message(message)


class _Head(NamedTuple):
    """What stands before the message proper: who prints it, about which device."""

    driver: str | None = None
    pci: str | None = None
    netdev: str | None = None
    drm: bool = False  # [drm] without a driver's name
    error: bool = False  # *ERROR*


def _split_head(text: str) -> tuple[_Head, str]:
    head = _Head()
    while match := _HEAD.match(text):
        if match["driver"]:
            head = head._replace(driver=match["driver"], pci=match["pci"], netdev=match["netdev"])
        elif name := match["tag"] or match["part"] or match["module"]:
            if name == "powerplay":
                name = "amdgpu"
            if head.driver is None or name not in {"nvidia", "amdgpu"}:
                head = head._replace(driver=name)
        elif function := match["function"]:
            head = head._replace(drm=not _OTHER_DRM.match(function))
        elif match[0].startswith("[drm"):
            head = head._replace(drm=True)
        elif match[0].startswith("*"):
            head = head._replace(error=True)
        text = text[match.end() :]
        # After these "GPU 0000:18:00.0: " is the message. NVRM comes doubled through /dev/kmsg.
        if (head.driver or "").startswith(("NVRM", "nvidia-nvswitch")) and not text.startswith("NVRM:"):
            break
    return head, text


def classify_message(message: Message) -> Classified:
    """Classify a line whose prefix is off and whose trust the caller has judged."""
    head, body = _split_head(message.text[:MAX_BODY])
    vendor, tables = _tables(head, body)
    for table in tables:
        for pattern in table.patterns:
            if found := pattern.regex.match(body):
                return _answer(vendor, pattern, found, message, head)
    if vendor is Vendor.AMD and head.error and head.driver is not None:
        found = _CALLED_ERROR.regex.match(body)
        assert found is not None
        return _answer(vendor, _CALLED_ERROR, found, message, head)
    return Classified(trust=message.trust, stamp=message.stamp, text=message.text[:MAX_TEXT])


def _tables(head: _Head, body: str) -> tuple[Vendor, tuple[Table, ...]]:
    """Whose line it is and the patterns to try, by the driver that its head names."""
    driver = head.driver
    if driver is None:
        if head.drm or _AMD_BARE.match(body):
            return Vendor.AMD, (AMD,)
        if any(hint in body for hint in _HOST_HINTS):
            return Vendor.HOST, (HOST,)
        return Vendor.NONE, ()
    if driver.startswith(("amdgpu", "kfd")):
        return Vendor.AMD, (AMD, PCI_BUS)
    if driver == "NVRM" or driver in {"nvidia-nvlink", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia_drm"}:
        return Vendor.NVIDIA, (NVIDIA,)
    if driver.startswith("nvidia-nvswitch"):
        return Vendor.NVIDIA, (NVSWITCH,)
    if driver == "nvidia":
        return Vendor.NVIDIA, (PCI_BUS, NVIDIA_PCI)
    if driver in _NETWORK_DRIVERS:
        return Vendor.HOST, (PCI_BUS, NETWORK)
    return Vendor.HOST, (PCI_BUS,)


def _answer(vendor: Vendor, pattern: Pattern, found: re.Match[str], message: Message, head: _Head) -> Classified:
    groups = found.groupdict()
    code, block, kind = _code(pattern, groups)
    count, total = _number(groups.get("count")), _number(groups.get("total"))
    if kind == "none" or (kind == "ras" and 0 in {count, total}):
        return Classified(trust=message.trust, stamp=message.stamp, text=message.text[:MAX_TEXT])
    if ids := groups.get("ids"):
        vendor = {"10de": Vendor.NVIDIA, "1002": Vendor.AMD}.get(ids[:4], vendor)
    if kind == "lost" and vendor is Vendor.HOST:
        kind, code = "other_fault", "device_gone"
    table_kind, table_code = kind, code
    if kind == "ras" and block:
        table_code = f"{block}:{code}"
    elif kind == "init_failed" and isinstance(code, int):
        table_kind = "afid"
    fault = faults.lookup(vendor.value, table_kind, table_code)
    severity, fault_class, blame = fault.severity, fault.fault_class, fault.blame
    text = groups.get("text") or ""
    word = (groups.get("word") or "").lower()
    action = None
    if kind == "sxid" or (kind == "xid" and word in {"fatal", "nonfatal", "non-fatal"}):
        # A detail line does not say how the fault ended: never worse than its own line can be.
        judged = "non-fatal" if pattern.continuation else word
        severity, fault_class = _link_severity(judged, severity, fault_class)
        blame = Blame.HARDWARE if word == "fatal" else blame
    elif kind == "xid" and code == 154 and (asked := _ACTION.search(text)):
        action = int(asked[1], 16)
        severity = _ACTION_SEVERITY.get(action, Severity.WARNING)
    related = _SECOND_XID.search(text) if kind == "xid" else None
    # The summary and the register dump that follow a graphics exception come as XID 13 again.
    repeats = kind == "xid" and code == 13 and text.startswith(_GRAPHICS_DETAIL)
    return Classified(
        vendor=vendor,
        kind=kind,
        code=code,
        block=block,
        pci=_address(groups.get("pci"), head.pci, message.pci),
        severity=severity,
        fault_class=fault_class,
        blame=blame,
        secondary=fault.secondary,
        continuation=pattern.continuation or repeats or bool(groups.get("detail")),
        count=count,
        total=total,
        link=_link(groups.get("link") or head.netdev, text),
        pid=_number(groups.get("pid")),
        process=_process(groups.get("name")),
        related_code=int(related[1]) if related and int(related[1]) != code else None,
        recovery_action=action,
        stamp=message.stamp,
        trust=message.trust,
        text=message.text[:MAX_TEXT],
    )


def _code(pattern: Pattern, groups: dict[str, str | None]) -> tuple[int | str | None, str | None, str]:
    """Code, block and kind of a match. A number that the cut may have shortened is not taken."""
    kind = pattern.kind
    code: int | str | None = pattern.code
    block = (groups.get("block") or "").strip().lower() or None
    raw = groups.get("code")
    if kind in {"xid", "sxid"}:
        if raw is not None and (groups.get("comma", ",") or len(raw) > (1 if kind == "xid" else 4)):
            code = int(raw)
    elif kind == "aer" and raw is not None:
        word = raw.lower()
        code = (
            "corrected"
            if word.startswith("correct")
            else "nonfatal"
            if "non" in word or "fatal" not in word
            else "fatal"
        )
    elif kind == "mce" and raw is not None:
        code = _MCE_CODES.get(raw.lower().rstrip(" ,"), "uncorrected")
    elif boot := groups.get("boot"):
        code = next((afid for words, afid in _BOOT_AFIDS if words in boot), 6)
    elif raw is not None:
        code = raw.lower()
    if kind == "ras" and isinstance(code, str) and ":" in code:
        block, _, code = code.partition(":")
    return code, block, kind


def _link_severity(word: str, severity: Severity, fault_class: FaultClass) -> tuple[Severity, FaultClass]:
    """The line's own Fatal or Non-fatal outranks the table: the switch knows what it did."""
    if word == "fatal":
        return Severity.CRITICAL, FaultClass.LINK if fault_class is FaultClass.INFO else fault_class
    if word and severity in {Severity.ERROR, Severity.CRITICAL}:
        return Severity.WARNING, fault_class
    return severity, fault_class


def _address(named: str | None, head: str | None, beside: str | None) -> str | None:
    """The device concerned: the one that the text names, else the head's, else the one beside the text."""
    address = normal_pci(named)
    # Root ports that cannot tell the source of an error say 0000:00:00.0, which is the host bridge.
    if address == "0000:00:00.0" and head is not None:
        address = None
    return address or normal_pci(head or beside)


def normal_pci(address: str | None) -> str | None:
    """Write a PCI address as dddd:bb:dd.f in lower case; None stays None.

    NVIDIA leaves the function out and prints domains of 8 digits in places; old tools leave out the domain.
    """
    if not address:
        return None
    address = address.lower()
    if "." not in address:
        address += ".0"
    parts = address.split(":")
    domain = parts[0].lstrip("0").rjust(4, "0") if len(parts) == 3 else "0000"
    return f"{domain}:{parts[-2]}:{parts[-1]}"


def _number(text: str | None) -> int | None:
    return int(text) if text and _DIGITS.fullmatch(text.strip()) else None


def _process(name: str | None) -> str | None:
    name = (name or "").strip()
    return None if name in {"", "<unknown>", "N/A", "[Not Found]"} else name[:64]


def _link(named: str | None, text: str) -> str | None:
    named = (named or "").strip(" :")
    if not named and (match := _LINK.search(text[:200])):
        named = match[1]
    if not named:
        return None
    return str(int(named)) if _DIGITS.fullmatch(named) else named[:48]


class LogStream:
    """Classifies the lines of one log in order, joining what one message spread over lines.

    NVIDIA prints "The NVIDIA GPU dddd:bb:dd.f", and only two lines later that it has fallen off the bus.
    """

    _HEADER = re.compile(rf"NVRM: The NVIDIA (?:GPU )?{PCI}")
    _REACH = 3

    def __init__(self) -> None:
        self._pci: str | None = None
        self._age = 0

    def classify(self, line: str | bytes) -> Classified:
        """Classify the next line of the log. Never raises."""
        message = strip(line)
        if message.trust is Trust.USER:
            return Classified(trust=Trust.USER, stamp=message.stamp, text=message.text[:MAX_TEXT])
        return self.classify_message(message)

    def classify_message(self, message: Message) -> Classified:
        """Classify the next message, its prefix off and its trust judged."""
        found = classify_message(message)
        if match := self._HEADER.match(message.text):
            self._pci, self._age = match["pci"], 0
        elif self._pci is not None:
            self._age += 1
            if self._age >= self._REACH:
                self._pci = None
            elif found.kind in {"lost", "init_failed"} and found.pci is None and message.text.startswith("NVRM"):
                found = classify_message(Message(message.text, message.trust, self._pci, message.stamp, message.kmsg))
        return found
