"""What the simulator says of the runs of `headway_real`, by the costs of the engine they were made on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.headway_real_engine import BLOCK_TOKENS, SLOTS, Contender, Memory, Run
from bench.taught_lengths import MAX_OUTPUT_TOKENS, estimates_of
from bench.wrong_cost import told_wrongly
from headway.core.record import Record
from headway.experiments.planning.foretold import Foretold
from headway.experiments.policy_choice import OWN_PARTS, policy_factory
from headway.predict.calibration import Calibration
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest


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
