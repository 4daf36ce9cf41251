"""Ten minutes above capacity, every system dropping what still waits when its first token is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings, mean
from headway_reproduce.ascendra.measures import AscendraResult
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BASELINES,
    MAIN,
    PAPER_IN_SLO_GAIN,
    PAPER_LOSS_RATIO,
    SIMULATED,
    SYSTEMS,
    Service,
)
from headway_reproduce.study_findings import ratio, short

Number = Callable[[AscendraResult], float]


def _met(result: AscendraResult) -> float:
    return result.goodput


def _dropped(result: AscendraResult) -> float:
    return result.dropped / result.requests


def _late(result: AscendraResult) -> float:
    return result.late / result.requests


@dataclass(frozen=True, slots=True)
class Overload:
    """Shares of all requests at one rate: within targets, dropped, and finished late, by system."""

    over: float
    met: dict[str, float]
    dropped: dict[str, float]
    late: dict[str, float]

    def gain(self, over: str) -> float | None:
        """Ascendra's requests within targets over another's."""
        return ratio(self.met[ASCENDRA.name], self.met[over])

    @property
    def best(self) -> str:
        """The baseline with the most within targets."""
        return max((service.name for service in BASELINES), key=self.met.__getitem__)

    def lost_ratio(self, shares: dict[str, float]) -> float | None:
        """Ascendra's share over that of the best baseline."""
        return ratio(shares[ASCENDRA.name], shares[self.best])


def overloads(findings: Findings) -> list[Overload]:
    """Each rate, means over seeds."""
    return [_overload(findings, over) for over in findings.scope.overloads]


def _overload(findings: Findings, over: float) -> Overload:
    def shares(number: Number) -> dict[str, float]:
        return {service.name: _share(findings, service, over, number) for service in SYSTEMS}

    return Overload(over, shares(_met), shares(_dropped), shares(_late))


def handed_off(findings: Findings, over: float) -> float:
    """Ascendra's hand-offs, as a share of all requests."""
    return _share(findings, ASCENDRA, over, lambda result: result.moves / result.requests)


def _share(findings: Findings, service: Service, over: float, number: Number) -> float:
    rate_rps = over * findings.capacity_rps()
    runs = [findings.scope.overload_run(service, rate_rps, seed) for seed in findings.scope.seeds]
    return mean([findings.result(run) for run in runs], number) or 0.0


def overload_part(findings: Findings) -> StudyPart:
    """Within targets, dropped and late, by rate."""
    found = overloads(findings)
    names = [service.name for service in SYSTEMS]
    rows: list[list[Value]] = [
        [
            each.over,
            *(each.met[name] for name in names),
            *(each.dropped[name] for name in names),
            *(each.late[name] for name in names),
        ]
        for each in found
    ]
    table = StudyTable(
        name="overload",
        title=f"Ten minutes in overload, shares of all requests ({MAIN})",
        measured_on=SIMULATED,
        headings=[
            "rate, of Ascendra's capacity",
            *(f"{what}: {name}" for what in ("within", "dropped", "late") for name in names),
        ],
        rows=rows,
        note="Every system drops a request that still waits for its first step when its first token is due. Late ones "
        "finished outside a target.",
        decimals=3,
    )
    return StudyPart(
        title="Overload with shedding",
        text=[*_said(found), _said_of_hand_offs(findings, found)],
        tables=[table],
        charts=[_chart(found, names)],
    )


def _said(found: list[Overload]) -> list[str]:
    most = max(found, key=lambda each: each.gain(each.best) or 0.0)
    v0 = max((each.gain("vllm-v0") or 0.0, each.over) for each in found)
    sarathi = max((each.gain("sarathi") or 0.0, each.over) for each in found)
    return [
        f"At most {v0[0]:.2f} times vllm-v0's requests are within their targets (at {v0[1]:g} of capacity) and "
        f"{sarathi[0]:.2f} times sarathi's (at {sarathi[1]:g}); in the paper {PAPER_IN_SLO_GAIN}. Over the best of the "
        f"three at the same rate: at most {most.gain(most.best) or 0.0:.2f} ({most.best}, at {most.over:g}).",
        f"In the paper dropped and late requests are nearly halved ({PAPER_LOSS_RATIO:g}).",
    ]


def _said_of_hand_offs(findings: Findings, found: list[Overload]) -> str:
    said = ", ".join(f"{handed_off(findings, each.over):.0%} at {each.over:g}" for each in found)
    return (
        f"LP instances hand off {said} of capacity, of all requests, to the one HP instance. They do not know "
        "what waits there; what is too much is dropped there."
    )


def _chart(found: list[Overload], names: list[str]) -> Chart:
    curves = {name: [(each.over, each.met[name]) for each in found] for name in names}
    svg = settings_svg(
        "Overload with shedding",
        curves,
        x_label="rate, of Ascendra's capacity; simulated",
        y_label="share within targets",
        doubling=False,
    )
    return Chart(name="overload", svg=svg)


def overload_data(findings: Findings) -> dict[str, object]:
    """Ratios are over the baseline with the most within targets at that rate; `vs` has each of them."""
    found = overloads(findings)
    return {
        "rate_over_capacity": [each.over for each in found],
        "in_slo_gain": [short(each.gain(each.best)) for each in found],
        "dropped_ratio": [short(each.lost_ratio(each.dropped)) for each in found],
        "violated_ratio": [short(each.lost_ratio(each.late)) for each in found],
        "over": [each.best for each in found],
        "vs": {
            service.name: {
                "in_slo_gain": [short(each.gain(service.name)) for each in found],
                "dropped_ratio": [_ratio(each.dropped, service.name) for each in found],
                "violated_ratio": [_ratio(each.late, service.name) for each in found],
            }
            for service in BASELINES
        },
        "paper": {"in_slo_gain": PAPER_IN_SLO_GAIN, "dropped_and_violated_ratio": PAPER_LOSS_RATIO},
    }


def _ratio(shares: dict[str, float], name: str) -> float | None:
    return short(ratio(shares[ASCENDRA.name], shares[name]))
