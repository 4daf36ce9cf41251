from __future__ import annotations

from headway.policies.order.arrival import Arrival
from tests.strategies import decoding, ids, make_job


def queue(*names: str) -> Arrival:
    """Jobs that came in this order."""
    order = Arrival()
    for name in names:
        order.add(make_job(name))
    return order


def test_first_come_first_served_whatever_id_and_arrival_time() -> None:
    # The queue is the order of adding: a request stamped earlier may reach the engine later.
    order = Arrival()
    for name, arrival_s in (("c", 2.0), ("a", 1.0), ("b", 0.0)):
        order.add(make_job(name, arrival_s=arrival_s))
    assert ids(order.top(9, 5.0)) == ["c", "a", "b"]
    assert ids(order.top(2, 5.0)) == ["c", "a"]
    assert order.top(0, 5.0) == []


def test_preempted_jobs_come_back_at_the_front_the_last_one_first() -> None:
    # d and then c lose their KV (from the end of the batch): c was further ahead, so it is first again.
    order = queue("w")
    for name in ("d", "c"):
        order.add(make_job(name, num_preemptions=1))
    assert ids(order.top(9, 0.0)) == ["c", "d", "w"]


def test_a_newcomer_queues_behind_jobs_that_were_put_back() -> None:
    order = queue("a")
    order.add(make_job("back", num_preemptions=2))
    order.add(make_job("new"))
    assert ids(order.top(9, 0.0)) == ["back", "a", "new"]


def test_a_job_that_starts_leaves_the_others_in_place() -> None:
    order = queue("a", "b", "c")
    order.remove(order.top(2, 0.0)[1])
    assert ids(order.top(9, 0.0)) == ["a", "c"]


def test_nothing_moves_a_waiting_job() -> None:
    order = queue("a", "b")
    last = order.top(9, 0.0)[1]
    last.priority, last.num_output_tokens = -9, 5
    order.touch(last)
    assert ids(order.top(9, 0.0)) == ["a", "b"]


def test_residents_stay_in_order_of_admission_as_the_same_object() -> None:
    residents = [decoding("b"), decoding("a")]
    assert Arrival().rank(residents, 0.0) is residents
