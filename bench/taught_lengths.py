"""The demo model's tasks in two halves: a stream of the one, and a length predictor taught with the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from headway.core.length_estimate import LengthEstimate
from headway.lab.predictor_choice import length_source
from headway.predict.forest_predictor import ForestPredictor
from headway.predict.length import RequestFacts
from headway.predict.length_choice import length_predictor
from headway.predict.shared_prefix import SharedPrefix
from headway.traces import TraceRequest
from headway.traces.demo_tasks import demo_requests, demo_rows, prompt_text

MAX_OUTPUT_TOKENS = 1_024
"""What every request declares; the packaged answers that never end are cut there."""
TAUGHT = "hash"
"""The predictor that is taught, by the name `--predictor` has for it."""

Estimates = Mapping[str, LengthEstimate]


@cache
def lessons() -> Mapping[str, tuple[int, int]]:
    """Every second packaged task, by its prompt: prompt and output tokens. No stream has any of them."""
    return {
        prompt_text(row.instruction, row.user_input): (row.num_prompt_tokens, row.output_tokens)
        for row in demo_rows()[::2]
    }


def untaught_stream(rate_rps: float, seconds: float, seed: int) -> list[TraceRequest]:
    """About so many seconds of tasks that nobody was taught with; a Poisson process thinned is one still."""
    count = min(len(demo_rows()), 2 * max(8, round(rate_rps * seconds)))
    drawn = demo_requests(count, 2 * rate_rps, seed)
    return [
        replace(request, max_output_tokens=MAX_OUTPUT_TOKENS)
        for request in drawn
        if request.prompt not in lessons()
    ]


@dataclass(slots=True)
class Taught:
    """The hash predictor after its lessons, which reads prompts as a server does."""

    predictor: ForestPredictor
    prefixes: SharedPrefix

    @classmethod
    def with_lessons(cls) -> Taught:
        """Seconds."""
        made = cls(length_predictor(TAUGHT, inline=False), SharedPrefix())
        made.predictor.learn_from(
            (made.facts(prompt, tokens), output) for prompt, (tokens, output) in lessons().items()
        )
        return made

    def facts(self, prompt: str, num_prompt_tokens: int) -> RequestFacts:
        """What a server would know."""
        return self.prefixes.facts(
            prompt, num_prompt_tokens=num_prompt_tokens, max_output_tokens=MAX_OUTPUT_TOKENS
        )

    def estimates(self, requests: Sequence[TraceRequest]) -> Estimates:
        """What it says of a stream."""
        asked = [self.facts(request.prompt or "", request.input_tokens) for request in requests]
        answers = zip(requests, self.predictor.predict_many(asked), strict=True)
        return {request.id: estimate for request, estimate in answers if estimate is not None}


@cache
def taught() -> Taught:
    """The one that is used throughout."""
    return Taught.with_lessons()


def estimates_of(predictor: str | None, requests: Sequence[TraceRequest], seed: int) -> Estimates:
    """What a predictor says of a stream, the taught one by `TAUGHT`; nothing where there is none."""
    if predictor is None:
        return {}
    if predictor == TAUGHT:
        return taught().estimates(requests)
    source = length_source(predictor, requests, seed)
    assert source is not None
    said = ((request.id, source.predict(request, MAX_OUTPUT_TOKENS)) for request in requests)
    return {name: estimate for name, estimate in said if estimate is not None}
