"""Ascendra's experiments: the models, the data, the targets and the systems, fixed before the first run; the runs, each
determined by plain data; and the part of them that `--quick` keeps.

Source: Ikram et al., "Ascendra: Dynamic Request Prioritization for Efficient LLM Serving" (arXiv 2504.20828v2, 2025).
What the paper leaves open is marked "ours"; adr/0022 says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from hashlib import sha256
from itertools import product

from headway.core.batch_shape import BatchShape
from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.lab.kept_runs import release
from headway.lab.simulation import fingerprint
from headway.policies.batching.step_tokens import low_step_tokens
from headway.predict.models.known_models import model_shape
from headway.predict.steps.attention_kernels import attention_kernels
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration, hardware
from headway.sim.limits import EngineLimits
from headway_reproduce.ascendra.services import (
    ASCENDRA,
    BASELINES,
    FIRST_COME,
    FIXED,
    FIXED_NARROW,
    HEADWAY,
    INSTANCES,
    NO_HAND_OFF,
    NO_TICKET,
    PAIR,
    PURE_EDF,
    SARATHI,
    SARATHI_512,
    SHORTEST,
    SJF,
    SPLITS,
    SYSTEMS,
    Service,
    with_order,
    with_threshold,
)

# ---- what the paper ran on -----------------------------------------------------------------------------

HARDWARE = "a100-80g"
"""Three A100 80 GB, an instance each (`INSTANCES`)."""
SIMULATED = "simulated, 3 x A100 80 GB"
"""The machine named in tables of simulated runs."""

BLOCK_TOKENS = 16
SEATS, TOKENS_A_STEP = 256, 8192
"""Sizes of every engine (ours): vLLM's default seats, and a budget as large as the longest prompts, since `vllm-v0`
and high-priority instances compute prompts whole. All systems that compute prompts in chunks have one budget,
`equal_tokens`.
"""
ATTENTION, TODAYS_ATTENTION = "sarathi-serve", "flash-attn"
"""Kernel layouts of the paper's engines, built on vLLM and Sarathi-Serve, and of today's vLLM."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, and the KV blocks of an instance of it."""

    title: str
    name: str
    kv_blocks: int

    def limits(self) -> EngineLimits:
        """An instance's sizes; steps are scheduled one at a time, as by the engines of the paper's time."""
        return EngineLimits(
            num_blocks=self.kv_blocks,
            block_size=BLOCK_TOKENS,
            max_num_seqs=SEATS,
            max_num_batched_tokens=TOKENS_A_STEP,
            prefix_caching=False,
            asynchronous=False,
        )


MISTRAL = ServedModel("Mistral-7B", "mistralai/Mistral-7B-v0.1", 25_000)
LLAMA = ServedModel("Llama-3.1-8B", "meta-llama/Llama-3.1-8B", 25_000)
QWEN = ServedModel("Qwen-14B", "Qwen/Qwen-14B", 3_000)
MODELS = (MISTRAL, LLAMA, QWEN)

# ---- what is asked for ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """Lengths by a law that ships with the package, and the longest answer that policies assume."""

    title: str
    law: str
    longest_output: int
    stand_in: bool = False


SHAREGPT = Data("ShareGPT", "sharegpt-turns", 1024)
"""Each turn of a conversation is a request of its own, whose prompt includes all earlier turns."""
LONGBENCH = Data("LongBench (stand-in)", "arxiv-summarization", 4096, stand_in=True)
"""arXiv papers to summarise: not the paper's data set, and named a stand-in wherever it is shown."""
DATA = (SHAREGPT, LONGBENCH)

TBT_S = 0.15
TTFT_S = {
    (MISTRAL, SHAREGPT): 1.0,
    (MISTRAL, LONGBENCH): 2.5,
    (LLAMA, SHAREGPT): 1.0,
    (LLAMA, LONGBENCH): 2.5,
    (QWEN, SHAREGPT): 1.5,
    (QWEN, LONGBENCH): 3.0,
}
"""Targets for the first token, from the paper's table."""


@dataclass(frozen=True, slots=True)
class AscendraCase:
    """A model serving a data set."""

    model: ServedModel
    data: Data

    def __str__(self) -> str:
        return f"{self.model.title}/{self.data.title}"

    @property
    def slo(self) -> Slo:
        """The paper's targets."""
        return Slo(ttft_s=TTFT_S[self.model, self.data], tbt_s=TBT_S)


CASES = tuple(AscendraCase(model, data) for model in MODELS for data in DATA)
MAIN = AscendraCase(MISTRAL, SHAREGPT)
"""The case of all experiments but the sweep of rates: the one with the paper's largest gain."""

# ---- how much, and at which rates ----------------------------------------------------------------------

PAIR_CASE, PAIR_LOADS = AscendraCase(MISTRAL, LONGBENCH), (0.9, 1.1)
"""Where two instances are compared, on the left of Figure 13; a load gives each as many requests as with three."""
TOKENS_TRIED = (512, 1024, 2048)
TRIED_LOADS = (1.0, 1.2)
"""Loads in the main case at which the candidates for the shared budget of all chunked systems are compared."""
TRIED_SEED = 100
"""A separate seed, so that no result is reported on the requests that the budget was chosen with."""
THRESHOLDS = (-0.1, 0.0, 0.05, 0.1, 0.2, 0.3)
"""Thresholds of the hand-off, as shares of the target for the first token; 0.05 is the default."""
FIGURE_2_INSTANCES = (1, 2, 3, 4)
COUNT = 1500
"""Requests of a run, which lasts until the last finish."""
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7)
"""Rates as shares of `SARATHI`'s throughput of a case's requests, all at once (the first nine tenths of them)."""
SEEDS = 3
"""Seeds of the main case; the others have one."""
LIGHT_LOAD, BUSY_LOADS = 0.5, (0.9, 1.1, 1.3)
"""The load at which tickets are compared, and the loads of the other ablations."""
BREAKDOWN_LOAD, SPLIT_LOAD, FIGURE_2_LOAD = 0.9, 1.1, 0.5
OVERLOADS = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
"""Rates of the runs in overload, as shares of Ascendra's capacity."""
OVERLOAD_S = 600.0
SCALE_RATES = (0.5, 0.8, 1.0)
"""Shares of Ascendra's capacity at which targets are made tighter."""
SCALES = (0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0, 1.4, 2.0)
"""Factors on both targets."""
ERROR_S = 600.0
"""Length of the run in which predicted step times are compared with actual ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraChange:
    """A difference from the paper's setting, for every system, to find the reason of a figure (ours).

    `ttft_factor` and `tbt_factor` are on one target each, `kv_share` is on the blocks, `attention` is the kernel
    layout, `tokens` replaces the budget of chunked steps that follows from the target between tokens, and `law`
    replaces the law of the data's lengths.
    """

    name: str = "as it stands"
    ttft_factor: float = 1.0
    tbt_factor: float = 1.0
    kv_share: float = 1.0
    attention: str = ATTENTION
    tokens: int | None = None
    law: str = ""


UNCHANGED = AscendraChange()
SHARED_KERNEL = AscendraChange(
    name="one attention kernel for prompts and decodes, as today's vLLM on FlashAttention 2",
    attention=TODAYS_ATTENTION,
)
MORE_KV = AscendraChange(name="twice the KV blocks", kv_share=2.0)
FIRST_TURNS = AscendraChange(name="turns without what was said before", law="sharegpt")
WORKLOADS = (MORE_KV, FIRST_TURNS)
"""Changes that affect an instance's capacity: loads are then shares of `SARATHI`'s throughput with the change."""
CASE_LOAD = 0.9
"""The load at which the cases other than the main one are run with one thing changed."""


def with_budget(tokens: int) -> AscendraChange:
    """Every chunked system with this token budget."""
    return AscendraChange(name=f"{tokens:,} tokens a step", tokens=tokens)


def with_targets(ttft_s: float, tbt_s: float) -> AscendraChange:
    """Other targets than the paper's in the main case."""
    name = f"first token within {ttft_s:g} s, between tokens {tbt_s * 1000:g} ms"
    return AscendraChange(name=name, ttft_factor=ttft_s / TTFT_S[MISTRAL, SHAREGPT], tbt_factor=tbt_s / TBT_S)


REGION = tuple(
    with_targets(ttft_s, tbt_s) for ttft_s in (0.5, 1.0, 2.0) for tbt_s in (0.025, 0.035, 0.05, 0.15)
)
"""Targets tested for whether two tiers beat equal instances."""
NARROW = with_targets(2.0, 0.035)
"""The one of them where this was first found."""
NARROW_SHARED = replace(
    NARROW, name=f"{NARROW.name}, one attention kernel for prompts and decodes", attention=TODAYS_ATTENTION
)
REGION_LOADS = (0.9, 1.1, 1.3)

# ---- a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraRun:
    """All that determines one run.

    `count` requests in Poisson arrivals at `rate_rps`, 0 for all at once. `slo_scale` is a factor on both targets.
    `seed` draws the workload anew, and the noise of the clock. With `errors` predicted step times are compared with
    actual ones, with `gaps` the time between any two tokens is kept.
    """

    case: AscendraCase
    service: Service
    rate_rps: float
    count: int
    seed: int
    slo_scale: float = 1.0
    change: AscendraChange = UNCHANGED
    errors: bool = False
    gaps: bool = False

    @property
    def slo(self) -> Slo:
        """The targets of every request."""
        slo, scale, change = self.case.slo, self.slo_scale, self.change
        assert slo.ttft_s is not None
        assert slo.tbt_s is not None
        return Slo(
            ttft_s=scale * change.ttft_factor * slo.ttft_s, tbt_s=scale * change.tbt_factor * slo.tbt_s
        )

    @property
    def tokens(self) -> int:
        """Token budget of every chunked system."""
        return self.change.tokens or equal_tokens(self.case.model.name, self.change)

    def trace(self) -> str:
        """The workload as `headway simulate --trace` takes it."""
        law = self.change.law or self.case.data.law
        arrivals = f"poisson:rate={self.rate_rps:.6g}" if self.rate_rps else "at-once"
        longest = f"/max_output={self.case.data.longest_output}" if self.change.law else ""
        return f"gen:{arrivals}/input={law}/output={law}/count={self.count}{longest}"

    def digest(self) -> str:
        """As `Digested.digest`."""
        said = [release(), _fingerprint(self.case.model.name, self.change), *sorted(asdict(self).items())]
        return sha256(repr(said).encode()).hexdigest()


@lru_cache(maxsize=16)
def costs(model: str, change: AscendraChange = UNCHANGED) -> Calibration:
    """The step costs of an instance."""
    return calibration(HARDWARE, model_shape(model), attention=change.attention)


@lru_cache(maxsize=16)
def equal_tokens(model: str, change: AscendraChange = UNCHANGED) -> int:
    """The budget that follows from the target between tokens and the step law, by the rule of low-priority
    instances.
    """
    job = Job(
        id="",
        arrival_s=0.0,
        num_prompt_tokens=1,
        max_output_tokens=1,
        slo=Slo(tbt_s=change.tbt_factor * TBT_S),
    )
    return low_step_tokens(_LawCost(costs(model, change)), [job], TOKENS_A_STEP)


@dataclass(frozen=True, slots=True)
class _LawCost(UnknownCost):
    """Predicts prefill times with the law of the simulated clock."""

    of: Calibration

    def prefill_s(self, num_tokens: int) -> float:
        shape = BatchShape()
        shape.add(num_tokens, 0)
        return self.of.step.step_s(shape) + self.of.host_s


@lru_cache(maxsize=16)
def _fingerprint(model: str, change: AscendraChange) -> str:
    return fingerprint(costs(model, change))


# ---- which runs are made -------------------------------------------------------------------------------

CHUNKED = (ASCENDRA, SARATHI)
"""Systems that compute prompts in chunks."""
ABLATED = (FIXED, SJF, PURE_EDF, NO_HAND_OFF, NO_TICKET, SARATHI_512)
"""Systems compared with Ascendra at the busy loads."""

Reference = Callable[[AscendraCase, AscendraChange], float]
"""The request rate that a case's loads are shares of, with one thing changed."""

_ABOUT_REFERENCE_RPS, _ABOUT_CAPACITY_RPS = 7.0, 7.93
"""Rough rates for the main case, to count runs before they are measured; chosen so that no share of one is a share
of the other, as with the real rates.
"""
_SECONDS_A_REQUEST = 0.0012
"""Seconds to simulate one request on one core, roughly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendraScope:
    """Which experiments are run, given the throughput of `SARATHI` and Ascendra's capacity; by default all.

    `loads` are the rates of the sweep, as shares of the reference; ablations are compared at `busy_loads`; `overloads`
    are shares of Ascendra's capacity in the main case, `scales` factors on both targets. Each seed is another draw of
    arrivals and lengths, and of the clock's noise.
    """

    quick: bool = False
    seeds: range = range(SEEDS)
    cases: Sequence[AscendraCase] = CASES
    loads: Sequence[float] = LOADS
    busy_loads: Sequence[float] = BUSY_LOADS
    overloads: Sequence[float] = OVERLOADS
    scales: Sequence[float] = SCALES

    def seeds_of(self, case: AscendraCase) -> range:
        """The seeds that a case is run with."""
        return self.seeds if case == MAIN else self.seeds[:1]

    # ---- single runs ---------------------------------------------------------------------------------

    def reference_run(self, case: AscendraCase, change: AscendraChange = UNCHANGED) -> AscendraRun:
        """The run, with all requests at once, that determines a case's reference rate."""
        own = change if change in WORKLOADS else UNCHANGED
        return AscendraRun(case=case, service=SARATHI, rate_rps=0.0, count=COUNT, seed=0, change=own)

    def run(
        self,
        case: AscendraCase,
        service: Service,
        rate_rps: float,
        seed: int = 0,
        *,
        slo_scale: float = 1.0,
        change: AscendraChange = UNCHANGED,
        gaps: bool = False,
    ) -> AscendraRun:
        """A run of a service at a rate."""
        return AscendraRun(
            case=case,
            service=service,
            rate_rps=float(f"{rate_rps:.5g}"),
            count=COUNT,
            seed=seed,
            slo_scale=slo_scale,
            change=change,
            gaps=gaps,
        )

    def overload_run(self, service: Service, rate_rps: float, seed: int) -> AscendraRun:
        """Ten minutes of arrivals, where every instance drops requests past their first target."""
        run = self.run(MAIN, service.shedding(), rate_rps, seed)
        return replace(run, count=round(OVERLOAD_S * run.rate_rps))

    def error_run(self, rate_rps: float) -> AscendraRun:
        """Ten minutes of arrivals, where every predicted step is compared with its actual time."""
        run = self.run(MAIN, ASCENDRA, rate_rps)
        return replace(run, count=round(ERROR_S * run.rate_rps), errors=True)

    @property
    def region(self) -> Sequence[AscendraChange]:
        """The targets tested for whether two tiers are worthwhile."""
        return (*((NARROW,) if self.quick else REGION), NARROW_SHARED)

    @property
    def budget_loads(self) -> Sequence[float]:
        """The loads at which budgets are compared."""
        return TRIED_LOADS[-1:] if self.quick else TRIED_LOADS

    # ---- all runs ------------------------------------------------------------------------------------

    def reference_runs(self) -> list[AscendraRun]:
        """The runs that the rates of all others depend on."""
        found = [self.reference_run(case) for case in (*self.cases, PAIR_CASE)]
        found += [self.reference_run(AscendraCase(QWEN, SHAREGPT), change) for change in WORKLOADS]
        return list(dict.fromkeys(found))

    def sweep_runs(self, reference: Reference) -> list[AscendraRun]:
        """Goodput against rate, which Ascendra's capacity is read from."""
        return [
            self.run(case, service, load * reference(case, UNCHANGED), seed)
            for case, load, service in product(self.cases, self.loads, SYSTEMS)
            for seed in self.seeds_of(case)
        ]

    def further_runs(self, reference: Reference, capacity_rps: float) -> list[AscendraRun]:
        """All other runs, those with the most requests first."""
        main_rps = reference(MAIN, UNCHANGED)
        found = [
            *self._capacity_runs(capacity_rps),
            *self._ablation_runs(main_rps),
            *self._changed_runs(main_rps),
            *self._other_case_runs(reference),
            *([] if self.quick else self._swept_runs(main_rps)),
        ]
        return sorted(dict.fromkeys(found), key=lambda run: -run.count)

    def _capacity_runs(self, capacity_rps: float) -> Iterable[AscendraRun]:
        """Runs at shares of Ascendra's capacity: in overload, and with scaled targets.

        A system that ignores targets runs once, and is judged at each scale.
        """
        for over, service, seed in product(self.overloads, SYSTEMS, self.seeds):
            yield self.overload_run(service, over * capacity_rps, seed)
        yield self.overload_run(NO_HAND_OFF, self.overloads[-1] * capacity_rps, 0)
        for share, seed in product(SCALE_RATES, self.seeds):
            for service in BASELINES:
                yield self.run(MAIN, service, share * capacity_rps, seed)
            for scale in self.scales:
                yield self.run(MAIN, ASCENDRA, share * capacity_rps, seed, slo_scale=scale)

    def _ablation_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        """Runs with a part of Ascendra changed, or watched step by step."""
        for seed in self.seeds:
            for load, service in product(self.busy_loads, ABLATED):
                yield self.run(MAIN, service, load * main_rps, seed)
            yield self.run(MAIN, NO_TICKET, LIGHT_LOAD * main_rps, seed)
            for service in SPLITS.values():
                share = service.instances / ASCENDRA.instances
                yield self.run(MAIN, service, share * SPLIT_LOAD * main_rps, seed)
        for service in (*(each.shedding() for each in SYSTEMS), PURE_EDF, NO_TICKET):
            yield self.run(MAIN, service, BREAKDOWN_LOAD * main_rps)
        for load, service in product(self.busy_loads, (FIXED_NARROW, SPLITS["1L2H"])):
            yield self.run(MAIN, service, load * main_rps)
        for service in SYSTEMS:
            yield self.run(MAIN, service, BREAKDOWN_LOAD * main_rps, gaps=True)
        yield self.error_run(BUSY_LOADS[0] * main_rps)

    def _changed_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        """Runs with one thing changed for all compared systems: the budget, the kernels, the targets."""
        for load, tokens, service in product(self.budget_loads, TOKENS_TRIED, CHUNKED):
            yield self.run(MAIN, service, load * main_rps, TRIED_SEED, change=with_budget(tokens))
        for load, service in product(self.busy_loads, SYSTEMS):
            yield self.run(MAIN, service, load * main_rps, change=SHARED_KERNEL)
        for change, load, service in product(self.region, REGION_LOADS, (*SYSTEMS, HEADWAY)):
            yield self.run(MAIN, service, load * main_rps, change=change)
        for change in (SHARED_KERNEL, NARROW):
            yield self.run(MAIN, SPLITS["1L2H"], SPLIT_LOAD * main_rps, change=change)
        yield self.run(MAIN, SJF, REGION_LOADS[-1] * main_rps, change=NARROW)

    def _other_case_runs(self, reference: Reference) -> Iterable[AscendraRun]:
        """Runs with one thing changed in the other cases, and two instances alone."""
        for case in self.cases:
            for change, service in product(self.case_changes(case), SYSTEMS):
                yield self.run(case, service, CASE_LOAD * reference(case, change), change=change)
        for load, service in product(PAIR_LOADS, PAIR):
            share = service.instances / INSTANCES
            yield self.run(PAIR_CASE, service, share * load * reference(PAIR_CASE, UNCHANGED))

    def case_changes(self, case: AscendraCase) -> Sequence[AscendraChange]:
        """The changes in a case that test the reasons of its gains."""
        if case == MAIN:
            return ()
        return (SHARED_KERNEL, *(WORKLOADS if case == AscendraCase(QWEN, SHAREGPT) else ()))

    def _swept_runs(self, main_rps: float) -> Iterable[AscendraRun]:
        """The threshold of the hand-off, and Figure 2."""
        for load, threshold in product(TRIED_LOADS, THRESHOLDS):
            yield self.run(MAIN, with_threshold(threshold), load * main_rps, TRIED_SEED)
        for name, instances in product((FIRST_COME, SHORTEST), FIGURE_2_INSTANCES):
            yield self.run(MAIN, with_order(name, instances), FIGURE_2_LOAD * main_rps)

    def num_runs(self) -> int:
        """The number of all runs."""
        return len(self._all())

    def seconds_a_run(self) -> float:
        """The mean seconds of a run on one core, roughly."""
        runs = self._all()
        return _SECONDS_A_REQUEST * sum(run.count for run in runs) / len(runs)

    def _all(self) -> set[AscendraRun]:
        """Every run, with approximate rates."""
        further = self.further_runs(_about, _ABOUT_CAPACITY_RPS)
        return {*self.reference_runs(), *self.sweep_runs(_about), *further}


ALL = AscendraScope()
QUICK = AscendraScope(
    quick=True,
    seeds=range(1),
    cases=(MAIN, AscendraCase(QWEN, SHAREGPT)),
    loads=(0.5, 0.7, 0.9, 1.1, 1.3, 1.5, 1.7),
    busy_loads=(1.1, 1.3),
    overloads=(1.0, 1.5),
    scales=(0.4, 0.7, 1.0),
)
"""No Figure 2, no sweeps of the hand-off's threshold and of targets, and few of the changes that test the gains."""


def _about(case: AscendraCase, change: AscendraChange) -> float:
    return _ABOUT_REFERENCE_RPS


# ---- the same in words ---------------------------------------------------------------------------------


def facts(scope: AscendraScope, capacity_rps: float) -> list[tuple[str, str]]:
    """What is run, in words."""
    budgets = ", ".join(f"{equal_tokens(model.name):,} ({model.title})" for model in MODELS)
    blocks = ", ".join(f"{model.title} {model.kv_blocks:,}" for model in MODELS)
    return [
        ("hardware", f"simulated; {INSTANCES} instances; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{SEATS} seats, {TOKENS_A_STEP:,} tokens a step where prompts are whole, in chunks {budgets}; one step at "
            f"a time, no prefix caching; {attention_kernels(ATTENTION)}; KV blocks of {BLOCK_TOKENS} tokens: {blocks}",
        ),
        (
            "workload",
            f"{COUNT:,} requests a run, Poisson, to the last finish; lengths by laws of this package",
        ),
        ("targets", ", ".join(map(_targets, scope.cases))),
        (
            "late requests",
            "are served, under every system; in overload they are dropped when their first token is due",
        ),
        ("capacity", f"Ascendra's in the main case ({MAIN}): {capacity_rps:.2f} req/s"),
    ]


def _targets(case: AscendraCase) -> str:
    return f"{case}: first token {case.slo.ttft_s:g} s, between tokens {case.slo.tbt_s:g} s"
