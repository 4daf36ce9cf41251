"""What the gateway adds to a stream: `python bench/cost/gateway_overhead.py --json`.

A stub upstream streams 16 chunks like vLLM's (`sse_servers.py stub`); client and stub share one core, the proxy has
another one to itself. Compared with talking to the stub directly, in the same run: the gateway as `headway serve
--join` starts it, the same with `--no-resume` (the upstream is not asked for token ids), the least that a Python
proxy does (`sse_servers.py bare`), and the Rust `vllm-router` where `--vllm-router PATH` names its program (null
without). No client waits for a model, so all that is seen is the proxy's.

- `rates`: Poisson arrivals at 50, 200 and 500 a second, the chunks 5 ms apart. `ttfb_added_p50_ms`: time to the first
  byte of the body, over talking to the stub directly in the same round. `token_added_p50_ms`: from the stub's write of
  a chunk until it came here, over the same. Percentiles over the requests or chunks of a round.
- `saturated`: 64 connections, each sending one request after another, all chunks in one write: `rps`, and how much of
  the proxy's core was used (`core_used`; well below 1 the client was the slower one). `chats`: the same of greedy
  chats, which the gateway keeps so that they could be made again.
- `paced`: 100 streams at once, 50 chunks 20 ms apart.

`cpu_us_per_request` and `cpu_us_per_token` are the proxy's own CPU time, the figures to trust on a machine that is not
quiet (`direct`: the stub's). Systems take turns in three rounds; each figure is the median of the rounds, with
`spread`, the least and the largest. About 4 minutes. Needs two cores.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import uvloop
from headway_reproduce.process_cpu import cpu_s as cpu_time_s

from bench.command import command_line, say
from bench.cost.gateway_proxies import (
    BARE,
    DIRECT,
    HEADWAY,
    PLAIN_HEADWAY,
    RUST,
    Client,
    Heard,
    chat,
    completion,
    on_core,
    running,
)
from headway.errors import ConfigError, UpstreamError
from headway.lab.server import RunningServer
from headway.statistics import median, quantile

# ---- figures -----------------------------------------------------------------------------------------

AIMS = {"ttfb_added_p50_ms": 0.4, "ttfb_added_p99_ms": 5.0, "rps": 2500.0}
"""The gateway's aims: upper limits at every rate, and lower limits of throughput."""


SATURATED, CHATS, PACED = "saturated", "chats", "paced"
"""Modes besides the rates."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One system in one mode once: milliseconds of each request and chunk, and its use of its core."""

    ttfb_ms: Sequence[float]
    token_ms: Sequence[float]
    requests: int
    wall_s: float
    cpu_s: float
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's median over the rounds, with its smallest and largest value."""

    median: float
    spread: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        """Make a figure from one value a round."""
        return cls(median(values), (min(values), max(values)))


Turns = Mapping[str, Mapping[str, Sequence[Turn]]]
"""Mode -> system -> a turn for each round."""


def turn_of(heard: Sequence[Heard], wall_s: float, cpu_s: float) -> Turn:
    """A turn's figures; failed requests contribute none."""
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
    """Every mode's figures, by system."""
    systems = {name: None for turn in turns.values() for name in turn}
    return {
        system: {
            "rates": {
                mode: streamed(by_system[system], by_system[DIRECT])
                for mode, by_system in turns.items()
                if mode not in (SATURATED, CHATS, PACED)
            },
            SATURATED: saturated(turns[SATURATED][system]),
            CHATS: saturated(turns[CHATS][system]),
            PACED: streamed(turns[PACED][system], turns[PACED][DIRECT]),
            "errors": sum(len(turn.errors) for mode in turns.values() for turn in mode[system]),
        }
        for system in systems
    }


def streamed(turns: Sequence[Turn], direct: Sequence[Turn]) -> dict[str, Any]:
    """Latencies, the part that the system added, and its CPU time."""
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
    """Requests a second, and their cost."""
    return {
        "rps": asdict(Figure.of([turn.requests / turn.wall_s for turn in turns])),
        "cpu_us_per_request": asdict(_cpu_us(turns, lambda turn: turn.requests)),
        "core_used": asdict(Figure.of([turn.cpu_s / turn.wall_s for turn in turns])),
    }


def problems(turns: Turns) -> list[str]:
    """Every error once."""
    every = (turn for mode in turns.values() for by_system in mode.values() for turn in by_system)
    return sorted({error for turn in every for error in turn.errors})


def aims_met(system: Mapping[str, Any]) -> dict[str, Any]:
    """The worst values over the rates, with the aims."""
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
    return quantile(values, share / 100)


# ---- the bench ---------------------------------------------------------------------------------------

RATES_RPS = (50, 200, 500)
CHUNKS, INTERVAL_S = 16, 0.005
CONNECTIONS = 64
STREAMS, PACED_CHUNKS, PACED_INTERVAL_S = 100, 50, 0.02
ROUNDS = 3
WARM_UP = 100
"""Requests sent before a turn, which open the connections that it uses."""


@dataclass(slots=True)
class Bench:
    """All systems, and the duration of a turn in each mode."""

    systems: Mapping[str, RunningServer]
    seconds: float

    def modes(self, number: int) -> dict[str, Callable[[Client], Coroutine[Any, Any, None]]]:
        """Mode -> what it sends in a round."""
        body = completion(CHUNKS, INTERVAL_S)
        rates: dict[str, Callable[[Client], Coroutine[Any, Any, None]]] = {
            f"{rate}": partial(Client.at_times, times_s=arrivals(rate, self.seconds, number), body=body)
            for rate in RATES_RPS
        }
        in_turn = partial(Client.in_turn, connections=CONNECTIONS, seconds=self.seconds)
        return {
            **rates,
            SATURATED: partial(in_turn, body=completion(CHUNKS, 0.0)),
            CHATS: partial(in_turn, body=chat(CHUNKS)),
            PACED: partial(
                Client.at_times, times_s=_staggered(), body=completion(PACED_CHUNKS, PACED_INTERVAL_S)
            ),
        }

    def turn(
        self, runner: asyncio.Runner, system: str, send: Callable[[Client], Coroutine[Any, Any, None]]
    ) -> Turn:
        """Run one system in one mode; unrecorded requests open its connections first."""
        target = self.systems[system]
        client = Client(target.url)
        runner.run(client.at_times([0.0] * WARM_UP, completion(CHUNKS, 0.0)))
        client.heard.clear()
        gc.collect()
        before, began_s = cpu_time_s(target.pid), time.perf_counter()
        runner.run(send(client))
        wall_s, cpu_s = time.perf_counter() - began_s, cpu_time_s(target.pid) - before
        client.close()
        return turn_of(client.heard, wall_s, cpu_s)

    def rounds(self, count: int) -> dict[str, dict[str, list[Turn]]]:
        """Turns by mode and system; the starting system changes from round to round."""
        found: dict[str, dict[str, list[Turn]]] = {}
        names = list(self.systems)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for number in range(count):
                names = [
                    *names[1:],
                    names[0],
                ]  # otherwise, with as many modes as systems, a mode would always begin with the same one
                for mode, send in self.modes(number).items():
                    names = [*names[1:], names[0]]
                    for system in names:
                        turn = self.turn(runner, system, send)
                        found.setdefault(mode, {}).setdefault(system, []).append(turn)
                        say(
                            f"round {number + 1} of {count}, {mode}, {system}: {turn.requests} requests, "
                            f"{len(turn.errors)} errors"
                        )
        return found


def arrivals(rate_rps: float, seconds: float, number: int) -> list[float]:
    """Times of a Poisson process, equal for every system of a round."""
    draw, times_s = random.Random(f"{rate_rps} {number}"), []
    now_s = draw.expovariate(rate_rps)
    while now_s < seconds:
        times_s.append(now_s)
        now_s += draw.expovariate(rate_rps)
    return times_s


def _staggered() -> list[float]:
    """Start times spread within the interval of two chunks, as among streams that have run for long."""
    return [number * PACED_INTERVAL_S / STREAMS for number in range(STREAMS)]


def two_cores() -> tuple[int, int]:
    """Cores for the client and for the proxy. Raises ConfigError if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise ConfigError(f"this process may use {len(cores)} core; accepted: 2 or more")
    return cores[0], cores[1]


def main() -> None:
    """Print `{"systems": {"<name>": {...} or null}, "aims": {...}, ...}`."""
    parser = command_line(__doc__)
    parser.add_argument("--vllm-router", type=Path, metavar="PATH", help="the Rust router's program")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a turn (default 2.5)")
    arguments = parser.parse_args()
    client_core, proxy_core = two_cores()
    with on_core(client_core), running(proxy_core, arguments.vllm_router) as systems:
        turns = Bench(systems, arguments.seconds).rounds(arguments.rounds)
    found = report(turns)
    for problem in problems(turns):
        say(f"error: {problem}")
    print(
        json.dumps(
            {
                "cores": {"client and upstream": client_core, "proxy": proxy_core},
                "rounds": arguments.rounds,
                "chunks": CHUNKS,
                "systems": {name: found.get(name) for name in (DIRECT, RUST, BARE, HEADWAY, PLAIN_HEADWAY)},
                "aims": aims_met(found[HEADWAY]),
            }
        )
    )


if __name__ == "__main__":
    main()
