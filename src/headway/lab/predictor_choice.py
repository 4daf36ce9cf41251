"""Turns a predictor as a user writes it into a predictor object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headway.errors import ConfigError, meant
from headway.predict.lengths.choice import DEFAULT_PREDICTOR, NONE, REPLACED, length_predictor
from headway.sim.lengths import WAYS, AskedPredictor, Broken, LengthSource, NoisyOracle
from headway.traces import TraceRequest

_MADE: dict[str, tuple[str, Callable[[Sequence[TraceRequest], dict[str, Any]], LengthSource]]] = {
    "noisy-oracle": ("tau", lambda requests, given: NoisyOracle(requests, **given)),
    "broken": ("way", lambda requests, given: Broken(requests, **given)),
}
"""Predictors that know the true lengths: their required setting besides a seed, and their constructor."""
_TYPES: dict[str, Callable[[str], object]] = {"tau": float, "way": str, "seed": int}


def is_made(spec: str) -> bool:
    """Whether a predictor knows true lengths, which no product can."""
    return spec.partition(":")[0] in _MADE


def predictor_label(spec: str) -> str:
    """The name in tables and files, which marks predictors that know true lengths."""
    return f"{spec} (made from the true lengths)" if is_made(spec) else spec


def check_predictor_name(spec: str, *, made: bool = True) -> None:
    """Raise ConfigError unless a predictor is written correctly.

    Without `made`, also for one that knows the true lengths.
    """
    if spec in (NONE, DEFAULT_PREDICTOR) or (made and is_made(spec)):
        return
    accepted = f"{NONE}, {DEFAULT_PREDICTOR}"
    if is_made(spec):
        raise ConfigError.of(
            "predictor", f"{spec!r}, which knows the true lengths, so it cannot be deployed", accepted
        )
    if made:
        accepted += f", noisy-oracle:tau=T, broken:way={'|'.join(WAYS)}"
    if spec.partition(":")[0] in REPLACED:
        length_predictor(spec)  # its error names the replacement
    names = [NONE, DEFAULT_PREDICTOR, *(_MADE if made else ())]
    raise ConfigError(f"unknown predictor {spec!r}; {meant(spec.partition(':')[0], names, accepted)}")


def check_predictor(spec: str) -> None:
    """Raise ConfigError unless `length_source` will accept it."""
    length_source(spec, (TraceRequest(id="0", arrival_s=0.0, input_tokens=1, output_tokens=1),))


def length_source(spec: str, requests: Sequence[TraceRequest], seed: int = 0) -> LengthSource | None:
    """The predictor for the answers of `requests` (at least one, in order of arrival), or None.

    Accepts `none`; a fresh predictor of `predict`; `noisy-oracle:tau=T[,seed=N]` and `broken:way=W[,seed=N]`, which are
    made from the true lengths, with `seed` as default. Raises ConfigError for anything else.
    """
    check_predictor_name(spec)
    if spec == NONE:
        return None
    name, _, settings = spec.partition(":")
    if name in _MADE:
        wanted, make = _MADE[name]
        return make(requests, {"seed": seed, **_settings(spec, settings, wanted)})
    return AskedPredictor(length_predictor(spec))


def _settings(spec: str, settings: str, wanted: str) -> dict[str, Any]:
    """Parse the required setting `wanted` and an optional seed."""
    found: dict[str, Any] = {}
    for setting in settings.split(","):
        key, _, text = setting.partition("=")
        try:
            if key not in (wanted, "seed") or key in found:
                raise ValueError
            found[key] = _TYPES[key](text)
        except ValueError:
            raise ConfigError(f"predictor {spec!r}: {setting!r}; accepted: {wanted}=..., seed=N") from None
    if wanted not in found:
        raise ConfigError(f"predictor {spec!r} has no {wanted}; accepted: {wanted}=...")
    return found
