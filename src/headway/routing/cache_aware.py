"""Chooses the instance with the least work, counting what its prefix cache saves."""

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
"""Assumed bytes of a token in a text prompt."""
_NAME_BYTES = 8
_MOST_PROMPT_BLOCKS = 512
"""A quarter of a million tokens. A longer prompt, or one with pictures, is identified by its beginning."""


def prompt_blocks(
    prompt: bytes, *, within: bytes = b"", bytes_per_token: int = BYTES_PER_TOKEN
) -> tuple[int, ...]:
    """A name for each whole block of a prompt, roughly PREFIX_BLOCK_TOKENS tokens, which implies all blocks before it.

    Two prompts with the same `within` (whatever else determines their KV, such as the model) have common names as far
    as they begin alike, by blocks. O(bytes), up to a mebibyte of text.
    """
    size = PREFIX_BLOCK_TOKENS * bytes_per_token
    so_far, names = blake2b(within, digest_size=_NAME_BYTES), []
    for start in range(0, min(len(prompt), _MOST_PROMPT_BLOCKS * size) - size + 1, size):
        so_far.update(prompt[start : start + size])
        names.append(int.from_bytes(so_far.digest()))
    return tuple(names)


MOST_SENT_BLOCKS = 8192
"""Blocks of 512 tokens remembered for an instance: four million tokens, more than most hold. Too many do little
harm: a prefix that is gone is on no other instance either. Too few separate conversations from KV that is still
there.
"""


class SentPrefixes:
    """The blocks sent to an instance; the least recently used are forgotten first.

    A prompt's blocks are marked from the last to the first, so a remembered one implies all before it, as in vLLM's
    prefix cache. An estimate: the instance is not asked.
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
        """A job is live; nothing changes if it was already."""
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
"""Weight of a prompt token that is computed although another instance has it: others wait for it, and its copy
displaces other prefixes, which must then be computed again. Divided by the root of the number of live requests that
share it and benefit from the copy.
"""
ANSWER_WEIGHT = 5.0
"""Prompt tokens that one token of an answer counts as: a step that extends answers yields few tokens for its time."""
GUESSES, GUESSED_TOKENS = 10, 200
"""Prior for answer lengths: this many answers with this many tokens."""


class CacheAware(StaysPut):
    """The instance with the least outstanding work, including the part of the job's prompt that it would have to
    compute.

    A conversation stays where it was unless another instance has so much less to do that recomputing its beginning
    costs less than waiting. Beginnings that many prompts share soon exist wherever there is room. Among equals, the
    instance that was sent least so far wins. Prompts count until their first token is out (without streaming: to the
    end). `answers`: whether answers count as work, or prompts alone. O(instances x log blocks + blocks) a job, blocks
    of 512 tokens. Source: the cost of an instance as in Preble's (Srivatsa et al. 2024) and Dynamo's routers; weights
    by measurement (adr/0029).
    """

    def __init__(self, *, answers: bool = True) -> None:
        self._work = OutstandingWork(
            answer_weight=ANSWER_WEIGHT if answers else 0.0, guesses=GUESSES, guessed_tokens=GUESSED_TOKENS
        )
        self._sent: defaultdict[str, SentPrefixes] = defaultdict(SentPrefixes)
        self._live = LiveBlocks()

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance of least work including the job."""
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
        """A job ended: none of it is outstanding."""
        self._live.go(job)
        self._work.end(job)

    def lost(self, instance: str) -> None:
        """An instance's cache is gone."""
        self._sent.pop(instance, None)

    def _cost_of_missing(self, blocks: Sequence[int]) -> list[float]:
        """The cost for an instance that has only the first i of a prompt's blocks, for each i from none to all.

        Tokens after the last whole block are computed wherever the job goes.
        """
        shared_by = self._live.shared_by(blocks)
        each = [PREFIX_BLOCK_TOKENS * RECOMPUTE_WEIGHT / sqrt(count) for count in shared_by]
        return list(accumulate(reversed(each), initial=0.0))[::-1]
