"""Prefills of several model shapes on the real engine: training and test data for predictors of recompute times."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from math import inf
from pathlib import Path
from typing import Literal, Protocol

from headway.engine.demo_model import DemoRecipe, ensure_model
from headway.engine.kv.block_copies import measure_copies
from headway.engine.machine import is_cpu_build, machine_name, vllm_version
from headway.engine.profiling.grid import Ask, Scene, warm_up
from headway.engine.profiling.profile import Engine, Tell, play
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import ConfigError
from headway.predict.models.model_shape import ModelShape, read_model_shape
from headway.predict.recompute.rows import BlockCopy, PrefillStep, RecomputeRows, noise_of
from headway.statistics import median

HEAD_SIZE = 64
_QUERIES_A_KV_HEAD = 2
_INNER_RATIO = 3.5
"""Feed-forward width over hidden size, as in Llama 3."""
_COPY_ROUNDS = 3
_NOISE_STEPS = 20
"""Steps of one kind, run before all others, that show how much repeated steps differ."""
_ROOM_TOKENS = 64
"""Tokens left for the answer of a prompt as long as the model's limit."""


class ClosableEngine(Engine, Protocol):
    """An engine that holds processes until it is closed."""

    def close(self) -> None:
        """Stop the engine and free the device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPlan:
    """Which models to measure, with which steps, how often; `name` is the label in tables and files.

    A step holds `batch` prompts of `tokens` tokens, at most `max_step_tokens` in all. If steps of one kind differ by
    more than `most_noise` (`rows.noise_of`), the measurement stops.
    """

    name: str
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    tokens: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    batches: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    repetitions: int = 7
    max_step_tokens: int = 1024
    seed: int = 0
    most_noise: float = inf

    def __post_init__(self) -> None:
        odd = [width for width in self.widths if width < 1 or width % (HEAD_SIZE * _QUERIES_A_KV_HEAD)]
        if odd:
            raise ConfigError(f"width is {odd[0]}; accepted: multiples of {HEAD_SIZE * _QUERIES_A_KV_HEAD}")

    def recipes(self) -> list[tuple[str, DemoRecipe]]:
        """Names and recipes of the models; `8x512` has 8 layers 512 wide."""
        return [
            (
                f"{depth}x{width}",
                DemoRecipe(
                    num_hidden_layers=depth,
                    hidden_size=width,
                    intermediate_size=int(_INNER_RATIO * width),
                    num_attention_heads=width // HEAD_SIZE,
                    num_key_value_heads=width // HEAD_SIZE // _QUERIES_A_KV_HEAD,
                ),
            )
            for depth in self.depths
            for width in self.widths
        ]

    def configurations(self) -> list[tuple[int, int]]:
        """(tokens, batch) of each kind of step."""
        return [
            (tokens, batch)
            for tokens in self.tokens
            for batch in self.batches
            if tokens * batch <= self.max_step_tokens
        ]

    @property
    def num_rows(self) -> int:
        """Total number of measured steps."""
        return len(self.depths) * len(self.widths) * self.repetitions * len(self.configurations())

    def vllm_flags(self) -> tuple[str, ...]:
        """Engine flags that make each kind of step a single step, computed whole."""
        return (
            *("--max-num-seqs", str(max(self.batches))),
            *("--max-num-batched-tokens", str(self.max_step_tokens)),
            *("--max-model-len", str(self.max_step_tokens + _ROOM_TOKENS)),
            "--no-enable-prefix-caching",
        )


FULL = GridPlan(name="full", depths=(4, 8, 16), widths=(256, 512))
"""2,352 steps of six shapes: about seven minutes on two cores."""
QUICK = GridPlan(name="quick", depths=(2, 4, 8), widths=(256,), repetitions=3)
"""Three shapes: about a minute, mostly engine starts."""
GLIMPSE = replace(QUICK, name="glimpse", depths=(4,))
"""One shape: shows nothing about layers and width, and holds no shape out. About 25 seconds."""


@dataclass(slots=True)
class GridMeasurements:
    """The measurements so far. May be read at any moment, also after an interruption."""

    models: list[ModelShape] = field(default_factory=list)
    steps: list[PrefillStep] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def rows(self, plan: GridPlan, *, interrupted: bool = False) -> RecomputeRows:
        """The rows for a file, with this machine's name and today's date."""
        return RecomputeRows(
            machine=machine_name(),
            engine="cpu-engine" if is_cpu_build() else "gpu-engine",
            vllm_version=vllm_version(),
            day=date.today().isoformat(),
            plan=plan.name,
            interrupted=interrupted,
            models=tuple(self.models),
            steps=tuple(self.steps),
            copies=tuple(self.copies),
            noise=max(self.noise, default=None),
        )


Start = Callable[[Path, GridPlan], ClosableEngine]


def start_engine(directory: Path, plan: GridPlan) -> ClosableEngine:
    """Start the real engine with the model in a directory: 10 s and more."""
    return SteppedEngine(str(directory), plan.vllm_flags())


def measure_grid(
    plan: GridPlan,
    into: GridMeasurements,
    tell: Tell,
    start: Start = start_engine,
    cache_dir: Path | None = None,
) -> None:
    """Fill `into`, one model after another. Missing models are made first, without a network.

    `tell` receives the share done (0-1) and the current activity. Raises ConfigError if the machine is too noisy for
    the plan.
    """
    recipes = plan.recipes()
    for index, (name, recipe) in enumerate(recipes):
        told = _part(tell, index, len(recipes))
        told(0.0, f"{name}: starting")
        directory = ensure_model(f"grid-{name}", recipe, cache_dir)
        engine = start(directory, plan)
        try:
            into.models.append(replace(read_model_shape(directory), name=name))
            _measure_model(engine, plan, into, told)
        finally:
            engine.close()


def _part(tell: Tell, index: int, parts: int) -> Tell:
    """Convert a part's own progress into progress of the whole."""
    return lambda share, what: tell((index + share) / parts, what)


def _measure_model(engine: Engine, plan: GridPlan, into: GridMeasurements, tell: Tell) -> None:
    """Of the last model of `into`: how much steps of one kind differ, copies of blocks and how much they do, then every
    kind of step once a repetition, in random order.
    """
    name = into.models[-1].name
    rng = random.Random(f"{plan.seed} {name}")
    for _ in play(engine, warm_up(engine.sizes), rng):
        pass
    same = _prefills([(plan.tokens[len(plan.tokens) // 2], 1)] * _NOISE_STEPS)
    noise = noise_of([taken.seconds for taken in play(engine, same, rng)])
    _note_noise(into, noise, "steps of one kind", plan.most_noise)
    copies, noise = _copies(engine, name)
    _note_noise(into, noise, "copies of one size", plan.most_noise)
    into.copies += copies
    kinds = plan.configurations()
    for repetition in range(plan.repetitions):
        tell(repetition / plan.repetitions, f"{name}: {len(into.steps)} steps of {plan.num_rows}")
        rng.shuffle(kinds)
        for taken, (tokens, batch) in zip(play(engine, _prefills(kinds), rng), kinds, strict=True):
            assert (taken.shape.num_jobs, taken.shape.num_tokens) == (batch, tokens * batch)
            into.steps.append(PrefillStep(model=name, tokens=tokens, batch=batch, seconds=taken.seconds))


def _note_noise(into: GridMeasurements, noise: float, what: str, most: float) -> None:
    into.noise.append(noise)
    if noise > most:
        raise ConfigError(
            f"this machine is busy: {what} differ by {noise:.0%} on average; accepted: up to {most:.0%}"
        )


def _copies(engine: Engine, name: str) -> tuple[list[BlockCopy], float]:
    """Copies of every size both ways, medians over rounds: what disturbs one seldom lasts for three. And their noise:
    the middle of all sizes.
    """
    seconds: dict[tuple[Literal["to_host", "to_device"], int], list[float]] = {}
    for _ in range(_COPY_ROUNDS):
        for copy in measure_copies(engine.on_workers, engine.sizes.num_blocks):
            seconds.setdefault((copy.direction.value, copy.num_bytes), []).append(copy.seconds)
    found = [
        BlockCopy(model=name, direction=direction, num_bytes=num_bytes, seconds=median(times))
        for (direction, num_bytes), times in seconds.items()
    ]
    return found, median(map(noise_of, seconds.values()))


def _prefills(kinds: Sequence[tuple[int, int]]) -> Scene:
    """A step of each kind in turn, after one extra step that only wakes the workers."""
    asks = [Ask(at_step=0, prompt_tokens=min(tokens for tokens, _ in kinds))]
    asks += [
        Ask(at_step=step, prompt_tokens=tokens)
        for step, (tokens, batch) in enumerate(kinds, start=1)
        for _ in range(batch)
    ]
    return Scene("prefills", tuple(asks))
