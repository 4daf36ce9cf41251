from __future__ import annotations

import json
from collections import defaultdict
from io import BytesIO
from typing import Any

import pytest

from headway.sim.chrome_trace import ChromeTrace
from headway.traces import TraceRequest, parse_workload
from tests.sim.worlds import run, system

REQUESTS = parse_workload(
    "poisson:rate=1/input=zipf:theta=1.1,max=40/output=zipf:theta=1.1,max=12/count=30"
).requests()


def traced(
    requests: list[TraceRequest], policy: str = "vllm", max_events: int = 10**6, **limits: Any
) -> tuple[list[dict[str, Any]], ChromeTrace, bytes]:
    file = BytesIO()
    world = system(**limits)
    trace = ChromeTrace(file, title="test", lanes=world.limits.pipeline_stages, max_events=max_events)
    run(requests, policy, world, watchers=[trace])
    trace.close()
    found = json.loads(file.getvalue())
    assert found["displayTimeUnit"] == "ms"
    return found["traceEvents"], trace, file.getvalue()


def test_a_small_schedule_event_by_event() -> None:
    # One seat; a: prefill 0-1, decode 1-2. b comes at 0.5, prefill 2-3.
    requests = [TraceRequest("a", 0.0, 4, 2), TraceRequest("b", 0.5, 4, 1)]
    events, _, _ = traced(requests, max_num_seqs=1)
    steps = [(e["ts"], e["dur"], e["name"], e["args"].get("admitted")) for e in events if e["ph"] == "X"]
    assert steps == [
        (0.0, 1e6, "4 tokens, 1 requests", "a"),
        (1e6, 1e6, "1 tokens, 1 requests", None),
        (2e6, 1e6, "4 tokens, 1 requests", "b"),
    ]
    assert [(e["ts"], e["ph"], e["name"]) for e in events if e.get("id") == "b"] == [
        (0.5e6, "b", "request b"),
        (0.5e6, "b", "waiting"),
        (2e6, "e", "waiting"),
        (2e6, "b", "prefill"),
        (3e6, "e", "prefill"),
        (3e6, "e", "request b"),
    ]
    queue = [(e["ts"], e["args"]["waiting"]) for e in events if e["ph"] == "C" and e["name"] == "waiting"]
    assert queue == [(0.0, 0), (1e6, 1), (2e6, 0)]


@pytest.mark.parametrize("policy", ["vllm", "vllm-v0", "sjf"])
@pytest.mark.parametrize("depth", [{}, {"asynchronous": True}, {"pipeline_stages": 2}])
def test_tracks_are_well_formed(policy: str, depth: dict[str, Any]) -> None:
    events, trace, _ = traced(REQUESTS, policy, num_blocks=30, max_num_seqs=4, **depth)
    assert trace.num_events == len(events)
    assert trace.cut_at_s is None
    free_from: dict[tuple[int, int], float] = defaultdict(float)
    open_slices: dict[str, list[str]] = defaultdict(list)
    last: dict[str, float] = defaultdict(float)
    for event in events:
        if event["ph"] == "X":
            track = event["pid"], event["tid"]
            assert event["ts"] >= free_from[track] - 1e-3
            free_from[track] = event["ts"] + event["dur"]
        elif event["ph"] in "be":
            stack = open_slices[event["id"]]
            assert event["ts"] >= last[event["id"]]
            last[event["id"]] = event["ts"]
            if event["ph"] == "b":
                stack.append(event["name"])
            else:
                assert stack.pop() == event["name"]
    assert set(open_slices) == {request.id for request in REQUESTS}
    assert not any(open_slices.values())


def test_the_same_run_gives_the_same_bytes() -> None:
    assert traced(REQUESTS)[2] == traced(REQUESTS)[2]


def test_a_trace_that_grows_too_large_is_cut_and_says_where() -> None:
    events, trace, _ = traced(REQUESTS, max_events=50)
    whole, _, _ = traced(REQUESTS)
    assert len(events) == trace.num_events == 50
    assert events == whole[:50]
    assert trace.cut_at_s == pytest.approx(min(event["ts"] for event in whole[50:]) / 1e6)
