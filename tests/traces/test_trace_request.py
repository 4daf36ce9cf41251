from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from headway.core.slo import NO_TARGETS
from headway.errors import TraceError
from headway.traces import TraceRequest


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
