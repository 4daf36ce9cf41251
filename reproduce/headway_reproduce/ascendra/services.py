"""The systems that Ascendra's experiments compare: equal instances behind a router, or pools of instances."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.lab.policy_choice import OWN_PARTS, Parts

INSTANCES = 3
"""GPUs of the paper, an instance each."""


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

PAIR = (SPLITS["1L1H"], equal("vllm-v0", 2), equal("sarathi", 2, chunked=DECODE_FIRST))
"""Two instances, on the left of Figure 13."""


def with_threshold(threshold: float) -> Service:
    """Ascendra with another hand-off threshold."""
    return pooled(f"threshold {threshold:g}", hand_off=f"{AT_RISK}:threshold={threshold:g}")


FIRST_COME, SHORTEST = "FCFS", "SJF"
"""Orders in the paper's second figure."""


def with_order(name: str, instances: int) -> Service:
    """The vLLM of the paper's time, first come first served or shortest prompt first."""
    order = "shortest-prompt" if name == SHORTEST else "arrival"
    return replace(equal("vllm-v0", instances, Parts(order=order)), name=name)
