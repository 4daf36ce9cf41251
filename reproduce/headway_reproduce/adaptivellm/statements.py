"""Every table, figure and stated fact of the paper: its value, ours by each reading, and whether it came out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from headway.predict.models.known_models import model_shape
from headway.results.study import StudyPart, StudyTable, Value
from headway.traces import NAMED_LAWS
from headway_reproduce.adaptivellm.latency import LatencyFindings, Overheads, turnaround
from headway_reproduce.adaptivellm.predictor_errors import PredictorErrors
from headway_reproduce.adaptivellm.setting import (
    BASELINE,
    DATA_SETS,
    GROUPS,
    MODELS,
    NO_FREE_BLOCK,
    NO_PADDING,
    ORDERS,
    PAPER_CALL_S,
    PAPER_CALLS_SHARE,
    PAPER_CAPS,
    PAPER_CUT_VLLM,
    PAPER_CUT_VLLM_S,
    PAPER_GAIN_AT_256,
    PAPER_MEAN_TOKENS,
    PAPER_OVERHEAD,
    PAPER_RECOMPUTE_ERROR,
    PAPER_SUMMARY_WIDTH,
    PAPER_SWAP_ERROR,
    PAPER_TABLE_3,
    READINGS,
    ROOMY_HOST,
    SIMULATED,
    SWAP,
    UNBOUND_SWAP,
    WHOLE_LINK,
    AdaptivePoint,
    AdaptiveVariation,
    ModelAndData,
)
from headway_reproduce.adaptivellm.throughput import ThroughputFindings, width
from headway_reproduce.claims import Verdict
from headway_reproduce.study import Range, span
from headway_reproduce.study_runs import throughput_rps

NEAR = 0.1
"""A gain this near the paper's, as a share of it, counts as reproduced; so does a cut this near, in all."""
LEVEL = 0.03
"""Two throughputs this near each other count as the same."""
RARE = 0.05
"""A share below which something "hardly ever" happens."""

SUMMARY = "Summary"
CHATS = tuple(group for group in GROUPS if group.data != SUMMARY)
SUMMARIES = tuple(group for group in GROUPS if group.data == SUMMARY)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out, in words, and how that is judged."""

    ours: str
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One thing the paper says. `found` is by reading, or under "" where readings make no difference.

    `changed` is what a run with a supposed reason taken away came to; empty where none is supposed.
    """

    where: str
    says: str
    paper: str
    found: Mapping[str, Outcome]
    changed: str = ""


def statements_part(statements: Sequence[Statement]) -> StudyPart:
    """The table."""
    rows: list[list[Value]] = []
    for each in statements:
        outcomes = [each.found.get(name) or each.found.get("") for name in READINGS]
        cells = [(None, None) if found is None else (found.ours, found.verdict) for found in outcomes]
        rows.append(
            [each.where, each.says, each.paper, *(cell for pair in cells for cell in pair), each.changed]
        )
    table = StudyTable(
        name="statements",
        title="What the paper says, and what came out by each reading of AdaptiveLLM",
        measured_on=f"{SIMULATED}; predictors and decisions timed on this machine",
        headings=[
            *("where", "it says", "paper"),
            *(heading for name in READINGS for heading in (name, f"verdict, {name}")),
            "one thing changed",
        ],
        rows=rows,
        note=f"A gain within {NEAR:.0%} of the paper's is reproduced, one in its direction partly. Readings: its "
        "sequence length is the prompt's, or prompt and output; memory alone is its choice of swap or recompute in "
        "order of arrival, which section 4.3 announces as what it tests.",
        keys=3,
    )
    counts = {name: _counts(statements, name) for name in READINGS}
    said = "; ".join(f"{name}: {found}" for name, found in counts.items())
    return StudyPart(title="Statement by statement", text=[f"Verdicts. {said}."], tables=[table])


def _counts(statements: Sequence[Statement], reading: str) -> str:
    found = [each.found.get(reading) or each.found.get("") for each in statements]
    verdicts = [outcome.verdict for outcome in found if outcome is not None]
    order: tuple[Verdict, ...] = ("reproduced", "partly", "not", "not run")
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in order if verdict in verdicts)


def statements_data(statements: Sequence[Statement]) -> dict[str, object]:
    """What scripts read."""
    return {"statements": [asdict(each) for each in statements]}


# ---- judging -------------------------------------------------------------------------------------------


def judged_gains(pairs: Sequence[tuple[float, float]]) -> Outcome:
    """Ours and the paper's ratios: all near, most of them at least faster, or neither."""
    if not pairs:
        return Outcome("-", "not run")
    near = sum(abs(ours / paper - 1) <= NEAR for ours, paper in pairs)
    faster = sum(ours > 1 + LEVEL for ours, _ in pairs)
    verdict: Verdict = "reproduced" if near == len(pairs) else "partly" if 2 * faster > len(pairs) else "not"
    return Outcome(f"{_range(ours for ours, _ in pairs)}; near in {near} of {len(pairs)}", verdict)


def judged_cuts(cuts: Sequence[float], paper: Range) -> Outcome:
    """Shares by which a time is shorter: all in the paper's range or near it, all shorter, or neither."""
    if not cuts:
        return Outcome("-", "not run")
    least, most = paper
    within = all(least - NEAR <= cut <= most + NEAR for cut in cuts)
    verdict: Verdict = "reproduced" if within else "partly" if min(cuts) > 0 else "not"
    return Outcome(f"{min(cuts):.0%} to {max(cuts):.0%}", verdict)


def judged_cases(true: Iterable[bool], shown: str) -> Outcome:
    """Something said of several cases: true of all, of most, or of fewer."""
    cases = list(true)
    if not cases:
        return Outcome("-", "not run")
    verdict: Verdict = "reproduced" if all(cases) else "partly" if 2 * sum(cases) > len(cases) else "not"
    return Outcome(f"{shown}; in {sum(cases)} of {len(cases)}", verdict)


def judged_most(ours: float | None, most: float, shown: str) -> Outcome:
    """A cost that is at most the paper's; partly up to twice that."""
    if ours is None:
        return Outcome("-", "not run")
    return Outcome(shown, "reproduced" if ours <= most else "partly" if ours <= 2 * most else "not")


def _range(values: Iterable[float | None], digits: int = 2) -> str:
    found = span(values)
    return "-" if found is None else f"{found[0]:.{digits}f} to {found[1]:.{digits}f}"


def _by(readings: Mapping[str, str], judge: Callable[[str], Outcome]) -> dict[str, Outcome]:
    return {name: judge(policy) for name, policy in readings.items()}


# ---- section 4.3 ---------------------------------------------------------------------------------------


class ThroughputStatements(ThroughputFindings):
    """Table 3, Fig. 3, and what section 4.3 says of swaps and recomputes."""

    def all(self) -> list[Statement]:
        """In the order of the section."""
        return [*self._table_3(), *self._figure_3(), *self._rates(), *self._chats(), *self._summaries()]

    def _changes(self, *variations: AdaptiveVariation) -> str:
        return "; ".join(
            f"{what.name} {_range(self.varied_gain(group, what) for group in self.scope.groups)}"
            for what in variations
        )

    def _table_3(self) -> list[Statement]:
        def over(place: int, other: str, policy: str) -> Outcome:
            found = self.gains(policy, other)
            return judged_gains([(gain, PAPER_TABLE_3[str(group)][place]) for group, gain in found.items()])

        reasons = (NO_PADDING, NO_FREE_BLOCK, WHOLE_LINK, *ROOMY_HOST.values())
        slower = [self.gain(AdaptivePoint(group=group), SWAP, BASELINE) for group in GROUPS]
        return [
            Statement(
                where="Table 3",
                says="throughput over vLLM",
                paper="1.09 to 1.40",
                found=_by(READINGS, lambda policy: over(0, BASELINE, policy)),
                changed=self._changes(*reasons),
            ),
            Statement(
                where="Table 3",
                says="throughput over vLLM_s",
                paper="1.64 to 2.55",
                found=_by(READINGS, lambda policy: over(1, SWAP, policy)),
                changed=self._changes(UNBOUND_SWAP),
            ),
            Statement(
                where="Table 3",
                says="throughput of vLLM_s over vLLM",
                paper="0.44 to 0.68",
                found={
                    "": judged_cases(
                        (ours is not None and 0.44 - LEVEL <= ours <= 0.68 + LEVEL for ours in slower),
                        _range(slower),
                    )
                },
                changed=self._changes(UNBOUND_SWAP),
            ),
        ]

    def _figure_3(self) -> list[Statement]:
        short, middle, long = min(self.scope.limits), 64, max(self.scope.limits)

        def at(policy: str, limit: int) -> dict[ModelAndData, float]:
            points = {group: AdaptivePoint(group=group, limit=limit) for group in self.scope.groups}
            return {group: self.gain(point, policy, BASELINE) or 0.0 for group, point in points.items()}

        def rises(policy: str) -> Outcome:
            first, then = at(policy, short), at(policy, middle)
            shown = f"{_range(first.values())}, then {_range(then.values())}"
            return judged_cases((then[group] > first[group] for group in first), shown)

        def level(policy: str) -> Outcome:
            found = at(policy, short).values()
            return judged_cases((abs(gain - 1) <= LEVEL for gain in found), _range(found))

        def longest(policy: str) -> Outcome:
            return judged_gains([(max(at(policy, long).values()), PAPER_GAIN_AT_256)])

        return [
            Statement(
                where="Fig. 3",
                says=f"as fast as vLLM where outputs are short ({short} tokens, ours)",
                paper="little difference",
                found=_by(READINGS, level),
            ),
            Statement(
                where="Fig. 3",
                says=f"the gain over vLLM grows with the longest output, {short} to {middle}",
                paper="grows",
                found=_by(READINGS, rises),
            ),
            Statement(
                where="Fig. 3",
                says=f"the most over vLLM at a longest output of {long}",
                paper=f"{PAPER_GAIN_AT_256:g}",
                found=_by(READINGS, longest),
            ),
        ]

    def _rates(self) -> list[Statement]:
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

        return [
            Statement(
                where="Fig. 3",
                says="vLLM_s is the slowest, since host memory keeps its batches small",
                paper="in all groups",
                found=_by(READINGS, slowest),
                changed=self._changes(UNBOUND_SWAP),
            ),
            Statement(
                where="Fig. 3",
                says="Summary groups get through less than chats of their model",
                paper="in all groups",
                found=_by(READINGS, less),
            ),
        ]

    def _widths(self, policy: str) -> list[float | None]:
        return [self.mean(AdaptivePoint(group=group), policy, width) for group in GROUPS]

    def _fates(
        self, group: ModelAndData, policy: str, what: AdaptiveVariation | None = None
    ) -> tuple[float, ...]:
        point = AdaptivePoint(group=group) if what is None else what.of(group)
        return tuple(self.count(point, policy, name) for name in ("swaps", "recomputes", "host_full"))

    def _roomy(self, groups: Sequence[ModelAndData]) -> str:
        """Swaps and recomputes where the host is never full, of the scope's groups among these."""
        told = []
        for name, what in ROOMY_HOST.items():
            found = [self._fates(each, what.policy, what) for each in self.scope.groups if each in groups]
            told.append(f"{name} {sum(f[0] for f in found):.0f} to {sum(f[1] for f in found):.0f}")
        return f"host never full, swaps to recomputes: {'; '.join(told)}"

    def _chats(self) -> list[Statement]:
        def swaps(policy: str) -> Outcome:
            found = [self._fates(group, policy) for group in CHATS]
            shown = f"{sum(f[0] for f in found):.0f} swaps, {sum(f[1] for f in found):.0f} recomputes"
            return judged_cases((swapped > dropped for swapped, dropped, _ in found), shown)

        def fills(policy: str) -> Outcome:
            found = [self._fates(group, policy) for group in CHATS]
            return judged_cases((full > 0 for *_, full in found), f"{sum(f[2] for f in found):.0f} times")

        return [
            Statement(
                where="4.3",
                says="chats: many swaps and few recomputes, since a swap is the cheaper",
                paper="yes",
                found=_by(READINGS, swaps),
                changed=self._roomy(CHATS),
            ),
            Statement(
                where="4.3",
                says="chats: so many are swapped that the host gets full",
                paper="yes",
                found=_by(READINGS, fills),
            ),
        ]

    def _summaries(self) -> list[Statement]:
        def rarer(policy: str) -> Outcome:
            mine, chats = ([self._fates(g, policy)[0] for g in groups] for groups in (SUMMARIES, CHATS))
            return judged_cases((count < min(chats) for count in mine), f"{_range(mine, 0)} swaps")

        def full(policy: str) -> Outcome:
            found = [self._fates(group, policy) for group in SUMMARIES]
            shares = [each[2] / max(1.0, each[0] + each[1]) for each in found]
            return judged_cases((share <= RARE for share in shares), f"{max(shares):.0%} of victims at most")

        def by_cost(policy: str) -> Outcome:
            found = [self._fates(group, policy) for group in SUMMARIES]
            shown = f"{sum(f[1] - f[2] for f in found):.0f} of {sum(f[1] for f in found):.0f} recomputes"
            return judged_cases((2 * (each[1] - each[2]) > each[1] for each in found), shown)

        return [
            Statement(
                where="4.3", says="summaries: fewer swaps than chats", paper="yes", found=_by(READINGS, rarer)
            ),
            Statement(
                where="4.3",
                says="summaries: the host is hardly ever full",
                paper="yes",
                found=_by(READINGS, full),
                changed=self._roomy(SUMMARIES),
            ),
            Statement(
                where="4.3",
                says="summaries: most recomputes are the cheaper way",
                paper="yes",
                found=_by(READINGS, by_cost),
                changed=self._roomy(SUMMARIES),
            ),
        ]


# ---- section 4.4 ---------------------------------------------------------------------------------------


class LatencyStatements(LatencyFindings):
    """Fig. 4."""

    def all(self) -> list[Statement]:
        """In the order of the section."""

        def cuts(over: str, paper: Range) -> Callable[[str], Outcome]:
            return lambda policy: judged_cuts(list(self.cuts(policy, over).values()), paper)

        def everywhere(policy: str) -> Outcome:
            found = [self.cut(point, policy, BASELINE) or 0.0 for point in self.scope.latency_points()]
            return judged_cases((cut > 0 for cut in found), f"{min(found):.0%} to {max(found):.0%}")

        caps = " and ".join(map(str, PAPER_CAPS))
        return [
            Statement(
                where="Fig. 4",
                says=f"weighted turnaround shorter than vLLM's at caps {caps}",
                paper=_per_cent(PAPER_CUT_VLLM),
                found=_by(ORDERS, cuts(BASELINE, PAPER_CUT_VLLM)),
            ),
            Statement(
                where="Fig. 4",
                says=f"the same beside vLLM_s at caps {caps}",
                paper=_per_cent(PAPER_CUT_VLLM_S),
                found=_by(ORDERS, cuts(SWAP, PAPER_CUT_VLLM_S)),
            ),
            Statement(
                where="Fig. 4",
                says="shorter than vLLM's at every cap",
                paper="at every cap",
                found=_by(ORDERS, everywhere),
            ),
            Statement(
                where="Fig. 4",
                says="chats: falls as the cap rises, least at 64 or 128",
                paper="yes",
                found=_by(ORDERS, self._falls),
            ),
            Statement(
                where="Fig. 4",
                says="summaries: the same at every cap, since fewer than 10 run at once",
                paper="yes",
                found=_by(ORDERS, self._steady),
            ),
        ]

    def _of(self, policy: str, groups: Sequence[ModelAndData]) -> list[list[float]]:
        """The turnarounds at rising caps, of each of the scope's groups among these."""
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
        return judged_cases((narrow and max(c) <= (1 + NEAR) * min(c) for c in curves), shown)


# ---- sections 2 and 4.2, 4.5 and 4.6 -------------------------------------------------------------------


def other_statements(overheads: Overheads, errors: PredictorErrors) -> list[Statement]:
    """What neither throughput nor latency is about."""
    return [*_sizes(), *_predictors(errors), *_costs(overheads)]


def _sizes() -> list[Statement]:
    means = [NAMED_LAWS[law].input.expected_tokens() for law in DATA_SETS.values()]
    cases = [abs(mine / theirs - 1) < 1e-3 for mine, theirs in zip(means, PAPER_MEAN_TOKENS, strict=True)]
    shape = model_shape(MODELS["OPT-13B"])
    mib = 100 * shape.kv_bytes_per_token / 2**20
    return [
        Statement(
            where="Table 2",
            says="mean prompts of the data sets (laws fitted to them; outputs are ours)",
            paper=", ".join(map(str, PAPER_MEAN_TOKENS)),
            found={"": judged_cases(cases, ", ".join(f"{mean:.2f}" for mean in means))},
        ),
        Statement(
            where="2.1",
            says="KV of 100 tokens of OPT-13B",
            paper="39.1 MB",
            found={"": Outcome(f"{mib:.1f} MiB by its own equation 3", "not")},
        ),
    ]


def _predictors(errors: PredictorErrors) -> list[Statement]:
    recompute, swap = errors.recompute_error, errors.swap_error
    total = None if swap.into is None or swap.out is None else swap.into + swap.out
    paper = PAPER_SWAP_ERROR["in"][0] + PAPER_SWAP_ERROR["out"][0]
    regressor = f"{recompute.regressor}, degree {recompute.degree}"
    noise = "" if errors.noise is None else f"the same prefill again differs by {errors.noise:.1%}"
    return [
        Statement(
            where="4.5",
            says="mean error of predicted recomputing (on this machine's engine)",
            paper=", ".join(f"{error:.2%}" for error in PAPER_RECOMPUTE_ERROR.values()),
            found={
                "": judged_most(
                    recompute.value,
                    max(PAPER_RECOMPUTE_ERROR.values()),
                    "" if recompute.value is None else f"{recompute.value:.1%}",
                )
            },
            changed=noise or errors.reason,
        ),
        Statement(
            where="4.5",
            says="the best regressor",
            paper="RandomForest, degree 2",
            found={
                "": Outcome("-", "not run")
                if recompute.value is None
                else judged_cases([regressor == "RandomForest, degree 2"], regressor)
            },
        ),
        Statement(
            where="4.5",
            says="mean error of predicted copies, out and in together",
            paper=f"{paper:.1%}, under 4%",
            found={"": judged_most(total, 0.04, "" if total is None else f"{total:.1%}")},
            changed=noise or errors.reason,
        ),
    ]


def _costs(overheads: Overheads) -> list[Statement]:
    found = overheads.found()
    predicting = max(each.prediction_share for each in found)
    call_s, share = max(each.plan_s for each in found), max(each.share for each in found)
    return [
        Statement(
            where="4.6",
            says="time spent predicting, of the run",
            paper=_per_cent(PAPER_OVERHEAD, 1),
            found={"": judged_most(predicting, PAPER_OVERHEAD[1], f"{predicting:.2%}")},
        ),
        Statement(
            where="4.6",
            says="a call of the scheduler",
            paper=f"{1000 * PAPER_CALL_S:g} ms",
            found={"": judged_most(call_s, PAPER_CALL_S, f"{1000 * call_s:.2f} ms")},
        ),
        Statement(
            where="4.6",
            says="all its calls, of the run",
            paper=_per_cent(PAPER_CALLS_SHARE, 1),
            found={"": judged_most(share, PAPER_CALLS_SHARE[1], f"{share:.2%}")},
        ),
    ]


def _per_cent(found: Range, digits: int = 0) -> str:
    return f"{found[0]:.{digits}%} to {found[1]:.{digits}%}"
