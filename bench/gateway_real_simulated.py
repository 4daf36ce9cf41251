"""What the simulator says of the streams of `gateway_real`, by the costs of an engine measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway_reproduce.ascendra.real_servers import VLLM_FLAGS
from headway_reproduce.ascendra.real_systems import ASCENDRA, SERVICES, SYSTEMS, pool_sizes

from bench.engine_costs import profiled
from headway.core.record import Record
from headway.engine.demo_model import DEMO
from headway.engine.settings import EngineSettings
from headway.lab.engine_sizes import Sizes, engine_limits
from headway.lab.policy_choice import Parts, policies_of
from headway.predict.calibration import Calibration
from headway.predict.cost_file import load_cost_file
from headway.results import summarize
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest

BLOCK_TOKENS = 128
"""Of the CPU backend."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """Instances of this machine, on a virtual clock."""

    file: Path
    costs: Calibration
    instances: int

    @classmethod
    def measured(cls, file: Path, seconds: float, instances: int) -> Simulated:
        """By costs that are in the file, else measured now for about so long and kept there."""
        profiled(file, DEMO, (*VLLM_FLAGS, "--enforce-eager"), EngineSettings(), seconds)
        return cls(file, load_cost_file(file).calibration(), instances)

    def goodput(self, system: str, requests: Sequence[TraceRequest], seed: int) -> float:
        """The share of requests that meet their targets there."""
        service, records = SERVICES[SYSTEMS[system].service], list[Record]()
        policy = ASCENDRA if system == ASCENDRA else service.presets[""]
        simulate(
            requests,
            policies_of(policy, Parts(leaving=service.leaving), requests),
            System(
                limits=engine_limits(Sizes(block_size=BLOCK_TOKENS), str(self.file), self.costs),
                calibration=self.costs,
                instances=self.instances,
                router=SYSTEMS[system].router,
                pools=pool_sizes(service, self.instances) if len(service.presets) > 1 else None,
            ),
            on_record=records.append,
            max_output_tokens=max(request.output_tokens for request in requests),
            seed=seed,
        )
        return summarize(records).goodput or 0.0
