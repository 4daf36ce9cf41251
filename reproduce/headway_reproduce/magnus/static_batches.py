"""Engines that serve padded batches whole, fed from one central queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, field

from headway.core.batch_shape import BatchShape
from headway.core.job import Job, JobState
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record, record_of
from headway.errors import ConfigError, SimulationError, TraceError
from headway.predict.steps.calibration import StepSeconds
from headway.routing.batch import Batch
from headway.routing.batch_queue import BatchQueue
from headway.sim.clock import Clock, EventLoop, Phase
from headway.sim.cluster import job_of
from headway.traces import TraceRequest


@dataclass(slots=True)
class Waste:
    """Tokens that a static engine computed: of answers, of padding before prompts, and after an answer's end.

    `lost_tokens` are output of the `out_of_memory` batches that ran out of memory, of which `out_of_memory_again` were
    halves of such batches.
    """

    valid_tokens: int = 0
    pad_tokens: int = 0
    invalid_tokens: int = 0
    lost_tokens: int = 0
    out_of_memory: int = 0
    out_of_memory_again: int = 0


class StaticInstance:
    """Pads prompts to the longest of the batch and decodes until the longest answer is complete.

    Members that have finished go on producing useless tokens, and all come back together. When the
    batch outgrows the KV memory its work is lost: `on_out_of_memory` gets the members back. `on_idle` is
    called whenever a batch is over. Source: Magnus section 2 (Hugging Face generate, FasterTransformer).
    """

    def __init__(
        self,
        clock: Clock,
        loop: EventLoop,
        *,
        kv_capacity_tokens: int,
        on_end: Callable[[Record], None],
        on_idle: Callable[[], None],
        on_out_of_memory: Callable[[Sequence[Job]], None],
        name: str = "",
    ) -> None:
        self.name = name
        self.waste = Waste()
        self.busy = False
        self._clock = clock
        self._loop = loop
        self._capacity_tokens = kv_capacity_tokens
        self._on_end = on_end
        self._on_idle = on_idle
        self._on_out_of_memory = on_out_of_memory

    def serve(self, batch: Sequence[tuple[Job, int]]) -> None:
        """Start a batch of (job, true output tokens) now; the instance must be idle. O(longest answer)."""
        assert batch, "a batch has at least one member"
        assert not self.busy, "one batch at a time"
        self.busy = True
        start_s = self._loop.now_s
        prompt = max(job.num_prompt_tokens for job, _ in batch)
        longest = max(output for _, output in batch)
        fitting = self._capacity_tokens // len(batch) - prompt
        first_token_s = start_s + self._prefill_s(len(batch), prompt)
        reached = min(longest, max(fitting, 1))
        end_s = first_token_s + self._decode_s(len(batch), prompt, reached)
        for job, _ in batch:
            if job.first_scheduled_s is None:
                job.first_scheduled_s = start_s
        if fitting < longest:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._run_out([job for job, _ in batch], reached))
        else:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._return(batch, prompt, longest, first_token_s))

    def _prefill_s(self, jobs: int, prompt: int) -> float:
        shape = BatchShape()
        for _ in range(jobs):
            shape.add(prompt, 0)
        return self._clock.step_s(shape)

    def _decode_s(self, jobs: int, prompt: int, output: int) -> float:
        """Seconds from the first token to the last of `output`."""
        shape = BatchShape(
            num_jobs=jobs, num_tokens=jobs, num_decodes=jobs, decode_context_tokens=jobs * prompt
        )
        seconds = 0.0
        for _ in range(output - 1):
            shape = shape.grown()
            seconds += self._clock.step_s(shape)
        return seconds

    def _return(
        self, batch: Sequence[tuple[Job, int]], prompt: int, longest: int, first_token_s: float
    ) -> None:
        self.busy = False
        for job, output in batch:
            self.waste.valid_tokens += output
            self.waste.pad_tokens += prompt - job.num_prompt_tokens
            self.waste.invalid_tokens += longest - output
            job.num_output_tokens, job.first_token_s, job.state = output, first_token_s, JobState.ENDED
            record = record_of(job, Outcome.FINISHED, self._loop.now_s)
            record.instance = self.name
            self._on_end(record)
        self._on_idle()

    def _run_out(self, jobs: Sequence[Job], reached: int) -> None:
        self.busy = False
        self.waste.out_of_memory += 1
        self.waste.lost_tokens += reached * len(jobs)
        self._on_out_of_memory(jobs)
        if not self.busy:
            self._on_idle()


TOO_LARGE = "alone in its batch it needs more KV memory than an instance has"
"""The reason for the failure of a request that ran out of memory alone in its batch."""

Estimate = Callable[[TraceRequest], LengthEstimate | None]
"""The predicted length of a request's answer, made on arrival; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSystem:
    """`instances` equal engines, each with room for `kv_capacity_tokens`, whose steps cost `step`.

    `residuals` are as the `Clock` takes them.
    """

    step: StepSeconds
    kv_capacity_tokens: int
    instances: int = 1
    residuals: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "instances"):
            if getattr(self, name) < 1:
                raise ConfigError.of(name, getattr(self, name), "1 or more")


@dataclass(slots=True)
class StaticResult:
    """The result of a run: when its clock stopped, tokens computed and wasted, and batches by their ends."""

    end_s: float = 0.0
    waste: Waste = field(default_factory=Waste)
    batches: int = 0
    splits: int = 0
    failed: int = 0


def simulate_batches(
    requests: Iterable[TraceRequest],
    queue: BatchQueue,
    system: StaticSystem,
    *,
    on_record: Callable[[Record], None],
    max_output_tokens: int,
    estimate: Estimate = lambda request: None,
    seed: int = 0,
) -> StaticResult:
    """Serve `requests` (in order of arrival) to their end, and pass on each record as its request ends.

    `max_output_tokens` is the limit where a request declares none. `estimate` is asked once a request, on arrival;
    `on_record` is called in the order of the simulated time, so that a predictor can learn between the two. The same
    arguments give the same records. Raises TraceError for a request longer than its limit, SimulationError if some are
    never served.
    """
    loop = EventLoop()
    cluster = StaticCluster(
        loop, queue, estimate=estimate, on_record=on_record, default_max_output_tokens=max_output_tokens
    )
    for number in range(system.instances):
        clock = Clock(system.step, system.residuals, seed * system.instances + number)
        cluster.add(f"{number}", clock, system.kv_capacity_tokens)
    return cluster.run(requests)


@dataclass(slots=True)
class _Seat:
    """One instance and its current batch."""

    instance: StaticInstance
    batch: Batch | None = None
    started_s: float = 0.0


class StaticCluster:
    """Adds each request to the queue on arrival, and gives every idle instance the batch that the queue chooses.

    Requests are read one ahead. Only the instances know true lengths.
    """

    def __init__(
        self,
        loop: EventLoop,
        queue: BatchQueue,
        *,
        estimate: Estimate,
        on_record: Callable[[Record], None],
        default_max_output_tokens: int,
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._estimate = estimate
        self._on_record = on_record
        self._limit = default_max_output_tokens
        self._seats: list[_Seat] = []
        self._output_tokens: dict[str, int] = {}
        self._requests: Iterator[TraceRequest] = iter(())
        self._dispatch_planned = False
        self._result = StaticResult()

    def add(self, name: str, clock: Clock, kv_capacity_tokens: int) -> None:
        """Add an instance that serves from the queue."""
        instance = StaticInstance(
            clock,
            self._loop,
            kv_capacity_tokens=kv_capacity_tokens,
            on_end=self._on_record,
            on_idle=lambda: self._idle(seat),
            on_out_of_memory=lambda jobs: self._out_of_memory(seat),
            name=name,
        )
        seat = _Seat(instance)
        self._seats.append(seat)

    @property
    def live(self) -> int:
        """The number of requests that have come and not ended."""
        return len(self._output_tokens)

    def run(self, requests: Iterable[TraceRequest]) -> StaticResult:
        """Serve all requests to their end. Raises SimulationError if some are left."""
        self._requests = iter(requests)
        self._await_next()
        self._loop.run()
        if self.live:
            raise SimulationError(
                f"{self.live} requests were never served, among them {min(self._output_tokens)}"
            )
        result = self._result
        result.end_s, result.splits = self._loop.now_s, self._queue.splits
        wastes = (astuple(seat.instance.waste) for seat in self._seats)
        result.waste = Waste(*map(sum, zip(*wastes, strict=True)))
        return result

    def _await_next(self) -> None:
        request = next(self._requests, None)
        if request is not None:
            self._loop.at(request.arrival_s, Phase.ARRIVAL, lambda: self._arrive(request))

    def _arrive(self, request: TraceRequest) -> None:
        self._await_next()
        if request.id in self._output_tokens:
            raise TraceError(f"id {request.id!r} is used by two live requests; accepted: one each")
        self._output_tokens[request.id] = request.output_tokens
        self._queue.add(job_of(request, self._limit, self._estimate(request)))
        self._plan_dispatch()

    def _plan_dispatch(self) -> None:
        """Schedule a dispatch for the end of this instant, after all its other events."""
        if not self._dispatch_planned:
            self._dispatch_planned = True
            self._loop.at(self._loop.now_s, Phase.SCHEDULE, self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_planned = False
        for seat in self._seats:
            if not seat.instance.busy:
                batch = self._queue.next_batch(self._loop.now_s)
                if batch is None:
                    return
                seat.batch, seat.started_s = batch, self._loop.now_s
                self._result.batches += 1
                seat.instance.serve([(job, self._output_tokens[job.id]) for job in batch.jobs])

    def _idle(self, seat: _Seat) -> None:
        self._plan_dispatch()
        if seat.batch is None:
            return
        longest = max(self._output_tokens.pop(job.id) for job in seat.batch.jobs)
        seconds = self._loop.now_s - seat.started_s
        self._queue.finished(seat.batch, output_tokens=longest, seconds=seconds)
        seat.batch = None

    def _out_of_memory(self, seat: _Seat) -> None:
        batch, seat.batch = seat.batch, None
        assert batch is not None, "only a batch that is served can run out of memory"
        seat.instance.waste.out_of_memory_again += batch.sealed
        for job in batch.jobs:
            job.num_preemptions += 1
        for job in self._queue.split(batch):
            del self._output_tokens[job.id]
            job.state = JobState.ENDED
            self._result.failed += 1
            record = record_of(job, Outcome.FAILED, self._loop.now_s)
            record.instance, record.error = seat.instance.name, TOO_LARGE
            self._on_record(record)
