"""Small simulated worlds: laws of step time that can be worked out by hand, and runs in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.plan import StepOutcome
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.policies.presets import build_policy, find_preset
from headway.predict.steps.calibration import Calibration, StepSeconds
from headway.predict.steps.copies import TransferModel
from headway.sim.limits import EngineLimits
from headway.sim.simulation import Policies, PolicyFactory, SimulatedRun, System, simulate
from headway.sim.watcher import ObservedStep, Watcher
from headway.traces import TraceRequest

LIMIT = 64
"""Output tokens a request may have at most, as the policies are told."""


@dataclass(frozen=True, slots=True)
class Linear:
    """So long a step, and so much more for each token and each context token it reads."""

    base_s: float = 1.0
    per_token_s: float = 0.0
    per_context_s: float = 0.0

    def step_s(self, shape: BatchShape) -> float:
        context = shape.decode_context_tokens + shape.prefill_context_tokens
        return self.base_s + self.per_token_s * shape.num_tokens + self.per_context_s * context


def calibration(
    law: StepSeconds | None = None, residuals: tuple[float, ...] = (1.0,), host_s: float = 0.0
) -> Calibration:
    """Costs under a law, copies at 1 GB/s."""
    copies = TransferModel(start_s=0.0, bytes_per_s=1e9)
    return Calibration(
        name="test",
        provenance="made up",
        derived=True,
        step=law or Linear(),
        host_s=host_s,
        residuals=residuals,
        to_host=copies,
        to_device=copies,
        kv_bytes_per_token=1,
        kv_capacity_tokens=1000,
    )


SECOND_STEPS = replace(calibration(), kv_capacity_tokens=64)
"""Every step takes a second."""


def limits(**sizes: Any) -> EngineLimits:
    """An engine with room for everybody, unless told otherwise."""
    return EngineLimits(**{"num_blocks": 1000, "block_size": 4, "max_num_seqs": 8, **sizes})


def system(**sizes: Any) -> System:
    """An engine to follow by hand: two seats, 16 blocks of 4 tokens, a second a step, no prefix caching."""
    small = {"num_blocks": 16, "max_num_seqs": 2, "max_num_batched_tokens": 16, "prefix_caching": False}
    return System(limits=limits(**{**small, **sizes}), calibration=SECOND_STEPS)


def request(id_: str, arrival_s: float, prompt: int, output: int, **fields: Any) -> TraceRequest:
    """One request."""
    return TraceRequest(id=id_, arrival_s=arrival_s, input_tokens=prompt, output_tokens=output, **fields)


def preset(name: str, **parts: Any) -> PolicyFactory:
    """Policies of a row."""
    return lambda cost: build_policy(find_preset(name, **parts), cost)


def run(
    requests: Iterable[TraceRequest],
    policy: Policies | str = "vllm",
    system: System | None = None,
    watchers: Sequence[Watcher] = (),
    **options: Any,
) -> tuple[dict[str, Record], SimulatedRun]:
    """Records by id in the order requests ended, every invariant checked on the way; a move is under `moved`."""
    records: dict[str, Record] = {}
    world = system or System(limits=limits(), calibration=calibration())
    build = preset(policy) if isinstance(policy, str) else policy
    together = _Together(watchers) if watchers else None

    def keep(record: Record) -> None:
        name = moved(record.id) if record.outcome is Outcome.HANDED_OFF else record.id
        assert name not in records, f"{name} twice"
        records[name] = record

    result = simulate(
        requests,
        build,
        world,
        on_record=keep,
        **{"max_output_tokens": LIMIT, "watcher": together, "check": True, **options},
    )
    return records, result


@dataclass(frozen=True, slots=True)
class _Together:
    """Several watchers as one."""

    watchers: Sequence[Watcher]

    def saw(self, sight: ObservedStep) -> None:
        for each in self.watchers:
            each.saw(sight)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        for each in self.watchers:
            each.stepped(instance, outcome, started_s, finished_s)

    def ended(self, record: Record) -> None:
        for each in self.watchers:
            each.ended(record)


def moved(id_: str) -> str:
    """The key under which the record of a request's move is kept."""
    return f"{id_}, moved"


def slo(ttft_s: float) -> Slo:
    """A target for the first token."""
    return Slo(ttft_s=ttft_s)
