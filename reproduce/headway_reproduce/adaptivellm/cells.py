"""AdaptiveLLM's experiments: the workload, the engine and the policies, fixed before the first run; and the list of
runs.

Source: Liang et al., "Inference Optimization for Large Models Based on Adaptive Tensor Swapping and Recomputation"
(2025), sections 4.1 to 4.6. What the paper leaves open is marked "ours".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.predict.steps.hardware import hardware
from headway.sim.limits import EngineLimits
from headway.traces import NAMED_LAWS
from headway_reproduce.ablations import row_of, with_setting
from headway_reproduce.adaptivellm.worth import WorthPoint, worth_points, worth_runs
from headway_reproduce.study_runs import StudyRun

# ---- what the paper ran on (section 4.1) ---------------------------------------------------------------

HARDWARE = "a800-80g-pcie"
"""One A800 80 GB PCIe for each model."""

SIMULATED = "simulated, A800 PCIe 80 GB"
"""The machine named in tables of simulated runs."""

MODELS = {
    "OPT-13B": "facebook/opt-13b",
    "OPT-30B": "facebook/opt-30b",
    "Llama-13B": "huggyllama/llama-13b",
    "Llama-32.5B": "huggyllama/llama-30b",
}
"""The paper's name -> hub name; fp16."""

DATA_SETS = {
    "Chatbot": "adaptivellm-chatbot",
    "Alpaca": "adaptivellm-alpaca",
    "Summary": "adaptivellm-summary",
}
"""The paper's name -> length laws of `traces.catalogue`: the published mean prompts (17.02, 19.66 and 340.48
tokens); the laws of outputs are ours, the paper gives none."""

GPU_BLOCKS, HOST_BLOCKS, BLOCK_TOKENS = 128, 64, 16
"""KV blocks as the paper limits them; 16 tokens is vLLM 0.2.5's default."""

TOKENS_A_STEP = 2048
"""Prompt tokens of one step. Source: vLLM 0.2.5, SchedulerConfig: the longer of 2048 and the model's context."""

WATERMARK_BLOCKS = 1
"""Blocks left free when a request is admitted: 1 % of them. Source: vLLM 0.2.5, BlockSpaceManager."""

LINK_BYTES_PER_S = 12e9
"""Copies each way (ours). vLLM 0.2.5 copies a block of one layer at a time, 160 KiB of OPT-13B's keys, which does not
fill a PCIe 4.0 link of 25.6 GB/s; `WHOLE_LINK` tells what the whole link would change."""

PADDING, FREE_BLOCK_EACH = "max_padding_tokens=256", "free_block_each=true"
"""Settings that make a batching and an eviction those of vLLM 0.2.5, on which the paper builds all three systems.
Source: vLLM 0.2.5, SchedulerConfig.max_paddings, Scheduler._schedule, BlockSpaceManager.can_append_slot."""

REQUESTS = 1000
"""Number of requests drawn for each group anew, as in section 4.2, all of them at 0 s (Algorithm 2, line 1)."""

# ---- what is varied ------------------------------------------------------------------------------------

OUTPUT_LIMITS = (16, 32, 64, 128, 256)
"""Longest outputs, in tokens. The paper's axis (Fig. 3) shows 64 and 256; the others are ours."""

TABLE_LIMIT = 64
"""The longest output of Table 3; ours for the experiments whose limit the paper does not give."""

SEATS = 256
"""Batch cap of the throughput runs: vLLM's default."""

BATCH_CAPS = (8, 16, 32, 64, 128)
"""Batch caps of the latency runs (Fig. 4). The paper's axis shows 64 and 128; the others are ours."""

PAPER_CAPS = (64, 128)
"""The batch caps that the paper names (section 4.4)."""

SEEDS = 3
"""Seeds of Table 3; everything else, and all of `--quick`, has one."""

LARGE_HOST_BLOCKS = 10_000
"""A host memory that is never full (ours)."""

# ---- what is compared ----------------------------------------------------------------------------------

BASELINE, SWAP, SWAP_UNBOUND = "vllm-0.2.5", "vllm-s", "vllm-s-fallback"
"""The paper's vLLM, which recomputes always; its vLLM_s, which swaps always; and that without a limit on starts."""
BY_PROMPT, BY_ALL = "adaptivellm-prompt", "adaptivellm"
"""AdaptiveLLM by both readings of "sequence length" in its priority: the prompt alone, or prompt and output so far."""
MEMORY_ONLY, PREDICT_ONLY = "adaptivellm-memory", "adaptivellm-predict-only"
"""Its choice of swap or recompute in order of arrival, which section 4.3 tests by the paper's own outline; and
`BASELINE` that predicts both costs and recomputes all the same (section 4.6)."""
TODAY, PLUS = "vllm", "adaptivellm-plus"
"""vLLM as it is now, and AdaptiveLLM with our improvements on it: neither pads prompts."""

READINGS = {"prompt": BY_PROMPT, "prompt + output": BY_ALL, "memory alone": MEMORY_ONLY}
"""What "AdaptiveLLM" may mean in section 4.3, as tables call it."""
ORDERS = {"prompt": BY_PROMPT, "prompt + output": BY_ALL}
"""The two of them with the paper's order of starts, which section 4.4 is about."""

MAIN = (BASELINE, SWAP, *READINGS.values(), PLUS, TODAY)
LATENCY = (BASELINE, SWAP, *ORDERS.values(), PLUS)
OVERHEAD = (BASELINE, PREDICT_ONLY, BY_PROMPT)


def parts_of(policy: str, *, padding: bool = True, free_block_each: bool = True) -> Parts:
    """A policy's parts with some or all rules of vLLM 0.2.5; today's policies are left as they are."""
    if policy in (TODAY, PLUS):
        return OWN_PARTS
    row = row_of("vllm-v0" if policy == BASELINE else policy)
    return Parts(
        batching=with_setting(row.batching, PADDING) if padding else row.batching,
        eviction=with_setting(row.eviction, FREE_BLOCK_EACH) if free_block_each else row.eviction,
    )


class ModelAndData(NamedTuple):
    """One of the twelve groups: a model and a data set, by the paper's names."""

    model: str
    data: str

    def __str__(self) -> str:
        return f"{self.model}/{self.data}"


GROUPS = tuple(ModelAndData(model, data) for model, data in product(MODELS, DATA_SETS))
QUICK_GROUPS = (ModelAndData("OPT-13B", "Chatbot"), ModelAndData("OPT-13B", "Summary"))
"""Short prompts and long ones; Alpaca's are much as Chatbot's."""

NATURAL, EXACT = "natural", "exact"
"""Outputs as long as their law says, up to the limit; the alternative, exactly the limit, tests that assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptivePoint:
    """One setting of one group that policies are compared at: all requests at once."""

    group: ModelAndData
    limit: int = TABLE_LIMIT
    lengths: str = NATURAL
    cap: int = SEATS
    host_blocks: int = HOST_BLOCKS
    copy_bytes_per_s: float | None = LINK_BYTES_PER_S
    padding: bool = True
    free_block_each: bool = True

    def __str__(self) -> str:
        return f"{self.group}, {self.lengths} outputs up to {self.limit}, batch cap {self.cap}"

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        law = DATA_SETS[self.group.data]
        output = law if self.lengths == NATURAL else f"constant:tokens={self.limit}"
        return f"gen:at-once/input={law}/output={output}/count={REQUESTS}/max_output={self.limit}"

    def run(self, policy: str, seed: int, *, every_step: bool = False) -> StudyRun:
        """The run of a policy at this setting; each group draws requests of its own."""
        return StudyRun(
            hardware=HARDWARE,
            model=MODELS[self.group.model],
            trace=self.trace(),
            policy=policy,
            parts=parts_of(policy, padding=self.padding, free_block_each=self.free_block_each),
            seed=seed * len(GROUPS) + GROUPS.index(self.group),
            max_output_tokens=self.limit,
            limits=EngineLimits(
                num_blocks=GPU_BLOCKS,
                host_blocks=self.host_blocks,
                block_size=BLOCK_TOKENS,
                max_num_seqs=self.cap,
                max_num_batched_tokens=TOKENS_A_STEP,
                watermark_blocks=WATERMARK_BLOCKS,
                prefix_caching=False,
            ),
            copy_bytes_per_s=self.copy_bytes_per_s,
            every_step=every_step,
        )


# ---- which of it is run --------------------------------------------------------------------------------

_STEPS = {"Chatbot": (34, 160), "Alpaca": (34, 160), "Summary": (190, 85)}
"""Data set -> steps for each token of the longest output, and the limit beyond which few outputs are longer."""
_STEP_S = 2e-4
"""Seconds that simulating a step takes, where every step is planned anew."""


class AdaptiveVariation(NamedTuple):
    """One thing changed (ours), for every system, to test a supposed reason or an assumption of ours."""

    name: str
    of: Callable[[AdaptivePoint], AdaptivePoint]


AS_IT_STANDS = AdaptiveVariation("as it stands", replace)
NO_PADDING = AdaptiveVariation("no padding", lambda point: replace(point, padding=False))
NO_FREE_BLOCK = AdaptiveVariation("no free block each", lambda point: replace(point, free_block_each=False))
WHOLE_LINK = AdaptiveVariation("copies at 25.6 GB/s", lambda point: replace(point, copy_bytes_per_s=None))
SLOW_LINK = AdaptiveVariation(
    "copies at 6 GB/s", lambda point: replace(point, copy_bytes_per_s=LINK_BYTES_PER_S / 2)
)
EXACT_LENGTHS = AdaptiveVariation(
    "all answers as long as the longest", lambda point: replace(point, lengths=EXACT)
)
ROOMY_HOST = AdaptiveVariation("host never full", lambda point: replace(point, host_blocks=LARGE_HOST_BLOCKS))

WORKLOADS = (NO_PADDING, EXACT_LENGTHS)
"""The determinants of how short memory is, and of what a prefill wastes; run at every longest output."""
CHANGES = (*WORKLOADS, NO_FREE_BLOCK, WHOLE_LINK)
"""Run for the reading by the prompt, in Table 3; a host that is never full for every reading."""
LARGE_SUMMARY = ModelAndData("OPT-30B", "Summary")
"""The group in which summaries find the host full."""


def base_of(point: AdaptivePoint) -> AdaptivePoint:
    """Where `BASELINE` is asked: it has the engine's rules, and no use for host or link."""
    return replace(point, host_blocks=HOST_BLOCKS, copy_bytes_per_s=LINK_BYTES_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveScope:
    """Which experiments are run; by default all. Table 3 is complete in every scope.

    `groups` are used by everything but Table 3, `limits` are the longest outputs of Fig. 3, `caps` the batch caps of
    Fig. 4; the overhead is measured for one group of each of `overhead_models`.
    """

    quick: bool = False
    groups: Sequence[ModelAndData] = GROUPS
    limits: Sequence[int] = OUTPUT_LIMITS
    caps: Sequence[int] = BATCH_CAPS
    overhead_models: Sequence[str] = tuple(MODELS)

    def seeds(self, point: AdaptivePoint) -> range:
        """The seeds of a point, each with another draw of lengths and of the clock's noise; several for throughput
        alone.
        """
        plain = AdaptivePoint(group=point.group, limit=point.limit)
        return range(SEEDS if point == plain and not self.quick else 1)

    # ---- where policies are compared ---------------------------------------------------------------

    def table_points(self) -> list[AdaptivePoint]:
        """The points of Table 3."""
        return [AdaptivePoint(group=group) for group in GROUPS]

    def sweep_points(self) -> list[AdaptivePoint]:
        """The points of Fig. 3."""
        return [AdaptivePoint(group=group, limit=limit) for group, limit in product(self.groups, self.limits)]

    def latency_points(self) -> list[AdaptivePoint]:
        """The points of Fig. 4."""
        return [AdaptivePoint(group=group, cap=cap) for group, cap in product(self.groups, self.caps)]

    def overhead_points(self) -> list[AdaptivePoint]:
        """The points at which the cost of decisions is measured."""
        return [AdaptivePoint(group=ModelAndData(model, "Chatbot")) for model in self.overhead_models]

    def worth_points(self) -> list[WorthPoint]:
        """The points that measure the value of swapping today."""
        return worth_points(self.quick)

    # ---- runs --------------------------------------------------------------------------------------

    def runs(self) -> list[StudyRun]:
        """All runs, the longest first."""
        longest_first = sorted(self._compared(), key=_seconds, reverse=True)
        stepwise = product(self.overhead_points(), OVERHEAD)
        return [
            *(point.run(policy, seed) for point, policy in longest_first for seed in self.seeds(point)),
            *(point.run(policy, 0, every_step=True) for point, policy in stepwise),
            *worth_runs(self.worth_points()),
        ]

    def num_runs(self) -> int:
        """The number of all runs."""
        return len(self.runs())

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        pairs = self._compared()
        return sum(map(_seconds, pairs)) / len(pairs)

    def _compared(self) -> list[tuple[AdaptivePoint, str]]:
        """Every point with every policy that runs there."""
        pairs = [
            *product(self.table_points(), MAIN),
            *product(self.sweep_points(), MAIN),
            *product(self.latency_points(), LATENCY),
            *self._varied(),
        ]
        return list(dict.fromkeys(pairs))

    def _varied(self) -> Iterator[tuple[AdaptivePoint, str]]:
        """The points with one thing changed."""
        table = [AdaptivePoint(group=group) for group in self.groups]
        busy = [replace(point, cap=PAPER_CAPS[0]) for point in table]
        for point, what in product(self.sweep_points(), WORKLOADS):
            yield from product([what.of(point)], (BASELINE, BY_PROMPT))
        for point, what in product(table, CHANGES):
            yield base_of(what.of(point)), BASELINE
            yield from product([what.of(point)], (BY_PROMPT, SWAP))
        for point, what in product(busy, (*WORKLOADS, ROOMY_HOST)):
            yield base_of(what.of(point)), BASELINE
            yield from product([what.of(point)], ORDERS.values())
        yield from product(map(ROOMY_HOST.of, table), READINGS.values())
        yield from product([*table, *busy], [SWAP_UNBOUND])
        large = AdaptivePoint(group=LARGE_SUMMARY)
        yield from product([WHOLE_LINK.of(large), SLOW_LINK.of(large)], READINGS.values())


ALL = AdaptiveScope()
QUICK = AdaptiveScope(
    quick=True,
    groups=QUICK_GROUPS,
    limits=(OUTPUT_LIMITS[0], TABLE_LIMIT, OUTPUT_LIMITS[-1]),
    overhead_models=("OPT-13B",),
)
"""One seed, and two of the twelve groups except for Table 3."""


def _seconds(pair: tuple[AdaptivePoint, str]) -> float:
    """Seconds of simulating it on one core, roughly."""
    point, _ = pair
    a_token, longest = _STEPS[point.group.data]
    tokens = point.limit if point.lengths == EXACT else min(point.limit, longest)
    return _STEP_S * max(a_token * tokens, REQUESTS * tokens / min(point.cap, SEATS))


# ---- the same in words ---------------------------------------------------------------------------------


def facts() -> list[tuple[str, str]]:
    """What is run, in words."""
    laws = {name: NAMED_LAWS[law] for name, law in DATA_SETS.items()}
    lengths = "; ".join(
        f"{name} {law.input.expected_tokens():.2f} in, {law.output.expected_tokens():.1f} out"
        for name, law in laws.items()
    )
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{GPU_BLOCKS} KV blocks of {BLOCK_TOKENS} tokens on the device, {HOST_BLOCKS} on the host, {SEATS} seats, "
            f"{TOKENS_A_STEP:,} tokens a step, watermark {WATERMARK_BLOCKS} block, no prefix caching, synchronous; "
            f"copies at {LINK_BYTES_PER_S / 1e9:g} GB/s each way (assumed), after one another and before the step",
        ),
        ("workload", f"{REQUESTS:,} requests a group, all at 0 s; mean tokens before the limit: {lengths}"),
    ]
