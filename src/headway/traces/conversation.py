"""The turns of one conversation as requests that share their beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from headway.core.job import PREFIX_BLOCK_TOKENS
from headway.traces.request import TraceRequest

_MOST_BLOCKS = 1 << 20
"""More than the blocks of any conversation: keeps the names of one apart from another's."""


def conversation(
    number: int, arrivals_s: Sequence[float], said: Sequence[tuple[int, int]], max_output_tokens: int | None
) -> list[TraceRequest]:
    """A request a turn, with ids as `7-0`, in the session `7`.

    `said` are each turn's new tokens and those of its answer; a prompt is all that was said before, and the new ones.
    """
    before = accumulate((asked + answered for asked, answered in said), initial=0)
    first_block = number * _MOST_BLOCKS
    turns = []
    for turn, (arrival_s, tokens_before, (asked, answered)) in enumerate(
        zip(arrivals_s, before, said, strict=False)
    ):
        prompt_tokens = tokens_before + asked
        blocks = range(first_block, first_block + ceil(prompt_tokens / PREFIX_BLOCK_TOKENS))
        request = TraceRequest(
            id=f"{number}-{turn}",
            arrival_s=arrival_s,
            input_tokens=prompt_tokens,
            output_tokens=answered,
            max_output_tokens=max_output_tokens,
            session=f"{number}",
            prefix_blocks=tuple(blocks),
        )
        turns.append(request)
    return turns
