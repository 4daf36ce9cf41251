"""By prompt length, shortest or longest first."""

from __future__ import annotations

from headway.core.job import Job
from headway.policies.order.keyed import KeyedOrder
from headway.policies.order.sorted_index import Key


class ShortestPrompt(KeyedOrder):
    """Fewest prompt tokens first (SJF by prefill work; Ascendra section 3.5). Long prompts can starve."""

    def key(self, job: Job) -> Key:
        """(prompt tokens, arrival, id)."""
        return (job.num_prompt_tokens, job.arrival_s, job.id)


class LongestPrompt(KeyedOrder):
    """Most prompt tokens first (LJF; Ascendra section 3.5). Short prompts can starve."""

    def key(self, job: Job) -> Key:
        """(minus prompt tokens, arrival, id)."""
        return (-job.num_prompt_tokens, job.arrival_s, job.id)
