"""A second policy on a live queue, without acting: what the requests of the last minutes would have come to.

A policy's decisions change what comes after them, so a shadow that only compared plans would say little. Here the
requests that an engine really had, with the lengths that their answers really had, are served again by the simulator,
with a step law fitted to that engine's own steps: once under the live policy and once under each shadow. The two
simulations are compared with each other; the live figure beside them shows how far to believe either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.errors import ConfigError, HeadwayError
from headway.experiments.shadow_feed import EngineFacts, Feed, Told
from headway.policies.presets import build_policy, find_preset
from headway.predict.calibration import Calibration
from headway.predict.step_fit import MIN_ROWS, fit_step_time
from headway.predict.transfer import TransferModel
from headway.results.metrics import jct_s, summarize
from headway.sim.simulation import PolicyFactory, System, simulate
from headway.traces import TraceRequest

LIVE = "live"
CONTROL = "live policy, simulated"
_JUDGED = frozenset({Outcome.FINISHED, Outcome.EXPIRED, Outcome.SHED, Outcome.FAILED})
_ASSUMED_BYTES_PER_S = 10e9
"""Of a copy to or from the host, where the engine has made none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a policy came to over the judged requests; `mean_jct_s` over those that finished under every policy."""

    goodput: float | None
    mean_jct_s: float | None
    finished: int
    mean_ttft_s: float | None
    p99_ttft_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReport:
    """One window: the live figures, the live policy's simulated ones, and each shadow's.

    `requests` are judged: they came within the last `window_s` and have ended, but for those whose client left or that
    moved on. `assumed` had no answer of their own, so that a length was assumed: the one predicted, or the median.
    `step_error` is the median error of the step law on steps it has not seen; `failed` says why a policy has no
    figures.
    """

    window_s: float
    requests: int
    assumed: int
    missed: int
    step_error: float
    figures: dict[str, Figures]
    failed: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        names = ("window_s", "requests", "assumed", "missed", "step_error", "failed")
        figures = {
            name: {key: getattr(one, key) for key in Figures.__slots__} for name, one in self.figures.items()
        }
        return {name: getattr(self, name) for name in names} | {"figures": figures}


def shadow_report(feeds: Sequence[Feed], policies: Sequence[str], window_s: float) -> ShadowReport:
    """What the engines' requests of the last `window_s` came to, and would have come to under each of `policies`.

    Each engine keeps the requests it had; those that came up to as long before the window are served too, so that it
    does not begin empty. Seconds: two simulations of twice the window for one shadow. Raises ConfigError where too
    little is known yet.
    """
    told = [feed for feed in feeds if feed.engine is not None]
    if not told:
        raise ConfigError("no engine has answered yet")
    judged = {id(feed): _judged(feed, window_s) for feed in told}
    worlds = [_world(feed) for feed in told]
    live = [one.record() for feed in told for one in judged[id(feed)].values()]
    found: dict[str, list[Record]] = {LIVE: live}
    failed: dict[str, str] = {}
    for name, policy in ((CONTROL, None), *((policy, policy) for policy in policies)):
        try:
            found[name] = [
                record
                for feed, world in zip(told, worlds, strict=True)
                for record in _served(feed, world, policy, judged[id(feed)].keys())
            ]
        except HeadwayError as error:
            failed[name] = str(error)
    return ShadowReport(
        window_s=window_s,
        requests=len(live),
        assumed=sum(
            one.outcome is not Outcome.FINISHED for feed in told for one in judged[id(feed)].values()
        ),
        missed=sum(feed.missed for feed in told),
        step_error=max(world.step_error for world in worlds),
        figures=_figures(found),
        failed=failed,
    )


def _judged(feed: Feed, window_s: float) -> dict[str, Told]:
    """The requests of the window by id; of two with one id the last."""
    from_s = feed.now_s - window_s
    return {one.id: one for one in feed.ended if one.arrival_s >= from_s and one.outcome in _JUDGED}


def _figures(found: dict[str, list[Record]]) -> dict[str, Figures]:
    """All columns; mean JCT over the requests that finished in every one of them."""
    times = [_jcts(records) for records in found.values()]
    shared = set.intersection(*map(set, times)) if times else set()
    return {name: _column(records, shared) for name, records in found.items()}


def _jcts(records: Iterable[Record]) -> dict[str, float]:
    return {record.id: jct for record in records if (jct := jct_s(record)) is not None}


def _column(records: Sequence[Record], shared: set[str]) -> Figures:
    summary = summarize(records)
    times = [jct for id_, jct in _jcts(records).items() if id_ in shared]
    return Figures(
        goodput=summary.goodput,
        mean_jct_s=sum(times) / len(times) if times else None,
        finished=summary.finished,
        mean_ttft_s=summary.mean_ttft_s,
        p99_ttft_s=summary.p99_ttft_s,
    )


# ---- one engine, simulated -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _World:
    """An engine's simulated likeness, and the error of its step law."""

    system: System
    step_error: float


def _world(feed: Feed) -> _World:
    engine = feed.engine
    assert engine is not None, "an engine that has not answered"
    if len(feed.steps) < MIN_ROWS:
        raise ConfigError(
            f"{len(feed.steps)} steps are known so far; {MIN_ROWS} are needed to tell what steps take"
        )
    fit = fit_step_time(list(feed.steps))
    limits = engine.limits
    bytes_per_token = max(1, feed.block_bytes // limits.block_size)
    calibration = Calibration(
        name="this engine",
        provenance=f"fitted to its last {len(feed.steps)} known steps",
        derived=False,
        step=fit.law,
        host_s=0.0 if limits.asynchronous else feed.host_s,
        residuals=fit.held_out.residuals,
        to_host=_copies(engine, feed.block_bytes, out=True),
        to_device=_copies(engine, feed.block_bytes, out=False),
        kv_bytes_per_token=bytes_per_token,
        kv_capacity_tokens=limits.num_blocks * limits.block_size,
    )
    return _World(System(limits=limits, calibration=calibration), fit.held_out.median_error)


def _copies(engine: EngineFacts, block_bytes: int, *, out: bool) -> TransferModel:
    one_s, many_s = engine.copies_s[:2] if out else engine.copies_s[2:]
    more = engine.copied_blocks - 1
    if not many_s > one_s or not block_bytes:
        return TransferModel(start_s=0.0, bytes_per_s=_ASSUMED_BYTES_PER_S)
    block_s = (many_s - one_s) / more
    return TransferModel(start_s=max(0.0, one_s - block_s), bytes_per_s=block_bytes / block_s)


def _served(feed: Feed, world: _World, policy: str | None, judged: Iterable[str]) -> list[Record]:
    """The records of the judged requests under a policy (None: the live one), with all the others beside them."""
    requests, estimates = _requests(feed)
    wanted, found = set(judged), []

    def keep(record: Record) -> None:
        if record.id in wanted:
            found.append(record)

    simulate(
        requests,
        _factory(feed, policy),
        world.system,
        on_record=keep,
        max_output_tokens=max((one.max_output_tokens or 1 for one in requests), default=1),
        lengths=_Recorded(estimates),
    )
    return found


def _factory(feed: Feed, policy: str | None) -> PolicyFactory:
    engine = feed.engine
    assert engine is not None, "an engine that has not answered"
    if policy is None:
        parts = engine.parts
        preset = find_preset(
            engine.policy,
            order=parts.order,
            batching=parts.batching,
            eviction=parts.eviction,
            leaving=parts.leaving,
        )
    else:
        preset = find_preset(policy)
    return lambda cost: build_policy(preset, cost)


def _requests(feed: Feed) -> tuple[list[TraceRequest], dict[str, LengthEstimate]]:
    """Everything the engine had, in order of arrival, and what was predicted of each answer."""
    told = sorted({one.id: one for one in (*feed.ended, *feed.live)}.values(), key=_by_arrival)
    usual = int(median([one.output_tokens for one in told if one.outcome is Outcome.FINISHED] or [1]))
    start_s = told[0].arrival_s if told else 0.0
    requests = [_request(one, start_s, usual) for one in told]
    estimates = {one.id: one.estimate for one in told if one.estimate is not None}
    return requests, estimates


def _by_arrival(one: Told) -> tuple[float, str]:
    return one.arrival_s, one.id


def _request(one: Told, start_s: float, usual_tokens: int) -> TraceRequest:
    """What the simulator is to serve. Tokens of a prompt that were found on the device are left out of it."""
    return TraceRequest(
        id=one.id,
        arrival_s=max(0.0, one.arrival_s - start_s),
        input_tokens=max(1, one.prompt_tokens - one.found_tokens),
        output_tokens=_output_tokens(one, usual_tokens),
        max_output_tokens=one.max_output_tokens,
        tenant=one.tenant,
        priority=one.priority,
        slo=one.slo,
    )


def _output_tokens(one: Told, usual_tokens: int) -> int:
    """The true length; of one without an end of its own, what is known of it and the likeliest rest."""
    if one.outcome in (Outcome.FINISHED, Outcome.CANCELLED):
        return max(1, min(one.output_tokens, one.max_output_tokens))
    estimate = one.estimate
    if estimate is not None:
        likely = one.output_tokens + estimate.remaining_tokens(one.output_tokens)
    else:
        likely = float(max(usual_tokens, one.output_tokens + 1))
    return max(1, min(round(likely), one.max_output_tokens))


class _Recorded:
    """Says of each request what was said of it when it really came."""

    def __init__(self, estimates: dict[str, LengthEstimate]) -> None:
        self._estimates = estimates

    def predict(self, request: TraceRequest, max_output_tokens: int) -> LengthEstimate | None:
        """What was predicted."""
        return self._estimates.get(request.id)

    def finished(self, request: TraceRequest, max_output_tokens: int) -> None:
        """Nothing is learned: the next predictions are recorded too."""
