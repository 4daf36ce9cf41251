"""Simulates other policies on the recent requests of a live server, without acting on it.

A policy's decisions change what happens after them, so comparing single plans would say little. Instead the simulator
serves the engine's real requests again, with their real answer lengths, and a step law fitted to that engine's steps:
once under the live policy and once under each shadow. The simulations are compared with each other. If the simulated
live policy is far from what was observed, the simulation describes another server: then no shadow is simulated, and the
report says what was off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.core.batch_shape import BatchShape
from headway.core.record import Outcome, Record
from headway.errors import ConfigError, HeadwayError
from headway.explain.text import seconds
from headway.gateway.book.shadow_board import ShadowFigures, ShadowState
from headway.lab.shadow_feed import EngineFacts, Feed, Told
from headway.lab.shadow_replay import Recorded, policy_factory, trace_of
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.law import MIN_ROWS, StepTimeLaw, fit_step_time
from headway.results.metrics import jct_s, summarize
from headway.sim.simulation import System, simulate
from headway.statistics import mean_of_known

LIVE = "live"
CONTROL = "live policy, simulated"
SHARES_APART = 0.1
"""Largest difference between simulated and observed goodput, or share of finished requests."""
JCT_OFF = 1 / 3
"""Largest relative difference between simulated and observed mean JCT."""
_JUDGED = frozenset({Outcome.FINISHED, Outcome.EXPIRED, Outcome.SHED, Outcome.FAILED})
_ASSUMED_BYTES_PER_S = 10e9
"""Assumed bytes a second of copies to and from the host, if the engine has made none."""


def shadow_report(
    feeds: Sequence[Feed], policies: Sequence[str], window_s: float, *, at: float = 0.0
) -> ShadowState:
    """Report what the engines' requests of the last `window_s` came to, and would have come to under `policies`.

    `at` is now, in seconds since 1970. Engines that are new, or have run too few steps for a step law, are left out.
    Each engine keeps its requests; those that arrived up to as long before the window are simulated too, so that it
    does not begin empty. If too little is known for that, the window is the later half of what is known. If the
    simulated live policy is far from what was observed, `policies` have no figures, and `cannot_judge` says why. Takes
    seconds: for one shadow, two simulations of twice the window. Raises ConfigError while too little is known.
    """
    known = _known(feeds)
    asked_s, window_s = window_s, min(window_s, *(feed.whole_window_s for feed, _ in known))
    reach_s = min(feed.reach_s for feed, _ in known)
    worlds = [_world(feed, engine, window_s) for feed, engine in known]
    judged = [one for world in worlds for one in world.judged.values()]
    live = [[one.record() for one in world.judged.values()] for world in worlds]
    found: dict[str, list[Record]] = {LIVE: _of_all(live)}
    failed: dict[str, str] = {}

    def serve(name: str, policy: str | None) -> None:
        try:
            found[name] = _of_all(_served(world, policy) for world in worlds)
        except HeadwayError as error:
            failed[name] = str(error)
        except Exception as error:  # a policy on trial may raise anything; the others are still reported
            failed[name] = f"it raised {type(error).__name__}: {error}"

    serve(CONTROL, None)
    doubt = why_no_verdict(_figures(found), len(judged))
    for policy in policies if doubt is None else ():
        serve(policy, policy)
    return ShadowState(
        at=at,
        window_s=round(window_s, 3),
        known_s=round(reach_s, 3) if window_s < asked_s else None,
        requests=len(judged),
        assumed=sum(one.outcome is not Outcome.FINISHED for one in judged),
        missed=sum(world.feed.missed for world in worlds),
        step_error=max(world.step_error for world in worlds),
        figures=_figures(found),
        failed=failed,
        cannot_judge=doubt,
    )


def why_no_verdict(figures: Mapping[str, ShadowFigures], requests: int) -> str | None:
    """Why the simulated live policy is too far from what was observed to judge other policies; None if it is near.

    `figures` has LIVE and CONTROL, over this many `requests`.
    """
    live, control = figures[LIVE], figures.get(CONTROL)
    if control is None:
        return "the live policy cannot be simulated"
    shares = {
        "goodput": (live.goodput, control.goodput),
        "finished": (live.finished / max(1, requests), control.finished / max(1, requests)),
    }
    doubts = [
        f"{name} {seen:.1%} live, {simulated:.1%} simulated (accepted: {SHARES_APART * 100:g} points apart)"
        for name, (seen, simulated) in shares.items()
        if seen is not None and simulated is not None and abs(simulated - seen) > SHARES_APART
    ]
    seen, simulated = live.mean_jct_s, control.mean_jct_s
    if seen is not None and simulated is not None and abs(simulated - seen) > JCT_OFF * seen:
        doubts.append(
            f"mean JCT {seconds(seen)} live, {seconds(simulated)} simulated (accepted: {JCT_OFF:.0%} off)"
        )
    return "; ".join(doubts) or None


def _of_all(by_engine: Iterable[Sequence[Record]]) -> list[Record]:
    """The records of all engines, with the engine in their ids, since two engines may have served requests of one
    id.
    """
    return [
        replace(record, id=f"{number}/{record.id}")
        for number, records in enumerate(by_engine)
        for record in records
    ]


def _figures(found: dict[str, list[Record]]) -> dict[str, ShadowFigures]:
    """All columns; mean JCT over the requests that finished in every one of them."""
    times = [_jcts(records) for records in found.values()]
    shared = set.intersection(*map(set, times)) if times else set()
    return {name: _column(records, shared) for name, records in found.items()}


def _jcts(records: Iterable[Record]) -> dict[str, float]:
    return {record.id: jct for record in records if (jct := jct_s(record)) is not None}


def _column(records: Sequence[Record], shared: set[str]) -> ShadowFigures:
    summary = summarize(records)
    times = [jct for id_, jct in _jcts(records).items() if id_ in shared]
    return ShadowFigures(
        goodput=summary.goodput,
        mean_jct_s=mean_of_known(times),
        finished=summary.finished,
        mean_ttft_s=summary.mean_ttft_s,
        p99_ttft_s=summary.p99_ttft_s,
    )


# ---- one engine, simulated -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _World:
    """An engine's simulated model, the error of its step law, and its judged requests by id."""

    feed: Feed
    engine: EngineFacts
    judged: dict[str, Told]
    system: System
    step_error: float


def _known(feeds: Iterable[Feed]) -> list[tuple[Feed, EngineFacts]]:
    """The engines of which enough is known; an idle one does not prevent a report on the others."""
    answered = [(feed, feed.engine) for feed in feeds if feed.engine is not None]
    if not answered:
        raise ConfigError("no engine has answered yet")
    most = max(len(feed.steps) for feed, _ in answered)
    if most < MIN_ROWS:
        raise ConfigError(f"{most} steps are known so far; {MIN_ROWS} are needed to tell what steps take")
    return [(feed, engine) for feed, engine in answered if len(feed.steps) >= MIN_ROWS]


def _world(feed: Feed, engine: EngineFacts, window_s: float) -> _World:
    system, error = _likeness(feed, engine)
    return _World(feed, engine, _judged(feed, window_s), system, error)


def fleet_system(feeds: Sequence[Feed]) -> tuple[EngineFacts, System]:
    """The engine that represents all, and its simulated system, fitted to the one with the most known steps.

    Raises ConfigError if too little is known of all of them.
    """
    feed, engine = max(_known(feeds), key=lambda known: len(known[0].steps))
    return engine, _likeness(feed, engine)[0]


def _likeness(feed: Feed, engine: EngineFacts) -> tuple[System, float]:
    """A system that simulates the engine, and the median error of its step law."""
    rows = list(feed.steps)
    fit = fit_step_time(rows)
    limits = engine.limits
    calibration = Calibration(
        name="this engine",
        provenance=f"fitted to its last {len(rows)} known steps",
        derived=False,
        step=fit.law,
        host_s=0.0 if limits.asynchronous else feed.host_s,
        residuals=(_true_mean(rows, fit.law),),
        to_host=_copies(engine, feed.block_bytes, out=True),
        to_device=_copies(engine, feed.block_bytes, out=False),
        kv_bytes_per_token=max(1, feed.block_bytes // limits.block_size),
        kv_capacity_tokens=limits.num_blocks * limits.block_size,
    )
    return System(limits=limits, calibration=calibration), fit.held_out.median_error


def _true_mean(rows: Sequence[tuple[BatchShape, float]], law: StepTimeLaw) -> float:
    """Total measured over total predicted step time, since a queue depends on the sum of all steps, not the typical
    one.

    Leaves out the slowest hundredth, relative to the law: few steps are known, and a single stall would recur in every
    simulated minute. For the same reason no noise is drawn.
    """
    pairs = sorted(
        ((took_s, law.step_s(shape)) for shape, took_s in rows), key=lambda pair: pair[0] / pair[1]
    )
    kept = pairs[: -max(1, len(pairs) // 100)]
    return sum(took_s for took_s, _ in kept) / sum(predicted_s for _, predicted_s in kept)


def _judged(feed: Feed, window_s: float) -> dict[str, Told]:
    """The requests of the window by id; for a repeated id, the last one."""
    from_s = feed.now_s - window_s
    return {one.id: one for one in feed.ended if one.arrival_s >= from_s and one.outcome in _JUDGED}


def _copies(engine: EngineFacts, block_bytes: int, *, out: bool) -> TransferModel:
    one_s, many_s = engine.copies_s[:2] if out else engine.copies_s[2:]
    more = engine.copied_blocks - 1
    if not many_s > one_s or not block_bytes:
        return TransferModel(start_s=0.0, bytes_per_s=_ASSUMED_BYTES_PER_S)
    block_s = (many_s - one_s) / more
    return TransferModel(start_s=max(0.0, one_s - block_s), bytes_per_s=block_bytes / block_s)


def _served(world: _World, policy: str | None) -> list[Record]:
    """The records of the judged requests under a policy (None: the live one), simulated together with all others."""
    requests, estimates = trace_of((*world.feed.ended, *world.feed.live))
    found: list[Record] = []

    def keep(record: Record) -> None:
        if record.id in world.judged:
            found.append(record)

    simulate(
        requests,
        policy_factory(world.engine, policy),
        world.system,
        on_record=keep,
        max_output_tokens=max((one.max_output_tokens or 1 for one in requests), default=1),
        lengths=Recorded(estimates),
    )
    return found
