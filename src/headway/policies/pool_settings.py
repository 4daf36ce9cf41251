"""Settings for the instances of a pool, in place of their presets' own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from headway.policies.presets import POOLED, Preset, find_preset
from headway.setting import COUNT, Setting, ValueBounds, check_settings

_HAND_OFF, _LP_BATCHING, _HP_BATCHING = "at-risk", "within-budgets", "elastic"
_THRESHOLD = ValueBounds("a share of the target between -1 and 1", lambda value: -1 < value < 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings given for pools; None keeps a preset's own.

    `hand_off_threshold` belongs to the rule that hands requests off. `lp_tokens` are the tokens a step of an LP
    instance; `hp_tokens` those of an HP instance, which LP instances also use when they hand off.
    """

    hand_off_threshold: Annotated[
        float | None,
        Setting(
            "Share of the first token's target that a policy keeps in reserve before it hands off a request at risk "
            "(default: the policy's own).",
            "X",
            _THRESHOLD,
        ),
    ] = None
    lp_tokens: Annotated[
        int | None,
        Setting(
            "Tokens a step of low-priority instances (default: as many as a step within the target between tokens "
            "computes).",
            "N",
            COUNT,
        ),
    ] = None
    hp_tokens: Annotated[
        int | None, Setting("The same, of high-priority instances, whose prompts run first.", "N", COUNT)
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def given(self) -> dict[str, float]:
        """The settings that were given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def heeded_by(self, policy: str) -> dict[str, float]:
        """The given settings that change the decisions of a policy, or of one of its pools' policies."""
        rows = list(map(find_preset, presets_of(policy).values()))
        hands = any(map(_hands_off, rows))
        heeds = {
            "hand_off_threshold": hands,
            "lp_tokens": any(_is(row.batching, _LP_BATCHING) for row in rows),
            "hp_tokens": any(_is(row.batching, _HP_BATCHING) for row in rows)
            or any(_is(row.batching, _LP_BATCHING) and _hands_off(row) for row in rows),
        }
        return {name: value for name, value in self.given.items() if heeds[name]}

    def batching(self, preset: str) -> str | None:
        """A preset's batching with these settings; None if they change nothing."""
        row = find_preset(preset).batching
        tokens = {_LP_BATCHING: self.lp_tokens, _HP_BATCHING: self.hp_tokens}
        given = next((each for name, each in tokens.items() if _is(row, name)), None)
        return None if given is None else _with(row, token_budget=f"{given}")

    def leaving(self, preset: str) -> tuple[str, ...] | None:
        """A preset's leaving rules with these settings; None if they change nothing."""
        row = find_preset(preset)
        given: dict[str, str] = {}
        if self.hand_off_threshold is not None:
            given["threshold"] = f"{self.hand_off_threshold:g}"
        if self.hp_tokens is not None:
            given["hp_tokens"] = f"{self.hp_tokens}"
        if not given or not _hands_off(row):
            return None
        return tuple(_with(rule, **given) if _is(rule, _HAND_OFF) else rule for rule in row.leaving)

    def preset(self, name: str) -> Preset:
        """A preset with these settings."""
        return find_preset(name, batching=self.batching(name), leaving=self.leaving(name))


def hands_off(policy: str) -> bool:
    """Whether a policy, or one of its pools' policies, hands requests off by a threshold."""
    return any(_hands_off(find_preset(preset)) for preset in presets_of(policy).values())


def presets_of(policy: str) -> Mapping[str, str]:
    """Pool -> preset; a policy without pools has a single entry."""
    return POOLED.get(policy, {"": policy})


def _hands_off(row: Preset) -> bool:
    return any(_is(rule, _HAND_OFF) for rule in row.leaving)


def _is(spec: str, name: str) -> bool:
    return spec.partition(":")[0] == name


def _with(spec: str, **given: str) -> str:
    """A part with these settings added to its own.

    >>> _with("at-risk:confidence=0.9", threshold="0.1")
    'at-risk:confidence=0.9,threshold=0.1'
    """
    name, _, text = spec.partition(":")
    settings = dict(setting.split("=", 1) for setting in filter(None, text.split(","))) | given
    return f"{name}:{','.join(f'{key}={value}' for key, value in settings.items())}"
