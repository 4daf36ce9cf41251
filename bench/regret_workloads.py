"""The workloads of `bench/regret.py`: recorded traces and drawn ones, as backlogs and as windows at a rate."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import ceil
from pathlib import Path

from bench.regret_machines import Machine
from bench.regret_recordings import RECORDINGS, Recording, fitting, recorded
from headway.traces import TraceRequest, parse_workload

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "traces"
DRAWN_COUNT = 4_000
"""Requests of a drawn workload that stand for the whole of it, where a recorded one has a length."""
BACKLOG_SEED = 1_000
"""Not one of the windows' seeds."""
MOST_BACKLOG_TOKENS = 100_000_000
"""Prompts and answers of a backlog: the whole of every trace but two, whose first requests that come to this much stand
for them."""
LEAST_SHARE = 0.1
"""A workload of which a model can hold less is not served on it: what is left would be another workload."""
_MORE_THAN_DUE = 1.5

_TURNS = "input=sharegpt-turns/output=sharegpt-turns/max_output=1024"
DRAWN = {
    "chat": ("poisson:rate={rate}", _TURNS),
    "chat-bursty": ("gamma:rate={rate},cv=4", _TURNS),
    "skewed": (
        "poisson:rate={rate}",
        "input=zipf:theta=1,max=8192/output=zipf:theta=1,max=8192/max_output=8192",
    ),
    "long-prompts": ("poisson:rate={rate}", "input=zipf:theta=1,max=16384/output=sharegpt/max_output=2048"),
}
"""Name -> arrivals and lengths as `headway simulate --trace gen:...` takes them. Lengths are drawn independently, so
nothing about a request says how long its answer will be."""


@dataclass(frozen=True, slots=True)
class Served:
    """A workload as one machine is given it."""

    name: str
    machine: Machine
    data: Path

    def backlog(self) -> Sequence[TraceRequest]:
        """The whole of it (at most MOST_BACKLOG_TOKENS), all there at the start: what capacity is measured with."""
        if self.name in DRAWN:
            drawn = _draw(self.name, 1.0, DRAWN_COUNT, BACKLOG_SEED)
            requests = fitting(drawn, self.machine.longest_tokens)
        else:
            found = _that_fit(self)
            requests = [found.whole(request) for request in beginning(found.requests, MOST_BACKLOG_TOKENS)]
        return [replace(request, arrival_s=0.0) for request in requests]

    def window(self, rate_rps: float, window_s: float, seed: int) -> Sequence[TraceRequest]:
        """The seed's requests, that fit, in order of arrival from 0 to `window_s`; `rate_rps` is of those that fit."""
        return _window(self, rate_rps, window_s, seed)

    def facts(self) -> Facts:
        """How much of it fits."""
        return _facts(self)


@dataclass(frozen=True, slots=True)
class Facts:
    """Of a workload on a machine: requests that fit and those dropped, and what targets go by.

    `recorded_rps` is the mean rate of those that fit, None for a drawn workload.
    """

    requests: int
    dropped: int
    p90_prompt_tokens: int
    mean_context_tokens: int
    recorded_rps: float | None

    @property
    def served(self) -> bool:
        """Whether enough of it fits."""
        return self.requests >= LEAST_SHARE * (self.requests + self.dropped)


def beginning(requests: Sequence[TraceRequest], most_tokens: int) -> Sequence[TraceRequest]:
    """The first requests, as many as have no more than so many tokens together."""
    tokens = accumulate(request.input_tokens + request.output_tokens for request in requests)
    return requests[: bisect_right(list(tokens), most_tokens)]


def known_workloads(data: Path) -> tuple[str, ...]:
    """The drawn ones, and the recorded ones that lie in the folder."""
    there = [name for name, file in RECORDINGS.items() if (data / f"{file}.csv.gz").is_file()]
    return (*there, *DRAWN)


@lru_cache(maxsize=4)
def _whole(name: str, data: Path) -> Recording:
    return recorded(name, data)


@lru_cache(maxsize=4)
def _that_fit(served: Served) -> Recording:
    return _whole(served.name, served.data).that_fit(served.machine.longest_tokens)


@lru_cache(maxsize=32)
def _facts(served: Served) -> Facts:
    if served.name in DRAWN:
        every, period_s = DRAWN_COUNT, None
        requests: Sequence[TraceRequest] = served.backlog()
    else:
        every = len(_whole(served.name, served.data).requests)
        requests, period_s = _that_fit(served).requests, _that_fit(served).period_s
    if not requests:
        return Facts(0, every, 0, 0, None)
    prompts = sorted(request.input_tokens for request in requests)
    context = sum(request.input_tokens + request.output_tokens / 2 for request in requests) / len(requests)
    return Facts(
        requests=len(requests),
        dropped=every - len(requests),
        p90_prompt_tokens=prompts[ceil(0.9 * len(prompts)) - 1],
        mean_context_tokens=round(context),
        recorded_rps=None if period_s is None else len(requests) / period_s,
    )


@lru_cache(maxsize=2)
def _window(served: Served, rate_rps: float, window_s: float, seed: int) -> Sequence[TraceRequest]:
    if served.name not in DRAWN:
        return _that_fit(served).window(rate_rps, window_s, seed)
    facts = served.facts()
    drawn_rps = rate_rps * (facts.requests + facts.dropped) / facts.requests
    requests = _drawn_until(served.name, drawn_rps, window_s, seed)
    return fitting(requests, served.machine.longest_tokens)


def _drawn_until(name: str, rate_rps: float, until_s: float, seed: int) -> list[TraceRequest]:
    """All that arrive before `until_s`: fewer arrivals are the beginning of more."""
    count = ceil(_MORE_THAN_DUE * rate_rps * until_s) + 1
    while (requests := _draw(name, rate_rps, count, seed))[-1].arrival_s < until_s:
        count *= 2
    return [request for request in requests if request.arrival_s < until_s]


def _draw(name: str, rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    arrivals, lengths = DRAWN[name]
    text = f"{arrivals.format(rate=f'{rate_rps:.6g}')}/{lengths}/count={count}/seed={seed}"
    return parse_workload(text).requests()
