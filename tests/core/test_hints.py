from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.hints import MAX_TENANT_CHARACTERS, RequestHints, elsewhere_hint, length_hints, read_hints
from headway.core.length_estimate import LengthEstimate
from headway.core.slo import MAX_TARGET_S, NO_TARGETS, Slo
from headway.errors import ConfigError
from tests.strategies import UNTIMED

MAX_TARGET_MS = MAX_TARGET_S * 1000
TARGETS = {"headway_ttft_ms": "ttft_s", "headway_tbt_ms": "tbt_s", "headway_deadline_ms": "deadline_s"}
COUNTS = ("headway_length", "headway_length_low", "headway_length_high", "headway_max_output_tokens")
DEFAULT = Slo(ttft_s=1.0, tbt_s=0.1)

NOT_NUMBERS = [None, True, False, "", "soon", "1 s", [], [5], {}, {"ms": 5}, (5,), 1j]
HUGE = [10**400, -(10**400), pytest.param(10**5000, id="5001 digits"), "9" * 400, 1e308, 2**63]


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1, "head": "way", "Headway_ttft_ms": -1}])
def test_without_hints_the_defaults_hold(extra_args: dict[str, Any] | None) -> None:
    assert read_hints(extra_args, DEFAULT) == RequestHints(slo=DEFAULT)
    assert read_hints(extra_args) == RequestHints(slo=NO_TARGETS)


@pytest.mark.parametrize("key", TARGETS)
@pytest.mark.parametrize(
    ("value", "target_s"),
    [(500, 0.5), (0.25, 0.00025), ("500", 0.5), (MAX_TARGET_MS, MAX_TARGET_S), (1e-9, 1e-12)],
)
def test_targets_are_milliseconds(key: str, value: object, target_s: float) -> None:
    expected = {**asdict(NO_TARGETS), TARGETS[key]: pytest.approx(target_s, rel=1e-12, abs=0)}
    assert asdict(read_hints({key: value}).slo) == expected


@pytest.mark.parametrize("key", TARGETS)
@pytest.mark.parametrize(
    "value", [0, -0.0, -1, nan, inf, -inf, "nan", "inf", "-5", MAX_TARGET_MS * 1.001, 5e-324]
)
def test_targets_out_of_range_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} is .*; accepted: milliseconds in \(0, 6.048e\+08\]$"):
        read_hints({key: value}, DEFAULT)


@pytest.mark.parametrize("key", [*TARGETS, *COUNTS])
@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_what_is_no_number_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is .*; accepted: (milliseconds in .*|1 or more tokens)$"):
        read_hints({key: value})


@pytest.mark.parametrize(("value", "read"), [(1, 1), (2**31 - 1, 2**31 - 1), ("300", 300), (12.5, 12.5)])
def test_counts_are_tokens(value: object, read: float) -> None:
    assert read_hints({"headway_length": value}).predicted_length == LengthEstimate.around(read)
    limit = read_hints({"headway_max_output_tokens": value}).max_output_tokens
    assert limit == int(read)
    assert isinstance(limit, int)


def test_a_predicted_length_may_come_with_its_interval() -> None:
    given = {"headway_length": 100, "headway_length_low": 40, "headway_length_high": 300}
    assert read_hints(given).predicted_length == LengthEstimate(100.0, 40.0, 300.0)


@pytest.mark.parametrize(
    "given",
    [
        {"headway_length": 100, "headway_length_low": 40},
        {"headway_length": 100, "headway_length_high": 300},
        {"headway_length_low": 40, "headway_length_high": 300},
        {"headway_length": 100, "headway_length_low": 101, "headway_length_high": 300},
        {"headway_length": 100, "headway_length_low": 40, "headway_length_high": 99},
    ],
)
def test_an_interval_has_two_ends_around_its_value(given: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="accepted: the value alone, or with both ends, around it"):
        read_hints(given)


@pytest.mark.parametrize("tokens", [(0,), (1200, 0), (10**14,)])
def test_what_waits_elsewhere_is_read_as_it_was_said(tokens: tuple[int, ...]) -> None:
    assert read_hints(elsewhere_hint(tokens)).waiting_elsewhere == tokens
    assert read_hints({"headway_tenant": "t"}).waiting_elsewhere is None
    assert elsewhere_hint(()) == {}


@pytest.mark.parametrize("value", ["", "1,", "-1", "1.5", "1 2", 1200, [1200], None, "9" * 16, "1," * 10_001])
def test_what_is_no_list_of_tokens_is_refused(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^headway_waiting_elsewhere is .*; accepted: tokens at each instance"
    ):
        read_hints({"headway_waiting_elsewhere": value})


@pytest.mark.parametrize("tenant", ["", "a", "büro 7", "x" * MAX_TENANT_CHARACTERS])
def test_a_tenant_is_a_short_text(tenant: str) -> None:
    assert read_hints({"headway_tenant": tenant}).tenant == tenant


@pytest.mark.parametrize("tenant", ["x" * (MAX_TENANT_CHARACTERS + 1), "x" * 10**6, 7, None, ["a"], b"a"])
def test_another_tenant_is_refused_in_a_short_message(tenant: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^headway_tenant is .*; accepted: up to 128 printable characters$"
    ) as raised:
        read_hints({"headway_tenant": tenant})
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(("program", "read"), [("", None), ("run 7", "run 7"), ("x" * 256, "x" * 256)])
def test_a_program_is_a_short_text(program: str, read: str | None) -> None:
    assert read_hints({"headway_program": program}).program == read


@pytest.mark.parametrize("program", ["x" * 257, "a\nb", 7])
def test_another_program_is_refused(program: object) -> None:
    with pytest.raises(ConfigError, match=r"^headway_program is .*; accepted: up to 256 printable"):
        read_hints({"headway_program": program})


def test_unknown_hints_are_all_named_with_the_accepted_ones() -> None:
    with pytest.raises(ConfigError) as raised:
        read_hints({"headway_ttft": 1, "headway_": 2, "headway_ttft_ms": 3})
    assert str(raised.value) == (
        "unknown headway_, headway_ttft in vllm_xargs; accepted: headway_deadline_ms, headway_length, "
        "headway_length_high, headway_length_low, headway_max_output_tokens, headway_may_move, headway_program, "
        "headway_tbt_ms, headway_tenant, headway_ttft_ms, headway_waiting_elsewhere"
    )


@pytest.mark.parametrize(
    ("value", "read"), [(True, True), (False, False), (1, True), (0, False), (0.0, False)]
)
def test_whether_a_request_may_move_is_yes_or_no(value: object, read: bool) -> None:
    assert read_hints({"headway_may_move": value}).may_move is read


@pytest.mark.parametrize("value", [None, 2, -1, nan, inf, "true", "", [], {}, HUGE[2]])
def test_anything_else_is_refused_in_a_short_message(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^headway_may_move is .*; accepted: true or false$") as raised:
        read_hints({"headway_may_move": value})
    assert len(str(raised.value)) < 200


def test_a_request_stays_unless_it_says_otherwise() -> None:
    assert not read_hints(None).may_move
    assert not read_hints({"headway_tenant": "t"}).may_move


def test_a_request_overrides_only_what_it_names() -> None:
    hints = read_hints({"headway_tbt_ms": 20, "headway_deadline_ms": 5000, "headway_tenant": "t"}, DEFAULT)
    assert hints == RequestHints(slo=Slo(ttft_s=1.0, tbt_s=0.02, deadline_s=5.0), tenant="t")


def test_a_request_with_other_hints_keeps_the_default_targets() -> None:
    assert read_hints({"headway_length": 40}, DEFAULT).slo == DEFAULT


def test_requests_of_a_class_share_their_targets() -> None:
    first, second = (read_hints({"headway_ttft_ms": 250, "headway_tenant": name}) for name in "ab")
    assert first.slo is second.slo


def test_one_bad_hint_refuses_the_request_whatever_the_others() -> None:
    good = {"headway_ttft_ms": 100, "headway_tenant": "t", "headway_length": 9}
    for key in good:
        with pytest.raises(ConfigError, match=key):
            read_hints({**good, key: -1})


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**320)
    | st.floats()
    | st.text()
    | st.floats().map(str)
    | st.sampled_from([0, "0", "-0", "1e999", "٣", "1_0", " 5 ", "0x10", MAX_TARGET_MS, -MAX_TARGET_MS])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@UNTIMED
@given(
    hints=st.dictionaries(st.sampled_from(sorted({*TARGETS, *COUNTS})), anything),
    default=st.sampled_from([NO_TARGETS, DEFAULT]),
)
def test_no_input_becomes_a_target_or_count_out_of_range(hints: dict[str, Any], default: Slo) -> None:
    try:
        read = read_hints(hints, default)
    except ConfigError:
        return
    for key, name in TARGETS.items():
        target_s = getattr(read.slo, name)
        if key in hints:
            assert not isinstance(hints[key], bool)
            assert 0 < target_s <= MAX_TARGET_S
            assert target_s == float(hints[key]) / 1000
        else:
            assert target_s == getattr(default, name)
    length = read.predicted_length
    ends = () if length is None else (length.low_tokens, length.tokens, length.high_tokens)
    assert list(ends) == sorted(ends)
    for count in (*ends, read.max_output_tokens or 1):
        assert isfinite(count)
        assert 1 <= count < 2**32


@UNTIMED
@given(value=anything)
def test_any_input_is_accepted_or_refused_in_a_short_message(value: object) -> None:
    for key in (*TARGETS, *COUNTS, "headway_tenant", "headway_unknown"):
        with suppress(ConfigError):
            read_hints({key: value})
            continue
        with pytest.raises(ConfigError, match=r"^(.|\n){,400}$"):
            read_hints({key: value})


@UNTIMED
@given(ends=st.tuples(*[st.floats(1.0, 1e9)] * 3).map(sorted))
def test_an_estimate_comes_out_of_its_hints_as_it_went_in(ends: list[float]) -> None:
    low, tokens, high = ends
    estimate = LengthEstimate(tokens, low, high)
    assert read_hints(dict(length_hints(estimate))).predicted_length == estimate


def test_an_estimate_below_one_token_is_told_as_one() -> None:
    hints = length_hints(LengthEstimate(0.7, 0.2, 3.0))
    assert read_hints(dict(hints)).predicted_length == LengthEstimate(1.0, 1.0, 3.0)
