"""Ascendra's experiments: the models, the data, the targets and the systems, fixed before the first run.

Source: Ikram et al., "Ascendra: Dynamic Request Prioritization for Efficient LLM Serving" (arXiv 2504.20828v2, 2025).
What the paper leaves open is marked "ours"; adr/0022 says why.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.core.slo import Slo
from headway.lab.policy_choice import OWN_PARTS, Parts
from headway.sim.limits import EngineLimits

# ---- what the paper ran on -----------------------------------------------------------------------------

HARDWARE, INSTANCES = "a100-80g", 3
"""Three A100 80 GB, an instance each."""
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

# ---- systems -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """Equal instances of one policy; `pool` is empty where there is no other pool.

    `chunked` is the batching whose steps have the budget that all compared systems share; empty: the policy's own.
    """

    count: int
    policy: str
    pool: str = ""
    parts: Parts = OWN_PARTS
    chunked: str = ""

    def with_budget(self, tokens: int) -> Parts:
        """The parts with this token budget, where prompts are computed in chunks."""
        if not self.chunked:
            return self.parts
        return replace(self.parts, batching=f"{self.chunked}:token_budget={tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Instances behind a router."""

    name: str
    engines: tuple[Engines, ...]
    router: str

    @property
    def instances(self) -> int:
        """The number of instances of all pools."""
        return sum(engines.count for engines in self.engines)

    def shedding(self) -> Service:
        """The same service, but every instance drops requests still waiting when their first token is due."""
        return replace(self, engines=tuple(map(_shedding, self.engines)))


EXPIRED, AT_RISK = "expired", "at-risk"


def _shedding(engines: Engines) -> Engines:
    rules = (*(engines.parts.leaving or ()), EXPIRED)
    return replace(engines, parts=replace(engines.parts, leaving=rules))


def equal(
    policy: str, instances: int = INSTANCES, parts: Parts = OWN_PARTS, *, chunked: str = "", name: str = ""
) -> Service:
    """Equal instances, each taking the next request in turn."""
    engines = Engines(count=instances, policy=policy, parts=parts, chunked=chunked)
    return Service(name=name or policy, engines=(engines,), router="round-robin")


TOKENS_TRIED = (512, 1024, 2048)
TRIED_LOADS = (1.0, 1.2)
"""Loads in the main case at which the candidates for the shared budget of all chunked systems are compared."""
TRIED_SEED = 100
"""A separate seed, so that no result is reported on the requests that the budget was chosen with."""


def pooled(
    name: str,
    *,
    lp: int = 2,
    hp: int = 1,
    lp_order: str | None = None,
    hp_batching: str | None = None,
    hand_off: str | None = AT_RISK,
    router: str = "ascendra",
) -> Service:
    """Ascendra's pools, whose requests leave an instance only for the other pool."""
    low_parts = Parts(order=lp_order, leaving=() if hand_off is None else (hand_off,))
    high_parts = Parts(batching=hp_batching, leaving=())
    low = Engines(count=lp, policy="ascendra-lp", pool="lp", parts=low_parts, chunked="within-budgets")
    high = Engines(count=hp, policy="ascendra-hp", pool="hp", parts=high_parts)
    return Service(name=name, engines=(low, high), router=router)


DECODE_FIRST = "decode-first"
VLLM_V0 = equal("vllm-v0")
SARATHI = equal("sarathi", chunked=DECODE_FIRST)
"""The paper's two baselines. With one budget Sarathi-Serve is the policy of today's vLLM.

The paper names no version of vLLM. It serves Llama-3.1, which vLLM does from 0.5.3 on (July 2024), when prompts were no
longer padded: so `vllm-v0`, not vLLM 0.2.5."""
SARATHI_512 = equal("sarathi", name="sarathi-512")
"""Sarathi-Serve with the budget of its own preset."""
HEADWAY = equal("headway")
"""Equal instances that decide by targets, to show the value of two tiers; not a baseline of the paper."""
ASCENDRA = pooled("ascendra")
"""2 LP instances and 1 HP: the paper's default."""
BASELINES = (VLLM_V0, SARATHI)
SYSTEMS = (ASCENDRA, *BASELINES)

PURE_EDF = pooled("ascendra-edf", lp_order="edf")
SJF = pooled("ascendra-sjf", lp_order="shortest-prompt")
"""Other definitions of a request's value: its deadline alone, and its prompt's length."""
FIXED = pooled("ascendra-fixed", hp_batching="elastic:elastic=false")
FIXED_NARROW = pooled("ascendra-fixed-32", hp_batching="elastic:elastic=false,width=32")
NO_TICKET = pooled("ascendra-no-ticket", router="ascendra-no-ticket")
NO_HAND_OFF = pooled("ascendra-no-hand-off", hand_off=None)
"""Ablations."""
SPLITS = {"2L1H": ASCENDRA, "1L2H": pooled("1L2H", lp=1, hp=2), "1L1H": pooled("1L1H", lp=1, hp=1)}

PAIR_CASE, PAIR_LOADS = AscendraCase(MISTRAL, LONGBENCH), (0.9, 1.1)
PAIR = (SPLITS["1L1H"], equal("vllm-v0", 2), equal("sarathi", 2, chunked=DECODE_FIRST))
"""Two instances, on the left of Figure 13; a load gives each instance as many requests as with three."""

THRESHOLDS = (-0.1, 0.0, 0.05, 0.1, 0.2, 0.3)
"""Thresholds of the hand-off, as shares of the target for the first token; 0.05 is the default."""


def with_threshold(threshold: float) -> Service:
    """Ascendra with another hand-off threshold."""
    return pooled(f"threshold {threshold:g}", hand_off=f"{AT_RISK}:threshold={threshold:g}")


FIRST_COME, SHORTEST = "FCFS", "SJF"
"""Orders in the paper's second figure."""


def with_order(name: str, instances: int) -> Service:
    """The vLLM of the paper's time, first come first served or shortest prompt first."""
    order = "shortest-prompt" if name == SHORTEST else "arrival"
    return replace(equal("vllm-v0", instances, Parts(order=order)), name=name)


FIGURE_2_INSTANCES = (1, 2, 3, 4)

# ---- how much, and at which rates ----------------------------------------------------------------------

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


# ---- what the paper reports ----------------------------------------------------------------------------

PAPER_QWEN_RPS = {"vllm-v0": 2.55, "sarathi": 2.8, "ascendra": 2.8}
"""The paper's only absolute rates: those at which Qwen-14B, on ShareGPT, still keeps nine in ten within targets."""
PAPER_GAINS = {
    AscendraCase(MISTRAL, SHAREGPT): (1.191, 1.174),
    AscendraCase(LLAMA, LONGBENCH): (1.154, 1.154),
    AscendraCase(QWEN, SHAREGPT): (2.8 / 2.55, 1.0),
}
"""Gains in goodput over vLLM and Sarathi; no other case has a number."""
PAPER_MOST_GAIN = 1.7
"""Requests within their targets relative to the better of both (abstract)."""
PAPER_IN_SLO_GAIN, PAPER_LOSS_RATIO = 1.74, 0.5
"""In overload: requests within their targets relative to the others; dropped and late ones likewise ("nearly
halved").
"""
PAPER_TIGHTER = 4.0
"""Targets tighter by up to this factor are still met by nine in ten."""
PAPER_TICKET_GAIN, PAPER_DELAY_RATIO = 1.5, 4.0
"""Use of the high-priority instances with tickets over without; the low-priority pool's wait over the high-priority
pool's.
"""
PAPER_MODEL_ERROR = 0.10
"""The relative error of predicted step times stays below it, mostly."""
GOOD = 0.9
"""Share of requests within their targets that defines capacity."""
