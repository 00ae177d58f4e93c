"""The exact Poisson interval, against the chi-square form's published values."""

from __future__ import annotations

import pytest

from passmuster.failure_rates import poisson_interval


@pytest.mark.parametrize(
    ("count", "confidence", "low", "high"),
    [
        # Garwood (1936) and the chi-square quantiles of any table: chi2(a/2, 2k)/2 and chi2(1-a/2, 2k+2)/2.
        (0, 0.95, 0.0, 3.68888),
        (1, 0.95, 0.02532, 5.57164),
        (5, 0.95, 1.62349, 11.66833),
        (10, 0.95, 4.79539, 18.39036),
        (100, 0.95, 81.36399, 121.62679),
        (0, 0.90, 0.0, 2.99573),
        (3, 0.99, 0.33786, 10.97748),
    ],
)
def test_known_interval(count: int, confidence: float, low: float, high: float) -> None:
    """Bounds agree with tables to five digits."""
    assert (low, high) == pytest.approx(poisson_interval(count, 1.0, confidence), abs=1e-5)


def test_interval_scales_with_exposure() -> None:
    """Ten times the exposure is a tenth of the rate."""
    once, tenfold = poisson_interval(7, 1.0), poisson_interval(7, 10.0)
    assert tenfold == pytest.approx((once[0] / 10, once[1] / 10))


def test_large_counts_approach_the_normal() -> None:
    """At a million failures the half width is 1.96 standard deviations."""
    low, high = poisson_interval(1_000_000, 1.0)
    assert (high - low) / 2 == pytest.approx(1.96 * 1000, rel=1e-3)


@pytest.mark.parametrize(
    ("count", "exposure", "confidence"), [(-1, 1.0, 0.95), (1, 0.0, 0.95), (1, float("inf"), 0.95), (1, 1.0, 1.0)]
)
def test_nonsense_is_refused(count: int, exposure: float, confidence: float) -> None:
    """No interval without exposure, count or confidence."""
    with pytest.raises(ValueError, match="no Poisson interval"):
        poisson_interval(count, exposure, confidence)
