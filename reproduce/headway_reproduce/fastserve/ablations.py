"""FastServe's queues apart from its memory (Fig. 10)."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from headway.lab.policy_choice import label
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.claims import Claim, as_above_one, as_gain, as_trend, as_value, judged, reason_of
from headway_reproduce.fastserve.findings import (
    ABLATED_HEADINGS,
    LATENCIES,
    FastServeFindings,
    mean_jct_s,
    said,
    sensitivity,
    times,
)
from headway_reproduce.fastserve.fixed_points import PAPER_FULL_RPS
from headway_reproduce.fastserve.scope import AXES, CV_AXIS, OVERLOAD, RATE_AXIS, THETA_AXIS
from headway_reproduce.fastserve.setting import (
    ABLATED,
    FASTSERVE,
    FCFS,
    FIXED_PRIORITY,
    NO_PREEMPT,
    PREEMPT,
    SCHEDULERS,
    SINGLE,
    FastServePoint,
)
from headway_reproduce.study import chart, ratio, span

PAPER_FIXED_GAIN = 13.9
"""Gain over fixed priority, in the later version."""
_SHOWN = (*SCHEDULERS, FCFS)
_SETTINGS = {"quantum": "first quantum, in decode steps", "ratio": "quantum ratio"}


class Scheduler(FastServeFindings):
    """FastServe's queues compared with other orders, and with other quanta."""

    def points(self, axis: str) -> dict[float, FastServePoint]:
        """Setting -> point."""
        return self.scope.ablated(axis, self.capacity_rps)

    def parts(self) -> list[StudyPart]:
        """The variants over rate, CV and theta; their quanta; other orders of the same engine."""
        settings = [self._settings_table()]
        if self.scope.starve_s:
            settings.append(self._starvation_table())
        return [
            StudyPart(
                title="Fig. 10(a) to (c): the scheduler alone",
                tables=[self._axis_table(axis) for axis in AXES],
                charts=[self._axis_chart(axis) for axis in AXES],
            ),
            StudyPart(
                title="Fig. 10(d): quanta, and other orders",
                tables=[*settings, self._orders_table()],
                charts=[self._ratio_chart()],
            ),
        ]

    # ---- over rate, CV and theta -------------------------------------------------------------------

    def _axis_table(self, axis: str) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, point in self.points(axis).items():
            means = [self.mean(point, policy, mean_jct_s) for policy in _SHOWN]
            gains = [self.gain(point, policy) for policy in _SHOWN[1:]]
            rows.append([f"{setting:g}", point.rate_rps, *means, *gains])
        return self.table(
            f"fig10-{axis}",
            f"Mean job completion time in seconds, and over fastserve's ({SINGLE.title})",
            [
                *(ABLATED_HEADINGS[axis], "req/s"),
                *map(label, _SHOWN),
                *(f"{policy} over fastserve" for policy in _SHOWN[1:]),
            ],
            rows,
        )

    def _axis_chart(self, axis: str) -> Chart:
        curves = {label(policy): policy for policy in _SHOWN}
        return self.jct_chart(
            f"fig10-{axis}",
            SINGLE,
            self.points(axis),
            curves,
            ABLATED_HEADINGS[axis],
            doubling=axis == CV_AXIS,
        )

    # ---- quanta ------------------------------------------------------------------------------------

    def swept(self, policy: str, setting: str) -> dict[float, float | None]:
        """Value of a setting of the queues -> mean JCT."""
        points = self.scope.quantum_points(policy, self.capacity_rps)
        return {
            value: self.mean(point, policy, mean_jct_s)
            for (name, value), point in points.items()
            if name == setting
        }

    def _settings_table(self) -> StudyTable:
        rows: list[list[Value]] = []
        for setting, said_as in _SETTINGS.items():
            found = {policy: self.swept(policy, setting) for policy in SCHEDULERS}
            for value in found[FASTSERVE]:
                rows.append([said_as, f"{value:g}", *(found[policy][value] for policy in SCHEDULERS)])
            rows.append(
                [said_as, "most / least", *(sensitivity(found[policy].values()) for policy in SCHEDULERS)]
            )
        return self.table(
            "fig10-quanta",
            f"Mean job completion time in seconds at load {OVERLOAD:g} against the quanta ({SINGLE.title})",
            ["setting", "value", *map(label, SCHEDULERS)],
            rows,
            f"A decode step of one job takes {1e3 * SINGLE.decode_step_s():.1f} ms, a quantum is twice the one above.",
            keys=2,
        )

    def _ratio_chart(self) -> Chart:
        curves = {label(policy): [*self.swept(policy, "ratio").items()] for policy in SCHEDULERS}
        return chart(
            "fig10-ratio",
            f"Mean JCT at load {OVERLOAD:g}, {SINGLE.title}",
            curves,
            "quantum ratio, simulated",
            "seconds",
        )

    def _starvation_table(self) -> StudyTable:
        rows: list[list[Value]] = [
            [f"{starve_s:g}", *(self.mean(point, FASTSERVE, number) for number in LATENCIES)]
            for starve_s, point in self.scope.starved(self.capacity_rps).items()
        ]
        return self.table(
            "starvation",
            f"How long a job waits before it is promoted, at load {OVERLOAD:g} ({SINGLE.title})",
            ["seconds", "mean JCT s", "p99 JCT s"],
            rows,
            "The later version's text has 0.3 s; the released code 3 s, which is the preset's.",
        )

    def _orders_table(self) -> StudyTable:
        point = self.scope.stressed(self.capacity_rps)
        rows: list[list[Value]] = []
        for policy in dict.fromkeys([*SCHEDULERS, *self.scope.other_orders]):
            numbers = [self.mean(point, policy, number) for number in LATENCIES]
            paper = PAPER_FIXED_GAIN if policy == FIXED_PRIORITY else None
            rows.append([label(policy), *numbers, self.gain(point, policy), paper])
        return self.table(
            "orders",
            f"Other orders at load {OVERLOAD:g} ({SINGLE.title})",
            ["policy", "mean JCT s", "p99 JCT s", "over fastserve's mean", "paper: up to"],
            rows,
            "The paper's gain over fixed priority is of its later version, over shares of prompts and answers.",
        )

    # ---- what the paper says -----------------------------------------------------------------------

    def claims(self) -> list[Claim]:
        """Statements of sections 4.1 and 6.3 about the queues."""
        return [
            *_iteration_claims(),
            *self._rate_claims(),
            *self._theta_claims(),
            *self._quantum_claims(),
            *self._order_claims(),
        ]

    def _over(self, policy: str, axis: str) -> list[float | None]:
        """A policy's mean relative to fastserve's along an axis."""
        return [self.gain(point, policy) for point in self.points(axis).values()]

    def _rate_claims(self) -> Iterable[Claim]:
        points = self.points(RATE_AXIS)
        lowest = next(iter(points.values()))
        alike = sensitivity(self.mean(lowest, policy, mean_jct_s) for policy in _SHOWN)
        yield Claim(
            where="Fig. 10(a)",
            says="at low rates all three schedulers are alike, and first come, first served",
            paper="1",
            ours=times(alike),
            verdict=judged(as_gain(alike, 1)),
            reason=reason_of(
                alike,
                {
                    f"without {PREEMPT}": sensitivity(
                        self.mean(lowest, policy, mean_jct_s) for policy in _SHOWN if policy != PREEMPT
                    )
                },
                1,
            ),
        )
        killed = self._over(PREEMPT, RATE_AXIS)
        yield Claim(
            where="Fig. 10(a)",
            says="with the rate, mlfq-preempt loses time to work done again",
            paper="rising",
            ours=" ".join(map(times, killed)),
            verdict=judged(as_trend(killed, rising=True)),
        )
        mine, theirs = (self._knee_rps(policy) for policy in (FASTSERVE, NO_PREEMPT))
        yield Claim(
            where="Fig. 10(a)",
            says=f"mlfq-no-preempt rises sharply just above {PAPER_FULL_RPS:g} req/s, fastserve later",
            paper=f"{PAPER_FULL_RPS:g}",
            ours=f"{times(theirs)}, fastserve {times(mine)}",
            verdict=judged(as_above_one(ratio(mine, theirs))),
            reason=self._why_of_skipping(),
        )

    def _why_of_skipping(self) -> str:
        """The time of mlfq-no-preempt relative to fastserve, with quanta that more prompts outlast."""
        point = self.scope.stressed(self.capacity_rps)
        mine, theirs = (self.swept(policy, "quantum") for policy in (FASTSERVE, NO_PREEMPT))
        shortest, longest = min(mine), max(mine)
        tried = {
            f"first quanta of {steps:g} decode steps": ratio(theirs[steps], mine[steps])
            for steps in (shortest, longest)
        }
        return (
            f"at load {OVERLOAD:g} mlfq-no-preempt over fastserve: "
            f"{reason_of(self.gain(point, NO_PREEMPT), tried, inf)}"
        )

    def _knee_rps(self, policy: str) -> float | None:
        """The rate at which a policy's mean has doubled."""
        found = self.knee(self.points(RATE_AXIS), policy)
        return found.setting * self.capacity_rps(ABLATED) if found and found.missed else None

    def _theta_claims(self) -> Iterable[Claim]:
        gaps = self._over(NO_PREEMPT, THETA_AXIS)
        yield Claim(
            where="Fig. 10(c)",
            says="the less skewed the lengths, the larger the gap of mlfq-no-preempt",
            paper="falling in theta",
            ours=" ".join(map(times, gaps)),
            verdict=judged(as_trend(gaps, rising=False)),
            reason=self._why_of_skipping(),
        )
        points = [point for axis in AXES for point in self.points(axis).values()]
        worse = span(self.ratio(point, NO_PREEMPT, FCFS, mean_jct_s) for point in points)
        yield Claim(
            where="section 4.1",
            says="without skip-join MLFQ becomes round robin, at times worse than first come, first served",
            paper="above 1",
            ours=said(worse),
            verdict=judged(as_above_one(None if worse is None else worse[1])),
            reason=self._why_of_skipping(),
        )

    def _quantum_claims(self) -> Iterable[Claim]:
        mine = sensitivity(self.swept(FASTSERVE, "ratio").values())
        yield Claim(
            where="Fig. 10(d)",
            says="fastserve is insensitive to the quantum ratio",
            paper="1",
            ours=times(mine),
            verdict=judged(as_gain(mine, 1)),
            reason=reason_of(
                mine,
                {"the first quantum varied instead": sensitivity(self.swept(FASTSERVE, "quantum").values())},
                1,
            ),
        )
        for policy in (PREEMPT, NO_PREEMPT):
            means = [*self.swept(policy, "ratio").values()]
            first = [*self.swept(policy, "quantum").values()]
            yield Claim(
                where="Fig. 10(d)",
                says=f"larger quanta shorten {policy}'s mean",
                paper="falling",
                ours=" ".join(f"{times(mean)} s" for mean in means),
                verdict=judged(as_trend(means, rising=False)),
                reason=f"with the first quantum: {' '.join(map(times, first))} s",
            )

    def _order_claims(self) -> Iterable[Claim]:
        stressed, alone = (
            self.ratio(point, NO_PREEMPT, PREEMPT, mean_jct_s)
            for point in (self.scope.stressed(self.capacity_rps), self.scope.killed_alone(self.capacity_rps))
        )
        yield Claim(
            where="Fig. 10",
            says="blocking costs more than killing: mlfq-no-preempt over mlfq-preempt",
            paper="above 1",
            ours=times(stressed),
            verdict=judged(as_above_one(stressed)),
            reason="a killed step takes the work of its whole batch: "
            f"{reason_of(stressed, {'batches of one': alone}, inf)}",
        )
        if FIXED_PRIORITY in self.scope.other_orders:
            fixed = self.gain(self.scope.stressed(self.capacity_rps), FIXED_PRIORITY)
            yield Claim(
                where="later version",
                says="mean over fixed priority, largest",
                paper=f"{PAPER_FIXED_GAIN:g}",
                ours=times(fixed),
                verdict=judged(as_gain(fixed, PAPER_FIXED_GAIN)),
            )
        starved = self.scope.starved(self.capacity_rps)
        if starved:
            means, tails = (
                [self.mean(p, FASTSERVE, number) for p in starved.values()] for number in LATENCIES
            )
            yield Claim(
                where="section 4.1",
                says="the limit of starvation trades the mean against the tail",
                paper="mean falling, tail rising",
                ours=f"mean {' '.join(map(times, means))} s, p99 {' '.join(map(times, tails))} s",
                verdict=judged(as_trend(means, rising=False), as_trend(tails, rising=True)),
            )


def _iteration_claims() -> Iterable[Claim]:
    """The premise of section 4.1: the first iteration grows with the prompt, the others hardly do."""
    short_prompt, long_prompt = 512, 1024
    firsts = [SINGLE.iteration_s(tokens) for tokens in (short_prompt, long_prompt)]
    later = [SINGLE.iteration_s(1, tokens) for tokens in (short_prompt, long_prompt)]
    growth = firsts[1] / firsts[0], later[1] / later[0]
    yield Claim(
        where="section 4.1",
        says="the first iteration grows about linearly with the prompt",
        paper="2 for twice as long",
        ours=f"{growth[0]:.2f} from {short_prompt} to {long_prompt:,} tokens",
        verdict=judged(as_value(growth[0], long_prompt / short_prompt)),
    )
    yield Claim(
        where="section 4.1",
        says="later iterations hardly grow with it",
        paper="1",
        ours=f"{growth[1]:.2f}",
        verdict=judged(as_gain(growth[1], 1)),
    )
