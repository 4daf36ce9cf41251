"""Every figure, table and stated fact of the paper, ours beside it, and whether it was reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from headway.core.batch_shape import StepKind
from headway.predict.models.known_models import model_shape
from headway.statistics import known
from headway_reproduce.ascendra.ablations import HP, LP, Ablation
from headway_reproduce.ascendra.cells import (
    BREAKDOWN_LOAD,
    CASE_LOAD,
    FIGURE_2_INSTANCES,
    FIGURE_2_LOAD,
    LLAMA,
    LONGBENCH,
    MAIN,
    MISTRAL,
    NARROW,
    PAIR_CASE,
    PAIR_LOADS,
    QWEN,
    REGION_LOADS,
    SCALE_RATES,
    SHARED_KERNEL,
    SHAREGPT,
    SPLIT_LOAD,
    TBT_S,
    UNCHANGED,
    WORKLOADS,
    AscendraCase,
    AscendraChange,
)
from headway_reproduce.ascendra.example import OWN, PICKED, figure_1, missed
from headway_reproduce.ascendra.findings import dropped, late
from headway_reproduce.ascendra.run import QUANTILES
from headway_reproduce.ascendra.services import (
    ASCENDRA,
    BASELINES,
    FIRST_COME,
    FIXED,
    FIXED_NARROW,
    HEADWAY,
    INSTANCES,
    NO_HAND_OFF,
    NO_TICKET,
    PAIR,
    PURE_EDF,
    SARATHI,
    SARATHI_512,
    SHORTEST,
    SJF,
    SPLITS,
    SYSTEMS,
    Service,
    with_order,
)
from headway_reproduce.claims import (
    EQUAL,
    Claim,
    Held,
    Numbers,
    as_above_one,
    as_cost,
    as_fact,
    as_gain,
    as_value,
    judged,
    reason_of,
)
from headway_reproduce.study import ratio

PAPER_QWEN_RPS = {"vllm-v0": 2.55, "sarathi": 2.8, "ascendra": 2.8}
"""The paper's only absolute rates: those at which Qwen-14B, on ShareGPT, still keeps nine in ten within targets."""
PAPER_GAINS = {
    AscendraCase(MISTRAL, SHAREGPT): (1.191, 1.174),
    AscendraCase(LLAMA, LONGBENCH): (1.154, 1.154),
    AscendraCase(QWEN, SHAREGPT): (2.8 / 2.55, 1.0),
}
"""Gains in goodput over vLLM and Sarathi; no other case has a number."""
PAPER_MOST_GAIN = 1.7
"""Requests within their targets relative to the better of both (abstract)."""
PAPER_IN_SLO_GAIN, PAPER_LOSS_RATIO = 1.74, 0.5
"""In overload: requests within their targets relative to the others; dropped and late ones likewise ("nearly
halved").
"""
PAPER_TIGHTER = 4.0
"""Targets tighter by up to this factor are still met by nine in ten."""
PAPER_TICKET_GAIN, PAPER_DELAY_RATIO = 1.5, 4.0
"""Use of the high-priority instances with tickets over without; the low-priority pool's wait over the high-priority
pool's.
"""
PAPER_MODEL_ERROR = 0.10
"""The relative error of predicted step times stays below it, mostly."""

Number = float | None


def _said(number: Number, digits: int = 2) -> str:
    return "not known" if number is None else f"{number:.{digits}f}"


class AscendraClaims(Ablation):
    """The table of all claims, without those of runs that the quick part leaves out."""

    def claims(self) -> Iterator[Claim]:
        """The rows in the order of the paper."""
        yield self._figure_1()
        yield self._table_1()
        if not self.scope.quick:
            yield from self._figure_2()
        yield self._figure_6()
        yield from self._figure_9()
        yield from self._qwen()
        yield self._tighter()
        yield from self._figure_10()
        yield self._tickets()
        yield from self._figure_11()
        yield from self._figure_12()
        yield from self._figure_13()
        yield self._abstract()

    def _over(
        self, service: Service, load: float, change: AscendraChange = UNCHANGED, case: AscendraCase = MAIN
    ) -> Number:
        """Ascendra's goodput relative to another's, with one seed."""
        return ratio(*(self.changed_goodput(each, load, change, case) for each in (ASCENDRA, service)))

    # ---- single figures ------------------------------------------------------------------------------

    def _figure_1(self) -> Claim:
        picked, own = missed(figure_1(PICKED)), missed(figure_1(OWN))
        return Claim(
            where="Figure 1",
            says="vLLM misses E, Ascendra nothing",
            paper="E; nothing",
            ours=f"{picked['vllm-v0']}; {picked['ascendra']}",
            verdict=judged(as_fact(picked == {"vllm-v0": "E", "ascendra": "nothing"})),
            reason=f"threshold picked for it ({PICKED:g}); with the preset's {OWN:g} Ascendra misses {own['ascendra']}",
        )

    def _table_1(self) -> Claim:
        paper = {"Llama-3.1-8B": 0.24, "Llama-3.1-70B": 0.61}
        ours = {name: 2000 * model_shape(name).kv_bytes_per_token / 2**30 for name in paper}
        return Claim(
            where="Table 1",
            says="KV of 2,000 tokens, GiB: Llama-3.1 8B, 70B",
            paper=", ".join(f"{size:.2f}" for size in paper.values()),
            ours=", ".join(f"{size:.2f}" for size in ours.values()),
            verdict=judged(*(as_value(ours[name], paper[name]) for name in paper)),
        )

    def _figure_2(self) -> Iterator[Claim]:
        def times_s(name: str, instances: int) -> Sequence[float]:
            return self.at_load(FIGURE_2_LOAD, with_order(name, instances)).ttft_s

        fcfs, sjf = times_s(FIRST_COME, 1), times_s(SHORTEST, 1)
        middle = QUANTILES // 2
        yield Claim(
            where="Figure 2",
            says="shortest first: most times shorter, a longer tail; median and largest TTFT, s",
            paper="shorter; longer",
            ours=f"{fcfs[middle]:.2f} to {sjf[middle]:.2f}; {fcfs[-1]:.1f} to {sjf[-1]:.1f}",
            verdict=judged(as_above_one(fcfs[middle] / sjf[middle]), as_above_one(sjf[-1] / fcfs[-1])),
        )
        tails = [
            times_s(SHORTEST, count)[-1] / times_s(SHORTEST, count)[middle] for count in FIGURE_2_INSTANCES
        ]
        yield Claim(
            where="Figure 2",
            says="more GPUs alone do not remove the tail; largest over median TTFT with 1 to 4",
            paper="a tail remains",
            ours=", ".join(f"{tail:.0f}" for tail in tails),
            verdict=judged(as_fact(tails[-1] > 2)),
        )

    def _figure_6(self) -> Claim:
        errors = {kind: self.step_error(kind) for kind in (StepKind.PREFILL, StepKind.MIXED)}
        return Claim(
            where="Figure 6",
            says="error of predicted step times, prompts and mixed steps",
            paper=f"mostly below {PAPER_MODEL_ERROR:.0%}",
            ours=", ".join("not seen" if error is None else f"{error:.1%}" for error in errors.values()),
            verdict=judged(*(as_cost(error, PAPER_MODEL_ERROR) for error in errors.values())),
        )

    # ---- goodput -------------------------------------------------------------------------------------

    def _figure_9(self) -> Iterator[Claim]:
        for case in self.scope.cases:
            for over, paper in zip(BASELINES, PAPER_GAINS.get(case, (None, None)), strict=True):
                ours = self.rate_gain(case, over)
                yield Claim(
                    where="Figures 9, 14" if paper is None else "Figure 9",
                    says=f"{case}: rate at 90 % goodput over {over.name}",
                    paper="more (no number)" if paper is None else _said(paper, 3),
                    ours=_said(ours),
                    verdict=judged(as_above_one(ours) if paper is None else as_gain(ours, paper)),
                    reason=self._why_of_gain(case, over, paper or inf),
                )

    def _why_of_gain(self, case: AscendraCase, over: Service, paper: float) -> str:
        """Ascendra's goodput relative to another's at one load, unchanged and with one thing changed."""
        tried: dict[str, Numbers]
        if case == MAIN:
            load = self.scope.busy_loads[-1]
            tried = {
                "one kernel for prompts and decodes": self._over(over, load, SHARED_KERNEL),
                "targets of 2 s and 35 ms": self._over(over, load, NARROW),
            }
            if over == SARATHI:
                tried["512 tokens a step for sarathi alone"] = self._over(SARATHI_512, load)
            return f"goodput at load {load:g}: {reason_of(self._over(over, load), tried, paper)}"
        tried = {
            change.name: self._over(over, CASE_LOAD, change, case) for change in self.scope.case_changes(case)
        }
        stands = ratio(*(self.at_load(CASE_LOAD, each, case=case).goodput for each in (ASCENDRA, over)))
        return f"goodput at load {CASE_LOAD:g}: {reason_of(stands, tried, paper)}"

    def _qwen(self) -> Iterator[Claim]:
        case = AscendraCase(QWEN, SHAREGPT)
        for service in (*BASELINES, ASCENDRA):
            ours, paper = self.rate_at_good(case, service), PAPER_QWEN_RPS[service.name]
            yield Claim(
                where="Section 8.2",
                says=f"{case}: requests a second that {service.name} holds",
                paper=f"{paper:g}",
                ours=_said(ours),
                verdict=judged(as_value(ours, paper)),
                reason="sarathi, all at once: "
                + reason_of(
                    self.reference_rps(case),
                    {change.name: self.reference_rps(case, change) for change in WORKLOADS},
                    PAPER_QWEN_RPS[SARATHI.name],
                ),
            )

    def _tighter(self) -> Claim:
        found = {service.name: self.least_scale(1.0, service) for service in SYSTEMS}
        mine = found.pop(ASCENDRA.name)
        best = min((scale for scale in found.values() if scale is not None), default=None)
        loosest = self.scope.scales[-1]
        return Claim(
            where="Figure 9, row 2",
            says="targets held by nine in ten at Ascendra's capacity: smallest factor, Ascendra and the best other",
            paper=f"down to {1 / PAPER_TIGHTER:g}; tighter than the others",
            ours=f"{f'over {loosest:g}' if mine is None else _said(mine)}; {_said(best)}",
            verdict=judged(as_fact(False))
            if mine is None
            else judged(as_cost(mine, 1 / PAPER_TIGHTER), as_above_one(ratio(best, mine))),
            reason=reason_of(
                loosest if mine is None else mine,
                {
                    f"at {share:g} of capacity": self.least_scale(share, ASCENDRA)
                    for share in SCALE_RATES
                    if share < 1
                },
                1 / PAPER_TIGHTER,
            ),
        )

    # ---- the parts -----------------------------------------------------------------------------------

    def _figure_10(self) -> Iterator[Claim]:
        def at(service: Service, name: str) -> Number:
            return self.mean(MAIN, BREAKDOWN_LOAD, service, lambda result: getattr(result, name))

        tails = {service.name: at(service, "p99_ttft_s") for service in SYSTEMS}
        mine, *others = (value or 0.0 for value in tails.values())
        yield Claim(
            where="Figure 10a",
            says="P99 TTFT: lower than vLLM's and Sarathi's, s",
            paper="lower",
            ours="; ".join(f"{name} {_said(value)}" for name, value in tails.items()),
            verdict=judged(*(as_above_one(ratio(other, mine)) for other in others)),
            reason="the better other over Ascendra's: "
            + reason_of(
                self._sooner(ASCENDRA, BASELINES),
                {
                    "all drop what is late": self._sooner(
                        ASCENDRA.shedding(), [service.shedding() for service in BASELINES]
                    ),
                    "by deadline alone on LP": self._sooner(PURE_EDF, BASELINES),
                },
                inf,
            ),
        )
        mean_s = at(ASCENDRA, "mean_tbt_s") or 0.0
        gaps = {service.name: self.gap_s(service) for service in SYSTEMS}
        yield Claim(
            where="Figure 10b",
            says=f"mean TBT within {TBT_S:g} s",
            paper="within",
            ours=f"{mean_s:.3f} s",
            verdict=judged(as_cost(mean_s, TBT_S)),
            reason="P99 of single gaps: "
            + ", ".join(f"{name} {_said(gap, 3)}" for name, gap in gaps.items()),
        )
        delays = self.delays()
        times = ratio(delays[LP], delays[HP])
        yield Claim(
            where="Figure 10d",
            says="LP's wait over HP's",
            paper=f"about {PAPER_DELAY_RATIO:g}",
            ours=_said(times),
            verdict=judged(as_gain(times, PAPER_DELAY_RATIO)),
            reason=f"{_said(delays[LP], 3)} and {_said(delays[HP], 3)} s at load {BREAKDOWN_LOAD:g}; "
            + reason_of(
                times,
                {
                    "no tickets": self._waits(NO_TICKET, BREAKDOWN_LOAD),
                    f"load {self.scope.busy_loads[-1]:g}": self._waits(ASCENDRA, self.scope.busy_loads[-1]),
                },
                PAPER_DELAY_RATIO,
            ),
        )

    def _sooner(self, mine: Service, others: Sequence[Service]) -> Number:
        """The smallest P99 TTFT of the others relative to one's own."""
        own, *theirs = (self.at_load(BREAKDOWN_LOAD, each).p99_ttft_s for each in (mine, *others))
        return ratio(min(known(theirs), default=None), own)

    def _waits(self, service: Service, load: float) -> Number:
        """The mean wait at low-priority instances relative to high-priority ones."""
        pools = self.at_load(load, service).pools
        return ratio(pools[LP].delay_s, pools[HP].delay_s)

    def _tickets(self) -> Claim:
        use = self.ticket_use()
        gain = ratio(use["with"], use["without"])
        return Claim(
            where="Section 6.1",
            says="HP's use at light load with tickets over without",
            paper=f"up to {PAPER_TICKET_GAIN:g}",
            ours=f"{_said(use['with'])} over {_said(use['without'])}",
            verdict=judged(as_fact((use["with"] or 0.0) > EQUAL * (use["without"] or 0.0))),
            reason="without tickets HP has next to nothing to do"
            if gain is None or gain > PAPER_TICKET_GAIN
            else "",
        )

    def _figure_11(self) -> Iterator[Claim]:
        def beside(service: Service) -> list[tuple[float, float]]:
            """Ascendra's goodput and another's at each busy load."""
            return [
                (self.mean(MAIN, load, ASCENDRA) or 0.0, self.mean(MAIN, load, service) or 0.0)
                for load in self.scope.busy_loads
            ]

        orders, pairs = beside(SJF), beside(FIXED)
        yield Claim(
            where="Figure 11, left",
            says="urgency first beats shortest first, goodput at busy loads",
            paper="better",
            ours="; ".join(f"{mine:.3f} : {theirs:.3f}" for mine, theirs in orders),
            verdict=judged(*(as_above_one(ratio(*pair)) for pair in orders)),
            reason=reason_of(
                ratio(*orders[-1]),
                {"targets of 2 s and 35 ms": self._over(SJF, REGION_LOADS[-1], NARROW)},
                inf,
            ),
        )
        yield Claim(
            where="Figure 11, right",
            says="elastic batch at HP beats a fixed one at high rates",
            paper="better",
            ours="; ".join(f"{mine:.3f} : {theirs:.3f}" for mine, theirs in pairs),
            verdict=judged(*(as_above_one(ratio(*pair)) for pair in pairs)),
            reason="over a fixed 128: "
            + reason_of(
                [ratio(*pair) for pair in pairs],
                {"over a fixed 32": [self._over(FIXED_NARROW, load) for load in self.scope.busy_loads]},
                inf,
            ),
        )

    def _figure_12(self) -> Iterator[Claim]:
        most = max(
            self.scope.overloads, key=lambda over: min(self.overload_gain(over, each) for each in BASELINES)
        )
        gains = [self.overload_gain(most, each) for each in BASELINES]
        yield Claim(
            where="Figure 12",
            says=f"in time at {most:g} of capacity over vLLM and Sarathi, all dropping what is late",
            paper=f"{PAPER_IN_SLO_GAIN:g}",
            ours=", ".join(f"{gain:.2f}" for gain in gains),
            verdict=judged(*(as_gain(gain, PAPER_IN_SLO_GAIN) for gain in gains)),
            reason=self._why_of_overload(gains),
        )
        mine, *others = (
            self.overload_share(each, most, dropped) + self.overload_share(each, most, late)
            for each in (ASCENDRA, *BASELINES)
        )
        losses = [ratio(mine, other) for other in others]
        yield Claim(
            where="Figure 12",
            says="dropped and late over theirs",
            paper=f"{PAPER_LOSS_RATIO:g}",
            ours=", ".join(map(_said, losses)),
            verdict=judged(*(as_gain(loss, PAPER_LOSS_RATIO) for loss in losses)),
            reason=self._why_of_overload(gains),
        )

    def _why_of_overload(self, gains: Sequence[float]) -> str:
        """Requests in time relative to the others where nothing is dropped, and where low-priority instances keep
        requests that they cannot serve in time.
        """
        most_load, most = self.scope.loads[-1], self.scope.overloads[-1]
        kept, *others = (
            self.result(self.scope.overload_run(service, most * self.capacity_rps(), 0)).goodput
            for service in (NO_HAND_OFF, *BASELINES)
        )
        tried: dict[str, Numbers] = {
            f"nothing is dropped, load {most_load:g}": [
                ratio(self.mean(MAIN, most_load, ASCENDRA), self.mean(MAIN, most_load, each))
                for each in BASELINES
            ],
            "no hand-off": [ratio(kept, other) for other in others],
        }
        return f"in time: {reason_of(gains, tried, PAPER_IN_SLO_GAIN)}"

    def _figure_13(self) -> Iterator[Claim]:
        pairs = {
            load: [
                self.at_load(load * len(PAIR[0].engines) / INSTANCES, each, case=PAIR_CASE).goodput
                for each in PAIR
            ]
            for load in PAIR_LOADS
        }
        least, most = (ratio(mine, max(others)) for mine, *others in pairs.values())
        yield Claim(
            where="Figure 13, left",
            says=f"{PAIR_CASE}: 1 LP and 1 HP beat two equal instances; goodput of Ascendra, vLLM, Sarathi",
            paper="better",
            ours="; ".join(
                f"load {load:g} {' : '.join(f'{share:.3f}' for share in shares)}"
                for load, shares in pairs.items()
            ),
            verdict=judged(
                *(as_above_one(ratio(mine, other)) for mine, *others in pairs.values() for other in others)
            ),
            reason="over the better: "
            + reason_of(least, {f"load {PAIR_LOADS[-1]:g} in place of {PAIR_LOADS[0]:g}": most}, inf),
        )
        splits = self.split_goodputs()
        other, busy = SPLITS["1L2H"], self.scope.busy_loads[-1]
        yield Claim(
            where="Figure 13, right",
            says="2 LP and 1 HP beat 1 LP and 2 HP",
            paper="better",
            ours=f"{_said(splits['2L1H'], 3)} : {_said(splits['1L2H'], 3)}",
            verdict=judged(as_above_one(ratio(splits["2L1H"], splits["1L2H"]))),
            reason=reason_of(
                ratio(splits["2L1H"], splits["1L2H"]),
                {
                    "one kernel for prompts and decodes": self._over(other, SPLIT_LOAD, SHARED_KERNEL),
                    "targets of 2 s and 35 ms": self._over(other, SPLIT_LOAD, NARROW),
                    f"load {busy:g}": self._over(other, busy),
                },
                inf,
            ),
        )

    def _abstract(self) -> Claim:
        found = [
            (mine / max(others), load)
            for load in self.scope.loads
            for mine, *others in [[self.mean(MAIN, load, each) or 0.0 for each in SYSTEMS]]
            if max(others)
        ]
        best, load = max(found)
        held = as_gain(best, PAPER_MOST_GAIN) or Held.NOT
        narrow = [self.changed_goodput(service, REGION_LOADS[-1], NARROW) for service in (ASCENDRA, HEADWAY)]
        return Claim(
            where="Abstract",
            says=f"{MAIN}: up to so many times what the better of vLLM and Sarathi has in time",
            paper=f"{PAPER_MOST_GAIN:g}",
            ours=f"{_said(best)} at load {load:g}",
            # In overload a ratio grows with the length of a run, so it shows the direction alone.
            verdict=judged(held if load <= 1 else min(held, Held.DIRECTION)),
            reason="; ".join(
                f"over {each.name}, {self._why_of_gain(MAIN, each, PAPER_MOST_GAIN)}" for each in BASELINES
            )
            + f"; at 2 s and 35 ms Ascendra holds {narrow[0]:.2f}, equal instances under headway {narrow[1]:.2f}",
        )
