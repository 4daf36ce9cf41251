"""Requests of Magnus's eight tasks in random order, arriving as a Poisson process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from random import Random

from headway.traces import TraceRequest
from headway_reproduce.magnus.data import LONGEST_OUTPUT, DataSource, TaskRow, load_tasks
from headway_reproduce.magnus.setting import REQUESTS_A_TASK


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row that is served, and when it comes if one comes a second."""

    row: TaskRow
    place: float


def requests_a_task(source: DataSource) -> int:
    """As many of each task as every task has."""
    return min(REQUESTS_A_TASK, *(len(task.workload) for task in load_tasks(source)))


@lru_cache(maxsize=2)
def drawn_rows(source: DataSource, seed: int) -> tuple[DrawnRow, ...]:
    """A seed's requests: as many of each task, none twice, in random order. The same at every rate."""
    rng = Random(f"magnus {seed}")
    count = requests_a_task(source)
    rows = [row for task in load_tasks(source) for row in rng.sample(task.workload, count)]
    rng.shuffle(rows)
    places = accumulate(rng.expovariate(1.0) for _ in rows)
    return tuple(DrawnRow(row, place) for row, place in zip(rows, places, strict=True))


def task_requests(source: DataSource, seed: int, rate_rps: float) -> list[TraceRequest]:
    """The seed's requests at a rate, or all at 0 s where it is 0. A request's id is its number."""
    return [
        TraceRequest(
            id=str(number),
            arrival_s=drawn.place / rate_rps if rate_rps else 0.0,
            input_tokens=drawn.row.prompt_tokens,
            output_tokens=drawn.row.output_tokens,
            max_output_tokens=LONGEST_OUTPUT,
            tenant=drawn.row.task,
        )
        for number, drawn in enumerate(drawn_rows(source, seed))
    ]
