"""Which prompts' beginnings an instance has been sent, and so may still hold in its prefix cache."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

MOST_BLOCKS = 8192
"""Blocks of 512 tokens that are remembered of an instance: four million tokens, more than most have memory for.

To remember too much does little harm: whoever's prefix is gone finds it nowhere else either. To remember too little
parts conversations from what is still there.
"""


class SentPrefixes:
    """The blocks an instance was sent, those used longest ago forgotten first.

    A prompt's blocks are used from the last to the first, so one that is remembered stands for all before it, as in
    vLLM's prefix cache. An estimate: nobody asks the instance.
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
        while len(known) > MOST_BLOCKS:
            known.popitem(last=False)
