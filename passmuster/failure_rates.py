"""How often things fail: failures over exposure, with the exact Poisson interval around the rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from passmuster.store import Store

PER_GPU_DAYS = 1_000


class FailureRate(Struct, frozen=True, kw_only=True):
    """Failures of one class on one model. Rates are per 1,000 GPU-days; null where nothing was watched."""

    vendor: str
    model: str
    fault_class: str
    failures: int
    events: int  # lines and repeats behind the failures
    devices: int  # devices that failed
    codes: list[str]  # some of the codes, for people
    gpu_days: float
    rate: float | None
    low: float | None
    high: float | None


def failure_rates(
    store: Store, since_at: int, until_at: int, *, repeat_seconds: float = 3600.0, confidence: float = 0.95
) -> list[FailureRate]:
    """Return the rate of every class on every model that was watched or failed between two times (ns UTC).

    A class that failed on any model is given for each model that was watched: no failure in so many GPU-days has an
    upper bound too. Repeats of a code on a device within `repeat_seconds` count as one failure.
    """
    watched = {
        (row["vendor"], row["model"]): row["gpu_days"]
        for row in store.query("exposure", since_at=since_at, until_at=until_at)
    }
    counted = {
        (row["vendor"], row["model"], row["fault_class"]): row
        for row in store.query("fault_counts", since_at=since_at, until_at=until_at, repeat_seconds=repeat_seconds)
    }
    classes = {fault_class for _, _, fault_class in counted}
    keys = set(counted) | {(vendor, model, c) for vendor, model in watched for c in classes}
    rates = []
    for vendor, model, fault_class in sorted(keys):
        row = counted.get((vendor, model, fault_class), {})
        failures = int(row.get("failures", 0))
        gpu_days = watched.get((vendor, model), 0.0)
        low, high = poisson_interval(failures, gpu_days / PER_GPU_DAYS, confidence) if gpu_days else (None, None)
        rates.append(
            FailureRate(
                vendor=vendor,
                model=model,
                fault_class=fault_class,
                failures=failures,
                events=int(row.get("events", 0)),
                devices=int(row.get("devices", 0)),
                codes=sorted(row.get("codes", [])),
                gpu_days=gpu_days,
                rate=failures / gpu_days * PER_GPU_DAYS if gpu_days else None,
                low=low,
                high=high,
            )
        )
    return rates


def poisson_interval(count: int, exposure: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact two-sided interval (low, high) of a Poisson rate per unit of `exposure`.

    Garwood (1936): the rates at which `count` or more, and `count` or fewer, would be seen with half of 1 - confidence
    each; the same as the chi-square form. Raises ValueError for a negative count, an exposure that is not positive, or
    a confidence outside (0, 1).
    """
    if count < 0 or not 0 < exposure < math.inf or not 0 < confidence < 1:
        raise ValueError(f"no Poisson interval for count {count}, exposure {exposure}, confidence {confidence}")
    tail = (1 - confidence) / 2
    # Far outside both bounds: more than ten standard deviations, for the tails of any useful confidence.
    far = count + 10 * math.sqrt(count + 1) - 2 * math.log(tail)
    low = _root(lambda mean: _at_least(count, mean) < tail, 0.0, float(count)) if count else 0.0
    high = _root(lambda mean: _at_most(count, mean) > tail, float(count), far)
    return low / exposure, high / exposure


def _root(below: Callable[[float], bool], low: float, high: float) -> float:
    """Return where `below` turns from true to false, by bisection to the last bit."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if below(middle):
            low = middle
        else:
            high = middle


def _term(count: int, mean: float) -> float:
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) if mean > 0 else float(count == 0)


def _at_most(count: int, mean: float) -> float:
    """Return P(X <= count) for mean >= count: terms fall on the way down, so few are needed."""
    total = term = _term(count, mean)
    for k in range(count, 0, -1):
        term *= k / mean
        total += term
        if term < total * 1e-17:
            break
    return total


def _at_least(count: int, mean: float) -> float:
    """Return P(X >= count) for mean <= count: terms fall on the way up."""
    total = term = _term(count, mean)
    k = count
    while term > total * 1e-17:
        k += 1
        term *= mean / k
        total += term
    return total
