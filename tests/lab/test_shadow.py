"""A shadow of an engine that is itself simulated, so that what it should say is known."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import Any

import pytest

from headway.core.batch_shape import shape_of
from headway.core.cost import CostModel
from headway.core.plan import StepOutcome
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, UpstreamError
from headway.gateway.book.shadow_board import ShadowFigures, ShadowState
from headway.lab import shadow_replay
from headway.lab.shadow import CONTROL, LIVE, shadow_report, why_no_verdict
from headway.lab.shadow_feed import FIRST, MOST_REQUESTS, Feed
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


def requests(workload: str = WORKLOAD) -> list[TraceRequest]:
    return [
        TraceRequest(
            each.id, each.arrival_s, each.input_tokens, each.output_tokens, max_output_tokens=LIMIT, slo=SLO
        )
        for each in parse_workload(workload).requests()
    ]


def served(policy: str, workload: str = WORKLOAD) -> tuple[list[Record], list[list[float]]]:
    """Records, and the steps as an engine tells of them."""
    records: list[Record] = []
    rows: list[list[float]] = []

    def stepped(name: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        shape = shape_of(outcome.tokens)
        rows.append([finished_s - started_s, *asdict(shape).values()])

    simulate(
        requests(workload),
        preset(policy),
        SYSTEM,
        on_record=records.append,
        max_output_tokens=LIMIT,
        watch=stepped,
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
    """An engine's report, with these sizes, at the end of the run."""
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


def test_the_other_policies_have_no_figures_where_the_live_one_simulated_is_far_from_what_was_seen(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    # Each first token really came 5 s later than steps explain, as where something before the scheduler is slow.
    records, rows = run
    slow = answer(records, rows)
    for one in slow["ended"]:
        one["first_token_s"] += 5.0
        one["finished_s"] += 5.0
    report = shadow_report([fed({**slow, "now_s": slow["now_s"] + 5.0})], ["sjf"], window_s=1e5)
    live, control = report.figures[LIVE], report.figures[CONTROL]
    assert live.goodput == 0.0
    assert control.goodput is not None
    assert control.goodput > 0.2
    assert list(report.figures) == [LIVE, CONTROL]
    assert report.cannot_judge is not None
    assert (
        f"goodput 0.0% live, {control.goodput:.1%} simulated (accepted: 10 points apart); "
        in report.cannot_judge
    )
    assert report.cannot_judge.endswith("simulated (accepted: 33% off)")


def test_the_other_policies_have_no_figures_where_the_live_one_cannot_be_simulated(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    given = answer(*run)
    given["engine"]["policy"] = "of-another-package"
    report = shadow_report([fed(given)], ["sjf"], window_s=1e5)
    assert list(report.figures) == [LIVE]
    assert list(report.failed) == [CONTROL]
    assert report.cannot_judge == "the live policy cannot be simulated"


def figures(goodput: float | None, mean_jct_s: float | None, finished: int) -> ShadowFigures:
    return ShadowFigures(
        goodput=goodput, mean_jct_s=mean_jct_s, finished=finished, mean_ttft_s=None, p99_ttft_s=None
    )


@pytest.mark.parametrize(
    ("live", "control", "doubt"),
    [
        (figures(0.03, 4.0, 90), figures(0.74, 4.0, 90), "goodput 3.0% live, 74.0% simulated (accepted: 10 "),
        (figures(0.5, 4.0, 90), figures(0.41, 5.3, 99), None),
        (figures(None, 4.0, 90), figures(None, 5.4, 90), "mean JCT 4 s live, 5.4 s simulated (accepted: 33%"),
        (figures(None, 4.0, 90), figures(None, 2.6, 90), "mean JCT 4 s live, 2.6 s simulated (accepted: 33%"),
        (
            figures(None, None, 60),
            figures(None, None, 90),
            "finished 60.0% live, 90.0% simulated (accepted: ",
        ),
        (figures(None, None, 0), figures(None, None, 0), None),
    ],
)
def test_how_near_the_live_policy_simulated_has_to_be(
    live: ShadowFigures, control: ShadowFigures, doubt: str | None
) -> None:
    found = why_no_verdict({LIVE: live, CONTROL: control}, 100)
    assert found == doubt if doubt is None else (found or "").startswith(doubt)


def test_a_policy_that_breaks_costs_no_other_its_figures(
    run: tuple[list[Record], list[list[float]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(preset: Preset, cost: CostModel, **options: Any) -> Policy:
        if preset.name == "edf":
            raise ZeroDivisionError("on purpose")
        return build_policy(preset, cost, **options)

    monkeypatch.setattr(shadow_replay, "build_policy", breaking)
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


def test_the_window_is_half_of_what_is_known_where_an_engine_keeps_less() -> None:
    # It keeps the last 150 of the 250 that ended: who came since the first of these ended is among them, or live. At
    # this load queues come and go; all 150 judged from an empty engine come to 0.53 s simulated, beside 0.61 s live.
    records, rows = served("vllm", WORKLOAD.replace("rate=28", "rate=26"))
    kept = sorted(records, key=lambda record: record.finished_s or 0.0)[100:]
    feed = fed(answer(kept, rows, missed=100))
    assert kept[0].finished_s is not None
    known_s = feed.now_s - kept[0].finished_s
    half_s = (kept[0].finished_s + max(record.arrival_s for record in records)) / 2
    late = [record for record in records if record.arrival_s >= half_s]
    report = shadow_report([feed], [], window_s=1e5)
    assert (report.known_s, report.window_s) == (round(known_s, 3), round(feed.now_s - half_s, 3))
    assert report.requests == len(late) > 20
    assert report.missed == 0
    assert report.figures[CONTROL].mean_jct_s == pytest.approx(report.figures[LIVE].mean_jct_s, rel=0.03)
    # One of several engines that keeps little shortens the window of all.
    both = shadow_report([fed(answer(records, rows)), feed], [], window_s=1e5)
    assert (both.known_s, both.window_s) == (report.known_s, report.window_s)


def test_the_window_stays_where_enough_is_known(report: ShadowState) -> None:
    assert (report.known_s, report.window_s) == (None, 1e5)


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


@pytest.mark.parametrize(("told", "graphed"), [(0, 0), (100, 100), (1000, 128), (None, 12)])
def test_the_simulated_engine_has_the_cuda_graphs_of_the_real_one(
    run: tuple[list[Record], list[list[float]]],
    monkeypatch: pytest.MonkeyPatch,
    told: int | None,
    graphed: int,
) -> None:
    # An older engine says nothing: two tokens for each of its six seats, as vLLM has it.
    seen: list[int] = []

    def seeing(preset: Preset, cost: CostModel, **options: Any) -> Policy:
        seen.append(cost.steps.graphed_tokens)  # type: ignore[attr-defined]
        return build_policy(preset, cost, **options)

    given = answer(*run)
    sizes = given["engine"]["limits"]
    del sizes["max_cudagraph_capture_size"]
    if told is not None:
        sizes["max_cudagraph_capture_size"] = told
    monkeypatch.setattr(shadow_replay, "build_policy", seeing)
    shadow_report([fed(given)], ["sjf"], window_s=1.0)
    assert seen == [graphed] * 2


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
    assert (feed.missed, feed.reach_s) == (2, inf)
    assert 0 < len(feed.ended) < 250
    assert feed.ended[0].arrival_s >= feed.now_s - 10.0
    feed.take(answer([], [], now_s=feed.now_s + 10.5, next=feed.next))
    assert (feed.missed, len(feed.ended)) == (0, 0)


def test_that_nobody_came_for_a_while_makes_what_is_known_no_less(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    ended_s = max(record.finished_s or 0.0 for record in records)
    soon, late = (
        shadow_report(
            [fed(answer(records[100:], rows, missed=100, now_s=ended_s + later_s))], [], window_s=1e5
        )
        for later_s in (0.0, 60.0)
    )
    assert soon.known_s is not None
    assert late.known_s == pytest.approx(soon.known_s + 60.0)
    assert late.window_s == pytest.approx(soon.window_s + 60.0)
    assert late.requests == soon.requests > 20


def test_what_is_known_reaches_further_back_with_every_answer(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    # An end a second, from 1 on; the first answer tells of the last five of eight, which begin at 4.
    one, rows = run[0][0], run[1]
    ended = [
        told(one, id=str(second), arrival_s=second - 1.0, finished_s=float(second)) for second in range(1, 9)
    ]
    feed = fed(answer([], rows, now_s=10.0, missed=3, ended=ended[3:]))
    assert (feed.reach_s, feed.whole_window_s, feed.missed) == (6.0, 4.5, 0)  # the last came at 7
    feed.take(answer([], rows, now_s=15.0, missed=2, next=feed.next))
    assert (feed.reach_s, feed.missed) == (11.0, 2)


def test_more_than_can_be_kept_reach_less_far_back(run: tuple[list[Record], list[list[float]]]) -> None:
    one, rows = run[0][0], run[1]
    ended = [
        told(one, id=str(end), arrival_s=end - 1.0, finished_s=float(end)) for end in range(MOST_REQUESTS + 9)
    ]
    feed = fed(answer([], rows, now_s=MOST_REQUESTS + 8.0, ended=ended))
    assert (len(feed.ended), feed.reach_s, feed.missed) == (MOST_REQUESTS, MOST_REQUESTS - 1.0, 0)


def test_an_engine_that_was_started_again_is_learned_anew(
    run: tuple[list[Record], list[list[float]]],
) -> None:
    records, rows = run
    feed = fed(answer(records, rows, missed=1), answer(records[:5], rows[:5], now_s=1.0))
    assert (feed.next, len(feed.ended), len(feed.steps)) == (FIRST, 0, 0)
    assert feed.reach_s == inf


def test_an_answer_that_is_none_is_refused() -> None:
    for wrong in ({"now_s": 1.0}, answer([], [], next="new"), answer([], [], next=f"{'9' * 5000}-0")):
        with pytest.raises(UpstreamError, match="answer to shadows is not understood"):
            Feed(1.0).take(wrong)
