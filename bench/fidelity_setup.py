"""What `bench/fidelity.py` compares: policies, loads, streams, and the engine they run on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from bench.preset_kinds import pauses
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.kv.host import HostKv
from headway.engine.vllm.stepped_engine import EngineSizes
from headway.lab.predictor_choice import length_source
from headway.policies.presets import build_policy, find_preset
from headway.sim.length_source import LengthSource
from headway.traces import LogNormal, Poisson, TraceRequest, generate

MODEL = "mid"
VLLM_FLAGS = (
    *("--max-num-seqs", "32", "--max-num-batched-tokens", "1024", "--block-size", "32"),
    "--enforce-eager",
)
INPUTS = LogNormal.fitted(256.0, 0.9, 1024)
OUTPUTS = LogNormal.fitted(48.0, 0.8, 192)
MAX_OUTPUT_TOKENS = 192
"""What every request declares, and policies see."""
PREDICTOR = "noisy-oracle:tau=0.8"
OTHER_STREAM = 1000
"""From the seed of a stream to that of the next."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: policies, loads, and the engine's memory. None for KV blocks: as many as vLLM takes.

    `narrow` is the batch width of those that pause; the others run as many as there are slots. `slo` are the
    targets of every request.
    """

    policies: tuple[str, ...]
    loads: tuple[float, ...]
    num_blocks: int | None = None
    host_kv: HostKv | None = None
    max_model_len: int = 2048
    narrow: int | None = None
    slo: Slo = NO_TARGETS

    def batch_width(self, policy: str) -> int | None:
        """How many a step runs under a policy; None: all slots."""
        return self.narrow if pauses(find_preset(policy)) else None

    def cells(self) -> list[tuple[str, float]]:
        """Every policy and load."""
        return [(policy, load) for policy in self.policies for load in self.loads]

    def vllm_flags(self) -> tuple[str, ...]:
        """The engine's flags; vLLM's own count has its null block too."""
        flags = (*VLLM_FLAGS, "--max-model-len", str(self.max_model_len))
        if self.num_blocks is None:
            return flags
        return (*flags, "--num-gpu-blocks-override", str(self.num_blocks + 1))


PLAIN = Setup(policies=("vllm", "sarathi", "sjf", "hrrn"), loads=(0.5, 0.8, 1.1))
SWAPS = Setup(
    policies=(
        *("adaptivellm", "adaptivellm-plus", "vllm-s", "vllm-s-fallback"),
        *("adaptivellm-memory", "adaptivellm-fairness", "adaptivellm-predict-only"),
        *("fastserve", "fastserve-v3", "fastserve-artifact", "fastserve-fcfs", "fixed-priority"),
        *("mlfq-no-preempt", "defer", "reactive-swap", "recompute", "predicted", "headway"),
    ),
    loads=(0.9,),
    num_blocks=48,
    max_model_len=1280,
    host_kv=HostKv(blocks=96, bytes_per_s=200e6),
    narrow=3,
)
"""Room for four or five requests; at 200 MB/s some requests are swapped more cheaply and some computed again."""
TARGETED = Setup(policies=("ascendra-lp", "ascendra-hp"), loads=(0.9, 1.3), slo=Slo(ttft_s=2.0, tbt_s=0.25))
"""At 1.3 a queue of more than the target builds up within ten seconds."""


def stream(rate_rps: float, seconds: float, seed: int, slo: Slo = NO_TARGETS) -> list[TraceRequest]:
    """Poisson arrivals for about so many seconds, with the lengths above and these targets."""
    requests = generate(Poisson(rate_rps), INPUTS, OUTPUTS, max(8, round(rate_rps * seconds)), seed)
    return [replace(request, max_output_tokens=MAX_OUTPUT_TOKENS, slo=slo) for request in requests]


def predictions(policy: str, trace: Sequence[TraceRequest]) -> LengthSource | None:
    """Who says how long answers will be, to a policy that goes by it: the same for every run of a stream."""
    return length_source(PREDICTOR, trace) if build_policy(find_preset(policy)).uses_predictions else None


@dataclass(frozen=True, slots=True)
class RealRun:
    """One stream of a cell, served for real."""

    policy: str
    load: float
    number: int

    @property
    def name(self) -> str:
        """What its files are called by."""
        return f"{self.policy}-{self.load:g}-real-{self.number}"

    @property
    def simulated_name(self) -> str:
        """What the file of the same stream, simulated, is called by."""
        return f"{self.policy}-{self.load:g}-simulated-{self.number}"


class RealSide(msgspec.Struct, frozen=True, kw_only=True):
    """What the simulated side needs to know of the real one."""

    setup: Setup
    sizes: EngineSizes
    capacity_rps: float
    run_s: float
    runs: int

    def trace(self, run: RealRun) -> list[TraceRequest]:
        """The stream of a run: the same for every policy at its load."""
        seed = round(100 * run.load) + OTHER_STREAM * run.number
        return stream(run.load * self.capacity_rps, self.run_s, seed, self.setup.slo)
