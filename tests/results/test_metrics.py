from collections import Counter
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import RecordError
from headway.results import COLUMNS, RunInfo, Summary, met_targets, summarize
from headway.results.metrics import (
    LOST,
    Better,
    Group,
    end_s,
    ends,
    jct_s,
    normalized_latency_s,
    tbt_s,
    ttft_s,
    weighted_turnaround,
)
from headway.statistics import known

from .examples import make, runs, unfinished, worked_run

# The worked run, times in seconds:
#   id  arrives  starts  token  ends  prompt  out   TTFT  TBT         JCT  JCT/out  turnaround  targets
#   a   0        1       2      6     10      5     2     4/4 = 1     6    1.2      6/5 = 1.2   2, 1, 6: all met
#   b   1        1       2      4     20      2     1     2/1 = 2     3    1.5      3/3 = 1     TTFT 0.5: missed
#   c   2        6       10     10    30      1     8     none        8    8        8/4 = 2     none
#   d   3                       12                                                              shed: missed
#   e   4                       9                                                               none
#   f   5                       5 (failed, no end written)                                      none
#   g   6                       7                                                               none
WORKED = {
    "requests": 7,
    "finished": 3,
    "shed": 1,
    "expired": 1,
    "handed_off": 0,
    "failed": 1,
    "cancelled": 1,
    "duration_s": 12.0,  # 12 - 0
    "throughput_rps": 0.25,  # 3 / 12
    "output_tps": 2 / 3,  # (5 + 2 + 1) / 12
    "total_tps": 17 / 3,  # (60 + 8) / 12
    "mean_ttft_s": 11 / 3,  # (2 + 1 + 8) / 3
    "p50_ttft_s": 2.0,
    "p99_ttft_s": 7.88,  # of 1, 2, 8: place 0.99 * 2 = 1.98, 2 + 0.98 * 6
    "mean_tbt_s": 1.5,
    "p99_tbt_s": 1.99,  # of 1, 2: place 0.99
    "mean_jct_s": 17 / 3,  # (6 + 3 + 8) / 3
    "p50_jct_s": 6.0,
    "p99_jct_s": 7.96,  # of 3, 6, 8: 6 + 0.98 * 2
    "mean_normalized_latency_s": 10.7 / 3,
    "weighted_turnaround": 1.4,  # 4.2 / 3
    "goodput": 1 / 3,  # a of a, b, d
    "goodput_rps": 1 / 12,
    "preemptions": 3,
    "swapped_out_blocks": 5,  # the shed request's block counts too
    "swapped_in_blocks": None,
    "recomputed_tokens": 7,
    "scheduler_us_per_step": None,
    "programs": None,
    "mean_program_s": None,
    "p99_program_s": None,
    "prefix_hit_rate": None,
}


def test_every_key_of_the_worked_run() -> None:
    assert summarize(worked_run()).to_dict() == pytest.approx(WORKED)


def test_the_keys_are_these_in_this_order_and_each_has_a_column() -> None:
    assert list(WORKED) == list(COLUMNS) == list(summarize([]).to_dict())


def test_columns_say_what_they_hold() -> None:
    for key, column in COLUMNS.items():
        assert column.meaning
        assert (column.unit == "s") == key.endswith("_s"), key
        assert (column.group is Group.LATENCY) <= (column.better is Better.LOWER), key
    assert len({column.heading for column in COLUMNS.values()}) == len(COLUMNS)


def test_what_a_run_knows_beyond_its_records_is_taken_over() -> None:
    run = RunInfo(swapped_out_blocks=9, swapped_in_blocks=8, scheduler_us_per_step=31.5)
    summary = summarize(worked_run(), run=run)
    assert (summary.swapped_out_blocks, summary.swapped_in_blocks) == (9, 8)
    assert summary.scheduler_us_per_step == 31.5


def test_a_program_lasts_from_its_first_arrival_to_its_last_answer() -> None:
    turns = [
        make("a", program="p", arrival_s=1.0, finished_s=4.0, prompt_tokens=30),
        make("b", program="p", arrival_s=6.0, finished_s=9.0, prompt_tokens=50),
        make("c", program="p", tenant="other", arrival_s=0.0, finished_s=2.0, prompt_tokens=20),
        unfinished("d", Outcome.FAILED, 0.0, 9.0, program="q"),
        make("e", program="q", arrival_s=9.0, finished_s=99.0, prompt_tokens=20),
        make("f", arrival_s=0.0, finished_s=50.0, prompt_tokens=30),
    ]
    summary = summarize(turns, run=RunInfo(cached_tokens=40))
    assert (summary.programs, summary.mean_program_s) == (2, 5.0)
    assert summary.p99_program_s == pytest.approx(7.94)
    assert summary.prefix_hit_rate == 40 / sum(turn.prompt_tokens for turn in turns)


def test_no_records_give_zeros_and_nulls() -> None:
    counts = [value for value in summarize([]).to_dict().values() if value is not None]
    assert counts == [0] * 10


def test_a_run_without_duration_has_no_rates() -> None:
    summary = summarize([unfinished("a", Outcome.SHED, 1.0, 1.0, slo=Slo(ttft_s=1))])
    assert summary.duration_s == 0
    assert (summary.throughput_rps, summary.output_tps, summary.goodput_rps) == (None, None, None)
    assert summary.goodput == 0


def test_one_request_is_its_own_quantile() -> None:
    summary = summarize([make()])
    assert summary.mean_ttft_s == summary.p50_ttft_s == summary.p99_ttft_s == 2
    assert summary.goodput is None


def test_weighted_turnaround_as_adaptivellm_defines_it() -> None:
    # sent at 0, scheduled at 5, finished at 10: 10 / 5
    assert weighted_turnaround(make(first_scheduled_s=5.0, first_token_s=6.0, finished_s=10.0)) == 2.0


@pytest.mark.parametrize(
    ("record", "ttft", "tbt", "turnaround", "normalized"),
    [
        (make(), 2.0, 1.0, 1.2, 1.2),
        (make(first_token_s=None), None, None, 1.2, 1.2),
        (make(first_scheduled_s=None), 2.0, 1.0, None, 1.2),
        (make(output_tokens=1), 2.0, None, 1.2, 6.0),
        (make(output_tokens=0), 2.0, None, 1.2, None),
        (make(first_scheduled_s=6.0, first_token_s=6.0), 6.0, 0.0, None, 1.2),
        (make(outcome=Outcome.CANCELLED), None, None, None, None),
    ],
)
def test_a_value_that_was_not_measured_is_none(
    record: Record, ttft: float | None, tbt: float | None, turnaround: float | None, normalized: float | None
) -> None:
    assert (ttft_s(record), tbt_s(record)) == (ttft, tbt)
    assert (weighted_turnaround(record), normalized_latency_s(record)) == (turnaround, normalized)


@pytest.mark.parametrize(
    ("changes", "slo", "met"),
    [
        ({}, Slo(), True),
        ({}, Slo(ttft_s=2, tbt_s=1, deadline_s=6), True),
        ({}, Slo(ttft_s=1.999), False),
        ({}, Slo(tbt_s=0.999), False),
        ({}, Slo(deadline_s=5.999), False),
        ({"output_tokens": 1}, Slo(tbt_s=0.001), True),  # one token: nothing between tokens
        ({"first_token_s": None}, Slo(ttft_s=100), False),  # not seen is not met
        ({"first_token_s": None}, Slo(tbt_s=100), False),
        ({"first_token_s": None}, Slo(deadline_s=6), True),
        ({"outcome": Outcome.CANCELLED}, Slo(ttft_s=100), False),
        # 0.4 - 0.1 is 0.30000000000000004 in floating point, and 0.3 in truth
        ({"arrival_s": 0.1, "first_scheduled_s": 0.2, "first_token_s": 0.4}, Slo(ttft_s=0.3), True),
        ({"arrival_s": 0.1, "first_scheduled_s": 0.2, "first_token_s": 0.400001}, Slo(ttft_s=0.3), False),
    ],
)
def test_targets_are_met_up_to_and_including_the_target(changes: dict[str, Any], slo: Slo, met: bool) -> None:
    assert met_targets(make(slo=slo, **changes)) is met


def test_an_unwritten_end_is_the_last_time_there_is() -> None:
    assert [
        end_s(make()),
        end_s(make(finished_s=None)),
        end_s(make(finished_s=None, first_token_s=None)),
        end_s(make(finished_s=None, first_token_s=None, first_scheduled_s=None)),
    ] == [6.0, 2.0, 1.0, 0.0]


def move(id_: str, at_s: float, instance: str) -> Record:
    slo = Slo(deadline_s=100)
    return unfinished(id_, Outcome.HANDED_OFF, 0.0, at_s, instance=instance, slo=slo, preemptions=1)


def test_a_hand_off_is_a_move_and_its_work_counts() -> None:
    # moved twice, then finished in time: one request, two moves, the preemptions of all three records
    end = make("a", preemptions=1, slo=Slo(deadline_s=100))
    summary = summarize([move("a", 1.0, "lp-0"), move("a", 3.0, "lp-1"), end])
    assert (summary.requests, summary.finished, summary.handed_off, summary.failed) == (1, 1, 2, 0)
    assert (summary.preemptions, summary.goodput, summary.duration_s) == (3, 1.0, 6.0)


def test_a_request_handed_off_and_never_seen_again_failed() -> None:
    records = [make("a", slo=Slo(deadline_s=6)), move("b", 3.0, "lp-1"), move("b", 1.0, "lp-0")]
    (lost,) = [record for record in ends(records) if record.id == "b"]
    assert (lost.outcome, lost.error, lost.instance) == (Outcome.FAILED, LOST, "lp-1")
    summary = summarize(records)
    assert (summary.requests, summary.failed, summary.handed_off, summary.goodput) == (2, 1, 2, 0.5)


def test_a_request_cannot_end_twice() -> None:
    with pytest.raises(RecordError, match="'a' ends twice"):
        summarize([make("a"), unfinished("a", Outcome.CANCELLED, 0.0, 1.0)])


@given(data=st.data(), records=runs())
def test_the_order_of_the_records_does_not_matter(data: st.DataObject, records: list[Record]) -> None:
    assert summarize(data.draw(st.permutations(records))) == summarize(records)


@given(records=runs())
def test_requests_are_conserved(records: list[Record]) -> None:
    summary = summarize(records)
    assert summary.requests == len({record.id for record in records})
    assert summary.requests == (
        summary.finished + summary.shed + summary.expired + summary.failed + summary.cancelled
    )
    outcomes = Counter(record.outcome for record in records)
    assert summary.handed_off == outcomes[Outcome.HANDED_OFF]
    assert summary.failed >= outcomes[Outcome.FAILED]


@given(records=runs())
def test_quantiles_lie_within_the_values(records: list[Record]) -> None:
    summary = asdict(summarize(records))
    for name, value in (("ttft", ttft_s), ("jct", jct_s), ("tbt", tbt_s)):
        values = known(map(value, ends(records)))
        for key in (f"p50_{name}_s", f"p99_{name}_s"):
            if key in summary:
                assert summary[key] is None if not values else min(values) <= summary[key] <= max(values)


@given(records=runs())
def test_goodput_is_a_share_of_the_requests_with_a_target(records: list[Record]) -> None:
    summary = summarize(records)
    if any(record.slo for record in records):
        assert summary.goodput is not None
        assert 0 <= summary.goodput <= 1
    else:
        assert summary.goodput is summary.goodput_rps is None


@given(records=runs(), arrival_s=st.floats(0, 1e3))
def test_a_failed_request_with_a_target_never_raises_goodput(records: list[Record], arrival_s: float) -> None:
    before = summarize(records).goodput
    lost = unfinished("lost", Outcome.FAILED, arrival_s, None, slo=Slo(ttft_s=1))
    after = summarize([*records, lost]).goodput
    assert after is not None
    assert after == 0 if not before else after < before


@given(records=runs(), shift_s=st.integers(0, 1000))
def test_shifting_the_clock_changes_no_count(records: list[Record], shift_s: int) -> None:
    moved = [
        replace(
            record,
            arrival_s=record.arrival_s + shift_s,
            finished_s=None if record.finished_s is None else record.finished_s + shift_s,
        )
        for record in records
    ]
    before, after = summarize(records), summarize(moved)
    for key in ("requests", "finished", "failed", "handed_off", "preemptions"):
        assert getattr(before, key) == getattr(after, key)


def test_a_summary_names_every_value() -> None:
    with pytest.raises(TypeError, match="missing"):
        Summary()  # type: ignore[call-arg]
