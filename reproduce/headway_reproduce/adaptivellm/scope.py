"""Which of AdaptiveLLM's experiments are run: all of them, or the fixed part of `--quick`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from headway_reproduce.adaptivellm.setting import (
    ABLATIONS,
    ADAPTIVE,
    BATCH_CAPS,
    EXACT,
    FAIRNESS_ONLY,
    GROUPS,
    HOST_BLOCKS,
    LARGE_HOST_BLOCKS,
    LATENCY,
    LOAD,
    MAIN,
    MEMORY_ONLY,
    MODELS,
    NATURAL,
    OUTPUT_LIMITS,
    OVERHEAD,
    PAPER_CAPS,
    PLUS,
    QUICK_GROUPS,
    REQUESTS,
    SEATS,
    SEEDS,
    SLOW_COPIES_BYTES_PER_S,
    SWAP,
    TABLE_LIMIT,
    Group,
    Point,
)
from headway_reproduce.study_runs import StudyRun

QUICK_LIMITS = (OUTPUT_LIMITS[0], TABLE_LIMIT, OUTPUT_LIMITS[-1])

_STEPS = {"Chatbot": (34, 160), "Alpaca": (34, 160), "Summary": (190, 85)}
"""Data set -> steps for each token of the longest output, and the limit beyond which few outputs are longer."""
_DRIFTING = (ADAPTIVE, PLUS, FAIRNESS_ONLY)
_STEP_S, _DRIFTING_STEP_S = 1e-4, 2e-4
"""Seconds that simulating a step takes; the second, where every step is planned anew."""


class What(NamedTuple):
    """A variation of Table 3's setting (ours): what differs from it, and the policy that is asked."""

    name: str
    policy: str
    gpu_blocks: int | None = None
    host_blocks: int | None = None
    copy_bytes_per_s: float | None = None


VARIATIONS = (
    What("memory only", MEMORY_ONLY),
    What("adaptivellm, host never full", ADAPTIVE, host_blocks=LARGE_HOST_BLOCKS),
    What("memory only, host never full", MEMORY_ONLY, host_blocks=LARGE_HOST_BLOCKS),
    What("memory only, copies at 12 GB/s", MEMORY_ONLY, copy_bytes_per_s=SLOW_COPIES_BYTES_PER_S),
    What("vllm-s, half the device's blocks", SWAP, gpu_blocks=HOST_BLOCKS),
)


@dataclass(frozen=True, slots=True)
class Scope:
    """How much is run.

    The quick part has one seed: Table 3 whole; of Fig. 3 two groups and three lengths; of Fig. 4 the same groups and
    the batch caps that the paper shows; their overhead and variations; neither ablations, nor the control of exact
    lengths, nor Poisson arrivals.
    """

    quick: bool = False

    def seeds(self, point: Point) -> range:
        """Each is another draw of lengths, and of the clock's noise; several for throughput alone."""
        plain = Point(group=point.group, limit=point.limit)
        return range(SEEDS if point == plain and not self.quick else 1)

    # ---- where policies are compared ---------------------------------------------------------------

    def groups(self) -> Sequence[Group]:
        """Those of everything but Table 3."""
        return QUICK_GROUPS if self.quick else GROUPS

    def limits(self) -> Sequence[int]:
        """The longest outputs of Fig. 3."""
        return QUICK_LIMITS if self.quick else OUTPUT_LIMITS

    def kinds(self) -> Sequence[str]:
        """How outputs are drawn in Fig. 3."""
        return (NATURAL,) if self.quick else (NATURAL, EXACT)

    def table_points(self) -> list[Point]:
        """Table 3."""
        return [Point(group=group) for group in GROUPS]

    def sweep_points(self) -> list[Point]:
        """Fig. 3."""
        return [
            Point(group=group, limit=limit, lengths=kind)
            for kind, group, limit in product(self.kinds(), self.groups(), self.limits())
        ]

    def ablation_points(self) -> list[Point]:
        """Table 3's settings."""
        return [] if self.quick else self.table_points()

    def latency_points(self) -> list[Point]:
        """Fig. 4."""
        caps = PAPER_CAPS if self.quick else BATCH_CAPS
        return [Point(group=group, cap=cap) for group, cap in product(self.groups(), caps)]

    def loaded_points(self, capacity_rps: Mapping[Group, float]) -> list[Point]:
        """Poisson arrivals, given what each group's baseline got through."""
        if self.quick:
            return []
        return [Point(group=group, rate_rps=LOAD * rate_rps) for group, rate_rps in capacity_rps.items()]

    def overhead_points(self) -> list[Point]:
        """What deciding costs: one group of each model."""
        models = list(MODELS)[:1] if self.quick else MODELS
        return [Point(group=Group(model, "Chatbot")) for model in models]

    # ---- runs --------------------------------------------------------------------------------------

    def first_runs(self) -> list[StudyRun]:
        """All runs but the loaded ones, whose rates depend on these; the longest first."""
        longest_first = sorted(self._compared(), key=lambda pair: _seconds(*pair), reverse=True)
        stepwise = [
            point.run(policy, 0, every_step=True)
            for point, policy in product(self.overhead_points(), OVERHEAD)
        ]
        return [*self._runs(longest_first), *stepwise]

    def _compared(self) -> list[tuple[Point, str]]:
        """Every point with every policy that is asked there."""
        varied_points = product(self.groups(), VARIATIONS)
        pairs = [
            *product(self.table_points(), MAIN),
            *product(self.sweep_points(), MAIN),
            *product(self.ablation_points(), ABLATIONS),
            *product(self.latency_points(), LATENCY),
            *((varied(Point(group=group), what), what.policy) for group, what in varied_points),
        ]
        return list(dict.fromkeys(pairs))

    def loaded_runs(self, capacity_rps: Mapping[Group, float]) -> list[StudyRun]:
        """The runs with Poisson arrivals."""
        return self._runs(product(self.loaded_points(capacity_rps), MAIN))

    def num_runs(self) -> int:
        """All runs together."""
        return len(self.first_runs()) + len(self.loaded_runs(dict.fromkeys(GROUPS, 1.0)))

    def _runs(self, compared: Iterable[tuple[Point, str]]) -> list[StudyRun]:
        return [point.run(policy, seed) for point, policy in compared for seed in self.seeds(point)]

    def seconds_a_run(self) -> float:
        """About how long a run takes on one core, in the mean."""
        pairs = self._compared()
        return sum(_seconds(*pair) for pair in pairs) / len(pairs)


def varied(point: Point, what: What) -> Point:
    """A point with one thing changed."""
    return Point(
        group=point.group,
        gpu_blocks=what.gpu_blocks or point.gpu_blocks,
        host_blocks=what.host_blocks or point.host_blocks,
        copy_bytes_per_s=what.copy_bytes_per_s,
    )


def _seconds(point: Point, policy: str) -> float:
    """About how long simulating it takes on one core."""
    a_token, longest = _STEPS[point.group.data]
    tokens = point.limit if point.lengths == EXACT else min(point.limit, longest)
    steps = max(a_token * tokens, REQUESTS * tokens / min(point.cap, SEATS))
    return steps * (_DRIFTING_STEP_S if policy in _DRIFTING else _STEP_S)
