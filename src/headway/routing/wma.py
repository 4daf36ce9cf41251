"""Wasted memory access: what serving requests of unlike lengths together costs, in KV tokens read for nothing."""

from __future__ import annotations

from collections.abc import Iterable


def tokens_read(prompt_tokens: int, output_tokens: int) -> int:
    """KV tokens that one seat reads while it decodes `output_tokens` behind a prompt: the sum of its contexts.

    The sum of `prompt_tokens + g` over g in [0, output_tokens).
    """
    return output_tokens * prompt_tokens + output_tokens * (output_tokens - 1) // 2


def batch_wma(prompt_tokens: int, output_tokens: int, least_read_alone: int, *, inclusive: bool) -> int:
    """WMA of a batch padded to these lengths, in which the cheapest member alone would read `least_read_alone`.

    A member of l and g tokens wastes g (L - l) on padding and the sum of `t + L` over t in [g, G) on waiting
    (Magnus equations of WMA_gen and WMA_wait). Together that is what its seat reads less what it would read
    alone, so the largest waste of a batch is that of the member that reads least alone: O(1), not O(members).
    `inclusive` sums to G itself, as the paper prints it, which charges every member G + L more.
    """
    waste = tokens_read(prompt_tokens, output_tokens) - least_read_alone
    return waste + prompt_tokens + output_tokens if inclusive else waste


def wma(members: Iterable[tuple[int, int]], *, inclusive: bool = False) -> int:
    """WMA of (prompt tokens, output tokens) of at least one member. O(members).

    Source: Magnus (Cheng et al. 2024, arXiv:2406.04785), a maximum over the members, not a sum.
    """
    known = list(members)
    return batch_wma(
        max(prompt for prompt, _ in known),
        max(output for _, output in known),
        min(tokens_read(prompt, output) for prompt, output in known),
        inclusive=inclusive,
    )
