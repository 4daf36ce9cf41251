"""Everything known about a plan before the search, and the introduction for users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from headway.core.slo import Slo
from headway.errors import ConfigError, TraceError
from headway.lab.kept_runs import release
from headway.lab.policy_choice import said_without_targets
from headway.lab.predictor_choice import check_predictor
from headway.lab.trace import Trace, read_once, trace_facts
from headway.planner.machine import Configuration, Machine, Node
from headway.planner.objective import Objective
from headway.planner.request import PlanRequest, Targets
from headway.planner.runs import Task, capacity_rps, fitting
from headway.planner.sampling import final_window_s, samples_in_all
from headway.planner.space import TP_SIZES, Space, build_space
from headway.policies.presets import POOLED, known_presets
from headway.predict.models.known_models import model_shape
from headway.traces import TraceRequest

USUAL = ("vllm", "headway", "sarathi", "predicted", "fastserve")
WITH_TARGETS = ("edf",)
WITH_POOLS = ("ascendra",)
"""Default policies; the latter groups only if there is something for them to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is searched, with the facts derived on the way.

    `rate_rps` is the mean rate of the requests, `left_out` counts those that no layout or model can hold, `default` is
    stock vLLM on all of the GPUs. `asked` are the targets of all requests.
    """

    request: PlanRequest
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
        """Stock vLLM with its default flags, on all of the GPUs."""
        return self.space.default[self.request.gpus]

    @property
    def targets(self) -> Slo:
        """The targets that all requests with targets share; without the kinds in which they differ."""
        return self.asked.alike

    def manifest(self) -> dict[str, object]:
        """Everything that determines the answer, as plain data; the search's duration does not."""
        request, task = self.request, self.task
        return {
            "headway": release(),
            "hardware": request.hardware,
            "model": request.model,
            "costs": task.machine.fingerprint(self.default.tp),
            "gpus": request.gpus,
            "trace": request.trace.source,
            "limit": request.trace.limit,
            "default_targets": asdict(request.trace.slo),
            "requests": task.requests_digest,
            "rate_scale": task.rate_scale,
            "policies": list(self.policies),
            **({} if request.kv_tier is None else {"kv_tier": str(request.kv_tier)}),
            **({} if request.node == Node() else {"node": asdict(request.node)}),
            "seeds": request.seeds,
            "predictor": request.predictor,
            "fewest": request.fewest,
            "goodput_aim": request.aim,
        }


def prepare(request: PlanRequest) -> Prepared:
    """Derive and check everything before the search. May simulate one burst, for `load`.

    Raises ConfigError or TraceError for anything that is not accepted.
    """
    request.check()
    model_shape(request.model)
    requests = read_once(request.trace, 0)
    task = _task(request, requests)
    fit = task.requests()
    asked = Targets.of(fit)
    if request.fewest and not asked:
        raise ConfigError(
            "fewest is asked for without targets; accepted: with --slo-ttft, --slo-tbt or --slo-deadline"
        )
    policies = request.policies or usual_policies(asked, request.gpus)
    check_predictor(request.predictor)
    space = _space(request, task, asked, policies)
    if request.load is not None:
        capacity = capacity_rps(task, space.default[request.gpus], fit)
        task = replace(task, rate_scale=request.load * capacity / _rate_rps(fit))
    sent = task.requests()
    return Prepared(
        request=request,
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


def _task(request: PlanRequest, requests: Sequence[TraceRequest]) -> Task:
    """The task of a plan, over everything that its samples may draw. Raises TraceError if nothing fits."""
    machine = Machine(request.hardware, request.model, request.node, request.attention)
    seeds = range(samples_in_all(request.seeds))
    facts = trace_facts(request.trace, seeds)
    room_tokens = _room_tokens(machine, request.counts())
    context_tokens = model_shape(request.model).context_tokens
    if context_tokens and not fitting(requests, context_tokens):
        raise TraceError(
            f"no request of {request.trace.source} fits the {context_tokens:,} tokens that {request.model} reads; "
            "accepted: shorter requests or another model"
        )
    most_tokens = min(room_tokens, context_tokens or room_tokens)
    if not fitting(requests, most_tokens):
        raise TraceError(
            f"no request of {request.trace.source} fits the {room_tokens:,} tokens of KV that {request.gpus} x "
            f"{request.hardware} hold beside {request.model}; accepted: shorter requests, a smaller model or more GPUs"
        )
    return Task(
        machine=machine,
        trace=request.trace,
        rate_scale=request.rate_scale or 1.0,
        max_output_tokens=facts.output_limit(None),
        longest_tokens=_longest_tokens(request.trace, seeds, most_tokens),
        requests_digest=facts.digest,
    )


def _space(request: PlanRequest, task: Task, asked: Targets, policies: tuple[str, ...]) -> Space:
    """The space of a plan. Raises ConfigError, with the reasons, if nothing can be deployed on all of the GPUs."""
    space = build_space(
        task.machine, request, policies=policies, slo=asked.shortest, longest_tokens=task.longest_tokens
    )
    if not any(grid.possible for grid in space.grids if grid.gpus == request.gpus):
        reasons = "; ".join(f"{why} ({count:,})" for why, count in space.impossible.items())
        raise ConfigError(
            f"nothing of {', '.join(policies)} can be deployed on {request.gpus} GPUs: {reasons}"
        )
    return space


def usual_policies(asked: Targets, gpus: int) -> tuple[str, ...]:
    """The default policies: those that use a kind of target only if some request has one."""
    known = known_presets()
    names = [*USUAL, *(WITH_TARGETS if asked else ())]
    pools = WITH_POOLS if asked.shortest.ttft_s is not None and gpus > 1 else ()
    return tuple(name for name in names if name in known) + tuple(name for name in pools if name in POOLED)


def _room_tokens(machine: Machine, counts: Sequence[int]) -> int:
    """Tokens that the largest instance holds. Raises ConfigError, of the smallest, if none holds the model."""
    rooms: list[int] = []
    errors: list[ConfigError] = []
    for tp in TP_SIZES:
        if any(machine.node.holds(tp, gpus) for gpus in counts):
            try:
                rooms.append(machine.costs(tp).kv_capacity_tokens)
            except ConfigError as error:
                errors.append(error)
    if not rooms:
        raise errors[0]
    return max(rooms)


def _longest_tokens(trace: Trace, seeds: range, room_tokens: int) -> int:
    """Prompt and answer together of the longest request that any instance holds, over everything drawn."""
    drawn = seeds if trace.is_drawn else seeds[:1]
    return max(
        each.input_tokens + each.output_tokens
        for seed in drawn
        for each in fitting(read_once(trace, seed), room_tokens)
    )


def _rate_rps(requests: Sequence[TraceRequest]) -> float:
    """Mean rate from the first arrival to the last; simultaneous requests count as if within a second."""
    duration_s = requests[-1].arrival_s - requests[0].arrival_s
    return len(requests) / (duration_s or 1.0)


# ---- what users read before the search -----------------------------------------------------------------


def introduction(prepared: Prepared) -> str:
    """Lines about the deployment, the objective, and how much is impossible, by reason."""
    request, space, asked = prepared.request, prepared.space, prepared.asked
    costs = prepared.task.machine.costs(prepared.default.tp)
    known = "DERIVED, not measured: " if costs.derived else ""
    left_out = (
        f", {prepared.left_out:,} too long for the model or any instance left out"
        if prepared.left_out
        else ""
    )
    impossible = sum(space.impossible.values())
    lines = [
        f"planning, simulated: {request.model} on {request.gpus} x {request.hardware}{request.in_machines()} "
        f"({known}{costs.provenance})",
        f"{prepared.requests:,} requests at {prepared.rate_rps:.3g} a second{left_out}",
        *_said_of_overlap(prepared),
        *([] if asked else said_without_targets(prepared.policies)),
        f"the best has {_said_of_best(asked)}",
        f"{', '.join(prepared.policies)}: {space.size:,} configurations possible, {impossible:,} not",
    ]
    ranked = sorted(space.impossible.items(), key=lambda reason: (-reason[1], reason[0]))
    return "\n".join([*lines, *(f"  {count:,}: {why}" for why, count in ranked)])


def _said_of_best(asked: Targets) -> str:
    if not asked:
        return "the least mean job completion time"
    if asked.differ:
        return f"the most requests that meet their own targets: {asked}"
    return f"the most requests with {asked}"


def _said_of_overlap(prepared: Prepared) -> list[str]:
    """A warning if half of the windows do not fit a trace; a generated one is drawn anew for each."""
    request, window_s = prepared.request, prepared.window_s
    duration_s, windows = prepared.requests / prepared.rate_rps, samples_in_all(request.seeds)
    if request.trace.is_drawn or duration_s >= windows * window_s / 2:
        return []
    return [
        f"the trace lasts {duration_s:.0f} s, and {windows} windows of up to {window_s:.0f} s are taken of it: "
        "they overlap, so samples that chose nothing hold requests that did, and ± is narrower than the truth"
    ]
