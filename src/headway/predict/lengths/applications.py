"""Statistics of the answers of one application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log, sqrt

import numpy as np

from headway.core.length_estimate import TAIL, LengthEstimate
from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.features import LengthFeatures
from headway.predict.lengths.ridge import LastErrors, OnlineRidge, Vector, weighted_quantiles

LINE = 4
"""Inputs of an application's linear model: 1, log input tokens, log prompt tokens, recent length of answers."""
_LINE_VARIANCES = np.array([1.0, 0.1, 0.1, 0.3])
_LINE_MEMORY = 10_000
_USUAL_LOG_TOKENS = 4.5
"""Log of an answer's tokens before any is known: 90 tokens, off by a factor of 7."""
_FIRST_VARIANCE = 0.3
_LEAST_VARIANCE = 0.003
_FADING = 0.02
"""Weight of the newest answer in the running variance."""
_LATELY = 0.25
"""Weight of the newest answer in the recent length of answers."""
_FARTHEST = 3.0
"""Surprises are capped at this many deviations."""
_MOST_LATELY = 2.0
_TEXT_TRUST, _TEXT_DOUBT = 0.7, 2.0
"""Initial trust in what the text predicts, and how many answers outweigh that."""

_NEAR = 0.3
"""Difference of log prompt tokens at which an error has a third of the weight of one at the same place."""
_FAR_WEIGHT = 0.2
_BORROWED, _BORROWED_WEIGHT = 20, 0.3
"""With fewer errors than this, an application adds its parent's quantiles, with this weight."""
_TAIL_STEP, _WIDEST_TAIL = 0.01, 0.4
_WIDER = 2.0
"""Answers by which the ends of the interval are widened, since few answers do not show the ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """An answer and its prediction: logarithms of tokens, and the text's contribution, in deviations.

    `said` was predicted (None: nothing), `expected` is the value it was made from, `line` the prediction from the
    input's length alone.
    """

    features: LengthFeatures
    output_tokens: int
    said: LengthEstimate | None
    expected: float
    line: float
    deviation: float
    text: float

    @property
    def surprise(self) -> float:
        """Distance of the answer from the line, in deviations, capped at 3: beyond that it is chance."""
        return min(max((log(self.output_tokens) - self.line) / self.deviation, -_FARTHEST), _FARTHEST)


class Application:
    """One application's line from input length to answer length, its deviation, and its last errors.

    Lengths are logarithms. A new application starts from the line of its parent: the tenant, or all requests.
    """

    __slots__ = ("errors", "high_tail", "lately", "line", "low_tail", "text_gain", "text_power", "variance")

    def __init__(self, parent: Application | None = None) -> None:
        if parent is None:
            usual = np.array([_USUAL_LOG_TOKENS, 0.0, 0.0, 0.0])
            self.line = OnlineRidge(4 * _LINE_VARIANCES, _LINE_MEMORY, usual)
            self.variance = _FIRST_VARIANCE
            self.low_tail = self.high_tail = TAIL
        else:
            self.line = OnlineRidge(_LINE_VARIANCES, _LINE_MEMORY, parent.line.weights)
            self.variance = parent.variance
            self.low_tail, self.high_tail = parent.low_tail, parent.high_tail
        self.lately = self.text_power = self.text_gain = 0.0
        self.errors = LastErrors()

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm of answers around the line."""
        return sqrt(max(self.variance, _LEAST_VARIANCE))

    def on_line(self, features: LengthFeatures) -> float:
        """Log of the answer's tokens, from the length of the input alone."""
        return self.line.predict(self._inputs(features))

    def observe(self, lesson: Lesson) -> None:
        """Learn from an answer. About 20 us."""
        log_tokens = log(lesson.output_tokens)
        self.errors.add(lesson.features.log_prompt, log_tokens - lesson.expected)
        if lesson.said is not None:
            self.low_tail = _moved(self.low_tail, missed=lesson.output_tokens < lesson.said.low_tokens)
            self.high_tail = _moved(self.high_tail, missed=lesson.output_tokens > lesson.said.high_tokens)
        self.text_power += lesson.text**2
        self.text_gain += lesson.text * lesson.surprise
        noise = self.deviation**2
        inputs = self._inputs(lesson.features)
        self.line.observe(inputs, log_tokens, noise)
        inputs[-1] = 0.0
        off = log_tokens - self.line.predict(inputs)
        self.lately += _LATELY * (min(max(off, -_MOST_LATELY), _MOST_LATELY) - self.lately)
        squared = min((log_tokens - lesson.line) ** 2, _FARTHEST**2 * noise)
        self.variance += _FADING * (squared - self.variance)

    def _inputs(self, features: LengthFeatures) -> Vector:
        return np.array([1.0, features.log_input - 3.5, features.log_prompt - 4.5, self.lately])


def _moved(tail: float, *, missed: bool) -> float:
    """The share to leave beyond an end next time, so that in the long run one answer in ten lies beyond.

    Source: Gibbs and Candes 2021, Adaptive conformal inference under distribution shift (arXiv 2106.00170).
    """
    return min(max(tail + _TAIL_STEP * (TAIL - missed), 0.0), _WIDEST_TAIL)


def text_trust(chain: Sequence[Application]) -> float:
    """The factor for the text's contribution that would have served the last of the chain best so far."""
    trust = _TEXT_TRUST
    for application in chain:
        trust = (application.text_gain + _TEXT_DOUBT * trust) / (application.text_power + _TEXT_DOUBT)
    return trust


def quantiles(chain: Sequence[Application], log_prompt: float) -> Vector:
    """Errors at the low end, in the middle and at the high end, (3,), of the last application in the chain.

    Errors of prompts of similar length count most. Source: Guan 2023, Localized conformal prediction (arXiv
    2106.08460).
    """
    places, errors = chain[-1].errors.known
    weights = _FAR_WEIGHT + np.exp(np.abs(places - log_prompt) / -_NEAR)
    missing = _BORROWED - len(errors)
    if missing > 0 and len(chain) > 1:
        _, others = chain[-2].errors.known
        borrowed = np.quantile(others, (np.arange(missing) + 0.5) / missing)
        errors = np.concatenate([errors, borrowed])
        weights = np.concatenate([weights, np.full(missing, _BORROWED_WEIGHT)])
    answers = float(weights.sum()) ** 2 / float(weights @ weights)
    seen = max(0.0, 1 - _WIDER / answers)
    shares = (chain[-1].low_tail * seen, 0.5, 1 - chain[-1].high_tail * seen)
    return weighted_quantiles(errors, weights, shares)


MOST_APPLICATIONS = 1024


class Applications:
    """All requests together, each tenant, and each of its instructions: the last 1,024 that had an answer.

    Tenants and instructions are stored as digests, so the data reveal nothing about a prompt. Memory: 3.5 kB each.
    """

    def __init__(self) -> None:
        self.all = Application()
        self.by_key: dict[bytes, Application] = {}

    def chain(self, facts: RequestFacts) -> list[Application]:
        """All requests, and those applications of the request that have had an answer, the widest first."""
        return [self.all, *(self.by_key[key] for key in _keys(facts) if key in self.by_key)]

    def answered(self, facts: RequestFacts) -> list[Application]:
        """All requests and every application of the request, new ones created; the least recently answered are
        dropped.
        """
        chain = [self.all]
        for key in _keys(facts):
            own = self.by_key.pop(key, None) or Application(chain[-1])
            if len(self.by_key) >= MOST_APPLICATIONS:
                del self.by_key[next(iter(self.by_key))]
            self.by_key[key] = own
            chain.append(own)
        return chain


def _keys(facts: RequestFacts) -> list[bytes]:
    """Keys of the tenant and of its instruction, if the request has them."""
    named = [(facts.tenant, "")] * bool(facts.tenant) + [(facts.tenant, facts.instruction)] * bool(
        facts.instruction
    )
    return [_digest(*names) for names in named]


KEY_BYTES = 16


def _digest(tenant: str, instruction: str) -> bytes:
    text = f"{len(tenant)} {tenant}{instruction}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
