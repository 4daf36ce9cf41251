"""Settings declared once: a dataclass field annotated with its help, its unit and its bounds.

The command line turns such a field into an option, and the dataclass refuses values outside the bounds:

>>> from dataclasses import make_dataclass
>>> from typing import Annotated
>>> width = Annotated[int | None, Setting("Requests a step may run.", "N", COUNT)]
>>> check_settings(make_dataclass("Limits", [("width", width)])(width=0))
Traceback (most recent call last):
headway.errors.ConfigError: width is 0; accepted: 1 or more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, get_type_hints

from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ValueBounds:
    """The accepted values, in words and as a test."""

    accepted: str
    hold: Callable[[Any], bool]


COUNT = ValueBounds("1 or more", lambda value: value >= 1)
NOT_NEGATIVE = ValueBounds("0 or more", lambda value: value >= 0)
POSITIVE = ValueBounds("more than 0", lambda value: 0 < value < inf)
SECONDS = ValueBounds("0 or more seconds", lambda value: 0 <= value < inf)
POSITIVE_SECONDS = ValueBounds("more than 0 seconds", lambda value: 0 < value < inf)
SHARE = ValueBounds("more than 0, up to 1", lambda value: 0 < value <= 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How the command line presents a setting, where that differs from the default.

    `option` False: no option, the field only has bounds. `flag` is the option's name; `argument` makes it a positional
    argument. `default` False hides the default in the help. `env` names the environment variable that also sets it.
    """

    option: bool = True
    flag: str | None = None
    argument: bool = False
    default: bool = True
    env: str | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's help text, the unit of its values, and the accepted values."""

    help: str | None = None
    unit: str | None = None
    bounds: ValueBounds | None = None
    shown: Shown = Shown()


@cache
def settings_of(cls: type[Any]) -> dict[str, tuple[Any, Setting]]:
    """The type and the setting of each annotated field of a dataclass, in order."""
    return {
        name: (hint.__origin__, setting)
        for name, hint in get_type_hints(cls, include_extras=True).items()
        for setting in getattr(hint, "__metadata__", ())
        if isinstance(setting, Setting)
    }


def check_settings(of: object, prefix: str = "") -> None:
    """Raise ConfigError for the first setting out of bounds. None is always accepted."""
    for name, (_, setting) in settings_of(type(of)).items():  # type: ignore[arg-type]
        value = getattr(of, name)
        if setting.bounds is not None and value is not None and not setting.bounds.hold(value):
            raise ConfigError.of(prefix + name, value, setting.bounds.accepted)
