"""One request of a trace."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import TraceError

LATEST_S = 2**53 / 1e6
"""The latest arrival: from then on a float does not tell microseconds apart, and steps would take no time."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What a client sent and when, with the true output length that a replay forces.

    `arrival_s` counts from the start of the trace. `max_output_tokens` is the limit that the workload
    declares, None where it declares none; a policy may see it, but never `output_tokens`.
    `prefix_blocks` are the identities of the prompt's leading KV blocks (Mooncake's `hash_ids`, one for
    each 512 tokens): two requests share a prefix as far as their blocks agree. A lower `priority` runs
    earlier. Raises TraceError for a value that no request can have.
    """

    id: str
    arrival_s: float
    input_tokens: int
    output_tokens: int
    max_output_tokens: int | None = None
    tenant: str = ""
    prompt: str | None = None
    session: str | None = None
    prefix_blocks: tuple[int, ...] = ()
    priority: int = 0
    slo: Slo = NO_TARGETS

    def __post_init__(self) -> None:
        _require(isinstance(self.id, str) and self.id != "", "id", self.id, "text that is not empty")
        known_time = _is_number(self.arrival_s) and 0 <= self.arrival_s <= LATEST_S
        _require(known_time, "arrival_s", self.arrival_s, f"seconds, 0 to {LATEST_S:.3g}")
        for name in ("input_tokens", "output_tokens"):
            tokens = getattr(self, name)
            _require(_is_whole(tokens) and tokens >= 1, name, tokens, "a whole number, 1 or more")
        limit = self.max_output_tokens
        known_limit = limit is None or (_is_whole(limit) and limit >= self.output_tokens)
        _require(known_limit, "max_output_tokens", limit, f"output_tokens ({self.output_tokens}) or more")
        _require(_is_whole(self.priority), "priority", self.priority, "a whole number")
        # An empty cell means that there is none, so an empty text could not be written and read back.
        _require(self.prompt != "", "prompt", self.prompt, "text, or None")
        _require(self.session != "", "session", self.session, "text, or None")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, accepted: str) -> None:
    if not holds:
        raise TraceError(f"{name} is {value!r}; accepted: {accepted}")
