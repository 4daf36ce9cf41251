"""How the bench of dying streams classifies a stream: as the same, as an error or as lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from bench.right.resume import Stream, children_of, judged

WHOLE = {(0, "content"): "abc"}


def heard(*events: object, done: bool = True, kind: str = "chat") -> Stream:
    stream = Stream(kind, "x", "why")
    for event in events:
        stream.take(b"data: " + json.dumps(event).encode())
    if done:
        stream.take(b"data: [DONE]\n")
    return stream


def said(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


@pytest.mark.parametrize(
    ("stream", "end"),
    [
        (heard(said("a"), said("bc")), "same"),
        (heard(said("ab"), said("cd")), "lost"),
        (heard(said("abc"), done=False), "lost"),
        (heard(said("a"), {"type": "error", "error": {"message": "gone"}}), "error"),
        (heard(said("xyz"), kind="sample"), "same"),
        (heard(said("xyz"), kind="sample", done=False), "lost"),
    ],
)
def test_what_became_of_a_stream(stream: Stream, end: str) -> None:
    assert judged(stream, WHOLE, gateway_died=False) == end


def test_a_broken_connection_is_an_error_of_a_dead_gateway_alone() -> None:
    stream = heard(said("a"), done=False)
    stream.error = "connection: ClientPayloadError"
    assert judged(stream, WHOLE, gateway_died=False) == "lost"
    assert judged(stream, WHOLE, gateway_died=True) == "error"


def test_events_with_names_are_read_by_their_types() -> None:
    deltas = [{"type": "response.output_text.delta", "delta": text} for text in "ab"]
    stream = heard(*deltas, {"type": "response.completed"}, done=False, kind="responses")
    assert (stream.text, stream.done) == ({("response.output_text.delta",): "ab"}, True)


def test_the_processes_under_a_server_are_found() -> None:
    parent = subprocess.Popen(["sh", "-c", "sleep 100 & echo; wait"], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    (child,) = children_of(parent.pid)
    os.kill(child, signal.SIGKILL)
    parent.stdout.close()
    parent.wait()
