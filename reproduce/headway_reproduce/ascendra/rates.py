"""Goodput against rate: every system in every case, and Ascendra's gains beside the paper's."""

from __future__ import annotations

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings, goodput, mean
from headway_reproduce.ascendra.setting import (
    BASELINES,
    LONGBENCH,
    PAPER_GAINS,
    SIMULATED,
    SYSTEMS,
    TODAY,
    Case,
    Service,
)
from headway_reproduce.study_findings import short

GAIN_KEYS = {"vs_vllm_v0": "vllm-v0", "vs_sarathi": "sarathi", "vs_vllm_today": "vllm"}
"""Key of the JSON -> whom Ascendra is put over."""
_BY_NAME = {service.name: service for service in BASELINES}


def headline(findings: Findings) -> StudyPart:
    """Both readings of the gain, the paper's beside ours."""
    table = StudyTable(
        name="gains",
        title="Ascendra's goodput over the others'",
        measured_on=SIMULATED,
        headings=[
            "case",
            *(f"rate at 90 %, over {name}" for name in GAIN_KEYS.values()),
            "paper: over vLLM",
            "paper: over Sarathi",
            *(f"largest goodput gain at one rate, over {name}" for name in GAIN_KEYS.values()),
        ],
        rows=[_gain_row(findings, case) for case in findings.scope.cases],
        note="The rate at which nine in ten requests are within both targets, over the other's; and the largest ratio "
        "of the shares within targets at the same rate. The paper does not say which of the two its gain is. 1 is "
        f"equal, less is worse. {LONGBENCH.title} is lengths of arXiv papers and their abstracts.",
    )
    return StudyPart(
        title="Goodput beside the paper's",
        text=[_said_of(findings, case) for case in findings.scope.cases if case in PAPER_GAINS],
        tables=[table],
    )


def _gain_row(findings: Findings, case: Case) -> list[Value]:
    paper = PAPER_GAINS.get(case, (None, None))
    return [
        str(case),
        *(findings.rate_gain(case, service) for service in BASELINES),
        *paper,
        *(findings.largest_goodput_gain(case, service) for service in BASELINES),
    ]


def _said_of(findings: Findings, case: Case) -> str:
    gains = [findings.rate_gain(case, service) for service in BASELINES[:2]]
    found = " and ".join("not known" if gain is None else f"{gain:.2f}" for gain in gains)
    paper = " and ".join(f"{gain:.2f}" for gain in PAPER_GAINS[case])
    return f"{case}: the rate Ascendra holds is {found} times vLLM's of its time and Sarathi's; in the paper {paper}."


# ---- the sweep -----------------------------------------------------------------------------------------


def rates_part(findings: Findings) -> StudyPart:
    """Each system's curve in each case."""
    rows: list[list[Value]] = [
        [str(case), load, load * findings.reference_rps(case), *_goodputs(findings, case, load)]
        for case in findings.scope.cases
        for load in findings.scope.loads
    ]
    table = StudyTable(
        name="goodput",
        title="Share of requests within both targets",
        measured_on=SIMULATED,
        headings=["case", "load", "req/s", *(service.name for service in SYSTEMS)],
        rows=rows,
        note=f"A load of 1 is what {TODAY.name} gets through of the case's requests sent all at once.",
        decimals=3,
        keys=2,
        detail=True,
    )
    return StudyPart(
        title="Goodput against rate",
        tables=[_capacity_table(findings), table],
        charts=[_chart(findings, case) for case in findings.scope.cases],
    )


def _goodputs(findings: Findings, case: Case, load: float) -> list[float | None]:
    return [mean(findings.results(case, load, service), goodput) for service in SYSTEMS]


def _capacity_table(findings: Findings) -> StudyTable:
    rows: list[list[Value]] = [
        [
            str(case),
            findings.reference_rps(case),
            *(findings.rate_at_good(case, service) for service in SYSTEMS),
        ]
        for case in findings.scope.cases
    ]
    return StudyTable(
        name="capacity",
        title="Requests a second at which nine in ten are within both targets",
        measured_on=SIMULATED,
        headings=["case", "load of 1, req/s", *(service.name for service in SYSTEMS)],
        rows=rows,
        note="None where the sweep begins or ends beyond it.",
    )


def _chart(findings: Findings, case: Case) -> Chart:
    loads = findings.scope.loads
    curves = {
        service.name: [
            (load, share) for load, (_, share) in zip(loads, findings.curve(case, service), strict=True)
        ]
        for service in SYSTEMS
    }
    svg = settings_svg(
        f"Goodput, {case}",
        curves,
        x_label="load, simulated",
        y_label="share within targets",
        level=0.9,
        doubling=False,
    )
    return Chart(name=f"goodput-{_slug(case)}", svg=svg)


def _slug(case: Case) -> str:
    words = f"{case.model.title}-{case.data.title}".lower()
    return "".join(letter if letter.isalnum() else "-" for letter in words).strip("-").replace("--", "-")


# ---- what scripts read ---------------------------------------------------------------------------------


def gains_data(findings: Findings) -> dict[str, object]:
    """The keys that are about the sweep."""
    cases = findings.scope.cases
    return {
        "rate_at_90_goodput_rps": {
            str(case): {service.name: short(findings.rate_at_good(case, service)) for service in SYSTEMS}
            for case in cases
        },
        "rate_at_90_goodput_gain": {
            str(case): {**_gains(findings, case, rates=True), "paper": _paper(case)} for case in cases
        },
        "goodput_gain_at_same_rate_max": {str(case): _gains(findings, case, rates=False) for case in cases},
    }


def _gains(findings: Findings, case: Case, *, rates: bool) -> dict[str, float | None]:
    gain = findings.rate_gain if rates else findings.largest_goodput_gain
    return {key: short(gain(case, _BY_NAME[name])) for key, name in GAIN_KEYS.items()}


def _paper(case: Case) -> list[float | None] | None:
    return [short(gain) for gain in PAPER_GAINS[case]] if case in PAPER_GAINS else None


def sweep_data(findings: Findings) -> list[dict[str, object]]:
    """Every point of the sweep."""
    return [
        {
            "case": str(case),
            "load": load,
            "rate_rps": short(load * findings.reference_rps(case)),
            **{service.name: short(share) for service, share in _named(findings, case, load)},
        }
        for case in findings.scope.cases
        for load in findings.scope.loads
    ]


def _named(findings: Findings, case: Case, load: float) -> list[tuple[Service, float | None]]:
    return list(zip(SYSTEMS, _goodputs(findings, case, load), strict=True))
