"""The plan of the demo model's training: how fast it learns at a step, and which tasks it learns from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from headway.engine.demo_model import EOS_ID
from headway.traces.demo_apps import APPS
from headway.traces.demo_tasks import DemoTask, demo_task
from models.demo.shipped_files import RECIPE, prompt_ids

Pair = tuple[list[int], list[int]]
"""The tokens of a prompt and of its answer."""


@dataclass(frozen=True, slots=True)
class Training:
    """All that decides the weights."""

    steps: int
    threads: int
    seed: int = 1
    batch_tokens: int = 4096
    muon_rate: float = 0.02
    adam_rate: float = 0.003
    warm_up_steps: int = 40
    falling_share: float = 0.375
    """The last share of the steps, in which the learning rate falls to nothing."""
    short_steps: int = 200
    """Over these the longest task allowed grows from `short_tokens` to all."""
    short_tokens: int = 60
    pool_tasks: int = 1024
    """Tasks made at a time, which are then sorted by length into batches."""


def rate_share(step: int, training: Training) -> float:
    """Share of the full learning rate: up over the first steps, then level, then down to nothing."""
    falling = training.falling_share * training.steps
    return min((step + 1) / training.warm_up_steps, 1.0, (training.steps - step) / falling)


def batches(step: int, training: Training, tokenizer: Any) -> Iterator[list[Pair]]:
    """Batches of prompts and answers without end, from the one that belongs to a step."""
    made, pool = 0, 0
    while True:
        limit = _longest(made, training)
        for batch in _pool(pool, limit, training, tokenizer):
            if made >= step:
                yield batch
            made += 1
        pool += 1


def _longest(step: int, training: Training) -> int:
    """Tokens of the longest task that is allowed in a batch made at this step."""
    if step >= training.short_steps:
        return RECIPE.max_position_embeddings
    return int(training.short_tokens * (1 + 10 * step / training.short_steps))


def _pool(number: int, limit: int, training: Training, tokenizer: Any) -> list[list[Pair]]:
    """The tasks of one pool that are short enough, as batches of about equal length in random order."""
    each = training.pool_tasks // len(APPS)
    tasks = [demo_task(app, number * each + place, training.seed) for app in APPS for place in range(each)]
    pairs = [pair for task in tasks if sum(map(len, pair := _encoded(task, tokenizer))) <= limit]
    pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
    made: list[list[Pair]] = [[]]
    for pair in pairs:
        if (len(made[-1]) + 1) * (len(pair[0]) + len(pair[1])) > training.batch_tokens and made[-1]:
            made.append([])
        made[-1].append(pair)
    Random(number).shuffle(made)
    return made


def _encoded(task: DemoTask, tokenizer: Any) -> Pair:
    return prompt_ids(tokenizer, task), [*tokenizer.encode(task.answer, add_special_tokens=False).ids, EOS_ID]
