from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Any

import pytest
from headway_reproduce.magnus.static_batches import TOO_LARGE, StaticResult, StaticSystem, simulate_batches
from hypothesis import given
from hypothesis import strategies as st

from headway.core.length_estimate import LengthEstimate
from headway.core.record import Outcome, Record
from headway.errors import TraceError
from headway.routing.batch_queue import BatchQueue
from headway.routing.magnus import BATCH_PRESETS, BatchSettings, build_batch_queue
from headway.traces import TraceRequest
from tests.sim.worlds import Linear, request

SECOND_STEPS = Linear(1.0)
LIMIT = 64


class StepCount:
    """Knows that a batch takes a second a token of its longest answer; keeps what it was told."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, float]] = []

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        return output_tokens

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        self.seen.append((size, prompt_tokens, output_tokens, seconds))


def queue(name: str, capacity: int = 1000, time: StepCount | None = None, **settings: Any) -> BatchQueue:
    expected = {"memory_confidence": 0.5, **settings}  # as the paper plans memory: by the expected length
    return build_batch_queue(name, BatchSettings(capacity_tokens=capacity, **expected), time or StepCount())


def truth(request: TraceRequest) -> LengthEstimate:
    return LengthEstimate.around(request.output_tokens)


def half(request: TraceRequest) -> LengthEstimate:
    return LengthEstimate.around(request.output_tokens / 2)


def serve(
    trace: list[TraceRequest],
    waiting: BatchQueue,
    capacity: int = 1000,
    instances: int = 1,
    step: Linear = SECOND_STEPS,
    **options: Any,
) -> tuple[dict[str, Record], StaticResult]:
    records: list[Record] = []
    system = StaticSystem(step=step, kv_capacity_tokens=capacity, instances=instances)
    result = simulate_batches(
        trace,
        waiting,
        system,
        on_record=records.append,
        **{"max_output_tokens": LIMIT, "estimate": truth, **options},
    )
    by_id = {record.id: record for record in records}
    assert len(by_id) == len(records), "each request ends exactly once"
    return by_id, result


def ends(records: dict[str, Record]) -> dict[str, float | None]:
    return {id_: record.finished_s for id_, record in records.items()}


def test_members_are_padded_to_the_longest_and_return_together_by_hand() -> None:
    # Prompts 10 and 4, answers 3 and 1. Prefill of 2 x 10 tokens: 1 + 2 = 3 s. Two decodes of 2 tokens: 1.2 s
    # each. Both return at 5.4. The short answer's seat brings 2 tokens nobody wants.
    trace = [request("a", 0, 10, 3), request("b", 0, 4, 1)]
    records, result = serve(trace, queue("vs"), step=Linear(1.0, 0.1))
    assert ends(records) == pytest.approx({"a": 5.4, "b": 5.4})
    assert records["b"].first_token_s == pytest.approx(3.0)
    assert (records["b"].output_tokens, records["b"].instance) == (1, "0")
    assert (result.valid_tokens, result.invalid_tokens, result.out_of_memory) == (4, 2, 0)


def test_a_batch_that_outgrows_the_memory_is_lost_when_it_does() -> None:
    # Room for 24 tokens is 12 a member: 10 of the prompt and 2 more. The second token ends at 3 + 1.2. Then the shorter
    # half, b with a prefill of 1.4 s, and a with one of 2 s and two decodes of 1.1 s.
    trace = [request("a", 0, 10, 3), request("b", 0, 4, 1)]
    records, result = serve(trace, queue("vs"), capacity=24, step=Linear(1.0, 0.1))
    assert ends(records) == pytest.approx({"b": 5.6, "a": 9.8})
    assert (result.batches, result.out_of_memory) == (3, 1)


def test_vanilla_batches_by_hand() -> None:
    # Three at 0 s in batches of two: a and b until 3 s (the longer answer), then c with d, which came at 1 s, until 5.
    trace = [request("a", 0, 10, 3), request("b", 0, 4, 1), request("c", 0, 4, 1), request("d", 1, 4, 2)]
    records, result = serve(trace, queue("vs", batch_size=2))
    assert ends(records) == {"a": 3.0, "b": 3.0, "c": 5.0, "d": 5.0}
    assert (result.batches, result.valid_tokens, result.invalid_tokens) == (2, 7, 3)


def test_two_instances_share_the_queue_and_an_idle_one_takes_what_there_is() -> None:
    # a (5 s) and b (2 s) at once, one each; c comes at 1 s and waits for the instance of b.
    trace = [request("a", 0, 4, 5), request("b", 0, 4, 2), request("c", 1, 4, 3)]
    records, _ = serve(trace, queue("vs", batch_size=1), instances=2)
    assert ends(records) == {"a": 5.0, "b": 2.0, "c": 5.0}
    assert [records[id_].instance for id_ in "abc"] == ["0", "1", "1"]


def test_all_that_come_at_one_instant_can_share_a_batch() -> None:
    trace = [request(f"{n}", 0, 4, 2) for n in range(3)]
    records, result = serve(trace, queue("vs"))
    assert result.batches == 1
    assert {record.finished_s for record in records.values()} == {2.0}


def test_short_answers_overtake_long_ones_by_ratio_by_hand() -> None:
    # x holds the instance until 4 s. The long one has waited 3 s for 40 (0.075), the short one 1 s for 2 (0.5).
    trace = [request("x", 0, 4, 4), request("long", 1, 300, 40), request("short", 3, 4, 2)]
    by_ratio, _ = serve(trace, queue("magnus", wma_limit=5000))
    assert ends(by_ratio) == {"x": 4.0, "short": 6.0, "long": 46.0}
    in_turn, _ = serve(trace, queue("abp", wma_limit=5000))
    assert ends(in_turn) == {"x": 4.0, "long": 44.0, "short": 46.0}


def test_each_step_of_the_paper_is_a_gain_on_a_small_workload_by_hand() -> None:
    # x holds the instance until 4 s; meanwhile 70 come, of which every seventh has 200 tokens and the others 10. A step
    # takes 1 s. vs: ten batches of 200 s. glp: nine batches of short ones and two of long ones, 490 s. abp and magnus:
    # one of each, 210 s; first come, first served the long ones are first, by ratio the short ones.
    trace = [request("x", 0, 10, 4)]
    trace += [request(f"{n}", 1, 10, 10 if n % 7 else 200) for n in range(70)]
    found = {
        name: serve(trace, queue(name, capacity=10**6), capacity=10**6, max_output_tokens=200)
        for name in ("vs", "glp", "abp", "magnus")
    }
    assert {name: max(filter(None, ends(records).values())) for name, (records, _) in found.items()} == {
        "vs": 2004.0,
        "glp": 494.0,
        "abp": 214.0,
        "magnus": 214.0,
    }
    means = [fmean(filter(None, ends(records).values())) for records, _ in found.values()]
    assert means == sorted(means, reverse=True)
    assert means[-1] == pytest.approx((4 + 60 * 14 + 10 * 214) / 71)


def test_memory_that_runs_out_splits_the_batch_by_hand() -> None:
    # Four of 10 + 10 tokens, thought to be 10 + 5: 4 x 15 = 60 fit, 4 x 20 = 80 do not. There is room for 60 / 4 - 10
    # = 5 tokens each: lost at 5 s. Two halves of 40 tokens, 10 s each.
    trace = [request(f"{n}", 0, 10, 10) for n in range(4)]
    records, result = serve(trace, queue("abp", capacity=60), capacity=60, estimate=half)
    assert ends(records) == {"0": 15.0, "1": 15.0, "2": 25.0, "3": 25.0}
    assert (result.out_of_memory, result.batches) == (1, 3)
    assert {record.preemptions for record in records.values()} == {1}
    assert {record.first_scheduled_s for record in records.values()} == {0.0}


def test_what_does_not_fit_alone_fails_with_a_reason() -> None:
    trace = [request("big", 0, 50, 30), request("small", 0, 5, 5)]
    records, _ = serve(trace, queue("abp", capacity=60), capacity=60, estimate=half)
    assert (records["big"].outcome, records["big"].error) == (Outcome.FAILED, TOO_LARGE)
    assert records["small"].outcome is Outcome.FINISHED


def test_the_estimate_of_times_hears_what_batches_took() -> None:
    learning = StepCount()
    trace = [request("a", 0, 10, 3), request("b", 0, 4, 1)]
    serve(trace, queue("magnus", time=learning))
    assert learning.seen == [(2, 10, 3, 3.0)]


def test_a_request_beyond_its_limit_or_with_a_name_in_use_is_refused() -> None:
    with pytest.raises(TraceError, match="request a has 65 output tokens; accepted: up to 64"):
        serve([request("a", 0, 4, 65)], queue("vs"))
    with pytest.raises(TraceError, match="id 'a' is used by two live requests"):
        serve([request("a", 0, 4, 4), request("a", 1, 4, 4)], queue("vs"))


@given(
    name=st.sampled_from(sorted(BATCH_PRESETS)),
    lengths=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(1, LIMIT)), min_size=1, max_size=30
    ),
    capacity=st.integers(1, 400),
    instances=st.integers(1, 3),
    share=st.sampled_from([0.5, 1.0, 2.0]),
)
def test_no_request_is_lost_whatever_is_predicted(
    name: str, lengths: list[tuple[int, int, int]], capacity: int, instances: int, share: float
) -> None:
    """Arrived = finished + failed, each once; only what does not fit alone fails; every finished one is whole."""
    trace = [
        request(f"{place}", arrival_s, prompt, output)
        for place, (arrival_s, prompt, output) in enumerate(sorted(lengths))
    ]

    def estimate(request: TraceRequest) -> LengthEstimate:
        return LengthEstimate.around(share * request.output_tokens)

    waiting = queue(name, capacity=capacity)
    records, result = serve(trace, waiting, capacity, instances=instances, estimate=estimate)
    assert set(records) == {request.id for request in trace}
    for request_ in trace:
        record = records[request_.id]
        fits = request_.input_tokens + request_.output_tokens <= capacity
        assert record.outcome is (Outcome.FINISHED if fits else Outcome.FAILED)
        assert record.output_tokens == (request_.output_tokens if fits else 0)
        assert record.finished_s is not None
        assert record.finished_s >= request_.arrival_s
    outcomes = Counter(record.outcome for record in records.values())
    assert result.out_of_memory == waiting.splits + outcomes[Outcome.FAILED]
    assert result.valid_tokens == sum(record.output_tokens for record in records.values())
