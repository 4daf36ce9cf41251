"""Command-line options made from dataclasses, so that a setting is declared once; and groups that commands share."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from headway.core.slo import MAX_TARGET_S
from headway.errors import ConfigError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.engine.host_kv import HostKv

Given = dict[str, Any]
"""The settings that the user gave for a dataclass, by field name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionGroup:
    """Marks a field that stands for several options: those of its own dataclass, or of the class `of`.

    `panel` is the heading in the help; option names begin with `prefix`.
    """

    of: type[Any] | None = None
    panel: str | None = None
    prefix: str = ""


def command_of(function: Callable[[Any], None]) -> Callable[..., None]:
    """Turn a function that takes one dataclass of settings into a command with a parameter for each option."""
    [parameter] = inspect.signature(function, eval_str=True).parameters.values()
    flags = parameter.annotation

    def command(context: typer.Context, **values: Any) -> None:
        given = {name: value for name, value in values.items() if _source(context, name) != "DEFAULT"}
        for doubt in _unit_doubts(given):
            typer.echo(doubt, err=True)
        with _understood() if values.keys() & {"trace", "log"} else nullcontext():
            function(_built(flags, values, given))

    command.__doc__ = function.__doc__
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    options = [context, *_options(flags, OptionGroup())]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


USUAL_TARGET_S = {"slo_ttft_s": 60.0, "slo_tbt_s": 2.0}
"""A longer target is accepted, but was probably meant in milliseconds."""


def _unit_doubts(given: Given) -> Iterator[str]:
    """A line for each target that is accepted, and longer than usual."""
    for name, usual_s in USUAL_TARGET_S.items():
        target_s = given.get(name)
        if target_s is not None and usual_s < target_s <= MAX_TARGET_S:
            flag = flag_names(name, Setting(unit="S"))
            yield f"{flag} is {target_s:g} s (seconds, not ms)"


def flag_of(context: typer.Context, setting: str | None) -> str | None:
    """Find the flag behind the setting that an error names; None if the user did not give that flag.

    A field is named after its setting, or after the object that holds it and the setting there: `slo_ttft_s`,
    `host_kv_gib`.
    """
    if setting is None:
        return None
    name = setting.replace(".", "_")
    given = {
        each.name: each.opts[0]
        for each in context.command.params
        if each.name and _source(context, each.name) == "COMMANDLINE"
    }
    longer = (flag for field, flag in given.items() if field.endswith(f"_{name}"))
    return given.get(name) or next(longer, None)


def flag_names(name: str, setting: Setting) -> str:
    """The option's names for typer: `--on`, or `--on/--no-on`. Flags leave out the unit suffix of seconds."""
    field = name.removesuffix("_s") if setting.unit == "S" else name
    return setting.shown.flag or f"--{field.replace('_', '-')}"


def flag_name(name: str, setting: Setting, *, negated: bool = False) -> str:
    """The flag with which the user set a setting, or turned it off."""
    names = flag_names(name, setting).split("/")
    return names[-1] if negated else names[0]


def _source(context: typer.Context, name: str) -> str:
    """Where a value came from, in click's terms."""
    source = context.get_parameter_source(name)
    return "" if source is None else source.name


def _marks(flags: type[Any]) -> Mapping[str, tuple[Any, Setting | OptionGroup]]:
    """Return each field that stands for options, with its type and its mark."""
    return {
        name: (hint.__origin__, mark)
        for name, hint in get_type_hints(flags, include_extras=True).items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, OptionGroup) or (isinstance(mark, Setting) and mark.shown.option)
    }


def _options(flags: type[Any], group: OptionGroup) -> Iterator[inspect.Parameter]:
    defaults = {field.name: field.default for field in fields(flags)}
    for name, (kind, mark) in _marks(flags).items():
        if isinstance(mark, OptionGroup):
            yield from _options(mark.of or kind, replace(mark, panel=mark.panel or group.panel))
        else:
            yield _option(group.prefix + name, kind, mark, defaults[name], group.panel)


def _option(name: str, kind: Any, setting: Setting, default: Any, panel: str | None) -> inspect.Parameter:
    shown = setting.shown
    item = _item(kind)
    told = {"metavar": setting.unit, "help": setting.help, "show_default": shown.default}
    if shown.argument:
        info = typer.Argument(**told)  # type: ignore[arg-type]
    else:
        flags = flag_names(name, setting)
        info = typer.Option(flags, rich_help_panel=panel, envvar=shown.env, **told)  # type: ignore[arg-type]
    if {float, str} <= {*get_args(kind)}:
        kind = str | None  # typer sees text; the setting itself tells numbers and words apart
    if item is not None:
        kind = list[item] if default is MISSING else list[item] | None  # type: ignore[valid-type]
        default = MISSING if default is MISSING else None
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _item(kind: Any) -> Any:
    """The type of each value of a repeatable setting; None for any other setting."""
    return next((get_args(each)[0] for each in (kind, *get_args(kind)) if get_origin(each) is tuple), None)


def _built(flags: type[Any], values: Mapping[str, Any], given: Given, prefix: str = "") -> Any:
    """Build the dataclass from the values of its options."""
    found: dict[str, Any] = {}
    for name, (kind, mark) in _marks(flags).items():
        if not isinstance(mark, OptionGroup):
            value = values[prefix + name]
            if _item(kind) is None:
                found[name] = value
            elif value:
                found[name] = tuple(value)
        elif mark.of is None:
            found[name] = _built(kind, values, given, mark.prefix)
        else:
            found[name] = _given(mark.of, given, mark.prefix)
    return flags(**found)


def _given(of: type[Any], given: Given, prefix: str) -> Given:
    return {
        name: given[prefix + name] if _item(kind) is None else tuple(given[prefix + name])
        for name, (kind, _) in _marks(of).items()
        if prefix + name in given
    }


def host_memory(gib: float | None = None, bytes_per_s: float | None = None) -> HostKv | None:
    """The host memory that the flags ask for; None if they ask for none. Raises ConfigError for bad values."""
    from headway.engine.host_kv import HostKv

    if gib is not None and gib != 0:
        return HostKv(gib=gib, bytes_per_s=bytes_per_s)
    if bytes_per_s is not None:
        raise ConfigError(f"--host-kv-bytes-per-s is {bytes_per_s} without host memory; add --host-kv-gib")
    return None


# ---- groups that several commands share ----------------------------------------------------------------

Json = Setting('Print {"<policy>": {summary}} on stdout.', shown=Shown(flag="--json"))
ApiKey = Annotated[str | None, Setting("API key, sent as a bearer token.", shown=Shown(env="OPENAI_API_KEY"))]
VllmFlags = Annotated[
    tuple[str, ...],
    Setting("vLLM's own flags, after `--`.", "[-- VLLM_FLAGS]...", shown=Shown(argument=True)),
]
TimeUnit = Annotated[
    str | None,
    Setting("Unit of timestamps, if the file does not tell it (default: the format's).", "s|ms|us|ns"),
]
Strict = Annotated[
    bool,
    Setting(
        "Refuse a trace with odd rows or rows out of order. By default such rows are left out or sorted."
    ),
]
ClosedLoop = Annotated[
    bool,
    Setting(
        "Let later turns of a session wait for the answer before them and their recorded pause; rows with `think_s` "
        "always do."
    ),
]
SloTtft = Annotated[float | None, Setting("Target for requests that name none: first token.", "S")]
SloTbt = Annotated[float | None, Setting("Target for requests that name none: between tokens.", "S")]
KvTierSpec = Setting(
    "KV offloading, as vLLM's --kv-offloading-size or LMCache: a store beside each GPU for the "
    "KV of requests that end or are preempted. Its size, and the speed and latency of its link "
    "(default: as copies to host memory).",
    "gib=X[/gib_per_s=X][/latency_ms=X]",
)
TraceSource = Annotated[
    str,
    Setting(
        "Trace file (CSV, JSON, Parquet, a log), generated workload, or the demo's.", "FILE|gen:SPEC|demo"
    ),
]


@contextmanager
def _understood() -> Iterator[None]:
    """Log to stderr how a command understands the traces that it reads."""
    log = logging.getLogger("headway.traces")
    log.handlers = [_Stderr()]
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers = []
        log.setLevel(logging.NOTSET)


class _Stderr(logging.Handler):
    """Writes log messages to stderr without a prefix, once for a trace however often the trace is read."""

    def __init__(self) -> None:
        super().__init__()
        self._written: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, unless it was already written for this trace."""
        source = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        if (record.msg, source) not in self._written:
            self._written.add((record.msg, source))
            typer.echo(record.getMessage(), err=True)
