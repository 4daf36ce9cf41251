"""Sources of predicted answer lengths for a simulation: real predictors, and some derived from true lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, sqrt
from random import Random
from statistics import NormalDist
from typing import Protocol

from headway.core.length_estimate import TAIL, LengthEstimate
from headway.core.prediction_quality import kendall_tau
from headway.errors import ConfigError
from headway.predict.lengths.facts import LengthPredictor, RequestFacts, SharedPrefix
from headway.traces import TraceRequest


class LengthSource(Protocol):
    """A source of lengths: asked once for each arriving request, and told of each end."""

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """Predict the answer's length; None if unknown."""
        ...

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """A request ended; if it `finished`, the source may learn its output tokens."""
        return


class AskedPredictor:
    """A real predictor that sees only what a server would know, and learns from answers as they finish.

    Instruction and input are told apart as a server does. The facts about a request are kept until it ends.
    """

    def __init__(self, predictor: LengthPredictor) -> None:
        self._predictor = predictor
        self._prefixes = SharedPrefix()
        self._asked: dict[str, RequestFacts] = {}

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """The predictor's estimate."""
        facts = self._asked[request.id] = self._prefixes.facts(
            request.prompt or "",
            num_prompt_tokens=request.input_tokens,
            max_output_tokens=max_output_tokens,
            tenant=request.tenant,
        )
        return self._predictor.predict(facts)

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """Let the predictor learn from a finished answer."""
        facts = self._asked.pop(request.id)
        if finished:
            self._predictor.observe(facts, request.output_tokens)


class RecordedLengths:
    """A source that records its predictions in `said`, by request."""

    def __init__(self, source: LengthSource) -> None:
        self.said: dict[str, LengthEstimate] = {}
        self._source = source

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """The wrapped source's estimate, which is recorded."""
        found = self._source.predict(request, max_output_tokens)
        if found is not None:
            self.said[request.id] = found
        return found

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """Let the wrapped source learn."""
        self._source.ended(request, finished=finished)


class GivenLengths(LengthSource):
    """Predictions made in advance."""

    def __init__(self, said: Mapping[str, LengthEstimate]) -> None:
        self._said = said

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """The given estimate."""
        return self._said.get(request.id)


CALIBRATED_ON = 2_000
"""Requests, evenly spread over the trace, on which the noise is calibrated to the requested tau."""
_TAIL_Z = NormalDist().inv_cdf(1 - TAIL)
_MOST_NOISE = 20.0
_HALVINGS = 40
FALSE_CONFIDENCE = 1.05
"""Width that a broken prediction claims, as a factor either way."""


class NoisyOracle(LengthSource):
    """The true length times log-normal noise of its own for each request, sized to give `tau`.

    `tau` is Kendall's, between predicted and true lengths; 1 is exact. A request's noise follows from `seed` and its id
    alone, so a prediction does not depend on other questions. The interval is honest: its width is the noise's, so
    eight true lengths in ten are inside.
    """

    def __init__(self, requests: Sequence[TraceRequest], tau: float, seed: int = 0) -> None:
        if not 0 < tau <= 1:
            raise ConfigError(f"tau of a noisy oracle is {tau}; accepted: above 0, at most 1")
        self._seed = seed
        self.noise = 0.0 if tau == 1 else self._noise_for(tau, requests)

    def _noise_for(self, tau: float, requests: Sequence[TraceRequest]) -> float:
        """Find by bisection the log deviation that gives `tau` on these requests; tau falls as it grows."""
        some = requests[:: max(1, len(requests) // CALIBRATED_ON)]
        known = [(request.output_tokens, self._draw(request)) for request in some]
        low, high = 0.0, _MOST_NOISE
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            reached = kendall_tau((tokens * exp(middle * draw), tokens) for tokens, draw in known)
            low, high = (middle, high) if reached > tau else (low, middle)
        return (low + high) / 2

    def _draw(self, request: TraceRequest) -> float:
        return Random(f"{self._seed} {request.id}").gauss(0.0, 1.0)

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate:
        """The noisy length, with the noise as width."""
        tokens = request.output_tokens * exp(self.noise * self._draw(request))
        reach = exp(self.noise * _TAIL_Z)
        return LengthEstimate(tokens, tokens / reach, tokens * reach)


class Broken(LengthSource):
    """Predictions that are wrong in one way, and claim to be within 5 % either way.

    Ways: `reversed`, the longest answers called the shortest; `constant`, all equal; `random`; and `turning`, exact for
    the first half of the trace, so that they are trusted, and then reversed.
    """

    def __init__(self, requests: Sequence[TraceRequest], way: str, seed: int = 0) -> None:
        if way not in WAYS:
            raise ConfigError(f"way of a broken predictor is {way!r}; accepted: {', '.join(WAYS)}")
        if not requests:
            raise ConfigError("a broken predictor has no requests to be wrong about; accepted: 1 or more")
        lengths = [request.output_tokens for request in requests]
        self.shortest, self.longest = min(lengths), max(lengths)
        self.turns_at_s = requests[len(requests) // 2].arrival_s
        self._way = WAYS[way]
        self.seed = seed

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate:
        """The wrong length, with a narrow interval."""
        tokens = self._way(self, request)
        return LengthEstimate(tokens, tokens / FALSE_CONFIDENCE, tokens * FALSE_CONFIDENCE)


def _reversed(broken: Broken, request: TraceRequest) -> float:
    return broken.shortest * broken.longest / request.output_tokens


def _constant(broken: Broken, request: TraceRequest) -> float:
    return sqrt(broken.shortest * broken.longest)


def _random(broken: Broken, request: TraceRequest) -> float:
    drawn = Random(f"{broken.seed} {request.id}").uniform(log(broken.shortest), log(broken.longest))
    return exp(drawn)


def _turning(broken: Broken, request: TraceRequest) -> float:
    if request.arrival_s < broken.turns_at_s:
        return float(request.output_tokens)
    return _reversed(broken, request)


WAYS: dict[str, Callable[[Broken, TraceRequest], float]] = {
    "reversed": _reversed,
    "constant": _constant,
    "random": _random,
    "turning": _turning,
}
