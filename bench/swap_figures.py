"""What `bench/swap.py` makes of a run: its figures, and how it compares with the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean, median
from typing import Any

from bench.swap_engine import Watch, WatchedStep
from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate
from headway.predict.step_fit import fit_step_time
from headway.results import summarize


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy's requests served once, without those it learned from."""

    makespan_s: float
    mean_jct_s: float
    p99_jct_s: float
    output_tokens: int
    swaps: int
    recomputes: int
    recomputed_tokens: int
    swapped_out_blocks: int
    swapped_in_blocks: int
    swap_out_s: float
    swap_in_s: float
    copy_wait_s: float
    idle_s: float
    scheduler_s: float
    steps: Sequence[WatchedStep] = field(repr=False)

    @property
    def copy_s(self) -> float:
        """Seconds of copies, both ways."""
        return self.swap_out_s + self.swap_in_s


COUNTED = ("swapped_out_blocks", "swapped_in_blocks", "swap_out_s", "swap_in_s", "copy_wait_s", "scheduler_s")
"""What a run takes from the engine's counters."""


def run_of(watch: Watch, makespan_s: float, grown: Mapping[str, Any]) -> Run:
    """What was noted, and by how much the counters have grown."""
    summary = summarize(watch.records)
    assert summary.mean_jct_s is not None
    assert summary.p99_jct_s is not None
    return Run(
        makespan_s=makespan_s,
        mean_jct_s=summary.mean_jct_s,
        p99_jct_s=summary.p99_jct_s,
        output_tokens=sum(record.output_tokens for record in watch.records),
        swaps=watch.fates[Fate.SWAP],
        recomputes=watch.fates[Fate.RECOMPUTE],
        recomputed_tokens=sum(record.recomputed_tokens for record in watch.records),
        idle_s=watch.idle_s,
        steps=tuple(watch.steps),
        **grown,
    )


StepSeconds = Callable[[BatchShape], float]


def law_of(runs: Sequence[Run]) -> StepSeconds:
    """Seconds of a step of any shape, from the steps of these runs in which nothing was copied."""
    rows = [(step.shape, step.seconds) for run in runs for step in run.steps if not step.copying]
    random.Random(0).shuffle(rows)
    return fit_step_time(rows).law.step_s


def at_one_speed_s(run: Run, law: StepSeconds) -> float:
    """How long a run had taken at the law's speed; what it waited for copies stays as it was."""
    return fsum(law(step.shape) for step in run.steps) + run.copy_wait_s + run.idle_s


def lengthened(run: Run, law: StepSeconds) -> float | None:
    """By what share steps beside copies were longer than the run's others of their shape; None without copies."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    for step in run.steps:
        ratios[step.copying].append(step.seconds / law(step.shape))
    return median(ratios[True]) / median(ratios[False]) - 1 if all(ratios.values()) else None


def hidden_share(run: Run, law: StepSeconds, *, serial: bool) -> float | None:
    """The share of copy time that nobody waited for; None if there was none. Noise may take it outside 0 to 1."""
    longer = lengthened(run, law)
    if not run.copy_s or longer is None:
        return None
    if serial:
        return 1 - run.copy_wait_s / run.copy_s
    beside_s = sum(step.seconds for step in run.steps if step.copying) * longer / (1 + longer)
    return 1 - (beside_s + run.idle_s) / run.copy_s


def versus(own: Sequence[float], twins: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Throughput over that of the better twin, from each one's seconds in every round."""
    better = min(twins, key=lambda twin: median(twins[twin]))
    ratios = [theirs / mine for theirs, mine in zip(twins[better], own, strict=True)]
    return {"better": better, "ratio": median(ratios), "spread": [min(ratios), max(ratios)]}


def policy_row(runs: Sequence[Run], law: StepSeconds, block_bytes: int) -> dict[str, Any]:
    """Means over the rounds of what one policy did; its makespan is the median."""

    def mean(value: Callable[[Run], float]) -> float:
        return fmean(map(value, runs))

    makespan_s = median(run.makespan_s for run in runs)
    return {
        "makespan_s": makespan_s,
        "makespan_at_one_speed_s": median(at_one_speed_s(run, law) for run in runs),
        "output_tps": runs[0].output_tokens / makespan_s,
        "mean_jct_s": mean(lambda run: run.mean_jct_s),
        "p99_jct_s": mean(lambda run: run.p99_jct_s),
        "preemptions": mean(lambda run: run.swaps + run.recomputes),
        "swap_share": share(sum(run.swaps for run in runs), sum(run.recomputes for run in runs)),
        "recomputed_tokens": mean(lambda run: run.recomputed_tokens),
        "swapped_out_blocks": mean(lambda run: run.swapped_out_blocks),
        "swapped_in_blocks": mean(lambda run: run.swapped_in_blocks),
        "copy_s": mean(lambda run: run.copy_s),
        "copy_wait_s": mean(lambda run: run.copy_wait_s),
        "idle_for_copies_s": mean(lambda run: run.idle_s),
        "scheduler_us_per_step": 1e6 * mean(lambda run: run.scheduler_s / len(run.steps)),
        "to_host_bytes_per_s": rate(runs, "swapped_out_blocks", "swap_out_s", block_bytes),
        "to_device_bytes_per_s": rate(runs, "swapped_in_blocks", "swap_in_s", block_bytes),
    }


def share(part: int, rest: int) -> float | None:
    """Of all; None of nothing."""
    return part / (part + rest) if part + rest else None


def rate(runs: Sequence[Run], blocks: str, seconds: str, block_bytes: int) -> float | None:
    """Bytes a second of all copies one way; None without any."""
    seconds_in_all = sum(getattr(run, seconds) for run in runs)
    copied = sum(getattr(run, blocks) for run in runs) * block_bytes
    return copied / seconds_in_all if seconds_in_all else None
