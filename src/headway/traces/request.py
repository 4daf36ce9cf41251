"""A request of a trace, and functions that cut, speed up or shorten traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import TraceError
from headway.statistics import rank

LATEST_S = 2**53 / 1e6
"""The latest arrival: later ones would be too large for a float to resolve microseconds."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """What a client sent and when, with the true output length that a replay forces.

    `arrival_s` counts from the start of the trace. `max_output_tokens` is the limit that the workload declares, None if
    it declares none; a policy may see it, but never `output_tokens`. `prefix_blocks` identify the prompt's leading KV
    blocks (Mooncake's `hash_ids`, one for each 512 tokens): two requests share a prefix as far as their blocks agree. A
    lower `priority` runs earlier.

    With a `think_s` the request follows the one before it in its `session`: it arrives that long after that answer has
    ended, whatever its `arrival_s`. The first of a session arrives at its `arrival_s` anyway. Raises TraceError for
    impossible values.
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
    think_s: float | None = None

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
        # An empty cell means no value, so an empty text could not be written and read back.
        _require(self.prompt != "", "prompt", self.prompt, "text, or None")
        _require(self.session != "", "session", self.session, "text, or None")
        known_pause = self.think_s is None or (_is_number(self.think_s) and 0 <= self.think_s <= LATEST_S)
        _require(known_pause, "think_s", self.think_s, f"seconds, 0 to {LATEST_S:.3g}, or None")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _require(holds: bool, name: str, value: object, accepted: str) -> None:
    if not holds:
        raise TraceError(f"{name} is {value!r}; accepted: {accepted}")


FITTED_SHARE = 0.99
"""The share of requests whose lengths are scaled to fit; the longest few are clipped."""


def take(requests: Sequence[TraceRequest], limit: int) -> list[TraceRequest]:
    """The first `limit` requests, or all if there are fewer."""
    if limit < 1:
        raise TraceError.of("limit", limit, "1 or more")
    return list(requests[:limit])


def scale_rate(requests: Sequence[TraceRequest], factor: float) -> list[TraceRequest]:
    """The requests with every arrival time divided by `factor`.

    Raises TraceError as `check_rate` does.
    """
    check_rate(max((request.arrival_s for request in requests), default=0.0), factor)
    return [replace(request, arrival_s=request.arrival_s / factor) for request in requests]


def check_rate(last_s: float, factor: float) -> None:
    """Raise TraceError unless requests up to `last_s` can arrive `factor` times as fast."""
    if not (isfinite(factor) and factor > 0):
        raise TraceError(f"rate factor is {factor}; accepted: a finite number above 0")
    if last_s / factor > LATEST_S:
        raise TraceError(
            f"rate factor is {factor}, at which the last request arrives after {last_s / factor:.3g} s; accepted: "
            f"a factor that puts it within {LATEST_S:.3g} s"
        )


def scale_lengths(
    requests: Sequence[TraceRequest], max_input_tokens: int, max_output_tokens: int
) -> list[TraceRequest]:
    """The requests with lengths that a smaller model can hold, inputs and outputs each by one rule.

    All lengths are divided by the smallest factor, 1 or more, that puts their 99th percentile (nearest rank) within the
    limit, rounded, and clipped to 1..limit. Declared output limits are scaled with the outputs; of the prefix blocks as
    many stay as the shorter prompt needs, so that a block keeps its size. Raises TraceError for a limit below 1, and
    for a prompt given as text whose length would change.
    """
    for name, limit in (("max_input_tokens", max_input_tokens), ("max_output_tokens", max_output_tokens)):
        if limit < 1:
            raise TraceError.of(name, limit, "1 or more")
    input_factor = _factor([request.input_tokens for request in requests], max_input_tokens)
    output_factor = _factor([request.output_tokens for request in requests], max_output_tokens)
    return [
        _shortened(
            request,
            input_tokens=_scaled(request.input_tokens, input_factor, max_input_tokens),
            output_tokens=_scaled(request.output_tokens, output_factor, max_output_tokens),
            declared=request.max_output_tokens
            and _scaled(request.max_output_tokens, output_factor, max_output_tokens),
        )
        for request in requests
    ]


def _factor(lengths: Sequence[int], limit: int) -> float:
    if not lengths:
        return 1.0
    return max(1.0, rank(lengths, FITTED_SHARE) / limit)


def _scaled(tokens: int, factor: float, limit: int) -> int:
    return max(1, min(limit, round(tokens / factor)))


def _shortened(
    request: TraceRequest, input_tokens: int, output_tokens: int, declared: int | None
) -> TraceRequest:
    if request.prompt is not None and input_tokens != request.input_tokens:
        raise TraceError(
            f"request {request.id!r} has its prompt as text of {request.input_tokens} tokens, which cannot "
            f"be scaled to {input_tokens}; accepted: a trace without prompts, or a larger limit"
        )
    blocks = ceil(len(request.prefix_blocks) * input_tokens / request.input_tokens)
    return replace(
        request,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        max_output_tokens=declared,
        prefix_blocks=request.prefix_blocks[:blocks],
    )


def at_once(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """The requests, all at 0 s, without targets, and independent of each other."""
    return [replace(request, arrival_s=0.0, slo=NO_TARGETS, think_s=None) for request in requests]
