"""Jobs of known lengths, and batches of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.routing.batch import Batch, BatchMember, batch_wma, tokens_read
from tests.strategies import make_job


def job(id_: str, prompt: int, output: int, arrival_s: float = 0.0, **fields: Any) -> Job:
    """A job whose predicted median is `output`."""
    settings = {"limit": 2000, "predicted_length": LengthEstimate.around(output), **fields}
    return make_job(id_, prompt=prompt, arrival_s=arrival_s, **settings)


def member(prompt: int, output: int, id_: str = "a", arrival_s: float = 0.0) -> BatchMember:
    """A job planned with exactly `output` tokens."""
    return BatchMember(job(id_, prompt, output, arrival_s), output, output)


def batch(number: int, *lengths: tuple[int, int], arrival_s: float = 0.0) -> Batch:
    """A batch of (prompt, output), all of which came at the same time."""
    names = enumerate(lengths)
    return Batch(number, [member(*pair, f"{number}.{place}", arrival_s) for place, pair in names])


def wma(members: Iterable[tuple[int, int]], *, inclusive: bool = False) -> int:
    """WMA of (prompt tokens, output tokens) of at least one member."""
    known = list(members)
    return batch_wma(
        max(prompt for prompt, _ in known),
        max(output for _, output in known),
        min(tokens_read(prompt, output) for prompt, output in known),
        inclusive=inclusive,
    )
