"""Which steps vLLM replays as CUDA graphs: larger ones are launched kernel by kernel, which may cost much at once."""

from __future__ import annotations

MOST_GRAPHED_TOKENS = 512
"""Tokens of a step that graphs hold at most, if vLLM is not told otherwise."""


def captured_tokens(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Tokens of a step that vLLM's graphs hold by default, up to its grid of 8 and 16: two for each of few seats.

    Source: vLLM 0.32, VllmConfig._set_cudagraph_sizes; on Blackwell up to 1,024, which no cost here knows of.
    """
    return min(2 * max_num_seqs, MOST_GRAPHED_TOKENS, max_num_batched_tokens)
