"""Parses one-line descriptions of workloads, and loads a trace from such a line or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Generic, TypeVar

from headway.errors import ConfigError, TraceError, meant
from headway.traces.arrivals import AllAtOnce, ArrivalProcess, Fixed, Gamma, OnOff, Poisson
from headway.traces.cells import Cells, number, optional_number, optional_whole, whole
from headway.traces.lengths import NAMED_LAWS, Constant, LengthLaw, LogNormal, Zipf
from headway.traces.reader import read_trace
from headway.traces.request import TraceRequest, take
from headway.traces.workload import Workload

PREFIX = "gen:"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """The written form of a law or process: its parameters, and how to build it from their text."""

    required: tuple[str, ...]
    build: Callable[[Cells], T]
    optional: tuple[str, ...] = ()


def _on_off(cells: Cells) -> OnOff:
    rates = number(cells, "rate_on"), number(cells, "rate_off")
    return OnOff(*rates, number(cells, "mean_on"), number(cells, "mean_off"))


def _log_normal(build: Callable[[float, float, int, int], LogNormal]) -> Form[LengthLaw]:
    def parse(cells: Cells) -> LengthLaw:
        minimum = optional_whole(cells, "min")
        limits = whole(cells, "max"), 1 if minimum is None else minimum
        return build(number(cells, "mean"), number(cells, "sigma"), *limits)

    return Form(("mean", "sigma", "max"), parse, optional=("min",))


ARRIVALS: dict[str, Form[ArrivalProcess]] = {
    "poisson": Form(("rate",), lambda cells: Poisson(number(cells, "rate"))),
    "gamma": Form(("rate", "cv"), lambda cells: Gamma(number(cells, "rate"), number(cells, "cv"))),
    "onoff": Form(("rate_on", "rate_off", "mean_on", "mean_off"), _on_off),
    "fixed": Form(("interval",), lambda cells: Fixed(number(cells, "interval"))),
    "at-once": Form((), lambda cells: AllAtOnce()),
}
LAWS: dict[str, Form[LengthLaw]] = {
    "constant": Form(("tokens",), lambda cells: Constant(whole(cells, "tokens"))),
    "zipf": Form(("theta", "max"), lambda cells: Zipf(number(cells, "theta"), whole(cells, "max"))),
    "lognormal": _log_normal(LogNormal),
    "lognormal-fitted": _log_normal(LogNormal.fitted),
}


def load_trace(
    source: str | PathLike[str],
    limit: int | None = None,
    *,
    time_unit: str | None = None,
    strict: bool = False,
) -> list[TraceRequest]:
    """The requests of a trace file, or of a workload if `source` starts with `gen:`.

    `limit` keeps the first requests. Raises TraceError, as `read_trace` and `parse_workload` do.
    """
    if isinstance(source, str) and source.startswith(PREFIX):
        requests = parse_workload(source).requests()
        return requests if limit is None else take(requests, limit)
    return read_trace(source, limit=limit, time_unit=time_unit, strict=strict)


def parse_workload(text: str) -> Workload:
    """Parse a workload: arrivals first, then its parts, separated by slashes.

    >>> workload = parse_workload("poisson:rate=8/input=sharegpt/output=zipf:theta=1.1,max=256/count=300")
    >>> workload.output_law
    Zipf(theta=1.1, maximum=256)

    `input` and `output` are a law with its parameters or the name of one of `NAMED_LAWS`. `seed` (0) and
    `max_output`, the limit that every request declares (none), may be left out, and so may a leading
    `gen:`. With `turns=5/think=20` every arrival begins a conversation of five turns, on average 20 seconds after
    the one before, whose prompts repeat all that was said and add an input. Rates are in requests per
    second, of conversations then, times in seconds, lengths in tokens. Raises TraceError naming the part that is
    unknown, missing or out of range, and what is accepted.
    """
    process, *rest = text.removeprefix(PREFIX).split("/")
    try:
        arrivals = _built("arrivals", process, ARRIVALS)
        parts = _pairs(
            "the workload", rest, ("input", "output", "count"), ("seed", "max_output", "turns", "think")
        )
        if ("turns" in parts) != ("think" in parts):
            raise TraceError("turns and think go together; accepted: both, as turns=5/think=20, or neither")
        return Workload(
            arrivals=arrivals,
            input_law=_law(parts, "input"),
            output_law=_law(parts, "output"),
            count=whole(parts, "count"),
            seed=optional_whole(parts, "seed") or 0,
            max_output_tokens=optional_whole(parts, "max_output"),
            turns=whole(parts, "turns") if "turns" in parts else 1,
            think_s=optional_number(parts, "think") or 0.0,
        )
    except (TraceError, ConfigError) as error:
        raise TraceError(f"workload {text!r}: {error}") from None


def _law(parts: Cells, side: str) -> LengthLaw:
    if pair := NAMED_LAWS.get(parts[side]):
        return pair.input if side == "input" else pair.output
    return _built(side, parts[side], LAWS, also=NAMED_LAWS)


def _built(role: str, text: str, forms: Mapping[str, Form[T]], also: Iterable[str] = ()) -> T:
    name, _, parameters = text.partition(":")
    if name not in forms:
        raise TraceError(f"{role} is {name!r}; {meant(name, [*forms, *also])}")
    form = forms[name]
    return form.build(_pairs(name, parameters.split(",") if parameters else [], form.required, form.optional))


def _pairs(
    owner: str, items: Iterable[str], required: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, str]:
    accepted = (
        ", ".join([f"{key}=..." for key in required] + [f"[{key}=...]" for key in optional]) or "nothing"
    )
    pairs: dict[str, str] = {}
    for item in items:
        key, _, value = item.partition("=")
        if key not in required + optional:
            raise TraceError(f"{key!r} is unknown to {owner}; {meant(key, required + optional, accepted)}")
        if not value or key in pairs:
            raise TraceError(
                f"{key!r} of {owner} has {'two values' if value else 'no value'}; accepted: {accepted}"
            )
        pairs[key] = value
    for key in required:
        if key not in pairs:
            raise TraceError(f"{owner} lacks {key!r}; accepted: {accepted}")
    return pairs
