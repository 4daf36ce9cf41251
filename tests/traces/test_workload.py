from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError, TraceError
from headway.traces import (
    NAMED_LAWS,
    AllAtOnce,
    Constant,
    Fixed,
    Gamma,
    LogNormal,
    OnOff,
    Poisson,
    TraceRequest,
    Workload,
    Zipf,
    generate,
    load_trace,
    parse_workload,
    write_trace,
)

TAIL = "/input=constant:tokens=3/output=constant:tokens=9/count=2"
SPEC = (
    "poisson:rate=8/input=lognormal:mean=64,sigma=0.8,max=512/output=zipf:theta=1.1,max=256/count=300/seed=1"
)


def test_a_workload_without_chance_by_hand() -> None:
    assert generate(Fixed(0.5), Constant(3), Constant(9), count=2, seed=0) == [
        TraceRequest("0", 0.0, 3, 9),
        TraceRequest("1", 0.5, 3, 9),
    ]
    # A declared limit ends an answer and is declared by every request.
    assert Workload(AllAtOnce(), Constant(3), Constant(9), 1, max_output_tokens=4).requests() == [
        TraceRequest("0", 0.0, 3, 4, max_output_tokens=4)
    ]


@given(count=st.integers(1, 30), more=st.integers(0, 20), seed=st.integers(0, 2**64))
def test_a_seed_decides_everything_and_fewer_begin_more(count: int, more: int, seed: int) -> None:
    laws = Gamma(4.0, 2.0), Zipf(0.9, 512), Zipf(1.1, 20)
    requests = generate(*laws, count + more, seed)
    assert requests == generate(*laws, count + more, seed)
    assert requests[:count] == generate(*laws, count, seed)
    assert requests[0].arrival_s == 0.0
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    assert all(request.input_tokens <= 512 and request.output_tokens <= 20 for request in requests)


def test_other_seeds_give_other_requests_and_each_law_has_its_own_stream() -> None:
    law = Zipf(0.7, 10**6)
    first, second = (generate(Poisson(1.0), law, law, 50, seed) for seed in (1, 2))
    assert first != second
    assert [request.input_tokens for request in first] != [request.output_tokens for request in first]
    # Another output law moves neither the arrivals nor the inputs; half the rate doubles the intervals.
    changed = generate(Poisson(0.5), law, Zipf(1.5, 9), 50, seed=1)
    assert [request.input_tokens for request in changed] == [request.input_tokens for request in first]
    assert [request.arrival_s for request in changed] == pytest.approx([2 * r.arrival_s for r in first])


def test_two_conversations_by_hand() -> None:
    # New tokens 600 and answers 100: prompts of 600, 1,300 and 2,000 tokens, of 2, 3 and 4 begun blocks of 512.
    turns = Workload(Fixed(10.0), Constant(600), Constant(100), 2, turns=3, think_s=1e-9).requests()
    assert [turn.id for turn in turns] == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    assert [turn.input_tokens for turn in turns] == [600, 1300, 2000] * 2
    assert {turn.output_tokens for turn in turns} == {100}
    assert [turn.session for turn in turns] == ["0"] * 3 + ["1"] * 3
    assert [turn.arrival_s for turn in turns] == pytest.approx([0, 0, 0, 10, 10, 10], abs=1e-6)
    assert [len(turn.prefix_blocks) for turn in turns] == [2, 3, 4] * 2
    assert turns[2].prefix_blocks[:2] == turns[0].prefix_blocks
    assert not set(turns[2].prefix_blocks) & set(turns[5].prefix_blocks)


def test_pauses_are_as_long_as_said_and_move_nothing_else() -> None:
    law = LogNormal(64.0, 0.8, 512)
    quick, slow = (
        Workload(Poisson(1.0), law, law, 500, seed=1, turns=4, think_s=think_s).requests()
        for think_s in (1.0, 20.0)
    )
    begun_s = {turn.id: turn.arrival_s for turn in slow}
    pauses_s = [
        begun_s[f"{talk}-{turn + 1}"] - begun_s[f"{talk}-{turn}"] for talk in range(500) for turn in range(3)
    ]
    assert fmean(pauses_s) == pytest.approx(20.0, rel=0.1)
    assert [turn.arrival_s for turn in slow] == sorted(turn.arrival_s for turn in slow)
    assert all(begun_s[turn.id] == turn.arrival_s for turn in quick if turn.id.endswith("-0"))
    lengths = [
        {turn.id: (turn.input_tokens, turn.output_tokens) for turn in turns} for turns in (quick, slow)
    ]
    assert lengths[0] == lengths[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": 0}, "count is 0; accepted: 1 to 10000000"),
        ({"count": 1, "seed": -1}, "seed is -1; accepted: 0 or more"),
        ({"count": 1, "max_output_tokens": 0}, "max_output_tokens is 0; accepted: 1 or more"),
        ({"count": 1, "turns": 0}, "turns is 0; accepted: 1 or more"),
        ({"count": 3_000_000, "turns": 5}, "count times turns is 15000000; accepted: 1 to 10000000"),
        ({"count": 1, "turns": 2, "think_s": -1}, "think is -1; accepted: seconds, 0 or more"),
    ],
)
def test_a_workload_out_of_range_is_refused(change: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Workload(AllAtOnce(), Constant(1), Constant(1), **change)


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        (SPEC, Workload(Poisson(8.0), LogNormal(64.0, 0.8, 512), Zipf(1.1, 256), 300, seed=1)),
        (f"gen:gamma:rate=4,cv=2{TAIL}", Workload(Gamma(4.0, 2.0), Constant(3), Constant(9), 2)),
        (
            f"onoff:rate_on=9,rate_off=0,mean_on=1,mean_off=4{TAIL}",
            Workload(OnOff(9.0, 0.0, 1.0, 4.0), Constant(3), Constant(9), 2),
        ),
        (f"fixed:interval=.5{TAIL}/seed=7", Workload(Fixed(0.5), Constant(3), Constant(9), 2, seed=7)),
        (
            f"at-once{TAIL}/max_output=5",
            Workload(AllAtOnce(), Constant(3), Constant(9), 2, max_output_tokens=5),
        ),
        (
            f"at-once{TAIL}/turns=5/think=2.5",
            Workload(AllAtOnce(), Constant(3), Constant(9), 2, turns=5, think_s=2.5),
        ),
        (
            "at-once/input=sharegpt/output=azure-conversation/count=1",
            Workload(AllAtOnce(), NAMED_LAWS["sharegpt"].input, NAMED_LAWS["azure-conversation"].output, 1),
        ),
        (
            "at-once/count=1/output=lognormal-fitted:max=90,mean=20,sigma=1,min=4/input=constant:tokens=3",
            Workload(AllAtOnce(), Constant(3), LogNormal.fitted(20.0, 1.0, 90, 4), 1),
        ),
    ],
)
def test_a_line_of_text_describes_a_workload(text: str, workload: Workload) -> None:
    assert parse_workload(text) == workload


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "arrivals is ''; accepted: poisson, gamma, onoff, fixed, at-once"),
        (
            "poison:rate=8",
            "arrivals is 'poison'; did you mean poisson? accepted: poisson, gamma, onoff, fixed, at-once",
        ),
        ("at-once", "the workload lacks 'input'; accepted: input=..., output=..., count=..., [seed=...]"),
        (f"poisson{TAIL}", "poisson lacks 'rate'; accepted: rate=..."),
        (f"poisson:rat=8{TAIL}", "'rat' is unknown to poisson; did you mean rate? accepted: rate=..."),
        (f"poisson:8{TAIL}", "'8' is unknown to poisson; accepted: rate=..."),
        (f"poisson:rate={TAIL}", "'rate' of poisson has no value"),
        (f"poisson:rate=8,rate=9{TAIL}", "'rate' of poisson has two values"),
        (f"poisson:rate=fast{TAIL}", "rate is 'fast'; accepted: a finite number"),
        (f"poisson:rate=nan{TAIL}", "rate is 'nan'; accepted: a finite number"),
        (f"poisson:rate=-1{TAIL}", "rate_rps is -1.0; accepted: a finite number above 0"),
        (f"at-once:rate=8{TAIL}", "'rate' is unknown to at-once; accepted: nothing"),
        (
            f"at-once{TAIL}/sed=1",
            "'sed' is unknown to the workload; did you mean seed? accepted: input=..., ",
        ),
        (f"at-once{TAIL}/turns=5", "turns and think go together; accepted: both, as turns=5/think=20"),
        (f"at-once{TAIL}/turns=0/think=1", "turns is 0; accepted: 1 or more"),
        (f"at-once{TAIL}/seed=1.5", "seed is '1.5'; accepted: a whole number"),
        (f"at-once{TAIL}/count=3", "'count' of the workload has two values"),
        ("at-once/input=sharegpt/output=sharegpt/count=0", "count is 0; accepted: 1 to 10000000"),
        (
            "at-once/input=sharegtp/output=sharegpt/count=1",
            "input is 'sharegtp'; did you mean sharegpt or ",
        ),
        ("at-once/input=sharegpt:max=9/output=sharegpt/count=1", "input is 'sharegpt'; accepted: "),
        (
            "at-once/input=lognormal:mean=9,sigma=1/output=sharegpt/count=1",
            "lognormal lacks 'max'; accepted: mean=..., sigma=..., max=..., [min=...]",
        ),
        (
            "at-once/input=zipf:theta=1,max=0/output=sharegpt/count=1",
            "maximum is 0; accepted: a whole number",
        ),
    ],
)
def test_a_mistake_is_named_with_what_is_accepted(text: str, says: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_workload(text)
    assert str(caught.value).startswith(f"workload {text!r}: ")
    assert says in str(caught.value)


@given(text=st.text("gen:poisfzrate=0123/,input-lognm.;", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_workload_or_a_trace_error(text: str) -> None:
    with suppress(TraceError):
        parse_workload(text)


def test_a_trace_is_loaded_from_a_file_or_a_line(tmp_path: Path) -> None:
    generated = parse_workload(SPEC).requests()
    path = tmp_path / "trace.csv"
    write_trace(generated, path)
    assert load_trace(f"gen:{SPEC}") == load_trace(path) == load_trace(str(path)) == generated
    assert load_trace(f"gen:{SPEC}", limit=7) == load_trace(path, limit=7) == generated[:7]
    for source in (f"gen:{SPEC}", path):
        with pytest.raises(TraceError, match="limit is 0; accepted: 1 or more"):
            load_trace(source, limit=0)
