"""Figures that compare runs: gains and losses over the seeds of a cell, and completion times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.record import Record
from headway.core.slo import Slo
from headway.results import Summary, met_targets, summarize
from headway.results.metrics import ends, jct_s
from headway.statistics import known, mean, mean_of_known, quantile

GOODPUT, MEAN_JCT = "goodput", "mean_jct_s"
METRICS = (GOODPUT, MEAN_JCT)
SHOWN = (*METRICS, "p99_jct_s", "mean_ttft_s", "p99_ttft_s", "p99_tbt_s", "throughput_rps")


@dataclass(frozen=True, slots=True)
class Runs:
    """One system's runs of a cell: the records of each seed, in order."""

    by_seed: Sequence[Sequence[Record]]

    def summaries(self) -> list[Summary]:
        """A summary for each seed."""
        return [summarize(records) for records in self.by_seed]


def values(summaries: Sequence[Summary], metric: str) -> list[float | None]:
    """A metric, seed by seed."""
    return [getattr(summary, metric) for summary in summaries]


def gain(metric: str, own: float | None, other: float | None) -> float | None:
    """How many times better: the ratio of goodputs, or the inverse ratio of times; None if one is missing or 0."""
    if not own or not other:
        return None
    return own / other if metric == GOODPUT else other / own


def loss(metric: str, own: float | None, other: float | None) -> float | None:
    """The loss: the difference of shares, or the relative excess of time; negative if better."""
    if own is None or other is None or (metric != GOODPUT and not other):
        return None
    return other - own if metric == GOODPUT else own / other - 1


def versus(metric: str, own: Sequence[Summary], other: Sequence[Summary]) -> dict[str, Any]:
    """Gain and loss of the means over the seeds, and by seed; `spread` is the largest gain less the smallest."""
    ours, theirs = values(own, metric), values(other, metric)
    by_seed = [gain(metric, *pair) for pair in zip(ours, theirs, strict=True)]
    gains = known(by_seed)
    return {
        "gain": gain(metric, mean_of_known(ours), mean_of_known(theirs)),
        "by_seed": by_seed,
        "spread": max(gains) - min(gains) if gains else None,
        "loss": loss(metric, mean_of_known(ours), mean_of_known(theirs)),
        "loss_by_seed": [loss(metric, *pair) for pair in zip(ours, theirs, strict=True)],
    }


def figures(runs: Runs, classes: Mapping[Slo, str]) -> dict[str, Any]:
    """One system's figures: means over the seeds, goodput and mean JCT by seed too, and goodput by class of clients.

    `unanswered` is the share of requests that were shed, expired or failed; latencies are of the others.
    """
    summaries = runs.summaries()
    return {
        **{name: mean_of_known(values(summaries, name)) for name in SHOWN},
        "by_seed": {name: values(summaries, name) for name in METRICS},
        "unanswered": mean(1 - summary.finished / summary.requests for summary in summaries),
        "goodput_by_class": _by_class(runs, classes),
    }


def _by_class(runs: Runs, classes: Mapping[Slo, str]) -> dict[str, float]:
    """The share of each class of clients that met its targets, over all seeds."""
    met: dict[str, list[bool]] = {}
    for records in runs.by_seed:
        for record in ends(records):
            if record.slo in classes:
                met.setdefault(classes[record.slo], []).append(met_targets(record))
    return {name: mean(each) for name, each in met.items()}


def jcts_s(records: Iterable[Record]) -> list[float]:
    """Each request's completion time; 0 for one that was not answered."""
    return [jct_s(record) or 0.0 for record in records]


def latencies(times_s: Sequence[float]) -> dict[str, float]:
    """Mean and tail of completion times."""
    return {"mean_jct_s": mean(times_s), "p99_jct_s": quantile(times_s, 0.99)}


def means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each figure's mean over the runs."""
    return {name: mean(run[name] for run in runs) for name in runs[0]}


def number(value: float | None) -> str:
    """A figure in a table; a dash if there is none."""
    return "–" if value is None else f"{value:.3g}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown: its head, a line, and the rows."""
    first, *others = (f"| {' | '.join(row)} |" for row in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])
