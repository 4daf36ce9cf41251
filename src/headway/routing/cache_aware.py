"""The instance that has least to do, with what its prefix cache spares it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from math import sqrt

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.routing.live_blocks import LiveBlocks
from headway.routing.outstanding import OutstandingWork
from headway.routing.sent_prefixes import SentPrefixes
from headway.routing.stays_put import StaysPut

RECOMPUTE_WEIGHT = 8.0
"""A prompt token computed where another instance has it counts so often: others wait for it, and its copy takes memory
from other prefixes, which are then computed again too. Divided by the root of the number of live requests that share
it, for whom the copy makes room."""
ANSWER_WEIGHT = 5.0
"""Prompt tokens that an answer's token counts as: a step that extends answers yields few for its time."""
GUESSES, GUESSED_TOKENS = 10, 200
"""What is known of answers before any has ended: as if so many had had so many tokens."""


class CacheAware(StaysPut):
    """The instance with the least outstanding work, the job's own prompt included as far as it would be computed there.

    So a conversation stays where it was as long as no other instance has so much less to do that computing its
    beginning again costs less than waiting. What many prompts begin with is soon wherever there is room for them. Of
    equals, the instance that was sent least so far. Prompts count until their first token is out (without streaming:
    to the end). `answers`: whether jobs have answers that count as work, or prompts alone.
    O(instances x log blocks + blocks) a job, blocks of 512 tokens. Source: the cost of an instance as
    Preble's (Srivatsa et al. 2024) and Dynamo's routers have it; weights by measurement (adr/0029).
    """

    def __init__(self, *, answers: bool = True) -> None:
        self._work = OutstandingWork(
            answer_weight=ANSWER_WEIGHT if answers else 0.0, guesses=GUESSES, guessed_tokens=GUESSED_TOKENS
        )
        self._sent: defaultdict[str, SentPrefixes] = defaultdict(SentPrefixes)
        self._live = LiveBlocks()

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance of least work with the job."""
        blocks, sent = job.prefix_blocks, self._sent
        self._live.come(job)
        found = {name: sent[name].found(blocks) for name in instances}
        missing = self._cost_of_missing(blocks)
        chosen = min(
            instances, key=lambda name: (self._work.tokens(name) + missing[found[name]], len(sent[name]))
        )
        to_compute = max(1, job.num_prompt_tokens - found[chosen] * PREFIX_BLOCK_TOKENS)
        self._work.place(job, chosen, to_compute)
        sent[chosen].use(blocks)
        return chosen

    def started(self, job: Job) -> None:
        """Its prompt is computed."""
        self._work.prompt_done(job)

    def end(self, job: Job) -> None:
        """Nothing of it is outstanding."""
        self._live.go(job)
        self._work.end(job)

    def lost(self, instance: str) -> None:
        """Its cache is gone."""
        self._sent.pop(instance, None)

    def _cost_of_missing(self, blocks: Sequence[int]) -> list[float]:
        """What it costs an instance to have only the first i of a prompt's blocks, for each i from none to all.

        What stands behind the blocks is computed wherever the job goes.
        """
        shared_by = self._live.shared_by(blocks)
        each = [PREFIX_BLOCK_TOKENS * RECOMPUTE_WEIGHT / sqrt(count) for count in shared_by]
        return list(accumulate(reversed(each), initial=0.0))[::-1]
