"""What there is to choose: how GPUs are shared out, and the sizes and settings of the engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.core.slo import Slo
from headway.errors import ConfigError
from headway.lab.policy_choice import is_pooled
from headway.planner.machine import Machine
from headway.planner.threshold import hands_off, presets_of
from headway.policies.presets import find_preset
from headway.routing.pools import HP, LP
from headway.sim.kv_tier import KvTier

TP_SIZES = (1, 2, 4, 8)
SEATS = (16, 32, 64, 128, 256, 512, 1024)
TOKENS_A_STEP = (512, 1024, 2048, 4096, 8192, 16384)
SMALL_BUDGETS = (128, 256, 512)
"""Tokens a step of policies whose batching has a budget of its own, above which vLLM's makes no difference."""
THRESHOLDS = (None, 0.0, 0.1, 0.25)
"""Of the hand-off rule of pools, in shares of the target for the first token; None: its own. Without pools nobody
takes what another hands off."""
HOST_SHARES = (0.0, 0.5, 2.0)
"""Host memory for KV, in shares of the KV memory of the instance's GPUs."""

_BUDGET = "token_budget="
_NO_SWAPS = "recompute"


@dataclass(frozen=True, slots=True)
class Layout:
    """How GPUs are shared out: instances of `tp` each, `lp` of them of low priority where there are pools."""

    tp: int
    instances: int
    lp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be deployed: policies on each of so many GPUs, for requests of up to `longest_tokens`.

    `slo` has each kind of target that some request has, `predictor` predicts for policies that go by it. `kv_tier` is
    what each GPU may have beside it.
    """

    gpus: tuple[int, ...]
    policies: tuple[str, ...]
    slo: Slo
    predictor: str
    longest_tokens: int
    kv_tier: KvTier | None = None


@dataclass(frozen=True, slots=True)
class Axes:
    """The choices there are of everything that is not fixed by the policy and the number of GPUs."""

    layouts: tuple[Layout, ...]
    seats: tuple[int, ...]
    tokens: tuple[int, ...]
    thresholds: tuple[float | None, ...]
    host_shares: tuple[float, ...]
    kv_tiers: tuple[KvTier | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """How many of each."""
        choices = (self.layouts, self.seats, self.tokens, self.thresholds, self.host_shares, self.kv_tiers)
        return tuple(map(len, choices))


def axes_of(machine: Machine, wanted: Wanted, gpus: int, policy: str) -> Axes:
    """What a policy may be set to on so many GPUs; some combinations will not be possible. Raises ConfigError."""
    rows = [find_preset(preset) for preset in presets_of(policy).values()]
    default = _default_sizes(machine)
    own_budget = not is_pooled(policy) and _BUDGET in rows[0].batching
    hands = wanted.slo.ttft_s is not None and is_pooled(policy) and hands_off(policy)
    swaps = any(not row.eviction.startswith(_NO_SWAPS) for row in rows)
    return Axes(
        layouts=tuple(_layouts(gpus, pooled=is_pooled(policy))),
        seats=_with_default(SEATS, default[0]),
        tokens=SMALL_BUDGETS if own_budget else _with_default(TOKENS_A_STEP, default[1]),
        thresholds=THRESHOLDS if hands else (None,),
        host_shares=HOST_SHARES if swaps else (0.0,),
        kv_tiers=(None,) if wanted.kv_tier is None else (None, wanted.kv_tier),
    )


def _default_sizes(machine: Machine) -> tuple[int, int]:
    """Seats and tokens a step of the smallest instance that holds the model; the largest choices where none does."""
    for tp in TP_SIZES:
        try:
            limits = machine.default_limits(tp)
        except ConfigError:
            continue
        return limits.max_num_seqs, limits.max_num_batched_tokens
    return SEATS[-1], TOKENS_A_STEP[-1]


def _with_default(choices: tuple[int, ...], default: int) -> tuple[int, ...]:
    return tuple(sorted({*choices, default}))


def _layouts(gpus: int, *, pooled: bool) -> Iterator[Layout]:
    """Every size of tensor parallelism, and of pools every split; those that cannot be are there to be counted."""
    for tp in TP_SIZES:
        instances = gpus // tp
        if not pooled or instances < len((LP, HP)):
            yield Layout(tp, instances)
        else:
            yield from (Layout(tp, instances, lp) for lp in range(1, instances))
