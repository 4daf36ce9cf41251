"""Generated workloads: an arrival process and two length laws as a list of requests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.errors import ConfigError
from headway.traces.arrivals import ArrivalProcess
from headway.traces.lengths import LengthLaw
from headway.traces.request import TraceRequest

MAX_COUNT = 10_000_000
"""More requests than this would fill the memory before the first is served."""


@dataclass(frozen=True, slots=True)
class Workload:
    """All that decides a generated trace; equal workloads give equal requests."""

    arrivals: ArrivalProcess
    input_law: LengthLaw
    output_law: LengthLaw
    count: int
    seed: int = 0
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise ConfigError(f"count is {self.count}; accepted: 1 to {MAX_COUNT}")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; accepted: 0 or more")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ConfigError(f"max_output_tokens is {self.max_output_tokens}; accepted: 1 or more")

    def requests(self) -> list[TraceRequest]:
        """The requests in order of arrival, the first at 0 s, with ids `0`, `1`, ...

        Arrivals, inputs and outputs have their own random streams: a change to one law leaves the other
        two as they were, and fewer requests are the beginning of more. An answer longer than
        `max_output_tokens` ends there, and every request declares that limit.
        """
        streams = np.random.SeedSequence(self.seed).spawn(3)
        arrival_rng, input_rng, output_rng = (np.random.default_rng(stream) for stream in streams)
        limit = self.max_output_tokens
        drawn = zip(
            self.arrivals.sample(self.count, arrival_rng),
            self.input_law.sample(self.count, input_rng),
            self.output_law.sample(self.count, output_rng),
            strict=True,
        )
        return [
            TraceRequest(str(place), arrival_s, tokens, min(answer, limit or answer), max_output_tokens=limit)
            for place, (arrival_s, tokens, answer) in enumerate(drawn)
        ]


def generate(
    arrivals: ArrivalProcess, input_law: LengthLaw, output_law: LengthLaw, count: int, seed: int
) -> list[TraceRequest]:
    """`count` requests as `Workload.requests` draws them, with no declared output limit."""
    return Workload(arrivals, input_law, output_law, count, seed).requests()
