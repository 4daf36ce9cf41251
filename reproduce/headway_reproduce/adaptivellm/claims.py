"""Every table, figure and stated fact of the paper: its value, ours by each reading, and whether it was reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from headway.predict.models.known_models import model_shape
from headway.statistics import known
from headway.traces import NAMED_LAWS
from headway_reproduce.adaptivellm.cells import (
    AS_IT_STANDS,
    BASELINE,
    BY_PROMPT,
    CHANGES,
    DATA_SETS,
    GROUPS,
    LARGE_SUMMARY,
    MODELS,
    ORDERS,
    PAPER_CAPS,
    READINGS,
    ROOMY_HOST,
    SLOW_LINK,
    SWAP,
    SWAP_UNBOUND,
    TABLE_LIMIT,
    WHOLE_LINK,
    WORKLOADS,
    AdaptivePoint,
    AdaptiveVariation,
    ModelAndData,
)
from headway_reproduce.adaptivellm.findings import (
    PAPER_CUTS,
    PAPER_OVERHEAD,
    PAPER_TABLE_3,
    AdaptiveFindings,
    Overhead,
    turnaround,
    width,
)
from headway_reproduce.adaptivellm.predictor_errors import (
    PAPER_RECOMPUTE_ERROR,
    PAPER_SWAP_ERROR,
    PredictorErrors,
)
from headway_reproduce.claims import (
    EQUAL,
    NEAR,
    Claim,
    Held,
    Numbers,
    Verdict,
    as_cost,
    as_fact,
    as_gain,
    as_value,
    judged,
    reason_of,
)
from headway_reproduce.study import Range, ratio, span
from headway_reproduce.study_runs import throughput_rps

PAPER_MOST_SWAP_ERROR = 0.04
"""Mean relative error of predicted copies, out and in together (section 4.5)."""
PAPER_REGRESSOR = "RandomForest, degree 2"
PAPER_KV_MB = 39.1
"""KV of 100 tokens of OPT-13B (section 2.1)."""
PAPER_CALL_S, PAPER_CALLS_SHARE = 0.0002, (0.005, 0.01)
"""Time of a scheduler call, and of all calls over run time (section 4.6)."""
PAPER_MEAN_TOKENS = (17.02, 19.66, 340.48)
"""Mean tokens of the prompts of DATA_SETS (Table 2)."""
PAPER_GAIN_AT_256 = 1.3
"""Largest gain over vLLM at a longest output of 256 (section 4.3)."""
PAPER_SUMMARY_WIDTH = 10
"""Requests that run at once in the Summary groups, at most (section 4.4)."""
RARE = 0.05
"""A share below which something "hardly ever" happens."""

SUMMARY = "Summary"
CHATS = tuple(group for group in GROUPS if group.data != SUMMARY)
SUMMARIES = tuple(group for group in GROUPS if group.data == SUMMARY)
NOTE = (
    "Readings: its sequence length is the prompt's, or prompt and output; memory alone is its choice of swap or "
    "recompute in order of arrival, which section 4.3 announces as what it tests."
)


class Outcome(NamedTuple):
    """A result in words, and its judgement."""

    ours: str
    verdict: Verdict


class VictimFates(NamedTuple):
    """How many victims were swapped and recomputed, and for how many of the latter the host had no room."""

    swaps: float
    recomputes: float
    host_full: float

    @property
    def with_room(self) -> float:
        """Share of the victims that did not find the host full."""
        return 1 - self.host_full / max(1.0, self.swaps + self.recomputes)

    @property
    def by_cost(self) -> float:
        """Share of the recomputes for which there was room on the host."""
        return 1 - self.host_full / self.recomputes if self.recomputes else 0.0


Judge = Callable[[str], Outcome]
"""The outcome of a policy."""


def by_reading(
    readings: Mapping[str, str], judge: Judge, *, where: str, says: str, paper: str = "yes", reason: str = ""
) -> Iterator[Claim]:
    """A statement with the outcome of each reading's policy."""
    for reading, policy in readings.items():
        ours, verdict = judge(policy)
        yield Claim(
            where=where, says=says, paper=paper, ours=ours, verdict=verdict, reason=reason, reading=reading
        )


def judged_gains(pairs: Sequence[tuple[float, float]]) -> Outcome:
    """Ours and the paper's ratios."""
    facts = [as_gain(*pair) for pair in pairs]
    near = sum(fact is Held.SIZE for fact in facts)
    return Outcome(f"{_range(ours for ours, _ in pairs)}; near in {near} of {len(pairs)}", judged(*facts))


def judged_cuts(cuts: Sequence[float], paper: Range) -> Outcome:
    """Shares by which a time is shorter, judged as ratios of times."""
    least, most = (1 / (1 - cut) for cut in paper)
    shown = f"{min(cuts):.0%} to {max(cuts):.0%}" if cuts else "-"
    return Outcome(shown, judged(*(as_gain(1 / (1 - cut), least, most) for cut in cuts)))


def judged_cases(true: Iterable[bool], shown: str) -> Outcome:
    """A statement about several cases."""
    cases = list(true)
    return Outcome(f"{shown}; in {sum(cases)} of {len(cases)}", judged(*map(as_fact, cases)))


def _range(values: Iterable[float | None], digits: int = 2) -> str:
    found = span(values)
    return "-" if found is None else f"{found[0]:.{digits}f} to {found[1]:.{digits}f}"


class AdaptiveClaims(AdaptiveFindings):
    """Every statement of the paper, with the outcome of each reading of it."""

    def claims(self, errors: PredictorErrors) -> list[Claim]:
        """The statements in the order of the paper's evaluation."""
        return [
            *(*self._table_3(), *self._figure_3(), *self._rates(), *self._chats(), *self._summaries()),
            *self._figure_4(),
            *(*_sizes(), *_predictors(errors), *_costs(self.overheads())),
        ]

    # ---- section 4.3 -------------------------------------------------------------------------------

    def _table_3(self) -> Iterator[Claim]:
        asked = ((BASELINE, "vLLM", "1.09 to 1.40"), (SWAP, "vLLM_s", "1.64 to 2.55"))
        for place, (other, called, paper) in enumerate(asked):

            def over(policy: str, place: int = place, other: str = other) -> Outcome:
                found = self.gains(policy, other)
                return judged_gains(
                    [(gain, PAPER_TABLE_3[str(group)][place]) for group, gain in found.items()]
                )

            says, reason = f"throughput over {called}", self._why_of_gains(other, place)
            yield from by_reading(READINGS, over, where="Table 3", says=says, paper=paper, reason=reason)
        slower = [self.gain(AdaptivePoint(group=group), SWAP, BASELINE) for group in GROUPS]
        yield Claim(
            where="Table 3",
            says="throughput of vLLM_s over vLLM",
            paper="0.46 to 0.68",
            ours=_range(slower),
            verdict=judged(*(as_gain(ours, 0.46, 0.68) for ours in slower)),
            reason=self._unbound(),
        )

    def _points(self, limit: int = TABLE_LIMIT) -> list[AdaptivePoint]:
        """The settings in which things are changed."""
        return [AdaptivePoint(group=group, limit=limit) for group in self.scope.groups]

    def _why_of_gains(self, over: str, place: int) -> str:
        points = self._points()
        paper = [PAPER_TABLE_3[str(point.group)][place] for point in points]
        tried = {
            what.name: [self.varied(point, what, BY_PROMPT, over) for point in points] for what in CHANGES
        }
        if over == SWAP:
            tried["vllm-s without its limit"] = [self.gain(each, BY_PROMPT, SWAP_UNBOUND) for each in points]
            return f"prompt: {reason_of([self.gain(p, BY_PROMPT, over) for p in points], tried, paper)}"
        said = []
        for reading, policy in READINGS.items():
            stands = [self.gain(point, policy, over) for point in points]
            roomy = {ROOMY_HOST.name: [self.varied(point, ROOMY_HOST, policy) for point in points]}
            changed = tried | roomy if policy == BY_PROMPT else roomy
            said.append(f"{reading}: {reason_of(stands, changed, paper)}")
        return "; ".join(said)

    def _unbound(self) -> str:
        """Throughput of vLLM_s relative to vLLM."""
        points = self._points()
        paper = [ours / theirs for ours, theirs in (PAPER_TABLE_3[str(point.group)] for point in points)]
        stands, without = (
            [self.gain(point, policy, BASELINE) for point in points] for policy in (SWAP, SWAP_UNBOUND)
        )
        return reason_of(stands, {"without its limit": without}, paper)

    def _figure_3(self) -> Iterator[Claim]:
        short, middle, long = min(self.scope.limits), 64, max(self.scope.limits)

        def at(policy: str, limit: int) -> dict[ModelAndData, float]:
            points = {group: AdaptivePoint(group=group, limit=limit) for group in self.scope.groups}
            return {group: self.gain(point, policy, BASELINE) or 0.0 for group, point in points.items()}

        def rises(policy: str) -> Outcome:
            first, then = at(policy, short), at(policy, middle)
            shown = f"{_range(first.values())}, then {_range(then.values())}"
            return judged_cases((then[group] > EQUAL * first[group] for group in first), shown)

        def level(policy: str) -> Outcome:
            found = at(policy, short).values()
            return Outcome(_range(found), judged(*(as_gain(gain, 1) for gain in found)))

        def longest(policy: str) -> Outcome:
            return judged_gains([(max(at(policy, long).values()), PAPER_GAIN_AT_256)])

        def gains(limit: int, what: AdaptiveVariation) -> list[float | None]:
            return [self.varied(point, what) for point in self._points(limit)]

        def why(number: Callable[[AdaptiveVariation], Numbers], paper: float) -> str:
            tried = {what.name: number(what) for what in WORKLOADS}
            return f"prompt: {reason_of(number(AS_IT_STANDS), tried, paper)}"

        yield from by_reading(
            READINGS,
            level,
            where="Fig. 3",
            says=f"as fast as vLLM where outputs are short ({short} tokens, ours)",
            paper="little difference",
            reason=why(lambda what: gains(short, what), 1.0),
        )
        yield from by_reading(
            READINGS,
            rises,
            where="Fig. 3",
            says=f"the gain over vLLM grows with the longest output, {short} to {middle}",
            paper="grows",
            reason=why(lambda what: [*map(ratio, gains(middle, what), gains(short, what))], inf),
        )
        yield from by_reading(
            READINGS,
            longest,
            where="Fig. 3",
            says=f"the most over vLLM at a longest output of {long}",
            paper=f"{PAPER_GAIN_AT_256:g}",
            reason=why(lambda what: max(known(gains(long, what)), default=None), PAPER_GAIN_AT_256),
        )

    def _rates(self) -> Iterator[Claim]:
        rates = {
            policy: {
                group: self.mean(AdaptivePoint(group=group), policy, throughput_rps) or 0.0
                for group in GROUPS
            }
            for policy in (BASELINE, SWAP, *READINGS.values())
        }

        def slowest(policy: str) -> Outcome:
            cases = [rates[SWAP][g] < min(rates[BASELINE][g], rates[policy][g]) for g in GROUPS]
            widths = [_range(self._widths(each)) for each in (SWAP, BASELINE)]
            return judged_cases(cases, f"{widths[0]} a step beside vLLM's {widths[1]}")

        def less(policy: str) -> Outcome:
            pairs = [(rates[policy][ModelAndData(model, SUMMARY)], model) for model in MODELS]
            cases = [
                rate < min(rates[policy][ModelAndData(model, data)] for data in DATA_SETS if data != SUMMARY)
                for rate, model in pairs
            ]
            return judged_cases(cases, f"{_range(rate for rate, _ in pairs)} req/s")

        yield from by_reading(
            READINGS,
            slowest,
            where="Fig. 3",
            says="vLLM_s is the slowest, since host memory keeps its batches small",
            paper="in all groups",
            reason=self._unbound(),
        )
        yield from by_reading(
            READINGS,
            less,
            where="Fig. 3",
            says="Summary groups get through less than chats of their model",
            paper="in all groups",
        )

    def _widths(self, policy: str) -> list[float | None]:
        return [self.mean(AdaptivePoint(group=group), policy, width) for group in GROUPS]

    def _fates(self, point: AdaptivePoint, policy: str) -> VictimFates:
        return VictimFates(
            *(self.count(point, policy, name) for name in ("swaps", "recomputes", "host_full"))
        )

    def _why_of_fates(
        self,
        group: ModelAndData,
        number: Callable[[VictimFates], float | None],
        paper: float,
        *changes: AdaptiveVariation,
    ) -> str:
        """A count of the victims' fates in a group with one thing changed, by each reading."""
        point = AdaptivePoint(group=group)
        return f"{group}, " + "; ".join(
            f"{reading}: "
            + reason_of(
                number(self._fates(point, policy)),
                {what.name: number(self._fates(what.of(point), policy)) for what in changes},
                paper,
            )
            for reading, policy in READINGS.items()
        )

    def _chats(self) -> Iterator[Claim]:
        def swaps(policy: str) -> Outcome:
            found = [self._fates(AdaptivePoint(group=group), policy) for group in CHATS]
            shown = (
                f"{sum(f.swaps for f in found):.0f} swaps, {sum(f.recomputes for f in found):.0f} recomputes"
            )
            return judged_cases((each.swaps > each.recomputes for each in found), shown)

        def fills(policy: str) -> Outcome:
            found = [self._fates(AdaptivePoint(group=group), policy) for group in CHATS]
            return judged_cases(
                (each.host_full > 0 for each in found), f"{sum(f.host_full for f in found):.0f} times"
            )

        says = "chats: many swaps and few recomputes, since a swap is the cheaper"
        reason = "swaps a recompute: " + self._why_of_fates(
            self.scope.groups[0], lambda fates: ratio(fates.swaps, fates.recomputes), inf, ROOMY_HOST
        )
        yield from by_reading(READINGS, swaps, where="4.3", says=says, reason=reason)
        says = "chats: so many are swapped that the host gets full"
        yield from by_reading(READINGS, fills, where="4.3", says=says)

    def _summaries(self) -> Iterator[Claim]:
        def rarer(policy: str) -> Outcome:
            mine, chats = (
                [self._fates(AdaptivePoint(group=g), policy).swaps for g in groups]
                for groups in (SUMMARIES, CHATS)
            )
            return judged_cases((count < min(chats) for count in mine), f"{_range(mine, 0)} swaps")

        def full(policy: str) -> Outcome:
            found = [self._fates(AdaptivePoint(group=group), policy) for group in SUMMARIES]
            shares = [1 - each.with_room for each in found]
            return judged_cases((share <= RARE for share in shares), f"{max(shares):.0%} of victims at most")

        def by_cost(policy: str) -> Outcome:
            found = [self._fates(AdaptivePoint(group=group), policy) for group in SUMMARIES]
            recomputes = sum(f.recomputes for f in found)
            shown = f"{recomputes - sum(f.host_full for f in found):.0f} of {recomputes:.0f} recomputes"
            return judged_cases((each.by_cost > 0.5 for each in found), shown)

        says = "summaries: fewer swaps than chats"
        yield from by_reading(READINGS, rarer, where="4.3", says=says)
        links = (WHOLE_LINK, SLOW_LINK)
        for says, judge, what, number in (
            (
                "summaries: the host is hardly ever full",
                full,
                "victims with room",
                lambda fates: fates.with_room,
            ),
            (
                "summaries: most recomputes are the cheaper way",
                by_cost,
                "recomputes by cost",
                lambda fates: fates.by_cost,
            ),
        ):
            reason = f"share of {what}: {self._why_of_fates(LARGE_SUMMARY, number, 1.0, *links)}"
            yield from by_reading(READINGS, judge, where="4.3", says=says, reason=reason)

    # ---- section 4.4 -------------------------------------------------------------------------------

    def _figure_4(self) -> Iterator[Claim]:
        caps = " and ".join(map(str, PAPER_CAPS))
        asked = {
            BASELINE: f"weighted turnaround shorter than vLLM's at caps {caps}",
            SWAP: f"the same beside vLLM_s at caps {caps}",
        }
        for over, says in asked.items():

            def cuts(policy: str, over: str = over) -> Outcome:
                return judged_cuts(list(self.cuts(policy, over).values()), PAPER_CUTS[over])

            paper, reason = _per_cent(PAPER_CUTS[over]), self._why_of_cuts(over)
            yield from by_reading(ORDERS, cuts, where="Fig. 4", says=says, paper=paper, reason=reason)

        def everywhere(policy: str) -> Outcome:
            found = [self.cut(point, policy, BASELINE) or 0.0 for point in self.scope.latency_points()]
            return judged_cases((cut > 0 for cut in found), f"{min(found):.0%} to {max(found):.0%}")

        says, paper = "shorter than vLLM's at every cap", "at every cap"
        yield from by_reading(ORDERS, everywhere, where="Fig. 4", says=says, paper=paper)
        says = "chats: falls as the cap rises, least at 64 or 128"
        yield from by_reading(ORDERS, self._falls, where="Fig. 4", says=says)
        says = "summaries: the same at every cap, since fewer than 10 run at once"
        yield from by_reading(ORDERS, self._steady, where="Fig. 4", says=says)

    def _why_of_cuts(self, over: str) -> str:
        """How many times shorter the turnaround is at the first of the paper's caps, with one thing changed."""
        points = [AdaptivePoint(group=group, cap=PAPER_CAPS[0]) for group in self.scope.groups]
        least, most = (1 / (1 - cut) for cut in PAPER_CUTS[over])
        said = []
        for reading, policy in ORDERS.items():
            stands = [self.ratio(point, over, policy, turnaround) or 1.0 for point in points]
            if over == SWAP:
                unbound = [self.ratio(point, SWAP_UNBOUND, policy, turnaround) for point in points]
                tried = {"vllm-s without its limit": unbound}
            else:
                tried = {
                    what.name: [ratio(1.0, self.varied(p, what, policy, number=turnaround)) for p in points]
                    for what in (*WORKLOADS, ROOMY_HOST)
                }
            wanted = [min(max(times, least), most) for times in stands]
            said.append(f"{reading}: {reason_of(stands, tried, wanted)}")
        return f"times as short at cap {PAPER_CAPS[0]}, {'; '.join(said)}"

    def _of(self, policy: str, groups: Sequence[ModelAndData]) -> list[list[float]]:
        """The turnarounds at rising caps, for each of these groups that the scope has."""
        return [
            [
                self.mean(AdaptivePoint(group=group, cap=cap), policy, turnaround) or 0.0
                for cap in self.scope.caps
            ]
            for group in self.scope.groups
            if group in groups
        ]

    def _falls(self, policy: str) -> Outcome:
        curves = self._of(policy, CHATS)
        least = [self.scope.caps[curve.index(min(curve))] for curve in curves]
        shown = f"{curves[0][0]:.1f} at {self.scope.caps[0]}, {min(curves[0]):.1f} at {least[0]}"
        return judged_cases((cap in PAPER_CAPS for cap in least), shown)

    def _steady(self, policy: str) -> Outcome:
        curves = self._of(policy, SUMMARIES)
        shown = f"{min(map(min, curves)):.1f} to {max(map(max, curves)):.1f}"
        widths = [self.mean(AdaptivePoint(group=group), policy, width) or 0.0 for group in SUMMARIES]
        narrow = max(widths) < PAPER_SUMMARY_WIDTH
        return judged_cases((narrow and max(c) <= NEAR * min(c) for c in curves), shown)


# ---- sections 2 and 4.2, 4.5 and 4.6 -------------------------------------------------------------------


def _sizes() -> Iterator[Claim]:
    means = [NAMED_LAWS[law].input.expected_tokens() for law in DATA_SETS.values()]
    yield Claim(
        where="Table 2",
        says="mean prompts of the data sets (laws fitted to them; outputs are ours)",
        paper=", ".join(map(str, PAPER_MEAN_TOKENS)),
        ours=", ".join(f"{mean:.2f}" for mean in means),
        verdict=judged(*map(as_value, means, PAPER_MEAN_TOKENS)),
    )
    mib = 100 * model_shape(MODELS["OPT-13B"]).kv_bytes_per_token / 2**20
    yield Claim(
        where="2.1",
        says="KV of 100 tokens of OPT-13B",
        paper=f"{PAPER_KV_MB:g} MB",
        ours=f"{mib:.1f} MiB by its own equation 3",
        verdict=judged(as_value(mib, PAPER_KV_MB)),
        reason=reason_of(mib, {"keys without values": mib / 2}, PAPER_KV_MB),
    )


def _predictors(errors: PredictorErrors) -> Iterator[Claim]:
    recompute, swap = errors.recompute_error, errors.swap_error
    total = None if swap.into is None or swap.out is None else swap.into + swap.out
    noise = "" if errors.noise is None else f"the same prefill again differs by {errors.noise:.1%}"
    costs = (
        (
            "mean error of predicted recomputing (on this machine's engine)",
            ", ".join(f"{error:.2%}" for error in PAPER_RECOMPUTE_ERROR.values()),
            recompute.value,
            max(PAPER_RECOMPUTE_ERROR.values()),
        ),
        (
            "mean error of predicted copies, out and in together",
            f"{PAPER_SWAP_ERROR['in'][0] + PAPER_SWAP_ERROR['out'][0]:.1%}, under {PAPER_MOST_SWAP_ERROR:.0%}",
            total,
            PAPER_MOST_SWAP_ERROR,
        ),
    )
    for says, paper, found, most in costs:
        yield Claim(
            where="4.5",
            says=says,
            paper=paper,
            ours="-" if found is None else f"{found:.1%}",
            verdict=judged(as_cost(found, most)),
            reason=noise or errors.reason,
        )
    regressor = f"{recompute.regressor}, degree {recompute.degree}"
    known = recompute.value is not None
    yield Claim(
        where="4.5",
        says="the best regressor",
        paper=PAPER_REGRESSOR,
        ours=regressor if known else "-",
        verdict=judged(as_fact(regressor == PAPER_REGRESSOR) if known else None),
    )


def _costs(found: Sequence[Overhead]) -> Iterator[Claim]:
    predicting = max(each.prediction_share for each in found)
    call_s, share = max(each.plan_s for each in found), max(each.share for each in found)
    for says, paper, ours, cost in (
        (
            "time spent predicting, of the run",
            _per_cent(PAPER_OVERHEAD, 1),
            f"{predicting:.2%}",
            as_cost(predicting, PAPER_OVERHEAD[1]),
        ),
        (
            "a call of the scheduler",
            f"{1000 * PAPER_CALL_S:g} ms",
            f"{1000 * call_s:.2f} ms",
            as_cost(call_s, PAPER_CALL_S),
        ),
        (
            "all its calls, of the run",
            _per_cent(PAPER_CALLS_SHARE, 1),
            f"{share:.2%}",
            as_cost(share, PAPER_CALLS_SHARE[1]),
        ),
    ):
        yield Claim(where="4.6", says=says, paper=paper, ours=ours, verdict=judged(cost))


def _per_cent(found: Range, digits: int = 0) -> str:
    return f"{found[0]:.{digits}%} to {found[1]:.{digits}%}"
