"""A paper's policies on this machine's own engine, one after another: measured once, kept in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Protocol

import msgspec

from headway.engine.kv.host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.engine.vllm.stepped_engine import SteppedEngine
from headway.errors import VLLM_COMES_BY
from headway.json_file import write_json
from headway.lab.papers import Tell
from headway.lab.real_engine import run_real
from headway.results import Summary, summarize
from headway.results.study import StudyPart, StudyTable, Value
from headway.traces import TraceRequest
from headway_reproduce.measured_once import MeasuredOnce, read_current
from headway_reproduce.mid_model import ensure_mid_model

FILE = "real-engine.json"

MODEL = "made, 46 million parameters"
"""What all of them are served with; the papers' models play no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSizes:
    """The engine's sizes; blocks are of the CPU backend's length. `batch_width` None: whoever is resident runs."""

    blocks: int
    host_blocks: int
    block_tokens: int = 32
    seats: int = 64
    tokens_a_step: int = 2048
    batch_width: int | None = None

    def flags(self) -> tuple[str, ...]:
        """vLLM's own flags; its count of blocks includes the null block."""
        return (
            *("--block-size", str(self.block_tokens), "--num-gpu-blocks-override", str(self.blocks + 1)),
            *("--max-num-seqs", str(self.seats), "--max-num-batched-tokens", str(self.tokens_a_step)),
            *("--max-model-len", "2048", "--no-enable-prefix-caching", "--enforce-eager"),
        )

    def settings(self, policy: str) -> EngineSettings:
        """Headway's own."""
        return EngineSettings(
            policy=policy, batch_width=self.batch_width, host_kv=HostKv(blocks=self.host_blocks)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RealColumn:
    """What a table shows of a summary key; with `over`, also over the first policy's."""

    key: str
    heading: str
    over: bool = False


class RealShown(Protocol):
    """What tables say of real runs: of what, with which model, and what it is good for."""

    @property
    def columns(self) -> Sequence[RealColumn]:
        """What is shown of each policy."""
        ...

    @property
    def what(self) -> str:
        """What was served."""
        ...

    @property
    def note(self) -> str:
        """What it is good for."""
        ...

    @property
    def model(self) -> str:
        """What answered."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPlan:
    """What one paper runs: `requests` are drawn when they are needed, the first policy is what others are put over.

    Every policy is run `rounds` times, one after another, so that a slower hour of the machine hits all of them.
    `seconds` is about how long all of it takes on two cores; `note` says what it is good for.
    """

    policies: Sequence[str]
    sizes: RealSizes
    requests: Callable[[], Sequence[TraceRequest]]
    columns: Sequence[RealColumn]
    what: str
    note: str
    seconds: float
    rounds: int = 2
    model: str = MODEL


class RealResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's rounds."""

    policy: str
    summaries: tuple[Summary, ...]

    def mean(self, key: str) -> float | None:
        """The mean over the rounds of a summary key; None where one has no such value."""
        values = [getattr(summary, key) for summary in self.summaries]
        return None if None in values else fmean(values)


class RealRuns(MeasuredOnce, frozen=True, kw_only=True):
    """What was measured, and on what."""

    hardware: str
    requests: int
    results: tuple[RealResult, ...]


def run_real_policies(
    engine: SteppedEngine,
    requests: Sequence[TraceRequest],
    plan: RealPlan,
    tell: Tell = lambda line: None,
) -> tuple[RealResult, ...]:
    """Serve the same requests under one policy after another, `rounds` times, on a running engine.

    The first requests are served once before, unrecorded, so that nobody pays for what happens only once.
    """
    run_real(engine, requests[: len(requests) // 10], plan.sizes.settings(plan.policies[0]))
    found: dict[str, list[Summary]] = {policy: [] for policy in plan.policies}
    for number in range(plan.rounds):
        for policy in plan.policies:
            tell(f"real engine: {policy}, round {number + 1} of {plan.rounds}")
            run = run_real(engine, requests, plan.sizes.settings(policy), seed=number)
            found[policy].append(summarize(run.records))
    return tuple(RealResult(policy=policy, summaries=tuple(summaries)) for policy, summaries in found.items())


def real_runs(root: Path, plan: RealPlan, tell: Tell) -> RealRuns | None:
    """What the folder keeps of these releases, else measured now and kept; None without vLLM.

    Raises ConfigError if the engine does not start, RecordError if what is kept cannot be read.
    """
    path = root / FILE
    kept = read_current(path, RealRuns)
    if kept is not None:
        return kept
    if find_spec("vllm") is None:
        return None
    tell("real engine: starting vLLM")
    requests = plan.requests()
    engine = SteppedEngine(str(ensure_mid_model()), plan.sizes.flags(), plan.sizes.settings(plan.policies[0]))
    try:
        results = run_real_policies(engine, requests, plan, tell)
    finally:
        engine.close()
    return keep_runs(path, len(requests), results)


def keep_runs(path: Path, num_requests: int, results: tuple[RealResult, ...]) -> RealRuns:
    """Keep what was measured, with what it was measured on."""
    runs = RealRuns(
        hardware=f"{machine_name()}, vLLM {vllm_version()}", requests=num_requests, results=results
    )
    write_json(path, runs)
    return runs


def real_seconds(root: Path, plan: RealPlan) -> float:
    """About how long `real_runs` will take. Raises RecordError as it does."""
    return 0.0 if read_current(root / FILE, RealRuns) or find_spec("vllm") is None else plan.seconds


def real_part(runs: RealRuns | None, plan: RealShown) -> StudyPart:
    """The policies on this machine's engine, beside each other; or that they were not run, and why."""
    title = "The same policies on a real engine"
    if runs is not None:
        return StudyPart(title=title, tables=[_table(runs, plan)])
    needs = "" if find_spec("vllm") else f" vLLM is not installed: {VLLM_COMES_BY}."
    return StudyPart(title=title, text=[f"Not run: --quick leaves it out.{needs}"])


def real_data(runs: RealRuns | None, plan: RealShown) -> Mapping[str, object] | None:
    """What scripts read: policy -> means over the rounds; None where it was not run."""
    if runs is None:
        return None
    return {
        result.policy: {column.key: result.mean(column.key) for column in plan.columns}
        for result in runs.results
    }


def _table(runs: RealRuns, plan: RealShown) -> StudyTable:
    base = runs.results[0]
    headings = ["policy"]
    for column in plan.columns:
        headings += [column.heading, *([f"over {base.policy}"] if column.over else [])]
    return StudyTable(
        name="real-engine",
        title=f"{runs.requests} {plan.what}, on a model of {plan.model}",
        measured_on=f"real engine, {runs.hardware}",
        headings=headings,
        rows=[_row(result, base, plan.columns) for result in runs.results],
        note=f"Mean of {len(base.summaries)} rounds. {plan.note}",
    )


def _row(result: RealResult, base: RealResult, columns: Sequence[RealColumn]) -> list[Value]:
    row: list[Value] = [result.policy]
    for column in columns:
        mine, theirs = result.mean(column.key), base.mean(column.key)
        row.append(mine)
        if column.over:
            row.append(mine / theirs if mine is not None and theirs else None)
    return row
