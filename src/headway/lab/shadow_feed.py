"""Collects what engines report to a shadow about their requests and steps."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Annotated, Any

import msgspec

from headway.core.batch_shape import BatchShape
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import UpstreamError
from headway.lab.grid import Parts
from headway.sim.limits import EngineLimits

FIRST = "0-0"
"""The counts to ask with at first; each answer contains the next."""
MOST_REQUESTS = 20_000
MOST_STEPS = 4_000


class Told(msgspec.Struct, kw_only=True):
    """A request as its engine reports it. Times are seconds of the engine's clock."""

    id: str
    arrival_s: float
    prompt_tokens: int
    found_tokens: int
    output_tokens: int
    max_output_tokens: int
    targets_s: tuple[float | None, float | None, float | None]
    priority: int
    tenant: str
    predicted: tuple[float, float, float] | None
    outcome: Outcome | None
    first_token_s: float | None
    finished_s: float | None

    @property
    def slo(self) -> Slo:
        """The targets of the request."""
        return Slo(*self.targets_s)

    @property
    def estimate(self) -> LengthEstimate | None:
        """The predicted length of its answer."""
        return None if self.predicted is None else LengthEstimate(*self.predicted)

    def record(self) -> Record:
        """The record of an ended request."""
        assert self.outcome is not None, "a live request has no record"
        return Record(
            id=self.id,
            arrival_s=self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            outcome=self.outcome,
            output_tokens=self.output_tokens,
            tenant=self.tenant,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            slo=self.slo,
        )


class EngineFacts(msgspec.Struct, kw_only=True):
    """An engine's policy and sizes, and the seconds of copying one block and `copied_blocks`, out and in (0: none was
    seen).

    `priority_first`: it runs with vLLM's `--scheduling-policy priority`, under whatever policy.
    """

    policy: str
    parts: Parts
    limits: EngineLimits
    copies_s: tuple[float, float, float, float]
    copied_blocks: int
    priority_first: bool = False


class Window(msgspec.Struct, kw_only=True):
    """One answer of an engine. `steps` are the seconds and the six sums of a batch shape."""

    now_s: float
    next: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")]
    missed: int
    ended: list[Told]
    live: list[Told]
    steps: list[tuple[float, int, int, int, int, int, float]]
    host_s: float
    engine: EngineFacts
    block_bytes: int = 0


class Feed:
    """One engine's answers, combined: at most MOST_REQUESTS ended requests, none older than `keep_s`, and
    MOST_STEPS steps.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._begin()

    def _begin(self) -> None:
        self.ended: deque[Told] = deque(maxlen=MOST_REQUESTS)
        self.live: list[Told] = []
        self.steps: deque[tuple[BatchShape, float]] = deque(maxlen=MOST_STEPS)
        self.next = FIRST
        self._gaps: deque[tuple[float, int]] = deque()
        self._whole_from_s = -inf
        self.now_s = 0.0
        self.heard_s = 0.0
        self.host_s = 0.0
        self.block_bytes = 0
        self.engine: EngineFacts | None = None

    def take(self, answer: dict[str, Any], heard_s: float = 0.0) -> None:
        """Add an answer received at `heard_s` of the listener's clock; a restarted engine begins a new history.

        Raises UpstreamError for an invalid answer.
        """
        try:
            window = msgspec.convert(answer, Window)
        except msgspec.ValidationError as error:
            raise UpstreamError(f"a server's answer to shadows is not understood: {error}") from None
        if window.now_s < self.now_s or _counts(window.next) < _counts(self.next):
            self._begin()
            return
        forgets = len(self.ended) + len(window.ended) > MOST_REQUESTS
        self.ended.extend(window.ended)
        self.steps.extend((_shape(row), row[0]) for row in window.steps)
        self.live, self.next, self.now_s = window.live, window.next, window.now_s
        self.heard_s = heard_s
        first = self.engine is None
        if forgets or (first and window.missed):
            self._whole_from_s = self._earliest_end_s()
        if window.missed and not first:
            self._gaps.append((self.now_s, window.missed))
        self.host_s, self.block_bytes, self.engine = window.host_s, window.block_bytes, window.engine
        since_s = self.now_s - self._keep_s
        while self.ended and self.ended[0].arrival_s < since_s:
            self.ended.popleft()
        while self._gaps and self._gaps[0][0] < since_s:
            self._gaps.popleft()

    def _earliest_end_s(self) -> float:
        """When the first known request ended. Requests that ended before may be unknown; all that arrived later are
        known.
        """
        return next((one.finished_s for one in self.ended if one.finished_s is not None), self.now_s)

    @property
    def reach_s(self) -> float:
        """For how many seconds back all arrivals are known, except `missed`; infinite from an engine's first request
        on.

        An engine keeps only its last ended requests, so its first answer may begin in the middle.
        """
        return self.now_s - self._whole_from_s

    @property
    def whole_window_s(self) -> float:
        """The longest window that does not begin with an empty queue: the later half of what `reach_s` covers.

        Requests of the first half lead up to it; times after the last arrival belong to neither half.
        """
        arrivals_s = (one.arrival_s for one in (*self.ended, *self.live))
        last_s = max(arrivals_s, default=self.now_s)
        return self.now_s - (self._whole_from_s + max(last_s, self._whole_from_s)) / 2

    @property
    def missed(self) -> int:
        """Requests that ended between two answers and were in neither, for as long as ended ones are kept."""
        return sum(count for _, count in self._gaps)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


def _shape(row: tuple[float, int, int, int, int, int, float]) -> BatchShape:
    _, num_jobs, num_tokens, num_decodes, decode_context, prefill_context, pairs = row
    return BatchShape(
        num_jobs=num_jobs,
        num_tokens=num_tokens,
        num_decodes=num_decodes,
        decode_context_tokens=decode_context,
        prefill_context_tokens=prefill_context,
        prefill_pairs=pairs,
    )
