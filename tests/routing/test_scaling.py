from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.routing.scaling import (
    CALM_WINDOWS,
    UPPER,
    Advice,
    Adviser,
    Bounds,
    Demand,
    Scaler,
    ScalingReason,
    Served,
    fewest,
)

WINDOW_S, LEAD_S = 80.0, 80.0
FOUR = Bounds(1, 4)


def steady(rate_rps: float, until_s: float) -> Demand:
    return came(Demand(WINDOW_S, LEAD_S), rate_rps, until_s)


def came(demand: Demand, rate_rps: float, until_s: float) -> Demand:
    for number in range(int(rate_rps * until_s)):
        demand.came(number / rate_rps)
    return demand


def adviser(bounds: Bounds, until_s: float = 800.0) -> Adviser:
    """One that has seen a demand that does not change."""
    made = Adviser(bounds, WINDOW_S, LEAD_S)
    came(made.demand, 2.0, until_s)
    return made


def test_bounds_are_read_as_one_number_or_two() -> None:
    assert Bounds.parse("3", "--instances") == Bounds(3, 3)
    assert Bounds.parse("1..4", "--instances") == FOUR
    assert [FOUR.clamp(count) for count in (0, 2, 9)] == [1, 2, 4]


@pytest.mark.parametrize("text", ["", "0", "0..2", "3..2", "-1", "1.5", "1...4", "two", "1..", "..4"])
def test_what_is_no_bounds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--scale is .*; accepted: N or MIN\.\.MAX, from 1 up, as 1\.\.4"):
        Bounds.parse(text, "--scale")


def test_demand_that_does_not_change_does_not_grow() -> None:
    # Two a second: 20 in each bin of 10 s, so that every ratio is 1.
    assert steady(2.0, 800.0).growth(800.0, UPPER) == 1.0


def test_growth_is_guessed_until_enough_was_seen() -> None:
    # 12 ratios need 12 + 8 + 8 bins, less one: 270 s.
    assert steady(2.0, 260.0).growth(260.0, UPPER) == Demand.GUESSED_GROWTH
    assert steady(2.0, 280.0).growth(280.0, UPPER) == 1.0
    assert steady(2.0, 40.0).growth(40.0, 0.1) == 1 / Demand.GUESSED_GROWTH


def test_demand_that_doubles_within_a_window_has_been_seen_to_double() -> None:
    demand = steady(2.0, 400.0)
    for number in range(1600):
        demand.came(400.0 + number / 4)
    # The eight moments from 400 s on to 480 s have more after than before: of 49 - 15 the largest is 2.
    assert demand.growth(800.0, 0.999) == 2.0
    assert demand.growth(800.0, 0.1) == 1.0
    # An hour later nothing of it is left.
    for number in range(4 * 4000):
        demand.came(800.0 + number / 4)
    assert demand.growth(4800.0, 0.999) == 1.0


def fleet(capacity: float, demand: float) -> Served:
    """A fleet that serves all of its demand within targets, or as much of it as it can."""
    return Served(goodput=min(1.0, capacity / demand), mean_jct_s=demand / capacity)


@given(st.floats(0.1, 20.0), st.integers(1, 6), st.integers(0, 10), st.data())
def test_advice_is_the_fewest_that_do_as_well_as_the_most(
    load: float, least: int, more: int, data: st.DataObject
) -> None:
    bounds, asked = Bounds(least, least + more), list[int]()

    def replay(count: int, growth: float) -> Served:
        asked.append(count)
        return fleet(count, load * growth)

    advice = adviser(bounds).advise(replay, 800.0, data.draw(st.integers(1, 20)))
    best = fleet(bounds.ceiling, load)
    enough = [
        count for count in range(bounds.floor, bounds.ceiling + 1) if fleet(count, load).as_good_as(best)
    ]
    assert advice.needed == enough[0]
    assert bounds.floor <= advice.low <= advice.needed <= advice.high <= bounds.ceiling
    assert len(asked) == len(set(asked)), "none is replayed twice"


@given(st.integers(1, 20), st.integers(0, 80), st.data())
def test_the_fewest_are_found_from_wherever_the_search_begins(
    floor: int, more: int, data: st.DataObject
) -> None:
    bounds, asked = Bounds(floor, floor + more), set[int]()
    enough = data.draw(st.integers(bounds.floor, bounds.ceiling))
    near = data.draw(st.integers(bounds.floor, bounds.ceiling))

    def is_enough(count: int) -> bool:
        asked.add(count)
        return count >= enough

    assert fewest(is_enough, bounds, near) == enough
    assert all(2 * count >= enough or count >= near - 1 for count in asked), (
        "hopeless queues are not replayed"
    )
    assert len(asked) <= 2 + 2 * (abs(enough - near) + 1).bit_length()


def test_the_largest_fleet_is_not_replayed_where_another_loses_nothing() -> None:
    asked = list[int]()

    def replay(count: int, growth: float) -> Served:
        asked.append(count)
        return fleet(count, 3.0)

    found = adviser(Bounds(1, 64))
    assert found.advise(replay, 800.0, 3).needed == 3
    assert asked == [3, 2]
    asked.clear()
    assert found.advise(replay, 800.0, 2).needed == 3
    assert asked == [2, 64, 3], "two lose much, which may be no fault of theirs"


def test_growth_that_is_reckoned_with_needs_more_instances() -> None:
    # 1.25 times 2 instances' work, before anything is known of how demand changes.
    advice = adviser(Bounds(1, 8), 40.0).advise(lambda count, growth: fleet(count, 2 * growth), 40.0, 1)
    assert (advice.needed, advice.growth) == (3, 1.25)
    # Demand that shrank to 0.8: two of three instances would not have done at 1.25, 1.28 not at 0.8.
    assert (advice.low, advice.high) == (2, 3)


def test_without_targets_a_fleet_may_be_a_quarter_slower() -> None:
    best = Served(None, 4.0)
    assert Served(None, 5.0).as_good_as(best)
    assert not Served(None, 5.1).as_good_as(best)
    assert Served(None, None).as_good_as(Served(None, None)), "nothing came"
    assert not Served(None, None).as_good_as(best), "nothing finished"


def test_where_all_fleets_are_late_the_faster_one_is_better() -> None:
    best = Served(0.0, 4.0)
    assert not Served(0.0, 8.0).as_good_as(best)
    assert Served(0.0, 4.9).as_good_as(best)
    assert Served(0.6, 8.0).as_good_as(Served(0.6, 4.0)), "most are in time, and none gains"


def needs(count: int, doubt: str | None = None) -> Advice:
    return Advice(needed=count, low=1, high=4, doubt=doubt)


def test_more_instances_at_once_and_fewer_after_a_calm_time() -> None:
    scaler = Scaler(FOUR, window_s=60.0 / CALM_WINDOWS)
    assert scaler.decide(0.0, 1, needs(3)).instances == 3
    assert scaler.decide(0.0, 3, needs(3)).reason is ScalingReason.STEADY
    calm = [scaler.decide(at_s, 3, needs(1)) for at_s in (20.0, 40.0, 60.0)]
    assert [(each.instances, each.reason) for each in calm] == [(3, ScalingReason.CALM)] * 3
    fewer = scaler.decide(80.0, 3, needs(1))
    assert (fewer.instances, fewer.reason) == (1, ScalingReason.FEWER)
    assert scaler.decide(100.0, 1, needs(1)).reason is ScalingReason.FLOOR


def test_the_most_that_was_needed_in_the_calm_time_stays() -> None:
    scaler = Scaler(FOUR, window_s=60.0 / CALM_WINDOWS)
    scaler.decide(0.0, 4, needs(4))
    scaler.decide(30.0, 4, needs(2))
    assert scaler.decide(70.0, 4, needs(1)).instances == 2


def test_what_was_needed_before_starts_nothing_that_is_not_needed_now() -> None:
    # An instance was taken away by hand; two do now.
    scaler = Scaler(FOUR, window_s=60.0 / CALM_WINDOWS)
    scaler.decide(0.0, 4, needs(4))
    assert scaler.decide(10.0, 3, needs(2)).instances == 3


def test_more_than_there_may_be_is_said_to_be_the_ceiling() -> None:
    found = Scaler(FOUR).decide(0.0, 4, needs(4))
    assert (found.instances, found.reason) == (4, ScalingReason.CEILING)


def test_without_advice_the_fleet_stays_and_within_its_bounds() -> None:
    found = Scaler(FOUR).decide(0.0, 6, None)
    assert (found.instances, found.low, found.high, found.reason) == (4, 1, 4, ScalingReason.UNKNOWN)


def test_in_doubt_there_are_never_fewer() -> None:
    scaler = Scaler(FOUR, window_s=0.0)
    assert scaler.decide(0.0, 2, needs(1, "far off")).instances == 2
    more = scaler.decide(10.0, 2, needs(3, "far off"))
    assert (more.instances, more.reason) == (3, ScalingReason.DOUBT)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 6), st.booleans()), max_size=40))
def test_the_number_stays_within_bounds_and_within_its_interval(steps: list[tuple[float, int, bool]]) -> None:
    scaler, now_s, current = Scaler(Bounds(2, 5)), 0.0, 2
    for passed_s, needed, doubtful in steps:
        now_s += passed_s
        found = scaler.decide(now_s, current, needs(needed, "far off" if doubtful else None))
        assert 2 <= found.instances <= 5
        assert found.low <= found.instances <= found.high
        assert found.instances >= min(5, needed) or doubtful
        current = found.instances


def test_after_bursts_that_nothing_follows_there_is_still_advice() -> None:
    # In all moments that tell, something came before and nothing after: nothing can be replayed at no demand at all.
    bursts = Adviser(FOUR, WINDOW_S, LEAD_S)
    demand = bursts.demand
    for burst in range(4):
        for second in range(10):
            demand.came(600.0 * burst + second)
    assert [demand.growth(2400.0, share) for share in (0.1, UPPER, 0.95)] == [1 / Demand.LARGEST] * 3
    found = bursts.advise(lambda count, growth: fleet(count, 8 * growth), 2400.0, 1)
    assert (found.low, found.needed, found.high) == (2, 2, 2)
