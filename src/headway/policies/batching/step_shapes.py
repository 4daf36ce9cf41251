"""Shapes of steps that are weighed against each other before one of them is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.core.batch_shape import BatchShape
from headway.core.job import Job

GRAIN_TOKENS = 16
"""Prompt tokens that a step has room for are found to this grain, and so many always go through: who has begun
holds memory."""


def context_tokens(job: Job) -> int:
    """What a decode reads beside its new token."""
    return job.num_computed_tokens


def decode_shape(count: int, context_tokens: int) -> BatchShape:
    """A step of so many decodes that read so many tokens' KV beside their new ones."""
    return BatchShape(
        num_jobs=count, num_tokens=count, num_decodes=count, decode_context_tokens=context_tokens + count
    )


def shape_of_decodes(decodes: Sequence[Job]) -> BatchShape:
    """A step of these decodes. O(decodes)."""
    return decode_shape(len(decodes), sum(map(context_tokens, decodes)))


def with_prompt(step: BatchShape, tokens: int, computed_tokens: int) -> BatchShape:
    """A step with so many tokens of one more prompt, after those that are computed."""
    longer = replace(step)
    longer.add(tokens, computed_tokens)
    return longer


def scaled(step: BatchShape, share: float) -> BatchShape:
    """A step of a share of the jobs and of their tokens, in the same proportions."""
    return BatchShape(
        num_jobs=round(step.num_jobs * share),
        num_tokens=round(step.num_tokens * share),
        num_decodes=round(step.num_decodes * share),
        decode_context_tokens=round(step.decode_context_tokens * share),
        prefill_context_tokens=round(step.prefill_context_tokens * share),
        prefill_pairs=step.prefill_pairs * share,
    )


def together(one: BatchShape, other: BatchShape) -> BatchShape:
    """A step of the jobs of both."""
    return BatchShape(
        num_jobs=one.num_jobs + other.num_jobs,
        num_tokens=one.num_tokens + other.num_tokens,
        num_decodes=one.num_decodes + other.num_decodes,
        decode_context_tokens=one.decode_context_tokens + other.decode_context_tokens,
        prefill_context_tokens=one.prefill_context_tokens + other.prefill_context_tokens,
        prefill_pairs=one.prefill_pairs + other.prefill_pairs,
    )
