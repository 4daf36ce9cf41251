"""Swapping worked out by hand: a second a step, half a second a block to the host, a quarter of one back."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.cost import CostModel
from headway.core.plan import Fate, Reason
from headway.core.record import Record
from headway.errors import ConfigError
from headway.policies.policy import Policy
from headway.sim.instance import SPIN_S
from headway.sim.simulation import SimulatedRun
from headway.traces import TraceRequest
from tests.sim.swapping import Do, Script, swapping_system
from tests.sim.worlds import request, run

SWAP = Fate.SWAP
# Blocks of 4: the prompt takes two, the first token generated (computed in the second step) a third.
A = request("a", 0.0, 8, 6)
B = request("b", 0.0, 8, 4)
C = request("c", 0.0, 8, 4)
LONG = request("b", 0.0, 22, 4)


def follow(script: Script, *requests: TraceRequest, **limits: Any) -> tuple[dict[str, Record], SimulatedRun]:
    """Run a script, every step planned; stepping over stretches must not make a difference."""
    world = swapping_system(**{"max_num_seqs": 4, "max_num_batched_tokens": 32, **limits})
    run_through = run(requests, Script(script.steps, script.serial).build, world)
    step_by_step = run(requests, script.build, world, shortcut=False)
    assert run_through == step_by_step
    return step_by_step


def test_a_job_is_swapped_out_waits_for_its_copy_and_comes_back_as_it_was() -> None:
    # 0-1 both prompts, 1-2 a decode each: 9 tokens in 3 blocks. b leaves at 2; its copy takes 1.5 s, to 3.5, and
    # its blocks come free then. At 3 it is not there yet; at 4 it gets its 3 blocks back, and their contents by
    # 4.75, too late for the step at 4. It runs 5-6 and 6-7, its third and fourth token.
    script = Script({2.0: Do(preempt={"b": SWAP})})
    records, result = follow(script, A, B)
    assert (records["a"].finished_s, records["b"].finished_s) == (6.0, 7.0)
    seen = script.seen
    assert seen[2.0].preempted == {"b": SWAP}
    assert (seen[3.0].free, seen[3.0].coming, seen[3.0].host_free) == (10, 3, 13)
    assert (seen[3.0].swapped, seen[3.0].passed_over) == (["b"], {"b": Reason.REMOTE_KV})
    assert (seen[4.0].free, seen[4.0].coming, seen[4.0].swapped) == (13, 0, ["b"])
    assert (seen[4.0].ran, seen[4.0].restoring) == (["a"], [])
    assert (seen[5.0].ran, seen[5.0].restoring) == (["a", "b"], [])
    assert [seen[time].host_free for time in (4.0, 5.0, 6.0)] == [13, 13, 16]
    assert (records["b"].preemptions, records["b"].recomputed_tokens, records["b"].swapped_blocks) == (
        1,
        0,
        3,
    )
    totals = result.totals["0"]
    assert (totals.swapped_out_blocks, totals.swapped_in_blocks, totals.tokens) == (3, 3, 16 + 5 + 3)


def test_a_job_on_its_way_back_is_passed_over() -> None:
    # Six blocks: out from 1 to 4, back from 4 to 5.5. It is resident from 4 on and runs from 6 on, 6-7, 7-8, 8-9.
    script = Script({1.0: Do(preempt={"b": SWAP})})
    records, _ = follow(script, LONG, request("a", 0.0, 8, 9))
    assert (script.seen[5.0].restoring, script.seen[5.0].swapped) == (["b"], [])
    assert script.seen[5.0].passed_over == {"b": Reason.REMOTE_KV}
    assert script.seen[6.0].ran == ["a", "b"]
    assert records["b"].finished_s == 9.0


def test_the_two_directions_do_not_wait_for_each_other() -> None:
    # b is out at 2 and starts back at 2, when c, by then with three blocks, leaves: b is back at 2.5 although c's
    # copy takes until 3.5.
    script = Script({1.0: Do(preempt={"b": SWAP}), 2.0: Do(preempt={"c": SWAP})})
    records, _ = follow(script, A, B, C)
    assert script.seen[3.0].ran == ["a", "b"]
    assert script.seen[3.0].passed_over == {"c": Reason.REMOTE_KV}
    assert script.seen[4.0].ran == ["a", "b"]
    assert script.seen[5.0].ran == ["a", "b", "c"]
    assert records["c"].finished_s == 7.0


def test_an_offloaded_job_stays_and_then_leaves_at_once() -> None:
    # At 2 b pauses and is copied until 3.5. At 4 it leaves: its three blocks are free in that very step.
    script = Script(
        {2.0: Do(offload="b"), 3.0: Do(pause="b"), 4.0: Do(preempt={"b": SWAP}), 5.0: Do(hold="b")}
    )
    records, result = follow(script, A, B)
    assert (script.seen[3.0].free, script.seen[3.0].coming, script.seen[3.0].swapped) == (10, 0, [])
    assert (script.seen[5.0].free, script.seen[5.0].coming) == (13, 0)
    assert result.totals["0"].swapped_out_blocks == 3
    assert records["b"].finished_s == 8.75  # back at 6.75, a has ended: 6.75-7.75-8.75


def test_a_job_that_ran_after_its_offload_has_only_its_last_block_copied_again() -> None:
    # As above, but b runs 3-4: its 10th token goes to the third block, whose copy (9 tokens) is out of date.
    script = Script({2.0: Do(offload="b"), 4.0: Do(preempt={"b": SWAP}), 5.0: Do(hold="b")})
    records, result = follow(script, A, B)
    assert (script.seen[4.0].host_free, script.seen[5.0].free, script.seen[5.0].coming) == (13, 13, 0)
    assert result.totals["0"].swapped_out_blocks == 3 + 1
    assert records["b"].finished_s == 7.75  # its third token at 4; back at 6.75, a has ended: 6.75-7.75


def test_a_job_preempted_during_its_offload_leaves_with_that_copy() -> None:
    # Offloaded at 2, preempted at 3: what the copy covers is all there is, and it goes on until 3.5.
    script = Script({2.0: Do(offload="b"), 3.0: Do(preempt={"b": SWAP})})
    _, result = follow(script, A, B)
    assert (script.seen[3.0].coming, script.seen[4.0].coming) == (0, 0)
    assert script.seen[4.0].free == 13
    assert result.totals["0"].swapped_out_blocks == 3


def test_what_an_offload_under_way_does_not_cover_is_copied_after_it() -> None:
    # Offloaded at 1, two blocks until 2... with c's two blocks before it in line: until 3. b runs again at 2 and
    # leaves at 3 with a third block, whose copy is done at 3.5.
    script = Script({1.0: Do(offload="cb"), 2.0: Do(pause="c"), 3.0: Do(preempt={"b": SWAP}, pause="c")})
    _, result = follow(script, A, B, C)
    assert result.totals["0"].swapped_out_blocks == 2 + 2 + 1
    assert (script.seen[4.0].swapped, script.seen[4.0].coming) == (["b"], 0)


def test_a_prefetched_job_is_put_back_at_once_and_without_a_copy() -> None:
    # As above; put back at 5 it leaves its blocks in that step, although it once was copied out in 1.5 s.
    script = Script({2.0: Do(preempt={"b": SWAP}), 4.0: Do(prefetch="b"), 5.0: Do(preempt={"b": SWAP})})
    records, result = follow(script, request("a", 0.0, 8, 9), B)
    assert script.seen[5.0].preempted == {"b": SWAP}
    assert (script.seen[6.0].free, script.seen[6.0].coming) == (16 - 4, 0)  # a has four by now
    assert script.seen[6.0].swapped == ["b"]
    assert (result.totals["0"].swapped_out_blocks, result.totals["0"].swapped_in_blocks) == (3, 6)
    assert records["b"].finished_s == 9.0  # back again at 6.75: 7-8, 8-9


def test_a_job_put_back_on_its_way_leaves_its_blocks_when_the_copy_has_ended() -> None:
    # Six blocks: out from 1 to 4, back from 4 to 5.5; put back at 5.
    script = Script(
        {1.0: Do(preempt={"b": SWAP}), 4.0: Do(prefetch="b"), 5.0: Do(preempt={"b": SWAP}), 6.0: Do(hold="b")}
    )
    records, _ = follow(script, request("a", 0.0, 8, 9), LONG)
    assert script.seen[5.0].restoring == ["b"]
    assert (script.seen[6.0].free, script.seen[6.0].swapped) == (16 - 4, ["b"])
    assert records["b"].preemptions == 2


def test_a_job_that_leaves_on_its_way_back_and_returns_waits_for_the_second_copy() -> None:
    # Twelve blocks: out from 1 to 7, back from 7 to 10, but put back at 8 and started again at 9, into other blocks:
    # that copy is the next one, 10 to 13.
    script = Script({1.0: Do(preempt={"b": SWAP}), 7.0: Do(prefetch="b"), 8.0: Do(preempt={"b": SWAP})})
    records, result = follow(
        script,
        request("a", 0.0, 8, 20),
        request("b", 0.0, 46, 4),
        num_blocks=40,
        host_blocks=40,
        max_num_batched_tokens=64,
    )
    assert [script.seen[time].ran for time in (10.0, 11.0, 12.0, 13.0)] == [["a"]] * 3 + [["a", "b"]]
    assert (records["b"].finished_s, result.totals["0"].swapped_in_blocks) == (16.0, 24)


def test_an_idle_engine_looks_again_after_a_job_was_put_back() -> None:
    # b alone: out by 2, prefetched by 2.5 and put back then, in a step without tokens. A spin later it starts back.
    script = Script({1.0: Do(preempt={"b": SWAP}), 2.0: Do(prefetch="b"), 2.5: Do(preempt={"b": SWAP})})
    records, _ = follow(script, B)
    assert records["b"].finished_s == pytest.approx(2.5 + SPIN_S + 0.5 + 3.0)


def test_restored_jobs_hold_a_share_of_the_memory_unless_there_is_one() -> None:
    # A share of a quarter is 4 of 16 blocks: b and c, three each, come back one after the other. c, the last to
    # leave, is the first in line at 5, and back at 5.75; it runs at 6, so b starts back in that step.
    script = Script({2.0: Do(preempt={"b": SWAP, "c": SWAP}), 3.0: Do(hold="bc"), 4.0: Do(hold="bc")})
    follow(script, request("a", 0.0, 8, 9), B, C, restore_share=0.25)
    assert [script.seen[time].passed_over for time in (5.0, 6.0)] == [{"b": Reason.RESTORES}, {}]
    assert [script.seen[time].ran for time in (5.0, 6.0, 7.0)] == [["a"], ["a", "c"], ["a", "c", "b"]]
    alone = Script({2.0: Do(preempt={"b": SWAP})})
    records, _ = follow(alone, A, B, restore_share=0.01)
    assert records["b"].finished_s == 7.0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_share_is_free_again_once_a_first_step_begins(asynchronous: bool) -> None:
    # As above, with answers that go on: while two decode, the third is started as soon as it may be, although
    # nothing else has changed (`follow` compares with a run step by step).
    holds = {time_s: Do(hold="bc") for time_s in (3.0, 4.0, 5.0, 6.0)}
    script = Script({2.0: Do(preempt={"b": SWAP, "c": SWAP}), **holds})
    long = [request(name, 0.0, 8, 20) for name in "abc"]
    follow(script, *long, restore_share=0.1, asynchronous=asynchronous, num_blocks=40)
    assert any(Reason.RESTORES in seen.passed_over.values() for seen in script.seen.values())
    assert script.seen[12.0].swapped == script.seen[12.0].restoring == []


def test_serial_copies_hold_up_the_step_they_were_decided_with() -> None:
    # b leaves at 2: its 1.5 s come first, the step runs 3.5-4.5 and b's blocks are free in it. At 4.5 b returns, in
    # 0.75 s, and runs in that step, 5.25-6.25; then 6.25-7.25, b's last.
    script = Script({2.0: Do(preempt={"b": SWAP}, hold="b")}, serial=True)
    records, result = follow(script, A, B)
    assert sorted(script.seen) == [0.0, 1.0, 2.0, 4.5, 6.25, 7.25, 8.25]
    assert (script.seen[4.5].free, script.seen[4.5].ran) == (13, ["a", "b"])
    assert (records["b"].finished_s, records["a"].finished_s) == (7.25, 8.25)
    totals = result.totals["0"]
    assert (totals.swapped_out_blocks, totals.swapped_in_blocks) == (3, 3)


def test_serial_copies_without_a_step_take_their_time_too() -> None:
    # Both leave at 2: three blocks each, 3 s. At 5 both return, 1.5 s, and run 6.5-7.5.
    script = Script({2.0: Do(preempt={"a": SWAP, "b": SWAP})}, serial=True)
    records, _ = follow(script, A, B)
    assert sorted(script.seen)[3:5] == [5.0, 7.5]
    assert records["b"].finished_s == 8.5


def test_serial_copies_of_a_victim_in_flight_hold_up_the_step_after_its_last() -> None:
    # Two deep. At 1 b leaves, with a step in flight until 2; a's next step, planned then, runs 2-3. At 2 b's three
    # blocks are copied: the step planned then waits 1.5 s for them, and for 0.75 s, since b comes back in it: b
    # and a run 3-6.25. a's fifth token and b's third come then.
    script = Script({1.0: Do(preempt={"b": SWAP}, hold="b")}, serial=True)
    records, result = follow(script, A, B, asynchronous=True)
    assert script.seen[1.0].preempted == {"b": SWAP}
    assert script.seen[2.0].ran == ["a", "b"]
    assert sorted(script.seen)[:5] == [0.0, 1.0, 2.0, 3.0, 6.25]
    totals = result.totals["0"]
    assert (totals.swapped_out_blocks, totals.swapped_in_blocks) == (3, 3)
    assert (records["b"].recomputed_tokens, records["b"].output_tokens) == (0, 4)


@pytest.mark.parametrize("serial", [False, True])
def test_the_cost_of_copies_is_learned_from_those_that_are_done(serial: bool) -> None:
    # Three blocks out and in: 1.5 s and 0.75 s. Nothing is known while the first is under way.
    known: list[CostModel] = []
    script = Script({2.0: Do(preempt={"b": SWAP})}, serial=serial)

    def build(cost: CostModel) -> Policy:
        known.append(cost)
        return script.build(cost)

    run((A, B), build, swapping_system(max_num_seqs=4, max_num_batched_tokens=32))
    (cost,) = known
    assert (cost.swap_out_s(3), cost.swap_in_s(3)) == pytest.approx((1.5, 0.75))
    assert (cost.swap_out_s(6), cost.swap_in_s(6)) == pytest.approx((3.0, 1.5))


def test_an_idle_engine_wakes_when_a_copy_is_done() -> None:
    # b alone: out 1-2, back 2-2.5, and it runs from 2.5 on: 2.5-3.5, 3.5-4.5, 4.5-5.5.
    script = Script({1.0: Do(preempt={"b": SWAP})})
    records, _ = follow(script, B)
    assert records["b"].finished_s == 5.5


def test_a_victim_in_flight_is_copied_when_its_last_step_is_over() -> None:
    # Two deep. b's prompt runs 0-1 and, scheduled with it at 0, its first decode 1-2. At 1 b leaves: three blocks,
    # the third being written until 2; the copy takes 2-3.5. Its token of the step until 2 still arrives.
    script = Script({1.0: Do(preempt={"b": SWAP})})
    records, _ = follow(script, A, B, asynchronous=True)
    assert script.seen[2.0].coming == 3
    assert script.seen[2.0].passed_over["b"] is Reason.REMOTE_KV
    assert (script.seen[3.0].coming, script.seen[4.0].coming) == (3, 0)
    assert records["b"].swapped_blocks == 3
    assert (records["b"].recomputed_tokens, records["b"].output_tokens) == (0, 4)


def test_a_victim_that_ends_with_the_token_in_flight_leaves_nothing_behind() -> None:
    # Its second and last token is computed by the step in flight when it is preempted at 1; it arrives at 2.
    script = Script({1.0: Do(preempt={"b": SWAP})})
    records, result = follow(script, A, request("b", 0.0, 8, 2), asynchronous=True)
    assert records["b"].finished_s == 2.0
    assert result.totals["0"].swapped_out_blocks == 0
    assert script.seen[3.0].host_free == 16


def test_an_offload_waits_until_nothing_is_in_flight() -> None:
    script = Script({1.0: Do(offload="b"), 2.0: Do(offload="b")})
    follow(script, A, B, asynchronous=True)
    assert script.seen[1.0].passed_over["b"] is Reason.IN_FLIGHT
    assert "b" not in script.seen[2.0].passed_over


def test_who_lacks_blocks_waits_for_those_that_are_coming_free() -> None:
    # All five blocks are held; a's 13th token needs one at 1, when b leaves. a waits until b's two are out, at 2,
    # rather than lose what it has computed.
    script = Script({1.0: Do(preempt={"b": SWAP})})
    records, _ = follow(script, request("a", 0.0, 12, 3), B, num_blocks=5)
    assert script.seen[1.0].passed_over["a"] is Reason.BLOCKS
    assert script.seen[2.0].ran == ["a"]
    assert records["a"].preemptions == 0


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({"restore_share": 0.0}, "restore_share is 0.0; accepted: more than 0, up to 1"),
        ({"restore_share": 1.5}, "restore_share is 1.5"),
        ({"host_blocks": -1}, "host_blocks is -1; accepted: 0 or more"),
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any], refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        swapping_system(**limits)
