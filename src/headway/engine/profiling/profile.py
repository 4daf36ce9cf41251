"""Measures an engine on this machine (steps of every kind, copies both ways, memory), then fits cost laws."""

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
"""Token ids of the prompts. Every model has these; their values do not change the cost."""
MIN_STEPS_OF_A_KIND = 8
_SCENE_SHARE = 0.03
"""Share of the total time for one scene's tokens, so that at least two repetitions of the grid fit."""
_MIN_SCENE_TOKENS = 512
_LARGEST_HOST_SHARE = 0.5
"""Upper limit of the host's share of the shortest step, so that the device's share stays positive."""

Tell = Callable[[float, str], None]


class Engine(Protocol):
    """An engine stepped by hand, as `SteppedEngine` implements it."""

    @property
    def sizes(self) -> ReportedSizes:
        """Sizes and limits of this engine."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""
        ...

    def fresh_id(self) -> str:
        """A request id that was not used before."""
        ...

    def make_request(self, request_id: str, prompt: Sequence[int], output_tokens: int) -> Any:
        """A request for exactly this many tokens."""
        ...

    def add(self, request: Any) -> None:
        """Queue a request."""
        ...

    def step(self) -> SteppedStep | None:
        """Take one turn of the engine's loop; None if it computed nothing."""
        ...

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run `function(worker, *args)` on each worker and return the results."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """How long to measure steps (seconds), and the seed of order and prompts.

    At least one repetition of the grid is finished, however slow the engine.
    """

    seconds: float = DEFAULT_SECONDS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= MOST_SECONDS:
            raise ConfigError.of("seconds", self.seconds, f"more than 0, up to {MOST_SECONDS:g} (a day)")


@dataclass(slots=True)
class Measurements:
    """The measurements so far. May be read at any moment, also after an interruption."""

    sizes: ReportedSizes
    steps: list[SteppedStep] = field(default_factory=list)
    copies: list[TimedCopy] = field(default_factory=list)
    repetitions: int = 0

    def missing(self) -> list[str]:
        """What a cost file still lacks; empty when there is enough."""
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
        """Seconds of a step before the device can start: the scheduler's median time."""
        schedule_s = median(step.schedule_s for step in self.steps)
        return min(schedule_s, _LARGEST_HOST_SHARE * min(step.seconds for step in self.steps))

    def rows(self, rng: random.Random) -> list[tuple[BatchShape, float]]:
        """Shapes with their seconds (without the host's part), in random order, as the fit expects them."""
        host_s = self.host_s()
        rows = [(step.shape, step.seconds - host_s) for step in self.steps]
        rng.shuffle(rows)
        return rows

    def transfers(self, direction: CopyDirection) -> list[tuple[int, float]]:
        """Bytes and seconds of the copies in one direction."""
        return [(copy.num_bytes, copy.seconds) for copy in self.copies if copy.direction is direction]


class Profiler:
    """Plays the grid scene by scene, repetition after repetition, as long as it is asked to.

    Order and lengths change between repetitions, so that neither a drift of the machine nor a rhythm of the grid biases
    one kind of step. `seconds` is the planned total time, which decides how much work a scene holds.
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
        """Warm up and copy blocks; takes a few seconds."""
        tell(0.0, "warming up")
        taken = list(play(self._engine, warm_up(self._into.sizes), self._random))
        largest = max(taken, key=lambda step: (step.shape.num_tokens, -step.seconds))
        tokens_per_s = largest.shape.num_tokens / largest.seconds
        self._scene_tokens = max(_MIN_SCENE_TOKENS, int(tokens_per_s * self._seconds * _SCENE_SHARE))
        tell(0.0, "copying blocks")
        self._into.copies.extend(measure_copies(self._engine.on_workers, self._into.sizes.num_blocks))

    @property
    def share_of_repetition(self) -> float:
        """Share of the current repetition that is done (0-1)."""
        return 1 - len(self._scenes) / self._grid_size if self._scenes else 0.0

    def play_next(self) -> str:
        """Measure one more scene; return its name."""
        if not self._scenes:
            exact = self._into.repetitions == 0
            self._scenes = scenes(self._into.sizes, self._scene_tokens, self._random, exact)
            self._grid_size = len(self._scenes)
        scene = self._scenes.pop()
        self._into.steps.extend(play(self._engine, scene, self._random))
        self._into.repetitions += not self._scenes
        return scene.name


def measure(engine: Engine, plan: ProfilePlan, into: Measurements, tell: Tell) -> None:
    """Fill `into`: copies first, since they are quick, then repetitions of the grid until the time is over.

    `tell` receives the share done (0-1) and the current activity.
    """
    profiler = Profiler(engine, into, seconds=plan.seconds, seed=plan.seed)
    profiler.prepare(tell)
    started = time.monotonic()
    share = 0.0
    while into.repetitions == 0 or share < 1:
        name = profiler.play_next()
        share = (time.monotonic() - started) / plan.seconds
        # The first repetition is never cut short, so time alone may claim too early that everything is done.
        shown = share if into.repetitions else min(share, profiler.share_of_repetition)
        tell(min(1.0, shown), f"repetition {into.repetitions + 1}, {len(into.steps)} steps; last: {name}")


def play(engine: Engine, scene: Scene, rng: random.Random) -> Iterator[SteppedStep]:
    """Run a scene and yield its steps, except the first, which wakes the workers."""
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
"""vLLM's flags for sizes that a cost file contains. Plans choose these sizes themselves."""


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
    """The contents of a cost file, and the errors on held-out steps by kind of step."""

    cost: CostFile
    errors: dict[str, Errors]

    def to_dict(self) -> dict[str, object]:
        """The result for scripts: errors as fractions, seconds, bytes, counts."""
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
    """Fit the laws. Every fifth step, drawn by `seed`, is held out to judge them.

    Raises ConfigError, naming what is missing, if there are too few measurements.
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
    """Rescale the fit's residuals so that their mean equals total measured time over total predicted time.

    The law follows the typical step and resists outliers, while a run's length is a sum over all steps. Quantiles of
    few steps, interpolated linearly, overweight their largest outlier. A bias of 2 % in every step becomes 10 % and
    more in the waiting times of a loaded engine.
    """
    true_mean = sum(s for _, s in rows) / sum(fit.law.step_s(shape) for shape, _ in rows)
    residuals = fit.held_out.residuals
    drawn = [sum(pair) / 2 for pair in pairwise(residuals)] or residuals
    scale = true_mean * len(drawn) / sum(drawn)
    held_out = replace(fit.held_out, residuals=tuple(residual * scale for residual in residuals))
    return replace(fit, held_out=held_out)
