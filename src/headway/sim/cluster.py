"""Instances behind a router, and the requests that come to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from headway.core.job import Job
from headway.core.record import Outcome, Record
from headway.errors import SimulationError, TraceError
from headway.routing import Router
from headway.sim.arriving import job_of
from headway.sim.instance import Instance
from headway.sim.length_source import LengthSource
from headway.sim.loop import EventLoop, Phase
from headway.sim.prefix import shared_keys
from headway.traces import TraceRequest


class Cluster:
    """Feeds a trace, one request ahead, to the instance the router names.

    `default_max_output_tokens` is the limit policies see for requests that declare none. Requests are read
    as they are due, so memory grows with the live ones alone. `lengths` is asked once for each request as it
    arrives, before it is routed, and told of each answer that finished, wherever it ran.
    """

    def __init__(
        self,
        loop: EventLoop,
        router: Router,
        *,
        default_max_output_tokens: int,
        lengths: LengthSource | None = None,
    ) -> None:
        self.next_arrival_s = inf
        self.arrived = 0
        self._loop = loop
        self._router = router
        self._limit = default_max_output_tokens
        self._lengths = lengths
        self._predicted: dict[str, TraceRequest] = {}
        self._instances: dict[str, Instance] = {}
        self._names: list[str] = []
        self._placed: dict[str, Job] = {}
        self._requests: Iterator[TraceRequest] = iter(())

    def add(self, instance: Instance) -> None:
        """Put an instance behind the router, under its engine's name."""
        self._instances[instance.engine.name] = instance
        self._names.append(instance.engine.name)

    def ended(self, record: Record) -> None:
        """A request has ended at its instance."""
        job = self._placed.pop(record.id)
        self._router.end(job)
        if self._lengths is not None:
            request = self._predicted.pop(record.id)
            if record.outcome is Outcome.FINISHED:
                self._lengths.finished(request, job.max_output_tokens)

    def run(self, requests: Iterable[TraceRequest]) -> None:
        """Serve all requests (in order of arrival) to their end.

        Raises SimulationError if some are left lying with nothing to come.
        """
        self._requests = iter(requests)
        self._await_next()
        self._loop.run()
        if self._placed:
            left = ", ".join(sorted(self._placed)[:5])
            raise SimulationError(f"{len(self._placed)} requests were never served, among them {left}")

    def _await_next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self.next_arrival_s = inf
            return
        self.next_arrival_s = request.arrival_s
        self._loop.at(request.arrival_s, Phase.ARRIVAL, lambda: self._arrive(request))

    def _arrive(self, request: TraceRequest) -> None:
        # The next one first: a same-time arrival must be known before any step is planned.
        self._await_next()
        self.arrived += 1
        job = self._job(request)
        name = self._router.route(job, self._names)
        self._placed[job.id] = job
        instance = self._instances[name]
        instance.arrive(job, request.output_tokens, shared_keys(request, instance.engine.limits.block_size))

    def _job(self, request: TraceRequest) -> Job:
        """The job a policy sees, with what is predicted of it."""
        if request.id in self._placed:
            raise TraceError(f"id {request.id!r} is used by two live requests; accepted: one each")
        job = job_of(request, self._limit)
        if self._lengths is not None:
            self._predicted[request.id] = request
            job.predicted_length = self._lengths.predict(request, job.max_output_tokens)
        return job
