"""Seconds of service by hand; a quantum is a second."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.policies.order.least_work import LeastWork
from headway.policies.order.sorted_index import Key
from headway.policies.order.tenants import QUANTUM_S, TenantQueues, TenantShares
from tests.policies.order.per_token import PerToken, exactly
from tests.strategies import UNTIMED, ids, make_job


def shares(**served_s: float) -> TenantShares:
    """Tenants with a job each, and what they have had."""
    found = TenantShares()
    for tenant in served_s:
        found.come(tenant)
    for tenant, seconds in served_s.items():
        found.serve(tenant, seconds)
    return found


def asks(tenant: str, number: int, tokens: int = 8) -> Job:
    """A job of one second of work a token over eight."""
    return make_job(
        f"{tenant}{number}",
        prompt=1,
        arrival_s=float(number),
        tenant=tenant,
        limit=999,
        predicted_length=exactly(tokens),
    )


def lead_s(counted: TenantShares, tenant: str) -> float:
    return counted.leads_s([tenant])[tenant]


def in_turn(counted: TenantShares, *jobs: Job, work_s: float = 1.0) -> list[str]:
    queues: dict[str, list[Job]] = {}
    for job in jobs:
        queues.setdefault(job.tenant, []).append(job)
    heads = sorted(queues.values(), key=lambda queue: (counted.quantum(queue[0].tenant), queue[0].arrival_s))
    return ids(counted.in_turn(heads, lambda job: (job.arrival_s, job.id), lambda job: work_s))


def test_the_least_served_comes_first_until_it_has_caught_up() -> None:
    # b has had 2 s less: two jobs of a second, then they take turns by arrival.
    jobs = [asks("a", 1), asks("a", 2), *(asks("b", number) for number in (3, 4, 5))]
    assert in_turn(shares(a=2.0, b=0.0), *jobs) == ["b3", "b4", "a1", "b5", "a2"]


def test_within_a_quantum_nobody_has_had_more() -> None:
    assert lead_s(shares(a=0.9, b=0.0), "a") == 0.0
    assert lead_s(shares(a=2.5, b=0.0), "a") == 2.0
    assert in_turn(shares(a=0.4, b=0.0), asks("a", 1), asks("b", 2)) == ["a1", "b2"]


def test_being_away_saves_nothing_up_and_loses_nothing() -> None:
    counted = shares(a=50.0, b=10.0)
    counted.come("new")
    assert lead_s(counted, "b") == lead_s(counted, "new") == 0.0  # not 10 s of credit
    counted.go("a")
    assert counted.several
    counted.come("a")
    assert lead_s(counted, "a") == 40.0


def test_alone_nobody_is_ahead_and_nothing_is_remembered() -> None:
    counted = shares(a=50.0, b=10.0)
    counted.go("b")
    assert not counted.several
    assert lead_s(counted, "a") == 0.0
    counted.go("a")
    counted.come("b")
    assert lead_s(counted, "b") == 0.0
    assert set(counted._served_s) == {"b"}


def test_many_short_jobs_of_one_tenant_do_not_keep_a_long_one_of_another_waiting() -> None:
    # By least work alone all twenty shorter jobs come first. In turn each tenant gets a half: eight jobs of a second,
    # as many as 8 s of the other's.
    order = LeastWork(PerToken(), trusted_at_first=True)
    for number in range(20):
        order.add(asks("flood", number, tokens=8))
    order.add(asks("calm", 20, tokens=64))
    order.add(asks("calm", 21, tokens=64))
    names = ids(order.top(99, 30.0))
    assert names.index("calm20") == 1
    assert names.index("calm21") <= 10
    assert len(names) == 22


def test_what_runs_is_counted_as_it_comes() -> None:
    order = LeastWork(PerToken(), trusted_at_first=True)
    flood, calm = asks("flood", 1), asks("calm", 2, tokens=64)
    for job in (flood, calm):
        order.add(job)
    assert ids(order.rank([calm, flood], 3.0)) == ["flood1", "calm2"]
    order.remove(flood)
    flood.num_output_tokens = 16  # 2 s
    order.touch(flood)
    assert lead_s(order.shares, "flood") == 2.0
    assert ids(order.rank([flood, calm], 3.0)) == ["calm2", "flood1"]
    order.end(flood)
    assert not order.shares.several


works = st.lists(st.integers(1, 40), min_size=1, max_size=30)


@UNTIMED
@given(st.lists(works, min_size=2, max_size=4))
def test_while_all_have_jobs_none_is_a_quantum_and_a_job_behind_another(demands: list[list[int]]) -> None:
    """One job at a time is served whole; each was longest 40 tokens, 5 s."""
    order = LeastWork(PerToken(), trusted_at_first=True)
    waiting = []
    for tenant, lengths in enumerate(demands):
        for number, tokens in enumerate(lengths):
            waiting.append(asks(str(tenant), number, tokens))
            order.add(waiting[-1])
    served_s = dict.fromkeys({job.tenant for job in waiting}, 0.0)
    while len({job.tenant for job in waiting}) == len(demands):
        [first] = order.top(1, 100.0)
        tokens = int(first.predicted_output_tokens or 0)
        order.remove(first)
        first.num_output_tokens = tokens
        order.touch(first)
        order.end(first)
        waiting.remove(first)
        served_s[first.tenant] += tokens / 8
        assert max(served_s.values()) - min(served_s.values()) <= QUANTUM_S + 5.0


TENANTS = "abcde"


class Waiting:
    """Jobs that wait, a second of work each, and the index they stand in."""

    def __init__(self) -> None:
        self.shares = TenantShares()
        self.keys: dict[Job, Key] = {}
        self.index = TenantQueues(self.shares, key=lambda job: self.keys[job], work_s=lambda job: 1.0)

    def come(self, tenant: str, number: int) -> None:
        """A job, ranked by its number."""
        job = make_job(f"{tenant}{number:03}", tenant=tenant, arrival_s=float(number))
        self.shares.come(tenant)
        self.keys[job] = (number, job.arrival_s, job.id)
        self.index.insert(job, self.keys[job])

    def go(self, job: Job) -> None:
        """A job stops waiting, and ends."""
        self.index.remove(job, self.keys.pop(job))
        self.shares.go(job.tenant)

    def serve(self, tenant: str, seconds: float) -> None:
        """A tenant is served."""
        if self.shares.serve(tenant, seconds):
            self.index.place(tenant)

    def plainly(self) -> Sequence[Job]:
        """All jobs ranked by the plain rule."""
        left, found = dict(self.keys), []
        quanta = {job.tenant: self.shares.quantum(job.tenant) * QUANTUM_S for job in left}
        while left:
            found.append(min(left, key=lambda job: (quanta[job.tenant], left[job])))
            quanta[found[-1].tenant] += 1.0
            del left[found[-1]]
        return found


moves = st.lists(
    st.tuples(st.sampled_from(["come", "come", "go", "serve"]), st.sampled_from(TENANTS), st.integers(0, 99)),
    max_size=60,
)


@UNTIMED
@given(moves, st.integers(0, 70))
def test_slices_are_the_rule_said_plainly(moves: list[tuple[str, str, int]], stop: int) -> None:
    waiting = Waiting()
    for number, (move, tenant, amount) in enumerate(moves):
        if move == "come":
            waiting.come(tenant, number)
        elif move == "go" and waiting.keys:
            waiting.go(sorted(waiting.keys, key=lambda job: job.id)[amount % len(waiting.keys)])
        elif move == "serve" and waiting.shares.present(tenant):
            waiting.serve(tenant, amount / 8)
    expected = waiting.plainly()
    assert ids(waiting.index.slice(0, stop)) == ids(expected[:stop])
    assert all(waiting.index.holds(job, key) for job, key in waiting.keys.items())
    for job in expected:
        waiting.go(job)
    assert waiting.index.slice(0, 9) == []
    assert not waiting.shares.several


def test_the_first_of_ten_thousand_tenants_are_found_without_looking_at_all() -> None:
    waiting = Waiting()
    for number in range(10_000):
        waiting.come(f"t{number}", number)
    asked = 0

    def work_s(job: Job) -> float:
        nonlocal asked
        asked += 1
        return 1.0

    waiting.index._work_s = work_s
    assert ids(waiting.index.slice(0, 3)) == ["t0000", "t1001", "t2002"]
    assert asked < 5


def test_a_tenant_alone_stands_in_plain_order_however_much_it_has_had() -> None:
    waiting = Waiting()
    for number in (3, 1, 2):
        waiting.come("a", number)
    waiting.serve("a", 50.0)
    assert ids(waiting.index.slice(1, 3)) == ["a002", "a003"]
