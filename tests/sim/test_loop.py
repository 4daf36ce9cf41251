from __future__ import annotations

import pytest

from headway.sim.clock import EventLoop, Phase


def test_time_then_phase_then_insertion() -> None:
    loop, seen = EventLoop(), []
    for time_s, phase, name in [
        (1.0, Phase.SCHEDULE, "schedule"),
        (1.0, Phase.ARRIVAL, "first arrival"),
        (1.0, Phase.OUTPUT, "output"),
        (1.0, Phase.ARRIVAL, "second arrival"),
        (0.5, Phase.SCHEDULE, "earlier"),
    ]:
        loop.at(time_s, phase, lambda name=name: seen.append((loop.now_s, name)))  # type: ignore[misc]
    loop.run()
    assert seen == [
        (0.5, "earlier"),
        (1.0, "output"),
        (1.0, "first arrival"),
        (1.0, "second arrival"),
        (1.0, "schedule"),
    ]


@pytest.mark.parametrize("time_s", [0.5, float("nan")])
def test_the_past_cannot_be_planned(time_s: float) -> None:
    loop = EventLoop()
    loop.at(1.0, Phase.OUTPUT, lambda: loop.at(time_s, Phase.OUTPUT, lambda: None))
    with pytest.raises(ValueError, match="cannot plan for"):
        loop.run()
