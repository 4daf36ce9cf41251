"""Room for the longest possible output, set aside at admission."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.job import Job
from headway.core.view import StepView


def reservable(view: StepView, wanted: Iterable[Job]) -> list[Job]:
    """The leading jobs of `wanted` whose prompt and whole output limit fit beside the residents' own.

    With every resident admitted by this rule no KV is ever evicted. A job whose limit exceeds the whole
    pool reserves all of it and runs alone: its answer may well be shorter. O(residents + wanted).
    """
    free = view.total_blocks - sum(_reserved_blocks(view, job) for job in view.residents)
    fitting: list[Job] = []
    for job in wanted:
        free -= _reserved_blocks(view, job)
        if free < 0:
            break
        fitting.append(job)
    return fitting


def _reserved_blocks(view: StepView, job: Job) -> int:
    return min(view.blocks(job.num_prompt_tokens + job.max_output_tokens), view.total_blocks)
