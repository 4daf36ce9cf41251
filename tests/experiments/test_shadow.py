"""A shadow of an engine that is itself simulated, so that what it should say is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from headway.core.batch_shape import shape_of
from headway.core.cost import CostModel
from headway.core.plan import StepOutcome
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, UpstreamError
from headway.experiments import shadow
from headway.experiments.shadow import CONTROL, LIVE, shadow_report
from headway.experiments.shadow_feed import FIRST, Feed
from headway.gateway.shadow_board import ShadowState
from headway.policies.policy import Policy
from headway.policies.presets import Preset, build_policy
from headway.results.metrics import summarize
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest, parse_workload
from tests.sim.worlds import LIMIT, Linear, calibration, limits, preset

LAW = Linear(base_s=0.02, per_token_s=2e-4, per_context_s=1e-7)
SYSTEM = System(
    limits=limits(num_blocks=400, max_num_seqs=6, max_num_batched_tokens=128), calibration=calibration(LAW)
)
SLO = Slo(ttft_s=0.8)
WORKLOAD = "poisson:rate=28/input=zipf:theta=1.1,max=200/output=zipf:theta=1.1,max=40/count=250"


def requests() -> list[TraceRequest]:
    return [
        TraceRequest(
            each.id, each.arrival_s, each.input_tokens, each.output_tokens, max_output_tokens=LIMIT, slo=SLO
        )
        for each in parse_workload(WORKLOAD).requests()
    ]


def served(policy: str) -> tuple[list[Record], list[list[float]]]:
    """Records, and the steps as an engine tells of them."""
    records: list[Record] = []
    rows: list[list[float]] = []

    def stepped(name: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        shape = shape_of(outcome.tokens)
        rows.append([finished_s - started_s, *asdict(shape).values()])

    simulate(
        requests(), preset(policy), SYSTEM, on_record=records.append, max_output_tokens=LIMIT, watch=stepped
    )
    return records, rows


def told(record: Record, **other: Any) -> dict[str, Any]:
    slo = record.slo
    return {
        "id": record.id,
        "arrival_s": record.arrival_s,
        "prompt_tokens": record.prompt_tokens,
        "found_tokens": 0,
        "output_tokens": record.output_tokens,
        "max_output_tokens": LIMIT,
        "targets_s": [slo.ttft_s, slo.tbt_s, slo.deadline_s],
        "priority": 0,
        "tenant": record.tenant,
        "predicted": None,
        "outcome": str(record.outcome),
        "first_token_s": record.first_token_s,
        "finished_s": record.finished_s,
        **other,
    }


def answer(records: list[Record], rows: list[list[float]], **other: Any) -> dict[str, Any]:
    """What an engine of these sizes says at the end of the run."""
    sizes = asdict(SYSTEM.limits)
    return {
        "now_s": max((record.finished_s or 0.0 for record in records), default=0.0),
        "next": f"{len(records)}-{len(rows)}",
        "missed": 0,
        "ended": [told(record) for record in records],
        "live": [],
        "steps": rows,
        "host_s": 0.0,
        "block_bytes": 4,
        "engine": {
            "policy": "vllm",
            "parts": {},
            "limits": sizes,
            "copies_s": [0.0, 0.0, 0.0, 0.0],
            "copied_blocks": 256,
        },
        **other,
    }


def fed(*answers: dict[str, Any], keep_s: float = 1e6) -> Feed:
    feed = Feed(keep_s)
    for each in answers:
        feed.take(each)
    return feed


@pytest.fixture(scope="module")
def run() -> tuple[list[Record], list[list[float]]]:
    return served("vllm")


@pytest.fixture(scope="module")
def report(run: tuple[list[Record], list[list[float]]]) -> ShadowState:
    return shadow_report([fed(answer(*run))], ["sjf", "nobody"], window_s=1e5)


def test_the_live_policy_simulated_comes_to_what_really_came(report: ShadowState) -> None:
    # The step law is fitted, and exact here up to what its curves cannot follow.
    live, control = report.figures[LIVE], report.figures[CONTROL]
    assert report.step_error < 0.02
    assert live.finished == control.finished == report.requests == 250
    assert control.goodput == pytest.approx(live.goodput, abs=0.02)
    assert control.mean_jct_s == pytest.approx(live.mean_jct_s, rel=0.03)
    assert live.goodput is not None
    assert 0.2 < live.goodput < 0.95, "a load at which the order matters"


def test_a_step_that_took_far_too_long_does_not_slow_all_of_them(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    # One of the 440 steps, as if the machine had stood still for as long as forty take.
    records, rows = run
    stalled = [list(row) for row in rows]
    stalled[4][0] += 1.0
    report = shadow_report([fed(answer(records, stalled))], [], window_s=1e5)
    live, control = report.figures[LIVE], report.figures[CONTROL]
    assert control.mean_jct_s == pytest.approx(live.mean_jct_s, rel=0.03)


def test_a_shadow_comes_to_what_its_policy_would_have(report: ShadowState) -> None:
    expected = summarize(served("sjf")[0])
    sjf = report.figures["sjf"]
    assert sjf.goodput == pytest.approx(expected.goodput, abs=0.02)
    assert sjf.mean_jct_s == pytest.approx(expected.mean_jct_s, rel=0.03)
    control = report.figures[CONTROL].goodput
    assert sjf.goodput is not None
    assert control is not None
    assert sjf.goodput > control + 0.02


def test_a_policy_that_cannot_serve_says_why_and_the_others_have_figures(report: ShadowState) -> None:
    assert list(report.figures) == [LIVE, CONTROL, "sjf"]
    assert report.failed["nobody"].startswith("unknown policy 'nobody'")


def test_a_policy_that_breaks_costs_no_other_its_figures(
    run: tuple[list[Record], list[list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(preset: Preset, cost: CostModel) -> Policy:
        if preset.name == "edf":
            raise ZeroDivisionError("on purpose")
        return build_policy(preset, cost)

    monkeypatch.setattr(shadow, "build_policy", breaking)
    report = shadow_report([fed(answer(*run))], ["edf", "sjf"], window_s=10.0)
    assert list(report.figures) == [LIVE, CONTROL, "sjf"]
    assert report.failed == {"edf": "it raised ZeroDivisionError: on purpose"}


def test_only_the_window_is_judged_but_everything_known_is_served(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    feed = fed(answer(records, rows))
    late = [record for record in records if record.arrival_s >= feed.now_s - 8.0]
    report = shadow_report([feed], [], window_s=8.0)
    assert report.requests == len(late) > 20
    # With the load from before the window, which an empty start would not have.
    assert report.figures[CONTROL].mean_jct_s == pytest.approx(report.figures[LIVE].mean_jct_s, rel=0.1)


def test_what_did_not_finish_live_is_served_with_a_length_that_is_assumed(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    changed = answer(records, rows)
    for one in changed["ended"][:10]:
        one.update(outcome=str(Outcome.EXPIRED), output_tokens=0)
    for one in changed["ended"][10:13]:
        one.update(outcome=str(Outcome.CANCELLED))
    live = [told(record, id=f"live {record.id}", outcome=None, finished_s=None) for record in records[-3:]]
    report = shadow_report([fed({**changed, "live": live})], [], window_s=1e5)
    assert (report.requests, report.assumed) == (247, 10)
    assert report.figures[LIVE].finished == 237
    assert report.figures[CONTROL].finished == 247


def test_two_engines_are_added_up(run: tuple[list[Record], list[list[float]]]) -> None:
    records, rows = run
    others = answer(records, rows)
    for one in others["ended"]:
        one["id"] = f"other {one['id']}"
    report = shadow_report([fed(answer(records, rows)), fed(others)], [], window_s=1e5)
    assert report.requests == 500
    assert report.figures[CONTROL].finished == 500


def test_two_engines_may_have_served_requests_of_one_id(run: tuple[list[Record], list[list[float]]]) -> None:
    once, twice = (shadow_report([fed(answer(*run))] * count, [], window_s=1e5) for count in (1, 2))
    assert twice.requests == 2 * once.requests
    assert twice.figures[CONTROL].mean_jct_s == pytest.approx(once.figures[CONTROL].mean_jct_s)


def test_what_was_handed_over_unstarted_is_the_next_instances(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    left = answer(records, rows)
    for one in left["ended"][:100]:
        one.update(outcome=str(Outcome.HANDED_OFF), output_tokens=0, first_token_s=None)
    stayed = shadow_report([fed(answer(records[100:], rows))], [], window_s=1e5)
    assert shadow_report([fed(left)], [], window_s=1e5).figures == stayed.figures


def test_an_engine_that_idles_keeps_no_other_from_being_reported(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    report = shadow_report([fed(answer([], [], now_s=1.0)), fed(answer(*run))], [], window_s=1e5)
    assert report.requests == 250


def test_too_little_is_said_to_be_too_little(run: tuple[list[Record], list[list[float]]]) -> None:
    records, rows = run
    with pytest.raises(ConfigError, match="no engine has answered yet"):
        shadow_report([Feed(10.0)], [], 10.0)
    with pytest.raises(ConfigError, match="9 steps are known so far; 20 are needed"):
        shadow_report([fed(answer(records, rows[:9]))], [], 10.0)


def test_answers_are_put_together_and_old_requests_forgotten(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    half = records[:125]
    until_s = max(record.finished_s or 0.0 for record in half)
    first = answer(half, rows[:50], now_s=until_s)
    second = answer(records[125:], rows[50:], next=f"250-{len(rows)}", missed=2)
    feed = fed(first, second, keep_s=10.0)
    assert feed.next == f"250-{len(rows)}"
    assert len(feed.steps) == len(rows)
    assert feed.missed == 2
    assert 0 < len(feed.ended) < 250
    assert feed.ended[0].arrival_s >= feed.now_s - 10.0
    feed.take(answer([], [], now_s=feed.now_s + 10.5, next=feed.next))
    assert (feed.missed, len(feed.ended)) == (0, 0)


def test_an_engine_that_was_started_again_is_learned_anew(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    feed = fed(answer(records, rows), answer(records[:5], rows[:5], now_s=1.0))
    assert (feed.next, len(feed.ended), len(feed.steps)) == (FIRST, 0, 0)


def test_an_answer_that_is_none_is_refused() -> None:
    for wrong in ({"now_s": 1.0}, answer([], [], next="new")):
        with pytest.raises(UpstreamError, match="tells shadows what is not understood"):
            Feed(1.0).take(wrong)
