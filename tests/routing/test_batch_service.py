"""Batches at instances: who is sent what, and when a batch is over."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.routing.batch_queue import BatchQueue, FirstCome, FixedSize
from headway.routing.batch_service import BatchCounts, BatchService
from tests.routing.batches import job


class Times:
    """Keeps what it is told of served batches."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, float]] = []

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return 1.0

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        self.seen.append((size, prompt_tokens, output_tokens, seconds))


def service(size: int = 2) -> tuple[BatchService, Times]:
    times = Times()
    return BatchService(BatchQueue(joining=FixedSize(size), choosing=FirstCome(), batch_time=times)), times


def jobs(names: str) -> list[Job]:
    return [job(name, 10, 20, arrival_s=float(place)) for place, name in enumerate(names)]


def sent(found: BatchService, instances: list[str], now_s: float = 0.0) -> dict[str, str]:
    return {
        instance: "".join(each.id for each in batch.jobs)
        for instance, batch in found.hand_out(instances, now_s)
    }


def test_an_instance_gets_the_next_batch_when_the_last_member_has_ended_by_hand() -> None:
    found, times = service()
    a, b, c, d, e = jobs("abcde")
    for each in (a, b, c, d, e):
        found.add(each, 1)
    assert sent(found, ["x", "y"], 5.0) == {"x": "ab", "y": "cd"}
    found.ended(a, 7.0, 4)
    assert sent(found, ["x", "y"], 7.0) == {}
    found.ended(b, 9.0, 6)
    # Two members of 10 prompt tokens, the longest answer 6, from 5 s to 9 s.
    assert times.seen == [(2, 10, 6, 4.0)]
    assert sent(found, ["x", "y"], 9.0) == {"x": "e"}
    assert found.counts == BatchCounts(sent=3, members=5)
    assert c in found
    assert a not in found


def test_members_that_come_back_wait_together_as_a_part_that_takes_no_newcomer_by_hand() -> None:
    found, times = service(3)
    a, b, c, d = jobs("abcd")
    for each in (a, b, c):
        found.add(each, 1)
    assert sent(found, ["x"]) == {"x": "abc"}
    found.given_back(c, 1.0)
    found.given_back(b, 2.0)
    found.add(d, 1)
    # a goes on alone at x; b and c are one batch, in the order in which they came back, and older than d's.
    assert sent(found, ["x", "y", "z"]) == {"y": "cb", "z": "d"}
    found.ended(a, 3.0, 20)
    assert times.seen == []  # a batch that was split teaches nothing
    assert found.counts == BatchCounts(sent=3, members=6, split=1)


def test_a_batch_of_which_all_came_back_waits_in_halves_by_hand() -> None:
    found, _ = service(4)
    short, long = jobs("abcd")[:2], [job(name, 10, 90) for name in "yz"]
    for each in (*short, *long):
        found.add(each, 1)
    assert sent(found, ["x"]) == {"x": "abyz"}
    for each in (long[0], short[0], long[1], short[1]):
        found.given_back(each, 1.0)
    # By planned length: the two of 20 tokens, and the two of 90; the oldest first.
    assert sent(found, ["x", "y"]) == {"x": "ab", "y": "yz"}


def test_a_job_goes_back_to_where_it_broke_only_while_there_is_no_other_by_hand() -> None:
    found, _ = service()
    a, b, c, d, e, f = jobs("abcdef")
    for each in (a, b, c, d, e, f):
        found.add(each, 1)
    assert sent(found, ["x", "y"]) == {"x": "ab", "y": "cd"}
    for each in (a, b):
        found.given_back(each, 1.0, ["x"])
    assert sent(found, ["x", "y"]) == {"x": "ef"}  # x is idle: those that come after go there
    for each in (c, d):
        found.ended(each, 2.0, 1)
    assert sent(found, ["x", "y"]) == {"y": "a"}
    found.given_back(a, 3.0, ["x", "y"])
    assert sent(found, ["x", "y"]) == {"y": "a"}  # it broke everywhere
    for each in (e, f):
        found.ended(each, 4.0, 1)
    assert sent(found, ["x", "y"]) == {}
    assert sent(found, ["x"]) == {"x": "b"}  # y is gone


def test_one_that_leaves_is_taken_out_of_its_batch_by_hand() -> None:
    found, times = service()
    a, b, c = jobs("abc")
    for each in (a, b, c):
        found.add(each, 1)
    found.ended(b, 0.5, None)
    assert sent(found, ["x"]) == {"x": "a"}
    found.ended(a, 1.0, None)
    assert times.seen == []
    found.ended(c, 1.0, None)
    assert sent(found, ["x"]) == {}
    assert found.counts.waiting == 0


def test_a_job_of_several_answers_takes_as_many_seats() -> None:
    found, times = service(3)
    a, b = jobs("ab")
    found.add(a, 2)
    found.add(b, 2)
    assert sent(found, ["x", "y"]) == {"x": "a", "y": "b"}
    found.ended(a, 1.0, 8)
    assert times.seen == [(2, 10, 8, 1.0)]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "end", "lose", "back", "serve"]), st.integers(0, 99)), max_size=80
    )
)
def test_whatever_happens_each_job_is_served_by_one_instance_at_a_time_and_ends_once(
    events: list[tuple[str, int]],
) -> None:
    found, _ = service(3)
    live: dict[Job, str | None] = {}
    ends: Counter[str] = Counter()
    for number, (what, pick) in enumerate(events):
        chosen = list(live)[pick % len(live)] if live else None
        if what == "add":
            new = job(f"{number}", 10 + pick, 20)
            live[new] = None
            found.add(new, 1)
        elif what == "serve":
            for instance, batch in found.hand_out(["x", "y"], float(number)):
                assert instance not in live.values()
                for each in batch.jobs:
                    assert live[each] is None
                    live[each] = instance
        elif chosen is not None and what in ("end", "lose"):
            found.ended(chosen, float(number), 5 if what == "end" and live[chosen] else None)
            del live[chosen]
            ends[chosen.id] += 1
        elif chosen is not None and live[chosen] is not None:
            found.given_back(chosen, float(number))
            live[chosen] = None
    serve_the_rest(found, live, ends)
    assert set(ends.values()) <= {1}
    assert found.counts.waiting == 0


def serve_the_rest(found: BatchService, live: dict[Job, str | None], ends: Counter[str]) -> None:
    while live:
        for instance, batch in found.hand_out(["x", "y"], 1e3):
            live |= dict.fromkeys(batch.jobs, instance)
        for each in [each for each, instance in live.items() if instance is not None]:
            found.ended(each, 1e3, 5)
            del live[each]
            ends[each.id] += 1
