"""What a plan is asked for, and all that is found out before anything is tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from headway.core.slo import Slo
from headway.errors import ConfigError, TraceError
from headway.lab.kept_runs import release
from headway.lab.policy_choice import OWN_PARTS, uses_predictions
from headway.lab.predictor_choice import check_predictor, check_predictor_name
from headway.lab.stream import Stream, stream_facts
from headway.planner.axes import TP_SIZES, Wanted
from headway.planner.configuration import Configuration
from headway.planner.machine import Machine
from headway.planner.objective import Objective
from headway.planner.runs import Task, capacity_rps, fitting, read_once
from headway.planner.samples import final_window_s, samples_in_all
from headway.planner.space import Space, build_space
from headway.planner.targets import Targets
from headway.policies.presets import POOLED, known_presets
from headway.predict.known_models import model_shape
from headway.predict.length_choice import DEFAULT_PREDICTOR
from headway.sim.kv_tier import KvTier
from headway.traces import TraceRequest

SEEDS = 5
BUDGET = 240
AIM = 0.9
"""Goodput that `fewest` wants held, where nothing else is asked for."""

USUAL = ("vllm", "headway", "sarathi", "predicted", "fastserve")
WITH_TARGETS = ("edf",)
WITH_POOLS = ("ascendra",)
"""Policies tried where none are named: those that exist, the latter two where there is something for them to do."""

MOST_GPUS = 512
"""All settings are listed before the search, some 600 for each GPU: of 512 in 3 s and 0.2 GB."""
MOST_GPUS_ONE_BY_ONE = 64
"""With `fewest` every number of GPUs has settings of its own: up to 64 there are 700,000, in 4 s and 0.25 GB; up to 256
sixteen times as many.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A plan as it is asked for; None means what is usual.

    `load` is of what stock vLLM gets through on all of the GPUs, in place of `rate_scale`. With `fewest` every number
    of GPUs is searched alike, for the smallest that holds `aim`. `kv_tier` is what each GPU may have beside it.
    """

    hardware: str
    model: str
    gpus: int
    stream: Stream
    rate_scale: float | None = None
    load: float | None = None
    policies: tuple[str, ...] | None = None
    kv_tier: KvTier | None = None
    seeds: int = SEEDS
    predictor: str = DEFAULT_PREDICTOR
    fewest: bool = False
    aim: float | None = None

    def check(self) -> None:
        """Raise ConfigError for a value or a combination that is not accepted."""
        for name in ("gpus", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; accepted: 1 or more")
        self._check_most_gpus()
        for name in ("rate_scale", "load"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}; accepted: a number above 0")
        if self.rate_scale is not None and self.load is not None:
            raise ConfigError("rate_scale and load are given; accepted: one of the two")
        if self.policies is not None and len(set(self.policies)) < len(self.policies):
            raise ConfigError(f"policies are {', '.join(self.policies)!r}; accepted: different names")
        check_predictor_name(self.predictor, made=False)
        self._check_aim()

    def _check_most_gpus(self) -> None:
        most, fewest = (MOST_GPUS_ONE_BY_ONE, " with fewest") if self.fewest else (MOST_GPUS, "")
        if self.gpus > most:
            raise ConfigError(f"gpus is {self.gpus}{fewest}; accepted: 1 to {most}, for a load in proportion")

    def _check_aim(self) -> None:
        if self.aim is not None and not self.fewest:
            raise ConfigError(f"goodput_aim is {self.aim} without fewest; accepted: with --fewest")
        if self.aim is not None and not 0 < self.aim <= 1:
            raise ConfigError(f"goodput_aim is {self.aim}; accepted: a share above 0, at most 1")

    @property
    def least_goodput(self) -> float:
        """The goodput that `fewest` asks for."""
        return AIM if self.aim is None else self.aim

    def counts(self) -> tuple[int, ...]:
        """Numbers of GPUs that are searched, rising: all with `fewest`, else each twice the last, and the whole."""
        if self.fewest:
            return tuple(range(1, self.gpus + 1))
        powers = [1 << power for power in range(self.gpus.bit_length())]
        return tuple(sorted({*(power for power in powers if power < self.gpus), self.gpus}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is searched, and what was found out on the way.

    `rate_rps` is the mean rate of requests as they are sent, `left_out` counts those that no layout could hold or the
    model read, `default` is stock vLLM on all of the GPUs. `asked` are the targets of all requests.
    """

    ask: Ask
    task: Task
    space: Space
    objective: Objective
    asked: Targets
    policies: tuple[str, ...]
    rate_rps: float
    window_s: float
    requests: int
    left_out: int

    @property
    def default(self) -> Configuration:
        """Stock vLLM with the flags it takes by itself, on all of the GPUs."""
        return self.space.default[self.ask.gpus]

    @property
    def targets(self) -> Slo:
        """What all requests that have targets ask for; without the kinds in which they differ."""
        return self.asked.alike

    def manifest(self) -> dict[str, object]:
        """All that decides which answer is looked for, as plain data; how long for is no part of it."""
        ask, task = self.ask, self.task
        return {
            "headway": release(),
            "hardware": ask.hardware,
            "model": ask.model,
            "costs": task.machine.fingerprint(self.default.tp),
            "gpus": ask.gpus,
            "trace": ask.stream.source,
            "limit": ask.stream.limit,
            "default_targets": asdict(ask.stream.slo),
            "requests": task.requests_digest,
            "rate_scale": task.rate_scale,
            "policies": list(self.policies),
            **({} if ask.kv_tier is None else {"kv_tier": str(ask.kv_tier)}),
            "seeds": ask.seeds,
            "predictor": ask.predictor,
            "fewest": ask.fewest,
            "goodput_aim": ask.aim,
        }


def prepare(ask: Ask) -> Prepared:
    """Everything that can be known, and refused, before the search. May simulate one burst, for `load`.

    Raises ConfigError or TraceError for anything that is not accepted.
    """
    ask.check()
    model_shape(ask.model)
    requests = read_once(ask.stream, 0)
    task = _task(ask, requests)
    fit = task.requests()
    asked = Targets.of(fit)
    if ask.fewest and not asked:
        raise ConfigError(
            "fewest is asked for without targets; accepted: with --slo-ttft, --slo-tbt or --slo-deadline"
        )
    policies = ask.policies or usual_policies(asked, ask.gpus)
    _check_predictor(ask.predictor, policies)
    space = _space(ask, task, asked, policies)
    if ask.load is not None:
        capacity = capacity_rps(task, space.default[ask.gpus], fit)
        task = replace(task, rate_scale=ask.load * capacity / _rate_rps(fit))
    sent = task.requests()
    return Prepared(
        ask=ask,
        task=task,
        space=space,
        objective=Objective.GOODPUT if asked else Objective.JCT,
        asked=asked,
        policies=policies,
        rate_rps=_rate_rps(sent),
        window_s=final_window_s(sent),
        requests=len(sent),
        left_out=len(requests) - len(sent),
    )


def _check_predictor(predictor: str, policies: Sequence[str]) -> None:
    """Raise ConfigError for one that is not accepted; the usual one is not looked at where nobody goes by it, since
    that takes seconds, and a package that need not be there.
    """
    if predictor != DEFAULT_PREDICTOR or any(uses_predictions(policy, OWN_PARTS) for policy in policies):
        check_predictor(predictor)


def _task(ask: Ask, requests: Sequence[TraceRequest]) -> Task:
    """The task of a plan, over all that its samples may draw. Raises TraceError if nothing of it fits."""
    machine = Machine(ask.hardware, ask.model)
    seeds = range(samples_in_all(ask.seeds))
    facts = stream_facts(ask.stream, seeds)
    room_tokens = _room_tokens(machine, ask.counts())
    context_tokens = model_shape(ask.model).context_tokens
    if context_tokens and not fitting(requests, context_tokens):
        raise TraceError(
            f"no request of {ask.stream.source} fits the {context_tokens:,} tokens that {ask.model} reads; accepted: "
            "shorter requests or another model"
        )
    most_tokens = min(room_tokens, context_tokens or room_tokens)
    if not fitting(requests, most_tokens):
        raise TraceError(
            f"no request of {ask.stream.source} fits the {room_tokens:,} tokens of KV that {ask.gpus} x {ask.hardware} "
            f"hold beside {ask.model}; accepted: shorter requests, a smaller model or more GPUs"
        )
    return Task(
        machine=machine,
        stream=ask.stream,
        rate_scale=ask.rate_scale or 1.0,
        max_output_tokens=facts.output_limit(None),
        longest_tokens=_longest_tokens(ask.stream, seeds, most_tokens),
        requests_digest=facts.digest,
    )


def _space(ask: Ask, task: Task, asked: Targets, policies: tuple[str, ...]) -> Space:
    """The space of a plan. Raises ConfigError, with the reasons, if nothing can be deployed on all of the GPUs."""
    space = build_space(
        task.machine,
        Wanted(
            gpus=ask.counts(),
            policies=policies,
            slo=asked.shortest,
            predictor=ask.predictor,
            kv_tier=ask.kv_tier,
            longest_tokens=task.longest_tokens,
        ),
    )
    if not any(grid.possible for grid in space.grids if grid.gpus == ask.gpus):
        reasons = "; ".join(f"{why} ({count:,})" for why, count in space.impossible.items())
        raise ConfigError(f"nothing of {', '.join(policies)} can be deployed on {ask.gpus} GPUs: {reasons}")
    return space


def usual_policies(asked: Targets, gpus: int) -> tuple[str, ...]:
    """What is tried where no policies are named: what goes by a kind of target if anybody has one of that kind."""
    known = known_presets()
    names = [*USUAL, *(WITH_TARGETS if asked else ())]
    pools = WITH_POOLS if asked.shortest.ttft_s is not None and gpus > 1 else ()
    return tuple(name for name in names if name in known) + tuple(name for name in pools if name in POOLED)


def _room_tokens(machine: Machine, counts: Sequence[int]) -> int:
    """Tokens that the roomiest instance holds. Raises ConfigError, of the smallest, where none holds the model."""
    rooms: list[int] = []
    errors: list[ConfigError] = []
    for tp in TP_SIZES:
        if any(gpus % tp == 0 for gpus in counts):
            try:
                rooms.append(machine.costs(tp).kv_capacity_tokens)
            except ConfigError as error:
                errors.append(error)
    if not rooms:
        raise errors[0]
    return max(rooms)


def _longest_tokens(stream: Stream, seeds: range, room_tokens: int) -> int:
    """Prompt and answer together of the longest request that any instance holds, over all that is drawn."""
    drawn = seeds if stream.is_drawn else seeds[:1]
    return max(
        each.input_tokens + each.output_tokens
        for seed in drawn
        for each in fitting(read_once(stream, seed), room_tokens)
    )


def _rate_rps(requests: Sequence[TraceRequest]) -> float:
    """Mean rate from the first arrival to the last; of requests that all come at once, as if within a second."""
    duration_s = requests[-1].arrival_s - requests[0].arrival_s
    return len(requests) / (duration_s or 1.0)
