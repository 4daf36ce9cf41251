"""What the gateway's book is made of: requests, classes of them, instances, and refusals."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from headway.core.record import Outcome
from headway.core.slo import NO_TARGETS, Slo
from headway.gateway.book.histogram import Histogram

_RECENT_TTFTS = 512
_NO_TARGETS_LABEL = "none"


class Prefill(StrEnum):
    """Where the prompt of a request is computed, if the gateway parts prefill and decode."""

    APART = "apart"
    """At a prefill instance."""
    FAILED = "failed"
    """At the decode instance, since the prefill instance or the transfer of the KV failed."""
    NONE = "none"
    """At the decode instance: the request has no such stage, or no prefill instance is ready and takes it."""


class ClassKey(NamedTuple):
    """Requests with the same targets from one tenant."""

    slo: str
    tenant: str


@dataclass(slots=True)
class Totals:
    """Running counts; each offered request is in exactly one of the others once it has ended.

    `met` are the finished ones within all of their targets; `rejected` those that no instance could have
    served (bad requests).
    """

    offered: int = 0
    finished: int = 0
    met: int = 0
    expired: int = 0
    shed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0

    @property
    def ended(self) -> int:
        """Requests that have come to their end."""
        return self.finished + self.expired + self.shed + self.failed + self.cancelled + self.rejected

    @property
    def goodput(self) -> float | None:
        """Share of the ended that met their targets; the cancelled and the rejected are nobody's fault here."""
        judged = self.finished + self.expired + self.shed + self.failed
        return self.met / judged if judged else None


@dataclass(slots=True)
class ClassAccount:
    """Counts and latencies of one class: tokens that clients were sent, latencies of requests that have finished."""

    totals: Totals = field(default_factory=Totals)
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    tbt: Histogram = field(default_factory=Histogram)


@dataclass(slots=True)
class InstanceAccount:
    """What an instance has: `waiting` of the `in_flight` have no token yet.

    `recent_ttfts_s` are arrivals to first tokens; of a prefill instance, arrivals to the ends of prompts.
    """

    in_flight: int = 0
    waiting: int = 0
    recent_ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TTFTS))

    def ttft_s(self, share: float) -> float | None:
        """The value that this share of the last first-token times is at or below; None before the first."""
        found = sorted(self.recent_ttfts_s)
        return found[max(1, ceil(share * len(found))) - 1] if found else None


@dataclass(frozen=True, slots=True)
class RefusalNote:
    """A request that was not served, for people; `at_s` is the caller's clock."""

    at_s: float
    status: int
    code: str
    reason: str
    slo: str
    tenant: str


@dataclass(slots=True, eq=False)
class Entry:
    """One request that was offered. Times are seconds of the caller's clock.

    `tenant` is the name that the request or its API key gave; its class in `key` may be a broader one.
    `instance` is where it is, empty while it waits at the door; `places` are all those it was sent to, in order.
    `tokens` counts output tokens, or events where the instance does not tell tokens. `prefill` is None where prefill
    and decode are not parted, `prefilled_s` when a prefill instance had computed the prompt.
    """

    id: str
    slo: Slo
    tenant: str
    key: ClassKey
    account: ClassAccount
    arrival_s: float
    instance: str = ""
    first_s: float | None = None
    last_s: float | None = None
    prefill: Prefill | None = None
    prefilled_s: float | None = None
    tokens: int = 0
    moves: int = 0
    resumes: int = 0
    outcome: Outcome | None = None
    rejected: bool = False
    met: bool = False
    places: list[str] = field(default_factory=list)
    ended_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token, as the client saw it."""
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def prefill_s(self) -> float | None:
        """Arrival to the prompt's end at its prefill instance."""
        return None if self.prefilled_s is None else self.prefilled_s - self.arrival_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time per token after the first; None with fewer than two, and for an answer that came in one piece."""
        if self.first_s is None or self.last_s is None or self.tokens < 2 or self.last_s <= self.first_s:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)

    def within_targets(self, end_s: float) -> bool:
        """Whether an answer that is whole at `end_s` came within all targets.

        As `results.summarize` judges records; an answer that came in one piece has no time between tokens.
        """
        ttft_s, tbt_s, slo = self.ttft_s, self.tbt_s, self.slo
        return (
            (slo.ttft_s is None or (ttft_s is not None and ttft_s <= slo.ttft_s))
            and (slo.tbt_s is None or tbt_s is None or tbt_s <= slo.tbt_s)
            and (slo.deadline_s is None or end_s - self.arrival_s <= slo.deadline_s)
        )


def slo_label(slo: Slo) -> str:
    """Targets as a label: `ttft=1s tbt=0.1s`; `none` without any."""
    if slo is NO_TARGETS or not slo:
        return _NO_TARGETS_LABEL
    named = (("ttft", slo.ttft_s), ("tbt", slo.tbt_s), ("deadline", slo.deadline_s))
    return " ".join(f"{name}={value:g}s" for name, value in named if value is not None)


def add_totals(parts: Iterable[Totals]) -> Totals:
    """The sum of several counts."""
    total = Totals()
    for part in parts:
        for name in Totals.__slots__:
            setattr(total, name, getattr(total, name) + getattr(part, name))
    return total
