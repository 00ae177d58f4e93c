"""The runner's clock and schedule."""

from __future__ import annotations

import pytest

from collectors.runner import SECOND, Schedule, Timekeeper


class Clocks:
    """A wall clock and a monotonic one that the test moves."""

    def __init__(self) -> None:
        self.wall = 1_000 * SECOND
        self.mono = 50.0

    def move(self, seconds: float, jump_seconds: float = 0.0) -> None:
        """Let time pass, and set the wall clock by some seconds."""
        self.mono += seconds
        self.wall += int((seconds + jump_seconds) * SECOND)

    def keeper(self, not_before: int = 0) -> Timekeeper:
        """Start a timekeeper on them."""
        return Timekeeper(lambda: self.wall, lambda: self.mono, not_before)


@pytest.mark.parametrize(("jump", "steps"), [(0.0, 0), (0.5, 0), (-3600.0, 1), (3600.0, 1)])
def test_jumps_of_more_than_a_second_are_counted(jump: float, steps: int) -> None:
    """Slewing is no jump; setting the clock is one, in either direction."""
    clocks = Clocks()
    keeper = clocks.keeper()
    for seconds in (1.0, 1.0):
        clocks.move(seconds, jump)
        keeper.now()
        jump = 0.0
    assert steps == keeper.steps


def test_time_grows_over_a_backward_jump_and_meets_the_clock_again() -> None:
    """Intervals stay positive, and the lead is given back within twice its length."""
    clocks = Clocks()
    keeper = clocks.keeper()
    times = [keeper.now()]
    clocks.move(1.0, -10.0)
    for _ in range(30):
        times.append(keeper.now())
        clocks.move(1.0)
    assert sorted(set(times)) == times
    assert clocks.wall == keeper.now()


def test_time_goes_on_after_a_restart() -> None:
    """A restart within a boot, with the clock set back, gives no time that was given before."""
    clocks = Clocks()
    assert clocks.wall + SECOND < clocks.keeper(not_before=clocks.wall + SECOND).now()


def test_missed_ticks_are_skipped() -> None:
    """After a pause each name is due once, on its old grid, and the missed ticks are counted."""
    schedule = Schedule({"fast": 1.0, "slow": 60.0}, 0.0)
    assert ["fast", "slow"] == schedule.due(0.0)
    assert [] == schedule.due(0.5)
    assert ["fast"] == schedule.due(7.5)
    assert (6, 8.0) == (schedule.skipped, schedule.next_at())
