"""Kernel-log lines of many driver and kernel versions get the right kind, code, device and blame."""

import csv
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.kernel_log_classify import Classified, LogStream, classify, normal_pci
from passmuster.records import Blame, Severity, Trust

DATA = Path(__file__).parents[1] / "data" / "kernel_log" / "lines.tsv"
FIELDS = ("vendor", "kind", "code", "block", "pci", "severity", "class", "blame", "continuation")
KINDS = (
    "xid sxid lost init_failed ras reset_begin reset_ok reset_failed ring_timeout soft_recovered page_fault "
    "bad_pages aer mce hung_task link thermal oom other_fault none"
)
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."


def corpus() -> list[dict[str, str]]:
    """Rows of the recorded lines."""
    with DATA.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def answer(found: Classified) -> dict[str, str]:
    """The fields of an answer as the corpus writes them."""
    values = (
        found.vendor.value,
        found.kind,
        found.code,
        found.block,
        found.pci,
        found.severity and found.severity.value,
        found.fault_class and found.fault_class.value,
        found.blame.value,
        "yes" if found.continuation else "no",
    )
    return dict(zip(FIELDS, ("" if value is None else str(value) for value in values), strict=True))


def test_every_line_of_the_corpus_is_classified() -> None:
    """Each recorded form gets vendor, kind, code, block, address, severity, class and blame right."""
    rows = corpus()
    wrong = [
        (row["line"], expected, found)
        for row in rows
        if (expected := {name: row[name] for name in FIELDS})
        != (found := answer(classify(row["line"].replace("\\t", "\t"))))
    ]
    assert wrong == []
    assert len(rows) >= 250
    assert [row["line"] for row in rows if not row["origin"]] == []


def test_the_corpus_holds_every_kind() -> None:
    """No kind of fault goes without a line that shows it, and look-alikes are there in number."""
    kinds = [row["kind"] for row in corpus()]
    assert set(KINDS.split()) == set(kinds)
    assert kinds.count("none") > 60


@pytest.mark.parametrize("name", ["vendor", "kind", "code", "pci", "severity", "class", "blame"])
def test_the_answer_is_the_same_from_bytes_in_another_encoding(name: str) -> None:
    """Line ends, UTF-16 and stray Latin-1 bytes around a fault change nothing."""
    expected = answer(classify(XID_79))[name]
    for line in (
        XID_79.encode() + b"\r\n",
        XID_79.encode("utf-16"),
        XID_79.encode("utf-16-be"),
        b"\xef\xbb\xbf" + XID_79.encode(),
        XID_79.replace("python3", "pyth\xf6n").encode("latin-1"),
        b"\x1b[32m[12345.678901] \x1b[0m\x1b[33mNVRM: \x1b[0m" + XID_79.removeprefix("NVRM: ").encode(),
    ):
        assert expected == answer(classify(line))[name]


def test_a_line_with_two_codes_reports_the_first_and_names_the_second() -> None:
    """An XID 45 that 149 caused is a 45, secondary, with 149 as its relative."""
    found = classify("NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149")
    assert (found.code, found.related_code, found.secondary) == (45, 149, True)


@pytest.mark.parametrize(
    ("action", "severity", "text"),
    [
        (0, Severity.INFO, "changed from 0x1 (GPU Reset Required) to 0x0 (None)"),
        (2, Severity.CRITICAL, "changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        (4, Severity.ERROR, "changed from 0x0 (None) to 0x4 (Drain and Reset)"),
        (None, Severity.INFO, "changed from 0x0 (No"),
    ],
)
def test_xid_154_tells_the_action_that_the_driver_asks_for(action: int | None, severity: Severity, text: str) -> None:
    """The new action, not the old one; a cut line tells none."""
    found = classify(f"NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action {text}")
    assert (action, severity, True) == (found.recovery_action, found.severity, found.secondary)


def test_news_and_totals_are_kept_apart() -> None:
    """What is new is counted; what was counted before is not news."""
    head = "amdgpu 0000:0c:00.0: {3}socket: 0, die: 1, "
    news = classify(head + "2 new uncorrectable hardware errors detected in umc block")
    total = classify(head + "9 uncorrectable hardware errors detected in total in umc block")
    assert (news.count, news.total, news.continuation) == (2, None, False)
    assert (total.count, total.total, total.continuation) == (None, 9, True)


def test_process_and_link_are_taken_from_the_text() -> None:
    """Who and which link, where the line says so; what the driver does not know is null."""
    assert (classify(XID_79).pid, classify(XID_79).process) == (1, "python3")
    unknown = classify("NVRM: Xid (PCI:0000:c6:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert (unknown.pid, unknown.process) == (None, None)
    assert classify("NVRM: Xid (PCI:0000:1b:00): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0").link == "11"
    assert classify("mlx5_core 0000:5e:00.0 ens5f0np0: Link down").link == "ens5f0np0"


@pytest.mark.parametrize(
    ("expected", "address"),
    [
        ("0000:c6:00.0", "0000:C6:00"),
        ("0000:3b:00.0", "00000000:3B:00.0"),
        ("0018:01:00.0", "0018:01:00"),
        ("10000:01:00.1", "00010000:01:00.1"),
        ("0000:3b:00.0", "3b:00.0"),
        (None, None),
    ],
)
def test_addresses_are_normal(expected: str | None, address: str | None) -> None:
    """One spelling of a PCI address, whatever the driver printed."""
    assert expected == normal_pci(address)


def test_a_code_that_the_cut_may_have_shortened_is_not_taken() -> None:
    """The 7 of a cut 79 is no XID 7; that there was an XID is still said."""
    found = classify("NVRM: Xid (PCI:0000:c6:00): 7")
    assert (found.kind, found.code) == ("xid", None)


def test_what_user_space_can_have_written_names_no_fault() -> None:
    """A record of another facility than the kernel's is no evidence against a GPU."""
    found = classify("12,812,5678901,-;" + XID_79)
    assert (found.kind, found.blame, found.trust) == ("none", Blame.NONE, Trust.USER)


def test_a_fault_spread_over_three_lines_keeps_its_address() -> None:
    """The line that says "fallen off the bus" takes the address of the line that began it, and no other does."""
    stream = LogStream()
    found = [
        stream.classify(line)
        for line in (
            "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0",
            "               NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "               NVRM: fallen off the bus and is not responding to commands.",
            "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).",
        )
    ]
    assert [one.pci for one in found] == [None, None, "0000:b3:00.0", None]
    assert [one.kind for one in found] == ["none", "none", "lost", "init_failed"]


@given(st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_answered(line: bytes) -> None:
    """No input makes the parser raise."""
    assert isinstance(classify(line), Classified)


@given(st.sampled_from([row["line"] for row in corpus()]), st.integers(0, 400), st.binary(max_size=6))
@settings(max_examples=150, deadline=None)
def test_lines_cut_and_spoiled_anywhere_are_answered(line: str, cut: int, dirt: bytes) -> None:
    """A recorded line cut in half, with dirt in its place, is answered."""
    assert isinstance(classify(line.encode()[:cut] + dirt), Classified)


@pytest.mark.parametrize(
    "unit",
    [
        b"a",
        b" ",
        b"NVRM: ",
        b"{1}",
        b"[drm]",
        b"*ERROR* ",
        b"amdgpu: ",
        b"[1.1] ",
        b"kernel: ",
        b"EDAC ",
        b"0000:",
        b'{"',
        b"socket: 1, die: 1, ",
        b"NVRM: Xid (PCI:0000:01:00): 13, ",
        b"ring gfx timeout ",
        b"nvlink ",
        b"link lock BUG ",
        b"\\",
    ],
)
def test_a_megabyte_of_anything_costs_little(unit: bytes) -> None:
    """Length is bounded and no pattern backtracks without bound: a line of 1 MB takes far less than a second."""
    line = (unit * (1_000_000 // len(unit)))[:1_000_000]
    for prefix in (b"", b"NVRM: Xid (PCI:", b"amdgpu 0000:0c:00.0: amdgpu: ", b"nvidia-nvswitch0: ", b'{"MESSAGE":"'):
        start = time.process_time()
        classify(prefix + line)
        assert time.process_time() - start < 0.25
