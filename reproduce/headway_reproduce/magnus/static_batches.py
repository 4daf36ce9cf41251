"""Engines that serve padded batches whole, fed from one central queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headway.core.batch_shape import BatchShape
from headway.core.job import JobState
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record, record_of
from headway.errors import SimulationError, TraceError
from headway.predict.steps.calibration import StepSeconds
from headway.routing.batch import Batch
from headway.routing.batch_queue import BatchQueue
from headway.sim.clock import Clock, EventLoop, Phase
from headway.sim.cluster import job_of
from headway.traces import TraceRequest

# ---- the time of a batch -------------------------------------------------------------------------------


def prefill_s(steps: StepSeconds, jobs: int, prompt: int) -> float:
    """Seconds to the first token of all jobs, whose prompts are padded to `prompt` tokens."""
    shape = BatchShape()
    for _ in range(jobs):
        shape.add(prompt, 0)
    return steps.step_s(shape)


def decode_s(steps: StepSeconds, jobs: int, prompt: int, output: int) -> float:
    """Seconds from the first token to the last of `output`. O(output)."""
    shape = BatchShape(num_jobs=jobs, num_tokens=jobs, num_decodes=jobs, decode_context_tokens=jobs * prompt)
    seconds = 0.0
    for _ in range(output - 1):
        shape = shape.grown()
        seconds += steps.step_s(shape)
    return seconds


# ---- instances and their queue -------------------------------------------------------------------------

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


@dataclass(slots=True)
class StaticResult:
    """The batches sent, and the output tokens computed: of answers, and after an answer's end.

    `out_of_memory` of the batches ran out of memory and lost their work, of which `out_of_memory_again` were halves of
    such batches.
    """

    batches: int = 0
    valid_tokens: int = 0
    invalid_tokens: int = 0
    out_of_memory: int = 0
    out_of_memory_again: int = 0


@dataclass(slots=True)
class _Instance:
    """One engine, and the batch that it serves since `started_s`; None while it is idle."""

    name: str
    clock: Clock
    batch: Batch | None = None
    started_s: float = 0.0


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
    cluster = _Cluster(requests, queue, system, on_record, max_output_tokens, estimate, seed)
    return cluster.run()


class _Cluster:
    """Adds each request to the queue on arrival, and gives every idle instance the batch that the queue chooses.

    An instance pads prompts to the longest of the batch and decodes until the longest answer is complete. Members that
    have finished go on producing useless tokens, and all come back together. When the batch outgrows the KV memory its
    work is lost, and the queue gets the members back. Source: Magnus section 2 (Hugging Face generate,
    FasterTransformer).

    Requests are read one ahead. Only the instances know true lengths.
    """

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        queue: BatchQueue,
        system: StaticSystem,
        on_record: Callable[[Record], None],
        max_output_tokens: int,
        estimate: Estimate,
        seed: int,
    ) -> None:
        self._loop = EventLoop()
        self._requests: Iterator[TraceRequest] = iter(requests)
        self._queue = queue
        self._capacity_tokens = system.kv_capacity_tokens
        self._instances = [
            _Instance(f"{number}", Clock(system.step, system.residuals, seed * system.instances + number))
            for number in range(system.instances)
        ]
        self._on_record = on_record
        self._limit = max_output_tokens
        self._estimate = estimate
        self._output_tokens: dict[str, int] = {}
        self._dispatch_planned = False
        self._result = StaticResult()

    def run(self) -> StaticResult:
        """Serve all requests to their end. Raises SimulationError if some are left."""
        self._await_next()
        self._loop.run()
        if self._output_tokens:
            raise SimulationError(
                f"{len(self._output_tokens)} requests were never served, among them {min(self._output_tokens)}"
            )
        return self._result

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
        for instance in self._instances:
            if instance.batch is None:
                batch = self._queue.next_batch(self._loop.now_s)
                if batch is None:
                    return
                self._serve(instance, batch)

    def _serve(self, instance: _Instance, batch: Batch) -> None:
        """Start a batch now on an idle instance. O(longest answer)."""
        instance.batch, instance.started_s = batch, self._loop.now_s
        self._result.batches += 1
        size = len(batch.jobs)
        prompt = max(job.num_prompt_tokens for job in batch.jobs)
        longest = max(self._output_tokens[job.id] for job in batch.jobs)
        fitting = self._capacity_tokens // size - prompt
        reached = min(longest, max(fitting, 1))
        first_token_s = instance.started_s + prefill_s(instance.clock, size, prompt)
        end_s = first_token_s + decode_s(instance.clock, size, prompt, reached)
        for job in batch.jobs:
            if job.first_scheduled_s is None:
                job.first_scheduled_s = instance.started_s
        if fitting < longest:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._run_out(instance, batch))
        else:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._return(instance, batch, longest, first_token_s))

    def _return(self, instance: _Instance, batch: Batch, longest: int, first_token_s: float) -> None:
        """All members come back, with the answers that each asked for."""
        instance.batch = None
        for job in batch.jobs:
            output = self._output_tokens.pop(job.id)
            self._result.valid_tokens += output
            self._result.invalid_tokens += longest - output
            job.num_output_tokens, job.first_token_s, job.state = output, first_token_s, JobState.ENDED
            record = record_of(job, Outcome.FINISHED, self._loop.now_s)
            record.instance = instance.name
            self._on_record(record)
        self._plan_dispatch()
        self._queue.finished(batch, output_tokens=longest, seconds=self._loop.now_s - instance.started_s)

    def _run_out(self, instance: _Instance, batch: Batch) -> None:
        """The batch's work is lost: its members wait again in halves; a lone one fails."""
        instance.batch = None
        self._result.out_of_memory += 1
        self._result.out_of_memory_again += batch.sealed
        for job in batch.jobs:
            job.num_preemptions += 1
        for job in self._queue.split(batch):
            del self._output_tokens[job.id]
            job.state = JobState.ENDED
            record = record_of(job, Outcome.FAILED, self._loop.now_s)
            record.instance, record.error = instance.name, TOO_LARGE
            self._on_record(record)
        self._plan_dispatch()
