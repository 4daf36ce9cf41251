"""What each part of Ascendra is for: a request's value, elastic batch, hand-off, tickets, split of the instances."""

from __future__ import annotations

from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.findings import Findings, Number, goodput
from headway_reproduce.ascendra.measures import AscendraResult
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BREAKDOWN_LOAD,
    FIXED,
    LIGHT_LOAD,
    MAIN,
    NO_HAND_OFF,
    NO_TICKET,
    PAPER_DELAY_RATIO,
    PAPER_TICKET_GAIN,
    PURE_EDF,
    SIMULATED,
    SJF,
    SPLIT_LOAD,
    SPLITS,
    SYSTEMS,
    Service,
)
from headway_reproduce.study_findings import ratio, short

LP, HP = "lp", "hp"


def _delay_s(pool: str) -> Number:
    def value(result: AscendraResult) -> float | None:
        return result.pools[pool].delay_s if pool in result.pools else None

    return value


def _busy(pool: str) -> Number:
    def value(result: AscendraResult) -> float | None:
        return result.pools[pool].busy_share

    return value


def share_at_hp(result: AscendraResult) -> float | None:
    """Of all requests that started, where there is such a pool."""
    started = sum(pool.first_tokens for pool in result.pools.values())
    return result.pools[HP].first_tokens / started if HP in result.pools and started else None


# ---- breakdown -----------------------------------------------------------------------------------------

_BREAKDOWN: tuple[tuple[str, Number], ...] = (
    ("goodput", goodput),
    ("TTFT mean s", lambda result: result.mean_ttft_s),
    ("TTFT p99 s", lambda result: result.p99_ttft_s),
    ("TBT mean s", lambda result: result.mean_tbt_s),
    ("TBT p99 s", lambda result: result.p99_tbt_s),
    ("tokens/s", lambda result: result.total_tps),
    ("LP delay s", _delay_s(LP)),
    ("HP delay s", _delay_s(HP)),
    ("hand-offs", lambda result: float(result.moves)),
    ("share started at HP", share_at_hp),
)


def breakdown_part(findings: Findings) -> StudyPart:
    """Latencies, throughput and waits of every system at one rate."""
    rows: list[list[Value]] = [
        [service.name, *(findings.mean(MAIN, BREAKDOWN_LOAD, service, number) for _, number in _BREAKDOWN)]
        for service in SYSTEMS
    ]
    table = StudyTable(
        name="breakdown",
        title=f"Load {BREAKDOWN_LOAD:g} ({MAIN})",
        measured_on=SIMULATED,
        headings=["system", *(name for name, _ in _BREAKDOWN)],
        rows=rows,
        note="A delay is from coming to an instance to the first step there; who was handed off has one at HP.",
        decimals=3,
    )
    delays = delays_data(findings)
    times = ratio(delays[LP], delays[HP])
    said = "not known" if times is None else f"{times:.2f}"
    return StudyPart(
        title="Breakdown",
        text=[f"LP's wait over HP's: {said}; in the paper about {PAPER_DELAY_RATIO:g}."],
        tables=[table],
    )


def delays_data(findings: Findings) -> dict[str, float | None]:
    """Mean wait at each pool."""
    return {pool: short(findings.mean(MAIN, BREAKDOWN_LOAD, ASCENDRA, _delay_s(pool))) for pool in (LP, HP)}


# ---- ablations -----------------------------------------------------------------------------------------

ABLATIONS: dict[str, Service] = {
    "least slack (as it is)": ASCENDRA,
    "deadline alone": PURE_EDF,
    "shortest prompt": SJF,
    "fixed batch of 128 at HP": FIXED,
    "no hand-off": NO_HAND_OFF,
    "no tickets": NO_TICKET,
}


def ablation_part(findings: Findings) -> StudyPart:
    """Goodput with one part in another's place, by rate; tickets at light load; splits."""
    rows: list[list[Value]] = [
        [what, *(findings.mean(MAIN, load, service) for load in findings.scope.busy_loads)]
        for what, service in ABLATIONS.items()
    ]
    table = StudyTable(
        name="ablation",
        title=f"Goodput with one part changed ({MAIN})",
        measured_on=SIMULATED,
        headings=["what", *(f"load {load:g}" for load in findings.scope.busy_loads)],
        rows=rows,
        note="With one target for all, the paper's deadline order is arrival order; what it describes is least slack.",
        decimals=3,
    )
    return StudyPart(
        title="What each part is for",
        text=[_said_of_tickets(findings), _said_of_splits(findings)],
        tables=[table, _ticket_table(findings), _split_table(findings)],
    )


def _ticket_table(findings: Findings) -> StudyTable:
    numbers: tuple[tuple[str, Number], ...] = (
        ("HP busy", _busy(HP)),
        ("LP busy", _busy(LP)),
        ("TTFT mean s", lambda result: result.mean_ttft_s),
        ("TBT mean s", lambda result: result.mean_tbt_s),
        ("first tokens at HP", lambda result: float(result.pools[HP].first_tokens)),
    )
    rows: list[list[Value]] = [
        [what, *(findings.mean(MAIN, LIGHT_LOAD, service, number) for _, number in numbers)]
        for what, service in (("with", ASCENDRA), ("without", NO_TICKET))
    ]
    return StudyTable(
        name="tickets",
        title=f"With and without tickets, load {LIGHT_LOAD:g} ({MAIN})",
        measured_on=SIMULATED,
        headings=["tickets", *(name for name, _ in numbers)],
        rows=rows,
        note="Busy is the share of the run in which the instances computed.",
        decimals=3,
    )


def _said_of_tickets(findings: Findings) -> str:
    use = tickets_data(findings)
    gain = ratio(use["with"], use["without"])
    said = "from nothing" if gain is None else f"{gain:.2f} times"
    return (
        f"With tickets HP is busy {said} as much at load {LIGHT_LOAD:g}; in the paper up to {PAPER_TICKET_GAIN:g} "
        "times at light load."
    )


def tickets_data(findings: Findings) -> dict[str, float | None]:
    """How busy HP is at light load."""
    found = {"with": ASCENDRA, "without": NO_TICKET}
    return {key: short(findings.mean(MAIN, LIGHT_LOAD, service, _busy(HP))) for key, service in found.items()}


def _split_goodput(findings: Findings, service: Service) -> float | None:
    """At the same rate for each instance."""
    load = SPLIT_LOAD * service.instances / ASCENDRA.instances
    return findings.mean(MAIN, load, service)


def _split_table(findings: Findings) -> StudyTable:
    return StudyTable(
        name="splits",
        title=f"Splits at load {SPLIT_LOAD:g}, the same rate for each instance ({MAIN})",
        measured_on=SIMULATED,
        headings=["split", "goodput"],
        rows=[[name, _split_goodput(findings, service)] for name, service in SPLITS.items()],
        decimals=3,
    )


def _said_of_splits(findings: Findings) -> str:
    found = {name: _split_goodput(findings, service) or 0.0 for name, service in SPLITS.items()}
    said = ", ".join(f"{name} {share:.3f}" for name, share in found.items())
    return f"Goodput at load {SPLIT_LOAD:g} by split: {said}; in the paper 2L1H is better than 1L2H."


def ablation_data(findings: Findings) -> dict[str, object]:
    """The keys that are about parts; lists have an entry for each of `busy_loads`."""

    def shares(service: Service) -> list[float]:
        return [findings.mean(MAIN, load, service) or 0.0 for load in findings.scope.busy_loads]

    whole, edf, sjf = shares(ASCENDRA), shares(PURE_EDF), shares(SJF)
    return {
        "busy_loads": list(findings.scope.busy_loads),
        "ticket_hp_utilisation": tickets_data(findings),
        "sched_delay_s": delays_data(findings),
        "elastic_gain_by_qps": _ratios(whole, shares(FIXED)),
        "edf_vs_sjf_goodput": [[short(mine), short(theirs)] for mine, theirs in zip(whole, sjf, strict=True)],
        "deadline_alone_goodput": [short(share) for share in edf],
        "hand_off_gain": _ratios(whole, shares(NO_HAND_OFF)),
        "ticket_gain": _ratios(whole, shares(NO_TICKET)),
        "split": {name: short(_split_goodput(findings, service)) for name, service in SPLITS.items()},
    }


def _ratios(mine: list[float], theirs: list[float]) -> list[float | None]:
    return [short(ratio(one, other)) for one, other in zip(mine, theirs, strict=True)]
