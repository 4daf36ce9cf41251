"""Answer lengths from a forest that goes on learning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np

from headway.core.length_estimate import LengthEstimate
from headway.errors import ConfigError
from headway.predict.lengths.facts import RequestFacts
from headway.predict.lengths.forest import (
    LengthForest,
    LengthInterval,
    LengthRows,
    LengthSettings,
    Rows,
    Tokens,
    lightgbm,
)

_REMEMBERED = 8192
"""Requests between their prediction and their end; of one that is forgotten the features are computed again."""
_GROWTH = 1.5
"""Answers seen, over those at the last fit, that make the next one due before its time."""
_FOLDS = 5
"""One row in 5 is held out of a first fit, to set the interval."""


class LengthFeatures(Protocol):
    """Numbers that describe a request when it comes."""

    name: str
    num_features: int

    def rows(self, requests: Sequence[RequestFacts]) -> Rows:
        """One row a request, (requests, features)."""
        ...

    def ended(self, facts: RequestFacts, output_tokens: int) -> None:
        """An answer has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was known of a request when it came, and what the forest said: (3,), None without one."""

    row: Rows
    raw: Tokens | None


class ForestPredictor:
    """A forest over the features of requests, and an interval that four answers in five keep to.

    Silent until `first_answers` have been seen. Three things may run beside each other, on different threads: one
    that predicts and observes, one that fits (`refit` when it is `due`), one that saves; the new forest takes the old
    one's place in a single assignment. With `inline`, `observe` itself fits when that is due by the number of
    answers: what simulations and tests want, the same for the same calls; `period_s` then has no clock.
    """

    def __init__(
        self, features: LengthFeatures, settings: LengthSettings | None = None, *, inline: bool = False
    ) -> None:
        self.features = features
        self.settings = settings or LengthSettings()
        self.num_answers = 0
        self.num_fits = 0
        self.interval = LengthInterval()
        self.rows = LengthRows(features.num_features, self.settings.max_rows, self.settings.seed)
        self._inline = inline
        self._forest: LengthForest | None = None
        self._asked: dict[int, _Asked] = {}
        self._fitted_answers = 0
        self._fitted_s = 0.0
        self._new_rows = 0
        self._lock = Lock()
        lightgbm()  # imported now: a missing one is refused at start, and no request waits for it

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self._forest is not None

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """The length of one answer; None before the first fit. Features, and about 0.1 ms."""
        return self.predict_many((facts,))[0]

    def predict_many(self, requests: Sequence[RequestFacts]) -> list[LengthEstimate | None]:
        """The lengths of several requests, for little more than that of one."""
        forest, rows = self._forest, self.features.rows(requests)
        raws = None if forest is None or not requests else forest.ask(rows)
        found: list[LengthEstimate | None] = []
        for index, facts in enumerate(requests):
            raw = None if raws is None else raws[index]
            self._remember(facts, _Asked(rows[index], raw))
            found.append(None if raw is None else self.interval.estimate(raw, facts.max_output_tokens))
        return found

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Learn from an answer, if it is worth it: all of them at first, then those predicted badly."""
        if output_tokens < 1:
            return
        asked = self._asked.get(hash(facts))
        if asked is None:
            asked = self._ask(facts)
        with self._lock:
            self.num_answers += 1
            if self._worth_learning(facts, asked.raw, output_tokens):
                self.rows.add(asked.row, float(output_tokens))
                self._new_rows += 1
            if asked.raw is not None:
                self.interval.ended(asked.raw, output_tokens)
        self.features.ended(facts, output_tokens)
        if self._inline and self.due():
            self.refit()

    def learn_from(self, answers: Iterable[tuple[RequestFacts, int]]) -> None:
        """Take all of these as rows, whatever their errors, and fit: the training set the paper starts from.

        Raises ConfigError for none.
        """
        pairs = [(facts, tokens) for facts, tokens in answers if tokens > 0]
        if not pairs:
            raise ConfigError("no answers to learn lengths from; at least one of a token or more is needed")
        for facts, tokens in pairs:
            row = self.features.rows((facts,))[0]
            with self._lock:
                self.num_answers += 1
                self.rows.add(row, float(tokens))
            self.features.ended(facts, tokens)
        self.refit()

    def due(self, now_s: float | None = None) -> bool:
        """Whether a fit is worth its time: enough answers for the first, half as many again, or the period is over."""
        if not self._new_rows or self.num_answers < self.settings.first_answers:
            return False
        if self._forest is None or self.num_answers >= _GROWTH * self._fitted_answers:
            return True
        return now_s is not None and now_s - self._fitted_s >= self.settings.period_s

    def refit(self, now_s: float | None = None) -> None:
        """Fit a forest to the rows and put it in the old one's place; nothing without rows. Seconds at most."""
        with self._lock:
            rows, tokens = self.rows.copy()
            self._new_rows, self._fitted_answers = 0, self.num_answers
        if now_s is not None:
            self._fitted_s = now_s
        if not len(tokens):
            return
        held_out = self._held_out(rows, tokens)
        self._forest = LengthForest(rows, tokens, self.settings)
        if held_out is not None:
            with self._lock:
                self.interval.held_out(*held_out)
        self.num_fits += 1

    def snapshot(self) -> tuple[Rows, Tokens, Tokens]:
        """What a file keeps: rows (rows, features), their tokens (rows,), and the interval's state."""
        with self._lock:
            return (*self.rows.copy(), self.interval.state())

    def restore(self, rows: Rows, tokens: Tokens, interval: Tokens, num_answers: int) -> None:
        """Take over what `snapshot` returned, and fit, unless it was too little for a first forest.

        The interval stays as it was: its answers were real ones.
        """
        for row, answer in zip(rows, tokens, strict=True):
            self.rows.add(row, float(answer))
        self.num_answers = num_answers
        # Before the fit, since one that is settled needs no answers held out; after it, for one that is not.
        self.interval.restore(interval)
        if num_answers >= self.settings.first_answers:
            self.refit()
            self.interval.restore(interval)

    def _held_out(self, rows: Rows, tokens: Tokens) -> tuple[Tokens, Tokens] | None:
        """A fifth of the rows as the forest of the others predicts them, where the interval needs them."""
        if self.interval.settled or len(tokens) < 2 * _FOLDS:
            return None
        chosen = np.arange(len(tokens)) % _FOLDS == 0
        others = LengthForest(rows[~chosen], tokens[~chosen], self.settings)
        return others.ask(rows[chosen]), tokens[chosen]

    def _worth_learning(self, facts: RequestFacts, raw: Tokens | None, output_tokens: int) -> bool:
        if raw is None or self.num_answers <= self.settings.every_answer:
            return True
        predicted = self.interval.estimate(raw, facts.max_output_tokens).tokens
        return self.settings.worth_learning(predicted, output_tokens)

    def _ask(self, facts: RequestFacts) -> _Asked:
        row = self.features.rows((facts,))
        forest = self._forest
        return _Asked(row[0], None if forest is None else forest.ask(row)[0])

    def _remember(self, facts: RequestFacts, asked: _Asked) -> None:
        key = hash(facts)
        self._asked.pop(key, None)
        if len(self._asked) >= _REMEMBERED:
            del self._asked[next(iter(self._asked))]
        self._asked[key] = asked
