"""Jobs of known lengths, and batches of them."""

from __future__ import annotations

from typing import Any

from headway.core.job import Job
from headway.core.length_estimate import LengthEstimate
from headway.routing.batch import Batch, Member
from tests.strategies import make_job


def job(id_: str, prompt: int, output: int, arrival_s: float = 0.0, **fields: Any) -> Job:
    """A job whose predicted median is `output`."""
    settings = {"limit": 2000, "predicted_length": LengthEstimate.around(output), **fields}
    return make_job(id_, prompt=prompt, arrival_s=arrival_s, **settings)


def member(prompt: int, output: int, id_: str = "a", arrival_s: float = 0.0) -> Member:
    """A job planned with exactly `output` tokens."""
    return Member(job(id_, prompt, output, arrival_s), output)


def batch(number: int, *lengths: tuple[int, int], arrival_s: float = 0.0) -> Batch:
    """A batch of (prompt, output), all of which came at the same time."""
    names = enumerate(lengths)
    return Batch(number, [member(*pair, f"{number}.{place}", arrival_s) for place, pair in names])
