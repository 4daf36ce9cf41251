"""Where a chunk of a prompt may end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.request import Request


def end_between_items(request: Request, start: int, end: int) -> int:
    """`end`, or, where that is inside an image or another item of the prompt, the item's beginning.

    Its end, if the chunk from `start` begins with the item: then nothing shorter will do. O(items).
    """
    for item in request.mm_features:
        first: int = item.mm_position.offset
        behind: int = first + item.mm_position.length
        if first < end < behind:
            return first if first > start else behind
    return end
