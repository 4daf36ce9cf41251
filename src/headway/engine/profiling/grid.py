"""The steps that `headway profile` measures: requests composed so that the scheduler forms exactly these steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from headway.engine.stepped_engine import ReportedSizes

WARM_UP_PROMPTS = 3
STEPS_A_WIDTH = 6
"""Decode steps at each batch width while requests end."""
KV_SHARE = 0.8
"""Share of the KV pool that a scene may fill: a preemption would distort the measured step."""
STEPS_BETWEEN = 4
"""Steps between two prompts that join decodes: a mixed step, then decodes alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of a scene: when it joins, its lengths, and how many leading tokens it shares with the others."""

    at_step: int
    prompt_tokens: int
    output_tokens: int = 1
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests that run together, from an idle engine until all have ended."""

    name: str
    asks: tuple[Ask, ...]

    @property
    def num_tokens(self) -> int:
        """The most tokens that the engine computes for this scene."""
        return sum(ask.prompt_tokens + ask.output_tokens for ask in self.asks)


def scenes(sizes: ReportedSizes, max_scene_tokens: int, rng: random.Random, exact: bool) -> list[Scene]:
    """One repetition of the grid, in random order.

    Prefills have from 16 tokens up to the step's budget, alone and after a computed context. Decodes go from the widest
    batch down to one, over short to long contexts, with prompts that join for mixed steps. Lengths are powers of two if
    `exact`, else drawn around them, so that the fit sees values in between. A scene computes about `max_scene_tokens`
    at most. Deterministic for a state of `rng`.
    """
    contexts = context_lengths(sizes)
    before = {context - context % sizes.block_size for context in contexts} if sizes.prefix_caching else set()
    found = [_prefills(sizes, context, rng, exact) for context in sorted({0, *before})]
    found += [_decodes(sizes, context, max_scene_tokens, rng, exact) for context in contexts]
    rng.shuffle(found)
    return [scene for scene in found if scene.asks]


def context_lengths(sizes: ReportedSizes) -> tuple[int, ...]:
    """Contexts of the grid: short, then growing by factors of 4 up to three quarters of the model's length."""
    longest = _longest(sizes) * 3 // 4
    lengths = [length for power in range(10) if (length := 16 * 4**power) < longest]
    return (*lengths, longest) if not lengths or longest >= 2 * lengths[-1] else tuple(lengths)


def warm_up(sizes: ReportedSizes) -> Scene:
    """Requests that trigger one-time costs of the engine: the largest step, the widest batch."""
    largest = min(sizes.max_num_batched_tokens, _longest(sizes))
    width = min(sizes.max_num_seqs, max(1, int(KV_SHARE * sizes.num_blocks)))
    alone = [Ask(at_step=step, prompt_tokens=largest) for step in range(WARM_UP_PROMPTS)]
    wide = [Ask(at_step=WARM_UP_PROMPTS, prompt_tokens=8, output_tokens=8) for _ in range(width)]
    return Scene("warm-up", (*alone, *wide))


def _prefills(sizes: ReportedSizes, context: int, rng: random.Random, exact: bool) -> Scene:
    """One prompt a step, each after the same `context` tokens (whole blocks), which the first request computes."""
    budget = sizes.max_num_batched_tokens
    chunks = _chunks(min(budget, _longest(sizes) - context), rng, exact)
    rng.shuffle(chunks)
    asks = [Ask(at_step=0, prompt_tokens=context + 1, shared_tokens=context)] if context else []
    first = -(-(context + 1) // budget) if context else 0
    asks += [
        Ask(at_step=first + index, prompt_tokens=context + chunk, shared_tokens=context)
        for index, chunk in enumerate(chunks)
    ]
    return Scene(f"prefill after {context}", tuple(asks))


def _decodes(sizes: ReportedSizes, context: int, max_tokens: int, rng: random.Random, exact: bool) -> Scene:
    """Requests of about `context` tokens that end in groups, so that the batch halves, with a prompt joining now
    and then.
    """
    budget = sizes.max_num_batched_tokens
    in_kv = int(KV_SHARE * sizes.kv_capacity_tokens - budget) // (sizes.block_size + context * 5 // 4)
    width = max(1, min(sizes.max_num_seqs, in_kv, max_tokens // context))
    stages = _stages(width)
    answer = STEPS_A_WIDTH * max(stages)
    # The first requests decode while the last are still in prefill, so all answers are longer by that time.
    room = max(1, _longest(sizes) - 2 * answer)
    prompts = [min(room, _near(context, rng)) for _ in range(width)]
    starting = min(-(-sum(prompts) // budget), answer)
    asks = [
        Ask(
            at_step=0,
            prompt_tokens=prompt,
            output_tokens=min(starting + STEPS_A_WIDTH * stage, sizes.max_model_len - prompt),
        )
        for prompt, stage in zip(prompts, stages, strict=True)
    ]
    chunks = _chunks(min(budget, _longest(sizes) // 2), rng, exact)
    joining = rng.sample(chunks, k=min(len(chunks), answer // STEPS_BETWEEN))
    asks += [
        Ask(at_step=starting + STEPS_BETWEEN * (index + 1), prompt_tokens=chunk)
        for index, chunk in enumerate(joining)
    ]
    return Scene(f"{width} decodes at {context}", tuple(asks))


def _longest(sizes: ReportedSizes) -> int:
    """The longest prompt for which model and pool have room, with a few tokens left for the answer."""
    return min(sizes.max_model_len // 2 * 2 - 2, int(KV_SHARE * sizes.kv_capacity_tokens))


def _stages(width: int) -> list[int]:
    """For each of `width` requests the stage at whose end it leaves: half leave first, then half of the rest, and
    so on.
    """
    stages: list[int] = []
    left, stage = width, 1
    while left:
        leaving = max(1, left // 2)
        stages += [stage] * leaving
        left, stage = left - leaving, stage + 1
    return stages


def _chunks(largest: int, rng: random.Random, exact: bool) -> list[int]:
    """Prompt lengths: powers of two from 16 up to `largest`, which is included, or drawn around them."""
    lengths = [length for power in range(4, 24) if (length := 2**power) < largest]
    if largest >= 2:
        lengths.append(largest)
    if exact:
        return lengths
    return [min(largest, max(2, round(length * 2 ** rng.uniform(-0.5, 0.5)))) for length in lengths]


def _near(length: int, rng: random.Random) -> int:
    return max(2, round(length * rng.uniform(0.75, 1.25)))


def prompts_of(scene: Scene, vocabulary: range, rng: random.Random) -> Iterator[list[int]]:
    """Yield token ids for each request: shared tokens are equal within the scene, all others unique."""
    shared = rng.choices(vocabulary, k=max((ask.shared_tokens for ask in scene.asks), default=0))
    for ask in scene.asks:
        yield shared[: ask.shared_tokens] + rng.choices(vocabulary, k=ask.prompt_tokens - ask.shared_tokens)
