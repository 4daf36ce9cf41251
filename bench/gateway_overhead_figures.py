"""From the turns of `gateway_overhead` to its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.proxies import DIRECT
from bench.sse_client import Heard
from headway.errors import UpstreamError

AIMS = {"ttfb_added_p50_ms": 0.4, "ttfb_added_p99_ms": 5.0, "rps": 2500.0}
"""What the gateway is to keep to: at every rate, and at least."""


SATURATED, PACED = "saturated", "paced"
"""Modes that are no rate."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One system in one mode once: milliseconds of each request and chunk, and what the proxy used of its core."""

    ttfb_ms: Sequence[float]
    token_ms: Sequence[float]
    requests: int
    wall_s: float
    cpu_s: float
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's median over the rounds, its least and its largest."""

    median: float
    spread: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """From one value a round."""
        return cls(median(values), (min(values), max(values)))


Turns = Mapping[str, Mapping[str, Sequence[Turn]]]
"""By mode and system, a turn for each round."""


def turn_of(heard: Sequence[Heard], wall_s: float, cpu_s: float) -> Turn:
    """A turn's figures; requests that failed give none."""
    whole = [each for each in heard if each.error is None and each.first_ns is not None]
    return Turn(
        ttfb_ms=[(each.first_ns - each.sent_ns) / 1e6 for each in whole if each.first_ns is not None],
        token_ms=[under_way_ns / 1e6 for each in whole for under_way_ns in each.under_way_ns],
        requests=len(heard),
        wall_s=wall_s,
        cpu_s=cpu_s,
        errors=[each.error for each in heard if each.error is not None],
    )


def report(turns: Turns) -> dict[str, Any]:
    """By system: every mode's figures."""
    systems = {name: None for turn in turns.values() for name in turn}
    return {
        system: {
            "rates": {
                mode: streamed(by_system[system], by_system[DIRECT])
                for mode, by_system in turns.items()
                if mode not in (SATURATED, PACED)
            },
            SATURATED: saturated(turns[SATURATED][system]),
            PACED: streamed(turns[PACED][system], turns[PACED][DIRECT]),
            "errors": sum(len(turn.errors) for mode in turns.values() for turn in mode[system]),
        }
        for system in systems
    }


def streamed(turns: Sequence[Turn], direct: Sequence[Turn]) -> dict[str, Any]:
    """Latencies, what of them was added, and the CPU time behind them."""
    values: dict[str, Callable[[Turn], Sequence[float]]] = {
        "ttfb": lambda turn: turn.ttfb_ms,
        "token": lambda turn: turn.token_ms,
    }
    found: dict[str, Any] = {}
    for what, of in values.items():
        for share in (50, 99):
            mine = [_percentile(of(turn), share) for turn in turns]
            base = [_percentile(of(turn), share) for turn in direct]
            found[f"{what}_p{share}_ms"] = asdict(Figure.of(mine))
            found[f"{what}_added_p{share}_ms"] = asdict(
                Figure.of([ours - theirs for ours, theirs in zip(mine, base, strict=True)])
            )
    found["cpu_us_per_request"] = asdict(_cpu_us(turns, lambda turn: turn.requests))
    found["cpu_us_per_token"] = asdict(_cpu_us(turns, lambda turn: len(turn.token_ms)))
    return found


def saturated(turns: Sequence[Turn]) -> dict[str, Any]:
    """How many requests a second, and at what cost."""
    return {
        "rps": asdict(Figure.of([turn.requests / turn.wall_s for turn in turns])),
        "cpu_us_per_request": asdict(_cpu_us(turns, lambda turn: turn.requests)),
        "core_used": asdict(Figure.of([turn.cpu_s / turn.wall_s for turn in turns])),
    }


def problems(turns: Turns) -> list[str]:
    """Everything that went wrong, each once."""
    every = (turn for mode in turns.values() for by_system in mode.values() for turn in by_system)
    return sorted({error for turn in every for error in turn.errors})


def aims_met(system: Mapping[str, Any]) -> dict[str, Any]:
    """The worst of the rates beside what is aimed at."""
    rates = system["rates"].values()
    found = {
        name: max(rate[name]["median"] for rate in rates)
        for name in ("ttfb_added_p50_ms", "ttfb_added_p99_ms")
    }
    found["rps"] = system[SATURATED]["rps"]["median"]
    return {
        name: {
            "aim": AIMS[name],
            "found": value,
            "met": value >= AIMS[name] if name == "rps" else value <= AIMS[name],
        }
        for name, value in found.items()
    }


def _cpu_us(turns: Sequence[Turn], count: Callable[[Turn], int]) -> Figure:
    return Figure.of([turn.cpu_s * 1e6 / max(1, count(turn)) for turn in turns])


def _percentile(values: Sequence[float], share: int) -> float:
    if not values:
        raise UpstreamError("a turn has no whole answer; see the errors above")
    return float(np.percentile(values, share))
