"""The systems, what a run is made of, and what is read from its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from headway_reproduce.ascendra.cells import (
    ALL,
    CASES,
    LONGBENCH,
    MAIN,
    NARROW,
    QUICK,
    QWEN,
    SHARED_KERNEL,
    SHAREGPT,
    AscendraCase,
    AscendraChange,
    AscendraRun,
    AscendraScope,
    with_budget,
    with_targets,
)
from headway_reproduce.ascendra.claims import PAPER_GAINS
from headway_reproduce.ascendra.findings import crossing, scale_at_good
from headway_reproduce.ascendra.run import (
    AscendraResult,
    TokenGaps,
    measure,
    needed_scale,
    policies_of,
    simulate_ascendra,
    system_of,
)
from headway_reproduce.ascendra.services import (
    ASCENDRA,
    FIXED,
    NO_HAND_OFF,
    SARATHI,
    SARATHI_512,
    SPLITS,
    SYSTEMS,
    VLLM_V0,
    Service,
    with_threshold,
)

from headway.core.batch_shape import StepKind
from headway.core.cost import UnknownCost
from headway.core.plan import StepOutcome, StepPlan
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.errors import TraceError
from headway.policies.leaving.at_risk import AtRisk
from headway.policies.leaving.queue_limits import Expired
from tests.results.examples import make, unfinished
from tests.strategies import make_job

RUN = AscendraRun(case=MAIN, service=ASCENDRA, rate_rps=6.0, count=40, seed=0)
TARGETS = Slo(ttft_s=1.0, tbt_s=0.5)


# ---- systems -------------------------------------------------------------------------------------------


def test_there_are_six_cases_with_the_papers_targets() -> None:
    assert len(CASES) == 6
    assert {case.slo.ttft_s for case in CASES if case.data is SHAREGPT} == {1.0, 1.5}
    assert {case.slo.ttft_s for case in CASES if case.data is LONGBENCH} == {2.5, 3.0}
    assert {case.slo.tbt_s for case in CASES} == {0.15}
    assert set(PAPER_GAINS) <= set(CASES)


def test_a_stand_in_is_named_one() -> None:
    assert [str(case) for case in CASES if case.data.stand_in] == [
        "Mistral-7B/LongBench (stand-in)",
        "Llama-3.1-8B/LongBench (stand-in)",
        "Qwen-14B/LongBench (stand-in)",
    ]


def test_every_system_has_three_instances_of_the_papers_memory() -> None:
    for service in SYSTEMS:
        for case in CASES:
            system = system_of(replace(RUN, case=case, service=service))
            assert len(system.names) == 3
            assert system.limits.num_blocks == (3_000 if case.model is QWEN else 25_000)
    assert system_of(RUN).names == ("lp-0", "lp-1", "hp-0")
    assert system_of(replace(RUN, service=SPLITS["1L1H"])).names == ("lp-0", "hp-0")


def test_late_requests_are_dropped_in_overload_alone() -> None:
    def leaving(service: Service) -> list[list[type]]:
        policies = policies_of(replace(RUN, service=service), ())
        factories = policies.values() if isinstance(policies, Mapping) else [policies]
        return [[type(rule) for rule in build(UnknownCost()).leaving] for build in factories]

    assert leaving(ASCENDRA) == [[AtRisk], []]
    assert leaving(ASCENDRA.shedding()) == [[AtRisk, Expired], [Expired]]
    assert leaving(NO_HAND_OFF) == [[], []]
    for service in (VLLM_V0, SARATHI):
        assert leaving(service) == [[]]
        assert leaving(service.shedding()) == [[Expired]]


def test_what_is_swept_reaches_the_parts() -> None:
    policies = policies_of(replace(RUN, service=with_threshold(-0.1)), ())
    assert isinstance(policies, Mapping)
    [rule] = policies["lp"](UnknownCost()).leaving
    assert isinstance(rule, AtRisk)
    assert rule.threshold == -0.1
    policies = policies_of(replace(RUN, service=FIXED), ())
    assert isinstance(policies, Mapping)
    assert not policies["hp"](UnknownCost()).batching.elastic  # type: ignore[attr-defined]


def budgets(run: AscendraRun) -> dict[str, int | None]:
    """The tokens a step of each pool's batching."""
    policies = policies_of(run, ())
    found = policies if isinstance(policies, Mapping) else {"": policies}
    return {
        pool: getattr(build(UnknownCost()).batching, "token_budget", None) for pool, build in found.items()
    }


def test_all_that_compute_prompts_in_chunks_have_one_budget() -> None:
    # A step of 2,048 tokens of Mistral-7B takes 0.12 s of the 0.15 allowed, one of Qwen-14B 0.22 s.
    for case, tokens in [(MAIN, 2048), (AscendraCase(QWEN, SHAREGPT), 1024)]:
        run = replace(RUN, case=case)
        assert budgets(run) == {"lp": tokens, "hp": None}
        assert budgets(replace(run, service=SARATHI)) == {"": tokens}
        assert budgets(replace(run, service=SARATHI_512)) == {"": 512}
        assert budgets(replace(run, change=with_budget(256)))["lp"] == 256


def test_the_budget_follows_a_tighter_target_between_tokens() -> None:
    assert replace(RUN, change=with_targets(2.0, 0.035)).tokens == 512


# ---- a run ---------------------------------------------------------------------------------------------


def test_a_run_is_a_pure_function_of_what_it_is_given() -> None:
    first = simulate_ascendra(RUN)
    assert first == simulate_ascendra(RUN)
    assert first.requests == first.finished == 40
    assert set(first.pools) == {"lp", "hp"}
    assert sum(pool.first_tokens for pool in first.pools.values()) == 40
    assert first.step_errors == {}


def test_its_digest_tells_apart_all_that_decides_it() -> None:
    changed = [
        RUN,
        replace(RUN, case=AscendraCase(QWEN, SHAREGPT)),
        replace(RUN, service=ASCENDRA.shedding()),
        replace(RUN, service=SARATHI_512),
        replace(RUN, change=with_budget(512)),
        replace(RUN, change=SHARED_KERNEL),
        replace(RUN, gaps=True),
        replace(RUN, rate_rps=6.1),
        replace(RUN, count=41),
        replace(RUN, seed=1),
        replace(RUN, slo_scale=0.5),
        replace(RUN, errors=True),
        replace(RUN, change=AscendraChange(law="sharegpt")),
        replace(RUN, change=AscendraChange(kv_share=0.5)),
    ]
    assert len({run.digest() for run in changed}) == len(changed)
    assert replace(RUN).digest() == RUN.digest()


def test_targets_are_scaled_together_and_apart() -> None:
    assert replace(RUN, slo_scale=0.5).slo == Slo(ttft_s=0.5, tbt_s=0.075)
    assert replace(RUN, change=AscendraChange(tbt_factor=0.5)).slo == Slo(ttft_s=1.0, tbt_s=0.075)
    narrow = replace(RUN, change=NARROW).slo
    assert narrow.ttft_s == 2.0
    assert narrow.tbt_s == pytest.approx(0.035)


def test_an_error_names_the_run() -> None:
    short = replace(MAIN, data=replace(SHAREGPT, longest_output=1))
    with pytest.raises(TraceError, match=r"ascendra, Mistral-7B/ShareGPT, 6 req/s, seed 0: request 0 has"):
        simulate_ascendra(replace(RUN, case=_Targeted(short.model, short.data)))


class _Targeted(AscendraCase):
    """A case that the paper's table does not have."""

    slo = TARGETS


def test_errors_of_predicted_times_are_found_for_every_kind_of_step() -> None:
    found = simulate_ascendra(replace(RUN, count=150, errors=True))
    assert set(found.step_errors) == set(StepKind)
    plain = simulate_ascendra(replace(RUN, count=150))
    assert replace(found, step_errors={}) == plain  # watching changes nothing
    for errors in found.step_errors.values():
        assert all(error is None or 0 <= error < 0.5 for error in errors)


def test_a_gap_is_between_any_two_tokens_of_an_answer() -> None:
    # Three tokens at 1, 2 and 5 s: gaps of 1 and 3 s. A chunk of a prompt brings no token.
    gaps, a, b = TokenGaps(), make_job("a", prompt=10), make_job("b", prompt=10)
    for finished_s, computed, outputs in [(1.0, 10, 0), (2.0, 11, 1), (5.0, 12, 2)]:
        a.num_computed_tokens, a.num_output_tokens = computed, outputs
        b.num_computed_tokens = computed - 5
        gaps.stepped("0", StepOutcome(now_s=0.0, plan=StepPlan(), tokens={a: 1}), 0.0, finished_s)
    b.num_computed_tokens = 5
    gaps.stepped("0", StepOutcome(now_s=0.0, plan=StepPlan(), tokens={b: 5}), 0.0, 6.0)
    assert (gaps.at(0.0), gaps.at(1.0)) == (1.0, 3.0)
    assert TokenGaps().at(0.5) is None


def test_the_gaps_of_a_run_are_kept_where_they_are_asked_for() -> None:
    found, plain = simulate_ascendra(replace(RUN, gaps=True)), simulate_ascendra(RUN)
    assert plain.p99_gap_s is None
    assert found.p99_gap_s is not None
    assert found.p99_gap_s > (found.mean_tbt_s or 0.0)
    assert replace(found, p99_gap_s=None) == plain


# ---- the paper's direction, on small fixed workloads ---------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> dict[str, AscendraResult]:
    """400 requests at a rate at which targets of 2 s and 35 ms are hard to keep."""
    run = replace(RUN, rate_rps=8.9, count=400, change=NARROW)
    return {service.name: simulate_ascendra(replace(run, service=service)) for service in (ASCENDRA, VLLM_V0)}


@pytest.mark.slow
def test_more_is_in_time_than_under_prompts_first(narrow: dict[str, AscendraResult]) -> None:
    assert narrow["ascendra"].goodput > narrow["vllm-v0"].goodput


@pytest.mark.slow
def test_a_request_waits_at_hp_for_less_than_a_quarter_of_its_wait_at_lp(
    narrow: dict[str, AscendraResult],
) -> None:
    low, high = (narrow["ascendra"].pools[pool].delay_s for pool in ("lp", "hp"))
    assert low is not None
    assert high is not None
    assert 4 * high < low


# ---- what is read from records -------------------------------------------------------------------------


def test_requests_are_met_late_dropped_or_moved() -> None:
    # a: first token after 0.5 s of 1, then (2 - 0.5) / 4 = 0.375 s a token of 0.5: within. b: first token at 2, late.
    # c moved at 1 from lp-0 and was within at hp-0, first step there 0.25 s later. d was dropped.
    records = [
        make("a", slo=TARGETS, first_scheduled_s=0.25, first_token_s=0.5, finished_s=2.0, instance="lp-0"),
        make("b", slo=TARGETS, first_scheduled_s=1.0, first_token_s=2.0, finished_s=3.0, instance="lp-0"),
        unfinished("c", Outcome.HANDED_OFF, 0.5, 1.0, slo=TARGETS, instance="lp-0"),
        make(
            "c",
            slo=TARGETS,
            arrival_s=0.5,
            first_scheduled_s=1.25,
            first_token_s=1.5,
            finished_s=2.0,
            instance="hp-0",
        ),
        unfinished("d", Outcome.EXPIRED, 0.0, 1.0, slo=TARGETS, instance="lp-0"),
    ]
    result = measure(records, {"lp": 0.5, "hp": 0.25})
    assert (result.requests, result.finished, result.met, result.late, result.dropped) == (4, 3, 2, 1, 1)
    assert (result.moves, result.goodput) == (1, 0.5)
    assert result.needed_scale is None  # nine in ten of four are all four, and one did not finish
    low, high = result.pools["lp"], result.pools["hp"]
    assert (low.first_tokens, low.delay_s, low.busy_share) == (2, (0.25 + 1.0) / 2, 0.5)
    assert (high.first_tokens, high.delay_s, high.busy_share) == (1, 0.25, 0.25)
    assert result.ttft_s[0] == 0.5
    assert result.ttft_s[-1] == 2.0


def test_the_factor_needed_is_of_the_worse_target() -> None:
    # First token after 2 of 1 s: 2. Between tokens 0.25 of 0.5 s: 0.5, its first token after 0.25 s: 0.5 is the larger.
    late = make("a", slo=TARGETS, first_token_s=2.0, finished_s=3.0)
    early = make("b", slo=TARGETS, first_scheduled_s=0.1, first_token_s=0.25, finished_s=1.25)
    assert needed_scale([late, early], 2, 0.5) == 0.5
    assert needed_scale([late, early], 2, 0.9) == 2.0
    assert needed_scale([late, early], 3, 0.9) is None


def test_a_crossing_is_on_the_line_between_two_points() -> None:
    # From 1.0 at 2 to 0.8 at 4: 0.9 at 3.
    assert crossing([(1.0, 1.0), (2.0, 1.0), (4.0, 0.8), (5.0, 0.95)]) == pytest.approx(3.0)
    assert crossing([(1.0, 0.89), (2.0, 1.0)]) is None
    assert crossing([(1.0, 1.0), (2.0, 0.9)]) is None
    assert crossing([]) is None


def test_the_smallest_factor_is_on_the_line_between_two_points() -> None:
    assert scale_at_good([(0.2, 0.5), (0.4, 0.7), (0.6, 1.1)]) == pytest.approx(0.5)
    assert scale_at_good([(0.2, 0.95), (0.4, 1.0)]) == 0.2
    assert scale_at_good([(0.2, 0.5), (0.4, 0.8)]) is None


# ---- how much is run -----------------------------------------------------------------------------------


def test_the_quick_part_is_a_part_of_the_whole() -> None:
    def runs(scope: AscendraScope) -> set[AscendraRun]:
        found = scope.further_runs(lambda case, change: 7.0, 7.93)
        return {*scope.reference_runs(), *scope.sweep_runs(lambda case, change: 7.0), *found}

    quick, full = runs(QUICK), runs(ALL)
    assert len(quick) == QUICK.num_runs()
    assert len(full) == ALL.num_runs()
    assert quick < full


def test_every_load_is_a_rate_of_its_own_case() -> None:
    rates = {MAIN: 7.0, AscendraCase(QWEN, SHAREGPT): 1.5}
    found = QUICK.sweep_runs(lambda case, change: rates[case])
    assert {run.rate_rps for run in found if run.case == MAIN} == {3.5, 4.9, 6.3, 7.7, 9.1, 10.5, 11.9}
    assert max(run.rate_rps for run in found if run.case != MAIN) == 2.55
