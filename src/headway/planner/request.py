"""The request for a plan, and the combined targets of its requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.lab.predictor_choice import check_predictor_name
from headway.lab.trace import Trace
from headway.planner.machine import Node
from headway.predict.lengths.choice import DEFAULT_PREDICTOR
from headway.predict.steps.attention_kernels import ATTENTION_KERNELS, DEFAULT_ATTENTION, attention_kernels
from headway.setting import COUNT, NOT_NEGATIVE, POSITIVE
from headway.sim.limits import KvTier
from headway.traces import TraceRequest

SEEDS = 5
AIM = 0.9
"""Default goodput for `fewest`."""

MOST_GPUS = 512
"""Limit of GPUs: all settings are listed before the search, some 600 for each GPU; 512 take 3 s and 0.2 GB."""
MOST_GPUS_ONE_BY_ONE = 64
"""Limit with `fewest`, for which every number of GPUs has settings: 64 give 700,000 in 4 s and 0.25 GB, 256 would
give sixteen times as many.
"""

KINDS = tuple(field.name for field in fields(Slo))
NAMES = {"ttft_s": "first token", "tbt_s": "between tokens", "deadline_s": "whole answer"}
"""Names of the kinds of targets in messages."""


_DEPLOYABLE = [name for name, row in ATTENTION_KERNELS.items() if row.vllm_backend]

_BOUNDS = {
    "gpus": COUNT,
    "seeds": COUNT,
    "rate_scale": POSITIVE,
    "load": POSITIVE,
    "per_node": COUNT,
    "host_memory_gib": NOT_NEGATIVE,
    "price": POSITIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A request for a plan; None means the default.

    `load` replaces `rate_scale`: a multiple of the rate that stock vLLM sustains on all of the GPUs. With `fewest`
    every number of GPUs is searched, for the smallest that holds `aim`. `kv_tier` is that of each GPU. Machines have
    `per_node` of the GPUs each, and `host_memory_gib` for KV. `price` is for a GPU and hour. `attention` names the
    engine version whose attention kernels are simulated.
    """

    hardware: str
    model: str
    gpus: int
    trace: Trace
    rate_scale: float | None = None
    load: float | None = None
    policies: tuple[str, ...] | None = None
    kv_tier: KvTier | None = None
    seeds: int = SEEDS
    predictor: str = DEFAULT_PREDICTOR
    fewest: bool = False
    aim: float | None = None
    per_node: int | None = None
    host_memory_gib: float | None = None
    price: float | None = None
    attention: str = DEFAULT_ATTENTION

    def check(self) -> None:
        """Raise ConfigError for a value or a combination that is not accepted."""
        for name, bounds in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not bounds.hold(value):
                raise ConfigError.of(name, value, bounds.accepted)
        most, fewest = (MOST_GPUS_ONE_BY_ONE, " with fewest") if self.fewest else (MOST_GPUS, "")
        if self.gpus > most:
            raise ConfigError.of("gpus", f"{self.gpus}{fewest}", f"1 to {most}, for a load in proportion")
        if self.rate_scale is not None and self.load is not None:
            raise ConfigError("rate_scale and load are given; accepted: one of the two")
        if self.policies is not None and len(set(self.policies)) < len(self.policies):
            raise ConfigError(f"policies are {', '.join(self.policies)!r}; accepted: different names")
        check_predictor_name(self.predictor, made=False)
        if not attention_kernels(self.attention).vllm_backend:
            raise ConfigError.of(
                "attention", f"{self.attention!r}, which today's vLLM does not have", ", ".join(_DEPLOYABLE)
            )
        if self.aim is not None and not self.fewest:
            raise ConfigError.of("goodput_aim", f"{self.aim} without fewest", "with --fewest")
        if self.aim is not None and not 0 < self.aim <= 1:
            raise ConfigError.of("goodput_aim", self.aim, "a share above 0, at most 1")

    @property
    def node(self) -> Node:
        """One of the machines with the GPUs."""
        return Node(self.per_node, self.host_memory_gib)

    def in_machines(self) -> str:
        """Describe the machines; empty if there is one."""
        count = len(self.node.sizes(self.gpus))
        return f" in {count} machines" if count > 1 else ""

    @property
    def least_goodput(self) -> float:
        """The goodput that `fewest` requires."""
        return AIM if self.aim is None else self.aim

    def counts(self) -> tuple[int, ...]:
        """Numbers of GPUs to search, ascending: all with `fewest`, else powers of two and the total."""
        if self.fewest:
            return tuple(range(1, self.gpus + 1))
        powers = [1 << power for power in range(self.gpus.bit_length())]
        return tuple(sorted({*(power for power in powers if power < self.gpus), self.gpus}))


@dataclass(frozen=True, slots=True)
class Targets:
    """The combined targets of all requests: the shortest and the longest of each kind, None if no request has it.

    `alike` has the targets that all share, None where they differ; requests without any target do not count.
    """

    shortest: Slo = NO_TARGETS
    longest: Slo = NO_TARGETS
    alike: Slo = NO_TARGETS

    @classmethod
    def of(cls, requests: Iterable[TraceRequest]) -> Targets:
        """The targets of these requests, in any order. O(requests)."""
        classes = {request.slo for request in requests if request.slo}
        asked = {kind: {getattr(slo, kind) for slo in classes} for kind in KINDS}
        times_s = {kind: sorted(each - {None}) for kind, each in asked.items()}
        return cls(
            shortest=Slo(**{kind: each[0] for kind, each in times_s.items() if each}),
            longest=Slo(**{kind: each[-1] for kind, each in times_s.items() if each}),
            alike=Slo(**{kind: each.pop() for kind, each in asked.items() if len(each) == 1}),
        )

    def __bool__(self) -> bool:
        return bool(self.shortest)

    @property
    def differ(self) -> bool:
        """Whether some requests have targets that others lack."""
        return self.alike != self.shortest

    def ranges(self) -> dict[str, tuple[float, float] | None]:
        """The shortest and the longest of each kind, in seconds, for scripts."""
        longest = asdict(self.longest)
        return {
            kind: None if low is None else (low, longest[kind]) for kind, low in asdict(self.shortest).items()
        }

    def __str__(self) -> str:
        return ", ".join(
            f"{NAMES[kind]} within {_said(*each)}" for kind, each in self.ranges().items() if each
        )


def _said(low_s: float, high_s: float) -> str:
    return f"{low_s:g} s" if low_s == high_s else f"{low_s:g} to {high_s:g} s"
