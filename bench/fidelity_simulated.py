"""The simulator's part of `bench/fidelity.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.fidelity_cells import Run, run_of
from bench.fidelity_setup import MAX_OUTPUT_TOKENS, RealSide, predictions
from headway.core.record import Record
from headway.engine.kv.host import HostKv
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.predict.calibration import Calibration
from headway.predict.transfer import TransferModel
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest


def with_link(calibration: Calibration, host_kv: HostKv | None) -> Calibration:
    """The calibration with copies as slow as the engine's were held to."""
    if host_kv is None or host_kv.bytes_per_s is None:
        return calibration
    link = TransferModel(start_s=0.0, bytes_per_s=host_kv.bytes_per_s)
    return replace(calibration, to_host=link, to_device=link)


def simulated(
    calibration: Calibration,
    trace: Sequence[TraceRequest],
    policy: str,
    side: RealSide,
    seed: int = 0,
) -> Run:
    """The same stream on one simulated engine of the same sizes."""
    sizes, host_kv = side.sizes, side.setup.host_kv
    limits = EngineLimits(
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_cudagraph_capture_size=sizes.graphed_tokens,
        batch_width=side.setup.batch_width(policy),
        prefix_caching=sizes.prefix_caching,
        host_blocks=(host_kv and host_kv.blocks) or 0,
    )
    records: list[Record] = []
    result = simulate(
        trace,
        policy_factory(policy, OWN_PARTS, trace),
        System(limits=limits, calibration=calibration),
        on_record=records.append,
        max_output_tokens=MAX_OUTPUT_TOKENS,
        seed=seed,
        lengths=predictions(policy, trace),
    )
    return run_of(records, sum(totals.steps for totals in result.totals.values()))
