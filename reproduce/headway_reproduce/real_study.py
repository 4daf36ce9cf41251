"""What is measured on this machine's own engine: once, kept in a file, and a paper's policies one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from headway.engine.host_kv import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import VLLM_COMES_BY
from headway.json_file import read_json, write_json
from headway.lab.kept_runs import release
from headway.lab.papers import PaperRequest, Tell
from headway.lab.real_engine import run_real
from headway.results import Summary, summarize
from headway.results.study import StudyPart, StudyTable, Value
from headway.statistics import mean_of_all
from headway.traces import TraceRequest
from headway_reproduce.ablations import preset_and_parts
from headway_reproduce.mid_model import ensure_mid_model
from headway_reproduce.study import ratio

FILE = "real-engine.json"

MODEL = "made, 46 million parameters"
"""What all of them are served with; the papers' models play no part."""

# ---- measured once -------------------------------------------------------------------------------------

NO_VLLM = "unknown"
"""What `vllm_version` says where there is none."""


class MeasuredOnce(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, with the releases of Headway and vLLM that it was measured with: those that run."""

    headway: str = msgspec.field(default_factory=release)
    vllm: str = msgspec.field(default_factory=vllm_version)

    def is_current(self) -> bool:
        """Whether the same releases run here; where vLLM does not, and nothing can be measured anew, Headway's."""
        return self.headway == release() and vllm_version() in (self.vllm, NO_VLLM)


MeasuredT = TypeVar("MeasuredT", bound=MeasuredOnce)


def read_current(path: Path, kind: type[MeasuredT]) -> MeasuredT | None:
    """What a file keeps; None if there is none, or of another release, whose figures may differ.

    Raises RecordError as `read_json`.
    """
    found = read_json(path, kind)
    return found if found is not None and found.is_current() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RealMeasurement(Generic[MeasuredT]):
    """A measurement that `--quick` leaves out, kept in `file`; it takes `seconds` and the modules `needed`."""

    file: str
    kind: type[MeasuredT]
    needed: Sequence[str]
    seconds: float
    measure: Callable[[Tell], MeasuredT]

    def missing(self) -> list[str]:
        """The modules that are needed and not installed."""
        return [module for module in self.needed if find_spec(module) is None]

    def more_seconds(self, request: PaperRequest) -> float:
        """About how long `found` will take. Raises RecordError as it does."""
        if request.quick or read_current(request.root / self.file, self.kind) or self.missing():
            return 0.0
        return self.seconds

    def found(self, request: PaperRequest, tell: Tell) -> MeasuredT | None:
        """What the folder keeps of these releases, else measured now and kept; None if left out or impossible.

        Raises RecordError if what is kept cannot be read, and what measuring raises.
        """
        if request.quick:
            return None
        path = request.root / self.file
        kept = read_current(path, self.kind)
        if kept is not None:
            return kept
        if self.missing():
            return None
        found = self.measure(tell)
        write_json(path, found)
        return found


# ---- a paper's policies --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSizes:
    """The engine's sizes; blocks are of the CPU backend's length. `batch_width` None: all residents run."""

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
        host_kv = HostKv(blocks=self.host_blocks)
        preset, parts = preset_and_parts(policy)
        return EngineSettings(policy=preset, batch_width=self.batch_width, host_kv=host_kv, **parts.given())


@dataclass(frozen=True, slots=True)
class RealColumn:
    """What a table shows of a summary key; with `over`, also over the first policy's."""

    key: str
    heading: str
    over: bool = False


class RealResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's rounds."""

    policy: str
    summaries: tuple[Summary, ...]

    def mean(self, key: str) -> float | None:
        """The mean over the rounds of a summary key; None where one has no such value."""
        return mean_of_all(getattr(summary, key) for summary in self.summaries)


class RealRuns(MeasuredOnce, frozen=True, kw_only=True):
    """What was measured, and on what."""

    requests: int
    results: tuple[RealResult, ...]
    hardware: str = msgspec.field(default_factory=lambda: f"{machine_name()}, vLLM {vllm_version()}")


def in_rounds(
    policies: Sequence[str], rounds: int, tell: Tell, serve: Callable[[str, int], Summary]
) -> tuple[RealResult, ...]:
    """Serve under one policy after another, `rounds` times, so that a slower hour of the machine hits all of them."""
    found: dict[str, list[Summary]] = {policy: [] for policy in policies}
    for number in range(rounds):
        for policy in policies:
            tell(f"real engine: {policy}, round {number + 1} of {rounds}")
            found[policy].append(serve(policy, number))
    return tuple(RealResult(policy=policy, summaries=tuple(summaries)) for policy, summaries in found.items())


@dataclass(frozen=True, kw_only=True)
class RealShown:
    """What tables say of real runs: the columns, what was served, what it is good for, and what answered."""

    columns: Sequence[RealColumn]
    what: str
    note: str
    model: str = MODEL


@dataclass(frozen=True, kw_only=True)
class RealPlan(RealShown):
    """What one paper runs: `requests` are drawn when they are needed, the first policy is what others are put over.

    Every policy is run `rounds` times. `seconds` is about how long all of it takes on two cores.
    """

    policies: Sequence[str]
    sizes: RealSizes
    requests: Callable[[], Sequence[TraceRequest]]
    seconds: float
    rounds: int = 2

    @property
    def measurement(self) -> RealMeasurement[RealRuns]:
        """The runs of this plan. Measuring raises ConfigError if the engine does not start."""
        return RealMeasurement(
            file=FILE, kind=RealRuns, needed=("vllm",), seconds=self.seconds, measure=self._measure
        )

    def _measure(self, tell: Tell) -> RealRuns:
        tell("real engine: starting vLLM")
        requests = self.requests()
        settings = self.sizes.settings(self.policies[0])
        engine = SteppedEngine(str(ensure_mid_model()), self.sizes.flags(), settings)
        try:
            return RealRuns(requests=len(requests), results=self.run(engine, requests, tell))
        finally:
            engine.close()

    def run(
        self, engine: SteppedEngine, requests: Sequence[TraceRequest], tell: Tell = lambda line: None
    ) -> tuple[RealResult, ...]:
        """Serve the same requests under each policy, on a running engine.

        The first requests are served once before, unrecorded, so that no policy pays for what happens only once.
        """
        run_real(engine, requests[: len(requests) // 10], self.sizes.settings(self.policies[0]))

        def serve(policy: str, seed: int) -> Summary:
            run = run_real(engine, requests, self.sizes.settings(policy), seed=seed)
            return summarize(run.records)

        return in_rounds(self.policies, self.rounds, tell, serve)


def real_part(runs: RealRuns | None, plan: RealShown) -> StudyPart:
    """The policies on this machine's engine, beside each other; or that they were not run, and why."""
    title = "The same policies on a real engine"
    if runs is not None:
        return StudyPart(title=title, tables=[_table(runs, plan)])
    needs = "" if find_spec("vllm") else f" vLLM is not installed: {VLLM_COMES_BY}."
    return StudyPart(title=title, text=[f"Not run: --quick leaves it out.{needs}"])


def _table(runs: RealRuns, plan: RealShown) -> StudyTable:
    base = runs.results[0]
    headings = ["policy"]
    rows: list[list[Value]] = [[result.policy] for result in runs.results]
    for column in plan.columns:
        headings += [column.heading, *([f"over {base.policy}"] if column.over else [])]
        for row, result in zip(rows, runs.results, strict=True):
            mine = result.mean(column.key)
            row += [mine, ratio(mine, base.mean(column.key))] if column.over else [mine]
    return StudyTable(
        name="real-engine",
        title=f"{runs.requests} {plan.what}, on a model of {plan.model}",
        measured_on=f"real engine, {runs.hardware}",
        headings=headings,
        rows=rows,
        note=f"Mean of {len(base.summaries)} rounds. {plan.note}",
    )
