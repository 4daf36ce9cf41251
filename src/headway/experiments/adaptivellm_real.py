"""AdaptiveLLM on this machine's own engine: the same kind of workload, fewer requests, a made model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import msgspec

from headway.engine.kv_host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import RecordError
from headway.experiments.adaptivellm import (
    BASELINE,
    BLOCK_TOKENS,
    GPU_BLOCKS,
    GROUPS,
    HOST_BLOCKS,
    REAL,
    Point,
)
from headway.experiments.mid_model import ensure_mid_model
from headway.experiments.paper import Tell
from headway.experiments.real_engine import run_real
from headway.experiments.stream import Stream
from headway.results import Summary, summarize
from headway.results.study import StudyPart, StudyTable, Value
from headway.traces import TraceRequest, take
from headway.whole_file import write_whole

FILE = "real-engine.json"

MODEL = "made, 46 million parameters"
POINT = Point(group=GROUPS[0])
"""Whose requests are served; the paper's model plays no part."""
REQUESTS = 200
DATA_KEYS = (
    "throughput_rps",
    "weighted_turnaround",
    "preemptions",
    "swapped_out_blocks",
    "recomputed_tokens",
)
"""Summary keys that tables and scripts get."""
SECONDS = 140.0
"""About how long all of it takes on two cores."""
ROUNDS = 2
"""Every policy so often, one after another, so that a slower hour of the machine hits all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSizes:
    """The engine's sizes: as many KV tokens on the device as in the paper, in the CPU backend's larger blocks."""

    block_tokens: int = 32
    seats: int = 64
    tokens_a_step: int = 2048

    @property
    def blocks(self) -> int:
        """KV blocks on the device."""
        return GPU_BLOCKS * BLOCK_TOKENS // self.block_tokens

    @property
    def host_blocks(self) -> int:
        """KV blocks on the host."""
        return HOST_BLOCKS * BLOCK_TOKENS // self.block_tokens

    def flags(self) -> tuple[str, ...]:
        """vLLM's own flags; its count of blocks includes the null block."""
        return (
            *("--block-size", str(self.block_tokens), "--num-gpu-blocks-override", str(self.blocks + 1)),
            *("--max-num-seqs", str(self.seats), "--max-num-batched-tokens", str(self.tokens_a_step)),
            *("--max-model-len", "2048", "--no-enable-prefix-caching", "--enforce-eager"),
        )

    def settings(self, policy: str) -> EngineSettings:
        """Headway's own."""
        return EngineSettings(policy=policy, host_kv=HostKv(blocks=self.host_blocks))


class RealResult(msgspec.Struct, frozen=True, kw_only=True):
    """One policy's rounds."""

    policy: str
    summaries: tuple[Summary, ...]

    def mean(self, key: str) -> float | None:
        """The mean over the rounds of a summary key; None where one has no such value."""
        values = [getattr(summary, key) for summary in self.summaries]
        return None if None in values else fmean(values)


class RealRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and on what."""

    hardware: str
    requests: int
    results: tuple[RealResult, ...]


def real_requests(count: int = REQUESTS) -> list[TraceRequest]:
    """The first requests of the group's own draw, all at 0 s, each declaring the limit of its output."""
    return take(Stream(POINT.trace()).requests(0), count)


def run_real_policies(
    engine: SteppedEngine,
    requests: Sequence[TraceRequest],
    *,
    policies: Sequence[str] = REAL,
    sizes: RealSizes,
    rounds: int = ROUNDS,
    tell: Tell = lambda line: None,
) -> tuple[RealResult, ...]:
    """Serve the same requests under one policy after another, `rounds` times, on a running engine.

    The first requests are served once before, unrecorded, so that nobody pays for what happens only once.
    """
    run_real(engine, requests[: len(requests) // 10], sizes.settings(policies[0]))
    found: dict[str, list[Summary]] = {policy: [] for policy in policies}
    for number in range(rounds):
        for policy in policies:
            tell(f"real engine: {policy}, round {number + 1} of {rounds}")
            run = run_real(engine, requests, sizes.settings(policy), seed=number)
            found[policy].append(summarize(run.records))
    return tuple(RealResult(policy=policy, summaries=tuple(summaries)) for policy, summaries in found.items())


def real_runs(root: Path, tell: Tell, sizes: RealSizes | None = None) -> RealRuns | None:
    """What the folder keeps, else measured now and kept; None without vLLM.

    Raises ConfigError if the engine does not start.
    """
    path = root / FILE
    if path.exists():
        try:
            return msgspec.json.decode(path.read_bytes(), type=RealRuns)
        except msgspec.DecodeError as error:
            raise RecordError(f"{path}: {error}") from error
    if find_spec("vllm") is None:
        return None
    sizes = sizes or RealSizes()
    tell("real engine: starting vLLM")
    engine = SteppedEngine(str(ensure_mid_model()), sizes.flags(), sizes.settings(BASELINE))
    try:
        results = run_real_policies(engine, real_requests(), sizes=sizes, tell=tell)
    finally:
        engine.close()
    runs = RealRuns(hardware=f"{machine_name()}, vLLM {vllm_version()}", requests=REQUESTS, results=results)
    write_whole(path, msgspec.json.format(msgspec.json.encode(runs), indent=2) + b"\n")
    return runs


def real_seconds(root: Path) -> float:
    """About how long `real_runs` will take."""
    return 0.0 if (root / FILE).exists() or find_spec("vllm") is None else SECONDS


def real_part(runs: RealRuns | None) -> StudyPart:
    """The policies on this machine's engine, beside each other; or that they were not run, and why."""
    title = "The same policies on a real engine"
    if runs is not None:
        return StudyPart(title=title, tables=[real_table(runs)])
    needs = "" if find_spec("vllm") else " vLLM is not installed: pip install 'headway[cpu]'."
    return StudyPart(title=title, text=[f"Not run: --quick leaves it out.{needs}"])


def real_data(runs: RealRuns | None) -> dict[str, object] | None:
    """What scripts read: policy -> means over the rounds; None where it was not run."""
    if runs is None:
        return None
    return {result.policy: {key: result.mean(key) for key in DATA_KEYS} for result in runs.results}


def real_table(runs: RealRuns) -> StudyTable:
    """Throughput and turnaround of the policies, over that of the first."""
    base = runs.results[0]
    return StudyTable(
        name="real-engine",
        title=f"{runs.requests} requests of the chat groups, all at once, on a model of {MODEL}",
        measured_on=f"real engine, {runs.hardware}",
        headings=[
            "policy",
            "req/s",
            f"over {base.policy}",
            "weighted turnaround",
            "preemptions",
            "blocks out",
            "recomputed tokens",
        ],
        rows=[_row(result, base) for result in runs.results],
        note=f"Mean of {len(base.summaries)} rounds. A CPU's copies and products are not a GPU's: this shows the same "
        "policies on the real engine, not the paper's gains.",
    )


def _row(result: RealResult, base: RealResult) -> list[Value]:
    mine, theirs = result.mean("throughput_rps"), base.mean("throughput_rps")
    gain = mine / theirs if mine is not None and theirs else None
    return [
        result.policy,
        mine,
        gain,
        *(result.mean(key) for key in DATA_KEYS[1:]),
    ]
