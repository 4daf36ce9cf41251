"""Tickets, turns and hand-offs, by hand and under any sequence of calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from headway.core.job import Job
from headway.routing import build_router
from headway.routing.ascendra import Ascendra
from headway.routing.pools import pool_of
from tests.strategies import UNTIMED, make_job

SPLIT = ("lp-0", "lp-1", "hp-0")


def routed(router: Ascendra, *names: str, instances: tuple[str, ...] = SPLIT) -> list[str]:
    """The instances of new jobs with these names, one after the other."""
    return [router.route(make_job(name), instances) for name in names]


# ---- by hand ---------------------------------------------------------------------------------------


def test_without_a_ticket_jobs_take_the_low_instances_in_turn() -> None:
    assert routed(Ascendra(tickets=False), *"abcd") == ["lp-0", "lp-1", "lp-0", "lp-1"]


def test_one_job_at_a_time_takes_a_ticket() -> None:
    # a is there before the ticket of hp-0 is. b takes it; the next is issued when b has its first token.
    router = Ascendra()
    assert routed(router, *"abcd") == ["lp-0", "hp-0", "lp-1", "lp-0"]
    router.started(make_job("b"))
    assert routed(router, "e", "f") == ["hp-0", "lp-1"]


def test_the_oldest_ticket_is_used_first() -> None:
    # hp-1's job starts before hp-0's, so its new ticket is the older one.
    router = Ascendra()
    four = ("lp-0", "hp-0", "hp-1")
    assert routed(router, *"abc", instances=four) == ["lp-0", "hp-0", "hp-1"]
    router.started(make_job("c"))
    router.started(make_job("b"))
    assert router.tickets == ("hp-1", "hp-0")
    assert routed(router, *"def", instances=four) == ["hp-1", "hp-0", "lp-0"]


def test_a_job_that_ends_unstarted_frees_the_queue_as_one_that_starts() -> None:
    router = Ascendra()
    routed(router, "a", "b")
    router.end(make_job("b"))
    assert routed(router, "c") == ["hp-0"]


def test_a_hand_off_that_lands_first_leaves_the_ticket_standing() -> None:
    router = Ascendra()
    routed(router, "a")
    assert router.hand_off(make_job("a"), SPLIT) == "hp-0"
    assert routed(router, "b", "c") == ["hp-0", "lp-1"]


def test_or_takes_it_back_until_nobody_waits() -> None:
    router = Ascendra(revoke=True)
    routed(router, "a")
    assert router.hand_off(make_job("a"), SPLIT) == "hp-0"
    assert routed(router, "b") == ["lp-1"]
    router.started(make_job("a"))
    assert routed(router, "c") == ["hp-0"]


def test_a_hand_off_goes_where_the_fewest_wait_and_equals_take_turns() -> None:
    # Waiting at hp-0, hp-1, hp-2: none; then 1 0 0, 1 1 0, 1 1 1, and 2 1 1.
    router = Ascendra(tickets=False)
    names = ("lp-0", "hp-0", "hp-1", "hp-2")
    routed(router, *"abcde", instances=names)
    assert [router.hand_off(make_job(name), names) for name in "abcd"] == ["hp-0", "hp-1", "hp-2", "hp-0"]
    router.started(make_job("c"))
    assert router.hand_off(make_job("e"), names) == "hp-2"


def test_nobody_takes_a_hand_off_where_no_high_instance_is() -> None:
    router = Ascendra()
    routed(router, "a", "b")
    assert router.hand_off(make_job("a"), ("lp-0", "lp-1")) is None
    # b is at hp-0, the only one, which gave it up: it stays counted there, and no ticket is issued.
    assert router.hand_off(make_job("b"), SPLIT) is None
    assert routed(router, "c") == ["lp-1"]


def test_what_waits_elsewhere_are_the_prompts_at_every_other_high_instance() -> None:
    # a and d go to hp-0 and b to hp-1, of 10 and 30 tokens; c stays at lp-0, whose queue counts for no other.
    router = Ascendra(tickets=False)
    names = ("lp-0", "hp-0", "hp-1")
    jobs = {name: make_job(name, prompt=tokens) for name, tokens in zip("abcd", (10, 30, 50, 7), strict=True)}
    for job in jobs.values():
        router.route(job, names)
    assert [router.hand_off(jobs[name], names) for name in "abd"] == ["hp-0", "hp-1", "hp-0"]
    assert list(router.waiting_elsewhere("lp-0", names)) == [17, 30]
    assert list(router.waiting_elsewhere("hp-0", names)) == [30]
    router.started(jobs["b"])
    router.end(jobs["d"])
    assert list(router.waiting_elsewhere("lp-0", names)) == [10, 0]
    assert list(router.waiting_elsewhere("lp-0", ("lp-0", "hp-1", "hp-2"))) == [0, 0]


def test_the_one_pool_stands_in_for_the_other() -> None:
    router = Ascendra(tickets=False)
    assert routed(router, *"ab", instances=("hp-0", "hp-1")) == ["hp-0", "hp-1"]
    assert routed(router, *"cd", instances=("lp-0",)) == ["lp-0", "lp-0"]
    assert routed(router, *"ef", instances=("0", "1")) == ["0", "1"]


def test_a_ticket_of_an_instance_that_is_away_waits_for_it() -> None:
    router = Ascendra()
    routed(router, "a")
    assert routed(router, "b", instances=("lp-0", "lp-1")) == ["lp-1"]
    assert routed(router, "c") == ["hp-0"]


def test_a_job_whose_instance_was_lost_is_counted_where_it_is_now() -> None:
    router = Ascendra()
    routed(router, "a", "b")
    assert routed(router, "b", instances=("lp-0", "lp-1")) == ["lp-1"]
    assert routed(router, "c") == ["hp-0"]


def test_the_router_by_its_names() -> None:
    plain, without, revoking = (
        build_router(name) for name in ("ascendra", "ascendra-no-ticket", "ascendra-revoke")
    )
    for router in (plain, without, revoking):
        router.route(make_job("a"), SPLIT)
        router.hand_off(make_job("a"), SPLIT)
    b = make_job("b")
    assert [router.route(b, SPLIT) for router in (plain, without, revoking)] == ["hp-0", "lp-1", "lp-1"]


# ---- under any calls -------------------------------------------------------------------------------

names = st.lists(
    st.sampled_from(["lp-0", "lp-1", "lp-2", "hp-0", "hp-1"]), min_size=1, max_size=5, unique=True
).map(lambda chosen: tuple(sorted(chosen)))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(1, 4))
def test_turns_are_fair_whoever_has_started(bursts: list[int], low: int) -> None:
    instances = tuple(f"lp-{number}" for number in range(low))
    router, sent = Ascendra(), Counter[str]()
    for burst, size in enumerate(bursts):
        jobs = [make_job(f"{burst}.{number}") for number in range(size)]
        sent.update(router.route(job, instances) for job in jobs)
        for job in jobs[::2]:
            router.started(job)
    assert max(sent.values()) - min(sent[name] for name in instances) <= 1


@dataclass
class Model:
    """The conclusions about one job that any observer of the calls may draw."""

    job: Job
    at: str
    waits: bool = True
    by_ticket: bool = False


class AnyCalls(RuleBasedStateMachine):
    """Jobs come, start, are handed off and end in any order, while instances come and go."""

    jobs = Bundle("jobs")

    @initialize(revoke=st.booleans(), instances=names)
    def begin(self, revoke: bool, instances: tuple[str, ...]) -> None:
        self.router = Ascendra(revoke=revoke)
        self.revoke = revoke
        self.instances = instances
        self.live: dict[str, Model] = {}
        self.landed: set[str] = set()
        self.count = 0

    @rule(instances=names)
    def change(self, instances: tuple[str, ...]) -> None:
        self.instances = instances

    @rule(target=jobs)
    def arrive(self) -> Model:
        model = Model(make_job(f"{self.count}"), "")
        self.count += 1
        self._place(model)
        self.live[model.job.id] = model
        return model

    @rule(model=jobs)
    def reroute(self, model: Model) -> None:
        """Route a job again whose instance was lost."""
        if model.job.id in self.live:
            model.waits = False
            self._place(model)

    def _place(self, model: Model) -> None:
        waited = self._waiting()
        at = self.router.route(model.job, self.instances)
        assert at in self.instances
        model.by_ticket = pool_of(at) == "hp" and any(pool_of(name) == "lp" for name in self.instances)
        if model.by_ticket:
            # A ticket of an instance where somebody waits can only be one that a hand-off has left standing.
            assert not waited[at] or (at in self.landed and not self.revoke)
            others = [other for other in self.live.values() if other.at == at and other is not model]
            assert not any(other.waits and other.by_ticket for other in others), "two tickets at once"
        model.at, model.waits = at, True

    def _waiting(self) -> Counter[str]:
        return Counter(model.at for model in self.live.values() if model.waits)

    @rule(model=jobs)
    def start(self, model: Model) -> None:
        if model.job.id in self.live:
            self.router.started(model.job)
            model.waits = False

    @rule(model=jobs)
    def hand_off(self, model: Model) -> None:
        if model.job.id not in self.live or not model.waits:
            return
        waited = self._waiting()
        at = self.router.hand_off(model.job, self.instances)
        high = [name for name in self.instances if pool_of(name) == "hp" and name != model.at]
        assert (at is None) == (not high)
        if at is not None:
            assert at in high
            assert waited[at] == min(waited[name] for name in high)
            self.landed.add(at)
            model.at, model.by_ticket = at, False

    @rule(model=consumes(jobs))
    def end(self, model: Model) -> None:
        if self.live.pop(model.job.id, None) is not None:
            self.router.end(model.job)

    @invariant()
    def counts_are_those_who_wait(self) -> None:
        if self.count:
            counted = {name: count for name, count in self.router._waiting.items() if count}
            assert counted == dict(self._waiting())
            tokens = {name: count for name, count in self.router._waiting_tokens.items() if count}
            assert tokens == {
                name: make_job("x").num_prompt_tokens * count for name, count in counted.items()
            }
            assert set(self.router._waits_at) == {id_ for id_, model in self.live.items() if model.waits}


AnyCalls.TestCase.settings = UNTIMED
TestAnyCalls = AnyCalls.TestCase
