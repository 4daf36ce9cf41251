from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headway.core.plan import Fate
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.explain.explanation import Explanation
from headway.explain.story import Chapter, Kind, Story
from headway.explain.text import MAX_LINES, story_data, story_text, verdicts
from headway.sim.oracles import ORACLES
from headway.sim.simulation import PolicyFactory
from headway.sim.watcher import StoryWatcher
from headway.traces import TraceRequest, parse_workload
from tests.sim.pools import giving_up, pooled_system
from tests.sim.swapping import Do, Script, swapping_system
from tests.sim.worlds import preset, run, system


def told(
    requests: list[TraceRequest], id_: str, policy: PolicyFactory | str = "vllm", **limits: object
) -> Story:
    arrival_s = next(request.arrival_s for request in requests if request.id == id_)
    watcher = StoryWatcher(id_, arrival_s)
    run(requests, policy, system(**limits), watchers=[watcher])
    assert watcher.story is not None
    return watcher.story


def outline(story: Story) -> list[tuple[str, float, float, str]]:
    return [(str(c.kind), c.start_s, c.end_s, c.why) for c in story.chapters]


# One seat, 8 tokens a step, a step a second.
#   a: prefill 0-1, decodes 1-2 and 2-3, ends at 3 with 3 tokens.
#   b: comes at 0.5 during a's first step; finds the seat taken at 1 and 2; starts at 3 with 8 of its 12 prompt
#      tokens, the other 4 from 4 to 5, when its first token is out; one decode, 5 to 6.
SEAT = [
    TraceRequest("a", 0.0, 4, 3),
    TraceRequest("b", 0.5, 12, 2, slo=Slo(ttft_s=4.0, tbt_s=1.0, deadline_s=6.0)),
]


def seat_story() -> Story:
    return told(SEAT, "b", max_num_seqs=1, max_num_batched_tokens=8)


def test_a_request_that_waits_for_a_seat_and_is_prefilled_in_chunks() -> None:
    story = seat_story()
    assert outline(story) == [
        (
            "arrived",
            0.5,
            0.5,
            "12 prompt tokens, at instance 0: 0 others waiting, 1 of 1 seats taken, 15 blocks free",
        ),
        ("waited", 0.5, 1.0, "a step was under way"),
        ("waited", 1.0, 3.0, "all seats were taken"),
        ("admitted", 3.0, 3.0, ""),
        ("prefill", 3.0, 5.0, ""),
        ("first token", 5.0, 5.0, ""),
        ("decode", 5.0, 6.0, ""),
        ("ended", 6.0, 6.0, "finished"),
    ]
    waited, prefill, decode = story.chapters[2], story.chapters[4], story.chapters[6]
    assert (waited.steps, waited.ahead) == (2, (0, 0))
    assert (prefill.steps, prefill.tokens, prefill.beside) == (2, 12, (0, 0))
    assert (decode.steps, decode.tokens) == (1, 1)


def test_targets_say_by_how_much_they_were_met_or_missed() -> None:
    # TTFT 4.5 s of 4, one second between its two tokens of 1, 5.5 s in all of 6.
    story = seat_story()
    assert [(v.target, v.value_s, v.met) for v in verdicts(story.record)] == [
        ("first token", 4.5, False),
        ("between tokens", 1.0, True),
        ("whole answer", 5.5, True),
    ]
    assert story_text(story).splitlines()[-3:] == [
        "target first token within 4 s: missed by 500 ms (4.5 s)",
        "target between tokens within 1 s: met by 0 ms (1 s)",
        "target whole answer within 6 s: met by 500 ms (5.5 s)",
    ]


def test_the_tokens_of_a_request_that_did_not_finish_came_all_the_same() -> None:
    left = replace(seat_story().record, outcome=Outcome.CANCELLED)
    assert [(v.target, v.value_s, v.met) for v in verdicts(left)] == [
        ("first token", 4.5, False),
        ("between tokens", 1.0, True),
        ("whole answer", None, False),
    ]
    assert [v.value_s for v in verdicts(replace(left, first_token_s=None, output_tokens=0))] == [None] * 3


def test_the_story_as_text() -> None:
    assert story_text(seat_story()).splitlines()[:-4] == [
        "request b: 12 prompt tokens, 2 output tokens, finished",
        "",
        "          at        for  what",
        "    0.5000 s             arrived: 12 prompt tokens, at instance 0: 0 others waiting, 1 of 1 seats taken, "
        "15 blocks free",
        "    0.5000 s     500 ms  waited: a step was under way",
        "    1.0000 s        2 s  waited: all seats were taken",
        "    3.0000 s             admitted",
        "    3.0000 s        2 s  prefill of 12 tokens in 2 steps, alone",
        "    5.0000 s             first token, 4.5 s after it arrived",
        "    5.0000 s        1 s  decode of 1 token in 1 step, alone",
        "    6.0000 s             finished, 5.5 s after it arrived",
    ]


# Four blocks of 4 tokens, two seats. Both prefill 4 tokens from 0 to 1 and decode; at 5 each has 8 tokens computed in
# 2 blocks, and the first to need a third, a, takes those of b, the last. b then has 9 tokens: 3 blocks, with 1 free
# until a ends at 8. It computes all 9 again from 8 to 9, which brings its 6th token; two decodes, 9 to 11.
SHORT_OF_BLOCKS = [TraceRequest("a", 0.0, 4, 8), TraceRequest("b", 0.0, 4, 8)]


def test_a_request_that_loses_its_memory() -> None:
    story = told(SHORT_OF_BLOCKS, "b", num_blocks=4)
    assert outline(story)[1:] == [
        ("admitted", 0.0, 0.0, ""),
        ("prefill", 0.0, 1.0, ""),
        ("first token", 1.0, 1.0, ""),
        ("decode", 1.0, 5.0, ""),
        (
            "preempted",
            5.0,
            5.0,
            "blocks ran out (0 free) as 1 request before it grew; its KV is to be computed again (8 tokens)",
        ),
        ("waited", 5.0, 6.0, "blocks ran out, and no request starts in a step that preempts"),
        ("waited", 6.0, 8.0, "its KV blocks did not fit the free ones"),
        ("admitted", 8.0, 8.0, ""),
        ("prefill", 8.0, 9.0, ""),
        ("decode", 9.0, 11.0, ""),
        ("ended", 11.0, 11.0, "finished"),
    ]
    again = next(c for c in story.chapters[5:] if c.kind is Kind.PREFILL)
    assert again.tokens == 9
    assert story.record.recomputed_tokens == 8


def test_a_request_whose_memory_is_copied_out_and_back() -> None:
    # b, with 4 + 1 tokens computed at 2 in 2 blocks, goes to the host: half a second a block. It may come back from
    # 4 on, a quarter of a second a block, and the step under way then ends at 5: it decodes from there.
    script = Script({2.0: Do(preempt={"b": Fate.SWAP}, hold="b"), 3.0: Do(hold="b")})
    requests = [TraceRequest("a", 0.0, 4, 8), TraceRequest("b", 0.0, 4, 8)]
    watcher = StoryWatcher("b", 0.0)
    run(requests, script.build, swapping_system(), watchers=[watcher])
    assert watcher.story is not None
    assert outline(watcher.story)[4:9] == [
        ("decode", 1.0, 2.0, ""),
        ("preempted", 2.0, 2.0, "the policy made room; its KV is copied to the host (5 tokens)"),
        ("on the host", 2.0, 4.0, "the policy let no request start"),
        ("admitted", 4.0, 4.0, "its KV is copied back"),
        ("paused", 4.0, 5.0, "its KV was on its way back"),
    ]


def test_a_request_behind_one_that_does_not_fit() -> None:
    # a holds 2 of 4 blocks from 0 on (8 prompt tokens) and 3 from its first decode; b needs 3, c only 1.
    requests = [TraceRequest("a", 0.0, 8, 3), TraceRequest("b", 0.0, 12, 1), TraceRequest("c", 0.0, 2, 1)]
    story = told(requests, "c", num_blocks=4, max_num_seqs=4)
    waited = [chapter for chapter in story.chapters if chapter.kind is Kind.WAITED]
    assert [(c.start_s, c.end_s, c.why, c.by, c.ahead) for c in waited] == [
        (0.0, 3.0, "behind one whose KV blocks did not fit the free ones", ["b"], (1, 1))
    ]


def test_a_request_that_the_policy_displaces() -> None:
    # One seat: b, with one token to come, takes it at 2 from a, which has 4 + 1 tokens computed and 7 to come.
    requests = [TraceRequest("a", 0.0, 4, 9), TraceRequest("b", 1.5, 4, 1)]
    policy = ORACLES["srpt-oracle"]({request.id: request.output_tokens for request in requests})
    story = told(requests, "a", policy, max_num_seqs=1)
    assert outline(story)[4:8] == [
        ("decode", 1.0, 2.0, ""),
        ("preempted", 2.0, 2.0, "the policy made room for b; its KV is to be computed again (5 tokens)"),
        ("waited", 2.0, 3.0, "others were to start first"),
        ("admitted", 3.0, 3.0, ""),
    ]


def test_a_decode_that_pauses_for_the_prompts_of_others() -> None:
    # vllm-v0 computes prompts first: a decodes at 1, pauses while b starts at 2, goes on at 3.
    requests = [TraceRequest("a", 0.0, 4, 4), TraceRequest("b", 1.5, 4, 2)]
    story = told(requests, "a", preset("vllm-v0"))
    paused = [chapter for chapter in story.chapters if chapter.kind is Kind.PAUSED]
    assert [(c.start_s, c.end_s, c.why) for c in paused] == [
        (2.0, 3.0, "the policy let new prompts run first")
    ]


def test_a_request_that_gives_up_waiting() -> None:
    requests = [TraceRequest("a", 0.0, 4, 9), TraceRequest("b", 0.5, 4, 2, slo=Slo(ttft_s=2.0))]
    policy = preset("vllm", leaving=("expired",))
    story = told(requests, "b", policy, max_num_seqs=1)
    assert outline(story)[-2:] == [
        ("waited", 1.0, 3.0, "all seats were taken"),
        ("ended", 3.0, 3.0, "expired"),
    ]
    assert story_text(story).endswith("target first token within 2 s: missed, it never came")


def test_a_request_that_can_never_fit_has_a_story_too() -> None:
    story = told([TraceRequest("a", 0.0, 99, 1)], "a", num_blocks=4)
    assert [chapter.kind for chapter in story.chapters] == [Kind.ARRIVED, Kind.ENDED]
    assert "needs 25 KV blocks" in story.chapters[-1].why


def test_another_instances_steps_are_no_part_of_it() -> None:
    two = replace(system(max_num_seqs=1), instances=2)
    requests = [TraceRequest("a", 0.0, 4, 5), TraceRequest("b", 0.5, 4, 2)]
    watcher = StoryWatcher("b", 0.5)
    run(requests, system=two, watchers=[watcher])
    assert watcher.story is not None
    assert watcher.story.record.instance == "1"
    # Instance 1 is idle: b starts the moment it comes.
    assert outline(watcher.story)[1:] == [
        ("admitted", 0.5, 0.5, ""),
        ("prefill", 0.5, 1.5, ""),
        ("first token", 1.5, 1.5, ""),
        ("decode", 1.5, 2.5, ""),
        ("ended", 2.5, 2.5, "finished"),
    ]


def test_a_request_that_is_handed_over_is_told_of_at_both_instances() -> None:
    # One seat each. b, which waited at lp-0 behind a, is given up at 3 and starts at hp-0 at once.
    requests = [TraceRequest("a", 0.0, 4, 5), TraceRequest("b", 0.5, 4, 2)]
    watcher = StoryWatcher("b", 0.5)
    plain, _ = run(requests, giving_up(), pooled_system(max_num_seqs=1))
    records, _ = run(requests, giving_up(), pooled_system(max_num_seqs=1), watchers=[watcher])
    assert records == plain
    assert watcher.story is not None
    assert outline(watcher.story) == [
        (
            "arrived",
            0.5,
            0.5,
            "4 prompt tokens, at instance lp-0: 0 others waiting, 1 of 1 seats taken, 15 blocks free",
        ),
        ("waited", 0.5, 1.0, "a step was under way"),
        ("waited", 1.0, 3.0, "all seats were taken"),
        ("handed off", 3.0, 3.0, "instance lp-0 gave it up before it had started"),
        (
            "arrived",
            3.0,
            3.0,
            "4 prompt tokens, at instance hp-0: 0 others waiting, 0 of 1 seats taken, 16 blocks free",
        ),
        ("admitted", 3.0, 3.0, ""),
        ("prefill", 3.0, 4.0, ""),
        ("first token", 4.0, 4.0, ""),
        ("decode", 4.0, 5.0, ""),
        ("ended", 5.0, 5.0, "finished"),
    ]
    assert "    3.0000 s             handed off: instance lp-0 gave it up" in story_text(watcher.story)


@pytest.mark.parametrize("name", ["vllm", "vllm-v0", "sarathi", "sjf", "static", "orca"])
@pytest.mark.parametrize("depth", [{}, {"asynchronous": True}, {"pipeline_stages": 2}])
def test_chapters_follow_one_another_without_gap_and_the_tokens_add_up(
    name: str, depth: dict[str, object]
) -> None:
    requests = parse_workload(
        "poisson:rate=1/input=zipf:theta=1.1,max=40/output=zipf:theta=1.1,max=12/count=40"
    ).requests()
    world = system(num_blocks=30, max_num_seqs=4, max_num_batched_tokens=24, prefix_caching=True, **depth)
    plain, _ = run(requests, name, world)
    watchers = {request.id: StoryWatcher(request.id, request.arrival_s) for request in requests}
    records, _ = run(requests, name, world, list(watchers.values()))
    assert list(records.items()) == list(plain.items())
    for record in records.values():
        story = watchers[record.id].story
        assert story is not None
        check_story(story, record, exact=not depth)
        check_explanation(watchers[record.id].explanation, record)


def check_explanation(found: Explanation | None, record: Record) -> None:
    """Check that the parts of an explanation add up to independently known values."""
    assert found is not None
    queued = sum(c.end_s - c.start_s for c in found.story.chapters if c.kind in (Kind.WAITED, Kind.SWAPPED))
    assert found.waited_s == pytest.approx(queued)
    assert sum(one.seconds for one in found.waited) == pytest.approx(found.waited_s)
    assert len(found.displaced) == found.num_displaced == record.preemptions
    assert all(one.by and record.id not in one.by for one in found.displaced)
    assert sum(not one.swapped and one.tokens for one in found.displaced) >= record.recomputed_tokens
    assert all(0 < one.seconds <= found.waited_s + 1e-9 for one in found.behind)
    assert found.num_overtook <= found.num_behind
    assert found.predicted.came_tokens == record.output_tokens


def check_story(story: Story, record: Record, *, exact: bool) -> None:
    now_s = record.arrival_s
    for chapter in story.chapters:
        assert chapter.start_s == pytest.approx(now_s) or (not exact and chapter.start_s <= now_s)
        assert chapter.end_s >= chapter.start_s
        now_s = max(now_s, chapter.end_s)
    assert now_s == pytest.approx(record.finished_s)
    preempted = sum(chapter.kind is Kind.PREEMPTED for chapter in story.chapters)
    assert preempted == record.preemptions
    computed = sum(chapter.tokens for chapter in story.chapters)
    if exact:
        # Every token but the last is computed, those lost to preemption again; the cache gives some for nothing.
        wanted = record.prompt_tokens + record.output_tokens - 1 + record.recomputed_tokens
        assert computed == wanted if "found" not in story_text(story) else computed <= wanted
    else:
        assert computed >= record.output_tokens


def long_story(chapters: int) -> Story:
    story = seat_story()
    many = []
    for number in range(chapters):
        kind = (Kind.DECODE, Kind.PREEMPTED, Kind.WAITED, Kind.ADMITTED)[number % 4]
        many.append(Chapter(kind=kind, start_s=float(number), end_s=float(number + 1), why="x"))
    return Story(record=story.record, chapters=[*story.chapters[:1], *many, story.chapters[-1]])


def test_a_long_story_fits_a_screen_and_says_what_is_left_out() -> None:
    text = story_text(long_story(200))
    lines = text.splitlines()
    assert len(lines) < MAX_LINES + 10
    assert any("preemptions among them; --json has them all" in line for line in lines)
    assert lines[-5].endswith("finished, 5.5 s after it arrived")


def test_pauses_are_told_within_the_decode_where_they_are_many() -> None:
    story = seat_story()
    pairs = [
        Chapter(
            kind=Kind.PAUSED if number % 2 else Kind.DECODE,
            start_s=float(number),
            end_s=float(number + 1),
            why="the policy let others run" if number % 2 else "",
            steps=1,
            tokens=(number + 1) % 2,
            beside=(number % 3, 2),
        )
        for number in range(60)
    ]
    lines = story_text(Story(record=story.record, chapters=pairs)).splitlines()
    assert [line for line in lines if "decode" in line] == [
        "    0.0000 s       60 s  decode of 30 tokens in 60 steps, beside 0 to 2 others: "
        "paused 30 s the policy let others run"
    ]


def test_the_story_as_data() -> None:
    data = json.loads(json.dumps(story_data(seat_story())))
    assert data["targets"][0] == {"target": "first token", "target_s": 4.0, "value_s": 4.5, "met": False}
    assert data["chapters"][2] == {
        "what": "waited",
        "start_s": 1.0,
        "end_s": 3.0,
        "why": "all seats were taken",
        "steps": 2,
        "ahead": [0, 0],
    }
