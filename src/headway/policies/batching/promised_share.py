"""Guarantees decodes a share of the engine's time while prompts are computed beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.mixed_step import MixedStep

_BELOW = 0.01
"""Safety margin below the share: chunked prompts cost slightly more than whole ones, and must not pay for that
alone.
"""


class PromisedShare:
    """Sizes prompt chunks so that steps with prompts take, on average, `decodes alone / share`.

    Time that a step leaves unused pays for prompts of later steps. A chunk runs once it is paid for. It has so many
    prompt tokens that they cost no more per token beside the decodes than alone in the longest step. So the decodes
    keep their share, and prompts take at most 1 / (1 - share) times as long as alone. If small chunks are expensive, as
    for a mixture of experts, decodes run alone for a while and then one step is long.

    A step counts with its predicted time until it is over, then with its real one. Cost: O(log tokens) predictions a
    step.
    """

    def __init__(self, share: float) -> None:
        if not 0 < share < 1:
            raise ConfigError.of("decode_share", share, "auto, or a share of the time between 0 and 1")
        self.share = share
        self._aim = max(share - _BELOW, share / 2)
        self._paid_s = self._before_s = 0.0
        self._most_s = 0.0
        self._planned: tuple[float, float] | None = None
        self._in_flight: deque[float] = deque()
        self._depth = 0
        self._last_s = 0.0
        self._ran: Mapping[Job, int] = {}

    def tokens(self, view: StepView, planned: MixedStep, most_tokens: int) -> int:
        """Prompt tokens of the planned step, at most `most_tokens`; 0 while the next chunk is not paid for."""
        mean_s = planned.decodes_s / self._aim
        self._depth = int(any(job.awaiting_output for job in view.residents))
        # The steps in flight when the first prompt came count for the decodes too.
        self._before_s = self._paid_s if self._in_flight else self._depth * (mean_s - planned.decodes_s)
        within_s = mean_s + self._before_s
        chunk_s = planned.seconds(planned.cheap_chunk(most_tokens))
        tokens = planned.most_tokens(within_s, most_tokens) if chunk_s <= within_s else 0
        self._planned = (mean_s, planned.seconds(tokens))
        self._most_s = max(mean_s, chunk_s)
        return tokens

    def forget_plan(self) -> None:
        """The step planned now has no prompts beside decodes, unless `tokens` is called."""
        self._planned = None

    def observe(self, outcome: StepOutcome) -> None:
        """Account for the planned step, and correct an earlier step's predicted time."""
        took_s, went_on = (
            outcome.now_s - self._last_s,
            any(job.state is JobState.RESIDENT for job in self._ran),
        )
        self._last_s, self._ran = outcome.now_s, outcome.tokens
        if self._planned is None:
            self._paid_s = 0.0
            self._in_flight.clear()
            return
        paid_s = self._before_s
        if went_on and len(self._in_flight) > self._depth:
            paid_s += self._in_flight.popleft() - took_s
        mean_s, step_s = self._planned
        self._in_flight.append(step_s)
        self._paid_s = max(-self._most_s, min(paid_s + mean_s - step_s, self._most_s))
