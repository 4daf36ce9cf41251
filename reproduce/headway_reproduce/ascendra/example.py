"""The paper's first figure: five requests on two instances, with known prefill times.

Source: Ascendra, Fig. 1. The paper gives only E's prefill, 2 units; the others are ours, chosen so that everything the
paper says about the figure comes true. Under vLLM E waits 4 units. Under Ascendra E takes at 1 the ticket that B has
used before. At 3 the low-priority instance, with the last half unit of A to do, holds C and D, of which only one can
still be in time there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.lab.simulation import simulate_policy
from headway.policies.policy import Policy
from headway.policies.presets import Preset, build_policy, find_preset
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.results.metrics import ends, ttft_s
from headway.results.study import StudyPart, StudyTable, Value
from headway.sim.limits import EngineLimits
from headway.sim.simulation import Policies, PolicyFactory, System
from headway.traces import TraceRequest

UNIT_TOKENS = 10
"""Prompt tokens of a unit of time, which is one second."""
TARGET_S = 5.0
PREFILLS = {"A": 3.5, "B": 1.0, "D": 1.5, "C": 1.0, "E": 2.0}
"""Prefill times in units, in order of arrival: all at 0 except E."""
E_COMES_S = 1.0
LP_TOKENS, HP_TOKENS = UNIT_TOKENS, 4 * UNIT_TOKENS
"""Token budgets: the low-priority instance decides at every unit, the high-priority one computes any prompt whole."""
PICKED = -0.35
"""A threshold of the hand-off with which everything the paper says of the figure comes true, picked for it: C waits
until 1.25 units of slack are left, which are a step here and a prompt such as E's there, less 0.35 of the target.
"""
OWN = 0.05
"""The threshold of the preset."""


@dataclass(frozen=True, slots=True)
class KnownCost(UnknownCost):
    """A fixed time for each token, known to policies; nothing else takes time."""

    per_token_s: float

    def step_s(self, shape: BatchShape) -> float:
        """By its tokens alone."""
        return self.per_token_s * shape.num_tokens

    def step_within_s(self, shape: BatchShape, confidence: float) -> float:
        """The same as `step_s`: the time is certain."""
        return self.step_s(shape)

    def prefill_s(self, num_tokens: int) -> float:
        """By its tokens alone."""
        return self.per_token_s * num_tokens


COST = KnownCost(1.0 / UNIT_TOKENS)


@dataclass(frozen=True, slots=True)
class ExampleFate:
    """Result of one request: the instance of its first token, its delay after arrival, and whether the request was
    handed over.
    """

    instance: str
    ttft_s: float
    moved: bool

    @property
    def missed(self) -> bool:
        """Whether it was late."""
        return self.ttft_s > TARGET_S


def figure_1(threshold: float = PICKED) -> dict[str, dict[str, ExampleFate]]:
    """System -> request -> result, with this threshold of the hand-off."""
    rule = f"at-risk:threshold={threshold:g},hp_tokens={2 * UNIT_TOKENS}"
    lp = find_preset("ascendra-lp", batching=f"within-budgets:token_budget={LP_TOKENS}", leaving=(rule,))
    pools = {"lp": _knowing(lp), "hp": _knowing(find_preset("ascendra-hp", leaving=()))}
    return {
        "vllm-v0": _served(_knowing(find_preset("vllm-v0")), _system()),
        "ascendra": _served(pools, _system({"lp": 1, "hp": 1})),
    }


def _knowing(preset: Preset) -> PolicyFactory:
    def build(cost: CostModel) -> Policy:
        return build_policy(preset, COST)

    return build


def _system(pools: Mapping[str, int] | None = None) -> System:
    """One instance of each pool; or two that take one prompt at a time, as the figure draws them."""
    copies = TransferModel(start_s=0.0, bytes_per_s=1e9)
    costs = Calibration(
        name="made",
        provenance="a unit of time for every ten tokens",
        derived=True,
        step=COST,
        host_s=0.0,
        residuals=(1.0,),
        to_host=copies,
        to_device=copies,
        kv_bytes_per_token=1,
        kv_capacity_tokens=1 << 20,
    )
    limits = EngineLimits(
        num_blocks=1000,
        max_num_seqs=1 if pools is None else 256,
        max_num_batched_tokens=HP_TOKENS,
        prefix_caching=False,
    )
    return System(
        limits=limits,
        calibration=costs,
        instances=2,
        pools=pools,
        router="round-robin" if pools is None else "ascendra",
    )


def _served(policies: Policies, system: System) -> dict[str, ExampleFate]:
    records: list[Record] = []
    simulate_policy(_requests(), policies, system, on_record=records.append, max_output_tokens=1)
    moved = {record.id for record in records if record.outcome is Outcome.HANDED_OFF}
    return {
        record.id: ExampleFate(record.instance, round(ttft_s(record) or 0.0, 6), record.id in moved)
        for record in ends(records)
    }


def _requests() -> list[TraceRequest]:
    return [
        TraceRequest(
            id=name,
            arrival_s=E_COMES_S if name == "E" else 0.0,
            input_tokens=round(units * UNIT_TOKENS),
            output_tokens=1,
            slo=Slo(ttft_s=TARGET_S),
        )
        for name, units in PREFILLS.items()
    ]


def example_part() -> StudyPart:
    """The figure as a table."""
    found = figure_1()
    rows: list[list[Value]] = [
        [name, units, *(value for fates in found.values() for value in _cells(fates[name]))]
        for name, units in sorted(PREFILLS.items())
    ]
    table = StudyTable(
        name="figure-1",
        title=f"Five requests on two instances, target {TARGET_S:g} units, hand-off threshold {PICKED:g}",
        measured_on="simulated, known prefill times",
        headings=[
            "request",
            "prefill, units",
            *(f"{system}: {what}" for system in found for what in ("TTFT", "at", "")),
        ],
        rows=rows,
        note="A to D come at 0, E at 1. The paper gives E's prefill alone; the others' are ours.",
    )
    return StudyPart(title="The example of Figure 1", tables=[table])


def missed(found: Mapping[str, Mapping[str, ExampleFate]]) -> dict[str, str]:
    """System -> the requests that were late, as text."""
    return {
        system: ", ".join(name for name, fate in sorted(fates.items()) if fate.missed) or "nothing"
        for system, fates in found.items()
    }


def _cells(fate: ExampleFate) -> list[Value]:
    said = ", ".join(word for word, true in (("handed off", fate.moved), ("missed", fate.missed)) if true)
    return [fate.ttft_s, fate.instance, said]
