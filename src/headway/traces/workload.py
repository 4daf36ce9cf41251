"""Generates workloads from an arrival process and two length laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import ceil, isfinite

import numpy as np

from headway.core.job import PREFIX_BLOCK_TOKENS
from headway.errors import ConfigError
from headway.traces.arrivals import ArrivalProcess
from headway.traces.lengths import LengthLaw
from headway.traces.request import TraceRequest

_MOST_BLOCKS = 1 << 20
"""More than the blocks of any conversation, so that block names of different conversations differ."""


def conversation(
    number: int, arrivals_s: Sequence[float], said: Sequence[tuple[int, int]], max_output_tokens: int | None
) -> list[TraceRequest]:
    """One request for each turn, with ids such as `7-0`, in the session `7`.

    `said` has each turn's new tokens and those of its answer; a prompt is everything said before, and the new tokens.
    """
    before = accumulate((asked + answered for asked, answered in said), initial=0)
    first_block = number * _MOST_BLOCKS
    turns = []
    for turn, (arrival_s, tokens_before, (asked, answered)) in enumerate(
        zip(arrivals_s, before, said, strict=False)
    ):
        prompt_tokens = tokens_before + asked
        blocks = range(first_block, first_block + ceil(prompt_tokens / PREFIX_BLOCK_TOKENS))
        request = TraceRequest(
            id=f"{number}-{turn}",
            arrival_s=arrival_s,
            input_tokens=prompt_tokens,
            output_tokens=answered,
            max_output_tokens=max_output_tokens,
            session=f"{number}",
            prefix_blocks=tuple(blocks),
        )
        turns.append(request)
    return turns


MAX_COUNT = 10_000_000
"""Limit on memory: more requests would fill it before the first is served."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Everything that determines a generated trace; equal workloads give equal requests.

    With more than one of `turns` every arrival begins a conversation: a turn's prompt is everything said before it plus
    new tokens by the input law, and it comes `think_s` seconds after the previous one on average.
    """

    arrivals: ArrivalProcess
    input_law: LengthLaw
    output_law: LengthLaw
    count: int
    seed: int = 0
    max_output_tokens: int | None = None
    turns: int = 1
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ConfigError.of("turns", self.turns, "1 or more")
        if not 1 <= self.count * self.turns <= MAX_COUNT:
            said = (
                f"count is {self.count}"
                if self.turns == 1
                else f"count times turns is {self.count * self.turns}"
            )
            raise ConfigError(f"{said}; accepted: 1 to {MAX_COUNT}")
        if self.seed < 0:
            raise ConfigError.of("seed", self.seed, "0 or more")
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ConfigError.of("max_output_tokens", self.max_output_tokens, "1 or more")
        if not (isfinite(self.think_s) and self.think_s >= 0):
            raise ConfigError.of("think", f"{self.think_s:g}", "seconds, 0 or more")

    def requests(self) -> list[TraceRequest]:
        """The requests in order of arrival, the first at 0 s, with ids `0`, `1`, ...

        Arrivals, inputs, outputs and pauses have separate random streams: a change to one law leaves the others as they
        were, and fewer arrivals are the beginning of more. An answer longer than `max_output_tokens` ends there, and
        every request declares that limit. A turn's id is its conversation's and its own number, as `0-2`.
        """
        streams = np.random.SeedSequence(self.seed).spawn(4)
        arrival_rng, input_rng, output_rng, pause_rng = (np.random.default_rng(stream) for stream in streams)
        count, limit = self.count * self.turns, self.max_output_tokens
        begins_s = self.arrivals.sample(self.count, arrival_rng)
        drawn = zip(
            self.input_law.sample(count, input_rng), self.output_law.sample(count, output_rng), strict=True
        )
        said = [(tokens, min(answer, limit or answer)) for tokens, answer in drawn]
        if self.turns == 1:
            return [
                TraceRequest(str(place), arrival_s, *lengths, max_output_tokens=limit)
                for place, (arrival_s, lengths) in enumerate(zip(begins_s, said, strict=True))
            ]
        pauses_s = pause_rng.exponential(self.think_s, (self.count, self.turns))
        pauses_s[:, 0] = begins_s
        arrivals_s = pauses_s.cumsum(axis=1).tolist()
        turns = (
            conversation(
                number, arrivals_s[number], said[number * self.turns : (number + 1) * self.turns], limit
            )
            for number in range(self.count)
        )
        return sorted(chain.from_iterable(turns), key=lambda request: request.arrival_s)


def generate(
    arrivals: ArrivalProcess, input_law: LengthLaw, output_law: LengthLaw, count: int, seed: int
) -> list[TraceRequest]:
    """`count` requests as `Workload.requests` draws them, with no declared output limit."""
    return Workload(arrivals, input_law, output_law, count, seed).requests()
