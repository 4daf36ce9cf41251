"""What the simulator says of the runs of `headway_real`, by the costs of the engine they were made on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.headway_real_engine import BLOCK_TOKENS, SLOTS, STOCK, Contender, Memory, Run
from bench.headway_real_plan import CAPACITY_SEED, Prepared, capacity_burst
from bench.taught_lengths import MAX_OUTPUT_TOKENS, estimates_of
from bench.wrong_cost import told_wrongly
from headway.core.batch_shape import BatchShape
from headway.core.record import Record
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.planner.foretold import Foretold
from headway.predict.calibration import Calibration, StepSeconds
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Faster:
    """Steps that are `speed` times as fast."""

    steps: StepSeconds
    speed: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape."""
        return self.steps.step_s(shape) / self.speed


@dataclass(frozen=True, slots=True)
class Engine:
    """This machine's engine on a virtual clock."""

    costs: Calibration
    memory: Memory
    num_blocks: int
    tokens_a_step: int
    asynchronous: bool

    def records(self, run: Run, requests: Sequence[TraceRequest]) -> list[Record]:
        """What becomes of the stream there, its answers as long as the tasks are packaged with."""
        found: list[Record] = []
        contender = run.contender
        simulate(
            requests,
            told_wrongly(policy_factory(contender.policy, OWN_PARTS, requests), contender.steps),
            System(limits=self._limits(contender, run.seats), calibration=self.costs),
            on_record=found.append,
            max_output_tokens=MAX_OUTPUT_TOKENS,
            seed=run.seed,
            lengths=Foretold(estimates_of(contender.predictor, requests, run.seed)),
        )
        return found

    def at_capacity(self, found: Prepared) -> Engine:
        """The same as fast as the machine was when capacity was measured, since loads and targets go by that.

        The machine may have had another speed when its costs were. Copies are left as they are.
        """
        speed = found.capacity_rps / self.capacity_rps(found.capacity_seats)
        costs = replace(
            self.costs,
            step=Faster(self.costs.step, speed),
            host_s=self.costs.host_s / speed,
            host_job_s=self.costs.host_job_s / speed,
            ungraphed_s=self.costs.ungraphed_s / speed,
        )
        return replace(self, costs=costs)

    def capacity_rps(self, seats: int) -> float:
        """What stock gets through here when all requests are there at once."""
        served = self.records(Run(STOCK, "", seats, 0.0, CAPACITY_SEED), capacity_burst())
        return len(served) / max(record.finished_s or 0.0 for record in served)

    def _limits(self, contender: Contender, seats: int) -> EngineLimits:
        """Stock has as many slots as seats."""
        stock = contender.stock is not None
        block_bytes = self.costs.kv_bytes_per_token * BLOCK_TOKENS
        return EngineLimits(
            num_blocks=self.num_blocks,
            block_size=BLOCK_TOKENS,
            max_num_seqs=seats if stock else SLOTS,
            batch_width=None if stock else seats,
            max_num_batched_tokens=self.tokens_a_step,
            max_cudagraph_capture_size=0,  # a CPU has none
            asynchronous=self.asynchronous,
            host_blocks=int(self.memory.of(contender).host_gib * (1 << 30) // block_bytes),
        )
