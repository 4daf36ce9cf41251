"""A streaming client hears how its request ended, even if that was before its first token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REASON_PREFIX = "headway:"


class NoTokens(list[int]):
    """An empty list of tokens that counts as news.

    vLLM's stream generators leave out an output without text and tokens as long as nothing has been sent,
    its finish reason included: the client of a request that was shed while it waited would see its stream
    end without a reason. They ask by truth value, so this is enough for both of them.
    """

    def __bool__(self) -> bool:
        return True


def shows_endings(make: Callable[..., Any]) -> Callable[..., Any]:
    """Have vLLM's API server pass on the end of a request that a policy ended before its first token."""

    def new_completion_output(self: Any, token_ids: Any, finish_reason: Any, stop_reason: Any) -> Any:
        output = make(self, token_ids, finish_reason, stop_reason)
        by_policy = isinstance(stop_reason, str) and stop_reason.startswith(REASON_PREFIX)
        if by_policy and not output.token_ids and not output.text:
            output.token_ids = NoTokens()
        return output

    return new_completion_output
