from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.slo import NO_TARGETS, Slo
from headway.errors import TraceError
from headway.traces import TraceRequest, scale_lengths, scale_rate, take
from headway.traces.request import LATEST_S


def test_a_request_needs_only_its_time_and_lengths() -> None:
    request = TraceRequest("a", 0, 5, 7)
    assert (request.tenant, request.prompt, request.session, request.max_output_tokens) == (
        "",
        None,
        None,
        None,
    )
    assert (request.prefix_blocks, request.priority, request.slo) == ((), 0, NO_TARGETS)
    with pytest.raises(FrozenInstanceError):
        request.input_tokens = 6  # type: ignore[misc]


GOOD: dict[str, Any] = {"id": "a", "arrival_s": 0.0, "input_tokens": 5, "output_tokens": 7}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"id": ""}, "id is ''"),
        ({"arrival_s": -0.5}, "arrival_s is -0.5"),
        ({"arrival_s": float("nan")}, "arrival_s is nan"),
        ({"arrival_s": float("inf")}, "arrival_s is inf"),
        ({"arrival_s": 1e10}, "arrival_s is 10000000000.0; accepted: seconds, 0 to 9.01e+09"),
        ({"arrival_s": True}, "arrival_s is True"),
        ({"input_tokens": 0}, "input_tokens is 0"),
        ({"input_tokens": 2.0}, "input_tokens is 2.0"),
        ({"output_tokens": 0}, "output_tokens is 0"),
        ({"output_tokens": True}, "output_tokens is True"),
        ({"max_output_tokens": 6}, "max_output_tokens is 6; accepted: output_tokens (7) or more"),
        ({"priority": 0.5}, "priority is 0.5"),
        ({"prompt": ""}, "prompt is ''"),
        ({"session": ""}, "session is ''"),
    ],
)
def test_a_value_that_no_request_can_have_is_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(TraceError) as caught:
        TraceRequest(**(GOOD | change))
    assert str(caught.value).startswith(found)
    assert "accepted: " in str(caught.value)


THREE = [TraceRequest(str(place), 2.0 * place, 10, 10, slo=Slo(ttft_s=1.0)) for place in range(3)]


def test_twice_the_rate_halves_the_times_and_leaves_the_rest() -> None:
    faster = scale_rate(THREE, 2.0)
    assert [request.arrival_s for request in faster] == [0.0, 1.0, 2.0]
    assert [replace(request, arrival_s=0.0) for request in faster] == [
        replace(r, arrival_s=0.0) for r in THREE
    ]
    assert scale_rate([], 2.0) == []


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(TraceError, match=f"rate factor is {factor}; accepted: a finite number above 0"):
        scale_rate(THREE, factor)


def test_a_rate_so_low_that_steps_would_take_no_time_is_refused() -> None:
    latest = scale_rate(THREE, 4.0 / LATEST_S)
    assert latest[-1].arrival_s == LATEST_S
    with pytest.raises(
        TraceError, match=r"1e-300, at which the last request arrives after 4e\+300 s; accepted: a "
    ):
        scale_rate(THREE, 1e-300)
    with pytest.raises(TraceError, match=r"arrives after inf s"):
        scale_rate(THREE, 1e-320)


def test_take_keeps_the_first() -> None:
    assert take(THREE, 2) == THREE[:2]
    assert take(THREE, 9) == THREE
    with pytest.raises(TraceError, match="limit is 0; accepted: 1 or more"):
        take(THREE, 0)


def test_lengths_are_scaled_by_their_99th_percentile_by_hand() -> None:
    # Inputs 10, 20, ..., 1000: the 99th of 100 is 990, so a limit of 99 divides by 10 and clips 100 to 99.
    # Outputs 1 to 100: the 99th is 99, so a limit of 50 divides by 1.98: 1 -> 1, 3 -> 2, 100 -> 51 -> 50.
    requests = [TraceRequest(str(n), 0.0, 10 * n, n, max_output_tokens=2 * n) for n in range(1, 101)]
    scaled = scale_lengths(requests, max_input_tokens=99, max_output_tokens=50)
    assert [request.input_tokens for request in scaled] == [*range(1, 100), 99]
    assert [scaled[n - 1].output_tokens for n in (1, 3, 99, 100)] == [1, 2, 50, 50]
    assert [scaled[n - 1].max_output_tokens for n in (1, 3, 99)] == [1, 3, 50]


def test_lengths_that_fit_stay() -> None:
    assert scale_lengths(THREE, 10, 10) == scale_lengths(THREE, 25, 99) == THREE
    assert scale_lengths([], 10, 10) == []


def test_prefix_blocks_shrink_with_the_prompt() -> None:
    # 1024 tokens in blocks of 256 shrink to 300, which need two such blocks.
    (scaled,) = scale_lengths([TraceRequest("0", 0.0, 1024, 1, prefix_blocks=(5, 6, 7, 8))], 300, 1)
    assert (scaled.input_tokens, scaled.prefix_blocks) == (300, (5, 6))


def test_a_prompt_as_text_cannot_change_its_length() -> None:
    spoken = [replace(request, prompt="ten tokens") for request in THREE]
    assert [request.prompt for request in scale_lengths(spoken, 10, 5)] == ["ten tokens"] * 3
    with pytest.raises(TraceError, match="request '0' has its prompt as text of 10 tokens"):
        scale_lengths(spoken, 9, 10)


@pytest.mark.parametrize(
    ("limits", "name"), [((0, 1), "max_input_tokens is 0"), ((1, -2), "max_output_tokens is -2")]
)
def test_a_limit_below_one_is_refused(limits: tuple[int, int], name: str) -> None:
    with pytest.raises(TraceError, match=f"{name}; accepted: 1 or more"):
        scale_lengths(THREE, *limits)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**5)), max_size=30),
    limits=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_scaled_lengths_fit_and_keep_their_order(
    lengths: list[tuple[int, int]], limits: tuple[int, int]
) -> None:
    requests = [TraceRequest(str(n), 0.0, *pair) for n, pair in enumerate(sorted(lengths))]
    scaled = scale_lengths(requests, *limits)
    inputs = [request.input_tokens for request in scaled]
    assert inputs == sorted(inputs)
    assert all(1 <= tokens <= limits[0] for tokens in inputs)
    assert all(1 <= request.output_tokens <= limits[1] for request in scaled)
