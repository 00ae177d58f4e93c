"""Single answers of AMD SMI in base units, and everything that is no value."""

from __future__ import annotations

from typing import Any

import pytest

from collectors import amd_decode as decode


@pytest.mark.parametrize(
    "raw", ["N/A", None, True, False, -1, float("nan"), float("inf"), [], {}, 2**16 - 1, 2**32 - 1, 2**64 - 1]
)
def test_what_is_no_number_of_16_bits(raw: Any) -> None:
    """Text, truth values, all ones of the field's width or wider, negative, not finite."""
    assert decode.number(raw, 16) is None


@pytest.mark.parametrize(("raw", "bits"), [(0, 16), (255, 16), (65535, 32), (2**32 - 1, 64), (7.5, 16)])
def test_all_ones_of_a_narrower_field_are_a_number(raw: float, bits: int) -> None:
    """The field's width decides."""
    assert raw == decode.number(raw, bits)


LINKS = {"num_links": 1, "links": [{"read": 1, "write": 2}, {"read": 9}]}


@pytest.mark.parametrize(
    ("function", "raw", "expected"),
    [
        (decode.percent, 100, 1.0),
        (decode.percent, 101, None),
        (decode.celsius, 255, None),
        (decode.celsius, 0, 0.0),
        (decode.megahertz, 2100, 2.1e9),
        (decode.microwatts, 750_000_000, 750.0),
        (decode.microwatts, 65535, None),
        (decode.mean_megahertz, [2000, 2100, 0, "N/A", 65535], 2.05e9),
        (decode.mean_megahertz, [0, 0], 0.0),
        (decode.mean_megahertz, ["N/A"] * 8, None),
        (decode.mean_megahertz, "N/A", None),
        (decode.generation, 32000, 5),
        (decode.generation, 2500, 1),
        (decode.generation, 0, None),
        (decode.hbm, [51, "N/A", 65535, 53], {"0": 51.0, "3": 53.0}),
        (decode.hbm, ["N/A"] * 4, None),
        (decode.links, ["X", "U", "D", "N/A"], {"1": 1, "2": 0}),
        (decode.links, [], None),
        (decode.pages(0), "No bad pages found.", 0),
        (decode.pages(0), "N/A", None),
        (decode.pages(1), [{"status": 1}, {"status": 0}, {}], 1),
        (decode.process_memory, [{"mem": 5}, {"memory_usage": {"vram_mem": 7}}], 12),
        (decode.process_memory, [{"mem": "N/A"}], None),
        (decode.process_memory, [], 0),
        (decode.energy, {"power": 65536, "counter_resolution": 15.300000190734863}, 1.0),
        (decode.energy, {"energy_accumulator": 1000, "counter_resolution": 1.0}, 0.001),
        (decode.energy, {"energy_accumulator": "N/A", "counter_resolution": 15.3}, None),
        (decode.link_bytes, LINKS, {"0.receive": 1024, "0.transmit": 2048}),
        (decode.serial, "0x0000000000000000", None),
        (decode.serial, " 6921 ", "6921"),
        (decode.words, "N/A", None),
        (decode.words, "x" * 500, "x" * decode.MAX_TEXT),
        (decode.architecture, "gfxffffffffffffffff", None),
        (decode.hive, 0, None),
        (decode.fabric_state, 0, "not_supported"),
    ],
)
def test_answers_become_base_units(function: decode.Decode, raw: Any, expected: Any) -> None:
    """Each decoder on a value and on what a release gives instead of one."""
    assert expected == function(raw)


def test_a_key_with_a_dot_in_it_is_found() -> None:
    """gpu_metrics has such keys; other answers nest."""
    raw = {"xcp_stats.busy": 1, "pcie_metric": {"width": 16}}
    assert (1, 16, decode.ABSENT) == (
        decode.find(raw, "xcp_stats.busy"),
        decode.find(raw, "pcie_metric.width"),
        decode.find(raw, "pcie_metric.speed"),
    )
