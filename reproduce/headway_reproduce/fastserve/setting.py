"""FastServe's experiments: the workloads, the engines and the policies, fixed before the first run.

Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (arXiv 2305.05920, first version of
2023, and its later versions; NSDI 2026 with released code). What the papers leave open is marked "ours".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from headway.core.batch_shape import BatchShape
from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway.sim.limits import EngineLimits
from headway_reproduce.ablations import row_of
from headway_reproduce.study_runs import StudyRun

# ---- what the paper ran on -----------------------------------------------------------------------------

HARDWARE = "a100-40g"
"""A100 40 GB, eight in a node, NVLink between them."""

SIMULATED = "simulated, A100 40 GB"
"""The machine named in tables of simulated runs."""

GPUS_A_NODE, HOST_BYTES_A_NODE = 8, 1152e9
"""p4d.24xlarge; all of a node's memory can hold KV."""

BLOCK_TOKENS, TOKENS_A_STEP = 16, 2048
"""KV block size, and prompt tokens of one step. Source: the released code."""

BATCH, SLOTS = 16, 256
"""Jobs in a step of one pipeline stage (the released code), and jobs that may be resident at once (ours).

FasterTransformer has one batch in both stages, with as many jobs as the two batches of the others together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperMachine:
    """A model on one engine of `stages` pipeline stages of `tp` GPUs; `host_bytes` None is all of its nodes' memory."""

    title: str
    model: str
    tp: int = 1
    stages: int = 1
    host_bytes: float | None = None

    @property
    def gpus(self) -> int:
        """The number of GPUs of all stages."""
        return self.tp * self.stages

    def decode_step_s(self) -> float:
        """Seconds of a step that decodes one job with an empty context."""
        return self.iteration_s(1)

    def iteration_s(self, tokens: int, context_tokens: int = 0) -> float:
        """Seconds of a step in which one job computes this many tokens after a context of that many."""
        shape = BatchShape()
        shape.add(tokens, context_tokens)
        return _costs(self.model, self.tp, self.stages).step.step_s(shape)

    def limits(self, block_tokens: int = BLOCK_TOKENS) -> EngineLimits:
        """The engine's sizes, with KV in blocks of this many tokens."""
        costs = _costs(self.model, self.tp, self.stages)
        nodes = -(-self.gpus // GPUS_A_NODE)
        host_bytes = nodes * HOST_BYTES_A_NODE if self.host_bytes is None else self.host_bytes
        return EngineLimits(
            num_blocks=costs.kv_capacity_tokens // block_tokens,
            block_size=block_tokens,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=TOKENS_A_STEP,
            batch_width=BATCH,
            prefix_caching=False,
            asynchronous=False,
            pipeline_stages=self.stages,
            host_blocks=int(host_bytes // (block_tokens * costs.kv_bytes_per_token)),
        )


@cache
def _costs(model: str, tp: int, stages: int) -> Calibration:
    return calibration(HARDWARE, model_shape(model), tp, stages)


def two_stages(name: str, model: str, gpus: int) -> PaperMachine:
    """A model on this many GPUs, half of them in each of two pipeline stages, as in the paper's section 6.4."""
    return PaperMachine(title=f"{name}, {gpus} GPUs", model=model, tp=gpus // 2, stages=2)


CLUSTER = two_stages("GPT-175B", "openai/gpt-175b", 2 * GPUS_A_NODE)
"""End to end: 16 GPUs, two pipeline stages of eight."""
SCALED_MACHINES = (
    *(two_stages("OPT-66B", "facebook/opt-66b", gpus) for gpus in (8, 16)),
    *(two_stages("GPT-175B", "openai/gpt-175b", gpus) for gpus in (12, 16)),
)
"""Ours, since the text gives neither model nor counts: machines of two stages that hold a model and divide its
heads.
"""
SINGLE = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b")
"""The machine of the ablations."""
SMALL = PaperMachine(title="OPT-2.7B, 1 GPU", model="facebook/opt-2.7b")
"""The machine for the peak of KV."""
RELEASED = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b", host_bytes=56e9)
"""The released code's engine with its swap space, for the curve of latency per token."""

CONTEXT_TOKENS = 2048
"""The context of GPT-175B and OPT, which Orca reserves for every job, as "Orca (Max)" does in the vLLM paper."""
ORCA_PLACES = f"iteration-level:reserve_tokens={CONTEXT_TOKENS}"
ORCA_LIMITS = "iteration-level"
"""Orca with knowledge of the workload's longest answer, reserving no more than that: a variation."""

# ---- what is asked for ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Laws of prompts and answers in the form that `headway simulate --trace` takes, and the longest of each."""

    input: str
    output: str
    longest_input: int
    limit: int
    count: int

    @property
    def slot_tokens(self) -> int:
        """KV tokens of the longest possible job."""
        return self.longest_input + self.limit


JOBS, ABLATED_JOBS = 500, 1000
"""Jobs of an end-to-end run and of an ablation, each of which lasts to the last finish. Ours."""
THETAS = (0.7, 0.9, 1.1, 1.3, 1.5)
LONGEST = (512, 1024)
"""Longest lengths that the workloads are chosen from, with `THETAS`: 1,024 and 1,024 tokens fill the context."""
THETA, LONGEST_TOKENS = 0.7, 1024
"""Ours, since the paper gives neither: chosen by its own fixed points (`fixed_points.py`), not by any gain."""
ABLATED_THETA = 1.5
"""Theta of the ablations on one GPU, with the same longest length: chosen by the rate at which the paper's engine
is full there. Prompts must be long there too, since in the paper many outlast the quanta of the first levels.
"""


def zipf(
    theta: float, longest: int = LONGEST_TOKENS, count: int = JOBS, *, longest_input: int | None = None
) -> Lengths:
    """Prompts and answers by the same law, P(k) ~ k^-theta, up to the same length unless prompts have their own."""
    of_input = longest_input or longest
    return Lengths(
        input=f"zipf:theta={theta:g},max={of_input}",
        output=f"zipf:theta={theta:g},max={longest}",
        longest_input=of_input,
        limit=longest,
        count=count,
    )


SHAREGPT = Lengths(input="sharegpt-1024", output="sharegpt-1024", longest_input=1024, limit=2048, count=400)
"""First turns with a prompt of up to 1,024 tokens. Source: the released code, which drops longer ones, and pairs of
more than 2,048 together (one in a thousand here); it sends up to 400."""

CV, LOAD = 1.0, 1.1
"""The standard values while something else is varied; the load is a share of the baseline's capacity. It is above
the knee: in the paper CV and theta gain 1.9 and more everywhere, rates up to the knee nothing.
"""
LOW_LOAD = 0.9
"""A load below the knee, for varying CV there."""
SHAREGPT_RATES_RPS = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""From 1.5 on the notebook's rates; those below are ours."""
PEAK_RATE_RPS, PEAK_CV, PEAK_OUTPUT, PEAK_INPUT = 64.0, 4.0, 20, 512
"""The workload for the peak of KV. Source: the later version of the paper; the longest prompt is ours."""

# ---- compared systems ----------------------------------------------------------------------------------

ORCA, FASTER_TRANSFORMER, TODAY = "orca", "fastertransformer", "vllm"
"""The paper's baselines, and vLLM as it is now."""
FASTSERVE, ORACLE = "fastserve", "srpt-oracle"
"""FastServe as first published; and least remaining work first, with true answer lengths."""
NO_PREEMPT, PREEMPT = "mlfq-no-preempt", "mlfq-preempt"
"""Ablations of its scheduler: every job starts at the top; and iterations are killed when a quantum ends."""
DEFER, REACTIVE, RECOMPUTE = "defer", "reactive-swap", "recompute"
"""Ablations of its memory: newcomers wait; KV is swapped only when memory is full; KV is dropped."""
V3, FIXED_PRIORITY = "fastserve-v3", "fixed-priority"
"""FastServe with the constants of the later version; and a fixed priority by the prompt's length."""
FCFS, VLLM_V0 = "fastserve-fcfs", "vllm-v0"
"""Its engine first come, first served; and the vLLM of its time."""

SYSTEMS = (ORCA, FASTER_TRANSFORMER, TODAY, FASTSERVE, ORACLE)
SCHEDULERS = (FASTSERVE, NO_PREEMPT, PREEMPT)
OTHER_ORDERS = (FCFS, FIXED_PRIORITY, V3)
MEMORIES = (FASTSERVE, DEFER, REACTIVE, RECOMPUTE)
SCALED = (ORCA, FASTSERVE)
PER_TOKEN = (VLLM_V0, FCFS, FASTSERVE, TODAY)
PEAKS = (FCFS, FASTSERVE)

RUN_WHOEVER_IS_RESIDENT = (ORCA, FASTER_TRANSFORMER, TODAY)
"""Policies that fill a batch for each stage; the others choose by themselves among residents waiting for a step."""

PAPER_PER_TOKEN_S = {
    1.5: (0.035, 0.045, 0.045),
    2.0: (0.110, 0.091, 0.047),
    3.0: (0.972, 0.849, 0.063),
    4.0: (1.59, 1.459, 0.106),
    5.0: (None, None, 0.331),
}
"""Requests a second -> mean seconds per token of vLLM 0.6.1, FastServe-FCFS and FastServe (released notebook)."""


# ---- points --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FastServePoint:
    """One setting that policies are compared at; `rate_rps` 0 is all requests at once.

    `parts` replace the policies' own, `orca` replaces Orca's batching. KV is in blocks of `block_tokens`: slots, where
    the longest job fits one. Variations change the rest: one batch for all stages, the width of a batch (None: all
    residents run), that of FasterTransformer's (None: of all stages together), and the share of the device's blocks
    that exists. With `every_step` KV is counted in each step.
    """

    machine: PaperMachine
    lengths: Lengths
    cv: float = CV
    rate_rps: float = 0.0
    parts: Parts = OWN_PARTS
    orca: str = ORCA_PLACES
    block_tokens: int = BLOCK_TOKENS
    one_batch: bool = False
    batch: int | None = BATCH
    static_batch: int | None = None
    memory: float = 1.0
    every_step: bool = False

    def __str__(self) -> str:
        load = f"{self.rate_rps:.4g} req/s, CV {self.cv:g}" if self.rate_rps else "all at once"
        return f"{self.machine.title}, answers {self.lengths.output}, {load}"

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        lengths = self.lengths
        arrivals = f"gamma:rate={self.rate_rps:.4g},cv={self.cv:g}" if self.rate_rps else "at-once"
        return f"gen:{arrivals}/input={lengths.input}/output={lengths.output}/count={lengths.count}"

    def run(self, policy: str, seed: int) -> StudyRun:
        """The run of a policy at this setting."""
        limits = self.machine.limits(self.block_tokens)
        staged = limits.pipeline_stages > 1 and policy in RUN_WHOEVER_IS_RESIDENT
        width = self._static_width() if policy == FASTER_TRANSFORMER else self.batch
        changed = replace(limits, batch_width=width, num_blocks=int(self.memory * limits.num_blocks))
        return StudyRun(
            hardware=HARDWARE,
            model=self.machine.model,
            tp=self.machine.tp,
            trace=self.trace(),
            policy=policy,
            parts=replace(self.parts, batching=self.orca) if policy == ORCA else self.parts,
            seed=seed,
            max_output_tokens=self.lengths.limit,
            limits=changed,
            micro_batches=staged and not self.one_batch,
            every_step=self.every_step,
        )

    def _static_width(self) -> int | None:
        """The number of jobs in a batch of FasterTransformer."""
        if self.static_batch is not None or self.batch is None:
            return self.static_batch
        return self.batch * self.machine.stages


class CapacityPoint(NamedTuple):
    """A machine and the lengths it serves, whose capacity the loads there are shares of, and whether KV is in slots."""

    machine: PaperMachine
    lengths: Lengths
    baseline: str
    in_slots: bool = False

    def at_once(self) -> FastServePoint:
        """The point with all requests at 0 s."""
        return self.at(0.0)

    def at(self, rate_rps: float, cv: float = CV) -> FastServePoint:
        """The point with arrivals at a rate."""
        return FastServePoint(
            machine=self.machine,
            lengths=self.lengths,
            cv=cv,
            rate_rps=rate_rps,
            block_tokens=self.lengths.slot_tokens if self.in_slots else BLOCK_TOKENS,
        )

    def with_theta(self, theta: float) -> CapacityPoint:
        """The same with lengths of another skew, up to the same longest."""
        longest, count, of_input = self.lengths.limit, self.lengths.count, self.lengths.longest_input
        return self._replace(lengths=zipf(theta, longest, count, longest_input=of_input))


END_TO_END = CapacityPoint(CLUSTER, zipf(THETA), ORCA)


ABLATED = CapacityPoint(SINGLE, zipf(ABLATED_THETA, count=ABLATED_JOBS), FCFS)
PEAK = CapacityPoint(
    SMALL, zipf(THETA, PEAK_OUTPUT, ABLATED_JOBS, longest_input=PEAK_INPUT), FCFS, in_slots=True
)
"""KV in slots of the longest job, so that jobs are counted, as the paper does: its engine has no paging."""

Capacity = Callable[[CapacityPoint], float]
"""The throughput of a place's baseline, with all requests at once."""


def loaded(place: CapacityPoint, load: float, capacity: Capacity, *, cv: float = CV) -> FastServePoint:
    """The point with arrivals at a share of a place's capacity."""
    return place.at(load * capacity(place), cv)


def with_quantum(point: FastServePoint, policy: str, quantum: float) -> FastServePoint:
    """A point at which the policy's first quantum is this many decode steps."""
    return with_order(point, policy, f"quantum_s={quantum * point.machine.decode_step_s():.4g}")


def with_order(point: FastServePoint, policy: str, setting: str) -> FastServePoint:
    """A point with another value for a setting of the policy's order."""
    row = row_of(policy)
    order = f"{row.order}{',' if ':' in row.order else ':'}{setting}"
    return replace(point, parts=replace(OWN_PARTS, order=order))
