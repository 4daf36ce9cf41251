"""How the configuration was chosen, and what Ascendra's gains hang on: one thing changed at a time."""

from __future__ import annotations

from headway.policies.batching.within_budgets import TOKEN_BUDGET
from headway.results.study import StudyPart, StudyTable, Value
from headway_reproduce.ascendra.ablation import share_at_hp
from headway_reproduce.ascendra.findings import Findings
from headway_reproduce.ascendra.measures import AscendraResult
from headway_reproduce.ascendra.setting import (
    ASCENDRA,
    BASELINES,
    BREAKDOWN_LOAD,
    CHANGED_LOADS,
    CHANGES,
    LIGHT_LOAD,
    LP_TOKENS_TRIED,
    MAIN,
    SIMULATED,
    SYSTEMS,
    TBT_S,
    THRESHOLDS,
    TRIED_LOADS,
    TRIED_SEED,
    VLLM_V0,
    Change,
    Service,
    with_threshold,
    with_tokens,
)
from headway_reproduce.study_findings import ratio, short

# ---- what was tried ------------------------------------------------------------------------------------


def choice_part(findings: Findings) -> StudyPart | None:
    """Tokens of an LP instance's step, and the hand-off's threshold; None where they are not swept."""
    if findings.scope.quick:
        return None
    tokens = _tried_table(
        findings,
        "lp-tokens",
        "Tokens of an LP instance's step",
        {f"{tokens:,}": with_tokens(tokens) for tokens in LP_TOKENS_TRIED},
    )
    thresholds = _tried_table(
        findings,
        "threshold",
        "Threshold of the hand-off, as a share of the target for the first token",
        {f"{threshold:g}": with_threshold(threshold) for threshold in THRESHOLDS},
    )
    return StudyPart(
        title="Configuration",
        text=[
            f"The paper gives neither. With {TOKEN_BUDGET:,} tokens all other figures were made; the threshold is the "
            "default, 0.05. Both are swept on a seed of their own, in the main case alone."
        ],
        tables=[tokens, thresholds],
    )


def _tried(findings: Findings, service: Service, load: float) -> AscendraResult:
    rate_rps = load * findings.reference_rps(MAIN)
    return findings.result(findings.scope.run(MAIN, service, rate_rps, TRIED_SEED))


def _tried_table(findings: Findings, name: str, title: str, services: dict[str, Service]) -> StudyTable:
    rows: list[list[Value]] = []
    for what, service in services.items():
        found = [_tried(findings, service, load) for load in TRIED_LOADS]
        rows.append([what, *(each.goodput for each in found), *(each.moves for each in found)])
    return StudyTable(
        name=name,
        title=f"{title} ({MAIN}, seed {TRIED_SEED})",
        measured_on=SIMULATED,
        headings=[
            "value",
            *(f"goodput at load {load:g}" for load in TRIED_LOADS),
            *(f"hand-offs at load {load:g}" for load in TRIED_LOADS),
        ],
        rows=rows,
        decimals=3,
    )


# ---- what the gains hang on ----------------------------------------------------------------------------


def reasons_part(findings: Findings) -> StudyPart:
    """Where Ascendra's instances differ from the others'; and, but for the quick part, one thing changed for all."""
    return StudyPart(
        title="Where it differs from the paper, and why",
        text=[_said_of_order(findings), _said_of_tickets(findings), *_said_of_changes(findings)],
        tables=[] if findings.scope.quick else [_changed_table(findings)],
    )


def _said_of_order(findings: Findings) -> str:
    """Prompts first against decodes first, without pools."""
    rates = {service.name: findings.rate_at_good(MAIN, service) for service in SYSTEMS}
    tbt_s = findings.mean(MAIN, BREAKDOWN_LOAD, VLLM_V0, lambda result: result.mean_tbt_s)
    said = ", ".join(f"{name} {_rps(findings, rate)}" for name, rate in rates.items())
    return (
        f"Requests a second at nine in ten in the main case: {said}. vllm-v0 puts prompts first, vllm decodes first in "
        "chunks of as many tokens as Ascendra's LP instances, two of its three: what lies between those two is the "
        f"price of putting decodes first. At load {BREAKDOWN_LOAD:g} vllm-v0's mean time between tokens is "
        f"{tbt_s or 0.0:.3f} s, of {TBT_S:g} s allowed: so far away a target rewards nobody for sparing decodes."
    )


def _rps(findings: Findings, rate: float | None) -> str:
    return (
        f"beyond {findings.scope.loads[-1] * findings.reference_rps(MAIN):.1f}"
        if rate is None
        else f"{rate:.2f}"
    )


def _said_of_tickets(findings: Findings) -> str:
    """How much of the load one of three instances gets."""
    shares = [
        (load, findings.mean(MAIN, load, ASCENDRA, share_at_hp) or 0.0)
        for load in (LIGHT_LOAD, BREAKDOWN_LOAD)
    ]
    said = " and ".join(f"{share:.0%} of all requests at load {load:g}" for load, share in shares)
    return (
        f"A ticket stands whenever nobody waits at HP, however many it is answering: HP, one instance of three, gets "
        f"{said}. What it answers is slowed down by the prompts of the next."
    )


def _said_of_changes(findings: Findings) -> list[str]:
    """What each change does to the gain over the vLLM of the paper's time."""
    if findings.scope.quick:
        return []
    gains = "; ".join(f"{change.name}: {_text(_gain(findings, VLLM_V0, change))}" for change in CHANGES)
    return [f"Ascendra's rate over {VLLM_V0.name}'s, with one thing changed for both. {gains}."]


def _changed_table(findings: Findings) -> StudyTable:
    rows: list[list[Value]] = [
        [
            change.name,
            *(findings.changed_rate(service, change, CHANGED_LOADS) for service in SYSTEMS),
            *(_gain(findings, service, change) for service in BASELINES),
        ]
        for change in CHANGES
    ]
    return StudyTable(
        name="reasons",
        title=f"Requests a second at which nine in ten are within both targets, one thing changed ({MAIN})",
        measured_on=SIMULATED,
        headings=[
            "changed",
            *(service.name for service in SYSTEMS),
            *(f"over {service.name}" for service in BASELINES),
        ],
        rows=rows,
        note="A dash where the sweep begins or ends beyond it. One seed, fewer rates than above.",
    )


def _gain(findings: Findings, over: Service, change: Change) -> float | None:
    mine = findings.changed_rate(ASCENDRA, change, CHANGED_LOADS)
    return ratio(mine, findings.changed_rate(over, change, CHANGED_LOADS))


def _text(gain: float | None) -> str:
    return "not known, one of the rates is beyond the sweep" if gain is None else f"{gain:.2f}"


def reasons_data(findings: Findings) -> dict[str, object]:
    """Change -> gain over each baseline; empty for the quick part."""
    if findings.scope.quick:
        return {}
    return {
        change.name: {service.name: short(_gain(findings, service, change)) for service in BASELINES}
        for change in CHANGES
    }


def choice_data(findings: Findings) -> dict[str, object]:
    """Swept value -> goodput at each load tried; empty for the quick part."""
    if findings.scope.quick:
        return {}

    def shares(service: Service) -> list[float | None]:
        return [short(_tried(findings, service, load).goodput) for load in TRIED_LOADS]

    return {
        "loads": list(TRIED_LOADS),
        "lp_tokens": {f"{tokens}": shares(with_tokens(tokens)) for tokens in LP_TOKENS_TRIED},
        "threshold": {f"{threshold:g}": shares(with_threshold(threshold)) for threshold in THRESHOLDS},
    }
