from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import Slo
from headway.errors import ConfigError, TraceError
from headway.planner.objective import Objective
from headway.planner.planner import Effort, affordable, make_plan
from headway.planner.preparation import usual_policies
from headway.planner.request import Targets
from headway.planner.runs import KeptPlanRuns
from headway.planner.search import sampled_s
from headway.predict.models.known_models import model_shape
from headway.statistics import Interval
from tests.planner.plans import TARGETS, ask, planned, prepared, two_classes

FOUND = prepared()
LOADED = prepared(slo=TARGETS, rate_scale=4.0, gpus=2)


def test_the_choice_is_at_least_as_good_as_the_default_and_a_second_plan_simulates_nothing(
    tmp_path: Path,
) -> None:
    first = planned(tmp_path, FOUND, budget=8)
    score = first.prepared.objective.score
    finals = first.found.finals[1]
    assert sum(map(score, finals[first.choice])) <= sum(map(score, finals[first.default])) + 0.02
    assert 0 < first.runs.simulated <= len(KeptPlanRuns.open(tmp_path, FOUND.manifest()).done)
    assert first.runs.simulated + first.runs.answered == len(
        KeptPlanRuns.open(tmp_path, FOUND.manifest()).done
    )
    again = planned(tmp_path, prepared(), budget=8)
    assert again.runs.simulated == 0
    assert again.runs.kept >= first.runs.simulated
    assert (again.choice, again.gain, again.found) == (first.choice, first.gain, first.found)


def test_the_gain_is_of_samples_that_chose_nothing(tmp_path: Path) -> None:
    found = planned(tmp_path, FOUND)
    assert set(found.unseen) == {found.choice, found.default}
    assert all(len(summaries) == 2 * FOUND.request.seeds for summaries in found.unseen.values())
    assert found.unseen[found.default] != found.found.finals[1][found.default]


def test_several_numbers_of_gpus_have_an_answer_each(tmp_path: Path) -> None:
    found = planned(tmp_path, LOADED, budget=8)
    assert list(found.best) == [1, 2]
    assert found.choice.gpus == 2
    assert found.prepared.objective is Objective.GOODPUT
    goodput = found.prepared.objective.mean
    one, two = (goodput(found.found.finals[gpus][each]) for gpus, each in found.best.items())
    assert one is not None
    assert two is not None
    assert one.mean < two.mean


@pytest.mark.slow
def test_the_fewest_gpus_that_hold_the_aim_are_found(tmp_path: Path) -> None:
    def fewest(aim: float) -> int | None:
        ask = prepared(slo=TARGETS, rate_scale=4.0, gpus=3, fewest=True, aim=aim)
        found = planned(tmp_path / f"{aim}", ask, budget=9)
        assert found.fewest is not None
        assert list(found.best) == [1, 2, 3]
        assert found.choice.gpus == (found.fewest.gpus or 3)
        return found.fewest.gpus

    numbers = [fewest(aim) for aim in (0.01, 0.3, 0.6, 1.0)]
    known = [number or 4 for number in numbers]
    assert known == sorted(known)
    assert known[0] == 1


@pytest.mark.slow
def test_what_holds_the_aim_where_it_was_chosen_alone_is_not_enough(tmp_path: Path) -> None:
    """200 s of what an H100 gets through, then 9 s of ten times as much; the search looks at 45 s from 144 on."""
    trace = tmp_path / "bursty.csv"
    arrivals_s = [*(number / 45 for number in range(9_000)), *(200 + number / 450 for number in range(4_000))]
    rows = "".join(f"{arrival_s:.4f},200,10\n" for arrival_s in arrivals_s)
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    ask = prepared(trace=str(trace), slo=Slo(ttft_s=1.0), fewest=True, seeds=1, policies=("vllm",))
    found = planned(tmp_path / "plan", ask, budget=1)
    assert found.fewest is not None
    assert found.prepared.objective.mean(found.found.finals[1][found.choice]) == Interval.of([1.0])
    assert found.fewest.gpus is None
    assert found.fewest.goodput == found.prepared.objective.mean(found.unseen[found.choice])
    assert found.fewest.goodput is not None
    assert found.fewest.goodput.mean < 0.9


def test_the_limit_of_answers_covers_the_samples_that_choose_nothing(tmp_path: Path) -> None:
    """Of these draws the third has the longest answer, 519 tokens, above the 512 of the two before."""
    trace = "gen:poisson:rate=10/input=sharegpt/output=lognormal:mean=100,sigma=1,max=8192/count=60/seed=3"
    found = planned(tmp_path, prepared(trace=trace, seeds=1, policies=("vllm",)), budget=1)
    assert found.prepared.task.max_output_tokens == 1024
    assert all(summary.finished == summary.requests for summary in found.unseen[found.choice])


def test_as_many_are_tried_as_the_minutes_allow(tmp_path: Path) -> None:
    told: list[float] = []
    effort = Effort(minutes=0.02, jobs=1)
    first = make_plan(
        FOUND, effort, KeptPlanRuns.open(tmp_path, FOUND.manifest()), lambda share, what: told.append(share)
    )
    assert 1 <= first.tried <= FOUND.space.size
    # What the first ones took is kept with them, so that a plan that goes on tries the same ones.
    again = make_plan(
        prepared(), effort, KeptPlanRuns.open(tmp_path, FOUND.manifest()), lambda share, what: None
    )
    assert (again.tried, again.runs.simulated) == (first.tried, 0)
    assert all(0 <= share <= 1 for share in told)


@given(st.floats(0.1, 1e5), st.floats(1e-5, 1.0), st.integers(1, 5), st.integers(1, 300))
def test_what_is_affordable_is_the_most_that_is(seconds: float, rate: float, samples: int, most: int) -> None:
    count = affordable(seconds, rate, samples, 100.0, most)
    assert 1 <= count <= most
    if count > 1:
        assert rate * sampled_s(count, samples, 100.0) <= seconds
    assert all(rate * sampled_s(more, samples, 100.0) > seconds for more in range(count + 1, most + 1))


def test_a_load_is_of_what_stock_gets_through_on_all_gpus() -> None:
    light, heavy = prepared(load=0.5), prepared(load=1.0)
    assert heavy.rate_rps == pytest.approx(2 * light.rate_rps)
    assert prepared(load=0.5, gpus=2).rate_rps > light.rate_rps
    assert prepared(rate_scale=3.0).rate_rps == pytest.approx(3 * FOUND.rate_rps)


def test_what_no_instance_holds_is_left_out_and_counted() -> None:
    """A model whose weights leave less room for KV than it reads."""
    large = model_shape("Qwen/Qwen3-30B-A3B-Instruct-2507")
    room = prepared(model=large.name).task.machine.costs(1).kv_capacity_tokens
    assert room < large.context_tokens
    long = f"gen:fixed:interval=1/input=zipf:theta=0.5,max={2 * room}/output=constant:tokens=5/count=20"
    found = prepared(model=large.name, trace=long)
    assert found.left_out + found.requests == 20
    assert found.left_out > 0
    assert found.task.longest_tokens <= room
    with pytest.raises(TraceError, match=r"no request of gen:fixed.* fits the .* tokens of KV"):
        prepared(
            model=large.name,
            trace=f"gen:fixed:interval=1/input=constant:tokens={room + 1}/output=constant:tokens=5/count=3",
        )


def test_usual_policies_are_those_there_is_something_for_to_do() -> None:
    first_token, between_tokens = Targets(shortest=Slo(ttft_s=1.0)), Targets(shortest=Slo(tbt_s=1.0))
    assert usual_policies(first_token, 2)[-1] == "ascendra"
    assert "ascendra" not in usual_policies(first_token, 1)
    assert "ascendra" not in usual_policies(between_tokens, 2)
    assert "edf" not in usual_policies(Targets(), 2)
    assert usual_policies(Targets(), 1)[0] == "vllm"


@pytest.mark.parametrize(("first", "others"), [(",0.05", "0.5,"), ("0.5,", ",0.05"), (",", "0.5,0.05")])
def test_whoever_has_a_target_counts_wherever_in_the_trace(tmp_path: Path, first: str, others: str) -> None:
    found = prepared(trace=two_classes(tmp_path, first, others), gpus=2, policies=None)
    assert found.policies[-2:] == ("edf", "ascendra")
    assert found.asked.shortest == Slo(ttft_s=0.5, tbt_s=0.05)
    thresholds = {
        each.threshold
        for grid in found.space.grids
        if grid.policy == "ascendra"
        for each in grid.possible.values()
    }
    assert len(thresholds) > 1


def test_numbers_of_gpus() -> None:
    assert ask(gpus=1).counts() == (1,)
    assert ask(gpus=6).counts() == (1, 2, 4, 6)
    assert ask(gpus=8).counts() == (1, 2, 4, 8)
    assert ask(gpus=3, slo=TARGETS, fewest=True).counts() == (1, 2, 3)


DEPLOYABLE = "accepted: none, learned"


@pytest.mark.parametrize(
    ("wishes", "complaint"),
    [
        (
            {"gpus": 65, "fewest": True, "slo": TARGETS},
            "gpus is 65 with fewest; accepted: 1 to 64, for a load in proportion",
        ),
        *(
            ({"predictor": name, "policies": (policy,)}, f"unknown predictor '{name}'; {DEPLOYABLE}$")
            for name in ("tea-leaves", "none:x", "")
            for policy in ("vllm", "predicted")
        ),
        (
            {"predictor": "broken"},
            f"'broken', which knows the true lengths, so it cannot be deployed; {DEPLOYABLE}$",
        ),
        ({"predictor": "st:./none"}, "'st:./none' is gone: 'learned' reads prompts too"),
        ({"fewest": True}, "fewest is asked for without targets; accepted: with --slo-ttft"),
        ({"aim": 0.9}, "goodput_aim is 0.9 without fewest; accepted: with --fewest"),
        ({"aim": 1.5, "fewest": True}, "goodput_aim is 1.5; accepted: a share above 0, at most 1"),
        (
            {"policies": ("ascendra",)},
            "nothing of ascendra can be deployed on 1 GPUs: .*pools need 2 instances",
        ),
        ({"model": "Llama-3.1-70B"}, r"does not fit 1 x h100"),
    ],
)
def test_what_is_not_accepted_is_said(wishes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        prepared(**wishes)


def test_a_trace_file_is_planned_for(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    rows = "".join(f"{number * 0.5},{50 + number},{10 + number % 7}\n" for number in range(400))
    file.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    found = prepared(trace=str(file))
    assert found.window_s == pytest.approx(199.5)
    assert planned(tmp_path / "out", found, budget=2).tried == 2
