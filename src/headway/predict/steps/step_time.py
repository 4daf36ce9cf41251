"""Predicts the seconds of a step, learned while serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from headway.core.batch_shape import BatchShape, StepKind
from headway.predict.models.known_models import model_shape
from headway.predict.models.model_shape import ModelShape
from headway.predict.models.roofline import Roofline
from headway.predict.steps.calibration import StepSeconds
from headway.predict.steps.fitting import TAIL, UsualError, trust_in
from headway.predict.steps.kernels import Peaks

NOMINAL = Peaks(flops_per_s=312e12, bytes_per_s=2e12)
"""An A100's peaks: on unknown hardware they only set the units of the features."""
TYPICAL = model_shape("Llama-3.1-8B")
"""Represents a model of unknown sizes: the coefficients make up for much of the difference."""
_BENDS = (1.0, 2.0, 4.0)
"""Operations, relative to those that at nominal peaks take as long as reading the weights, from which products may
be bound by arithmetic. The device's true ratio is unknown and lies in this range.
"""
_COEFFICIENTS = 9 + len(_BENDS)
_PRODUCTS = slice(3, 4 + len(_BENDS))
"""Position of the coefficients of matrix products. They come before those of steps with prompts and of their
context, from which whole prompts cannot separate them, so that they explain as much as they can.
"""
READY_STEPS = 20
_ATTENTION_MOST = 5.0
"""Most cost of an operation in a prompt's attention, relative to one in a matrix product. Short prompts say little
about it, and noise at 20 tokens would be the whole prediction at 1,000 (adr/0014).
"""
_FORGETTING = 0.998
"""Weight of a step falls by half in about 350 learned ones, so the fit follows a changing load."""
_FLOOR = 1e-4
"""Prior knowledge of each coefficient, in steps that contribute to it as strongly as any did. So little that 20
real steps outweigh it on any device: features are at nominal peaks, so a slow device's are small compared with its
seconds.
"""
_THINNING = 4
"""Once ready, one step in 4 is used: the fit hardly gains from more, and it runs beside the scheduler."""
_SWEEPS = 4
_FIRST_SWEEPS = 200
_FIRST_ROUNDS = 4
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class StepSecondsPrediction:
    """Expected seconds of a step; nine in ten lie between `low` and `high`."""

    mean: float
    low: float
    high: float

    def within_s(self, confidence: float) -> float:
        """Seconds that the step stays within with this probability: a log-normal through `mean` and the near end."""
        if not self.mean:
            return 0.0
        z = _NORMAL.inv_cdf(confidence)
        ratio = self.high / self.mean if z > 0 else self.mean / self.low
        return float(self.mean * ratio ** (z / _TAIL_Z))


_NORMAL = NormalDist()
_TAIL_Z = _NORMAL.inv_cdf(1 - TAIL)
_UNKNOWN = StepSecondsPrediction(0.0, 0.0, 0.0)


class StepTimeModel:
    """Step time = a + b jobs + c (tM - tM0) + d tF + sum of e_k max(0, tW - k tM0) + q + p + h tX + g tP + f tA.

    No coefficient is below 0. The features:

    - tM and tF: the step's bytes and operations at nominal peaks. tM0: the bytes of the weights.
    - tW: the operations of products with the weights. Products wait for the slower of the two, from a k of 1, 2 or 4
      on.
    - q: what a step costs that has more tokens than CUDA graphs hold. p: what a step with prompts costs, however few.
    - tX: the bytes of KV that decodes read in a step with prompts, which cost more where both share a kernel.
    - tP: the bytes of KV that prompts read, again for every tile of a chunk.
    - tA: the operations of prompts' attention, which run slower than matrix products: f <= 5 (d + all e_k) (adr/0014).

    The paper's features (Ascendra section 4.2: tM + tF, max(tM, tF), tM, tF, 1) are nearly parallel. These are not, so
    few steps settle them. Recursive least squares with forgetting make relative errors small. Outliers are held back
    (`UsualError`), each `StepKind` by its own measure: otherwise rare prompts would all be outliers. What recent steps
    say nothing of, such as the cost of a prompt during a long decode, stays as it was last known.

    `graphed_tokens`: a step of at most this many tokens is replayed as a CUDA graph; 0 where none are used. Until 20
    steps were seen, answers come from `prior`, or are 0 without one, so that nothing is decided by a guess. Memory is
    bounded: 12 coefficients, their 144 products, and 600 ratios for the intervals.
    """

    def __init__(
        self,
        model: ModelShape | None = None,
        tp: int = 1,
        *,
        graphed_tokens: int = 0,
        peaks: Peaks = NOMINAL,
        prior: StepSeconds | None = None,
    ) -> None:
        self._roofline = Roofline(model or TYPICAL, tp)
        self._peaks = peaks
        self.graphed_tokens = graphed_tokens
        self._least_reading = self._roofline.of(BatchShape()).bytes / peaks.bytes_per_s
        self._prior = prior
        self._fit = _Recursive(_COEFFICIENTS)
        self._first: list[tuple[list[float], float, UsualError]] = []
        self._errors = {kind: UsualError() for kind in StepKind}
        self._prefills: dict[int, float] = {}
        self.observed_steps = 0

    @property
    def ready(self) -> bool:
        """Whether it has seen enough steps to answer from them."""
        return self.observed_steps >= READY_STEPS

    def wants(self, step: int) -> bool:
        """Whether the `step`-th one is worth the O(jobs) of its shape: all until ready, then one in 4."""
        return not self.ready or step % _THINNING == 0

    def step_s(self, shape: BatchShape) -> float:
        """Predicted seconds of a step, never negative."""
        if not self.ready:
            return 0.0 if self._prior is None else self._prior.step_s(shape)
        return self._fit.at(self._features(shape))

    def predict(self, shape: BatchShape) -> StepSecondsPrediction:
        """Predicted seconds of a step, with the interval that held nine in ten of the last 200 of its kind."""
        mean = self.step_s(shape)
        if not mean:
            return _UNKNOWN
        usual = self._errors[shape.kind]
        return StepSecondsPrediction(mean, mean * min(1.0, usual.low), mean * max(1.0, usual.high))

    def prefill_s(self, num_tokens: int) -> float:
        """Seconds of one prompt of `num_tokens` tokens prefilled alone."""
        seconds = self._prefills.get(num_tokens)
        if seconds is None:
            shape = BatchShape()
            shape.add(num_tokens, 0)
            seconds = self._prefills[num_tokens] = self.step_s(shape)
        return seconds

    def observe(self, shape: BatchShape, seconds: float) -> None:
        """Learn from a finished step. About 90 us."""
        if not seconds > 0 or not shape.num_jobs:
            return
        self.observed_steps += 1
        self._prefills.clear()
        features = self._features(shape)
        if self.observed_steps <= READY_STEPS:
            self._first.append((features, seconds, self._errors[shape.kind]))
            if self.ready:
                self._begin()
            return
        self._follow(features, seconds, self._errors[shape.kind])

    def _features(self, shape: BatchShape) -> list[float]:
        work, peaks = self._roofline.of(shape), self._peaks
        products_s, weights_s = work.product_flops / peaks.flops_per_s, work.weight_bytes / peaks.bytes_per_s
        has_prompts = shape.num_tokens > shape.num_decodes
        return [
            1.0,
            float(shape.num_jobs),
            work.bytes / peaks.bytes_per_s - self._least_reading,
            work.flops / peaks.flops_per_s,
            *(max(0.0, products_s - bend * weights_s) for bend in _BENDS),
            float(shape.num_tokens > self.graphed_tokens > 0),
            float(has_prompts),
            work.decode_context_bytes / peaks.bytes_per_s if has_prompts else 0.0,
            work.prefill_context_bytes / peaks.bytes_per_s,
            work.prefill_attention_flops / peaks.flops_per_s,
        ]

    def _begin(self) -> None:
        """Fit the first steps together, with less weight on the farther ones: one of them may be a warm-up."""
        first, self._first = self._first, []
        trusts = [1.0] * len(first)
        for _ in range(_FIRST_ROUNDS):
            self._fit = _Recursive(_COEFFICIENTS)
            for (features, seconds, _), trust in zip(first, trusts, strict=True):
                self._fit.add(features, seconds, trust / seconds)
            self._fit.solve(_FIRST_SWEEPS)
            trusts = trust_in(
                [seconds / max(self._fit.at(features), _LEAST_S) for features, seconds, _ in first]
            )
        for features, seconds, usual in first:
            usual.note(max(self._fit.at(features), _LEAST_S), seconds)

    def _follow(self, features: Sequence[float], seconds: float, usual: UsualError) -> None:
        expected_s = max(self._fit.at(features), _LEAST_S)
        self._fit.forget()
        self._fit.add(features, usual.taken(expected_s, seconds), 1.0 / expected_s)
        self._fit.solve(_SWEEPS)
        usual.note(expected_s, seconds)


class _Recursive:
    """Weighted non-negative least squares, as sums from which old rows fade.

    The last coefficient is bounded by the sum of those of matrix products. Solved by coordinate descent from the last
    solution, so a coefficient without new evidence stays as it is.
    """

    def __init__(self, size: int) -> None:
        self.coefficients = [0.0] * size
        self._gram = [[0.0] * size for _ in range(size)]
        self._moment = [0.0] * size
        self._unit = [0.0] * size

    def at(self, features: Sequence[float]) -> float:
        """The value at these features, never negative."""
        return sum(map(float.__mul__, self.coefficients, features))

    def forget(self) -> None:
        """Let all rows fade a little, and keep prior knowledge where it would get lost."""
        floor = (1 - _FORGETTING) * _FLOOR
        for index, (row, coefficient, unit) in enumerate(
            zip(self._gram, self.coefficients, self._unit, strict=True)
        ):
            row[:] = [_FORGETTING * value for value in row]
            row[index] += floor * unit
            self._moment[index] = _FORGETTING * self._moment[index] + floor * unit * coefficient

    def add(self, features: Sequence[float], value: float, weight: float) -> None:
        """Add a row whose error counts `weight` times."""
        row = [weight * feature for feature in features]
        moment, unit, target = self._moment, self._unit, weight * value
        for index, (own, gram) in enumerate(zip(row, self._gram, strict=True)):
            for column, other in enumerate(row):
                gram[column] += own * other
            moment[index] += own * target
            if own * own > unit[index]:
                louder = _FLOOR * (own * own - unit[index])
                gram[index] += louder
                moment[index] += louder * self.coefficients[index]
                unit[index] = own * own

    def solve(self, sweeps: int) -> None:
        """Move each coefficient in turn to its best, `sweeps` times."""
        found = self.coefficients
        for _ in range(sweeps):
            for index, (row, moment) in enumerate(zip(self._gram, self._moment, strict=True)):
                own = row[index]
                if not own:  # no step has contributed to it yet
                    continue
                rest = moment - sum(map(float.__mul__, row, found)) + own * found[index]
                found[index] = max(0.0, rest / own)
            found[-1] = min(found[-1], _ATTENTION_MOST * sum(found[_PRODUCTS]))
