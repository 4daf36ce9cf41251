"""The scene of `long_prompt`: streams under way, a long prompt among them, and the tokens' times that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import SimulationError
from headway.predict.residuals import quantile
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

LONG = "long"
STREAM = "stream"
WARM = "warm"
LONG_OUTPUT_TOKENS = 8
WARM_OUTPUT_TOKENS, REHEARSAL_TOKENS = 4, 100
WARM_SHARES = (1 / 64, 1 / 4, 1 / 16, 1 / 8)
"""Of the long prompt's tokens: what the prompts before the scene have, so that what steps cost is known by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`streams` decode; `settle_s` after they came a prompt of `long_tokens` arrives. Before them come `warm` others,
    one every `warm_every_s`, and as many short streams, `rehearsal_s` ahead, as an engine that serves has seen.

    The streams share the first `shared_blocks` times 512 tokens of their prompts, as with one system prompt, so that
    what they read hardly changes while they go on. `window_s` is how long they are watched when they are left alone.
    """

    streams: int
    long_tokens: int
    stream_output_tokens: int
    shared_blocks: int
    own_tokens: int = 32
    settle_s: float = 2.0
    window_s: float = 4.0
    warm: int = 12
    warm_every_s: float = 1.0
    rehearsal_s: float = 10.0

    @property
    def warm_s(self) -> float:
        """When the short streams come."""
        return self.warm * self.warm_every_s

    @property
    def streams_s(self) -> float:
        """When the streams come."""
        return self.warm_s + self.rehearsal_s

    @property
    def long_s(self) -> float:
        """When the long prompt comes."""
        return self.streams_s + self.settle_s

    def requests(self, tbt_s: float | None, *, with_long: bool = True, seed: int = 0) -> list[TraceRequest]:
        """In order of arrival; the streams have this target, nobody else has any.

        The streams' own parts of their prompts are up to a quarter longer, by `seed`.
        """
        rng = Random(f"streams of {seed}")
        slo = NO_TARGETS if tbt_s is None else Slo(tbt_s=tbt_s)
        found = [self._warm(number) for number in range(self.warm)]
        for number in range(self.streams):
            found.append(
                self._sharing(f"{WARM}-stream-{number}", self.warm_s, self.own_tokens, REHEARSAL_TOKENS)
            )
        for number in range(self.streams):
            own_tokens = self.own_tokens + rng.randrange(self.own_tokens // 4 + 1)
            stream = self._sharing(
                f"{STREAM}-{number}", self.streams_s, own_tokens, self.stream_output_tokens
            )
            found.append(replace(stream, slo=slo))
        if with_long:
            found.append(_request(LONG, self.long_s, self.long_tokens, LONG_OUTPUT_TOKENS))
        return found

    def _warm(self, number: int) -> TraceRequest:
        """The first has what the streams share, the others prompts of their own."""
        name, arrival_s = f"{WARM}-{number}", number * self.warm_every_s
        if not number:
            return self._sharing(name, arrival_s, self.own_tokens, WARM_OUTPUT_TOKENS)
        tokens = max(1, round(self.long_tokens * WARM_SHARES[number % len(WARM_SHARES)]))
        return _request(name, arrival_s, tokens, WARM_OUTPUT_TOKENS)

    def _sharing(self, name: str, arrival_s: float, own_tokens: int, output: int) -> TraceRequest:
        tokens = MOONCAKE_BLOCK_TOKENS * self.shared_blocks + own_tokens
        blocks = tuple(range(self.shared_blocks))
        return replace(_request(name, arrival_s, tokens, output), prefix_blocks=blocks)


def _request(name: str, arrival_s: float, tokens: int, output: int) -> TraceRequest:
    return TraceRequest(name, arrival_s, tokens, output, max_output_tokens=output)


@dataclass(slots=True)
class TokenTimes:
    """When each request's tokens came, in order."""

    of: dict[str, list[float]] = field(default_factory=dict)

    def came(self, request_id: str, tokens: int, now_s: float) -> None:
        """So many tokens of a request have come now."""
        self.of.setdefault(request_id, []).extend([now_s] * tokens)

    @property
    def streams(self) -> list[list[float]]:
        """The streams' alone."""
        return [times_s for name, times_s in self.of.items() if name.startswith(STREAM)]


def gaps_s(streams: Sequence[Sequence[float]], from_s: float, until_s: float) -> list[float]:
    """The times between tokens of the same stream that lie in this time, if only in part."""
    return [
        later - sooner
        for times_s in streams
        for sooner, later in pairwise(times_s)
        if later > from_s and sooner < until_s
    ]


@dataclass(frozen=True, slots=True)
class Light:
    """The streams without a long prompt: the median and the worst time between tokens, once it would have come."""

    median_gap_s: float
    worst_gap_s: float


def light(scene: Scene, times: TokenTimes) -> Light:
    """What the streams do when they are left alone. Raises SimulationError if they ended before."""
    gaps = gaps_s(times.streams, scene.long_s, scene.long_s + scene.window_s)
    if not gaps:
        raise SimulationError(
            "the streams ended before the long prompt would have come; they need more tokens"
        )
    return Light(median(gaps), max(gaps))


def light_gap_s(alone: Sequence[Light]) -> float:
    """What targets are multiples of: the first seed's median gap, so that more seeds do not change the targets."""
    return alone[0].median_gap_s


@dataclass(frozen=True, slots=True)
class Passage:
    """How a long prompt went through: the streams' gaps from its arrival to its first token, and how long that took.

    `before_gap_s`: their median gap in the second before it came (0 if they had none), which says how fast the machine
    was just then. `amid_all`: every stream had begun and went on until then, so that the whole prompt was computed
    among all of them.
    """

    before_gap_s: float
    worst_gap_s: float
    p99_gap_s: float
    ttft_s: float
    amid_all: bool


def passage(scene: Scene, times: TokenTimes) -> Passage:
    """Of one run of the scene."""
    first_s = times.of[LONG][0]
    gaps = sorted(gaps_s(times.streams, scene.long_s, first_s))
    if not gaps:
        raise SimulationError("the streams ended before the long prompt came; they need more tokens")
    before = gaps_s(times.streams, scene.long_s - 1.0, scene.long_s)
    return Passage(
        before_gap_s=median(before) if before else 0.0,
        worst_gap_s=gaps[-1],
        p99_gap_s=quantile(gaps, 0.99),
        ttft_s=first_s - scene.long_s,
        amid_all=len(times.streams) == scene.streams and min(map(max, times.streams)) >= first_s,
    )


def passage_figures(passages: Sequence[Passage]) -> dict[str, Any]:
    """Over the seeds: the worst gap of all, by seed too, and the mean of the rest."""
    return {
        "worst_gap_s": max(each.worst_gap_s for each in passages),
        "worst_gap_by_seed_s": [each.worst_gap_s for each in passages],
        "before_gap_s": max(each.before_gap_s for each in passages),
        "p99_gap_s": sum(each.p99_gap_s for each in passages) / len(passages),
        "long_ttft_s": sum(each.ttft_s for each in passages) / len(passages),
        "amid_all": all(each.amid_all for each in passages),
    }


@dataclass(frozen=True, slots=True)
class Measured:
    """One machine: the streams alone, under who knows no targets, under the policy by factor of its target; by seed."""

    light: Sequence[Light]
    deaf: Mapping[str, Sequence[Passage]]
    policy: Mapping[float, Sequence[Passage]]
