"""What a replay writes down: one record a request, and how punctual the client was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.record import Outcome, Record
from headway.errors import ConfigError
from headway.loadgen.openai_stream import Reply
from headway.loadgen.prompts import Dialect
from headway.loadgen.replay_options import ReplayOptions
from headway.traces import TraceRequest


@dataclass(slots=True)
class BatchCounts:
    """Batches sent to servers, those of them that ran out of memory there, and servers that went away."""

    batches: int = 0
    out_of_memory: int = 0
    lost_instances: int = 0


@dataclass(slots=True)
class ReplayReport:
    """What happened: records in the order requests ended, and how late the client itself sent each.

    `interrupted` tells that the replay was stopped; requests not sent by then have no record. `batches` is of
    a replay in batches.
    """

    model: str
    records: list[Record] = field(default_factory=list)
    lateness_s: list[float] = field(default_factory=list)
    interrupted: bool = False
    batches: BatchCounts | None = None


@dataclass(slots=True)
class ReplayBook:
    """Enters each request of a replay once, as it ends."""

    dialect: Dialect
    options: ReplayOptions
    on_record: Callable[[Record], None]
    report: ReplayReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = ReplayReport(self.dialect.model)

    def refuse_too_long(self, requests: Sequence[TraceRequest]) -> list[TraceRequest]:
        """The requests that fit the model; the others are an error, or failed if they are to be skipped."""
        reasons = {request.id: self.dialect.too_long(request) for request in requests}
        refused = [request for request in requests if reasons[request.id]]
        if refused and not self.options.skip_too_long:
            first, others = refused[0], len(refused) - 1
            more = f", and {others} more like it" if others else ""
            raise ConfigError(f"request {first.id!r}{more}: {reasons[first.id]}; accepted: requests that fit")
        for request in refused:
            reply = Reply(error=reasons[request.id])
            self.enter(request, reply, *reply.outcome())
        return [request for request in requests if not reasons[request.id]]

    def enter(
        self,
        request: TraceRequest,
        reply: Reply,
        outcome: Outcome,
        error: str | None = None,
        **placed: Any,
    ) -> None:
        """Write a request's record; `placed` are fields that only a replay over several instances knows."""
        forced = not (self.options.plain or self.options.own_stops) and outcome is Outcome.FINISHED
        if forced and reply.output_tokens != request.output_tokens:
            error = f"asked for {request.output_tokens} tokens, got {reply.output_tokens}"
        record = Record(
            id=request.id,
            tenant=request.tenant,
            arrival_s=request.arrival_s,
            first_token_s=reply.first_token_s,
            finished_s=reply.ended_s,
            prompt_tokens=request.input_tokens if reply.prompt_tokens is None else reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            token_times_s=self._token_times(reply),
            slo=request.slo,
            outcome=outcome,
            error=error,
            **placed,
        )
        self.report.records.append(record)
        self.on_record(record)

    def _token_times(self, reply: Reply) -> list[float] | None:
        """One time a token; None if not asked for, or if the server's count shows that some were missed."""
        known = len(reply.token_times_s) == reply.output_tokens
        return reply.token_times_s if self.options.token_times and known else None
