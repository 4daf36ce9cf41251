from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.plan import Departure
from headway.errors import UpstreamError
from headway.gateway.http import events as event_stream
from headway.gateway.http.events import Halt, Lines, PassedEvents, halt_of

TRICKY = st.text(alphabet='ab\u2028\x85\n\r é😀\\"[]:,{}dt', max_size=12)
TEXTS = st.one_of(
    TRICKY, st.sampled_from(['"token_ids":[1,2]', '"headway:shed', '{"error"', "data: [DONE]", "\n\n"])
)
IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=3)


def event(text: str, ids: list[int] | None, prompt: list[int] | None = None, **choice: Any) -> bytes:
    shown = {
        "index": 0,
        "text": text,
        "finish_reason": None,
        **choice,
        "prompt_token_ids": prompt,
        "token_ids": ids,
    }
    return data({"id": "c", "choices": [shown]})


def data(value: Any, separators: tuple[str, str] = (",", ":")) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=separators).encode() + b"\n\n"


def pieces(stream: bytes, cuts: set[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[start:stop] for start, stop in pairwise(places)]


CUTS = st.sets(st.integers(0, 700))


@given(said=st.lists(st.tuples(TEXTS, IDS), min_size=1, max_size=5), cuts=CUTS, prompt=IDS)
def test_ids_are_taken_out_and_nothing_else(
    said: list[tuple[str, list[int]]], cuts: set[int], prompt: list[int]
) -> None:
    """However the bytes are cut, the client gets what an instance that was not asked for ids would have sent."""
    told = [prompt, *[None] * len(said)]
    stream = b"".join(event(text, ids, first) for (text, ids), first in zip(said, told, strict=False))
    plain = b"".join(event(text, None) for text, _ in said)
    events = PassedEvents(with_ids=True, hide_ids=True)
    passed = [events.take(piece) for piece in pieces(stream + b"data: [DONE]\n\n", cuts)]
    assert b"".join(passed) == plain + b"data: [DONE]\n\n"
    assert all(piece.endswith(b"\n") for piece in passed if piece)
    everything = [token for _, ids in said for token in ids]
    assert json.loads(b"[" + events.sent_ids + b"]") == everything
    assert json.loads(b"[" + events.prompt_ids + b"]") == prompt
    assert events.tokens == len(everything)
    assert events.done
    assert events.halt is None


@given(said=st.lists(st.tuples(TEXTS, IDS), max_size=5), cuts=CUTS)
def test_ids_that_the_client_asked_for_stay(said: list[tuple[str, list[int]]], cuts: set[int]) -> None:
    stream = b"".join(event(text, ids) for text, ids in said)
    for events in (PassedEvents(with_ids=True), PassedEvents()):
        assert b"".join(events.take(piece) for piece in pieces(stream, cuts)) == stream
        assert events.halt is None


@given(
    before=st.lists(TEXTS, max_size=3),
    after=st.lists(TEXTS, max_size=3),
    cuts=CUTS,
    departure=st.sampled_from(Departure),
)
def test_nothing_passes_from_the_halt_on(
    before: list[str], after: list[str], cuts: set[int], departure: Departure
) -> None:
    first = b"".join(event(text, None) for text in before)
    halting = event("", None, finish_reason="abort", stop_reason=f"headway:{departure}")
    stream = first + halting + b"".join(event(text, None) for text in after)
    events = PassedEvents()
    assert b"".join(events.take(piece) for piece in pieces(stream, cuts)) == first
    assert events.halt == Halt(departure, f"ended by the policy (headway:{departure})")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize(
    ("value", "halt"),
    [
        ({"error": {"message": "died", "code": 500}}, Halt(None, "died")),
        ({"error": {"message": "died"}}, Halt(None, "died")),
        ({"error": "died"}, Halt(None, "died")),
        ({"error": {"message": "prompt too long", "code": 400}}, None),
        ({"error": {"message": "prompt too long", "code": "400"}}, None),
        ({"error": {"message": "slow down", "code": 429}}, Halt(None, "slow down")),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, Halt(None, "busy")),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "bad"}}, None),
        ({"type": "error", "message": "died", "code": "server_error"}, Halt(None, "died")),
        ({"object": "error", "message": "died", "type": "InternalServerError"}, Halt(None, "died")),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, None),
        ({"id": "c", "choices": [], "error": {"message": "died"}}, Halt(None, "died")),
        ({"error": {"message": None, "type": "api_error"}}, Halt(None, "api_error")),
        ({"choices": [{"finish_reason": "error"}]}, Halt(None, "an answer ended in an error")),
        ({"choices": [{"finish_reason": "abort", "stop_reason": "headway:shed"}]}, Halt(Departure.SHED, "x")),
        (
            {"choices": [{"finish_reason": "abort", "stop_reason": "headway:news"}]},
            Halt(None, "ended by the policy (headway:news)"),
        ),
        ({"choices": [{"finish_reason": "stop", "stop_reason": "headway:shed"}]}, None),
        ({"choices": [{"finish_reason": "abort", "stop_reason": None}]}, None),
        ({"choices": [{"text": "headway: on", "finish_reason": None}]}, None),
    ],
)
def test_which_events_halt(value: Any, halt: Halt | None, separators: tuple[str, str]) -> None:
    found = halt_of(data(value, separators).rstrip())
    if halt is not None and halt.departure is not None:
        assert found is not None
        assert found.departure is halt.departure
    else:
        assert found == halt


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


@pytest.mark.parametrize(
    ("stream", "begins"),
    [
        (data(ROLE), False),
        (b": ping\n\nevent: x\n\n", False),
        (data(ROLE) + data({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}), True),
        (data({"choices": [{"delta": {"role": "assistant", "content": "a"}, "finish_reason": None}]}), True),
        (data({"choices": [{"delta": {"role": "assistant"}, "finish_reason": "stop"}]}), True),
        (data({"choices": [{"delta": {}, "finish_reason": None}]}), True),
        (
            data({"choices": [{"delta": {"role": "assistant", "reasoning": "hm"}, "finish_reason": None}]}),
            True,
        ),
        (data({"choices": [{"delta": {"role": "assistant", "tool_calls": [{"index": 0}]}}]}), True),
        (data({"choices": [{"delta": {"role": "assistant", "content": None, "tool_calls": None}}]}), False),
        (data({"choices": [{"text": "", "finish_reason": None}]}), True),
        (data({"choices": [], "usage": {}}), True),
        (b"data: [DONE]\n\n", True),
    ],
)
def test_what_is_more_than_a_role(stream: bytes, begins: bool) -> None:
    assert PassedEvents().begins(stream) is begins


@pytest.mark.parametrize("field", [b"data: ", b"data:"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_tokens_are_counted_by_events_where_ids_are_not_known(
    field: bytes, separators: tuple[str, str]
) -> None:
    events = PassedEvents()
    said: list[dict[str, Any]] = [
        ROLE,
        {"choices": [{"text": "data: {", "finish_reason": None}]},
        {"choices": [{"text": "data:{", "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 2}},
    ]
    for each in said:
        events.begins(events.take(data(each, separators).replace(b"data: ", field, 1)))
    assert (events.tokens, events.finished, events.counted, events.done) == (2, True, True, False)


@pytest.mark.parametrize("bad", [b"data: {\n", b"data: <html>\n", b"data: \xff\n", b'data: {"choices": 3}\n'])
def test_what_is_no_event_is_an_upstream_error(bad: bytes) -> None:
    with pytest.raises(UpstreamError, match="no event of an answer"):
        PassedEvents().begins(bad)


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_LINE_BYTES", 1000)
    lines = Lines()
    assert lines.take(b"x" * 1000) == b""
    with pytest.raises(UpstreamError, match="longer than 1000 bytes"):
        lines.take(b"x")


@pytest.mark.parametrize("with_ids", [False, True])
def test_an_answer_that_quotes_the_end_mark_is_not_at_its_end(with_ids: bool) -> None:
    events = PassedEvents(with_ids=with_ids)
    said = event("a stream ends in\ndata: [DONE]\n", [1, 2])
    assert events.take(said) == said
    assert not events.done
    events.take(b"data: [DONE]\n\n")
    assert events.done


def test_what_follows_the_last_line_is_the_rest() -> None:
    events = PassedEvents()
    assert events.take(b"data: [DONE]\n\n: bye") == b"data: [DONE]\n\n"
    assert events.rest == b": bye"
