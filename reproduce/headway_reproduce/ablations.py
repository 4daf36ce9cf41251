"""The papers' ablations: policies that only these studies serve, each a preset with other parts."""

from __future__ import annotations

from dataclasses import replace

from headway.lab.policy_choice import OWN_PARTS, Parts, rows_of
from headway.policies.presets import Preset

ABLATIONS: dict[str, tuple[str, Parts]] = {
    "adaptivellm-memory": ("adaptivellm", Parts(order="arrival", batching="prefill-first")),
    "adaptivellm-predict-only": ("vllm-v0", Parts(eviction="cheapest:serial=true,always_recompute=true")),
    "adaptivellm-plus-recompute": ("adaptivellm-plus", Parts(eviction="recompute")),
    "mlfq-no-preempt": ("fastserve", Parts(order="skip-join-mlfq:skip_join=false")),
    "defer": ("fastserve", Parts(batching="top-jobs:reserve=true", eviction="recompute")),
    "reactive-swap": ("fastserve", Parts(eviction="proactive:ahead=false,serial=true")),
    "recompute": ("fastserve", Parts(eviction="proactive:drop=true,ahead=false")),
}
"""Name in a study -> the preset, and the parts that replace its own."""


def preset_and_parts(policy: str, parts: Parts = OWN_PARTS) -> tuple[str, Parts]:
    """The preset that a study's policy is made of, and the parts that replace its own; those in `parts` take
    precedence.
    """
    preset, own = ABLATIONS.get(policy, (policy, OWN_PARTS))
    return preset, replace(own, **parts.given())


def row_of(policy: str) -> Preset:
    """The row of parts of a study's policy; ConfigError for an unknown name."""
    preset, parts = preset_and_parts(policy)
    return rows_of(preset, parts)[preset]


def with_setting(spec: str, setting: str) -> str:
    """A part's text with one more setting."""
    return f"{spec}{',' if ':' in spec else ':'}{setting}"
