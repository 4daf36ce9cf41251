from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.http.events import Halt
from headway.gateway.http.named_events import NamedEvents, named_whole
from tests.gateway.named_upstream import as_bytes, message_events, message_of, response_events, response_of

STREAMS = [pytest.param(message_events, id="messages"), pytest.param(response_events, id="responses")]
UNSERVED = Halt(Departure.HAND_OFF, "ended by the policy")


def stream_of(events: Any, tokens: int) -> bytes:
    return b"".join(map(as_bytes, events(tokens)))


def events(left: Departure | None = Departure.HAND_OFF) -> NamedEvents:
    return NamedEvents(left=left)


@pytest.mark.parametrize("made", STREAMS)
@given(
    tokens=st.integers(1, 4), cuts=st.sets(st.integers(0, 2500)), line_end=st.sampled_from([b"\n", b"\r\n"])
)
def test_they_pass_as_they_are_however_they_are_cut(
    made: Any, tokens: int, cuts: set[int], line_end: bytes
) -> None:
    stream = stream_of(made, tokens).replace(b"\n", line_end)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    read = events()
    passed = [read.take(stream[start:stop]) for start, stop in pairwise(places)]
    assert b"".join(passed) == stream
    assert (read.tokens, read.done, read.halt, read.rest) == (tokens, True, None, b"")


@pytest.mark.parametrize("made", STREAMS)
def test_an_answer_begins_with_its_first_token(made: Any) -> None:
    read, before = events(), []
    for event in made(2):
        if not read.begins(read.take(as_bytes(event))):
            before.append(event["type"])
    assert before == [event["type"] for event in made(2)][: len(before)]
    assert next(iter(made(2)))["type"] in before
    assert [event["type"] for event in made(2)][len(before)].endswith("delta")


@pytest.mark.parametrize("made", STREAMS)
def test_an_answer_without_a_token_was_ended_by_a_policy(made: Any) -> None:
    read = events()
    passed = read.take(stream_of(made, 0))
    assert read.halt == UNSERVED
    assert not read.begins(passed)
    assert b"message_delta" not in passed
    assert b"completed" not in passed, "the name of what is held back is held back too"
    lone = events(left=None)
    assert lone.take(stream_of(made, 0)) == stream_of(made, 0)
    assert (lone.halt, lone.done) == (None, True)


def test_a_message_without_a_reason_for_its_end_was_ended_in_the_middle() -> None:
    cut = [event for event in message_events(3) if event["type"] != "message_stop"]
    cut[-1]["delta"]["stop_reason"] = None
    stream = b"".join(map(as_bytes, cut))
    read = events()
    passed = read.take(stream)
    assert (read.halt, read.tokens) == (UNSERVED, 3)
    assert stream == passed + as_bytes(cut[-1])
    lone = events(left=None)
    assert (lone.take(stream), lone.halt) == (stream, None)
    whole = message_of(3)
    del whole["stop_reason"]
    assert named_whole(msgspec.json.encode(whole), Departure.HAND_OFF) == (3, UNSERVED)


def test_tools_in_a_response_say_nothing_of_it() -> None:
    """What the client's own words are repeated in is not the count."""
    whole = response_of(2)
    whole["tools"] = [{"type": "function", "parameters": {"usage": {"output_tokens": 0}}}]
    assert named_whole(msgspec.json.encode(whole), Departure.SHED) == (2, None)


def test_answers_in_one_piece() -> None:
    for whole in (message_of, response_of):
        assert named_whole(msgspec.json.encode(whole(3)), Departure.SHED) == (3, None)
        assert named_whole(msgspec.json.encode(whole(0)), Departure.HAND_OFF) == (0, UNSERVED)
        assert named_whole(msgspec.json.encode(whole(0)), None) == (0, None)
    running = response_of(0, status="in_progress")
    assert named_whole(msgspec.json.encode(running), Departure.SHED) == (0, None), "it runs in the background"
    with pytest.raises(UpstreamError, match="no event"):
        named_whole(b"{", None)


@pytest.mark.parametrize(
    ("error", "halt"),
    [
        ({"error": {"type": "internal_error", "message": "out of luck"}}, Halt(None, "out of luck")),
        ({"error": "out of luck"}, Halt(None, "out of luck")),
        ({"message": "out of luck", "code": "server_error"}, Halt(None, "out of luck")),
        ({"error": {"type": "invalid_request_error", "message": "no such tool"}}, None),
        ({"message": "no such tool", "code": 400}, None),
        ({"error": {"type": "rate_limit_error", "message": "later"}}, Halt(None, "later")),
    ],
)
def test_errors_halt_it_unless_the_request_is_at_fault(error: dict[str, Any], halt: Halt | None) -> None:
    read = events()
    event = as_bytes({"type": "error", **error})
    assert read.take(event) == (event if halt is None else b"")
    assert (read.halt, read.refused, read.done) == (halt, halt is None, halt is None)


def test_a_failed_response_halts_it() -> None:
    failed = {**response_of(0, status="failed"), "error": {"code": "server_error", "message": "out of luck"}}
    read = events()
    assert read.take(as_bytes({"type": "response.failed", "response": failed})) == b""
    assert read.halt == Halt(None, "out of luck")


@pytest.mark.parametrize("first", ["", "event: response.in_progress\n"])
def test_an_error_is_one_without_its_name_too(first: str) -> None:
    read = events()
    assert read.take(first.encode() + b'data: {"error":{"message":"out of luck"}}\n\n') == b""
    assert read.halt == Halt(None, "out of luck")


def test_a_failed_response_in_one_piece_is_no_answer() -> None:
    failed = {**response_of(0, status="failed"), "error": {"code": "server_error", "message": "out of luck"}}
    assert named_whole(msgspec.json.encode(failed), None) == (0, Halt(None, "out of luck"))
    assert named_whole(msgspec.json.encode({**failed, "error": None}), None).halt is not None


def test_an_event_may_leave_its_name_to_its_data() -> None:
    read = events()
    stream = b"".join(as_bytes(event).partition(b"\n")[2] for event in message_events(2))
    assert read.take(stream) == stream
    assert (read.tokens, read.done) == (2, True)
    with pytest.raises(UpstreamError, match="without a name"):
        events().take(b"data: {}\n\n")
    with pytest.raises(UpstreamError, match="no event"):
        events().take(b"event: error\ndata: nonsense\n\n")


def test_openais_end_mark_ends_it_too() -> None:
    read = events()
    assert read.take(b": ping\n\ndata: [DONE]\n\n") == b": ping\n\ndata: [DONE]\n\n"
    assert read.done
