"""Names for what prompts begin with, before anybody has made tokens of them."""

from __future__ import annotations

from hashlib import blake2b

from headway.core.job import PREFIX_BLOCK_TOKENS

BYTES_PER_TOKEN = 4
"""A prompt in text is taken to have so many."""
_NAME_BYTES = 8
_MOST_BLOCKS = 512
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
    for start in range(0, min(len(prompt), _MOST_BLOCKS * size) - size + 1, size):
        so_far.update(prompt[start : start + size])
        names.append(int.from_bytes(so_far.digest()))
    return tuple(names)
