from __future__ import annotations

import re
from typing import Any

import pytest

from headway.core.slo import MAX_TARGET_S, MIN_LEFT_S, NO_TARGETS, Slo
from headway.errors import ConfigError

NAMES = ["ttft_s", "tbt_s", "deadline_s"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, -0.5, MAX_TARGET_S * 1.001, float("inf"), float("nan"), True, "1"])
def test_a_target_out_of_range_is_refused(name: str, value: Any) -> None:
    message = re.escape(f"{name} is {value!r}; accepted: a number of seconds in (0, 604800]")
    with pytest.raises(ConfigError, match=message):
        Slo(**{name: value})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1e-9, 1, 2.5, MAX_TARGET_S])
def test_a_target_in_range_is_kept(name: str, value: float) -> None:
    slo = Slo(**{name: value})
    assert getattr(slo, name) == value
    assert slo


def test_no_targets_is_false() -> None:
    assert not NO_TARGETS
    assert Slo() == NO_TARGETS


def test_what_is_left_when_time_is_gone() -> None:
    # Of 4 s for the first token 1.5 are left after 2.5 s; of 2 s for all of it none, which is said as a millisecond.
    slo = Slo(ttft_s=4.0, tbt_s=0.1, deadline_s=2.0)
    assert slo.after(2.5) == Slo(ttft_s=1.5, tbt_s=0.1, deadline_s=MIN_LEFT_S)
    assert slo.after(0.0) == slo
    assert NO_TARGETS.after(9.0) == NO_TARGETS
