"""The instance that has least to do, with what its prefix cache spares it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from math import sqrt

from headway.core.job import PREFIX_BLOCK_TOKENS, Job
from headway.routing.load import OutstandingWork, StaysPut

BYTES_PER_TOKEN = 4
"""A prompt in text is taken to have so many."""
_NAME_BYTES = 8
_MOST_PROMPT_BLOCKS = 512
"""A quarter of a million tokens. What is longer, or has pictures in it, is told apart by its beginning."""


def prompt_blocks(
    prompt: bytes, *, within: bytes = b"", bytes_per_token: int = BYTES_PER_TOKEN
) -> tuple[int, ...]:
    """A name for each whole block of a prompt, roughly PREFIX_BLOCK_TOKENS tokens, that stands for all before it too.

    Two prompts have names in common as far as they begin alike, by blocks, `within` the same: what else decides their
    KV, such as the model. O(bytes), up to a mebibyte of text.
    """
    size = PREFIX_BLOCK_TOKENS * bytes_per_token
    so_far, names = blake2b(within, digest_size=_NAME_BYTES), []
    for start in range(0, min(len(prompt), _MOST_PROMPT_BLOCKS * size) - size + 1, size):
        so_far.update(prompt[start : start + size])
        names.append(int.from_bytes(so_far.digest()))
    return tuple(names)


MOST_SENT_BLOCKS = 8192
"""Blocks of 512 tokens remembered of an instance: four million tokens, more than most hold. Too many do little harm: a
prefix that is gone is on no other instance either. Too few part conversations from KV that is still there."""


class SentPrefixes:
    """The blocks an instance was sent, those used longest ago forgotten first.

    A prompt's blocks are used from the last to the first, so one that is remembered stands for all before it, as in
    vLLM's prefix cache. An estimate: the instance is not asked.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def found(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's leading blocks are remembered. O(log blocks)."""
        known = self._blocks
        return bisect_left(range(len(blocks)), True, key=lambda index: blocks[index] not in known)

    def use(self, blocks: Sequence[int]) -> None:
        """A prompt with these blocks is sent there. O(blocks)."""
        known = self._blocks
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while len(known) > MOST_SENT_BLOCKS:
            known.popitem(last=False)


class LiveBlocks:
    """Counts, for each block, the live jobs whose prompts begin with it. O(blocks) a call."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._live: dict[str, tuple[int, ...]] = {}

    def come(self, job: Job) -> None:
        """A job is under way; nothing new if it was."""
        if job.id not in self._live:
            self._live[job.id] = job.prefix_blocks
            self._counts.update(job.prefix_blocks)

    def go(self, job: Job) -> None:
        """A job is no longer live, if it was."""
        counts = self._counts
        for block in self._live.pop(job.id, ()):
            counts[block] -= 1
            if not counts[block]:
                del counts[block]

    def shared_by(self, blocks: Sequence[int]) -> list[int]:
        """How many live jobs begin with each of these."""
        counts = self._counts
        return [counts[block] for block in blocks]


RECOMPUTE_WEIGHT = 8.0
"""A prompt token computed where another instance has it counts so often: others wait for it, and its copy takes memory
from other prefixes, which are then computed again too. Divided by the root of the number of live requests that share
it, for which the copy makes room."""
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
        """A job's prompt is computed."""
        self._work.prompt_done(job)

    def end(self, job: Job) -> None:
        """Nothing of it is outstanding."""
        self._live.go(job)
        self._work.end(job)

    def lost(self, instance: str) -> None:
        """An instance's cache is gone."""
        self._sent.pop(instance, None)

    def _cost_of_missing(self, blocks: Sequence[int]) -> list[float]:
        """What it costs an instance to have only the first i of a prompt's blocks, for each i from none to all.

        What stands behind the blocks is computed wherever the job goes.
        """
        shared_by = self._live.shared_by(blocks)
        each = [PREFIX_BLOCK_TOKENS * RECOMPUTE_WEIGHT / sqrt(count) for count in shared_by]
        return list(accumulate(reversed(each), initial=0.0))[::-1]
