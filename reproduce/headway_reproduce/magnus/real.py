"""Magnus against vs and vLLM on this machine's own engine: a real server, whole batches sent to it, real lengths."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

from headway.core.length_estimate import LengthEstimate
from headway.engine.demo_model import DEMO
from headway.engine.servers.server_command import server_command
from headway.engine.settings import EngineSettings
from headway.errors import SimulationError
from headway.gateway.request.central_queue import CentralBatching
from headway.lab.batched_replay import replay_batches
from headway.lab.papers import Tell
from headway.lab.server import free_port, vllm_server
from headway.loadgen import ReplayOptions, replay
from headway.predict.lengths.facts import LengthPredictor, RequestFacts, SharedPrefix
from headway.predict.steps.kept_batch_times import BatchTimes
from headway.results import Summary, summarize
from headway.routing.magnus import BatchSettings
from headway.traces import TraceRequest
from headway.traces.demo_tasks import prompt_text
from headway_reproduce.magnus.data import LONGEST_OUTPUT, DataSource, TaskRow, load_tasks
from headway_reproduce.magnus.features import MagnusFeatures
from headway_reproduce.magnus.forest import LengthForest
from headway_reproduce.magnus.setting import MAGNUS, TODAY, VS, VS_BATCH
from headway_reproduce.real_study import (
    RealColumn,
    RealMeasurement,
    RealResult,
    RealRuns,
    RealShown,
    in_rounds,
)

POLICIES = (VS, MAGNUS, TODAY)
ROUNDS = 2
REQUESTS_A_TASK = 30
WARM_UP = 8
SERVER_FLAGS = ("--max-num-seqs", "256", "--no-enable-prefix-caching")


REAL_SHOWN = RealShown(
    columns=(
        RealColumn("throughput_rps", "req/s", over=True),
        RealColumn("mean_jct_s", "mean response time, s", over=True),
        RealColumn("p99_jct_s", "99th percentile, s", over=True),
        RealColumn("output_tps", "valid tokens/s"),
    ),
    what="of the demo model's tasks, all at once",
    note="Over vs less than 1 is shorter, or less. One server; the model ends its answers itself. vLLM runs a batch as "
    "its requests come, without padding, and returns each answer when it is complete, so what is left of a batch's "
    "cost is the wait for its longest. vllm is sent every request when it comes.",
    model="the demo, which was trained to do these tasks",
)


def _measure(tell: Tell) -> RealRuns:
    """Raises UpstreamError if the server does not start."""
    training, requests = real_rows()
    address = ("127.0.0.1", free_port())
    command = server_command(DEMO, EngineSettings(policy=TODAY), address, SERVER_FLAGS)
    tell("real engine: starting vLLM")
    with (
        TemporaryDirectory() as folder,
        vllm_server(command, address, Path(folder) / "log", name="real engine") as server,
    ):
        results = serve_policies(server.url, training, requests, tell)
    return RealRuns(requests=len(requests), results=results)


MEASUREMENT = RealMeasurement(
    file="magnus-real-engine.json",
    kind=RealRuns,
    needed=("vllm", "lightgbm", "aiohttp"),
    seconds=150.0,
    measure=_measure,
)


def real_rows(count: int = REQUESTS_A_TASK) -> tuple[list[TaskRow], list[TraceRequest]]:
    """The demo's training rows, and as many requests of each of its tasks, in random order, all at 0 s."""
    tasks = load_tasks(DataSource())
    rows = [row for task in tasks for row in task.workload[:count]]
    Random("magnus on a real engine").shuffle(rows)
    training = [row for task in tasks for row in task.training]
    return training, [_request(f"{number}", row) for number, row in enumerate(rows)]


def _request(name: str, row: TaskRow) -> TraceRequest:
    return TraceRequest(
        name,
        0.0,
        row.prompt_tokens,
        row.output_tokens,
        max_output_tokens=LONGEST_OUTPUT,
        tenant=row.task,
        prompt=prompt_text(row.instruction, row.user_input),
    )


def serve_policies(
    url: str,
    training: Sequence[TaskRow],
    requests: Sequence[TraceRequest],
    tell: Tell = lambda line: None,
    rounds: int = ROUNDS,
) -> tuple[RealResult, ...]:
    """The same requests under one policy after another, `rounds` times, on a running server.

    A few are served before, unrecorded. Raises SimulationError if a request does not finish.
    """
    options = ReplayOptions(url=url, own_stops=True)
    longest = max(request.input_tokens + request.output_tokens for request in requests)
    first = [replace(request, id=f"warm-up-{request.id}") for request in requests[:WARM_UP]]
    asyncio.run(replay(first, options))

    def serve(policy: str, number: int) -> Summary:
        return _served(policy, requests, training, options, VS_BATCH * longest)

    return in_rounds(POLICIES, rounds, tell, serve)


def _served(
    policy: str,
    requests: Sequence[TraceRequest],
    training: Sequence[TaskRow],
    options: ReplayOptions,
    kv_tokens: int,
) -> Summary:
    """One policy's round; memory is planned for 7 of the longest requests, as in the simulated part."""
    if policy == TODAY:
        report = asyncio.run(replay(requests, options))
    else:
        predictor = TaughtForest(training) if policy == MAGNUS else None
        settings = BatchSettings(capacity_tokens=kv_tokens, memory_confidence=0.5)
        batching = CentralBatching(
            row=policy, settings=settings, times=BatchTimes(time.monotonic), predictor=predictor
        )
        report = asyncio.run(replay_batches(requests, options, batching, (options.url,)))
    summary = summarize(report.records)
    if summary.finished < len(requests):
        raise SimulationError(f"{policy} finished {summary.finished} of {len(requests)} requests")
    return summary


def taught(training: Iterable[TaskRow]) -> Iterable[tuple[RequestFacts, int]]:
    """What the dispatcher would have known of each training row, and its answer's tokens."""
    prefixes = SharedPrefix()
    for row in training:
        instruction, user_input = prefixes.split(prompt_text(row.instruction, row.user_input))
        facts = row.facts()
        yield replace(facts, instruction=instruction, user_input=user_input), row.output_tokens


class TaughtForest(LengthPredictor):
    """The paper's forest, taught by the training rows. A round ends before a forest would be fitted anew."""

    def __init__(self, training: Iterable[TaskRow]) -> None:
        self._features = MagnusFeatures()
        facts, tokens = zip(*taught(training), strict=True)
        self._forest = LengthForest(self._features.rows(facts), np.array(tokens, dtype=np.float64))

    def predict(self, facts: RequestFacts) -> LengthEstimate:
        """The tokens that the forest says, without an interval."""
        tokens = float(round(self._forest.ask(self._features.rows((facts,)))[0]))
        return LengthEstimate(tokens, tokens, tokens)

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """Nothing is learned within a round."""
