"""The possible deployments: every setting of every policy on every number of GPUs, and why the rest is impossible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.policy_choice import OWN_PARTS, is_pooled, uses_predictions
from headway.planner.machine import Configuration, Machine
from headway.planner.request import PlanRequest
from headway.policies.pool_settings import PoolSettings, hands_off, presets_of
from headway.policies.presets import build_policy, find_preset
from headway.predict.lengths.choice import NONE
from headway.routing.pools import HP, LP
from headway.sim.limits import KvTier

TP_SIZES = (1, 2, 4, 8)
SEATS = (16, 32, 64, 128, 256, 512, 1024)
TOKENS_A_STEP = (512, 1024, 2048, 4096, 8192, 16384)
SMALL_BUDGETS = (128, 256, 512)
"""Tokens a step of policies whose batching has its own budget, above which vLLM's makes no difference."""
THRESHOLDS = (None, 0.0, 0.1, 0.25)
"""Thresholds of the pools' hand-off rule, in shares of the first-token target; None: its own. Without pools no
hand-offs occur.
"""
LP_TOKENS, HP_TOKENS = (None, 512, 2048), (None, 2048)
"""Tokens a step of each pool; None: derived from targets and step times, up to the engine's limit."""
POOL_ENGINE_TOKENS = 8192
"""Least tokens a step for engines in pools, so that the pools' own budgets decide."""
HOST_SHARES = (0.0, 0.5, 2.0)
"""Host memory for KV, in shares of the KV memory of the instance's GPUs."""

_BUDGET = "token_budget="
_NO_SWAPS = "recompute"


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """How GPUs are divided: instances of `tp` each, with `lp` low-priority ones if there are pools."""

    tp: int
    instances: int
    lp: int = 0


@dataclass(frozen=True, slots=True)
class Axes:
    """The choices for everything that policy and number of GPUs do not fix."""

    layouts: tuple[GpuLayout, ...]
    seats: tuple[int, ...]
    tokens: tuple[int, ...]
    thresholds: tuple[float | None, ...]
    lp_tokens: tuple[int | None, ...]
    hp_tokens: tuple[int | None, ...]
    host_shares: tuple[float, ...]
    kv_tiers: tuple[KvTier | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of choices on each axis."""
        pools = (self.thresholds, self.lp_tokens, self.hp_tokens)
        choices = (self.layouts, self.seats, self.tokens, *pools, self.host_shares, self.kv_tiers)
        return tuple(map(len, choices))


def axes_of(machine: Machine, request: PlanRequest, gpus: int, policy: str, slo: Slo) -> Axes:
    """The choices for a policy on this many GPUs; some combinations are impossible. Raises ConfigError."""
    rows = [find_preset(preset) for preset in presets_of(policy).values()]
    default = _default_sizes(machine)
    pooled = is_pooled(policy)
    own_budget = not pooled and _BUDGET in rows[0].batching
    tokens = (POOL_ENGINE_TOKENS,) if pooled else TOKENS_A_STEP
    hands = slo.ttft_s is not None and pooled and hands_off(policy)
    swaps = any(not row.eviction.startswith(_NO_SWAPS) for row in rows)
    return Axes(
        layouts=tuple(_layouts(gpus, pooled=pooled)),
        seats=_with_default(SEATS, default[0]),
        tokens=SMALL_BUDGETS if own_budget else _with_default(tokens, default[1]),
        thresholds=THRESHOLDS if hands else (None,),
        lp_tokens=LP_TOKENS if pooled else (None,),
        hp_tokens=HP_TOKENS if pooled else (None,),
        host_shares=HOST_SHARES if swaps else (0.0,),
        kv_tiers=(None,) if request.kv_tier is None else (None, request.kv_tier),
    )


def _default_sizes(machine: Machine) -> tuple[int, int]:
    """Seats and tokens a step of the smallest instance that holds the model; the largest choices if none does."""
    for tp in TP_SIZES:
        try:
            limits = machine.default_limits(tp)
        except ConfigError:
            continue
        return limits.max_num_seqs, limits.max_num_batched_tokens
    return SEATS[-1], TOKENS_A_STEP[-1]


def _with_default(choices: tuple[int, ...], default: int) -> tuple[int, ...]:
    return tuple(sorted({*choices, default}))


def _layouts(gpus: int, *, pooled: bool) -> Iterator[GpuLayout]:
    """Every size of tensor parallelism, and every split into pools; impossible ones are included, to be counted."""
    for tp in TP_SIZES:
        instances = gpus // tp
        if not pooled or instances < len((LP, HP)):
            yield GpuLayout(tp, instances)
        else:
            yield from (GpuLayout(tp, instances, lp) for lp in range(1, instances))


REFERENCE_POLICY = "vllm"
"""The policy of the default configuration."""

_GIB = 1 << 30

Index = tuple[int, ...]
"""A setting's position on each axis of a grid."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """All settings of one policy on one number of GPUs: `shape` has the length of each axis, `possible` what can run.

    `plain` is the policy with vLLM's own sizes and no other change, if that is possible.
    """

    gpus: int
    policy: str
    shape: tuple[int, ...]
    possible: Mapping[Index, Configuration]
    plain: Configuration | None


@dataclass(frozen=True, slots=True)
class Space:
    """What may be tried; `default` is stock vLLM on each number of GPUs, `impossible` counts the rest by reason."""

    grids: tuple[PolicySettings, ...]
    default: Mapping[int, Configuration]
    impossible: Mapping[str, int]

    @property
    def size(self) -> int:
        """Number of possible configurations."""
        return sum(len(grid.possible) for grid in self.grids)


def build_space(
    machine: Machine, request: PlanRequest, *, policies: Sequence[str], slo: Slo, longest_tokens: int
) -> Space:
    """Everything that is possible on the GPUs of a plan, and counts of what is not.

    Configurations must serve requests of up to `longest_tokens`. `slo` has each kind of target that some request has.

    Raises ConfigError for an unknown policy, and if stock vLLM itself cannot serve on all of the GPUs; a smaller number
    that cannot is left out. O(settings), some ten thousand for eight GPUs.
    """
    _check_policies(policies)
    impossible: Counter[str] = Counter()
    default: dict[int, Configuration] = {}
    for gpus in request.counts():
        try:
            default[gpus] = default_configuration(machine, gpus, longest_tokens)
        except ConfigError:
            if gpus == request.gpus:
                raise
    grids = [
        _grid(machine, request, gpus, policy, slo, longest_tokens, impossible)
        for gpus, policy in product(request.counts(), policies)
    ]
    return Space(tuple(grid for grid in grids if grid.gpus in default), default, dict(impossible))


def _check_policies(policies: Sequence[str]) -> None:
    """Raise ConfigError for a name that cannot be deployed: unknown, or of something that exists only in
    simulations.
    """
    for policy in policies:
        for preset in presets_of(policy).values():
            build_policy(find_preset(preset))


def default_configuration(machine: Machine, gpus: int, longest_tokens: int) -> Configuration:
    """Stock vLLM on this many GPUs with its default flags, on as many instances as can hold the model.

    Raises ConfigError with the last reason if no layout can.
    """
    why = ""
    for tp in TP_SIZES:
        layout = GpuLayout(tp, gpus // tp)
        found = _why_no_layout(machine, gpus, layout, REFERENCE_POLICY, longest_tokens)
        if found is None:
            limits = machine.default_limits(tp)
            return Configuration(
                gpus=gpus,
                policy=REFERENCE_POLICY,
                tp=tp,
                instances=layout.instances,
                seats=limits.max_num_seqs,
                tokens_a_step=limits.max_num_batched_tokens,
            )
        # The number of heads or GPUs does not show how much memory is missing.
        why = why or found
    raise ConfigError(f"{machine.model} cannot be served on {gpus} x {machine.hardware}: {why}")


# ---- one grid ------------------------------------------------------------------------------------------


def _grid(
    machine: Machine,
    request: PlanRequest,
    gpus: int,
    policy: str,
    slo: Slo,
    longest_tokens: int,
    impossible: Counter[str],
) -> PolicySettings:
    axes = axes_of(machine, request, gpus, policy, slo)
    predictor = request.predictor if uses_predictions(policy, OWN_PARTS) else NONE
    why_not = {
        layout: _why_no_layout(machine, gpus, layout, policy, longest_tokens) for layout in axes.layouts
    }
    found: dict[Index, Configuration] = {}
    for index in product(*map(range, axes.shape)):
        layout = axes.layouts[index[0]]
        why = why_not[layout]
        if why is None:
            configuration = Configuration(
                gpus=gpus,
                policy=policy,
                tp=layout.tp,
                instances=layout.instances,
                lp=layout.lp,
                seats=axes.seats[index[1]],
                tokens_a_step=axes.tokens[index[2]],
                threshold=axes.thresholds[index[3]],
                lp_tokens=axes.lp_tokens[index[4]],
                hp_tokens=axes.hp_tokens[index[5]],
                host_gib=_host_gib(machine, layout.tp, axes.host_shares[index[6]]),
                kv_tier=axes.kv_tiers[index[7]],
                predictor=predictor,
            )
            why = _why_no_sizes(machine, configuration)
        if why is None:
            found[index] = configuration
        else:
            impossible[why] += 1
    return PolicySettings(gpus, policy, axes.shape, found, _plain(machine, found))


def _host_gib(machine: Machine, tp: int, share: float) -> float:
    """This share of the KV memory of an instance's GPUs, rounded to two digits, in GiB."""
    costs = machine.costs(tp)
    return float(f"{share * costs.kv_capacity_tokens * costs.kv_bytes_per_token / _GIB:.2g}")


def _plain(machine: Machine, found: Mapping[Index, Configuration]) -> Configuration | None:
    """The first one with nothing added and vLLM's own sizes, or the nearest to them."""
    unchanged = [
        each
        for each in found.values()
        if each.pool_settings == PoolSettings() and not (each.host_gib or each.kv_tier)
    ]
    if not unchanged:
        return None

    def distance(configuration: Configuration) -> tuple[object, ...]:
        default = machine.default_limits(configuration.tp)
        seats, tokens = default.max_num_seqs, default.max_num_batched_tokens
        off = abs(configuration.seats - seats) + abs(configuration.tokens_a_step - tokens)
        return (
            configuration.tp,
            off,
            abs(2 * configuration.lp - configuration.instances),
            configuration.place,
        )

    return min(unchanged, key=distance)


# ---- impossible configurations -------------------------------------------------------------------------


def _why_no_layout(
    machine: Machine, gpus: int, layout: GpuLayout, policy: str, longest_tokens: int
) -> str | None:
    """Why GPUs cannot be divided so; None if they can."""
    if layout.tp > gpus or gpus % layout.tp:
        return "TP does not divide the number of GPUs"
    if not machine.node.holds(layout.tp, gpus):
        return f"TP does not divide the GPUs of a machine ({machine.node.gpus}), and stays within one"
    if is_pooled(policy) and layout.instances < len((LP, HP)):
        return f"pools need {len((LP, HP))} instances or more"
    try:
        capacity = machine.costs(layout.tp).kv_capacity_tokens
    except ConfigError as error:
        return str(error)
    if capacity < longest_tokens:
        return (
            f"the KV cache of TP {layout.tp} has no room for the longest request ({longest_tokens:,} tokens)"
        )
    return None


def _why_no_sizes(machine: Machine, configuration: Configuration) -> str | None:
    """Why an engine cannot have these sizes; None if it can."""
    if configuration.seats > configuration.tokens_a_step:
        return "more seats than tokens a step, which vLLM refuses"
    if configuration.host_gib and configuration.kv_tier is not None:
        return "host memory for swaps beside a KV tier, which is not simulated"
    if (
        machine.node.host_gib is not None
        and _host_gib_of_node(machine, configuration) > machine.node.host_gib
    ):
        return f"more host memory for KV than a machine has ({machine.node.host_gib:g} GiB)"
    model = machine.costs(configuration.tp).model
    if model is not None and model.windowed and (configuration.host_gib or configuration.kv_tier is not None):
        return "KV outside the device with a model that has sliding windows, which is not simulated"
    largest = machine.largest_measured()
    if largest is not None and (configuration.seats > largest[0] or configuration.tokens_a_step > largest[1]):
        return f"larger steps than the cost file was measured with ({largest[0]} jobs, {largest[1]} tokens)"
    return None


def _host_gib_of_node(machine: Machine, configuration: Configuration) -> float:
    """Host memory that the instances of one machine use, for swaps and for a KV tier."""
    tier = configuration.kv_tier
    stored = 0.0 if tier is None else tier.of_engine(configuration.tp).gib
    return machine.node.instances(configuration) * (configuration.host_gib + stored)
