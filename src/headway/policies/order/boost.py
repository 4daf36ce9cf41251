"""Orders by arrival minus a bounded boost: the less of a prompt is to be computed, the larger the boost."""

from __future__ import annotations

from math import exp, inf, log

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.errors import ConfigError
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key

ASSUMED_TOKEN_S = 1e-4
"""Seconds of a prompt token while step times are unknown."""
_LEAST_WORK_S = 1e-3


class Boost(KeyedOrder):
    """Smallest arrival - b(w) first, with b(w) = ln(1 / (1 - exp(-gamma w))) / gamma; predicts no length.

    The work w is the prefill, in seconds, of what the prefix cache does not hold. A short prompt moves up by more; a
    prompt longer than 1 / gamma keeps its rank by arrival. A large gamma is first come, first served; a small one is
    shortest prompt first. b is at most b(_LEAST_WORK_S), so only jobs that arrive within that time pass a job, and none
    starves. A job that has begun keeps its key, as only waiting jobs are ranked anew. Costs: as `KeyedOrder`. Source:
    UniBoost (Li et al., ICML 2026, arXiv 2606.18431; sgl-project/sglang#35637) with a fixed gamma, after the
    gamma-boost of Yu and Scully (2024).
    """

    uses_prefixes = True

    def __init__(self, cost: CostModel | None = None, *, gamma_per_s: float = 0.05) -> None:
        super().__init__()
        if not 0 < gamma_per_s < inf:
            raise ConfigError.of("gamma_per_s", gamma_per_s, "more than 0, a second")
        self.gamma_per_s = gamma_per_s
        self._cost: CostModel = cost or UnknownCost()

    def boost_s(self, work_s: float) -> float:
        """Seconds by which a job of this work moves up; the less work, the more."""
        return -log(1 - exp(-self.gamma_per_s * max(_LEAST_WORK_S, work_s))) / self.gamma_per_s

    def key(self, job: Job) -> Key:
        """(arrival - boost, arrival, id); a job with a token keeps its key."""
        if job.num_output_tokens and job in self:
            return self._keys[job]
        tokens = max(1, job.num_prompt_tokens - job.num_cached_tokens)
        work_s = self._cost.prefill_s(tokens) or ASSUMED_TOKEN_S * tokens
        return (job.arrival_s - self.boost_s(work_s), job.arrival_s, job.id)
