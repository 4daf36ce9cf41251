"""Made answers whose lengths follow their requests by a known law."""

from __future__ import annotations

import numpy as np

from headway.predict.lengths.facts import RequestFacts

Answer = tuple[RequestFacts, int]
NOISE = 0.2
"""Deviation of the logarithm of a length about its law."""


def answers(count: int, seed: int = 0) -> list[Answer]:
    """Copies of the input for one tenant, three times as long for the other, with log-normal noise."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        long, words = bool(chance.integers(2)), int(chance.integers(5, 100))
        instruction = "Say it three times over:" if long else "Say it once:"
        expected = words * (3 if long else 1)
        tokens = round(expected * float(np.exp(NOISE * chance.normal())))
        facts = RequestFacts(
            num_prompt_tokens=words + 5,
            max_output_tokens=1000,
            instruction=instruction,
            user_input=" ".join(f"w{chance.integers(1000)}" for _ in range(words)),
            tenant="long" if long else "short",
        )
        found.append((facts, max(1, tokens)))
    return found
