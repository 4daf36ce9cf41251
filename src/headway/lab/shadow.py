"""A second policy on a live queue, without acting: what the requests of the last minutes would have come to.

A policy's decisions change what comes after them, so a shadow that only compared plans would say little. Here the
requests that an engine really had, with the lengths that their answers really had, are served again by the simulator,
with a step law fitted to that engine's own steps: once under the live policy and once under each shadow. The two
simulations are compared with each other. A simulation of the live policy that is far from what was seen describes
another server: then no shadow is simulated, and the report says what was off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any

import msgspec

from headway.core.batch_shape import BatchShape
from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, HeadwayError, UpstreamError
from headway.explain.text import seconds
from headway.gateway.book.shadow_board import ShadowFigures, ShadowState
from headway.lab.grid import Parts
from headway.policies.presets import build_policy, find_preset
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.law import MIN_ROWS, StepTimeLaw, fit_step_time
from headway.results.metrics import jct_s, summarize
from headway.sim.limits import EngineLimits
from headway.sim.simulation import PolicyFactory, System, simulate
from headway.statistics import mean_of_known, median
from headway.traces import TraceRequest

LIVE = "live"
CONTROL = "live policy, simulated"
SHARES_APART = 0.1
"""How far goodput, and the share that finished, may be simulated from what was seen, of 1."""
JCT_OFF = 1 / 3
"""How far mean JCT may be simulated from what was seen, of what was seen."""
_JUDGED = frozenset({Outcome.FINISHED, Outcome.EXPIRED, Outcome.SHED, Outcome.FAILED})
_ASSUMED_BYTES_PER_S = 10e9
"""Of a copy to or from the host, where the engine has made none."""


def shadow_report(
    feeds: Sequence[Feed], policies: Sequence[str], window_s: float, *, at: float = 0.0
) -> ShadowState:
    """What the engines' requests of the last `window_s` came to, and would have come to under each of `policies`.

    `at` is now, in seconds since 1970. Engines that are new, or have run too few steps to tell what one takes, are left
    out. Each engine keeps the requests it had; those that came up to as long before the window are served too, so that
    it does not begin empty. Where too little is known for that, the window is the later half of what came. Where the
    live policy simulated is far from what was seen, no policy of `policies` has figures, and `cannot_judge` says why.
    Seconds: two simulations of twice the window for one shadow. Raises ConfigError where too little is known yet.
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
        except Exception as error:  # a policy on trial may do anything; the others are reported all the same
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
    """How the live policy simulated is too far from what was seen to judge other policies by; None if it is near.

    `figures` are of LIVE and CONTROL, over so many `requests`.
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
    """The records of all engines, named by them too: two engines may have served requests of one id."""
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
    """An engine's simulated likeness, the error of its step law, and those of its requests that are judged, by id."""

    feed: Feed
    engine: EngineFacts
    judged: dict[str, Told]
    system: System
    step_error: float


def _known(feeds: Iterable[Feed]) -> list[tuple[Feed, EngineFacts]]:
    """The engines of which enough is known; one that idles does not keep the others from being reported."""
    answered = [(feed, feed.engine) for feed in feeds if feed.engine is not None]
    if not answered:
        raise ConfigError("no engine has answered yet")
    most = max(len(feed.steps) for feed, _ in answered)
    if most < MIN_ROWS:
        raise ConfigError(f"{most} steps are known so far; {MIN_ROWS} are needed to tell what steps take")
    return [(feed, engine) for feed, engine in answered if len(feed.steps) >= MIN_ROWS]


def _world(feed: Feed, engine: EngineFacts, window_s: float) -> _World:
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
    system = System(limits=limits, calibration=calibration)
    return _World(feed, engine, _judged(feed, window_s), system, fit.held_out.median_error)


def _true_mean(rows: Sequence[tuple[BatchShape, float]], law: StepTimeLaw) -> float:
    """What steps took over what the law says, which follows the typical one, while a queue is as long as all of them.

    Without the one in a hundred that was slowest beside the law: few steps are known, and a machine that once stood
    still would do so in every simulated minute. For the same reason no noise is drawn.
    """
    pairs = sorted(
        ((took_s, law.step_s(shape)) for shape, took_s in rows), key=lambda pair: pair[0] / pair[1]
    )
    kept = pairs[: -max(1, len(pairs) // 100)]
    return sum(took_s for took_s, _ in kept) / sum(predicted_s for _, predicted_s in kept)


def _judged(feed: Feed, window_s: float) -> dict[str, Told]:
    """The requests of the window by id; of two with one id the last."""
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
    """The records of the judged requests under a policy (None: the live one), with all the others beside them."""
    requests, estimates = _requests(world.feed)
    found: list[Record] = []

    def keep(record: Record) -> None:
        if record.id in world.judged:
            found.append(record)

    simulate(
        requests,
        _factory(world.engine, policy),
        world.system,
        on_record=keep,
        max_output_tokens=max((one.max_output_tokens or 1 for one in requests), default=1),
        lengths=_Recorded(estimates),
    )
    return found


def _factory(engine: EngineFacts, policy: str | None) -> PolicyFactory:
    name, parts = (engine.policy, engine.parts.given()) if policy is None else (policy, {})
    preset = find_preset(name, **parts)
    return lambda cost: build_policy(preset, cost, priority_first=engine.priority_first)


def _requests(feed: Feed) -> tuple[list[TraceRequest], dict[str, LengthEstimate]]:
    """Everything the engine served, in order of arrival, and what was predicted of each answer.

    What it handed over unstarted is among the requests of the instance that took it.
    """
    known = {one.id: one for one in (*feed.ended, *feed.live) if one.outcome is not Outcome.HANDED_OFF}
    told = sorted(known.values(), key=_by_arrival)
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

    def ended(self, request: TraceRequest, *, finished: bool) -> None:
        """Nothing is learned: the next predictions are recorded too."""


FIRST = "0-0"
"""What is asked for at first; each answer says what to ask for next."""
MOST_REQUESTS = 20_000
MOST_STEPS = 4_000


class Told(msgspec.Struct, kw_only=True):
    """A request as its engine tells of it. Times are seconds of the engine's clock."""

    id: str
    arrival_s: float
    prompt_tokens: int
    found_tokens: int
    output_tokens: int
    max_output_tokens: int
    targets_s: tuple[float | None, float | None, float | None]
    priority: int
    tenant: str
    predicted: tuple[float, float, float] | None
    outcome: Outcome | None
    first_token_s: float | None
    finished_s: float | None

    @property
    def slo(self) -> Slo:
        """The targets of the request."""
        return Slo(*self.targets_s)

    @property
    def estimate(self) -> LengthEstimate | None:
        """How long its answer was predicted to be."""
        return None if self.predicted is None else LengthEstimate(*self.predicted)

    def record(self) -> Record:
        """What became of it, as a record. Of an ended one only."""
        assert self.outcome is not None, "a live request has no record"
        return Record(
            id=self.id,
            arrival_s=self.arrival_s,
            prompt_tokens=self.prompt_tokens,
            outcome=self.outcome,
            output_tokens=self.output_tokens,
            tenant=self.tenant,
            first_token_s=self.first_token_s,
            finished_s=self.finished_s,
            slo=self.slo,
        )


class EngineFacts(msgspec.Struct, kw_only=True):
    """An engine's policy and sizes, and seconds of a copy of one block and of `copied_blocks`, out and in (0: none
    was seen). `priority_first`: it serves by vLLM's `--scheduling-policy priority`, whatever the policy.
    """

    policy: str
    parts: Parts
    limits: EngineLimits
    copies_s: tuple[float, float, float, float]
    copied_blocks: int
    priority_first: bool = False


class Window(msgspec.Struct, kw_only=True):
    """One answer of an engine. `steps` are seconds and the six sums of a batch shape."""

    now_s: float
    next: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,18}-[0-9]{1,18}$")]
    missed: int
    ended: list[Told]
    live: list[Told]
    steps: list[tuple[float, int, int, int, int, int, float]]
    host_s: float
    engine: EngineFacts
    block_bytes: int = 0


class Feed:
    """One engine's answers, put together: at most MOST_REQUESTS ended requests, none that came more than `keep_s` ago,
    and MOST_STEPS steps.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._begin()

    def _begin(self) -> None:
        self.ended: deque[Told] = deque(maxlen=MOST_REQUESTS)
        self.live: list[Told] = []
        self.steps: deque[tuple[BatchShape, float]] = deque(maxlen=MOST_STEPS)
        self.next = FIRST
        self._gaps: deque[tuple[float, int]] = deque()
        self._whole_from_s = -inf
        self.now_s = 0.0
        self.host_s = 0.0
        self.block_bytes = 0
        self.engine: EngineFacts | None = None

    def take(self, answer: dict[str, Any]) -> None:
        """Add an answer. Raises UpstreamError for what is none; a restarted engine's begins anew."""
        try:
            window = msgspec.convert(answer, Window)
        except msgspec.ValidationError as error:
            raise UpstreamError(f"a server's answer to shadows is not understood: {error}") from None
        if window.now_s < self.now_s or _counts(window.next) < _counts(self.next):
            self._begin()
            return
        forgets = len(self.ended) + len(window.ended) > MOST_REQUESTS
        self.ended.extend(window.ended)
        self.steps.extend((_shape(row), row[0]) for row in window.steps)
        self.live, self.next, self.now_s = window.live, window.next, window.now_s
        first = self.engine is None
        if forgets or (first and window.missed):
            self._whole_from_s = self._earliest_end_s()
        if window.missed and not first:
            self._gaps.append((self.now_s, window.missed))
        self.host_s, self.block_bytes, self.engine = window.host_s, window.block_bytes, window.engine
        since_s = self.now_s - self._keep_s
        while self.ended and self.ended[0].arrival_s < since_s:
            self.ended.popleft()
        while self._gaps and self._gaps[0][0] < since_s:
            self._gaps.popleft()

    def _earliest_end_s(self) -> float:
        """When the first known request ended: some that ended before are unknown; all that came since are known."""
        return next((one.finished_s for one in self.ended if one.finished_s is not None), self.now_s)

    @property
    def reach_s(self) -> float:
        """Seconds back for which all arrivals are known, but for `missed`; infinite from an engine's first request on.

        An engine keeps its last ended requests alone, so that its first answer may begin in the middle.
        """
        return self.now_s - self._whole_from_s

    @property
    def whole_window_s(self) -> float:
        """Seconds of the longest window that does not begin empty: the later half of what came as far as `reach_s`.

        What came in the first half leads up to it; times after the last arrival are in no half.
        """
        arrivals_s = (one.arrival_s for one in (*self.ended, *self.live))
        last_s = max(arrivals_s, default=self.now_s)
        return self.now_s - (self._whole_from_s + max(last_s, self._whole_from_s)) / 2

    @property
    def missed(self) -> int:
        """Requests that ended between two answers and were in neither, as far back as ended ones are kept."""
        return sum(count for _, count in self._gaps)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("-")))


def _shape(row: tuple[float, int, int, int, int, int, float]) -> BatchShape:
    _, num_jobs, num_tokens, num_decodes, decode_context, prefill_context, pairs = row
    return BatchShape(
        num_jobs=num_jobs,
        num_tokens=num_tokens,
        num_decodes=num_decodes,
        decode_context_tokens=decode_context,
        prefill_context_tokens=prefill_context,
        prefill_pairs=pairs,
    )
