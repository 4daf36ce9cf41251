"""The instance that has least to do, with what its prefix cache spares it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.routing.outstanding import OutstandingWork
from headway.routing.sent_prefixes import SentPrefixes
from headway.routing.stays_put import StaysPut

RECOMPUTE_WEIGHT = 4.0
"""A prompt token computed where another instance has it counts so often: others wait for it, and its copy takes memory
from other prefixes, which are then computed again too."""
ANSWER_WEIGHT = 5.0
"""Prompt tokens that an answer's token counts as: a step that extends answers yields few for its time."""
FIRST_ANSWER_TOKENS = 200
"""An answer's length before one has ended."""


class CacheAware(StaysPut):
    """The instance with the least outstanding work, the job's own prompt included as far as it would be computed there.

    So a conversation stays where it was as long as no other instance has so much less to do that computing its
    beginning again costs less than waiting; what all prompts begin with is soon everywhere, and decides nothing.
    Prompts count until their first token is out. O(instances x log blocks + blocks) a job, blocks of 512 tokens.
    Source: the cost of an instance as Preble's (Srivatsa et al. 2024) and Dynamo's routers have it; weights by
    measurement (adr/0029).
    """

    def __init__(self) -> None:
        self._work = OutstandingWork(answer_weight=ANSWER_WEIGHT, first_answer_tokens=FIRST_ANSWER_TOKENS)
        self._sent: defaultdict[str, SentPrefixes] = defaultdict(SentPrefixes)

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance of least work with the job; the first named of several."""
        to_compute = {name: self._tokens_to_compute(job, name) for name in instances}
        chosen = min(
            instances, key=lambda name: self._work.tokens(name) + RECOMPUTE_WEIGHT * to_compute[name]
        )
        self._work.place(job, chosen, to_compute[chosen])
        self._sent[chosen].use(job.prefix_blocks)
        return chosen

    def started(self, job: Job) -> None:
        """Its prompt is computed."""
        self._work.prompt_done(job)

    def end(self, job: Job) -> None:
        """Nothing of it is outstanding."""
        self._work.end(job)

    def _tokens_to_compute(self, job: Job, instance: str) -> int:
        """Of its prompt, at least the last token."""
        found = self._sent[instance].found(job.prefix_blocks)
        return max(1, job.num_prompt_tokens - found * PREFIX_BLOCK_TOKENS)
