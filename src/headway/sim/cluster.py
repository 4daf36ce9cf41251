"""Instances behind a router, and their arriving requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf

from headway.core.job import Job, JobState
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.errors import ConfigError, SimulationError, TraceError
from headway.routing import Router
from headway.sim.clock import EventLoop, Phase
from headway.sim.engine import EngineTotals
from headway.sim.instance import Instance
from headway.sim.kv_pool import BlockKey
from headway.sim.lengths import LengthSource
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest
from headway.traces.sessions import after, parted


def job_of(
    request: TraceRequest, default_max_output_tokens: int, predicted_length: LengthEstimate | None = None
) -> Job:
    """Make the job of an arriving request, without its true length.

    Its limit is the request's or the workload's: a fitted limit would reveal the length. Raises TraceError for an
    answer longer than the limit.
    """
    limit = request.max_output_tokens or default_max_output_tokens
    if request.output_tokens > limit:
        raise TraceError(
            f"request {request.id} has {request.output_tokens} output tokens; accepted: up to {limit}, "
            "the limit of requests that declare none"
        )
    return Job(
        id=request.id,
        arrival_s=request.arrival_s,
        num_prompt_tokens=request.input_tokens,
        max_output_tokens=limit,
        slo=request.slo,
        priority=request.priority,
        tenant=request.tenant,
        program=request.session,
        predicted_length=predicted_length,
        prefix_blocks=request.prefix_blocks,
    )


def moved_job(job: Job, now_s: float) -> Job:
    """Make a new job from one that its instance gave up unstarted: with the rest of its targets, and no further
    hand-off.
    """
    return replace(
        job,
        arrival_s=now_s,
        slo=job.slo.after(now_s - job.arrival_s),
        may_move=False,
        num_cached_tokens=0,
        num_stored_tokens=0,
        state=JobState.WAITING,
    )


def shared_keys(request: TraceRequest, block_size: int) -> list[BlockKey]:
    """The keys of a prompt's full KV blocks, as far as the trace tells their contents.

    A trace block of 512 tokens is several KV blocks. Raises ConfigError if it is not a whole number of them.
    """
    if not request.prefix_blocks:
        return []
    per_trace_block, rest = divmod(MOONCAKE_BLOCK_TOKENS, block_size)
    if rest:
        accepted = f"accepted with a trace of prefix blocks: a divisor of {MOONCAKE_BLOCK_TOKENS}"
        raise ConfigError.of("block_size", f"{block_size}; {accepted}")
    known = min(request.input_tokens // block_size, len(request.prefix_blocks) * per_trace_block)
    return [
        request.prefix_blocks[index // per_trace_block] * per_trace_block + index % per_trace_block
        for index in range(known)
    ]


@dataclass(slots=True)
class _LiveRequest:
    """A request that has not ended, and the job that represents it at its current instance."""

    request: TraceRequest
    job: Job
    instance: str


class Cluster:
    """Feeds a trace, one request ahead, to the instances that the router names.

    Policies see `default_max_output_tokens` as the limit of requests that declare none. Requests are read when due, so
    memory grows only with the live ones. If sessions wait for answers, all requests are read at once; a turn arrives
    its think time after the previous one ended, however that ended. `lengths` is asked once for each request when it
    arrives, before routing, and is told of its end.

    A request that its instance gives up unstarted arrives at the instance that the router chooses, after everything
    else at that instant; if there is none, it returns for good to its old instance. Its records keep the client's
    original targets.
    """

    def __init__(
        self,
        loop: EventLoop,
        router: Router,
        *,
        default_max_output_tokens: int,
        lengths: LengthSource | None = None,
    ) -> None:
        self.arrived = 0
        self._loop = loop
        self._router = router
        self._limit = default_max_output_tokens
        self._lengths = lengths
        self._instances: dict[str, Instance] = {}
        self._names: tuple[str, ...] = ()
        self._live: dict[str, _LiveRequest] = {}
        self._moving: list[_LiveRequest] = []
        self._requests: Iterator[TraceRequest] = iter(())
        self._followers: dict[str, TraceRequest] = {}
        self._coming_s: list[float] = []

    def add(self, instance: Instance) -> None:
        """Put an instance behind the router, under its engine's name."""
        self._instances[instance.engine.name] = instance
        self._names = (*self._names, instance.engine.name)

    def close(self, name: str) -> None:
        """Send an instance no more requests; it serves those that it has."""
        self._names = tuple(each for each in self._names if each != name)

    def reopen(self, name: str) -> None:
        """Send a closed instance requests again."""
        self._names = (*self._names, name)

    def remove(self, name: str) -> None:
        """Remove a closed, empty instance with the contents of its caches."""
        self._router.lost(name)

    def live(self, name: str) -> int:
        """Number of requests at an instance. O(live)."""
        return sum(live.instance == name for live in self._live.values())

    def waiting(self, name: str) -> int:
        """Number of unstarted requests at an instance."""
        return len(self._instances[name].engine.ledger.waiting)

    @property
    def is_over(self) -> bool:
        """Whether no request is left to come or to end."""
        return self.next_arrival_s == inf and not self._live

    def horizon_s(self, name: str) -> float:
        """Until when no request can reach an instance: the next arrival, or earlier the next event of the loop.

        The latter counts while other instances may hand off requests or end turns. O(instances).
        """
        others = (other.engine.ledger for other in self._instances.values() if other.engine.name != name)
        if any(
            ledger.live if self._followers else self._router.hands_off and ledger.waiting for ledger in others
        ):
            return min(self.next_arrival_s, self._loop.next_s)
        return self.next_arrival_s

    @property
    def next_arrival_s(self) -> float:
        """When the next known request arrives; inf if there is none."""
        return self._coming_s[0] if self._coming_s else inf

    def waiting_elsewhere(self, name: str) -> Sequence[int]:
        """The prompt tokens that wait elsewhere, as the router tells an instance."""
        return self._router.waiting_elsewhere(name, self._names)

    @property
    def totals(self) -> dict[str, EngineTotals]:
        """Each instance's engine totals, by name."""
        return {name: instance.engine.totals for name, instance in self._instances.items()}

    # ---- calls of the instances --------------------------------------------------------------------

    def started(self, job: Job) -> None:
        """A request produced its first token."""
        self._router.started(job)

    def ended(self, record: Record) -> None:
        """A request ended at its instance or leaves it; fills the original targets into the record."""
        live = self._live[record.id]
        record.arrival_s, record.slo = live.request.arrival_s, live.request.slo
        if record.outcome is Outcome.HANDED_OFF and record.first_scheduled_s is None:
            self._give_up(live)
            return
        del self._live[record.id]
        self._router.end(live.job)
        if self._lengths is not None:
            self._lengths.ended(live.request, finished=record.outcome is Outcome.FINISHED)
        following = self._followers.pop(record.id, None)
        if following is not None:
            self._await(after(following, self._loop.now_s))

    def _give_up(self, live: _LiveRequest) -> None:
        """Hold a given-up request until the step that gives it up has been planned."""
        if not self._moving:
            self._loop.at(self._loop.now_s, Phase.MOVE, self._move)
        self._moving.append(live)

    def _move(self) -> None:
        """Let the requests given up at this instant arrive, ordered by id, whichever instance planned first."""
        moving, self._moving = sorted(self._moving, key=lambda live: live.job.id), []
        for live in moving:
            live.instance = self._router.hand_off(live.job, self._names) or live.instance
            live.job = moved_job(live.job, self._loop.now_s)
            self._place(live)

    # ---- requests ----------------------------------------------------------------------------------

    def run(self, requests: Iterable[TraceRequest]) -> None:
        """Serve all requests (in order of arrival) to their end.

        Raises SimulationError if requests are left although nothing more will happen.
        """
        self._requests, self._followers = parted(requests)
        self._await_next()
        self._loop.run()
        if self._live:
            left = ", ".join(sorted(self._live)[:5])
            raise SimulationError(f"{len(self._live)} requests were never served, among them {left}")

    def _await_next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._await(request, then=self._await_next)

    def _await(self, request: TraceRequest, then: Callable[[], None] = lambda: None) -> None:
        heappush(self._coming_s, request.arrival_s)
        self._loop.at(request.arrival_s, Phase.ARRIVAL, lambda: self._arrive(request, then))

    def _arrive(self, request: TraceRequest, then: Callable[[], None]) -> None:
        heappop(self._coming_s)
        then()  # before the arrival itself: a second one at this instant must be known before any step is planned
        self.arrived += 1
        job = self._job(request)
        live = self._live[job.id] = _LiveRequest(request, job, self._router.route(job, self._names))
        self._place(live)

    def _job(self, request: TraceRequest) -> Job:
        """The job that a policy sees, with its predicted length."""
        if request.id in self._live:
            raise TraceError(f"id {request.id!r} is used by two live requests; accepted: one each")
        job = job_of(request, self._limit)
        job.may_move = self._router.hands_off
        if self._lengths is not None:
            job.predicted_length = self._lengths.predict(request, job.max_output_tokens)
        return job

    def _place(self, live: _LiveRequest) -> None:
        """Let a request arrive at its instance now."""
        instance = self._instances[live.instance]
        shared = shared_keys(live.request, instance.engine.limits.block_size)
        instance.arrive(live.job, live.request.output_tokens, shared)
