"""Routers whose jobs stay where they were put."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job


class StaysPut:
    """A router that takes no hand-offs and, unless it says otherwise, asks neither who waits nor who was lost."""

    hands_off = False

    def started(self, job: Job) -> None:
        """Nothing depends on it."""

    def lost(self, instance: str) -> None:
        """Nothing is known of what it held."""

    def hand_off(self, job: Job, instances: Sequence[str]) -> str | None:
        """Nobody takes it."""
        return None
