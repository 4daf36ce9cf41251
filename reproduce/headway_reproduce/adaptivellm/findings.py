"""What AdaptiveLLM's experiments came to."""

from __future__ import annotations

from dataclasses import dataclass

from headway_reproduce.adaptivellm.scope import Scope
from headway_reproduce.adaptivellm.setting import (
    ADAPTIVE,
    BASELINE,
    GROUPS,
    PLUS,
    SWAP,
    SWAP_FALLBACK,
    TODAY,
    Group,
    Point,
)
from headway_reproduce.study_findings import StudyFindings, throughput_rps
from headway_reproduce.study_runs import RunResult

GAINS = {
    "vs_recompute": (ADAPTIVE, BASELINE),
    "vs_swap": (ADAPTIVE, SWAP),
    "vs_swap_fallback": (ADAPTIVE, SWAP_FALLBACK),
    "plus_vs_recompute": (PLUS, BASELINE),
    "vs_vllm_today": (ADAPTIVE, TODAY),
    "plus_vs_vllm_today": (PLUS, TODAY),
}
"""Key of the JSON -> whose throughput, over whose."""


GAIN_HEADINGS = {
    "vs_recompute": "over vllm-v0",
    "vs_swap": "over vllm-s",
    "vs_swap_fallback": "over vllm-s-fallback",
    "plus_vs_recompute": "plus over vllm-v0",
    "vs_vllm_today": "over vllm today",
    "plus_vs_vllm_today": "plus over vllm today",
}
"""The same as tables call it."""

COUNTERS = ("swaps", "recomputes", "host_full")
"""Of `policy_meter.Meter`."""


def output_tps(result: RunResult) -> float | None:
    """Output tokens a second."""
    return result.summary.output_tps


def turnaround(result: RunResult) -> float | None:
    """Mean weighted turnaround."""
    return result.summary.weighted_turnaround


@dataclass(frozen=True, slots=True)
class Findings(StudyFindings[Point]):
    """AdaptiveLLM's runs."""

    scope: Scope

    def gain(self, point: Point, key: str) -> float | None:
        """The mean throughput ratio of a key of GAINS."""
        found = self.ratio(point, *GAINS[key], throughput_rps)
        return None if found is None else found.mean

    def cut(self, point: Point, policy: str, over: str) -> float | None:
        """How much shorter the mean weighted turnaround is than another policy's: 0.2 is by a fifth."""
        found = self.ratio(point, policy, over, turnaround)
        return None if found is None else 1 - found.mean

    def capacity_rps(self) -> dict[Group, float]:
        """What the baseline got through of each group's requests, all at once."""
        return {group: self.mean(Point(group=group), BASELINE, throughput_rps) or 0.0 for group in GROUPS}


def file_name(group: Group) -> str:
    """A group in the names of files."""
    return f"{group.model}-{group.data}".lower()
