"""The scene of `long_prompt`, streams with a long prompt among them: on a real engine and simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Protocol

from bench.command import say
from bench.real_runs import MID, STOCK, EngineSpec
from headway.core.plan import StepOutcome
from headway.core.record import Record
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import SimulationError
from headway.json_file import made_once
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.policy_choice import Parts
from headway.lab.real_engine import serve
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System
from headway.statistics import mean, median, quantile
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

LONG = "long"
STREAM = "stream"
WARM = "warm"
LONG_OUTPUT_TOKENS = 8
WARM_OUTPUT_TOKENS, REHEARSAL_TOKENS = 4, 100
WARM_SHARES = (1 / 64, 1 / 4, 1 / 16, 1 / 8)
"""Lengths of the prompts before the scene, as shares of the long prompt's tokens. Engines learn the cost of steps
from them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """`streams` decode; `settle_s` after they came, a prompt of `long_tokens` arrives. Before them come `warm` other
    prompts, one every `warm_every_s`, and as many short streams, `rehearsal_s` ahead, as a serving engine would have
    seen.

    The streams share the first `shared_blocks` times 512 tokens of their prompts, like a system prompt, so that what
    they read hardly changes while they run. `window_s` is how long they are watched when they are left alone.
    """

    streams: int
    long_tokens: int
    stream_output_tokens: int
    shared_blocks: int
    own_tokens: int = 32
    settle_s: float = 2.0
    window_s: float = 4.0
    warm: int = 12
    warm_every_s: float = 1.0
    rehearsal_s: float = 10.0

    @property
    def warm_s(self) -> float:
        """When the short streams come."""
        return self.warm * self.warm_every_s

    @property
    def streams_s(self) -> float:
        """When the streams come."""
        return self.warm_s + self.rehearsal_s

    @property
    def long_s(self) -> float:
        """When the long prompt comes."""
        return self.streams_s + self.settle_s

    def requests(self, tbt_s: float | None, *, with_long: bool = True, seed: int = 0) -> list[TraceRequest]:
        """Requests in order of arrival; the streams have this target, no other request has any.

        The streams' own parts of their prompts vary by up to a quarter in length, by `seed`.
        """
        rng = Random(f"streams of {seed}")
        slo = NO_TARGETS if tbt_s is None else Slo(tbt_s=tbt_s)
        found = [self._warm(number) for number in range(self.warm)]
        for number in range(self.streams):
            found.append(
                self._sharing(f"{WARM}-stream-{number}", self.warm_s, self.own_tokens, REHEARSAL_TOKENS)
            )
        for number in range(self.streams):
            own_tokens = self.own_tokens + rng.randrange(self.own_tokens // 4 + 1)
            stream = self._sharing(
                f"{STREAM}-{number}", self.streams_s, own_tokens, self.stream_output_tokens
            )
            found.append(replace(stream, slo=slo))
        if with_long:
            found.append(_request(LONG, self.long_s, self.long_tokens, LONG_OUTPUT_TOKENS))
        return found

    def _warm(self, number: int) -> TraceRequest:
        """A prompt before the scene: the first has the streams' shared prefix, the others have prompts of their own."""
        name, arrival_s = f"{WARM}-{number}", number * self.warm_every_s
        if not number:
            return self._sharing(name, arrival_s, self.own_tokens, WARM_OUTPUT_TOKENS)
        tokens = max(1, round(self.long_tokens * WARM_SHARES[number % len(WARM_SHARES)]))
        return _request(name, arrival_s, tokens, WARM_OUTPUT_TOKENS)

    def _sharing(self, name: str, arrival_s: float, own_tokens: int, output: int) -> TraceRequest:
        tokens = MOONCAKE_BLOCK_TOKENS * self.shared_blocks + own_tokens
        blocks = tuple(range(self.shared_blocks))
        return replace(_request(name, arrival_s, tokens, output), prefix_blocks=blocks)


def _request(name: str, arrival_s: float, tokens: int, output: int) -> TraceRequest:
    return TraceRequest(name, arrival_s, tokens, output, max_output_tokens=output)


@dataclass(slots=True)
class TokenTimes:
    """When each request's tokens came, in order."""

    of: dict[str, list[float]] = field(default_factory=dict)

    def came(self, request_id: str, tokens: int, now_s: float) -> None:
        """Note that this many tokens of a request have come now."""
        self.of.setdefault(request_id, []).extend([now_s] * tokens)

    @property
    def streams(self) -> list[list[float]]:
        """Token times of the streams alone."""
        return [times_s for name, times_s in self.of.items() if name.startswith(STREAM)]


def gaps_s(streams: Sequence[Sequence[float]], from_s: float, until_s: float) -> list[float]:
    """The times between tokens of the same stream that overlap this interval."""
    return [
        later - sooner
        for times_s in streams
        for sooner, later in pairwise(times_s)
        if later > from_s and sooner < until_s
    ]


@dataclass(frozen=True, slots=True)
class Light:
    """The streams without a long prompt: their median and worst time between tokens, after the instant when it
    would have come.
    """

    median_gap_s: float
    worst_gap_s: float


def light(scene: Scene, times: TokenTimes) -> Light:
    """Gaps of the streams when they are left alone. Raises SimulationError if they ended too early."""
    gaps = gaps_s(times.streams, scene.long_s, scene.long_s + scene.window_s)
    if not gaps:
        raise SimulationError(
            "the streams ended before the long prompt would have come; they need more tokens"
        )
    return Light(median(gaps), max(gaps))


def light_gap_s(alone: Sequence[Light]) -> float:
    """The gap that targets are multiples of: the first seed's median gap, so that more seeds do not change the
    targets.
    """
    return alone[0].median_gap_s


@dataclass(frozen=True, slots=True)
class Passage:
    """How a long prompt was served: the streams' gaps from its arrival to its first token, and its time to first token.

    `before_gap_s`: the streams' median gap in the second before it came (0 if they had none), a measure of the
    machine's speed at that time. `amid_all`: every stream had begun and was still running, so that the whole prompt was
    computed among all of them.
    """

    before_gap_s: float
    worst_gap_s: float
    p99_gap_s: float
    ttft_s: float
    amid_all: bool


def passage(scene: Scene, times: TokenTimes) -> Passage:
    """The passage of the long prompt in one run of the scene."""
    first_s = times.of[LONG][0]
    gaps = sorted(gaps_s(times.streams, scene.long_s, first_s))
    if not gaps:
        raise SimulationError("the streams ended before the long prompt came; they need more tokens")
    before = gaps_s(times.streams, scene.long_s - 1.0, scene.long_s)
    return Passage(
        before_gap_s=median(before) if before else 0.0,
        worst_gap_s=gaps[-1],
        p99_gap_s=quantile(gaps, 0.99),
        ttft_s=first_s - scene.long_s,
        amid_all=len(times.streams) == scene.streams and min(map(max, times.streams)) >= first_s,
    )


def passage_figures(passages: Sequence[Passage]) -> dict[str, Any]:
    """Figures over the seeds: the worst gap overall and by seed, and means of the rest."""
    return {
        "worst_gap_s": max(each.worst_gap_s for each in passages),
        "worst_gap_by_seed_s": [each.worst_gap_s for each in passages],
        "before_gap_s": max(each.before_gap_s for each in passages),
        "p99_gap_s": mean(each.p99_gap_s for each in passages),
        "long_ttft_s": mean(each.ttft_s for each in passages),
        "amid_all": all(each.amid_all for each in passages),
    }


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """One machine: the streams alone, under systems without targets, and under the policy by factor of its target;
    each by seed.
    """

    light: Sequence[Light]
    deaf: Mapping[str, Sequence[Passage]]
    policy: Mapping[float, Sequence[Passage]]


@dataclass(frozen=True, slots=True)
class Row:
    """How a scene is served: a policy, an optional batching in place of its own, and the streams' target."""

    name: str
    policy: str
    batching: str | None = None
    tbt_s: float | None = None


class Stage(Protocol):
    """Anything that can serve a scene."""

    def __call__(self, row: Row, seed: int, *, with_long: bool = True) -> TokenTimes:
        """Serve the scene; return when the tokens came."""
        ...


def measured(
    scene: Scene, stage: Stage, policy: str, factors: Sequence[float], budgets: Sequence[int], seeds: int
) -> MeasuredMachine:
    """Measure everything on a stage: first the streams alone, since their gaps set the targets, then all systems in
    turn, seed by seed.
    """
    stock = Row("vllm", STOCK.policy)
    alone = [
        light(scene, stage(replace(stock, name="vllm-alone"), seed, with_long=False)) for seed in range(seeds)
    ]
    gap_s = light_gap_s(alone)
    deaf = {"vllm": stock} | {
        f"sarathi {budget}": Row(f"sarathi-{budget}", "sarathi", f"decode-first:token_budget={budget}")
        for budget in budgets
    }
    own = {factor: Row(f"{policy}-{factor:g}", policy, tbt_s=factor * gap_s) for factor in factors}
    found: dict[Row, list[Passage]] = {row: [] for row in (*deaf.values(), *own.values())}
    for seed in range(seeds):
        for row, passages in found.items():
            passages.append(passage(scene, stage(row, seed)))
    return MeasuredMachine(
        light=alone,
        deaf={name: found[row] for name, row in deaf.items()},
        policy={factor: found[row] for factor, row in own.items()},
    )


# ---- on the real CPU engine, scaled down -------------------------------------------------------------

REAL = "CPU, 46 M parameters"
SCENE = Scene(
    streams=12,
    long_tokens=1_500,
    stream_output_tokens=600,
    shared_blocks=1,
    settle_s=2.0,
    window_s=4.0,
    warm=8,
    rehearsal_s=5.0,
)
REAL_BUDGETS = (16, 32, 64, 128, 256, 512)
SEATS = 32
ENGINE = EngineSpec(
    model=MID, flags=("--max-model-len", "4096", "--enforce-eager"), block_tokens=32, slots=SEATS
)
NOTE = (
    "scaled down: 1,500 tokens amid 12 streams for 20,000 amid 64, and budgets to match; the engine's other sizes as "
    "vLLM chooses them"
)


@dataclass(frozen=True, slots=True)
class RealStage:
    """Serves a scene on a real engine. Runs that the folder has already are read; new ones are kept there."""

    engine: SteppedEngine
    scene: Scene
    folder: Path | None

    def __call__(self, row: Row, seed: int, *, with_long: bool = True) -> TokenTimes:
        """Serve the scene; return when the tokens came."""

        def made() -> dict[str, list[float]]:
            say(f"long prompt: {row.name}-{seed}")
            return self._served(row, seed, with_long=with_long).of

        if self.folder is None:
            return TokenTimes(made())
        return TokenTimes(made_once(self.folder / f"{row.name}-{seed}.json", dict[str, list[float]], made))

    def _served(self, row: Row, seed: int, *, with_long: bool) -> TokenTimes:
        if row.policy == STOCK.policy and row.tbt_s is None:
            STOCK.put_in(self.engine, SEATS)
        else:
            self.engine.schedule_with(EngineSettings(policy=row.policy, batching=row.batching))
        times = TokenTimes()
        requests = self.scene.requests(row.tbt_s, with_long=with_long, seed=seed)
        serve(self.engine, requests, seed, on_tokens=times.came)
        return times


def measured_real(
    policy: str, factors: Sequence[float], budgets: Sequence[int], seeds: int, folder: Path | None
) -> MeasuredMachine:
    """Measure everything on this machine's engine."""
    with ENGINE.serving() as engine:
        return measured(SCENE, RealStage(engine, SCENE, folder), policy, factors, budgets, seeds)


# ---- on simulated GPUs -------------------------------------------------------------------------------

LONG_TOKENS, STREAMS, SHARED_BLOCKS = 20_000, 64, 2
SIMULATED_BUDGETS = (256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class SceneMachine:
    """A GPU, a model and a scene that fits its memory; `note` is a remark for the report."""

    hardware: str
    model: str
    scene: Scene
    note: str = ""

    def system(self) -> System:
        """One engine with vLLM's default sizes on this GPU."""
        costs = calibration(self.hardware, model_shape(self.model))
        return System(limits=engine_limits(EngineSizes(), self.hardware, costs), calibration=costs)


def _scene(stream_output_tokens: int) -> Scene:
    return Scene(
        streams=STREAMS,
        long_tokens=LONG_TOKENS,
        stream_output_tokens=stream_output_tokens,
        shared_blocks=SHARED_BLOCKS,
    )


MACHINES = {
    "H100, Llama-3.1-8B": SceneMachine("h100", "Llama-3.1-8B", _scene(1_500)),
    "A100 80 GB, OPT-13B": SceneMachine(
        "a100-80g",
        "opt-13b",
        _scene(480),
        "the costs of its shape: OPT's own positions end at 2,048; the streams end where memory does",
    ),
    "A100 80 GB, Qwen2.5-14B": SceneMachine("a100-80g", "Qwen2.5-14B", _scene(1_500)),
}


@dataclass(slots=True)
class Heard:
    """Follows a run and notes when each request's tokens came.

    A step is reported before its output is processed, so the tokens that a job has gained since its last step came with
    that one.
    """

    times: TokenTimes = field(default_factory=TokenTimes)
    _known: dict[str, int] = field(default_factory=dict)
    _last_s: dict[str, float] = field(default_factory=dict)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """A step was computed; its output is about to be processed."""
        for job in outcome.tokens:
            if job.id in self._last_s:
                self._grown(job.id, job.num_output_tokens, self._last_s[job.id])
            self._last_s[job.id] = finished_s

    def ended(self, record: Record) -> None:
        """A request has ended with its last token."""
        self._grown(record.id, record.output_tokens, record.finished_s or 0.0)

    def _grown(self, request_id: str, output_tokens: int, at_s: float) -> None:
        new = output_tokens - self._known.get(request_id, 0)
        if new:
            self._known[request_id] = output_tokens
            self.times.came(request_id, new, at_s)


@dataclass(frozen=True, slots=True)
class SimulatedStage:
    """Serves a scene on a simulated machine."""

    machine: SceneMachine

    def __call__(self, row: Row, seed: int, *, with_long: bool = True) -> TokenTimes:
        """Serve the scene; return when the tokens came."""
        requests = self.machine.scene.requests(row.tbt_s, with_long=with_long, seed=seed)
        heard = Heard()
        simulate_policy(
            requests,
            row.policy,
            self.machine.system(),
            parts=Parts(batching=row.batching),
            on_record=heard.ended,
            max_output_tokens=max(request.output_tokens for request in requests),
            seed=seed,
            watch=heard.stepped,
        )
        return heard.times


def measured_simulated(
    machine: SceneMachine, policy: str, factors: Sequence[float], budgets: Sequence[int], seeds: int
) -> MeasuredMachine:
    """Measure everything on one simulated machine."""
    return measured(machine.scene, SimulatedStage(machine), policy, factors, budgets, seeds)
