from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate, Reason
from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.explain.explanation import explain, slack_points
from headway.explain.story import Kind
from headway.explain.telling import NOT_KEPT, _in_turn
from headway.explain.track import (
    KEPT_CHANGES,
    KEPT_DISPLACEMENTS,
    KEPT_FIRST,
    KEPT_LAST,
    ChangeLog,
    StepHistory,
)
from tests.explain.trail_scene import Scene, displaced_scene


def test_the_last_steps_are_kept_and_the_older_ones_forgotten() -> None:
    log = StepHistory(kept=4)
    for step, width in enumerate([9, 1, 5, 3, 2, 7]):
        log.add(float(step), width)
    assert log.count == 6
    assert log.times_s(10) == [2.0, 3.0, 4.0, 5.0]
    assert log.times_s(2) == [4.0, 5.0]
    assert log.widths(3, 5) == (2, 3)
    assert log.widths(0, 6) == (2, 7)  # of steps 2 to 5: the wide first one is forgotten
    assert log.widths(0, 2) is None
    assert log.widths(6, 9) is None


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 8), st.integers(0, 40), st.integers(0, 40))
def test_widths_are_those_of_a_list_that_forgets(widths: list[int], kept: int, start: int, end: int) -> None:
    log = StepHistory(kept)
    for step, width in enumerate(widths):
        log.add(float(step), width)
    known = [widths[step] for step in range(max(0, len(widths) - kept, start), min(end, len(widths)))]
    assert log.widths(start, end) == ((min(known), max(known)) if known else None)


def test_only_changes_are_noted() -> None:
    log = ChangeLog()
    for at_s, why in enumerate(["seats", "seats", "blocks", "blocks", "seats"]):
        log.note(float(at_s), at_s, why)
    assert [(change.at_s, change.why) for change in log.between(0.0, 9.0)] == [
        (0.0, "seats"),
        (2.0, "blocks"),
        (4.0, "seats"),
    ]


def test_a_turn_tells_how_long_its_program_was_away() -> None:
    scene = Scene()
    scene.come("a", program="p")
    scene.step({"a": 4}, admitted="a")
    scene.end("a")  # at 1, with 4 prompt tokens and one of the answer
    scene.now_s = 3.5
    scene.come("b", program="p").num_kept_tokens = 4
    scene.come("c", program="q")
    scene.step({"b": 4, "c": 4}, admitted="bc")
    arrived = {id_: scene.beginning(id_) for id_ in "bc"}
    assert arrived["b"].endswith(
        "; its program p comes back after 2.5 s, left at 5 tokens, 4 of them kept for it"
    )
    assert "program" not in arrived["c"]


def test_a_turn_that_was_cancelled_is_no_answer_to_come_back_from() -> None:
    scene = Scene()
    scene.come("a", program="p")
    scene.step({"a": 4}, admitted="a")
    scene.end("a", Outcome.CANCELLED)
    scene.come("b", program="p")
    scene.step({"b": 4}, admitted="b")
    assert "program" not in scene.beginning("b")


def test_as_many_programs_are_remembered_as_ended_requests() -> None:
    scene = Scene(kept=1)
    for id_, program in (("a", "p"), ("b", "q"), ("c", "p")):
        scene.come(id_, program=program)
        scene.step({id_: 4}, admitted=id_)
        assert "comes back" not in scene.beginning(id_)
        scene.end(id_)


def test_a_stretch_begins_with_what_was_in_force() -> None:
    log = ChangeLog()
    log.note(0.0, 0, "seats")
    log.note(2.0, 2, "blocks", "b")
    log.note(4.0, 4, "blocks", "c")
    assert [change.why for change in log.between(1.0, 2.0)] == ["seats"]
    assert [(change.at_s, change.by) for change in log.between(3.0, 5.0)] == [(2.0, "b"), (4.0, "c")]
    assert [change.by for change in log.between(2.0, 4.0)] == ["b"]


def test_what_is_too_long_ago_is_forgotten() -> None:
    log = ChangeLog(kept=2)
    for step in range(5):
        log.note(float(step), step, f"reason {step}")
    assert [change.at_s for change in log.between(0.0, 9.0)] == [3.0, 4.0]


def test_seconds_by_reason_are_as_far_as_changes_are_kept() -> None:
    log = ChangeLog(kept=3)
    for step, why in enumerate(["forgotten", "seats", "blocks", "seats"]):
        log.note(2.0 * step, step, why)
    assert log.spent_s(3.0, 7.0) == {"seats": 2.0, "blocks": 2.0}
    assert log.spent_s(0.0, 3.0) == {"seats": 1.0}
    assert log.spent_s(0.0, 2.0) == {}
    assert log.spent_s(7.0, 9.0) == {"seats": 2.0}


def test_a_request_that_is_displaced_and_computed_again() -> None:
    scene = displaced_scene()
    assert scene.told("a") == [
        ("arrived", 0.0, 0.0),
        ("admitted", 0.0, 0.0),
        ("prefill", 0.0, 1.0),
        ("first token", 1.0, 1.0),
        ("decode", 1.0, 2.0),
        ("preempted", 2.0, 2.0),
        ("waited", 2.0, 3.0),
        ("waited", 3.0, 4.0),
        ("admitted", 4.0, 4.0),
        ("prefill", 4.0, 5.0),
        ("ended", 5.0, 5.0),
    ]


def test_who_took_its_place_and_behind_whom_it_waited() -> None:
    scene = displaced_scene()
    found = explain(scene.trail, "a", scene.now_s, block_bytes=1000)
    assert found is not None
    [displaced] = found.displaced
    assert (displaced.at_s, displaced.tokens, displaced.swapped, displaced.by) == (2.0, 5, False, ("b",))
    assert found.num_displaced == 1
    assert found.waited_s == 2.0
    assert [(one.why, one.seconds) for one in found.waited] == [
        ("its KV blocks did not fit the free ones", 1.0),
        ("others were to start first", 1.0),
    ]
    # b held its seat from 2 to 4, all of a's wait; it came later, but a had started first, at 0.
    assert [(one.id, one.seconds, one.overtook) for one in found.behind] == [("b", 2.0, False)]
    assert (found.moved.recomputed_tokens, found.moved.recomputed_bytes) == (5, 1250)


def test_slack_falls_to_the_first_token_and_then_to_the_end() -> None:
    scene = displaced_scene()
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    slack = {point.at_s: (point.slack_s, point.target) for point in found.slack}
    assert slack[0.0] == (3.0, "first token")
    assert slack[2.0] == (2.0, "whole answer")
    assert slack[5.0] == (-1.0, "whole answer")
    assert [point.at_s for point in found.slack] == sorted(slack)


def test_slack_counts_lost_tokens_of_a_prompt_as_still_to_be_computed() -> None:
    # All 8 tokens of the prompt take 8 s. 4 are computed by 1 and lost then; all 8 are computed from 2 to 3.
    scene = Scene()
    scene.come("a", prompt=8, slo=Slo(ttft_s=20.0))
    scene.step({"a": 4}, admitted="a")
    scene.step({}, preempted={"a": Fate.RECOMPUTE})
    scene.step({"a": 8}, admitted="a")
    track = scene.trail.find("a")
    assert track is not None
    slack = {point.at_s: point.slack_s for point in slack_points(track, scene.now_s, prefill_s=8.0)}
    assert (slack[0.0], slack[0.5], slack[1.0]) == (12.0, 13.5, 11.0)
    assert (slack[2.0], slack[2.5]) == (10.0, 13.5)


def test_one_that_came_later_and_started_first_overtook_it() -> None:
    scene = Scene()
    scene.come("a")
    scene.step({}, passed_over={"a": Reason.ISL})
    scene.come("b")
    scene.step({"b": 4}, admitted="b", passed_over={"a": Reason.ISL})
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    assert found.story.live
    assert [(one.id, one.seconds, one.overtook) for one in found.behind] == [("b", 1.0, True)]
    assert found.num_overtook == 1


def test_a_swapped_request_pauses_until_its_memory_is_back() -> None:
    scene = Scene()
    scene.come("a")
    scene.step({"a": 4}, admitted="a")
    scene.step({"a": 1})
    scene.step({}, preempted={"a": Fate.SWAP})
    scene.step({}, admitted="a")
    scene.step({"a": 1})
    assert scene.told("a")[-5:] == [
        ("preempted", 2.0, 2.0),
        ("on the host", 2.0, 3.0),
        ("admitted", 3.0, 3.0),
        ("paused", 3.0, 4.0),
        ("decode", 4.0, 5.0),
    ]
    found = explain(scene.trail, "a", scene.now_s, block_bytes=10)
    assert found is not None
    # 5 tokens are 2 blocks of 4; by the ledger's count nothing went to the host, which only copies tell.
    assert (found.moved.to_device_blocks, found.moved.to_device_bytes) == (2, 20)
    assert found.displaced[0].by == ()


def test_who_room_was_made_for_is_named_before_it_starts() -> None:
    scene = Scene()
    for id_ in "abc":
        scene.come(id_)
    scene.step({"a": 4, "b": 4}, admitted="ab")
    scene.step({"a": 1}, preempted={"b": Fate.RECOMPUTE}, room_for="c")
    found = explain(scene.trail, "b", scene.now_s)
    assert found is not None
    [displaced] = found.displaced
    assert (displaced.by, displaced.why) == (
        ("c",),
        "the policy made room for c; its KV is to be computed again",
    )


def test_who_room_was_made_for_displaced_only_those_that_the_policy_took() -> None:
    scene = Scene()
    for id_ in "abc":
        scene.come(id_)
    scene.step({"a": 4, "b": 4}, admitted="ab")
    scene.step({"a": 1}, preempted={"b": Fate.RECOMPUTE}, planned=False, room_for="c")
    found = explain(scene.trail, "b", scene.now_s)
    assert found is not None
    assert found.displaced[0].by == ("a",)


def test_a_shortage_names_those_who_grew() -> None:
    # At 1 both have 4 tokens computed; a's fifth opens its second block, which is b's.
    scene = Scene()
    scene.come("a")
    scene.come("b")
    scene.step({"a": 4, "b": 4}, admitted="ab")
    scene.step({"a": 1}, preempted={"b": Fate.RECOMPUTE}, planned=False)
    found = explain(scene.trail, "b", scene.now_s)
    assert found is not None
    assert found.displaced[0].by == ("a",)
    assert found.displaced[0].why.startswith("blocks ran out (3 free) as 1 request before it grew")


def test_steps_alike_add_nothing() -> None:
    scene = Scene()
    scene.come("a")
    scene.step({"a": 4}, admitted="a")
    scene.step({"a": 1})
    track = scene.trail.find("a")
    assert track is not None
    marks = track.num_marks
    for _ in range(50):
        scene.step({"a": 1})
    assert track.num_marks == marks
    assert scene.told("a")[-1] == ("decode", 1.0, 52.0)


def test_what_is_too_much_is_counted_and_the_waiting_still_adds_up() -> None:
    scene = Scene()
    scene.come("a", prompt=1)
    rounds = 100
    for _ in range(rounds):
        waiting = scene.jobs["a"].num_tokens
        scene.step({"a": waiting}, admitted="a")
        scene.step({}, preempted={"a": Fate.RECOMPUTE})
    track = scene.trail.find("a")
    assert track is not None
    assert len(list(track.marks)) == KEPT_FIRST + KEPT_LAST
    assert track.num_marks == 2 * rounds
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    assert found.waited_s == rounds
    assert sum(one.seconds for one in found.waited) == pytest.approx(rounds)
    assert NOT_KEPT in {one.why for one in found.waited}
    assert (len(found.displaced), found.num_displaced) == (KEPT_DISPLACEMENTS, rounds)
    [gap] = [chapter for chapter in found.story.chapters if chapter.kind is Kind.NOT_KEPT]
    assert gap.why == f"{track.not_kept} changes"


def waiting_scene(steps: int) -> Scene:
    """a waits while b decodes; in every other step another one stands before all."""
    scene = Scene()
    for id_ in "abx":
        scene.come(id_)
    scene.step({"b": 4}, admitted="b")
    for number in range(steps):
        scene.step({"b": 1}, passed_over={"x": Reason.WHOLE_PROMPT} if number % 2 else {})
    return scene


def test_reasons_that_alternate_are_one_chapter_and_each_ones_seconds_are_told() -> None:
    scene = waiting_scene(20)
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    behind = "behind one whose whole prompt did not fit the tokens left in the step"
    assert [(one.why, one.seconds) for one in found.waited] == [
        (behind, 10.0),
        ("the policy let no request start", 10.0),
        ("others were to start first", 1.0),
    ]
    [chapter] = [each for each in found.story.chapters if each.kind is Kind.WAITED]
    assert chapter.why == f"in turn: {behind}; the policy let no request start; others were to start first"
    assert (chapter.start_s, chapter.end_s, chapter.steps) == (0.0, 21.0, 21)


@pytest.mark.parametrize(
    ("reasons", "told"), [("abcd", " and 1 other reason"), ("abcde", " and 2 other reasons")]
)
def test_of_many_reasons_the_longest_are_named_and_the_others_counted(reasons: str, told: str) -> None:
    assert _in_turn(dict.fromkeys(reasons, 1.0)) == f"in turn: a; b; c{told}"


def test_what_all_waited_for_too_long_ago_is_said_not_to_be_kept() -> None:
    scene = waiting_scene(KEPT_CHANGES + 10)
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    seconds = {one.why: one.seconds for one in found.waited}
    assert seconds[NOT_KEPT] == scene.now_s - KEPT_CHANGES
    assert sum(seconds.values()) == pytest.approx(found.waited_s)
    assert len(found.story.chapters) < 10


def test_the_last_ended_are_kept_and_an_id_may_come_again() -> None:
    scene = Scene(kept=2)
    for id_ in "abca":
        scene.come(id_)
        scene.step({id_: 4}, admitted=id_)
        scene.end(id_)
    assert [track.job.id for track in scene.trail.ended] == ["c", "a"]
    assert scene.trail.num_ended == 4
    assert scene.trail.find("b") is None
    assert explain(scene.trail, "b", scene.now_s) is None
    again = scene.trail.find("a")
    assert again is not None
    assert again.job.arrival_s == 3.0


def test_one_that_ends_before_any_step_has_waited_all_its_life() -> None:
    scene = Scene()
    scene.come("a")
    scene.now_s = 0.5
    scene.end("a", Outcome.CANCELLED)
    scene.come("b")
    scene.step({"b": 4}, admitted="b")
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    assert [(str(c.kind), c.end_s) for c in found.story.chapters] == [
        ("arrived", 0.0),
        ("waited", 0.5),
        ("ended", 0.5),
    ]
    assert (found.waited_s, [one.seconds for one in found.waited]) == (0.5, [0.5])


def test_steps_are_judged_while_it_is_on_the_engine() -> None:
    scene = displaced_scene()
    for at_s, predicted_s, took_s in ((1.0, 0.9, 1.0), (3.0, 5.0, 1.0), (4.5, 1.1, 1.2), (4.6, 0.0, 9.0)):
        scene.trail.judge(at_s, BatchShape(), predicted_s, took_s)
    found = explain(scene.trail, "a", scene.now_s)
    assert found is not None
    # Its stays are 0 to 2 and 4 to 5: the step at 3 is b's alone, the last was not predicted.
    assert found.predicted.judged_steps == 2
    assert found.predicted.step_s == pytest.approx(1.0)
    assert found.predicted.took_step_s == pytest.approx(1.1)
    assert found.predicted.took_prefill_s == 1.0
