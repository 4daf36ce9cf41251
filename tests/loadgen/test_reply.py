from __future__ import annotations

import json
from typing import Any

import pytest

from headway.core.record import Outcome
from headway.errors import UpstreamError
from headway.loadgen.openai_stream import MAX_REASON_CHARACTERS, StreamedReply


def taken(*events: dict[str, Any]) -> StreamedReply:
    """A reply after these events, one a second from second 1 on."""
    reply = StreamedReply()
    for second, event in enumerate(events, start=1):
        reply.take(json.dumps(event).encode(), float(second))
    return reply


def chunk(text: str = "x", count: int | None = None, **choice: Any) -> dict[str, Any]:
    event: dict[str, Any] = {"choices": [{"index": 0, "text": text, **choice}]}
    if count is not None:
        event["usage"] = {"prompt_tokens": 7, "completion_tokens": count}
    return event


def test_tokens_are_counted_by_the_servers_running_count() -> None:
    # The second chunk brings three tokens at once, the third one whose text is still held back.
    reply = taken(
        chunk(count=1), chunk(count=4), chunk(text="", count=5), chunk(count=6, finish_reason="length")
    )
    assert reply.output_tokens == 6
    assert reply.token_times_s == [1.0, 2.0, 2.0, 2.0, 3.0, 4.0]
    assert (reply.first_token_s, reply.ended_s, reply.prompt_tokens) == (1.0, 4.0, 7)


def test_without_a_running_count_each_text_is_a_token_and_the_usage_has_the_last_word() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    reply = taken(chunk(), chunk(), chunk(text="", finish_reason="stop"), usage)
    assert reply.token_times_s == [1.0, 2.0]
    assert reply.output_tokens == 5
    assert reply.ended_s == 3.0


def test_an_empty_first_chunk_is_not_the_first_token() -> None:
    assert taken(chunk(text="", count=0), chunk(count=1)).first_token_s == 2.0


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "outcome"),
    [
        ("length", None, Outcome.FINISHED),
        ("stop", 2, Outcome.FINISHED),
        ("abort", "headway:shed", Outcome.SHED),
        ("abort", "headway:expired", Outcome.EXPIRED),
        ("abort", "headway:handed_off", Outcome.HANDED_OFF),
        ("abort", None, Outcome.FAILED),
        ("error", "headway: needs 9 KV blocks", Outcome.FAILED),
    ],
)
def test_outcome_is_what_the_server_said(finish_reason: str, stop_reason: object, outcome: Outcome) -> None:
    reply = taken(chunk(finish_reason=finish_reason, stop_reason=stop_reason))
    assert reply.outcome()[0] is outcome


def test_the_reason_of_an_abort_is_kept() -> None:
    _, error = taken(chunk(finish_reason="error", stop_reason="headway: needs 9 KV blocks")).outcome()
    assert error == "ended by the server (error: headway: needs 9 KV blocks)"


def test_a_stream_without_an_end_has_failed() -> None:
    assert taken(chunk(), chunk()).outcome() == (
        Outcome.FAILED,
        "the stream ended after 2 tokens without a finish reason",
    )


def test_an_error_event_is_an_upstream_error() -> None:
    with pytest.raises(UpstreamError, match="the server reported out of memory"):
        taken({"error": {"message": "out of memory", "code": 500}})


@pytest.mark.parametrize("data", [b"{", b"\xff", b'{"choices": 3}'])
def test_what_is_no_chunk_is_an_upstream_error(data: bytes) -> None:
    with pytest.raises(UpstreamError, match="not a completion chunk"):
        StreamedReply().take(data, 0.0)


def test_a_long_error_is_shortened() -> None:
    with pytest.raises(UpstreamError) as raised:
        taken({"error": "y" * 5000})
    assert len(str(raised.value)) < MAX_REASON_CHARACTERS + 50
