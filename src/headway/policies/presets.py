"""The preset table: each policy as a row of parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated

from headway.core.cost import CostModel
from headway.errors import ConfigError, meant
from headway.policies.order.by_priority import by_priority
from headway.policies.parts import BUILT_IN, LISTED, asks_for_costs, build_part, find, known, part_settings
from headway.policies.policy import Policy
from headway.policies.retention import KeepUntilReturn
from headway.setting import Setting


@dataclass(frozen=True, slots=True)
class Preset:
    """One row: parts by name, each `name` or `name:setting=value,...`, and the purpose of the row."""

    name: str
    order: str
    batching: str
    eviction: str
    leaving: tuple[str, ...] = ()
    _: KW_ONLY
    summary: str
    source: str
    keeps_programs: bool = False
    """Whether the KV of agent programs is kept between their turns."""


# fmt: off
_ROWS = (
    Preset("vllm", "arrival", "decode-first", "recompute",
           summary="stock vLLM V1: first come, first served, chunked prefill",
           source="vLLM 0.32"),
    Preset("vllm-v0", "arrival", "prefill-first", "recompute",
           summary="prompts first and whole, decodes wait for them",
           source="vLLM's first scheduler, without padding, as before 0.2.1"),
    Preset("vllm-0.2.5", "arrival", "prefill-first:max_padding_tokens=256", "recompute:free_block_each=true",
           summary="vllm-v0 that pads prompts (computed in the simulator alone) and wants a free block for each decode",
           source="vLLM 0.2.5, the vLLM of AdaptiveLLM"),
    Preset("orca", "arrival", "iteration-level", "recompute",
           summary="iteration-level batches, memory reserved for the longest output, none evicted",
           source="Orca (OSDI 2022), as FastServe compares with it"),
    Preset("sarathi", "arrival", "decode-first:token_budget=512", "recompute",
           summary="small fixed token budget, so a long prompt delays decodes less",
           source="Sarathi-Serve (OSDI 2024)"),
    Preset("static", "arrival", "request-level", "recompute",
           summary="request-level batches: the next starts when the last has finished",
           source="FasterTransformer, as FastServe and Magnus compare with it"),
    Preset("batched", "arrival", "decode-first", "recompute", ("out-of-memory",),
           summary="vllm behind a central queue of batches: what loses its KV goes back there (serve --batches)",
           source="Magnus (ICWS 2024), on an engine that takes a batch one request after another"),
    Preset("sjf", "shortest-prompt", "decode-first", "recompute",
           summary="shortest prompt first; helps the many, long prompts wait",
           source="Ascendra section 3.5"),
    Preset("edf", "edf", "decode-first", "recompute",
           summary="earliest deadline first, late requests last; needs targets",
           source="Liu and Layland 1973; Ascendra section 3.5"),
    Preset("adaptivellm", "waited-over-length", "swapped-or-waiting", "cheapest:serial=true",
           summary="swaps or recomputes, whichever is cheaper; queues by mean wait per token; needs host memory",
           source="AdaptiveLLM (Liang et al. 2025), as published"),
    Preset("adaptivellm-prompt", "waited-over-length:prompt_only=true", "swapped-or-waiting",
           "cheapest:serial=true",
           summary="adaptivellm whose wait per token counts the prompt's tokens alone; needs host memory",
           source="AdaptiveLLM, the reading that its section 4.3 fits"),
    Preset("vllm-s", "arrival", "prefill-first:host_room=true", "swap:serial=true,fallback=false,host_room=true",
           summary="vllm-v0 that always swaps: all that run fit the host together",
           source="the vLLM_S that AdaptiveLLM compares with"),
    Preset("vllm-s-fallback", "arrival", "prefill-first", "swap:serial=true",
           summary="vllm-v0 that swaps, and recomputes when the host is full",
           source="vLLM_S without its limit on starts"),
    Preset("adaptivellm-plus", "deadline-aware", "decode-first:head_room=1", "cheapest:min_residency=4",
           summary="adaptivellm with swaps beside the steps, chunked recomputing, deadlines, no thrashing",
           source="the future work of AdaptiveLLM, built"),
    Preset("fastserve", "skip-join-mlfq", "top-jobs", "proactive",
           summary="short answers do not wait behind long ones, without any predicted length",
           source="FastServe (Wu et al. 2023; NSDI 2026)"),
    Preset("fastserve-v3", "skip-join-mlfq:starve_s=0.3,demote_levels=2", "top-jobs", "proactive",
           summary="fastserve with the constants of its later text: promotes after 0.3 s, demotes by two levels",
           source="FastServe (arXiv 2305.05920v3)"),
    Preset("fastserve-artifact", "skip-join-mlfq:quantum_s=0.01,artifact_order=true", "top-jobs",
           "proactive:burst_levels=0,by_rank=true",
           summary="fastserve as its released code orders, moves and counts",
           source="FastServe, released code"),
    Preset("fastserve-fcfs", "arrival", "decode-first", "swap",
           summary="baseline: FastServe's engine, first come, first served, the last is swapped on shortage",
           source="FastServe-FCFS, released code"),
    Preset("predicted", "governed", "top-jobs:reserve_confidence=0.5", "proactive",
           summary="short answers first by predicted length, with room set aside; fastserve while predictions are bad",
           source="the future work of Magnus (ICWS 2024), built"),
    Preset("hrrn", "hrrn", "decode-first", "recompute",
           summary="longest wait for its predicted work first, request by request; trusts every prediction",
           source="Magnus section 2.7, without batches"),
    Preset("uniboost", "boost", "decode-first", "recompute",
           summary="by arrival, with shorter prompts moved up by a bounded time; without predictions",
           source="UniBoost (Li et al., ICML 2026), one gamma"),
    Preset("headway", "on-time", "paced", "cheapest:min_residency=4,urgent=true",
           summary="as many on time as possible, then the shortest by prediction, in steps as short as targets need",
           source="the four papers in one; adr/0023", keeps_programs=True),
    Preset("ascendra-lp", "slack", "within-budgets", "recompute", ("at-risk", "expired"),
           summary="low priority: prompts by slack beside the decodes; hands off what would be late; needs targets",
           source="Ascendra (Ikram et al. 2025), LP instances"),
    Preset("ascendra-hp", "arrival", "elastic", "recompute", ("expired",),
           summary="high priority: prompts first, as many as memory will hold to the end of their answers",
           source="Ascendra (Ikram et al. 2025), HP instances"),
    Preset("ascendra-lp-no-hand-off", "slack", "within-budgets", "recompute", ("expired",),
           summary="ascendra-lp for an engine alone: every request is kept to its end",
           source="Ascendra, on one engine"),
    Preset("fixed-priority", "shortest-prompt", "top-jobs", "proactive",
           summary="baseline: rank fixed by the prompt's length",
           source="FastServe (arXiv 2305.05920v3) section 6.3"),
    Preset("priority", "priority", "decode-first", "recompute",
           summary="by each request's own priority, as vLLM's --scheduling-policy priority",
           source="vLLM 0.32"),
    Preset("fastertransformer", "arrival", "request-level", "recompute",
           summary="static, by the name FastServe compares with",
           source="FasterTransformer, as FastServe compares with it"),
)
# fmt: on

PRESETS: dict[str, Preset] = {row.name: row for row in _ROWS}
"""The built-in rows. Another package adds one by an entry point in the group `headway.preset`."""
_GROUP = "headway.preset"
AUTO = "auto"

Tail = Annotated[
    float | None,
    Setting(
        "Dial of `headway` and `predicted`: 0 for the least mean completion time, 1 for the shortest tail "
        "(default: 0.5).",
        "0..1",
    ),
]
DecodeShare = Annotated[
    float | str | None,
    Setting(
        "Share of the time that decodes get while prompts are computed (`headway`; batching `paced`). Default: "
        "auto, the step length with the least delay.",
        "auto|0..1",
    ),
]
_DIALS = {"tail": "order", "decode_share": "batching"}
"""Settings with a flag of their own -> the kind of part that has them."""

POOLED: dict[str, Mapping[str, str]] = {"ascendra": {"lp": "ascendra-lp", "hp": "ascendra-hp"}}
"""Policies with several pools of instances: name -> pool -> preset of its instances."""


def known_presets() -> dict[str, Preset]:
    """Every available preset, built in or installed."""
    return known(_GROUP, PRESETS)


def find_preset(
    name: str,
    *,
    order: str | None = None,
    batching: str | None = None,
    eviction: str | None = None,
    leaving: tuple[str, ...] | None = None,
    tail: float | None = None,
    decode_share: float | str | None = None,
) -> Preset:
    """The named row with the given parts and dials in place of its own. Raises ConfigError for an unknown name.

    >>> find_preset("sarathi").batching
    'decode-first:token_budget=512'
    """
    preset = find(_GROUP, PRESETS, name)
    if preset is None:
        raise ConfigError(f"unknown policy {name!r}; {meant(name, known_presets(), listed=LISTED)}")
    changes = {"order": order, "batching": batching, "eviction": eviction, "leaving": leaving}
    given = {part: spec for part, spec in changes.items() if spec is not None}
    row = replace(preset, **given) if given else preset  # type: ignore[arg-type]
    return with_dials(row, {"tail": tail, "decode_share": decode_share})


def with_dials(row: Preset, dials: Mapping[str, float | str | None]) -> Preset:
    """The row with these settings of its parts; None, and `auto` for a share of decodes, change nothing."""
    for dial, value in dials.items():
        if value is not None and (dial, value) != ("decode_share", AUTO):
            kind = _DIALS[dial]
            spec = getattr(row, kind)
            setting = f"{dial}={value:g}" if isinstance(value, float) else f"{dial}={value}"
            row = replace(row, **{kind: f"{spec}{',' if ':' in spec else ':'}{setting}"})  # type: ignore[arg-type]
    return row


def dials_of(row: Preset) -> set[str]:
    """The dials that a row's parts have."""
    named = {dial: (kind, getattr(row, kind).partition(":")[0]) for dial, kind in _DIALS.items()}
    parts = {dial: find(f"headway.{kind}", BUILT_IN[kind], name) for dial, (kind, name) in named.items()}
    return {dial for dial, part in parts.items() if part is not None and dial in part_settings(part)}


def build_policy(preset: Preset, cost: CostModel | None = None, *, priority_first: bool = False) -> Policy:
    """Build a fresh policy from a row. Raises ConfigError, which names the part or setting that is not accepted.

    With `priority_first` its order only ranks jobs of one priority (see `order/by_priority.py`).
    """
    order = build_part("order", preset.order, cost, *((by_priority,) if priority_first else ()))
    batching = build_part("batching", preset.batching, cost)
    eviction = build_part("eviction", preset.eviction, cost)
    leaving = tuple(build_part("leaving", rule, cost) for rule in preset.leaving)
    if getattr(eviction, "host_room", False) and not getattr(batching, "host_room", False):
        raise ConfigError(
            f"eviction {preset.eviction!r} bounds KV by the host's, which batching {preset.batching!r} does not: jobs "
            "would come back and leave again; accepted with it: batching prefill-first:host_room=true"
        )
    if getattr(eviction, "urgent", False) and getattr(batching, "swapped_first", False):
        raise ConfigError(
            f"eviction {preset.eviction!r} swaps jobs out for those that wait, before which batching "
            f"{preset.batching!r} takes them back; accepted with it: a batching that ranks both, such as paced, or "
            "another eviction, such as recompute"
        )
    uses_costs = any(asks_for_costs(type(part)) for part in (order, batching, eviction, *leaving))
    retention = KeepUntilReturn(cost) if preset.keeps_programs else None
    return Policy(preset.name, order, batching, eviction, leaving, uses_costs, retention)
