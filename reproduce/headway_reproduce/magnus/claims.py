"""Every figure, table and stated fact of Magnus's paper, ours beside it, and the tested reason of a difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from math import inf

from headway.statistics import known
from headway_reproduce.claims import (
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
from headway_reproduce.magnus.accuracy import (
    FOREST,
    INPUT_ONLY,
    LEARNED,
    LEARNED_NO_TEXT,
    WITH_INSTRUCTION,
    Accuracy,
)
from headway_reproduce.magnus.cells import (
    CHANGES,
    IN_PLACE,
    LOW_LOAD,
    NEVER_LEARNS,
    NO_TEXT,
    TAUGHT_LITTLE,
    TAUGHT_NO_MORE,
    TRUE_LENGTHS,
    UNCHANGED,
    MagnusChange,
    MagnusPoint,
)
from headway_reproduce.magnus.engine import toy
from headway_reproduce.magnus.findings import GAINS, MAIN_GAINS, MagnusFindings, MagnusGain
from headway_reproduce.magnus.setting import (
    BASELINES,
    CCB,
    MAGNUS,
    PAPER_CORRELATION,
    PAPER_RANGES,
    PAPER_TOY_MAGNUS_S,
    PAPER_TOY_RATIO,
    STEPS,
    VS,
)
from headway_reproduce.study import Range, ratio, span

_RISES = {
    "throughput": "requests/s more",
    "valid_tps": "valid tokens/s more",
    "total_tps": "all tokens/s more",
}
_CUTS = {"mean_rt_cut": "mean response time shorter", "p95_rt_cut": "tail response time shorter"}


class MagnusClaims(MagnusFindings):
    """The table of all statements, judged by ratios above 1 where the paper's direction holds."""

    def claims(self, found: Accuracy) -> list[Claim]:
        """The claims in the order of the paper."""
        return [
            self._correlation(found),
            *self._toy(),
            *self._features(found),
            self._learning(),
            self._halves(),
            *self._figures(),
            self._always(),
            self._best(),
            *self._steps(),
            self._starvation(),
        ]

    # ---- section II ----------------------------------------------------------------------------------

    def _correlation(self, found: Accuracy) -> Claim:
        _, *tasks = found.sets
        alike = [each.name for each in tasks if (each.correlation or 0.0) >= PAPER_CORRELATION]
        unlike = ", ".join(
            f"{each.name} {each.correlation or 0.0:.2f}" for each in tasks if each.name not in alike
        )
        return Claim(
            where="Table I, Fig. 3",
            says="user input and answer go together in most applications",
            paper=f"Pearson's over {PAPER_CORRELATION:g} for most of 18 pairs",
            ours=f"{len(alike)} of {len(tasks)} tasks",
            verdict=judged(as_fact(len(alike) > len(tasks) / 2)),
            reason=f"not in {unlike}" if unlike else "",
        )

    def _toy(self) -> Iterator[Claim]:
        found = toy()
        copied = {"a cache written in place": toy(copies=0.0), "copied at half the rate": toy(copies=2.0)}
        yield Claim(
            where="Fig. 4",
            says="21 requests: 18 small and 3 large, against three batches of 7",
            paper=f"{PAPER_TOY_RATIO:.1f} times as fast",
            ours=f"{found.ratio:.2f}",
            verdict=judged(as_gain(found.ratio, PAPER_TOY_RATIO)),
            reason=reason_of(
                found.ratio, {name: each.ratio for name, each in copied.items()}, PAPER_TOY_RATIO
            ),
        )
        yield Claim(
            where="Fig. 4",
            says="the two batches of Magnus take",
            paper=f"{PAPER_TOY_MAGNUS_S:.0f} s",
            ours=f"{found.magnus_s:.0f} s",
            verdict=judged(as_value(found.magnus_s, PAPER_TOY_MAGNUS_S)),
            reason=reason_of(
                found.magnus_s, {name: each.magnus_s for name, each in copied.items()}, PAPER_TOY_MAGNUS_S
            ),
        )

    # ---- section III: what the parts are said to do --------------------------------------------------

    def _features(self, found: Accuracy) -> Iterator[Claim]:
        errors = {error.way: error.rmse for error in found.sets[0].errors}
        yield _better(
            "III-B",
            "the instruction's meaning helps to predict",
            errors[INPUT_ONLY],
            errors[WITH_INSTRUCTION],
            reason="",
        )
        helps = ratio(errors[WITH_INSTRUCTION], errors[FOREST])
        words = {"the words themselves, by `learned`": ratio(errors[LEARNED_NO_TEXT], errors[LEARNED])}
        yield _better(
            "III-B",
            "the input's meaning helps to predict",
            errors[WITH_INSTRUCTION],
            errors[FOREST],
            reason=f"hashed words, no LaBSE; error without over with: {reason_of(helps, words, inf)}; without them "
            f"{self._at_load(NO_TEXT)}",
        )

    def _learning(self) -> Claim:
        point = MagnusPoint(load=self._load())
        with_it, without, little, taught_no_more = (
            self.value(self._changed(change), MAGNUS, "length_rmse")
            for change in (UNCHANGED, NEVER_LEARNS, TAUGHT_LITTLE, TAUGHT_NO_MORE)
        )
        tried = {"taught with a row in fifty": ratio(taught_no_more, little)}
        return _better(
            "III-B",
            "learning while serving makes predictions better",
            without,
            with_it,
            reason=f"{self.value(point, MAGNUS, 'refits') or 0.0:.0f} fits in a run; error without over with: "
            f"{reason_of(ratio(without, with_it), tried, inf)}",
        )

    def _halves(self) -> Claim:
        point = MagnusPoint(load=self._load())
        oom, again, batches = (
            self.value(point, MAGNUS, key) or 0.0 for key in ("oom", "oom_again", "batches")
        )
        first = (oom - again) / max(1.0, batches - 2 * oom)
        second = again / (2 * oom) if oom else None
        return Claim(
            where="III-F",
            says="halves of a batch that ran out of memory hardly ever do so again",
            paper="the chance is much smaller",
            ours="none ran out"
            if second is None
            else f"{second:.0%} of halves, {first:.0%} of other batches",
            verdict=judged(None if second is None else as_fact(second < first / 2)),
            reason=f"with true lengths {self.value(self._changed(TRUE_LENGTHS), MAGNUS, 'oom') or 0.0:.0f} run out "
            f"in place of {oom:.0f}",
        )

    # ---- section IV: figures 8 to 11 -----------------------------------------------------------------

    def _figures(self) -> Iterator[Claim]:
        for key, says in {**_RISES, **_CUTS}.items():
            gain = GAINS[key]
            ours = self.span(self.overloaded(), gain)
            yield Claim(
                where="Fig. 9" if key in ("valid_tps", "total_tps") else "Fig. 8",
                says=f"{says}, over each of {', '.join(BASELINES)}",
                paper=_percent(PAPER_RANGES[key]),
                ours=_percent(ours),
                verdict=judged(
                    *(
                        as_gain(_ratio(mine, gain), _times(theirs, gain))
                        for mine, theirs in zip(ours or (None, None), PAPER_RANGES[key], strict=True)
                    )
                ),
                reason=self._reasons(gain, _times(PAPER_RANGES[key][0], gain)),
            )

    def _reasons(self, gain: MagnusGain, paper: float) -> str:
        """The least gain over ccb at the highest rate, unchanged and with one thing changed."""
        tried: dict[str, Numbers] = {
            name: self._times_ccb(change, gain) for name, change in CHANGES.items() if change != NO_TEXT
        }
        return f"over ccb, where none can follow: {reason_of(self._times_ccb(UNCHANGED, gain), tried, paper)}"

    def _times_ccb(self, change: MagnusChange, gain: MagnusGain, load: float | None = None) -> float | None:
        point = self._changed(change) if load is None else MagnusPoint(load=load, change=change)
        return _ratio(self.gain(point, MAGNUS, CCB, gain), gain)

    def _always(self) -> Claim:
        points = self.scope.rates()
        cut = GAINS["mean_rt_cut"]
        changes = {"true lengths": TRUE_LENGTHS, "a cache written in place": IN_PLACE}
        sooner = {
            base: [as_above_one(_ratio(self.gain(point, MAGNUS, base, cut), cut)) for point in points]
            for base in BASELINES
        }
        behind = [
            f"{point.load:g}"
            for point, held in zip(points, sooner[CCB], strict=True)
            if held is not Held.SIZE
        ]
        return Claim(
            where="Fig. 8",
            says="sooner than every baseline at every rate",
            paper="always",
            ours=", ".join(
                f"{base} at {held.count(Held.SIZE)} of {len(held)} rates" for base, held in sooner.items()
            ),
            verdict=judged(*chain.from_iterable(sooner.values())),
            reason=f"ccb answers sooner at {', '.join(behind)} of vs's capacity; at {LOW_LOAD:g} its mean over ours: "
            + reason_of(
                self._times_ccb(UNCHANGED, cut, LOW_LOAD),
                {name: self._times_ccb(change, cut, LOW_LOAD) for name, change in changes.items()},
                inf,
            )
            if behind
            else "",
        )

    def _best(self) -> Claim:
        points = self.scope.rates()
        more, shorter = GAINS["throughput"], GAINS["mean_rt_cut"]
        most = max((self.gain(point, MAGNUS, VS, more) or 0.0, point.load) for point in points)
        cut = max(self.gain(point, MAGNUS, VS, shorter) or 0.0 for point in points)
        paper = (PAPER_RANGES["throughput"][1], PAPER_RANGES["mean_rt_cut"][1])
        return Claim(
            where="abstract",
            says="at best over vs: requests/s more, response time shorter",
            paper=f"{paper[0]:.0%}, {paper[1]:.1%}",
            ours=f"{most[0]:.0%}, {cut:.1%}",
            verdict=judged(
                as_gain(1 + most[0], 1 + paper[0]), as_gain(_times(cut, shorter), _times(paper[1], shorter))
            ),
            reason=f"at {most[1]:g} of vs's capacity; in overload the mean of vs grows with the length of a run",
        )

    def _steps(self) -> Iterator[Claim]:
        for before, after in pairwise(STEPS):
            gains = {
                gain: [self.gain(point, after, before, gain) for point in self.scope.rates()]
                for gain in MAIN_GAINS
            }
            yield Claim(
                where="Fig. 10, 11",
                says=f"from {before} to {after}: more requests/s, shorter response time",
                paper="a gain at every rate",
                ours="; ".join(_percent(span(each)) for each in gains.values()),
                verdict=judged(
                    *(as_above_one(_ratio(each, gain)) for gain, found in gains.items() for each in found)
                ),
                reason=self._why_of_step(before, after),
            )

    def _why_of_step(self, before: str, after: str) -> str:
        """The smallest of both gains at any rate, and at the rates where no baseline keeps up."""

        def least(points: Iterable[MagnusPoint]) -> list[float | None]:
            rates = list(points)
            return [
                min(
                    known(_ratio(self.gain(point, after, before, gain), gain) for point in rates),
                    default=None,
                )
                for gain in MAIN_GAINS
            ]

        overloaded = {"rates that no baseline can follow": least(self.overloaded())}
        return f"least gains: {reason_of(least(self.scope.rates()), overloaded, inf)}"

    def _starvation(self) -> Claim:
        tails = [
            [self.value(point, step, "p95_rt_s") or 0.0 for point in self.scope.rates()]
            for step in STEPS[-2:]
        ]
        longest = max(after / before for before, after in zip(*tails, strict=True))
        return Claim(
            where="III-E",
            says="short batches first, and none waits for ever",
            paper="the tail does not pay for the mean",
            ours=f"95th percentile at most {longest:.2f} times that of first come, first served",
            verdict=judged(as_cost(longest, 1)),
        )

    # ---- what they are judged by ---------------------------------------------------------------------

    def _load(self) -> float:
        """The highest rate of the variations."""
        return max(point.load for points in self.scope.changed().values() for point in points)

    def _changed(self, change: MagnusChange) -> MagnusPoint:
        return MagnusPoint(load=self._load(), change=change)

    def _at_load(self, change: MagnusChange) -> str:
        rps, plain = (
            self.value(self._changed(each), MAGNUS, "throughput_rps") or 0.0 for each in (change, UNCHANGED)
        )
        return f"{rps:.1f} requests/s in place of {plain:.1f}"


def _better(where: str, says: str, before: float | None, after: float | None, *, reason: str) -> Claim:
    """An error that should fall."""
    return Claim(
        where=where,
        says=says,
        paper="smaller errors",
        ours="not known"
        if before is None or after is None
        else f"RMSE {after:.2f} tokens, {before:.2f} without",
        verdict=judged(as_above_one(ratio(before, after))),
        reason=reason,
    )


def _ratio(found: float | None, gain: MagnusGain) -> float | None:
    return None if found is None else _times(found, gain)


def _times(found: float, gain: MagnusGain) -> float:
    """A gain as a ratio: times as many, or times as short."""
    return 1 / (1 - min(found, 0.999)) if gain.shorter else 1 + found


def _percent(found: Range | None) -> str:
    return "not run" if found is None else f"{found[0]:.0%} to {found[1]:.0%}"
