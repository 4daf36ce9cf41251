"""Answer lengths: what a predictor is asked, and what it must answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headway.core.length_estimate import LengthEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a server knows of a request when it comes; texts are empty where it has none.

    `instruction` is what many requests share (a system prompt, a common prefix), `user_input` the rest.
    """

    num_prompt_tokens: int
    max_output_tokens: int
    instruction: str = ""
    user_input: str = ""
    tenant: str = ""


class LengthPredictor(Protocol):
    """Guesses the length of an answer when its request comes, and learns from answers that have finished."""

    def predict(self, facts: RequestFacts) -> LengthEstimate | None:
        """How long the answer will probably be, in output tokens; None while too little is known."""
        ...

    def observe(self, facts: RequestFacts, output_tokens: int) -> None:
        """An answer has finished by itself, or at its limit; answers cut short otherwise teach nothing."""
        ...
