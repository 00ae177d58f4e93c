"""Heat and power that keep a device below its clocks.

What is not throttling: a device at its power limit under load (every busy GPU is there), an idle device's low clocks,
application clocks that somebody set, sync boost. What is: clocks cut by heat, by an outside signal (power brake,
processor hot), or by a power cap that bites while the device draws far less than its limit; and a limit far below that
of the same GPUs in the host.

NVIDIA and AMD name the same things differently: `HEAT`, `SOFT_HEAT` and `BRAKE` hold both vendors' words.
"""

from __future__ import annotations

import numpy as np

from detectors.casebook import Casebook, number
from detectors.detector import Detector, State, register
from detectors.maps import highest
from detectors.table import Floats
from passmuster.columns import Columns
from passmuster.records import Finding

NAME = "throttling"

HEAT = ("hw_thermal", "socket_thermal", "vr_thermal", "hbm_thermal")
SOFT_HEAT = ("sw_thermal",)
BRAKE = ("power_brake", "prochot")

# Share of an interval's samples with the reason set. A tenth of the time is felt by every step of a job; a single
# sample of ten may be the edge of a load step.
SHARE = 0.1
# Rows of 10 s in a row: half a minute of hardware throttling is no transient; the driver's own regulation gets two
# minutes, because it is meant to act at times.
HARD_ROWS = 3
SOFT_ROWS = 12
GOOD_ROWS = 6

# Degrees. The slowdown limit is where clocks are cut; within two degrees of it no margin for a hot day is left.
HOT_MARGIN_CELSIUS = 2.0
SHUTDOWN_MARGIN_CELSIUS = 3.0

# A capped device regulates to within a few percent of its limit (an H200 at 700 W read 692.7 and 693.8 W). Capped
# below 85 % of it, something else than its own limit is the cap.
CAPPED_BELOW_RATIO = 0.85
CAPPED_SHARE = 0.5

# GPUs of one model in one host have one limit. A tenth below the highest of them was set, or derated.
REDUCED_LIMIT_RATIO = 0.9


def observe(state: State, records: Columns, now: int) -> tuple[State, list[Finding]]:
    """See the module's docstring."""
    case = Casebook(NAME, state, now)
    rows = case.rows(records)
    hard = highest(records, "throttle_ratio", HEAT)
    soft = highest(records, "throttle_ratio", SOFT_HEAT)
    brake = highest(records, "throttle_ratio", BRAKE)
    slowdown = highest(records, "throttle_ratio", ("hw_slowdown",))
    beside = (
        "throttle_ratio", "power_watts", "power_limit_watts", "temperature_core_celsius", "temperature_hotspot_celsius",
        "temperature_memory_celsius", "clock_graphics_hertz", "activity_compute_ratio",
    )  # fmt: skip
    # HW slowdown is set together with its closer reason; alone it is a reason of its own.
    alone = (slowdown >= SHARE) & ~(hard >= SHARE) & ~(brake >= SHARE)
    for code, share, bad, need in (
        ("thermal.hw_throttle", hard, hard >= SHARE, HARD_ROWS),
        ("thermal.sw_throttle", soft, (soft >= SHARE) & ~(hard >= SHARE), SOFT_ROWS),
        ("power.brake", brake, brake >= SHARE, HARD_ROWS),
        ("power.hw_slowdown", slowdown, alone, HARD_ROWS),
    ):
        case.watch(
            records, rows, code, bad, ~np.isnan(share), need_bad=need, need_good=GOOD_ROWS, value=share, bound=SHARE,
            columns=beside,
        )  # fmt: skip

    hottest = _highest_of(
        records,
        "temperature_core_celsius",
        "temperature_core_max_celsius",
        "temperature_hotspot_celsius",
        "temperature_hotspot_max_celsius",
    )
    slowdown_bound = number(records, "temperature_slowdown_celsius") - HOT_MARGIN_CELSIUS
    shutdown_bound = number(records, "temperature_shutdown_celsius") - SHUTDOWN_MARGIN_CELSIUS
    too_hot = hottest >= shutdown_bound
    for code, bad, bound in (
        ("thermal.hot", (hottest >= slowdown_bound) & ~too_hot, slowdown_bound),
        ("thermal.shutdown_near", too_hot, shutdown_bound),
    ):
        case.watch(
            records, rows, code, bad, ~np.isnan(hottest) & (bound > 0), need_bad=HARD_ROWS, need_good=GOOD_ROWS,
            value=hottest, bound=bound, columns=beside,
        )  # fmt: skip
    memory = _highest_of(records, "temperature_memory_celsius", "temperature_memory_max_celsius")
    memory = np.fmax(memory, highest_stack(records))
    limit = number(records, "temperature_memory_limit_celsius")
    case.watch(
        records, rows, "thermal.memory_hot", memory >= limit, ~np.isnan(memory) & (limit > 0), need_bad=HARD_ROWS,
        need_good=GOOD_ROWS, value=memory, bound=limit, columns=(*beside, "temperature_hbm_celsius"),
    )  # fmt: skip

    capped = highest(records, "throttle_ratio", ("power_cap", "ppt"))
    limit = number(records, "power_limit_watts")
    power = _highest_of(records, "power_max_watts", "power_watts")
    bound = CAPPED_BELOW_RATIO * limit
    case.watch(
        records, rows, "power.capped_below_limit", (capped >= CAPPED_SHARE) & (power < bound),
        ~np.isnan(capped) & ~np.isnan(power) & (limit > 0), need_bad=SOFT_ROWS, need_good=GOOD_ROWS, value=power,
        bound=bound, columns=beside,
    )  # fmt: skip
    highest_limit = _highest_of_siblings(records, limit)
    bound = REDUCED_LIMIT_RATIO * highest_limit
    case.watch(
        records, rows, "power.limit_reduced", limit < bound, ~np.isnan(limit) & ~np.isnan(highest_limit),
        need_bad=SOFT_ROWS, need_good=GOOD_ROWS, value=limit, bound=bound, columns=("power_limit_watts",),
    )  # fmt: skip
    return case.result()


def _highest_of(records: Columns, *names: str) -> Floats:
    out = number(records, names[0])
    for name in names[1:]:
        out = np.fmax(out, number(records, name))
    return out


def highest_stack(records: Columns) -> Floats:
    """Return per row the hottest HBM stack; NaN where stacks are not told apart."""
    out = np.full(records.rows, np.nan)
    if records.has("temperature_hbm_celsius"):
        for i, stacks in enumerate(records.objects("temperature_hbm_celsius")):
            if stacks:
                out[i] = max(stacks.values())
    return out


def _highest_of_siblings(records: Columns, values: Floats) -> Floats:
    """Return per row the highest value among GPUs of the same host and model in these records, itself included."""
    names = zip(records.objects("cluster"), records.objects("host"), records.objects("model"), strict=True)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name, []).append(i)
    out = np.full(records.rows, np.nan)
    for members in groups.values():
        out[members] = np.fmax.reduce(values[members])
    return out


register(
    Detector(
        name=NAME,
        version=1,
        kinds=("gpu_reading",),
        summary="Clocks cut by heat or power, and temperatures at their limits.",
        observe=observe,
        codes=(
            "thermal.hw_throttle",
            "thermal.sw_throttle",
            "thermal.hot",
            "thermal.shutdown_near",
            "thermal.memory_hot",
            "power.brake",
            "power.hw_slowdown",
            "power.capped_below_limit",
            "power.limit_reduced",
        ),
        needs={"gpu_reading": ("throttle_ratio", "temperature_core_celsius", "temperature_hotspot_celsius")},
        bounds={
            "SHARE": f"{SHARE:g} of the samples of a row: felt by every step of a job",
            "HARD_ROWS": f"{HARD_ROWS} rows of 10 s: no transient of a load step",
            "SOFT_ROWS": f"{SOFT_ROWS} rows of 10 s: the driver's own regulation is meant to act at times",
            "GOOD_ROWS": f"{GOOD_ROWS} good rows end a finding",
            "HOT_MARGIN_CELSIUS": f"{HOT_MARGIN_CELSIUS:g} degrees below the slowdown limit",
            "SHUTDOWN_MARGIN_CELSIUS": f"{SHUTDOWN_MARGIN_CELSIUS:g} degrees below the shutdown limit",
            "CAPPED_BELOW_RATIO": f"{CAPPED_BELOW_RATIO:g} of the limit: a busy H200 regulates to 0.99 of it",
            "CAPPED_SHARE": f"{CAPPED_SHARE:g} of the samples capped",
            "REDUCED_LIMIT_RATIO": f"{REDUCED_LIMIT_RATIO:g} of the highest limit of the same model in the host",
        },
    )
)
