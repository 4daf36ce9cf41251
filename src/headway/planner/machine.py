"""One deployment: its settings, the policies and engines they give, and the costs of these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from headway.file_state import FileState, file_state
from headway.lab.engine_sizes import EngineSizes, engine_limits, host_blocks
from headway.lab.simulation import fingerprint
from headway.policies.pool_settings import PoolSettings, presets_of
from headway.policies.presets import Preset, build_policy
from headway.predict.lengths.choice import NONE
from headway.predict.models.known_models import model_shape
from headway.predict.models.model_shape import FILES
from headway.predict.steps.attention_kernels import DEFAULT_ATTENTION, attention_kernels
from headway.predict.steps.calibration import Calibration, CostFile, load_cost_file
from headway.predict.steps.hardware import calibration, is_cost_file
from headway.routing import DEFAULT_ROUTER, POOL_ROUTER
from headway.routing.pools import HP, LP, PoolSizes
from headway.sim.limits import EngineLimits, KvTier
from headway.sim.simulation import Policies, PolicyFactory, System
from headway.written_path import written_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A deployment: `instances` engines of `tp` GPUs each under one policy, or in two pools.

    `lp` of the instances are low-priority, 0 without pools. `seats` is vLLM's `max_num_seqs`, `tokens_a_step` its
    `max_num_batched_tokens`. `threshold`, `lp_tokens` and `hp_tokens` replace the pools' own (`PoolSettings`); None
    keeps them. `host_gib` is host memory for KV, for each instance. `kv_tier` is that of each GPU. `predictor` predicts
    answer lengths.
    """

    gpus: int
    policy: str
    tp: int
    instances: int
    lp: int = 0
    seats: int
    tokens_a_step: int
    threshold: float | None = None
    lp_tokens: int | None = None
    hp_tokens: int | None = None
    host_gib: float = 0.0
    kv_tier: KvTier | None = None
    predictor: str = NONE

    @property
    def pools(self) -> PoolSizes | None:
        """Instances in each pool; None without pools."""
        return {LP: self.lp, HP: self.instances - self.lp} if self.lp else None

    @property
    def pool_settings(self) -> PoolSettings:
        """The settings that replace the pools' own."""
        return PoolSettings(
            hand_off_threshold=self.threshold, lp_tokens=self.lp_tokens, hp_tokens=self.hp_tokens
        )

    @property
    def place(self) -> tuple[object, ...]:
        """Sort key among equally good configurations, so that every ranking is total."""
        threshold = -1.0 if self.threshold is None else self.threshold
        budgets = (self.lp_tokens or 0, self.hp_tokens or 0)
        sizes = (self.gpus, self.tp, self.instances, self.lp, self.seats, self.tokens_a_step)
        return (
            *sizes,
            self.policy,
            threshold,
            *budgets,
            self.host_gib,
            f"{self.kv_tier or ''}",
            self.predictor,
        )

    def layout(self) -> str:
        """Describe the instances."""
        pools = self.pools
        named = f"{self.instances}" if pools is None else ",".join(f"{p}={n}" for p, n in pools.items())
        return f"{named} x TP {self.tp}"

    def __str__(self) -> str:
        given = [f"{self.seats:,} seats", f"{self.tokens_a_step:,} tokens a step"]
        if self.threshold is not None:
            given.append(f"threshold {self.threshold:g}")
        for pool, tokens in ((LP, self.lp_tokens), (HP, self.hp_tokens)):
            if tokens is not None:
                given.append(f"{tokens:,} of {pool.upper()}")
        if self.host_gib:
            given.append(f"{self.host_gib:g} GiB of host memory")
        if self.kv_tier is not None:
            given.append(f"KV tier {self.kv_tier}")
        return f"{self.policy} on {self.layout()}, {', '.join(given)}"


_POOLS = ("threshold", "lp_tokens", "hp_tokens")
MOVING = ("policy", "tp", "lp", "seats", "tokens_a_step", *_POOLS, "host_gib", "kv_tier", "predictor")
"""Settings that a deployment chooses; GPUs and instances follow from others."""


def moving_parts(configuration: Configuration, default: Configuration) -> int:
    """Number of differences from the default; pools count twice, as a policy and as pools.

    Of two equally good configurations the one with fewer differences is easier to operate.
    """
    return sum(getattr(configuration, name) != getattr(default, name) for name in MOVING)


NO_POOL = ""


@dataclass(frozen=True, slots=True)
class Node:
    """One of the machines with the GPUs: its number of GPUs, and the host memory for KV.

    None: a single machine has all GPUs; host memory is unlimited.
    """

    gpus: int | None = None
    host_gib: float | None = None

    def sizes(self, gpus: int) -> tuple[int, ...]:
        """GPUs of each machine; all but the last are full."""
        each = gpus if self.gpus is None else min(self.gpus, gpus)
        return (each,) * (gpus // each) + ((gpus % each,) if gpus % each else ())

    def holds(self, tp: int, gpus: int) -> bool:
        """Whether instances of `tp` GPUs use all GPUs without spanning two machines."""
        return all(size % tp == 0 for size in self.sizes(gpus))

    def instances(self, configuration: Configuration) -> int:
        """Instances on the machine with the most of them."""
        return self.sizes(configuration.gpus)[0] // configuration.tp


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware (a name or a cost file), a model, and the machines: everything that determines an engine's costs.

    Machines made before and after one of their files was written again are not equal, so caches keep them apart.
    """

    hardware: str
    model: str
    node: Node = Node()
    attention: str = DEFAULT_ATTENTION
    # Not in the text that the digests of kept runs are made of: a file with the same costs keeps its runs.
    _files: tuple[FileState | None, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        model = written_path(self.model)
        paths = (written_path(self.hardware), *(model / name for name in FILES))
        object.__setattr__(self, "_files", tuple(map(file_state, paths)))

    def costs(self, tp: int) -> Calibration:
        """The costs of the model on an instance of `tp` GPUs. Raises ConfigError if it does not fit, or is unknown."""
        return _costs(self, tp)

    @property
    def context_tokens(self) -> int:
        """The longest request that the model accepts; 0 if unknown."""
        return model_shape(self.model).context_tokens

    def fingerprint(self, tp: int) -> str:
        """Identifies these costs."""
        return _fingerprint(self, tp)

    def largest_measured(self) -> tuple[int, int] | None:
        """Jobs and tokens of the largest measured steps; None for a GPU of the catalogue, or without rows."""
        measured = _cost_file(self)
        if measured is None or not measured.rows:
            return None
        return max(row.num_jobs for row in measured.rows), max(row.num_tokens for row in measured.rows)

    def measured_flags(self) -> tuple[str, ...]:
        """vLLM's flags, except for sizes, with which the engine in the cost file was measured."""
        measured = _cost_file(self)
        return () if measured is None or measured.engine is None else measured.engine.vllm_flags

    def attention_flags(self) -> tuple[str, ...]:
        """vLLM's flags that select attention kernels other than its default."""
        if self.attention == DEFAULT_ATTENTION:
            return ()
        return ("--attention-backend", attention_kernels(self.attention).vllm_backend)

    def default_limits(self, tp: int) -> EngineLimits:
        """vLLM's default limits. Raises ConfigError as `costs` does."""
        return _default_limits(self, tp)

    def limits(self, configuration: Configuration) -> EngineLimits:
        """The limits of one engine of a configuration; CUDA graphs stay as for vLLM's default seats.

        Raises ConfigError for an impossible configuration.
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
        """The simulated system."""
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
    """The policies of a configuration's engines, with the settings of its pools."""
    made: dict[str, PolicyFactory] = {
        pool: partial(build_policy, _preset(preset, configuration.pool_settings))
        for pool, preset in presets_of(configuration.policy).items()
    }
    return made if configuration.pools is not None else made[NO_POOL]


@lru_cache(maxsize=64)
def _preset(name: str, settings: PoolSettings) -> Preset:
    """A preset with these settings, cached, since finding one searches all installed packages."""
    return settings.preset(name)


@lru_cache(maxsize=8)
def _cost_file(machine: Machine) -> CostFile | None:
    hardware = machine.hardware
    return load_cost_file(written_path(hardware)) if is_cost_file(hardware) else None


@lru_cache(maxsize=32)
def _costs(machine: Machine, tp: int) -> Calibration:
    return calibration(machine.hardware, model_shape(machine.model), tp, attention=machine.attention)


@lru_cache(maxsize=32)
def _default_limits(machine: Machine, tp: int) -> EngineLimits:
    return engine_limits(EngineSizes(tp=tp), machine.hardware, _costs(machine, tp))


@lru_cache(maxsize=32)
def _fingerprint(machine: Machine, tp: int) -> str:
    return fingerprint(_costs(machine, tp))
