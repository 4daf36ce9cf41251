"""What a configuration runs on: costs and limits of its engines, and the simulated system they make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache, partial

from headway.lab.engine_sizes import Sizes, engine_limits, host_blocks
from headway.lab.simulation import fingerprint
from headway.planner.configuration import Configuration
from headway.planner.threshold import presets_of, rules_with
from headway.policies.presets import Preset, build_policy, find_preset
from headway.predict.calibration import Calibration
from headway.predict.cost_file import CostFile, load_cost_file
from headway.predict.hardware import calibration, is_cost_file
from headway.predict.known_models import model_shape
from headway.routing import DEFAULT_ROUTER, POOL_ROUTER
from headway.sim.limits import EngineLimits
from headway.sim.simulation import Policies, PolicyFactory, System
from headway.written_path import written_path

NO_POOL = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware by name, or a cost file, and a model: all that decides what an engine costs."""

    hardware: str
    model: str

    def costs(self, tp: int) -> Calibration:
        """What the model costs on an instance of `tp` GPUs. Raises ConfigError where it does not fit, or is unknown."""
        return _costs(self.hardware, self.model, tp)

    @property
    def context_tokens(self) -> int:
        """The longest request that the model takes; 0 if it does not say."""
        return model_shape(self.model).context_tokens

    def fingerprint(self, tp: int) -> str:
        """Tells these costs from any others."""
        return _fingerprint(self.hardware, self.model, tp)

    def largest_measured(self) -> tuple[int, int] | None:
        """Jobs and tokens of the largest steps in the cost file; None for a GPU of the catalogue, or without rows."""
        measured = _cost_file(self.hardware)
        if measured is None or not measured.rows:
            return None
        return max(row.num_jobs for row in measured.rows), max(row.num_tokens for row in measured.rows)

    def measured_flags(self) -> tuple[str, ...]:
        """Those of vLLM that the engine in the cost file was measured with, and that say no size."""
        measured = _cost_file(self.hardware)
        return () if measured is None or measured.engine is None else measured.engine.vllm_flags

    def default_limits(self, tp: int) -> EngineLimits:
        """What vLLM takes where nothing is said. Raises ConfigError as `costs`."""
        return _default_limits(self.hardware, self.model, tp)

    def limits(self, configuration: Configuration) -> EngineLimits:
        """Of one engine of a configuration, with the CUDA graphs of vLLM's own seats however few it has.

        Raises ConfigError for one that is not possible.
        """
        default = self.default_limits(configuration.tp)
        return replace(
            default,
            max_num_seqs=configuration.seats,
            max_num_batched_tokens=configuration.tokens_a_step,
            max_cudagraph_capture_size=default.graphed_tokens,
            host_blocks=host_blocks(configuration.host_gib, default.block_size, self.costs(configuration.tp)),
        )

    def system(self, configuration: Configuration) -> System:
        """What the simulator serves with."""
        return System(
            limits=self.limits(configuration),
            calibration=self.costs(configuration.tp),
            instances=configuration.instances,
            router=DEFAULT_ROUTER if configuration.pools is None else POOL_ROUTER,
            pools=configuration.pools,
            kv_tier=None
            if configuration.kv_tier is None
            else configuration.kv_tier.of_engine(configuration.tp),
        )


def planned_policies(configuration: Configuration) -> Policies:
    """What makes the policies of its engines, the hand-off's threshold put in place where one is given."""
    made: dict[str, PolicyFactory] = {
        pool: partial(build_policy, _preset(preset, configuration.threshold))
        for pool, preset in presets_of(configuration.policy).items()
    }
    return made if configuration.pools is not None else made[NO_POOL]


@lru_cache(maxsize=64)
def _preset(name: str, threshold: float | None) -> Preset:
    """A row with the threshold in place; to find one takes a look at every installed package."""
    return find_preset(name, leaving=rules_with(name, threshold))


@lru_cache(maxsize=8)
def _cost_file(hardware: str) -> CostFile | None:
    return load_cost_file(written_path(hardware)) if is_cost_file(hardware) else None


@lru_cache(maxsize=32)
def _costs(hardware: str, model: str, tp: int) -> Calibration:
    return calibration(hardware, model_shape(model), tp)


@lru_cache(maxsize=32)
def _default_limits(hardware: str, model: str, tp: int) -> EngineLimits:
    return engine_limits(Sizes(tp=tp), hardware, _costs(hardware, model, tp))


@lru_cache(maxsize=32)
def _fingerprint(hardware: str, model: str, tp: int) -> str:
    return fingerprint(_costs(hardware, model, tp))
