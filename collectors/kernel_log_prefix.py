"""Takes the prefix off a kernel-log line, whichever program printed it, and says who can have written the line.

Forms: raw /dev/kmsg, dmesg (plain, -T, -x, -r, iso, delta, printk caller), journalctl (short, short-iso,
short-precise, short-full, short-monotonic, with-unit, json), syslog (RFC 3164, RFC 5424, busybox), grep output.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from passmuster.records import Trust

# printk cuts a record at about 1 kB; journald and syslog keep up to 8 kB. What comes later names no fault.
MAX_LINE = 8192
# One journal entry as JSON, its message written as a list of numbers: about 4 characters a byte and 30 fields.
MAX_JSON = 131_072

FACILITIES = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
)  # fmt: skip

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,12}[A-Za-z]")
_FILE = re.compile(r"(?:/[\w./+-]{1,255}|[\w.-]{1,64}\.log(?:\.\d{1,3})?):(?:\d{1,9}:)?(?=\S)")
_KMSG = re.compile(r"(\d{1,6}),(\d{1,20}),(\d{1,20}),[^;,\s]{0,8}(?:,[^;]{0,128})?;")
_PRI = re.compile(r"<(\d{1,6})>")
_RFC5424 = re.compile(
    r"1 (\S{1,40}) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) (?:-|(?:\[[^\]]{0,1024}\]){1,8})(?: |$)"
)
_LEVEL = re.compile(
    rf"({'|'.join(FACILITIES)})\s{{0,8}}:\s{{0,8}}(?:emerg|alert|crit|err|warn|notice|info|debug)\s{{0,8}}:\s{{1,4}}"
)
_CLOCK = r"\d\d:\d\d:\d\d"
_ISO = rf"\d{{4}}-\d\d-\d\d[T ]{_CLOCK}(?:[.,]\d{{1,9}})?"
_STAMP = re.compile(
    # 2026-12-01T04:53:23.123456+00:00, with a space or a comma, with a zone
    rf"(?:(?:[^\W\d]{{2,4}} )?{_ISO}(?:Z|[+-]\d\d:?\d\d| (?!EDAC|NMI)[A-Z]{{3,5}})?"
    # Dec  1 04:53:23, with weekday, year or fraction; months in other languages
    r"|(?:[^\W\d]{2,4},? )?(?:[^\W\d]{3,5}\.?|\d{1,2}月)\s{1,2}\d{1,2}\.?\s(?:\d{4}\s)?"
    rf"{_CLOCK}(?:\.\d{{1,9}})?(?: \d{{4}}(?=\s))?"
    # seconds since 1970 (journalctl -o short-unix)
    r"|\d{9,11}\.\d{1,9})\s{1,3}"
)
_BRACKET = re.compile(
    r"\[\s{0,8}(?:\d{1,10}\.\d{1,9}(?:\s{0,8}<\s{0,12}\d{1,10}\.\d{1,9}>)?"  # 12345.678901, with delta
    r"|\+\d{1,10}\.\d{1,9}|<\s{0,12}\d{1,10}\.\d{1,9}>"  # +0.000012
    r"|[^\W\d]{3,5} [^\W\d]{3,5}\s{1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}"  # Tue Dec  1 04:53:23 2026
    r"|[^\W\d]{3,5}\s{1,2}\d{1,2} \d\d:\d\d"  # Dec 1 04:53 (--reltime)
    rf"|{_ISO}(?:Z|[+-]\d\d:?\d\d)?)\]\s{{0,4}}"
)
_CALLER = re.compile(r"\[\s{0,8}[TC]\d{1,10}\]\s{0,4}")
_TAG = re.compile(
    rf"(?:(?P<host>[^\s:\[\]]{{1,255}}) )?(?:(?P<facility>{'|'.join(FACILITIES)})\.\w{{3,7}} )?"
    r"(?P<tag>[^\s:\[\]]{1,128})(?:\[[^\]\s]{1,20}\])?:(?:\s|$)"
)
_KERNEL_TAG = re.compile(r"kernel(?:\[[^\]\s]{1,20}\])?:\s{0,4}")
_MESSAGE = re.compile(r'"(?:MESSAGE|msg)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.){0,8192})')
_TRANSPORT = re.compile(r'"_TRANSPORT"\s{0,4}:\s{0,4}"(?!kernel)')
_DEVICE = re.compile(rf"\+pci:({_BDF})")


class Message(Struct, frozen=True):
    """A line without its prefix."""

    text: str
    trust: Trust = Trust.KERNEL  # USER: user space can have written it
    pci: str | None = None  # named beside the text (journal field, kmsg dictionary)
    stamp: str | None = None  # as printed; the forms differ too much to be one number
    kmsg: tuple[int, int, int] | None = None  # priority, sequence number, microseconds since boot


def decode(line: str | bytes) -> str:
    """Text of a line in whatever encoding. ASCII survives: kernel text is ASCII, only names in it are not."""
    if isinstance(line, str):
        return line
    # UTF-16 of ASCII text is the text and zeros, also where the stream was split at the byte 0x0a.
    clean = line[: 2 * MAX_JSON].removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff").replace(b"\0", b"")
    return clean.decode("utf-8", "replace")


def strip(line: str | bytes) -> Message:
    """Take the prefix off. Never raises; a line of no known form is its own text."""
    text = decode(line).lstrip("\ufeff\0 \t\r\n")
    if text.startswith("{") and '"' in text[:8]:
        return _from_json(text[:MAX_JSON])
    if text.startswith(('"msg"', '"MESSAGE"')):  # one line of dmesg -J or of a pretty-printed entry
        return _from_json(text[:MAX_JSON])
    return _from_text(text[:MAX_LINE])


def _trust_of_priority(priority: int) -> Trust:
    return Trust.KERNEL if priority >> 3 == 0 else Trust.USER


def _from_text(text: str) -> Message:
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    trust = Trust.KERNEL
    stamp: str | None = None
    kmsg: tuple[int, int, int] | None = None
    text = text.rstrip()
    if match := _FILE.match(text):
        text = text[match.end() :]
    if match := _KMSG.match(text):
        kmsg = (int(match[1]), int(match[2]), int(match[3]))
        trust = _trust_of_priority(kmsg[0])
        text = text[match.end() :]
    elif match := _PRI.match(text):
        trust = _trust_of_priority(int(match[1]))
        text = text[match.end() :]
        if match := _RFC5424.match(text):
            stamp = match[1]
            if match[3] not in {"kernel", "-"}:
                trust = Trust.USER
            text = text[match.end() :].removeprefix("\ufeff")
    elif match := _LEVEL.match(text):
        trust = Trust.KERNEL if match[1] == "kern" else Trust.USER
        text = text[match.end() :]
    if match := _STAMP.match(text):
        stamp = match[0].rstrip()
        text = text[match.end() :]
        # dmesg --time-format iso (the only form with a comma) prints no host and no tag.
        if "," not in stamp[-16:] and (match := _TAG.match(text)) and not _is_driver(match):
            if match["tag"] != "kernel" or match["facility"] not in {None, "kern"}:
                trust = Trust.USER
            text = text[match.end() :].lstrip()
    for _ in range(4):
        match = _BRACKET.match(text) or _CALLER.match(text) or _KERNEL_TAG.match(text)
        if match is None:
            break
        stamp = stamp or (match[0].strip() if _BRACKET.match(text) else None)
        text = text[match.end() :]
        # journalctl -o short-monotonic: "[ 1234.567890] host kernel: text"
        if (match := re.match(r"[^\s:\[\]]{1,255} (?=kernel(?:\[[^\]\s]{1,20}\])?:)", text)) is not None:
            text = text[match.end() :]
    return Message(text=text, trust=trust, stamp=stamp, kmsg=kmsg)


def _is_driver(match: re.Match[str]) -> bool:
    """Whether what looks like a syslog tag is the head of a kernel message, as in ``amdgpu 0000:0c:00.0:``.

    With a host before it, a driver's name is a tag: journald takes the first word of what user space wrote to
    /dev/kmsg as the tag, and only of that.
    """
    return match["host"] is None and match["tag"] != "kernel"


def _from_json(text: str) -> Message:
    fields: Any
    try:
        fields = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return _from_cut_json(text)
    body = fields.get("MESSAGE", fields.get("msg"))
    if isinstance(body, list):
        body = bytes(item for item in body[:MAX_LINE] if isinstance(item, int) and 0 <= item < 256)
    if not isinstance(body, str | bytes):
        return Message(text="")
    inner = _from_text(decode(body)[:MAX_LINE])
    trust = inner.trust
    if fields.get("_TRANSPORT", "kernel") != "kernel" or fields.get("SYSLOG_IDENTIFIER", "kernel") != "kernel":
        trust = Trust.USER
    if str(fields.get("SYSLOG_FACILITY", "0")) != "0":
        trust = Trust.USER
    if isinstance(priority := fields.get("pri"), int) and priority >> 3:
        trust = Trust.USER
    device = _DEVICE.match(str(fields.get("_KERNEL_DEVICE", "")))
    stamp = fields.get("__REALTIME_TIMESTAMP", fields.get("time"))
    return Message(
        text=inner.text,
        trust=trust,
        pci=device[1] if device else None,
        stamp=str(stamp)[:40] if stamp is not None else inner.stamp,
    )


def _from_cut_json(text: str) -> Message:
    """An entry cut in half still holds its message if that came before the cut."""
    match = _MESSAGE.search(text)
    if match is None:
        return Message(text="")
    body = re.sub(r'\\(["\\/])', r"\1", match[1])
    trust = Trust.USER if _TRANSPORT.search(text) else Trust.KERNEL
    return Message(text=_from_text(body).text, trust=trust)
