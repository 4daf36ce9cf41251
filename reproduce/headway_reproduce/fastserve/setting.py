"""FastServe's experiments: the workloads, the engines and the policies, fixed before the first run; and which are run.

Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (arXiv 2305.05920, first version of
2023, and its later versions; NSDI 2026 with released code). What the papers leave open is marked "ours".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import NamedTuple

from headway.core.batch_shape import BatchShape
from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.policies.presets import find_preset
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway.sim.killed_steps import KILLING_ROWS
from headway.sim.limits import EngineLimits
from headway_reproduce.study_runs import StudyRun

# ---- what the paper ran on -----------------------------------------------------------------------------

HARDWARE = "a100-40g"
"""A100 40 GB, eight in a node, NVLink between them."""

SIMULATED = "simulated, A100 40 GB"
"""What tables of simulated runs say of themselves."""

GPUS_A_NODE, HOST_BYTES_A_NODE = 8, 1152e9
"""p4d.24xlarge; all of a node's memory can hold KV."""

BLOCK_TOKENS, TOKENS_A_STEP = 16, 2048
"""KV block size, and prompt tokens of one step. Source: the released code."""

BATCH, SLOTS = 16, 256
"""Jobs of one step of one pipeline stage (the released code), and jobs that may be resident at once (ours)."""


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
        """GPUs of all stages."""
        return self.tp * self.stages

    def decode_step_s(self) -> float:
        """Seconds of a step in which one job of no context gets a token."""
        shape = BatchShape()
        shape.add(1, 0)
        return _costs(self.model, self.tp, self.stages).step.step_s(shape)

    def limits(self) -> EngineLimits:
        """The engine's sizes."""
        costs = _costs(self.model, self.tp, self.stages)
        nodes = -(-self.gpus // GPUS_A_NODE)
        host_bytes = nodes * HOST_BYTES_A_NODE if self.host_bytes is None else self.host_bytes
        return EngineLimits(
            num_blocks=costs.kv_capacity_tokens // BLOCK_TOKENS,
            block_size=BLOCK_TOKENS,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=TOKENS_A_STEP,
            batch_width=BATCH,
            prefix_caching=False,
            asynchronous=False,
            pipeline_stages=self.stages,
            host_blocks=int(host_bytes // (BLOCK_TOKENS * costs.kv_bytes_per_token)),
        )


@cache
def _costs(model: str, tp: int, stages: int) -> Calibration:
    return calibration(HARDWARE, model_shape(model), tp, stages)


def gpt_175b(stages: int) -> PaperMachine:
    """GPT-175B on so many nodes, a pipeline stage each."""
    gpus = GPUS_A_NODE * stages
    return PaperMachine(
        title=f"GPT-175B, {gpus} GPUs", model="openai/gpt-175b", tp=GPUS_A_NODE, stages=stages
    )


CLUSTER = gpt_175b(2)
"""End to end: 16 GPUs, two pipeline stages of eight."""
SINGLE = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b")
"""The ablations."""
SMALL = PaperMachine(title="OPT-2.7B, 1 GPU", model="facebook/opt-2.7b")
"""The peak of KV."""
RELEASED = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b", host_bytes=56e9)
"""The released code's engine with its swap space, for its curve of latency per token."""

# ---- what is asked for ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Laws of prompts and answers as `headway simulate --trace` takes them, and the longest answer policies see."""

    input: str
    output: str
    limit: int
    count: int


JOBS = 2000
"""Of every run but those of the ShareGPT curve; each is run to the last finish."""
LONGEST_INPUT, LONGEST_OUTPUT = 512, 512
"""Ours: the paper truncates its Zipf laws to a longest length that it does not give."""


def zipf(theta: float, longest_output: int = LONGEST_OUTPUT) -> Lengths:
    """Prompts and answers by the same law, P(k) ~ k^-theta."""
    return Lengths(
        input=f"zipf:theta={theta:g},max={LONGEST_INPUT}",
        output=f"zipf:theta={theta:g},max={longest_output}",
        limit=longest_output,
        count=JOBS,
    )


SHAREGPT = Lengths(input="sharegpt-1024", output="sharegpt-1024", limit=2048, count=400)
"""First turns with a prompt of up to 1,024 tokens. Source: the released code, which drops longer ones, and pairs of
more than 2,048 together (one in a thousand here); it sends up to 400."""

THETA, CV, LOAD = 1.1, 1.0, 0.9
"""Where the other two stand while one is varied."""
LOADS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.25, 1.5)
"""Arrival rates, in shares of capacity: what `ORCA` gets through of the same kind of requests, all at once."""
CVS = (1.0, 2.0, 4.0, 8.0)
"""Coefficients of variation of the Gamma-distributed times between arrivals."""
THETAS = (0.7, 0.9, 1.1, 1.3, 1.5)

SEEDS, ABLATION_SEEDS, CAPACITY_SEEDS = 5, 3, 3
"""Of the end-to-end runs, of the others, and of measuring capacity."""

OVERLOAD = 1.25
"""The load above capacity at which the ablations are made as well: below it few have to wait for memory."""
SCHEDULER_LOADS = (LOAD, OVERLOAD)
QUANTA = (0.5, 1.0, 2.0, 4.0, 8.0)
"""First quanta, in times of a decode step."""
STARVE_S = (0.3, 1.0, 3.0, 10.0)
"""Seconds after which a job that does not run is promoted: the later version's, the released code's, and others."""
IDLE_JOBS = (0, 8, 16, 32, 64)
"""The paper's K: slots kept free."""
BURST_LEVELS = (0, 1, 2, 4)
"""The paper's K': levels whose jobs foretell a burst."""
STAGES = (2, 3, 4)
"""Pipeline stages of eight GPUs each; one does not hold GPT-175B."""
SHAREGPT_RATES_RPS = (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
"""From 1.5 on the notebook's; those below are ours."""
PEAK_RATE_RPS, PEAK_CV, PEAK_OUTPUT = 64.0, 4.0, 20
"""Of the peak of KV. Source: the later version of the paper."""

# ---- who is compared -----------------------------------------------------------------------------------

ORCA, FASTER_TRANSFORMER, TODAY = "orca", "fastertransformer", "vllm"
"""The paper's baselines, and vLLM as it is now."""
FASTSERVE, ORACLE = "fastserve", "srpt-oracle"
"""As published first; and least remaining work first, by one who knows how long answers will be."""
NO_PREEMPT, PREEMPT = "mlfq-no-preempt", "mlfq-preempt"
"""Ablations of its scheduler: every job starts at the top; and its iterations are killed when a quantum ends."""
DEFER, REACTIVE, RECOMPUTE = "defer", "reactive-swap", "recompute"
"""Ablations of its memory: newcomers wait; KV is swapped only when memory is full; KV is dropped."""
V3, FIXED_PRIORITY = "fastserve-v3", "fixed-priority"
"""With the constants of the later version; and ranked by the prompt's length."""
FCFS, VLLM_V0 = "fastserve-fcfs", "vllm-v0"
"""Its engine first come, first served; and the vLLM of its time."""

SYSTEMS = (ORCA, FASTER_TRANSFORMER, TODAY, FASTSERVE, ORACLE)
SCHEDULERS = (FASTSERVE, NO_PREEMPT, PREEMPT)
"""Whose first quantum is varied."""
OTHER_ORDERS = (ORCA, FIXED_PRIORITY, V3)
MEMORIES = (FASTSERVE, DEFER, REACTIVE, RECOMPUTE)
SCALED = (ORCA, FASTSERVE, ORACLE)
PER_TOKEN = (VLLM_V0, FCFS, FASTSERVE, TODAY)
PEAKS = (FCFS, FASTSERVE)
REAL = (ORCA, REACTIVE, FASTSERVE)
"""On the real engine."""

RUN_WHOEVER_IS_RESIDENT = (ORCA, FASTER_TRANSFORMER, TODAY)
"""They fill a batch a stage; the others choose among residents that wait for a step by themselves."""

# ---- what the papers report ----------------------------------------------------------------------------

PAPER_MEAN_GAIN, PAPER_TAIL_GAIN = 5.1, 6.4
"""Largest gains over Orca in mean and tail job completion time (abstract)."""
PAPER_FT_GAIN = 12.2
"""Largest gain over FasterTransformer."""
PAPER_RANGES = {"rate": (1.0, 4.3), "cv": (2.3, 5.1), "theta": (1.9, 3.9)}
"""Axis -> least and largest gain over Orca (section 6.2)."""
PAPER_FT_RANGES = {"rate": (1.9, 11.4), "cv": (7.4, 12.2), "theta": (3.6, 10.6)}
"""The same over FasterTransformer."""
PAPER_DEFER_GAIN, PAPER_REACTIVE_GAIN = 3.5, 1.4
"""Largest gains of proactive swapping (section 6.4)."""
PAPER_FIXED_GAIN, PAPER_V3_RECOMPUTE_GAIN, PAPER_V3_REACTIVE_GAIN = 13.9, 2.7, 1.7
"""Over fixed priority, recompute and reactive swapping in the later version."""
PAPER_PEAK_KV = 7.0
"""Peak KV over that of first come, first served."""
LOW_LOAD = 0.5
"""Up to which FastServe is equal to Orca."""
PAPER_PER_TOKEN_S = {
    1.5: (0.035, 0.045, 0.045),
    2.0: (0.110, 0.091, 0.047),
    3.0: (0.972, 0.849, 0.063),
    4.0: (1.59, 1.459, 0.106),
    5.0: (None, None, 0.331),
}
"""Requests a second -> mean seconds per token of vLLM 0.6.1, FastServe-FCFS and FastServe (released notebook)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastServePoint:
    """One setting that policies are compared at; `rate_rps` 0 is all requests at once.

    `parts` take the place of the policies' own. Variations change what follows: one batch for all stages, the width of
    a batch (None: whoever is resident runs), the share of the device's blocks there is, and tokens that an answer may
    have beyond the lengths' limit. With `every_step` KV is counted at each.
    """

    machine: PaperMachine
    lengths: Lengths
    cv: float = CV
    rate_rps: float = 0.0
    parts: Parts = OWN_PARTS
    one_batch: bool = False
    batch: int | None = BATCH
    memory: float = 1.0
    further_tokens: int = 0
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
        """This setting under one policy."""
        limits = self.machine.limits()
        staged = limits.pipeline_stages > 1 and policy in RUN_WHOEVER_IS_RESIDENT
        changed = replace(limits, batch_width=self.batch, num_blocks=int(self.memory * limits.num_blocks))
        return StudyRun(
            hardware=HARDWARE,
            model=self.machine.model,
            tp=self.machine.tp,
            trace=self.trace(),
            policy=policy,
            parts=self.parts,
            seed=seed,
            max_output_tokens=self.lengths.limit + self.further_tokens,
            limits=changed,
            micro_batches=staged and not self.one_batch,
            every_step=self.every_step,
        )


# ---- which of it is run --------------------------------------------------------------------------------

RATE_AXIS, CV_AXIS, THETA_AXIS = "rate", "cv", "theta"
AXES = (RATE_AXIS, CV_AXIS, THETA_AXIS)
"""What is varied end to end, one at a time."""

MORE_JOBS = 3
"""Times as many, for the question of what a longer run changes."""
SCARCE_MEMORY = 0.25
"""Share of the device's blocks, for the question of what memory changes."""
FURTHER_TOKENS = 1536
"""So that every answer may have 2,048 tokens, for the question of what reserving for the longest answer costs."""

_SECONDS = {ORCA: 0.9, TODAY: 1.0, FASTER_TRANSFORMER: 2.6, ORACLE: 1.3, DEFER: 1.0}
"""Policy -> about how long simulating a run takes on one core; `_OTHER_SECONDS` for any other."""
_OTHER_SECONDS = 3.5


class CapacityPoint(NamedTuple):
    """A machine and the lengths it serves: where capacity is measured."""

    machine: PaperMachine
    lengths: Lengths

    def at_once(self) -> FastServePoint:
        """All requests at 0 s."""
        return FastServePoint(machine=self.machine, lengths=self.lengths)


END_TO_END = CapacityPoint(CLUSTER, zipf(THETA))
ABLATED = CapacityPoint(SINGLE, zipf(THETA))
PEAK = CapacityPoint(SMALL, zipf(THETA, PEAK_OUTPUT))

Capacity = Callable[[CapacityPoint], float]
"""Requests a second that the baseline gets through at a place, all at once."""
Pairs = list[tuple[FastServePoint, str]]
"""Points, each with a policy that is asked there."""


class FastServeVariation(NamedTuple):
    """A variation of the end-to-end setting (ours): what differs from it, for every policy."""

    name: str
    one_batch: bool = False
    batch: int | None = BATCH
    memory: float = 1.0
    further_tokens: int = 0
    times_jobs: int = 1

    def of(self, point: FastServePoint) -> FastServePoint:
        """A point with it changed."""
        return replace(
            point,
            lengths=replace(point.lengths, count=self.times_jobs * point.lengths.count),
            one_batch=self.one_batch,
            batch=self.batch,
            memory=self.memory,
            further_tokens=self.further_tokens,
        )


VARIATIONS = (
    FastServeVariation("one batch for both stages", one_batch=True),
    FastServeVariation("room for 2,048 tokens reserved", further_tokens=FURTHER_TOKENS),
    FastServeVariation("a quarter of the KV blocks", memory=SCARCE_MEMORY),
    FastServeVariation(f"{MORE_JOBS} times as many jobs", times_jobs=MORE_JOBS),
    FastServeVariation("batches of any size", batch=None),
)
VARIED = (ORCA, TODAY, FASTSERVE)


def loaded(place: CapacityPoint, load: float, capacity: Capacity, *, cv: float = CV) -> FastServePoint:
    """Arrivals at a share of a place's capacity."""
    return FastServePoint(
        machine=place.machine, lengths=place.lengths, cv=cv, rate_rps=load * capacity(place)
    )


def with_quantum(point: FastServePoint, policy: str, quantum: float) -> FastServePoint:
    """A point at which the policy's first quantum is so many decode steps."""
    return _with_order(point, policy, f"quantum_s={quantum * point.machine.decode_step_s():.4g}")


def with_starvation(point: FastServePoint, starve_s: float) -> FastServePoint:
    """A point at which fastserve promotes jobs that have not run for so long."""
    return _with_order(point, FASTSERVE, f"starve_s={starve_s:g}")


def _with_order(point: FastServePoint, policy: str, setting: str) -> FastServePoint:
    row = KILLING_ROWS.get(policy) or find_preset(policy)
    order = f"{row.order}{',' if ':' in row.order else ':'}{setting}"
    return replace(point, parts=replace(OWN_PARTS, order=order))


@dataclass(frozen=True, slots=True, kw_only=True)
class FastServeScope:
    """What is varied, and which runs that makes, given what the baseline gets through; as it stands, all of it.

    `loads`, `cvs` and `thetas` are of the axes, those of the memory's ablation apart; `memories` and `other_orders`
    are policies. Capacity is measured with the same seeds in every scope, so that rates are the same.
    """

    quick: bool = False
    loads: Sequence[float] = LOADS
    cvs: Sequence[float] = CVS
    thetas: Sequence[float] = THETAS
    scheduler_loads: Sequence[float] = SCHEDULER_LOADS
    quanta: Sequence[float] = QUANTA
    starve_s: Sequence[float] = STARVE_S
    other_orders: Sequence[str] = OTHER_ORDERS
    memories: Sequence[str] = MEMORIES
    memory_loads: Sequence[float] = LOADS
    memory_cvs: Sequence[float] = CVS
    idle_jobs: Sequence[int] = IDLE_JOBS
    burst_levels: Sequence[int] = BURST_LEVELS
    stages: Sequence[int] = STAGES
    sharegpt_rates_rps: Sequence[float] = SHAREGPT_RATES_RPS

    def seeds(self, point: FastServePoint) -> range:
        """Each is another draw of arrivals and lengths, and of the clock's noise."""
        if not point.rate_rps:
            return range(CAPACITY_SEEDS)
        if self.quick:
            return range(1)
        lengths = replace(point.lengths, count=END_TO_END.lengths.count)
        end_to_end = FastServePoint(machine=CLUSTER, lengths=lengths, cv=point.cv, rate_rps=point.rate_rps)
        return range(SEEDS if point == end_to_end else ABLATION_SEEDS)

    # ---- where policies are compared ---------------------------------------------------------------

    def settings(self, axis: str) -> Sequence[float]:
        """What an axis is varied over."""
        return {RATE_AXIS: self.loads, CV_AXIS: self.cvs, THETA_AXIS: self.thetas}[axis]

    def end_to_end(self, axis: str, capacity: Capacity) -> dict[float, FastServePoint]:
        """Setting -> point, the other two axes as they stand."""
        found: dict[float, FastServePoint] = {}
        for setting in self.settings(axis):
            place = CapacityPoint(CLUSTER, zipf(setting)) if axis == THETA_AXIS else END_TO_END
            load = setting if axis == RATE_AXIS else LOAD
            found[setting] = loaded(place, load, capacity, cv=setting if axis == CV_AXIS else CV)
        return found

    def varied(self, capacity: Capacity) -> dict[float, FastServePoint]:
        """Load -> point, of the end-to-end settings that variations start from."""
        return {} if self.quick else {load: loaded(END_TO_END, load, capacity) for load in (LOAD, OVERLOAD)}

    def memory(self, axis: str, capacity: Capacity) -> dict[float, FastServePoint]:
        """Setting -> point of the memory's ablation."""
        if axis == RATE_AXIS:
            return {load: loaded(ABLATED, load, capacity) for load in self.memory_loads}
        return {cv: loaded(ABLATED, LOAD, capacity, cv=cv) for cv in self.memory_cvs}

    def slot_points(self, capacity: Capacity) -> dict[tuple[str, int], FastServePoint]:
        """(setting of the eviction, value) -> point: one of them varied, the other as it stands."""
        point = loaded(ABLATED, OVERLOAD, capacity)
        values = {"idle_jobs": self.idle_jobs, "burst_levels": self.burst_levels}
        return {
            (name, value): replace(point, parts=Parts(eviction=f"proactive:{name}={value}"))
            for name, found in values.items()
            for value in found
        }

    def peaks(self, capacity: Capacity) -> dict[str, FastServePoint]:
        """What it is called -> point at which KV is counted, every step of it planned."""
        paper = FastServePoint(machine=SMALL, lengths=PEAK.lengths, cv=PEAK_CV, rate_rps=PEAK_RATE_RPS)
        found = {f"{PEAK_RATE_RPS:g} req/s, CV {PEAK_CV:g}": paper}
        if not self.quick:
            found[f"{OVERLOAD:g} of capacity, CV {PEAK_CV:g}"] = loaded(PEAK, OVERLOAD, capacity, cv=PEAK_CV)
        return {name: replace(point, every_step=True) for name, point in found.items()}

    def scaled(self, capacity: Capacity) -> dict[PaperMachine, FastServePoint]:
        """Machine -> point, each at the same share of its own capacity."""
        machines = map(gpt_175b, self.stages)
        return {machine: loaded(CapacityPoint(machine, zipf(THETA)), LOAD, capacity) for machine in machines}

    def per_token(self) -> dict[float, FastServePoint]:
        """Requests a second -> point of the ShareGPT curve."""
        rates = self.sharegpt_rates_rps
        return {rate: FastServePoint(machine=RELEASED, lengths=SHAREGPT, rate_rps=rate) for rate in rates}

    # ---- runs --------------------------------------------------------------------------------------

    def capacity_runs(self) -> list[StudyRun]:
        """The runs that the rates of all others depend on."""
        return self._runs(self._places())

    def loaded_runs(self, capacity: Capacity) -> list[StudyRun]:
        """All other runs, the longest first."""
        return self._runs(sorted(self._compared(capacity), key=_seconds, reverse=True))

    def num_runs(self) -> int:
        """All runs together."""
        return len(self.capacity_runs()) + len(self.loaded_runs(lambda place: 1.0))

    def seconds_a_run(self) -> float:
        """About how long a run takes on one core, in the mean."""
        pairs = self._places() + self._compared(lambda place: 1.0)
        return sum(map(_seconds, pairs)) / len(pairs)

    def _places(self) -> Pairs:
        """Where capacity is measured, and of which policy."""
        thetas = [CapacityPoint(CLUSTER, zipf(theta)) for theta in self.thetas]
        machines = [CapacityPoint(gpt_175b(stages), zipf(THETA)) for stages in self.stages]
        places = dict.fromkeys([*thetas, ABLATED, *machines, *([] if self.quick else [PEAK])])
        return [(place.at_once(), ORCA) for place in places]

    def _compared(self, capacity: Capacity) -> Pairs:
        """Every point with every policy that is asked there."""
        ends = [point for axis in AXES for point in self.end_to_end(axis, capacity).values()]
        varied = [what.of(point) for point in self.varied(capacity).values() for what in VARIATIONS]
        ablated = [loaded(ABLATED, load, capacity) for load in self.scheduler_loads]
        swept = product(ablated, SCHEDULERS, self.quanta)
        memory = [point for axis in (RATE_AXIS, CV_AXIS) for point in self.memory(axis, capacity).values()]
        pairs = [
            *product(ends, SYSTEMS),
            *product(varied, VARIED),
            *((with_quantum(point, policy, quantum), policy) for point, policy, quantum in swept),
            *((with_starvation(*pair), FASTSERVE) for pair in product(ablated, self.starve_s)),
            *product(ablated, self.other_orders),
            *product(memory, self.memories),
            *((point, FASTSERVE) for point in self.slot_points(capacity).values()),
            *product(self.peaks(capacity).values(), PEAKS),
            *product(self.scaled(capacity).values(), SCALED),
            *product(self.per_token().values(), PER_TOKEN),
        ]
        return list(dict.fromkeys(pairs))

    def _runs(self, compared: Iterable[tuple[FastServePoint, str]]) -> list[StudyRun]:
        found = (point.run(policy, seed) for point, policy in compared for seed in self.seeds(point))
        return list(dict.fromkeys(found))


ALL = FastServeScope()
QUICK = FastServeScope(
    quick=True,
    loads=(LOW_LOAD, LOAD, OVERLOAD),
    cvs=(CV, CVS[-1]),
    thetas=(THETAS[0], THETA, THETAS[-1]),
    scheduler_loads=(OVERLOAD,),
    quanta=QUANTA[::2],
    starve_s=(),
    other_orders=(),
    memories=(FASTSERVE, DEFER, REACTIVE),
    memory_loads=(OVERLOAD,),
    memory_cvs=(CVS[-1],),
    idle_jobs=(IDLE_JOBS[0], IDLE_JOBS[-1]),
    burst_levels=(BURST_LEVELS[0], BURST_LEVELS[-1]),
    stages=(),
    sharegpt_rates_rps=(),
)
"""One seed; neither variations, nor more GPUs, nor the ShareGPT curve."""


def _seconds(pair: tuple[FastServePoint, str]) -> float:
    """About how long simulating it takes on one core."""
    point, policy = pair
    return _SECONDS.get(policy, _OTHER_SECONDS) * point.lengths.count / zipf(THETA).count
