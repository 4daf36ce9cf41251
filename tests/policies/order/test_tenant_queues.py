"""`TenantQueues` against the rule said plainly: each time the first job of whoever has had least."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.policies.order.sorted_index import Key
from headway.policies.order.tenants import QUANTUM_S, TenantQueues, TenantShares
from tests.strategies import UNTIMED, ids, make_job

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

    def turn_round(self) -> None:
        """Every tenant's jobs in the opposite order."""
        self.keys = {job: (-number, *rest) for job, (number, *rest) in self.keys.items()}
        self.index.rekey(self.keys)

    def plainly(self) -> Sequence[Job]:
        """All jobs by the rule."""
        left, found = dict(self.keys), []
        quanta = {job.tenant: self.shares.quantum(job.tenant) * QUANTUM_S for job in left}
        while left:
            found.append(min(left, key=lambda job: (quanta[job.tenant], left[job])))
            quanta[found[-1].tenant] += 1.0
            del left[found[-1]]
        return found


moves = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "go", "serve", "turn round"]),
        st.sampled_from(TENANTS),
        st.integers(0, 99),
    ),
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
        elif move == "turn round":
            waiting.turn_round()
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
