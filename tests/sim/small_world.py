"""A machine simple enough to follow by hand: every step takes a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.record import Record
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.predict.calibration import Calibration
from headway.predict.transfer import TransferModel
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.sim.watcher import Watcher, watched
from headway.traces import TraceRequest

BLOCK_TOKENS = 4


@dataclass(frozen=True)
class ConstantStep:
    seconds: float = 1.0

    def step_s(self, shape: BatchShape) -> float:
        return self.seconds


_COPIES = TransferModel(start_s=0.0, bytes_per_s=1e9)

SECOND_STEPS = Calibration(
    name="one-second steps",
    provenance="made up",
    derived=False,
    step=ConstantStep(),
    host_s=0.0,
    residuals=(1.0,),
    to_host=_COPIES,
    to_device=_COPIES,
    kv_bytes_per_token=1,
    kv_capacity_tokens=64,
)


def system(**limits: Any) -> System:
    """One engine with blocks of 4 tokens, no prefix caching, synchronous."""
    plain: dict[str, Any] = {
        "num_blocks": 16,
        "block_size": BLOCK_TOKENS,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "prefix_caching": False,
    }
    return System(limits=EngineLimits(**{**plain, **limits}), calibration=SECOND_STEPS)


def preset(name: str, **parts: Any) -> Any:
    row = find_preset(name, **parts)

    def build(cost: CostModel) -> Policy:
        return build_policy(row, cost)

    return build


def run(
    requests: Sequence[TraceRequest], world: System, watcher: Watcher | None, policy: Any = None
) -> list[Record]:
    """Simulate, watched; the records in the order requests ended."""
    records: list[Record] = []
    build = policy or preset("vllm")

    def ended(record: Record) -> None:
        records.append(record)
        if watcher is not None:
            watcher.ended(record)

    simulate(
        requests,
        build if watcher is None else watched(build, watcher),
        world,
        on_record=ended,
        max_output_tokens=64,
        watch=None if watcher is None else watcher.stepped,
        check=True,
    )
    return records
