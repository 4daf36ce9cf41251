"""The decodes and prompts of a step, and shapes of steps that are weighed against each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil

from headway.core.batch_shape import BatchShape
from headway.core.fill import uncomputed_tokens
from headway.core.job import Job

GRAIN_TOKENS = 16
"""Prompt tokens of a step are rounded to this grain. At least this many always run, since prompts in progress hold
memory.
"""


def decode_shape(count: int, context_tokens: int, each: int = 1) -> BatchShape:
    """A step of `count` decodes that read the KV of `context_tokens`, beside `each` new tokens a job (more than 1
    with drafts).
    """
    tokens = count * each
    if each == 1:
        return BatchShape(
            num_jobs=count,
            num_tokens=tokens,
            num_decodes=count,
            decode_context_tokens=context_tokens + tokens,
        )
    return BatchShape(
        num_jobs=count,
        num_tokens=tokens,
        prefill_context_tokens=context_tokens + tokens,
        prefill_pairs=each * context_tokens + tokens * (each + 1) / 2,
    )


def shape_of_decodes(decodes: Sequence[Job], each: int = 1) -> BatchShape:
    """A step of these decodes. O(decodes)."""
    return decode_shape(len(decodes), sum([job.num_computed_tokens for job in decodes]), each)


def left_tokens(job: Job) -> int:
    """Tokens that a resident could compute now, or a waiting job after what the prefix cache holds."""
    return uncomputed_tokens(job) + job.num_computed_tokens - job.num_found_tokens


def shape_of_prompts(prompts: Iterable[Job], tokens: int) -> BatchShape:
    """A step of the first `tokens` tokens of these prompts, in order. O(prompts that have some of them)."""
    step = BatchShape()
    for job in prompts:
        if tokens <= 0:
            break
        chunk = min(left_tokens(job), tokens)
        step.add(chunk, job.num_found_tokens)
        tokens -= chunk
    return step


def with_prompt(step: BatchShape, tokens: int, computed_tokens: int) -> BatchShape:
    """`step` with `tokens` more of one prompt, after its `computed_tokens`."""
    longer = replace(step)
    longer.add(tokens, computed_tokens)
    return longer


def scaled(step: BatchShape, share: float) -> BatchShape:
    """A step with this share of the jobs and of their tokens, in equal proportions.

    A prompt cut at a step's end has its KV read again in the next step; each cut adds what an average token attends to.
    """
    reread = step.prefill_pairs / step.num_prefill_tokens if step.num_prefill_tokens else 0.0
    num_decodes = round(step.num_decodes * share)
    return BatchShape(
        num_jobs=num_decodes + ceil((step.num_jobs - step.num_decodes) * share),
        num_tokens=round(step.num_tokens * share),
        num_decodes=num_decodes,
        decode_context_tokens=round(step.decode_context_tokens * share),
        prefill_context_tokens=round(step.prefill_context_tokens * share + (1 - share) * reread),
        prefill_pairs=step.prefill_pairs * share,
    )


def together(one: BatchShape, other: BatchShape) -> BatchShape:
    """A step with the jobs of both."""
    return BatchShape(
        num_jobs=one.num_jobs + other.num_jobs,
        num_tokens=one.num_tokens + other.num_tokens,
        num_decodes=one.num_decodes + other.num_decodes,
        decode_context_tokens=one.decode_context_tokens + other.decode_context_tokens,
        prefill_context_tokens=one.prefill_context_tokens + other.prefill_context_tokens,
        prefill_pairs=one.prefill_pairs + other.prefill_pairs,
    )


def decodes_first(ranked: Sequence[Job]) -> Sequence[Job]:
    """`ranked` with the jobs in prefill moved behind the others; the same object if none has to move."""
    prefills = _prefills(ranked)
    if not prefills or prefills == ranked[-len(prefills) :]:
        return ranked
    return [job for job in ranked if not job.prefilling] + prefills


def split_ranked(ranked: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """Split jobs into decodes and prompts, keeping their order. O(jobs)."""
    prefills = _prefills(ranked)
    named = set(prefills)
    return [job for job in ranked if job not in named] if named else list(ranked), prefills


def _prefills(jobs: Sequence[Job]) -> list[Job]:
    # `job.prefilling` spelled out: this runs for every resident of every step.
    return [
        job for job in jobs if job.num_computed_tokens < job.num_prompt_tokens + job.num_output_tokens - 1
    ]


def split_decodes(run: Sequence[Job]) -> tuple[Sequence[Job], Sequence[Job]]:
    """Split a run ordered by `decodes_first` into decodes and prompts. O(prompts), and a copy."""
    num_decodes = len(run)
    while num_decodes and run[num_decodes - 1].prefilling:
        num_decodes -= 1
    return run[:num_decodes], run[num_decodes:]
