"""Seconds of service by hand; a quantum is a second."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.policies.order.least_work import LeastWork
from headway.policies.order.tenants import QUANTUM_S, TenantShares
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
