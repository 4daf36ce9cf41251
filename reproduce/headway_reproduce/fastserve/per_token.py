"""FastServe's later curve: mean latency per token with lengths as in ShareGPT."""

from __future__ import annotations

from headway.results.line_chart import settings_svg
from headway.results.study import Chart, StudyPart, StudyTable, Value
from headway.traces import NAMED_LAWS
from headway_reproduce.fastserve.findings import Findings, per_token_s
from headway_reproduce.fastserve.setting import (
    BATCH,
    FASTSERVE,
    FCFS,
    PAPER_PER_TOKEN_S,
    PER_TOKEN,
    RELEASED,
    SHAREGPT,
    SIMULATED,
    VLLM_V0,
    Point,
)

_PUBLISHED = (VLLM_V0, FCFS, FASTSERVE)
"""Whose numbers the notebook has, in its order."""


def per_token_part(findings: Findings) -> StudyPart | None:
    """Seconds per token against the rate, the notebook's beside ours; None where that is not run."""
    points = findings.scope.per_token()
    if not points:
        return None
    headings = ["req/s"]
    for policy in PER_TOKEN:
        headings += [policy, "paper"] if policy in _PUBLISHED else [policy]
    table = StudyTable(
        name="per-token",
        title=f"Mean of completion time over answer length, seconds per token ({RELEASED.title})",
        measured_on=SIMULATED,
        headings=headings,
        rows=[_row(findings, rate_rps, point) for rate_rps, point in points.items()],
        note=f"{SHAREGPT.count} requests, Poisson; prompts of up to 1,024 tokens, prompts and answers drawn "
        "independently by ShareGPT's laws. The paper's vLLM is 0.6.1, which like 0.2.5 runs prompts first.",
        decimals=3,
    )
    return StudyPart(
        title="Latency per token (released code)",
        text=[_said_of_the_knee(), *findings.unfinished(points.values(), PER_TOKEN)],
        tables=[table],
        charts=[_chart(findings, points)],
    )


def _row(findings: Findings, rate_rps: float, point: Point) -> list[Value]:
    published = PAPER_PER_TOKEN_S.get(rate_rps, (None, None, None))
    row: list[Value] = [f"{rate_rps:g}"]
    for policy in PER_TOKEN:
        row.append(findings.mean(point, policy, per_token_s))
        if policy in _PUBLISHED:
            row.append(published[_PUBLISHED.index(policy)])
    return row


def _said_of_the_knee() -> str:
    """Why the curve rises where it does."""
    tokens = NAMED_LAWS[SHAREGPT.output].output.expected_tokens()
    step_s = RELEASED.decode_step_s()
    return (
        f"With answers of {tokens:.0f} tokens in the mean and steps of {1e3 * step_s:.0f} ms or more, {BATCH} at a "
        f"time get through less than {BATCH / (step_s * tokens):.2f} req/s whatever the order. In the notebook "
        "fastserve still keeps up at 3, with steps that are no shorter (35 ms a token and more): its answers must be "
        "shorter than ours, so that the same rates are more load here."
    )


def _chart(findings: Findings, points: dict[float, Point]) -> Chart:
    curves = {
        policy: [(rate_rps, findings.mean(point, policy, per_token_s)) for rate_rps, point in points.items()]
        for policy in PER_TOKEN
    }
    svg = settings_svg(
        f"Seconds per token, {RELEASED.title}",
        curves,
        x_label="requests per second, simulated",
        y_label="seconds per token",
        doubling=False,
    )
    return Chart(name="per-token", svg=svg)
