"""From the runs of `gateway_real` to its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from headway_reproduce.ascendra.real_run import CLIENT, GATEWAY, OTHERS, StreamRun
from headway_reproduce.ascendra.real_systems import ASCENDRA, STOCK

DISTURBING_CORES = 0.15
"""A client that takes more than this share of the cores is said to disturb what it measures."""
DISTURBING_LATE_S = 0.02
"""So is one that sends one request in a hundred later than this."""

LATENCIES = ("p50_ttft_s", "p99_ttft_s", "mean_tbt_s", "p99_tbt_s", "throughput_rps")

Runs = Mapping[str, Sequence[StreamRun]]
"""One load: a run for each seed, by system."""


def cell(runs: Runs) -> dict[str, Any]:
    """One load: every system's figures, the best of stock's, and what Ascendra has over it."""
    found: dict[str, Any] = {"systems": {name: system_figures(of) for name, of in runs.items()}}
    stock = [name for name in STOCK if name in runs]
    if stock and ASCENDRA in runs:
        best = max(stock, key=lambda name: fmean(goodputs(runs[name])))
        found["best_of_stock"] = best
        found["over_best"] = over(goodputs(runs[ASCENDRA]), goodputs(runs[best]))
    return found


def goodputs(runs: Sequence[StreamRun]) -> list[float]:
    """Share of all requests that met both targets, seed by seed."""
    return [run.summary.goodput or 0.0 for run in runs]


def over(own: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Goodput over another's, in all and seed by seed; `points` are percentage points.

    A ratio is None where the other has none.
    """
    return {
        "ratio": _ratio(fmean(own), fmean(other)),
        "ratio_by_seed": [_ratio(mine, theirs) for mine, theirs in zip(own, other, strict=True)],
        "points": 100 * (fmean(own) - fmean(other)),
        "points_by_seed": [100 * (mine - theirs) for mine, theirs in zip(own, other, strict=True)],
    }


def _ratio(own: float, other: float) -> float | None:
    return own / other if other else None


def system_figures(runs: Sequence[StreamRun]) -> dict[str, Any]:
    """One system at one load; means over the seeds unless it says otherwise."""
    good = goodputs(runs)
    summaries = [run.summary for run in runs]
    return {
        "goodput": {"mean": fmean(good), "by_seed": good, "spread": max(good) - min(good)},
        **{name: _mean([getattr(summary, name) for summary in summaries]) for name in LATENCIES},
        "dropped": fmean((summary.expired + summary.shed) / summary.requests for summary in summaries),
        "failed": fmean(summary.failed / summary.requests for summary in summaries),
        "served": {name: fmean(run.served.get(name, 0) for run in runs) for name in runs[0].served},
        "hand_offs": fmean(run.hand_offs for run in runs),
        "cores": {name: fmean(run.shares[name].cores for run in runs) for name in runs[0].shares},
        "step_time_inflation": {
            name: fmean(run.shares[name].inflation for run in runs)
            for name in runs[0].shares
            if name not in (CLIENT, GATEWAY, OTHERS)
        },
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def client_figures(runs: Sequence[StreamRun], cores: int) -> dict[str, Any]:
    """What the client took in the run in which it took most, and whether that is too much."""
    most = max(run.shares[CLIENT].cores for run in runs) / cores
    latest_s = max(run.late_p99_s for run in runs)
    return {
        "share_of_cores_at_most": most,
        "late_p99_ms_at_most": 1000 * latest_s,
        "disturbs": most > DISTURBING_CORES or latest_s > DISTURBING_LATE_S,
        "rule": f"more than {DISTURBING_CORES:.0%} of all cores, or 1 % of requests sent over "
        f"{1000 * DISTURBING_LATE_S:g} ms late",
    }


def headline(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """By load: goodput of Ascendra and of the best of stock's four, and their ratio."""
    return {
        load: {
            "ascendra": found["systems"][ASCENDRA]["goodput"]["mean"],
            "best_of_stock": found["systems"][found["best_of_stock"]]["goodput"]["mean"],
            "which": found["best_of_stock"],
            "ratio": found["over_best"]["ratio"],
        }
        for load, found in cells.items()
        if "over_best" in found
    }
