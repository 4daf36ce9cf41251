"""The requests of an experiment: a file, a generated workload or the demo's stream, with targets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from random import Random

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import TraceError
from headway.file_state import FileState, file_state
from headway.traces import (
    LogNormal,
    OnOff,
    TraceRequest,
    closed_loop,
    generate,
    load_trace,
    parse_workload,
    scale_rate,
    take,
)
from headway.traces.reader import tell_understood
from headway.traces.spec import PREFIX


@dataclass(frozen=True, slots=True)
class Trace:
    """The source of requests: a file, a generated workload (`gen:...`), `demo`, or a list (`Trace.of`).

    A generated workload and the demo are drawn anew for each seed; a file or a list is the same for all. Invalid rows
    of a file are left out and counted in a warning, since published traces contain requests that failed. `limit` keeps
    the first requests. Each target of `slo` goes to requests without a target of that kind. `time_unit` is that of a
    file's arrivals, and `strict` refuses odd rows, as in `read_trace`. In a `closed_loop` later turns of a session wait
    for the answers before them (`traces.closed_loop`). Requests arrive `rate_scale` times as fast.

    >>> trace = Trace("gen:poisson:rate=4/input=constant:tokens=90/output=constant:tokens=20/count=3")
    >>> [request.input_tokens for request in trace.requests()]
    [90, 90, 90]
    """

    source: str
    limit: int | None = None
    slo: Slo = NO_TARGETS
    time_unit: str | None = None
    strict: bool = False
    closed_loop: bool = False
    rate_scale: float = 1.0
    given: tuple[TraceRequest, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, requests: Iterable[TraceRequest], slo: Slo = NO_TARGETS) -> Trace:
        """A trace of these requests, sorted by arrival. Raises TraceError if there are none."""
        given = tuple(sorted(requests, key=lambda request: request.arrival_s))
        if not given:
            raise TraceError("the list of requests is empty; accepted: at least one")
        return cls(f"{len(given):,} given requests", slo=slo, given=given)

    @property
    def is_drawn(self) -> bool:
        """Whether another seed gives other requests."""
        return not self.given and (self.source == DEMO or self.source.startswith(PREFIX))

    def requests(self, seed: int = 0) -> list[TraceRequest]:
        """The requests of one seed in order of arrival. Raises TraceError if there are none or they cannot be read."""
        requests = [*self.given] or (self._drawn(seed) if self.is_drawn else self._read())
        if self.closed_loop:
            requests = closed_loop(requests)
        if self.rate_scale != 1:
            requests = scale_rate(requests, self.rate_scale)
        if not self.slo:
            return requests
        return [replace(request, slo=request.slo.with_defaults(self.slo)) for request in requests]

    def _read(self) -> list[TraceRequest]:
        return load_trace(self.source, self.limit, time_unit=self.time_unit, strict=self.strict)

    def _drawn(self, seed: int) -> list[TraceRequest]:
        if self.time_unit is not None:
            raise TraceError.of(
                "time_unit", f"{self.time_unit!r} for {self.source}, which is in seconds", "with a trace file"
            )
        if self.source == DEMO:
            requests = demo_stream(seed)
        else:
            workload = parse_workload(self.source)
            requests = replace(workload, seed=workload.seed + seed).requests()
        requests = requests if self.limit is None else take(requests, self.limit)
        tell_understood(self.source, requests, "generated")
        return requests


def read_once(trace: Trace, seed: int) -> list[TraceRequest]:
    """The requests of one seed, read or drawn once by a process for all that it simulates.

    A file that was written again is read again.
    """
    return _requests(trace, seed if trace.is_drawn else 0, file_state(Path(trace.source)))


@lru_cache(maxsize=4)
def _requests(trace: Trace, seed: int, _state: FileState | None) -> list[TraceRequest]:
    return trace.requests(seed)


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Facts about the streams of all seeds, known before the first run.

    `declared_tokens` is the largest output limit that a request declares, `undeclared_tokens` the longest output among
    requests without a limit; 0 if there is none. `longest_tokens` is prompt and answer together of the longest request;
    the last one arrives at `last_s`. `targets`: whether any has a target.
    """

    digest: str
    num_requests: int
    declared_tokens: int
    undeclared_tokens: int
    longest_tokens: int
    last_s: float = 0.0
    targets: bool = False

    def output_limit(self, wanted: int | None) -> int:
        """The limit that policies see for requests that declare none.

        The wanted limit; else the declared maximum, if no request exceeds it; else the longest output rounded up to a
        power of two, so that the limit does not reveal the lengths. Raises TraceError for a wanted limit that is too
        low.
        """
        if wanted is None:
            if self.declared_tokens >= self.undeclared_tokens:
                return self.declared_tokens
            return 1 << (self.undeclared_tokens - 1).bit_length()
        if wanted < max(1, self.undeclared_tokens):
            raise TraceError.of(
                "max_output_tokens",
                wanted,
                f"{max(1, self.undeclared_tokens)} or more, the longest output of requests that declare no limit",
            )
        return wanted


def trace_facts(trace: Trace, seeds: range) -> TraceFacts:
    """Facts over all seeds; `num_requests` is of one seed. Reads or draws each stream once.

    Other processes read it again, so a pipe, whose requests would be gone, raises TraceError.
    """
    if not trace.is_drawn and Path(trace.source).is_fifo():
        raise TraceError(f"{trace.source} is a pipe, and is read more than once; accepted: a file")
    digest = sha256()
    requests: list[TraceRequest] = []
    declared = undeclared = longest = 0
    last_s, targets = 0.0, False
    for seed in seeds if trace.is_drawn else seeds[:1]:
        requests = read_once(trace, seed)
        for request in requests:
            digest.update(repr(request).encode())
            last_s = max(last_s, request.arrival_s)
            targets = targets or bool(request.slo)
            longest = max(longest, request.input_tokens + request.output_tokens)
            declared = max(declared, request.max_output_tokens or 0)
            if request.max_output_tokens is None:
                undeclared = max(undeclared, request.output_tokens)
    return TraceFacts(digest.hexdigest(), len(requests), declared, undeclared, longest, last_s, targets)


DEMO = "demo"
"""The demo's name in `headway bench --trace`."""

REQUESTS = 480
INTERACTIVE_SHARE = 0.7
INTERACTIVE = Slo(ttft_s=0.4, tbt_s=0.05)
BACKGROUND = Slo(ttft_s=8.0)


def demo_stream(seed: int = 0) -> list[TraceRequest]:
    """480 requests, the same for every policy; `make demo` sends them at a share of the machine's capacity.

    As drawn: bursts of 60 requests/s for about 1.5 s, 8 requests/s between them; a few very long prompts among many
    short ones. Seven in ten are interactive (first token within 0.4 s), the others from a batch job (within 8 s), in
    random order.
    """
    arrivals = OnOff(rate_on_rps=60, rate_off_rps=8, mean_on_s=1.5, mean_off_s=4)
    prompts = LogNormal(mean=220, sigma=1.2, maximum=3000, minimum=8)
    answers = LogNormal(mean=48, sigma=1.0, maximum=512, minimum=1)
    rng = Random(f"tenants of {seed}")
    return [_of_a_client(request, rng) for request in generate(arrivals, prompts, answers, REQUESTS, seed)]


def _of_a_client(request: TraceRequest, rng: Random) -> TraceRequest:
    interactive = rng.random() < INTERACTIVE_SHARE
    return replace(
        request,
        tenant="interactive" if interactive else "background",
        slo=INTERACTIVE if interactive else BACKGROUND,
    )
