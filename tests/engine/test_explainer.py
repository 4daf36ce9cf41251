"""The real scheduler's notes about each request, without a model."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from vllm.v1.core.sched.output import SchedulerOutput

from headway.core.length_estimate import LengthEstimate
from headway.engine.model_free import ScriptedRequest
from headway.engine.step.explainer import MOST_ANSWERED, NOT_FOLLOWED, Explainer, tracks_of, window
from headway.explain.explanation import Explanation, explain
from headway.explain.trail import Trail
from headway.lab.shadow_feed import Feed
from tests.engine.scripts import HearingEngine, scheduler, stream

pytestmark = pytest.mark.vllm


class SecondSteps(HearingEngine):
    """A step a second on the scheduler's clock; outputs come half a second later. Keeps who had tokens when."""

    def __init__(self, built: Any) -> None:
        super().__init__(built)
        self.ran: dict[float, set[str]] = {}

    def step_s(self, output: SchedulerOutput) -> float:
        return 0.5

    def serve(self, script: list[ScriptedRequest], max_steps: int = 3_000) -> None:
        """Serve from the first arrival to the last end."""
        pending = sorted(script, key=lambda each: each.arrival_step)
        for step in range(max_steps):
            self.now_s = float(step)
            while pending and pending[0].arrival_step <= step:
                self.add(pending.pop(0))
            if not pending and not self.scheduler.has_unfinished_requests():
                return
            tokens = self.step().tokens
            self.ran[float(step)] = set(tokens)
        raise AssertionError(f"still busy after {max_steps} steps")


def trail_of(built: Any) -> Trail:
    trail: Trail | None = built.listeners.explainer.trail
    assert trail is not None
    return trail


def explained(built: Any, id_: str, block_bytes: int = 0) -> Explanation:
    found = explain(trail_of(built), id_, built.clock(), block_bytes)
    assert found is not None
    return found


def request(id_: str, prompt: int, output: int, step: int = 0, **hints: Any) -> ScriptedRequest:
    start = 10_000 * ord(id_)
    return ScriptedRequest(id_, step, range(start, start + prompt), output, extra_args=hints or None)


def test_one_that_waits_for_a_seat_is_told_of_from_arrival_to_end() -> None:
    # One seat. a takes steps 0 (prefill), 1 and 2, and ends at 2.5; b starts at 3, its first token is there at 3.5,
    # its second at 4.5.
    built = scheduler(vllm={"max_num_seqs": 1})
    SecondSteps(built).serve([request("a", 40, 3), request("b", 40, 2, headway_ttft_ms=2_000)])
    found = explained(built, "b")
    assert [(str(c.kind), c.start_s, c.end_s, c.steps, c.tokens) for c in found.story.chapters] == [
        ("arrived", 0.0, 0.0, 0, 0),
        ("waited", 0.0, 3.0, 3, 0),
        ("admitted", 3.0, 3.0, 0, 0),
        ("prefill", 3.0, 4.0, 1, 40),
        ("first token", 3.5, 3.5, 0, 0),
        ("decode", 4.0, 4.5, 1, 1),
        ("ended", 4.5, 4.5, 0, 0),
    ]
    assert [(one.why, one.seconds) for one in found.waited] == [("all seats were taken", 3.0)]
    assert [(one.id, one.seconds, one.overtook) for one in found.behind] == [("a", 2.5, False)]
    assert (found.slack[0].slack_s, found.slack[0].target) == (2.0, "first token")
    assert min(point.slack_s for point in found.slack) < -1
    assert found.predicted.came_tokens == 2


def test_one_that_loses_its_memory_says_to_whom_and_how_much() -> None:
    # Four blocks of 32 tokens. Both have 60 tokens computed at 0, in two blocks each, and 64 after step 4; at 5 a needs
    # a third block and takes b's two.
    built = scheduler(num_blocks=5)
    SecondSteps(built).serve([request("a", 60, 8), request("b", 60, 8)])
    found = explained(built, "b", block_bytes=3200)
    [displaced] = found.displaced
    assert (displaced.at_s, displaced.tokens, displaced.swapped, displaced.by) == (5.0, 64, False, ("a",))
    assert (
        displaced.why == "blocks ran out (0 free) as 1 request before it grew; its KV is to be computed again"
    )
    assert (found.moved.recomputed_tokens, found.moved.recomputed_bytes) == (64, 6400)
    # a ends at 7.5, so b starts again at 8.
    assert found.waited_s == 3.0
    assert [(one.id, one.seconds) for one in found.behind] == [("a", 2.5)]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("policy", ["vllm", "fastserve", "vllm-v0", "predicted"])
def test_waits_add_up_and_every_displacement_names_one_that_ran(policy: str, asynchronous: bool) -> None:
    built = scheduler(policy=policy, asynchronous=asynchronous, batch_width=8)
    engine = SecondSteps(built)
    engine.serve(stream(40, mean_gap_steps=1))
    trail = trail_of(built)
    assert len(trail.ended) == 40
    displacements = 0
    for track in trail.ended:
        found = explained(built, track.job.id)
        assert sum(one.seconds for one in found.waited) == pytest.approx(found.waited_s)
        job = track.job
        if not track.num_displacements and job.first_scheduled_s is not None:
            assert found.waited_s == pytest.approx(job.first_scheduled_s - job.arrival_s)
        assert found.num_displaced == job.num_preemptions
        assert all(one.seconds <= found.waited_s + 1e-9 for one in found.behind)
        for gone in found.displaced:
            displacements += 1
            assert set(gone.by) <= engine.ran[gone.at_s]
            assert bool(gone.by) == bool(engine.ran[gone.at_s])
        times = [(chapter.start_s, chapter.end_s) for chapter in found.story.chapters]
        assert all(start_s <= end_s for start_s, end_s in times)
    assert displacements > 0


def test_what_the_engine_takes_back_between_two_steps_is_told_too() -> None:
    built = scheduler(prefix_caching=True)
    engine = SecondSteps(built)
    engine.add(request("a", 40, 6))
    engine.step()
    engine.now_s = 1.0
    assert built.reset_prefix_cache(reset_running_requests=True)
    engine.serve([request("b", 40, 2, step=2)])
    found = explained(built, "a")
    [gone] = found.displaced
    assert (gone.tokens, gone.swapped, gone.by) == (40, False, ())
    assert gone.why == "the engine took its KV back between two steps; it is to be computed again"
    assert sum(one.seconds for one in found.waited) == pytest.approx(found.waited_s)


def test_nothing_is_followed_where_it_is_switched_off() -> None:
    built = scheduler(explain=0)
    SecondSteps(built).serve([request("a", 40, 3)])
    assert built.listeners.explainer is None
    assert built.answer("explain", "a") == NOT_FOLLOWED


def test_a_trail_that_raises_ends_the_explaining_and_not_the_serving(
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = scheduler()
    built.listeners.explainer = broken = Explainer(kept=5, cost=built.cost, clock=built.clock)

    class Broken(Trail):
        def stepped(self, *args: Any) -> None:
            raise ZeroDivisionError("on purpose")

    broken.trail = Broken()
    engine = SecondSteps(built)
    engine.serve([request("a", 40, 3), request("b", 40, 3, step=1)])
    assert set(engine.endings()) == {"a", "b"}
    assert broken.trail is None
    assert "requests are not explained any more; serving goes on" in caplog.text
    assert built.answer("listed", "") == NOT_FOLLOWED


def test_a_client_is_understood_by_its_own_id_and_by_vllms() -> None:
    built = scheduler()
    engine = SecondSteps(built)
    ids = [
        "cmpl-x7-0-1a2b3c4d",
        "cmpl-x7-1-deadbeef",
        "chatcmpl-y-00112233",
        "0_chatcmpl-z-00112233",
        "x7-9",
        "resp_a_0-00112233",
    ]
    for number, id_ in enumerate(ids):
        engine.add(ScriptedRequest(id_, 0, range(number * 100, number * 100 + 5), 2))
    trail = trail_of(built)

    def found(asked: str) -> list[str]:
        return [track.job.id for track in tracks_of(trail, asked)]

    assert found("x7") == ["x7-9", ids[1], ids[0]]
    assert found("cmpl-x7-1") == [ids[1]]
    assert found("x7-9") == ["x7-9"]
    assert (found("y"), found("chatcmpl-z"), found("resp_a")) == ([ids[2]], [ids[3]], [ids[5]])
    assert found("x") == []
    assert found(".*") == []


def test_of_a_client_that_names_all_its_requests_alike_the_newest_are_told() -> None:
    built = scheduler()
    engine = SecondSteps(built)
    ids = [f"cmpl-job-0-{number:08x}" for number in range(MOST_ANSWERED + 5)]
    for number, id_ in enumerate(ids):
        engine.add(ScriptedRequest(id_, 0, range(number * 100, number * 100 + 5), 2))
    assert [one["id"] for one in built.answer("explain", "job")] == ids[: -MOST_ANSWERED - 1 : -1]


def test_an_answer_is_plain_data_with_a_text_for_people() -> None:
    built = scheduler(vllm={"max_num_seqs": 1})
    engine = SecondSteps(built)
    engine.serve([request("a", 40, 3), request("b", 40, 2)])
    [told] = built.answer("explain", "b")
    assert told["text"].startswith("request b: 40 prompt tokens, 2 output tokens, finished\n")
    assert "behind a for 2.5 s; 0 overtook it" in told["text"]
    assert told["waited"] == [{"why": "all seats were taken", "seconds": 3.0}]
    assert told["moved"]["to_host_bytes"] == 0
    assert abs(told["at"] - (time.time() - 4.5)) < 60
    assert [one["id"] for one in built.answer("listed", "")] == ["a", "b"]
    assert built.answer("explain", "nobody").startswith("nothing known of 'nobody'")


def test_a_shadow_is_told_each_request_and_step_once() -> None:
    built = scheduler()
    engine = SecondSteps(built)
    engine.serve([request("a", 40, 30, headway_ttft_ms=500), request("b", 50, 3, headway_length=4)])
    [first] = built.answer("window", "0-0")
    assert [(one["id"], one["output_tokens"], one["outcome"]) for one in first["ended"]] == [
        ("b", 3, "finished"),
        ("a", 30, "finished"),
    ]
    assert first["ended"][1]["targets_s"] == [0.5, None, None]
    assert first["ended"][0]["predicted"][0] == 4
    assert (first["missed"], first["live"]) == (0, [])
    # Steps of half a second, but for the first, before which the engine was idle; half a second passes between two.
    assert {row[0] for row in first["steps"]} == {0.5}
    assert first["host_s"] == 0.5
    assert first["engine"]["limits"]["num_blocks"] == 63
    assert first["engine"]["limits"]["max_cudagraph_capture_size"] == 0, "a CPU replays no CUDA graphs"
    feed = Feed(60.0)
    feed.take(msgspec.json.decode(msgspec.json.encode(first)))
    assert [one.estimate for one in feed.ended] == [LengthEstimate.around(4.0), None]
    [again] = built.answer("window", first["next"])
    assert (again["ended"], again["steps"], again["next"]) == ([], [], first["next"])


@pytest.mark.parametrize("policy", ["sjf", "vllm"])  # the second is called as the one that takes over
def test_a_shadow_is_told_which_policy_really_serves(policy: str) -> None:
    built = scheduler(policy=policy, order="longest-prompt")
    engine = built.answer("window", "0-0")[0]["engine"]
    assert (engine["policy"], engine["parts"]["order"]) == (policy, "longest-prompt")
    built.guard.fall_back("on purpose")
    engine = built.answer("window", "0-0")[0]["engine"]
    assert (engine["policy"], engine["parts"]) == ("vllm", {})


def test_a_shadow_that_asks_too_seldom_is_told_how_many_it_missed() -> None:
    built = scheduler(explain=2)
    SecondSteps(built).serve([request(id_, 40, 2) for id_ in "abcde"])
    told = window(trail_of(built), "1-0", 99.0)
    assert (len(told["ended"]), told["missed"], told["next"].partition("-")[0]) == (2, 2, "5")
    assert built.answer("window", "all") == "'all' names no counts; accepted: ENDED-STEPS, 0-0 at first"
