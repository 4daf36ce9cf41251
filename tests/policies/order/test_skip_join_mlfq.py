"""Skip-join queues by hand: a second a token, so that quanta are 1, 2, 4, 8 s, at levels 1, 2, 3, 4."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from math import inf, nextafter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from tests.policies.eviction.stage import Prices
from tests.policies.order.naive_queues import NaiveQueues
from tests.strategies import UNTIMED, ids, make_job


class Desk:
    """Jobs going through the order, as a policy would lead them: who runs is said, step by step."""

    def __init__(self, **settings: Any) -> None:
        self.order = SkipJoinMlfq(Prices(), **settings)
        self.waiting: list[Job] = []

    def arrive(self, id_: str, prompt: int, at_s: float = 0.0) -> Job:
        """A new job."""
        job = make_job(id_, prompt=prompt, arrival_s=at_s)
        self.waiting.append(job)
        self.order.add(job)
        return job

    def step(self, at_s: float, *running: Job) -> None:
        """These jobs, and no others, have tokens from now to the next step."""
        for job in running:
            if job in self.waiting:
                self.waiting.remove(job)
                self.order.remove(job)
        self.order.observe(StepOutcome(now_s=at_s, plan=StepPlan(), tokens=dict.fromkeys(running, 1)))

    def levels(self, *jobs: Job) -> list[int]:
        """The level of each job."""
        return [self.order.level_of(job) for job in jobs]


def just_after(now_s: float) -> float:
    """The next instant there is."""
    return nextafter(now_s, inf)


# ---- the level a job joins -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Quanta 1, 2, 4, 8, 16: the first that is a prompt's seconds or more.
        ({}, {1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 8: 4, 9: 5}),
        # 1, 3, 9.
        ({"ratio": 3.0}, {1: 1, 2: 2, 3: 2, 4: 3, 9: 3}),
        # 2, 4, 8, whatever a decode step takes.
        ({"quantum_s": 2.0}, {1: 1, 2: 1, 3: 2, 5: 3}),
        # A decode step takes 1 s, but 4 s is the least: 4, 8, 16.
        ({"least_quantum_s": 4.0}, {1: 1, 4: 1, 5: 2, 9: 3}),
        ({"skip_join": False}, {1: 1, 9: 1, 1000: 1}),
    ],
)
def test_a_job_joins_the_first_level_whose_quantum_covers_its_prefill(
    settings: dict[str, Any], expected: dict[int, int]
) -> None:
    desk = Desk(**settings)
    assert {prompt: desk.levels(desk.arrive(str(prompt), prompt))[0] for prompt in expected} == expected


def test_while_nothing_is_known_of_cost_every_prompt_is_short() -> None:
    order = SkipJoinMlfq()
    job = make_job(prompt=10**6)
    order.add(job)
    assert (order.level_of(job), order.level_quantum_s(1)) == (1, 0.01)


def test_levels_come_first_and_within_one_who_joined_it_first() -> None:
    # Levels 3, 1, 2, 1, 3.
    desk = Desk()
    jobs = [desk.arrive(name, prompt) for name, prompt in (("e", 4), ("d", 1), ("c", 2), ("b", 1), ("a", 3))]
    expected = ["d", "b", "c", "e", "a"]
    assert ids(desk.order.rank(jobs, 0.0)) == expected
    assert [ids(desk.order.top(k, 0.0)) for k in range(7)] == [expected[:k] for k in range(7)]


# ---- demotion --------------------------------------------------------------------------------------


def test_a_job_sinks_when_it_has_run_longer_than_its_quantum_and_not_before() -> None:
    # Level 1, 1 s: it may run from 5 to 6.
    desk = Desk()
    job = desk.arrive("a", 1, at_s=5.0)
    desk.step(5.0, job)
    desk.step(6.0, job)
    assert desk.levels(job) == [1]
    desk.step(just_after(6.0), job)
    assert desk.levels(job) == [2]


@pytest.mark.parametrize(
    ("computed", "demote_levels", "expected"),
    [
        (2, 1, 4),  # 6 tokens left of its prompt, 6 s: 1, 2 and 4 do not cover it, 8 does
        (4, 1, 3),  # 4 left: 4 covers it
        (8, 1, 2),  # a token, 1 s: one level down, though the first would cover it
        (8, 2, 3),  # two levels down
        (2, 2, 4),  # two levels down are not enough for 6 s
    ],
)
def test_it_sinks_past_levels_that_do_not_cover_its_next_iteration(
    computed: int, demote_levels: int, expected: int
) -> None:
    desk = Desk(skip_join=False, demote_levels=demote_levels)
    job = desk.arrive("a", 8)
    desk.step(0.0, job)
    job.num_computed_tokens = computed
    job.num_output_tokens = computed == 8
    desk.step(2.0, job)
    assert desk.levels(job) == [expected]


def test_a_job_that_lost_its_kv_keeps_its_place_too() -> None:
    desk = Desk()
    a, b = desk.arrive("a", 2), desk.arrive("b", 2)
    desk.step(0.0, a)
    desk.order.add(a)
    desk.step(1.0)
    assert ids(desk.order.top(9, 1.0)) == ["a", "b"]
    assert desk.levels(a, b) == [2, 2]


@pytest.mark.parametrize(("artifact_order", "expected"), [(False, "cab"), (True, "bac")])
def test_who_sinks_goes_to_the_tail_and_in_the_released_code_to_the_head(
    artifact_order: bool, expected: str
) -> None:
    # c is at level 2. a and b, at level 1, run 0 to 2, and sink to it in this order.
    desk = Desk(artifact_order=artifact_order)
    c = desk.arrive("c", 2)
    a, b = desk.arrive("a", 1), desk.arrive("b", 1)
    desk.step(0.0, a, b)
    assert "".join(ids(desk.order.rank([a, b, c], 2.0))) == expected
    desk.step(2.0, a, b)
    assert "".join(ids(desk.order.rank([a, b, c], 2.0))) == expected


# ---- promotion -------------------------------------------------------------------------------------


def test_who_has_not_run_for_so_long_is_promoted() -> None:
    # Level 4, since 0 s. At 3 s it is behind who is at level 1 already, and before who joins after it.
    desk = Desk(starve_s=3.0)
    long, first = desk.arrive("long", 8), desk.arrive("first", 1)
    middle = desk.arrive("middle", 2, at_s=2.0)
    before = nextafter(3.0, 0.0)
    desk.step(before)
    assert desk.levels(long) == [4]
    assert ids(desk.order.top(9, before)) == ["first", "middle", "long"]
    assert ids(desk.order.top(9, 3.0)) == ["first", "long", "middle"]
    desk.step(3.0)
    last = desk.arrive("last", 1, at_s=3.0)
    assert ids(desk.order.top(9, 3.0)) == ["first", "long", "last", "middle"]
    assert desk.levels(first, long, last, middle) == [1, 1, 1, 2]


def test_one_that_has_never_run_has_waited_since_it_came_and_not_since_the_clock_began() -> None:
    # The released code counts from 0 s, and promotes it at once (gap F4).
    desk = Desk(starve_s=3.0)
    job = desk.arrive("long", 8, at_s=100.0)
    for at_s in (100.0, 102.75):
        desk.step(at_s)
        assert desk.levels(job) == [4]
    desk.step(103.0)
    assert desk.levels(job) == [1]


@pytest.mark.parametrize(("prompt", "allowance_s"), [(8, 8.0), (2, 2.0)])
def test_a_promoted_job_may_run_for_its_next_iteration_if_that_is_longer_than_the_quantum(
    prompt: int, allowance_s: float
) -> None:
    # Promoted at 3, it runs from 4: at level 1, whose quantum is 1 s, it has its prefill's 8 s, or 2.
    desk = Desk(starve_s=3.0)
    job = desk.arrive("long", prompt)
    desk.step(3.0)
    desk.step(4.0, job)
    desk.step(4.0 + allowance_s, job)
    assert desk.levels(job) == [1]
    desk.step(just_after(4.0 + allowance_s), job)
    assert desk.levels(job)[0] > 1


def test_a_promoted_job_that_decodes_has_the_first_quantum() -> None:
    # q_1 is 2 s here, a decode step 1 s. It sank to level 2, stopped at 5, and starves at 8.
    desk = Desk(quantum_s=2.0, starve_s=3.0)
    job = desk.arrive("a", 1)
    desk.step(0.0, job)
    job.num_computed_tokens, job.num_output_tokens = 1, 1
    desk.step(4.0, job)
    desk.step(5.0)
    assert desk.levels(job) == [2]
    desk.step(8.0, job)
    desk.step(10.0, job)
    assert desk.levels(job) == [1]
    desk.step(10.25, job)
    assert desk.levels(job) == [2]


# ---- what is foreseen ------------------------------------------------------------------------------


def foresees(starve_s: float, width: int, now_s: float) -> list[float]:
    """ENST of a, c, d, e: two jobs at level 1, one at 2, one at 4, one at 5; all since 0 s."""
    desk = Desk(starve_s=starve_s)
    jobs = [desk.arrive(name, prompt) for name, prompt in zip("abcde", (1, 1, 2, 8, 9), strict=True)]
    return desk.order.next_service_s([jobs[0], *jobs[2:]], now_s, width)


def test_the_next_service_comes_when_all_above_have_sunk_to_a_jobs_level() -> None:
    # c: a and b use up 1 s each: 2. d, at 4: a and b 1 + 2 + 4 each, c 2 + 4: 20. e, at 5: the three of them 8 s
    # more each, and d its 8: 20 + 32 = 52.
    assert foresees(inf, 1, 0.0) == [0.0, 2.0, 20.0, 52.0]
    assert foresees(inf, 4, 0.0) == [0.0, 0.5, 5.0, 13.0]


def test_or_when_it_is_promoted_whichever_comes_first() -> None:
    assert foresees(10.0, 1, 0.0) == [0.0, 2.0, 10.0, 10.0]
    assert foresees(10.0, 1, 7.0) == [0.0, 2.0, 3.0, 3.0]
    assert foresees(10.0, 1, 12.0) == [0.0, 0.0, 0.0, 0.0]
    assert foresees(10.0, 4, 2.0) == [0.0, 0.5, 5.0, 8.0]


def test_who_runs_is_not_about_to_starve() -> None:
    # a above sinks in 1 + 2 + 4 s; c runs, so it has waited no time.
    desk = Desk(starve_s=5.0)
    a, c = desk.arrive("a", 1), desk.arrive("c", 8)
    desk.step(3.0, c)
    assert desk.order.next_service_s([a, c], 4.0, 1) == [0.0, 5.0]
    assert desk.order.next_service_s([a, c], 4.0, 2) == [0.0, 3.5]


def test_jobs_that_ended_are_waited_for_no_more() -> None:
    desk = Desk(starve_s=inf)
    a, c = desk.arrive("a", 1), desk.arrive("c", 2)
    assert desk.order.num_at_first(1) == 1
    desk.step(0.0, a)
    desk.order.end(a)
    assert desk.order.next_service_s([c], 0.0, 1) == [0.0]
    assert [desk.order.num_at_first(levels) for levels in (0, 1, 2)] == [0, 0, 1]


def test_a_prompt_that_got_on_meanwhile_may_sink_less_far_than_was_foreseen() -> None:
    # When the step at 2 s is planned 6 tokens are left: level 4. The step computes 4 of them: 2 are left, level 2.
    desk = Desk(skip_join=False)
    job, other = desk.arrive("a", 8), desk.arrive("b", 1)
    desk.step(0.0, job)
    job.num_computed_tokens = 2
    assert ids(desk.order.rank([job, other], 2.0)) == ["b", "a"]
    job.num_computed_tokens = 6
    desk.step(2.0, job)
    assert desk.levels(job) == [2]


# ---- against a naive account of the same rules --------------------------------------------------------

quarters_s = st.integers(0, 16).map(lambda quarters: quarters / 4)
"""Durations without rounding, so that both accounts agree to the last instant."""
arrivals = st.tuples(st.integers(1, 12), quarters_s)
steps = st.lists(
    st.tuples(st.lists(arrivals, max_size=2), st.sets(st.integers(0, 5)), quarters_s), max_size=12
)
"""Who comes before a step, after how long a time each; the places of those who run; and how long it takes."""
settings_drawn = st.fixed_dictionaries(
    {
        "ratio": st.sampled_from([1.5, 2.0]),
        "starve_s": st.sampled_from([0.25, 3.0, inf]),
        "demote_levels": st.integers(1, 2),
        "skip_join": st.booleans(),
        "artifact_order": st.booleans(),
    }
)


class Twins:
    """The order and the naive account, led through the same steps; live jobs in the order they came."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.desk = Desk(**settings)
        self.naive = NaiveQueues(quantum_s=1.0, token_s=1.0, **settings)
        self.live: list[Job] = []
        self.now_s = self.last_s = 0.0

    @property
    def order(self) -> SkipJoinMlfq:
        """The real one."""
        return self.desk.order

    def come(self, prompts: Iterable[tuple[int, float]]) -> None:
        """Jobs arrive one after another, all before the next step."""
        for prompt, after_s in prompts:
            self.now_s += after_s
            job = self.desk.arrive(f"{len(self.live)}", prompt, at_s=self.now_s)
            self.naive.arrive(job)
            self.live.append(job)

    def step(self, places: set[int], lasts_s: float) -> list[Job]:
        """Those who rank at these places run for so long."""
        ranked = self.order.rank(self.live, self.now_s)
        running = [job for place, job in enumerate(ranked) if place in places]
        self.desk.step(self.now_s, *running)
        self.naive.step(self.now_s, running)
        for job in running:
            if job.num_computed_tokens < job.num_prompt_tokens:
                job.num_computed_tokens += min(3, job.num_prompt_tokens - job.num_computed_tokens)
            else:
                job.num_output_tokens += 1
                job.num_computed_tokens = job.num_tokens - 1
        self.last_s = self.now_s
        self.now_s += lasts_s
        return running


@UNTIMED
@given(settings=settings_drawn, steps=steps)
def test_places_are_those_of_plain_lists(settings: dict[str, Any], steps: list[Any]) -> None:
    twins = Twins(settings)
    for coming, places, lasts_s in steps:
        twins.come(coming)
        foreseen = ids(twins.order.rank(twins.live, twins.now_s))
        waiting = [job for job in foreseen if job in ids(twins.desk.waiting)]
        assert [ids(twins.order.top(k, twins.now_s)) for k in (0, 1, 3, 99)] == [
            waiting[:k] for k in (0, 1, 3, 99)
        ]
        at_s = twins.now_s
        running = twins.step(places, lasts_s)
        assert foreseen == ids(twins.naive.ranked()), "the plan foresaw what the outcome then made true"
        assert foreseen == ids(twins.order.rank(twins.live, at_s))
        assert twins.desk.levels(*twins.live) == [twins.naive.level_of(job) for job in twins.live]
        assert all(job in twins.live for job in running)


@UNTIMED
@given(settings=settings_drawn, steps=steps, later_s=st.lists(quarters_s, max_size=4))
def test_asking_changes_nothing(settings: dict[str, Any], steps: list[Any], later_s: list[float]) -> None:
    twins, asked = Twins(settings), Twins(settings)
    for coming, places, lasts_s in steps:
        for each in (twins, asked):
            each.come(coming)
        for more_s in later_s:
            asked.order.top(3, asked.now_s + more_s)
            asked.order.rank(asked.live, asked.now_s + more_s)
            asked.order.next_service_s(asked.live, asked.now_s + more_s, 2)
        for each in (twins, asked):
            each.step(places, lasts_s)
        assert asked.desk.levels(*asked.live) == twins.desk.levels(*twins.live)
        ranks = [ids(each.order.rank(each.live, each.now_s)) for each in (twins, asked)]
        assert ranks[0] == ranks[1]


@UNTIMED
@given(settings=settings_drawn, steps=steps, share=st.floats(0, 1))
def test_the_next_change_is_when_somebody_moves_and_no_sooner(
    settings: dict[str, Any], steps: list[Any], share: float
) -> None:
    twins = Twins(settings)
    for coming, places, lasts_s in steps:
        twins.come(coming)
        start_s = twins.now_s
        running = twins.step(places, lasts_s)
        until_s = twins.order.next_change_s(StepView())
        ranked = ids(twins.order.rank(twins.live, start_s))
        waiting = [name for name in ranked if name in ids(twins.desk.waiting)]
        last_s = min(until_s, start_s + 1e3)
        for at_s in (start_s + share * (last_s - start_s), last_s):
            if start_s <= at_s <= until_s:
                assert ids(twins.order.rank(twins.live, at_s)) == ranked
                assert ids(twins.order.top(99, at_s)) == waiting
        if until_s < inf:
            at_s = just_after(just_after(max(until_s, start_s)))
            assert levels_if_they_run_on(twins, running, at_s) != twins.desk.levels(*twins.live)


def levels_if_they_run_on(twins: Twins, running: list[Job], until_s: float) -> list[int]:
    """The levels of all jobs if nothing happened until then."""
    order, live, runs_on = deepcopy((twins.order, twins.live, running))
    order.observe(StepOutcome(now_s=until_s, plan=StepPlan(), tokens=dict.fromkeys(runs_on, 1)))
    return [order.level_of(job) for job in live]


# ---- cost --------------------------------------------------------------------------------------------


class Looked(Job):
    """A job that counts how often it is looked up."""

    __slots__ = ()
    times = 0

    def __hash__(self) -> int:
        Looked.times += 1
        return id(self)


@pytest.mark.parametrize("at_s", [0.5, 3.0], ids=["nobody moves", "some move"])
def test_the_first_of_ten_thousand_are_found_without_a_look_at_the_others(at_s: float) -> None:
    # Three starve at 3 s, the others come at 2.5 s or wait at level 1.
    order = SkipJoinMlfq(Prices(), starve_s=3.0)
    prompts = [(2, 0.0)] * 3 + [(1 + number % 9, 2.5) for number in range(10_000)]
    for number, (prompt, arrival_s) in enumerate(prompts):
        order.add(Looked(id=str(number), arrival_s=arrival_s, num_prompt_tokens=prompt, max_output_tokens=9))
    Looked.times = 0
    assert len(order.top(16, at_s)) == 16
    assert Looked.times <= 10 * (16 + 3)


# ---- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantum_s": 0.0}, "quantum_s is 0.0; accepted: more than 0 seconds"),
        ({"quantum_s": inf}, "quantum_s is inf"),
        ({"least_quantum_s": -1.0}, "least_quantum_s is -1.0"),
        ({"ratio": 1.0}, "ratio is 1.0; accepted: more than 1"),
        ({"starve_s": 0.0}, "starve_s is 0.0; accepted: more than 0 seconds, inf for never"),
        ({"demote_levels": 0}, "demote_levels is 0; accepted: 1 or more"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SkipJoinMlfq(**settings)
