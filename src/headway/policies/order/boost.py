"""Arrival, moved up by a bounded boost: the less there is to compute of a prompt, the more."""

from __future__ import annotations

from math import exp, inf, log

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.errors import ConfigError
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key

ASSUMED_TOKEN_S = 1e-4
"""A token of a prompt, while step times are not known."""
_LEAST_WORK_S = 1e-3


class Boost(KeyedOrder):
    """Smallest arrival - b(w) first, with b(w) = ln(1 / (1 - exp(-gamma w))) / gamma: no length is predicted.

    The work w is the prefill of what the prefix cache does not hold, in seconds. A short prompt moves up by more; a
    prompt longer than 1 / gamma keeps its rank by arrival. A large gamma is first come, first served; a small one is
    shortest prompt first. b is at most b(_LEAST_WORK_S), so a job is passed only by those that come within that time,
    and none starves. A job that has begun keeps its key, as only the waiting are ranked anew. Costs: as `KeyedOrder`.
    Source: UniBoost (Li et al., ICML 2026, arXiv 2606.18431; sgl-project/sglang#35637) with a fixed gamma, after the
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
        """Seconds by which so much work is moved up; the less, the more."""
        return -log(1 - exp(-self.gamma_per_s * max(_LEAST_WORK_S, work_s))) / self.gamma_per_s

    def key(self, job: Job) -> Key:
        """(arrival - boost, arrival, id); that of a job with a token stays."""
        if job.num_output_tokens and job in self:
            return self._keys[job]
        tokens = max(1, job.num_prompt_tokens - job.num_cached_tokens)
        work_s = self._cost.prefill_s(tokens) or ASSUMED_TOKEN_S * tokens
        return (job.arrival_s - self.boost_s(work_s), job.arrival_s, job.id)
