"""Default numbers of tokens a step for the instances of a pool."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.errors import ConfigError

USUAL_TOKENS = 2048
"""Tokens of an LP instance if no job has a target between tokens, or step times are not known yet."""
TOKENS_TRIED = (256, 512, 1024, 2048, 4096, 8192, 16384)


def low_step_tokens(cost: CostModel, jobs: Iterable[Job], most: int) -> int:
    """Tokens a step of an LP instance: the most whose predicted step keeps the tightest TBT target of its jobs.

    At most `most`, the engine's own limit. O(jobs).
    """
    target_s = min((job.slo.tbt_s for job in jobs if job.slo.tbt_s is not None), default=inf)
    return _most_within(cost, target_s, most) or min(USUAL_TOKENS, most)


def high_step_tokens(cost: CostModel, ttft_s: float, most: int) -> int:
    """Tokens a step of an HP instance: the most whose predicted step keeps the target for the first token.

    The engine's limit if that target is unknown (0), or step times are. O(1).
    """
    return _most_within(cost, ttft_s or inf, most) or most


def longest_ttft_s(jobs: Iterable[Job]) -> float:
    """The longest target for the first token, 0 without any. A job that was handed off has only the rest of its own."""
    return max((job.slo.ttft_s for job in jobs if job.slo.ttft_s is not None), default=0.0)


def _most_within(cost: CostModel, limit_s: float, most: int) -> int:
    """The largest of TOKENS_TRIED whose step alone is predicted within the limit, else the smallest; 0 if unknown."""
    if limit_s == inf or not cost.prefill_s(TOKENS_TRIED[0]):
        return 0
    within = [tokens for tokens in TOKENS_TRIED if tokens <= most and cost.prefill_s(tokens) <= limit_s]
    return max(within, default=min(TOKENS_TRIED[0], most))


def check_step_tokens(name: str, tokens: int | None) -> None:
    """Raise ConfigError for a number of tokens a step that is not accepted."""
    if tokens is not None and tokens < 1:
        raise ConfigError.of(name, tokens, "1 or more tokens a step")
