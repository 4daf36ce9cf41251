"""Flags of `headway replay --batches`: one central queue before several servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.loadgen import BatchPlan
    from headway.loadgen.replay import BatchCounts
    from headway.predict.lengths.facts import LengthPredictor

Batches = Annotated[
    str | None,
    typer.Option(
        metavar="ROW",
        help="Send whole batches, gathered as vs, glp, abp or magnus do; --url may be repeated.",
    ),
]
Predictor = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="With --batches: who predicts answers' lengths, and learns them: learned, hash, minilm or st:DIR|HUB.",
    ),
]
LengthModel = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --predictor: keep what is learned here; need not exist yet."),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="With --batches: KV tokens a server holds; default: what its metrics say."
    ),
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="With --batches: the row's batch size, or its largest.")
]
WmaLimit = Annotated[
    int | None,
    typer.Option(metavar="TOKENS", help="With --batches: a batch may waste less than this (Magnus's Phi)."),
]
SafetyFactor = Annotated[
    float | None,
    typer.Option(metavar="X", help="With --batches: plan with predicted lengths times this; default 1."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """What was given on the command line; None where nothing was."""

    batches: str | None
    predictor: str | None = None
    length_model: Path | None = None
    kv_tokens: int | None = None
    batch_size: int | None = None
    wma_limit: int | None = None
    safety_factor: float | None = None

    def check(self, urls: Sequence[str]) -> None:
        """Raise ConfigError for flags that only a replay in batches has, and for several servers without it."""
        if self.batches is None:
            if len(urls) > 1:
                raise ConfigError(f"--url is given {len(urls)} times; accepted: once, or with --batches")
            for name in ("predictor", "kv_tokens", "batch_size", "wma_limit", "safety_factor"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"--{name.replace('_', '-')} is accepted with --batches alone")
        if self.length_model is not None and self.predictor is None:
            raise ConfigError("--length-model is accepted with --predictor alone")

    @contextmanager
    def plan(self, urls: Sequence[str]) -> Iterator[BatchPlan | None]:
        """The plan of a replay in batches, None of one without; its predictor learns until the end of the block."""
        from headway.loadgen import BatchPlan
        from headway.routing.magnus import WMA_LIMIT

        self.check(urls)
        if self.batches is None:
            yield None
            return
        with _learning(self.predictor, self.length_model) as predictor:
            yield BatchPlan(
                batches=self.batches,
                more_urls=tuple(urls[1:]),
                kv_tokens=self.kv_tokens,
                batch_size=self.batch_size,
                wma_limit=WMA_LIMIT if self.wma_limit is None else self.wma_limit,
                safety_factor=1.0 if self.safety_factor is None else self.safety_factor,
                predictor=predictor,
            )


@contextmanager
def _learning(spec: str | None, kept: Path | None) -> Iterator[LengthPredictor | None]:
    """The predictor of that description with what was kept of it, fitted beside the replay and kept again."""
    if spec is None:
        yield None
        return
    from headway.predict.lengths.background import LearningThread, load_lengths
    from headway.predict.lengths.choice import length_predictor

    predictor = length_predictor(spec, inline=False)
    if kept is not None and kept.exists():
        load_lengths(kept, predictor)
    with LearningThread(predictor, save_to=kept):
        yield predictor


def batch_remark(counts: BatchCounts) -> str:
    """What became of the batches, in one line."""
    lost = f", {counts.lost_instances} instances were lost" if counts.lost_instances else ""
    return f"{counts.batches} batches were sent, {counts.out_of_memory} of them ran out of memory{lost}"
