"""The threshold of the rule that hands requests off, put in place of a preset's own."""

from __future__ import annotations

from collections.abc import Mapping

from headway.policies.presets import POOLED, find_preset

HAND_OFF_RULE = "at-risk"
"""The leaving rule that a threshold is of."""


def hands_off(policy: str) -> bool:
    """Whether a policy, or that of some pool of its, hands requests off by a threshold."""
    return any(
        _hands_off(rule) for preset in presets_of(policy).values() for rule in find_preset(preset).leaving
    )


def presets_of(policy: str) -> Mapping[str, str]:
    """The preset of each pool, or of no pool at all."""
    return POOLED.get(policy, {"": policy})


def rules_with(preset: str, threshold: float | None) -> tuple[str, ...] | None:
    """A preset's leaving rules with the threshold in place; None where it changes nothing."""
    rules = find_preset(preset).leaving
    if threshold is None or not any(map(_hands_off, rules)):
        return None
    return tuple(_with_setting(rule, threshold) if _hands_off(rule) else rule for rule in rules)


def _hands_off(rule: str) -> bool:
    return rule.partition(":")[0] == HAND_OFF_RULE


def _with_setting(rule: str, threshold: float) -> str:
    """The rule with this threshold; its other settings stay.

    >>> _with_setting("at-risk", 0.1)
    'at-risk:threshold=0.1'
    """
    name, _, text = rule.partition(":")
    settings = dict(setting.split("=", 1) for setting in filter(None, text.split(",")))
    settings["threshold"] = f"{threshold:g}"
    return f"{name}:{','.join(f'{key}={value}' for key, value in settings.items())}"
