"""The cells of an experiment: all combinations of the policies, loads and seeds that a user named."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from math import isfinite
from typing import Annotated, Any, Literal

from headway.errors import ConfigError
from headway.policies.presets import DecodeShare, Tail
from headway.setting import Setting

RANGE = ".."
STEPS = 5
"""Default number of loads in a range."""
MAX_LOADS = 1000
LoadName = Literal["load", "rate scale"]


@dataclass(frozen=True, slots=True, order=True)
class GridCell:
    """One run: the requests of `seed`, arriving `load` times as fast, under `policy`; `load_name` is the grid's."""

    policy: str
    load: float = 1.0
    seed: int = 0
    load_name: LoadName = field(default="rate scale", compare=False)

    @property
    def place(self) -> str:
        """The load, for people."""
        return f"{self.load_name} {self.load:g}"

    def __str__(self) -> str:
        return f"{self.policy} at {self.place}, seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGrid:
    """Every policy at every load with seeds 0 to `num_seeds` - 1.

    Loads are multiples of the trace's rate. With `of_capacity` they are shares of the rate that `vllm` reaches on the
    system with all requests queued.
    """

    policies: tuple[str, ...]
    loads: tuple[float, ...] = (1.0,)
    num_seeds: int = 1
    of_capacity: bool = False

    def __post_init__(self) -> None:
        if not self.policies or len(set(self.policies)) < len(self.policies):
            raise ConfigError(
                f"policies are {', '.join(self.policies)!r}; accepted: different names, at least one"
            )
        if not self.loads or len(set(self.loads)) < len(self.loads) or not all(map(_is_load, self.loads)):
            loads = ", ".join(map(str, self.loads))
            raise ConfigError(f"loads are {loads!r}; accepted: different numbers above 0, at least one")
        if self.num_seeds < 1:
            raise ConfigError.of("seeds", self.num_seeds, "1 or more")

    def cells(self) -> list[GridCell]:
        """All cells, seed by seed, load by load, with policies in the given order."""
        return [
            GridCell(policy, load, seed, self.load_name)
            for seed, load, policy in product(self.seeds, self.loads, self.policies)
        ]

    @property
    def load_name(self) -> LoadName:
        """What the loads are, for people."""
        return "load" if self.of_capacity else "rate scale"

    @property
    def seeds(self) -> range:
        """The seeds."""
        return range(self.num_seeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Parts and dials that replace those of every policy that has them; None keeps the policy's own."""

    order: Annotated[str | None, Setting("Part in place of every policy's.", "PART")] = None
    batching: Annotated[str | None, Setting("Part in place of every policy's.", "PART")] = None
    eviction: Annotated[str | None, Setting("Part in place of every policy's.", "PART")] = None
    leaving: Annotated[
        tuple[str, ...] | None, Setting("Rule in place of every policy's rules; repeatable.", "PART")
    ] = None
    tail: Tail = None
    decode_share: DecodeShare = None

    def __bool__(self) -> bool:
        return bool(self.given())

    def given(self) -> dict[str, Any]:
        """The given parts by name."""
        return {kind: part for kind, part in asdict(self).items() if part is not None}


OWN_PARTS = Parts()
"""Every policy with its own parts."""


def parse_policies(text: str, flag: str = "policies") -> tuple[str, ...]:
    """Parse `A,B,...`. Raises ConfigError, which names the flag, if there are no names."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError.of(flag, repr(text), "names of the preset table, comma-separated")
    return names


def parse_loads(text: str, steps: int | None = None, *, name: str = "rate_scale") -> tuple[float, ...]:
    """Parse `X`, `A,B,C` or `A..B` (with `steps` equidistant loads; None: 5); return the loads in ascending order.

    Loads are rounded to six digits, as in folder names. Raises ConfigError with the setting's `name` for values that
    are not positive numbers, a falling range, repeated loads, or steps without a range.

    >>> parse_loads("0.5..1.5", 3)
    (0.5, 1.0, 1.5)
    """
    if steps is not None and RANGE not in text:
        raise ConfigError.of("steps", f"{steps}, but {name} is {text!r}; accepted with a range, as 0.5..1.5")
    given = (
        _range(text, STEPS if steps is None else steps, name)
        if RANGE in text
        else [_load(text, part, name) for part in text.split(",")]
    )
    loads = sorted(float(f"{load:g}") for load in given)
    if len(set(loads)) < len(loads):
        raise ConfigError.of(name, f"{text!r}, which gives {len(loads)} loads", "loads that differ")
    return tuple(loads)


def _range(text: str, steps: int, name: str) -> list[float]:
    if not 2 <= steps <= MAX_LOADS:
        raise ConfigError.of("steps", f"{steps}; accepted with a range of loads: 2 to {MAX_LOADS}")
    low, high = (_load(text, part, name) for part in text.split(RANGE, 1))
    if not low < high:
        raise ConfigError.of(name, repr(text), "A..B with A below B, as 0.5..1.2")
    return [low + (high - low) * step / (steps - 1) for step in range(steps)]


def _load(text: str, part: str, name: str) -> float:
    try:
        load = float(part)
    except ValueError:
        load = 0.0
    if not _is_load(load):
        raise ConfigError.of(name, repr(text), "a number above 0, several as 0.5,1,2, or a range as 0.5..1.5")
    return load


def _is_load(load: float) -> bool:
    return isfinite(load) and load > 0
