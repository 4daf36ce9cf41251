"""Computes prompts at prefill instances, answers at decode instances."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.routing.cache_aware import CacheAware
from headway.routing.load import LeastLoaded, StaysPut
from headway.routing.pools import PREFILL, pool_of


class PrefillDecode(StaysPut):
    """Routes each of a job's two stages to the instance with the least work.

    For prefill instances the work is prompt tokens that no prefix cache holds (`CacheAware`); for the others it is all
    outstanding tokens (`LeastLoaded`). Instances outside the pool `prefill` compute answers; if none of them serves,
    prefill instances do. O(instances x log blocks + blocks) a job.
    """

    def __init__(self) -> None:
        self._prompts = CacheAware(answers=False)
        self._answers = LeastLoaded()

    def prefill(self, job: Job, instances: Sequence[str]) -> str:
        """The prefill instance that computes a new job's prompt; `instances` are of that pool, at least one."""
        return self._prompts.route(job, instances)

    def prefilled(self, job: Job) -> None:
        """A job left its prefill instance, its prompt computed or not; call once after each `prefill`."""
        self._prompts.end(job)

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance that computes the answer."""
        return self._answers.route(job, for_answers(instances))

    def end(self, job: Job) -> None:
        """A job's answer is no longer outstanding."""
        self._answers.end(job)

    def lost(self, instance: str) -> None:
        """An instance's prefix cache is gone."""
        self._prompts.lost(instance)


def for_prompts(instances: Sequence[str]) -> Sequence[str]:
    """The prefill instances."""
    return [name for name in instances if pool_of(name) == PREFILL]


def for_answers(instances: Sequence[str]) -> Sequence[str]:
    """The instances that compute answers: all others, or the prefill instances if there is no other."""
    return [name for name in instances if pool_of(name) != PREFILL] or instances
