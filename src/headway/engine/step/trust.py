"""What the governor does: which predictions an order goes by, step by step."""

from __future__ import annotations

import logging

from headway.engine.step.counters import Counters
from headway.policies.protocols import KnowsLate, Order, Predicting

logger = logging.getLogger(__name__)


class TrustWatch:
    """Counts the steps that a policy plans without predictions it does not trust, and logs when that changes.

    Asked which kinds an order goes by once, when made: to ask takes microseconds. Two attributes a step.
    """

    def __init__(self, order: Order, counters: Counters) -> None:
        self._counters = counters
        self._lengths = order if isinstance(order, Predicting) else None
        self._step_times = order if isinstance(order, KnowsLate) else None
        self._lengths_trusted: bool | None = None
        self._step_times_trusted: bool | None = None

    def planned(self) -> None:
        """A step was planned."""
        if self._lengths is not None:
            trusted = self._lengths.trusts_predictions
            self._counters.distrusting_steps += not trusted
            if trusted is not self._lengths_trusted:
                _say("predicted lengths", self._lengths_trusted, trusted)
                self._lengths_trusted = trusted
        if self._step_times is not None:
            trusted = self._step_times.trusts_step_times
            self._counters.untimed_steps += not trusted
            if trusted is not self._step_times_trusted:
                _say("predicted step times", self._step_times_trusted, trusted)
                self._step_times_trusted = trusted


def _say(what: str, before: bool | None, now: bool) -> None:
    if before is None:
        return  # what it starts with is no change
    if now:
        logger.warning("%s hold again: scheduling goes by them", what)
    else:
        logger.warning("%s do not hold: scheduling goes without them until they do", what)
