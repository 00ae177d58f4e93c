"""The fake device in AMD's voice, the scenario text, and recordings played back."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from collectors.device import LibraryAbsent, LibraryBroken, Tier
from collectors.fake_device import FakeBackend
from collectors.nvidia_fields import bit_error_ratio, count, fabric_health, percent, recovery_action
from collectors.recording import Header, ReplayBackend, Samples, read
from collectors.scenario import BadScenario, ScenarioFile, parse, render, write
from passmuster.errors import BadRecord
from passmuster.records import DeviceState, Vendor

DATA = Path(__file__).parent.parent / "data"
RECORDING = DATA / "nvml" / "h200_580.159.04.jsonl.gz"


@pytest.fixture
def amd() -> FakeBackend:
    """An open fake of one AMD GPU."""
    backend = FakeBackend(DATA / "scenarios" / "amd_one_gpu.txt")
    backend.open()
    return backend


def test_the_scenario_says_whose_library_is_played(amd: FakeBackend) -> None:
    """Vendor, serial and model of an AMD device."""
    (device,) = amd.identify()
    assert (Vendor.AMD, "0x0000000000001234", "AMD Instinct MI300X") == (device.vendor, device.device_id, device.model)


@pytest.mark.parametrize(
    ("tier", "values", "missing"),
    [
        (
            Tier.FAST,
            {
                "power_watts": 734.0,
                "temperature_hotspot_celsius": 67.0,
                "clock_graphics_hertz": 2.1e9,
                "activity_compute_ratio": 0.98,
            },
            {"activity_memory_ratio": "sentinel", "temperature_edge_celsius": "unsupported"},
        ),
        (
            Tier.MIDDLE,
            {"power_limit_watts": 750.0, "ecc_blocks_total": {"umc.corrected": 3, "umc.uncorrected": 0}},
            {"memory_total_bytes": "failed 12", "link_error_status": "unsupported"},
        ),
        (Tier.SLOW, {"compute_partition": "SPX"}, {"bad_pages_limit": "permission"}),
    ],
)
def test_amd_answers_have_values_or_reasons(
    amd: FakeBackend, tier: Tier, values: dict[str, object], missing: dict[str, str]
) -> None:
    """Base units, all-ones as no value, AMD's own codes."""
    (sample,) = amd.sample(tier)
    assert values == sample.values
    assert missing == {field: sample.missing.get(field) for field in missing}


def test_a_replaced_scenario_is_a_live_change(tmp_path: Path) -> None:
    """The next call after a write sees the new values."""
    path = tmp_path / "scenario"
    write(path, {"gpu.count": 1, "gpu0.bdf": "0000:01:00.0", "gpu0.temp.0": 40})
    backend = FakeBackend(path)
    backend.open()
    assert 40.0 == backend.sample(Tier.FAST)[0].values["temperature_core_celsius"]
    write(path, {"gpu.count": 1, "gpu0.bdf": "0000:01:00.0", "gpu0.error": 15})
    assert DeviceState.LOST == backend.sample(Tier.FAST)[0].state


def test_a_missing_scenario_is_an_absent_library(tmp_path: Path) -> None:
    """No file is no library."""
    with pytest.raises(LibraryAbsent, match="no scenario"):
        FakeBackend(tmp_path / "none").open()


def test_a_scenario_is_what_was_rendered() -> None:
    """Render and parse are inverse; comments say nothing; the last line of a key counts."""
    assert {"gpu0.hang": "1", "a": "2"} == parse("# note\n\na 1\n" + render({"gpu0.hang": True, "a": 2}))


@pytest.mark.parametrize("line", ["gpu0.temp.0", "key " + "x" * 5000])
def test_a_bad_scenario_line_is_named(line: str) -> None:
    """A line without value or too long for the C reader is refused with its number."""
    with pytest.raises(BadScenario, match="line 2"):
        parse("a 1\n" + line)


def test_a_scenario_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are no ASCII are one sentence."""
    path = tmp_path / "scenario"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BadScenario, match="cannot be read"):
        ScenarioFile(path).values()


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (3e-12, bit_error_ratio(0x30C)),
        (0.0, bit_error_ratio(0)),
        (None, count(0xFFFFFFFF)),
        (None, count(2**64 - 1)),
        (None, count(2**63)),
        (None, percent(101)),
        (None, percent(float("nan"))),
        ("system_reboot", recovery_action(7)),
        ("8", recovery_action(8)),
    ],
)
def test_raw_answers_are_decoded(expected: object, got: object) -> None:
    """Mantissa and exponent, all-ones, what is out of range, and numbers that are not known."""
    assert got == (pytest.approx(expected) if isinstance(expected, float) else expected)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (0, {}),
        (0b10_10_10_10 | 1 << 8, {}),
        (
            0b01_10_01_10 | 5 << 8,
            {"route_recovery": "true", "access_timeout": "true", "misconfiguration": "insufficient_nvlinks"},
        ),
        (0xF << 8, {"misconfiguration": "15"}),
        (2 << 14, {"fabric_manager": "disconnected"}),
    ],
)
def test_fabric_health_names_what_is_not_fine(mask: int, expected: dict[str, str]) -> None:
    """In pairs of bits 1 is true and 2 is false; 0 is not supported."""
    assert expected == fabric_health(mask)


def test_a_recording_of_an_h200_plays_back() -> None:
    """A real machine's answers, idle and at its power cap: power follows the work, no field both given and missing."""
    backend = ReplayBackend(RECORDING)
    backend.open()
    (device,) = backend.identify()
    assert (Vendor.NVIDIA, "gpu0") == (backend.vendor, device.device_id)
    samples = [backend.sample(Tier.FAST)[0] for _ in range(110)]
    assert {DeviceState.OK} == {sample.state for sample in samples}
    assert samples[0].values["power_watts"] < samples[-1].values["power_watts"] / 2
    assert 1.0 == samples[-1].values["throttle_ratio"]["power_cap"]
    assert set() == samples[-1].values.keys() & samples[-1].missing.keys()


def test_the_last_answer_is_repeated() -> None:
    """After the end of the recording the last sample stays."""
    recorded = [line.samples for line in read(RECORDING) if isinstance(line, Samples) and line.tier is Tier.SLOW]
    backend = ReplayBackend(RECORDING)
    backend.open()
    played = [backend.sample(Tier.SLOW) for _ in range(len(recorded) + 2)]
    assert [*recorded, recorded[-1], recorded[-1]] == played


def test_recordings_begin_with_what_they_are_of() -> None:
    """The first line names vendor and versions."""
    header = next(read(RECORDING))
    assert isinstance(header, Header)
    assert (Vendor.NVIDIA, "580.159.04") == (header.vendor, header.versions["driver"])


@pytest.mark.parametrize(
    "content",
    [b"no gzip", gzip.compress(b"no json\n"), gzip.compress(b'{"line":"nothing"}\n'), gzip.compress(b"{}")],
    ids=["no gzip", "no json", "unknown line", "no end"],
)
def test_a_broken_recording_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """What is no recording is refused with the line, by the reader and by the backend."""
    path = tmp_path / "broken.gz"
    path.write_bytes(content)
    with pytest.raises(BadRecord, match="line 1"):
        list(read(path))
    with pytest.raises(LibraryBroken, match="line 1"):
        ReplayBackend(path).open()


def test_a_recording_cut_short_is_refused(tmp_path: Path) -> None:
    """Half a gzip file, as a full disk leaves it, is refused by name."""
    path = tmp_path / "half.gz"
    path.write_bytes(RECORDING.read_bytes()[:2000])
    with pytest.raises(BadRecord, match=r"end-of-stream|cut"):
        list(read(path))
