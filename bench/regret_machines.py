"""The two machines of `bench/regret.py`: one with memory to spare and many seats, one short of both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headway.lab.engine_sizes import Sizes, engine_limits
from headway.lab.simulation import fingerprint
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.sim.simulation import System

HOST_BYTES = 64 << 30
"""Host memory for KV, the same for every policy; most have no use for it."""
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU and a model by the names that `headway simulate` takes, and the longest sequence of the model."""

    name: str
    hardware: str
    model: str
    longest_tokens: int

    def system(self) -> System:
        """One engine with vLLM's own defaults for this GPU, and host memory."""
        return _system(self)

    def fingerprint(self) -> str:
        """Tells apart any two versions of what it costs and how large its engine is."""
        return _fingerprint(self)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h100-llama-8b", "h100", "Llama-3.1-8B", 131_072),
        Machine("a100-opt-13b", "a100-40g", "opt-13b", 2_048),
    )
}
"""By name. FastServe's testbed had A100s of 40 GB; OPT's positions end at 2,048."""


@lru_cache(maxsize=len(MACHINES))
def _system(machine: Machine) -> System:
    costs = calibration(machine.hardware, model_shape(machine.model))
    host_blocks = HOST_BYTES // (costs.kv_bytes_per_token * BLOCK_TOKENS)
    sizes = Sizes(block_size=BLOCK_TOKENS, host_blocks=host_blocks)
    return System(limits=engine_limits(sizes, machine.hardware, costs), calibration=costs)


@lru_cache(maxsize=len(MACHINES))
def _fingerprint(machine: Machine) -> str:
    return f"{fingerprint(_system(machine).calibration)} {_system(machine).limits}"
