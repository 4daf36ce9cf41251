"""Predicts answer lengths from the prompt and earlier answers, and learns as answers end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log
from threading import Lock

import numpy as np

from headway.core.length_estimate import LengthEstimate
from headway.predict.lengths.applications import Application, Applications, Lesson, quantiles, text_trust
from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.features import FEATURES, LengthFeatures, length_features
from headway.predict.lengths.ridge import OnlineRidge

FIRST_ANSWERS = 10
"""Answers before the first prediction: fewer give no interval."""
_REMEMBERED = 8192
"""Requests remembered between prediction and end; for a forgotten one the features are computed again."""
_TEXT_VARIANCE = 0.1
_TEXT_MEMORY = 200_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was known of a request when it arrived: its features, the expected log tokens, and the prediction."""

    features: LengthFeatures
    expected: float
    said: LengthEstimate | None = None


class LengthLearner:
    """Predicts lengths by application, input length and text, with an interval that holds four answers in five.

    The log of an answer's tokens is a linear model of its application (the tenant, the instruction) over the input's
    length, plus the contribution of its words. That contribution is a ridge regression shared by all applications,
    weighted by how much words have helped this application so far. The quantiles of the application's last errors,
    those of prompts of similar length first, then give the median and both ends. Everything is learned answer by
    answer, deterministically.

    Silent until FIRST_ANSWERS have been seen. One thread predicts and observes; another may take a `snapshot`.
    """

    def __init__(self) -> None:
        self.num_answers = 0
        self.applications = Applications()
        self.text = OnlineRidge(np.full(FEATURES, _TEXT_VARIANCE), _TEXT_MEMORY)
        self.lock = Lock()
        self._asked: dict[int, _Asked] = {}

    @property
    def ready(self) -> bool:
        """Whether enough answers were seen to predict."""
        return self.num_answers >= FIRST_ANSWERS

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """The length of one answer; None before the first answers. About 0.1 ms."""
        features, chain = length_features(facts), self.applications.chain(facts)
        expected, said = self._expected(features, chain), None
        if self.ready:
            most = float(max(1, facts.max_output_tokens))
            logs = expected + quantiles(chain, features.log_prompt)
            low, middle, high = np.exp(np.minimum(logs, log(most))).tolist()
            tokens = min(max(1.0, float(round(middle))), most)
            said = LengthEstimate(tokens, min(max(1.0, low), tokens), min(max(high, tokens), most))
        self._remember(facts, _Asked(features, expected, said))
        return said

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Learn from an answer; nothing from one without a token. About 0.2 ms."""
        if output_tokens < 1:
            return
        asked = self._asked.pop(hash(facts), None)
        chain = self.applications.chain(facts)
        if asked is None:
            features = length_features(facts)
            asked = _Asked(features, self._expected(features, chain))
        features = asked.features
        lesson = Lesson(
            features=features,
            output_tokens=output_tokens,
            said=asked.said,
            expected=asked.expected,
            line=chain[-1].on_line(features),
            deviation=chain[-1].deviation,
            text=self.text.predict(features.text),
        )
        with self.lock:
            for application in self.applications.answered(facts):
                application.observe(lesson)
            self.text.observe(features.text, lesson.surprise, 1.0)
            self.num_answers += 1

    def _expected(self, features: LengthFeatures, chain: Sequence[Application]) -> float:
        """The log of the tokens by the line and the text."""
        own = chain[-1]
        said = text_trust(chain) * self.text.predict(features.text)
        return own.on_line(features) + own.deviation * said

    def _remember(self, facts: RequestFacts, asked: _Asked) -> None:
        key = hash(facts)
        self._asked.pop(key, None)
        if len(self._asked) >= _REMEMBERED:
            del self._asked[next(iter(self._asked))]
        self._asked[key] = asked
