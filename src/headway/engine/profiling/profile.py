"""What an engine costs on this machine: steps of every kind, copies both ways, memory; measured, then fitted."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol

from headway.core.batch_shape import BatchShape, StepKind
from headway.engine.kv.block_copies import CopyDirection, TimedCopy, measure_copies
from headway.engine.profiling.grid import Scene, prompts_of, scenes, warm_up
from headway.engine.servers.vllm_flags import parse_vllm_flags
from headway.engine.stepped_engine import ReportedSizes, SteppedStep
from headway.errors import ConfigError
from headway.predict.steps.calibration import CostFile, EngineDefaults, measured_step
from headway.predict.steps.copies import fit_transfer
from headway.predict.steps.fitting import Errors, errors_of
from headway.predict.steps.law import HELD_OUT_EVERY, MIN_ROWS, StepTimeFit, fit_step_time
from headway.statistics import median

DEFAULT_SECONDS = 60.0
QUICK_SECONDS = 12.0
MOST_SECONDS = 86_400.0
VOCABULARY = range(10, 1000)
"""Token ids of the prompts; every model has these, and what they say does not change what they cost."""
MIN_STEPS_OF_A_KIND = 8
_SCENE_SHARE = 0.03
"""Of the time, for the tokens of one scene, so that at least two repetitions of the grid fit."""
_MIN_SCENE_TOKENS = 512
_LARGEST_HOST_SHARE = 0.5
"""Of the shortest step, so that what is left for the device stays positive."""

Tell = Callable[[float, str], None]


class Engine(Protocol):
    """What is measured: an engine that is stepped by hand, as `SteppedEngine` does it."""

    @property
    def sizes(self) -> ReportedSizes:
        """Sizes and limits of this engine."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        ...

    def fresh_id(self) -> str:
        """A request id not given out before."""
        ...

    def make_request(self, request_id: str, prompt: Sequence[int], output_tokens: int) -> Any:
        """A request for exactly so many tokens."""
        ...

    def add(self, request: Any) -> None:
        """Queue a request."""
        ...

    def step(self) -> SteppedStep | None:
        """Take one turn of the engine's loop; None if nothing was computed in it."""
        ...

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What `function(worker, *args)` returns on each worker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """How long to measure steps for, in seconds, and what decides the order and the prompts.

    One repetition of the grid is always finished, however slow the engine.
    """

    seconds: float = DEFAULT_SECONDS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MOST_SECONDS:
            raise ConfigError.of("seconds", self.seconds, f"more than 0, up to {MOST_SECONDS:g} (a day)")


@dataclass(slots=True)
class Measurements:
    """What was measured so far; it can be read at any moment, also after an interruption."""

    sizes: ReportedSizes
    steps: list[SteppedStep] = field(default_factory=list)
    copies: list[TimedCopy] = field(default_factory=list)
    repetitions: int = 0

    def missing(self) -> list[str]:
        """What a cost file still needs; empty when there is enough."""
        kinds = Counter(step.shape.kind for step in self.steps)
        lacking = [
            f"{kind} steps ({kinds[kind]} of {MIN_STEPS_OF_A_KIND})"
            for kind in (StepKind.PREFILL, StepKind.DECODE)
            if kinds[kind] < MIN_STEPS_OF_A_KIND
        ]
        if not lacking and len(self.steps) < MIN_ROWS:
            lacking.append(f"steps ({len(self.steps)} of {MIN_ROWS})")
        directions = {copy.direction for copy in self.copies}
        return lacking + [f"copies {way}" for way in CopyDirection if way not in directions]

    def host_s(self) -> float:
        """Seconds of a step before the device can start: the median of the scheduler's time."""
        schedule_s = median(step.schedule_s for step in self.steps)
        return min(schedule_s, _LARGEST_HOST_SHARE * min(step.seconds for step in self.steps))

    def rows(self, rng: random.Random) -> list[tuple[BatchShape, float]]:
        """Shapes and seconds without the host's part, in random order, as the fit wants them."""
        host_s = self.host_s()
        rows = [(step.shape, step.seconds - host_s) for step in self.steps]
        rng.shuffle(rows)
        return rows

    def transfers(self, direction: CopyDirection) -> list[tuple[int, float]]:
        """Bytes and seconds of the copies one way."""
        return [(copy.num_bytes, copy.seconds) for copy in self.copies if copy.direction is direction]


class Profiler:
    """Goes through the grid scene by scene, repetition after repetition, as far as it is asked to.

    Order and lengths change from repetition to repetition, so that neither a drift of the machine nor a rhythm
    of the grid biases one kind of step. `seconds` is the time there will be, which decides how much work one
    scene holds.
    """

    def __init__(self, engine: Engine, into: Measurements, *, seconds: float, seed: int = 0) -> None:
        self._engine = engine
        self._into = into
        self._seconds = seconds
        self._random = random.Random(seed)
        self._scene_tokens = _MIN_SCENE_TOKENS
        self._scenes: list[Scene] = []
        self._grid_size = 1

    def prepare(self, tell: Tell) -> None:
        """Warm up and copy blocks; a few seconds."""
        tell(0.0, "warming up")
        taken = list(play(self._engine, warm_up(self._into.sizes), self._random))
        largest = max(taken, key=lambda step: (step.shape.num_tokens, -step.seconds))
        tokens_per_s = largest.shape.num_tokens / largest.seconds
        self._scene_tokens = max(_MIN_SCENE_TOKENS, int(tokens_per_s * self._seconds * _SCENE_SHARE))
        tell(0.0, "copying blocks")
        self._into.copies.extend(measure_copies(self._engine.on_workers, self._into.sizes.num_blocks))

    @property
    def share_of_repetition(self) -> float:
        """How much of the current repetition is behind (0-1)."""
        return 1 - len(self._scenes) / self._grid_size if self._scenes else 0.0

    def play_next(self) -> str:
        """Measure one more scene; returns its name."""
        if not self._scenes:
            exact = self._into.repetitions == 0
            self._scenes = scenes(self._into.sizes, self._scene_tokens, self._random, exact)
            self._grid_size = len(self._scenes)
        scene = self._scenes.pop()
        self._into.steps.extend(play(self._engine, scene, self._random))
        self._into.repetitions += not self._scenes
        return scene.name


def measure(engine: Engine, plan: ProfilePlan, into: Measurements, tell: Tell) -> None:
    """Fill `into`: copies first, as they are quick, then repetitions of the grid until the time is over.

    `tell` hears the share done (0-1) and what is going on.
    """
    profiler = Profiler(engine, into, seconds=plan.seconds, seed=plan.seed)
    profiler.prepare(tell)
    started = time.monotonic()
    share = 0.0
    while into.repetitions == 0 or share < 1:
        name = profiler.play_next()
        share = (time.monotonic() - started) / plan.seconds
        # The first repetition is never cut short, so time alone may say too early that all is done.
        shown = share if into.repetitions else min(share, profiler.share_of_repetition)
        tell(min(1.0, shown), f"repetition {into.repetitions + 1}, {len(into.steps)} steps; last: {name}")


def play(engine: Engine, scene: Scene, rng: random.Random) -> Iterator[SteppedStep]:
    """Run a scene and yield its steps, all but the first, which wakes the workers."""
    prompts = prompts_of(scene, VOCABULARY, rng)
    requests = [
        engine.make_request(engine.fresh_id(), prompt, ask.output_tokens)
        for ask, prompt in zip(scene.asks, prompts, strict=True)
    ]
    pending = deque(zip(scene.asks, requests, strict=True))
    step, woken = 0, False
    while pending or engine.busy:
        while pending and pending[0][0].at_step <= step:
            engine.add(pending.popleft()[1])
        taken = engine.step()
        step += 1
        if taken is not None and woken:
            yield taken
        woken = woken or taken is not None


_SIZES = (
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--max-cudagraph-capture-size",
    "--tensor-parallel-size",
    "-tp",
)
"""vLLM's flags that a cost file has numbers of, and plans their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What was measured, with which of vLLM's flags, where, and on which day."""

    machine: str
    model: str
    vllm_version: str
    measured_on: str
    vllm_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProfileResult:
    """A cost file's contents, and the errors on steps the fit has not seen, by kind of step."""

    cost: CostFile
    errors: dict[str, Errors]

    def to_dict(self) -> dict[str, object]:
        """What scripts read: errors as fractions, seconds, bytes, counts."""
        cost = self.cost
        return {
            "machine": cost.machine,
            "model": cost.model,
            "steps": cost.step.num_rows,
            "errors": {
                kind: {"steps": e.num_rows, "median": e.median_error, "p90": e.p90_error}
                for kind, e in self.errors.items()
            },
            "host_s": cost.host_s,
            "to_host": {"start_s": cost.to_host.start_s, "bytes_per_s": cost.to_host.bytes_per_s},
            "to_device": {"start_s": cost.to_device.start_s, "bytes_per_s": cost.to_device.bytes_per_s},
            "kv_bytes_per_token": cost.kv_bytes_per_token,
            "kv_capacity_tokens": cost.kv_capacity_tokens,
            "block_size": cost.block_size,
        }


def conclude(measured: Measurements, identity: Identity, seed: int = 0) -> ProfileResult:
    """Fit the laws; every fifth step, drawn by `seed`, only judges them.

    Raises ConfigError, naming what is missing, if too little was measured.
    """
    missing = measured.missing()
    if missing:
        raise ConfigError(f"too little was measured for a cost file; missing: {', '.join(missing)}")
    rows = measured.rows(random.Random(seed))
    fit = unbiased(fit_step_time(rows), rows)
    sizes = measured.sizes
    cost = CostFile(
        machine=identity.machine,
        model=identity.model,
        dtype=sizes.dtype,
        vllm_version=identity.vllm_version,
        measured_on=identity.measured_on,
        tensor_parallel=sizes.tensor_parallel,
        step=fit,
        host_s=measured.host_s(),
        to_host=fit_transfer(measured.transfers(CopyDirection.TO_HOST)),
        to_device=fit_transfer(measured.transfers(CopyDirection.TO_DEVICE)),
        kv_bytes_per_token=sizes.kv_bytes_per_token,
        kv_capacity_tokens=sizes.kv_capacity_tokens,
        kv_blocks=sizes.num_blocks if sizes.windowed_capacity_tokens else 0,
        block_size=sizes.block_size,
        engine=EngineDefaults(
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            asynchronous=sizes.asynchronous,
            vllm_flags=_saying_no_size(identity.vllm_flags),
        ),
        graphed_tokens=sizes.graphed_tokens,
        rows=tuple(measured_step(shape, seconds) for shape, seconds in rows),
    )
    unseen = rows[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    pairs = {
        kind: [(s, fit.law.step_s(shape)) for shape, s in unseen if shape.kind == kind] for kind in StepKind
    }
    return ProfileResult(cost, {kind: errors_of(found) for kind, found in pairs.items()})


def _saying_no_size(vllm_flags: Sequence[str]) -> tuple[str, ...]:
    flags = parse_vllm_flags(vllm_flags)
    return tuple(word for flag in flags if flag.name not in _SIZES for word in flag.words)


def unbiased(fit: StepTimeFit, rows: Sequence[tuple[BatchShape, float]]) -> StepTimeFit:
    """The fit with residuals whose mean, as a clock draws them, is that of all measured time over predicted.

    The law follows the typical step and holds outliers back, while a run's length is a sum over all steps; and
    quantiles of few steps, drawn with straight lines between, weigh their largest outlier too much. A bias of 2 %
    in every step is one of 10 % and more in the waiting times of a loaded engine.
    """
    true_mean = sum(s for _, s in rows) / sum(fit.law.step_s(shape) for shape, _ in rows)
    residuals = fit.held_out.residuals
    drawn = [sum(pair) / 2 for pair in pairwise(residuals)] or residuals
    scale = true_mean * len(drawn) / sum(drawn)
    held_out = replace(fit.held_out, residuals=tuple(residual * scale for residual in residuals))
    return replace(fit, held_out=held_out)
