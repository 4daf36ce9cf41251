"""Records that several tests share: one run computed by hand, and arbitrary ones."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo

ENDS = [outcome for outcome in Outcome if outcome is not Outcome.HANDED_OFF]


def make(id_: str = "a", **fields: Any) -> Record:
    """A finished request: arrives at 0 s, starts at 1 s, first token at 2 s, ends at 6 s with 5 tokens."""
    plain: dict[str, Any] = {
        "arrival_s": 0.0,
        "first_scheduled_s": 1.0,
        "first_token_s": 2.0,
        "finished_s": 6.0,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "outcome": Outcome.FINISHED,
    }
    return Record(id=id_, **{**plain, **fields})


def unfinished(
    id_: str, outcome: Outcome, arrival_s: float, finished_s: float | None, **fields: Any
) -> Record:
    """A request that left without a token."""
    return Record(
        id=id_, arrival_s=arrival_s, finished_s=finished_s, prompt_tokens=10, outcome=outcome, **fields
    )


def worked_run() -> list[Record]:
    """Seven requests, one per kind of end and three finished; see `test_metrics` for the numbers."""
    return [
        make("a", slo=Slo(ttft_s=2, tbt_s=1, deadline_s=6), preemptions=2, swapped_blocks=4),
        make(
            "b",
            arrival_s=1.0,
            finished_s=4.0,
            prompt_tokens=20,
            output_tokens=2,
            slo=Slo(ttft_s=0.5),
            preemptions=1,
            recomputed_tokens=7,
        ),
        make(
            "c",
            arrival_s=2.0,
            first_scheduled_s=6.0,
            first_token_s=10.0,
            finished_s=10.0,
            prompt_tokens=30,
            output_tokens=1,
        ),
        unfinished("d", Outcome.SHED, 3.0, 12.0, slo=Slo(deadline_s=5), swapped_blocks=1),
        unfinished("e", Outcome.EXPIRED, 4.0, 9.0),
        unfinished("f", Outcome.FAILED, 5.0, None, error="engine died"),
        unfinished("g", Outcome.CANCELLED, 6.0, 7.0),
    ]


def shed(record: Record) -> Record:
    """The same request, refused on arrival."""
    return replace(
        record,
        outcome=Outcome.SHED,
        first_scheduled_s=None,
        first_token_s=None,
        finished_s=record.arrival_s,
        output_tokens=0,
    )


_micros = st.integers(0, 10**9).map(lambda value: value / 1e6)
_target = st.none() | st.integers(1, 10**8).map(lambda value: value / 1e6)
_slos = st.just(NO_TARGETS) | st.builds(Slo, ttft_s=_target, tbt_s=_target, deadline_s=_target)


@st.composite
def _records(draw: st.DrawFn, id_: str) -> Record:
    """One record with times in order, each possibly missing where its outcome allows."""
    outcome = draw(st.sampled_from(list(Outcome)))
    times = sorted(draw(st.lists(_micros, min_size=4, max_size=4)))
    finished = outcome is Outcome.FINISHED
    return Record(
        id=id_,
        arrival_s=times[0],
        first_scheduled_s=draw(st.sampled_from([times[1], None])),
        first_token_s=draw(st.sampled_from([times[2], None])),
        finished_s=times[3] if finished else draw(st.sampled_from([times[3], None])),
        prompt_tokens=draw(st.integers(0, 10_000)),
        output_tokens=draw(st.integers(0, 10_000)),
        outcome=outcome,
        tenant=draw(st.text(max_size=5)),
        instance=draw(st.sampled_from(["lp-0", "hp-0"])),
        predicted_output_tokens=draw(st.none() | st.floats(0, 1e6)),
        token_times_s=draw(st.none() | st.lists(_micros, max_size=3)),
        slo=draw(_slos),
        preemptions=draw(st.integers(0, 9)),
        swapped_blocks=draw(st.integers(0, 99)),
        recomputed_tokens=draw(st.integers(0, 999)),
        error=draw(st.none() | st.text(max_size=9)),
    )


@st.composite
def runs(draw: st.DrawFn, min_size: int = 0) -> list[Record]:
    """Records of one run: every request with one record, a move perhaps, and for some moves the end as well."""
    found: list[Record] = []
    for number in range(draw(st.integers(min_size, 8))):
        record = draw(_records(str(number)))
        found.append(record)
        if record.outcome is Outcome.HANDED_OFF and draw(st.booleans()):
            found.append(
                replace(record, outcome=draw(st.sampled_from(ENDS)), finished_s=record.arrival_s + 1e4)
            )
    return found
