"""Tasks for the demo model: eight applications, made from a seed, with answers that follow from inputs by rule.

The trained `demo` model answers them and stops by itself, so decoding gives real lengths that depend on the input. Its
real answers' lengths, for a fixed set of tasks, are packaged with it (`demo_rows`).

A task is given to the model as a chat: the instruction is the system message, the input the user's. `prompt_text` is
the same as text for the completions API; the server adds the first token, `<|bos|>`.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

import headway
from headway.errors import ConfigError
from headway.traces.arrivals import Poisson
from headway.traces.demo_apps import APPS
from headway.traces.request import TraceRequest

LENGTHS_SEED = 7
"""Seed of the tasks whose real lengths are packaged; training never sees it."""
LENGTHS_FILE = "lengths.csv.gz"
LENGTHS_HEADER = ("app", "number", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class DemoTask:
    """One task: application, instruction, input, and the right answer."""

    app: str
    instruction: str
    input: str
    answer: str


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A task that the demo model has answered: its prompt, and the number of tokens it wrote, including the end token.

    `num_prompt_tokens` counts the whole prompt with special tokens.
    """

    app: str
    instruction: str
    user_input: str
    num_prompt_tokens: int
    output_tokens: int


def demo_task(app: str, number: int, seed: int) -> DemoTask:
    """The task of that number: always the same for an application, number and seed."""
    if app not in APPS:
        raise ConfigError(f"unknown application {app!r}; accepted: {', '.join(APPS)}")
    made = APPS[app]
    rng = Random(f"{seed} {app} {number}")
    text = made.make_input(rng, _parts(rng, made.mean_parts, made.most_parts))
    return DemoTask(app, made.instruction, text, made.answer(text))


def _parts(rng: Random, mean: float, most: int) -> int:
    """Geometric with that mean, from 1; a value above the maximum is drawn again, uniformly."""
    parts = 1 + int(rng.expovariate(1.0) * mean)
    return parts if parts <= most else rng.randint(1, most)


def prompt_text(instruction: str, user_input: str) -> str:
    """The prompt of a task for the completions API: the chat template's result without its first token."""
    return f"<|system|>{instruction}<|eos|><|user|>{user_input}<|eos|><|assistant|>"


def demo_directory() -> Path:
    """The directory of the shipped model: in the installed package, or in a checkout's `models/demo`."""
    package = Path(headway.__file__).parent
    places = (package / "models" / "demo", package.parents[1] / "models" / "demo")
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise ConfigError(f"the demo model is neither in {places[0]} nor in {places[1]}; install Headway again")


@cache
def demo_rows() -> tuple[DemoRow, ...]:
    """Equally many tasks of each application, with the lengths that the demo model gave them under vLLM, greedily.

    About one in 45 never ended and was cut at 1,024 tokens: mostly long inputs, in which the model loses its place and
    repeats itself. In `detox` and `translate` it is one in 16 and one in 18; `training.json` has each.

    The lengths are packaged; the texts are made again from their seed (under a second, once).
    """
    return tuple(_read_rows(demo_directory() / LENGTHS_FILE))


def _read_rows(path: Path) -> Iterator[DemoRow]:
    with gzip.open(path, "rt", encoding="ascii", newline="") as lines:
        for row in csv.DictReader(lines):
            task = demo_task(row["app"], int(row["number"]), LENGTHS_SEED)
            yield DemoRow(
                task.app, task.instruction, task.input, int(row["prompt_tokens"]), int(row["output_tokens"])
            )


def demo_requests(count: int, rate_rps: float, seed: int = 0) -> list[TraceRequest]:
    """A trace of `count` packaged tasks, drawn without replacement, arriving as a Poisson process.

    Each has its prompt, its real length, and its application as the tenant. Raises ConfigError unless the count is 1 to
    the number of packaged tasks.
    """
    rows = demo_rows()
    if not 1 <= count <= len(rows):
        raise ConfigError(f"count is {count}; accepted: 1 to {len(rows)}")
    if seed < 0:
        raise ConfigError.of("seed", seed, "0 or more")
    order_rng, arrival_rng = (
        np.random.default_rng(stream) for stream in np.random.SeedSequence(seed).spawn(2)
    )
    chosen = order_rng.permutation(len(rows))[:count]
    arrivals_s = Poisson(rate_rps).sample(count, arrival_rng)
    return [
        _request(str(place), arrival_s, rows[index])
        for place, (arrival_s, index) in enumerate(zip(arrivals_s, chosen, strict=True))
    ]


def _request(name: str, arrival_s: float, row: DemoRow) -> TraceRequest:
    return TraceRequest(
        name,
        arrival_s,
        row.num_prompt_tokens,
        row.output_tokens,
        tenant=row.app,
        prompt=prompt_text(row.instruction, row.user_input),
    )
