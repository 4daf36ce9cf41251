"""How long programs' KV is kept, by the value of their return."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.policies.retention import KeepUntilReturn, best_wait_s

PROGRAM = ("tenant", "p")


class Costs(UnknownCost):
    """A second for a hundred tokens; the memory holds a thousand."""

    kv_tokens = 1000

    def prefill_s(self, num_tokens: int) -> float:
        return num_tokens / 100

    def load_s(self, num_tokens: int) -> float:
        return 4.0


def learned(pauses_s: list[float], tenant: str = "tenant", **settings: float) -> KeepUntilReturn:
    rule = KeepUntilReturn(Costs(), **settings)
    for number, pause_s in enumerate(pauses_s):
        rule.keep_s((tenant, f"{number}"), 100, 0.0)
        rule.came((tenant, f"{number}"), pause_s)
    return rule


def test_a_wait_is_worth_what_it_saves_less_the_memory() -> None:
    # Until 1 s: 4 / 2 saved, 1 s of memory paid. Until 2 s: 4 saved, 1.5 s paid on average.
    assert best_wait_s([1.0, 2.0], gain_s=4.0, price=1.0) == 2.0
    assert best_wait_s([1.0, 9.0], gain_s=4.0, price=1.0) == 1.0
    assert best_wait_s([3.0, 9.0], gain_s=4.0, price=1.0) == 0.0
    assert best_wait_s([], gain_s=4.0, price=1.0) == 0.0
    assert best_wait_s([inf, inf], gain_s=4.0, price=0.0) == 0.0


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=20), st.floats(0, 50), st.floats(0, 1))
def test_no_other_moment_gains_more(pauses_s: list[float], gain_s: float, price: float) -> None:
    pauses_s.sort()

    def worth(wait_s: float) -> float:
        back = sum(pause_s <= wait_s for pause_s in pauses_s)
        return gain_s * back - price * sum(min(pause_s, wait_s) for pause_s in pauses_s)

    found = best_wait_s(pauses_s, gain_s, price)
    best = max([0.0, *map(worth, pauses_s)])
    assert (worth(found) if found else 0.0) == pytest.approx(best, abs=1e-6)


def test_nothing_is_kept_before_eight_pauses_are_known() -> None:
    assert learned([1.0] * 7).keep_s(PROGRAM, 100, 0.0) == 0.0
    assert learned([1.0] * 8).keep_s(PROGRAM, 100, 0.0) == 1.0


@pytest.mark.parametrize(
    ("stored_share", "kept_s"),
    [(0.0, 3.0), (1.0, 0.0), (0.5, 3.0)],
    # A tenth of the memory for 3 s costs 0.3 s. To compute again takes 1 s; a load of 4 s holds that tenth: 0.4 s.
)
def test_what_a_store_brings_back_is_worth_the_load(stored_share: float, kept_s: float) -> None:
    rule = learned([3.0, 3.0, 3.0, 3.0, inf, inf, inf, inf])
    assert rule.keep_s(PROGRAM, 100, 0.0, stored_share) == kept_s


def test_each_tenant_has_pauses_of_its_own() -> None:
    assert learned([1.0] * 8, "other").keep_s(PROGRAM, 100, 0.0) == 0.0


def test_programs_that_stay_away_count() -> None:
    rule = learned([1.0] * 8, longest_s=10.0)
    for number in range(200):
        rule.keep_s(("tenant", f"gone {number}"), 100, 50.0)
    assert rule.keep_s(PROGRAM, 100, 61.0) == 0.0


def test_without_costs_nothing_is_worth_keeping() -> None:
    rule = KeepUntilReturn()
    for number in range(9):
        rule.keep_s(("", f"{number}"), 100, 0.0)
        rule.came(("", f"{number}"), 1.0)
    assert rule.keep_s(("", "p"), 100, 0.0) == 0.0


@pytest.mark.parametrize(
    "settings", [{"share": 1.1}, {"share": -0.1}, {"longest_s": -1.0}, {"longest_s": float("nan")}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        KeepUntilReturn(**settings)  # type: ignore[arg-type]
