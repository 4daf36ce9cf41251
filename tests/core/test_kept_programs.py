"""Blocks that stay for agent programs between their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.core.job import Job, JobState
from headway.core.kept_programs import GONE_S, PATIENCE_S, KeptPrograms, Program, program_of
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from tests.strategies import make_job


@dataclass
class Device:
    """A pool of ten blocks of four tokens, in which a job's blocks are those that its name stands for."""

    free_blocks: int = 10
    kept: list[Sequence[int]] = field(default_factory=list)

    def keep(self, job: Job) -> Sequence[int]:
        blocks = [hash(job.id)] * (job.num_computed_tokens // 4)
        self.kept.append(blocks)
        self.free_blocks -= len(blocks)
        return blocks

    def let_go(self, blocks: Sequence[int]) -> None:
        self.kept.remove(blocks)
        self.free_blocks += len(blocks)


@dataclass
class Rule:
    """Keeps each program for as many seconds as its name says."""

    share: float = 1.0
    heard: list[tuple[Program, float]] = field(default_factory=list)
    stored: list[float] = field(default_factory=list)

    def came(self, program: Program, now_s: float) -> None:
        self.heard.append((program, now_s))

    def keep_s(self, program: Program, num_tokens: int, now_s: float, stored_share: float = 0.0) -> float:
        self.stored.append(stored_share)
        return float(program[1])


def turn(seconds: str | None, tokens: int = 8, arrival_s: float = 0.0) -> Job:
    job = make_job(f"of {seconds}", prompt=tokens, num_computed_tokens=tokens)
    return replace(job, program=seconds, arrival_s=arrival_s, state=JobState.RESIDENT)


def stage(share: float = 1.0) -> tuple[Device, KeptPrograms]:
    device = Device()
    return device, KeptPrograms(device, Rule(share), num_blocks=10)


def view(now_s: float, **fields: object) -> StepView:
    return StepView(now_s=now_s, total_blocks=10, block_size=4, max_tokens=4, **fields)  # type: ignore[arg-type]


def test_a_job_of_no_program_leaves_nothing() -> None:
    device, kept = stage()
    kept.ended(turn(None), 0.0, finished=True)
    kept.came(turn(None), 0.0)
    kept.started(turn(None))
    assert (bool(kept), device.free_blocks, program_of(turn(None))) == (False, 10, None)


def test_blocks_stay_until_their_time_is_up() -> None:
    device, kept = stage()
    kept.ended(turn("5"), 1.0, finished=True)
    assert (kept.next_s, kept.num_blocks, device.free_blocks) == (6.0, 2, 8)
    kept.before_step(view(6.0))
    assert kept
    kept.before_step(view(6.1))
    assert (bool(kept), kept.num_blocks, device.free_blocks) == (False, 0, 10)


def test_only_an_answer_that_came_to_its_end_leaves_something() -> None:
    device, kept = stage()
    kept.ended(turn("5"), 0.0, finished=False)
    kept.ended(replace(turn("5"), state=JobState.WAITING), 0.0, finished=True)
    assert (bool(kept), device.free_blocks) == (False, 10)


def test_a_program_that_is_not_worth_it_is_let_go() -> None:
    device, kept = stage()
    kept.ended(turn("0"), 1.0, finished=True)
    assert (bool(kept), device.free_blocks) == (False, 10)


def test_a_turn_that_has_come_keeps_them_until_it_starts() -> None:
    device, kept = stage()
    kept.ended(turn("5"), 0.0, finished=True)
    kept.came(back := turn("5"), 3.0)
    assert back.num_kept_tokens == 8
    kept.before_step(view(1000.0, residents=[turn(None)]))
    assert device.free_blocks == 8
    kept.started(turn("5"))
    assert (bool(kept), device.free_blocks) == (False, 10)


def test_a_store_is_expected_to_hold_of_a_program_what_it_held_of_those_before() -> None:
    rule = Rule()
    kept = KeptPrograms(Device(), rule, num_blocks=10, has_store=True)
    for device_tokens, found_tokens in ((0, 4), (0, 0), (8, 8)):  # of eight; the device's own tell nothing
        kept.came(job := turn("0"), 0.0)
        kept.ended(job, 0.0, finished=True)
        kept.looked_up(turn("0"), device_tokens, found_tokens)
        kept.looked_up(turn("0"), 0, 0)
        kept.looked_up(turn(None), 0, 0)
    kept.ended(turn("0"), 0.0, finished=True)
    assert rule.stored == [1.0, 0.9375, 0.8203125, 0.8203125]


def test_the_next_end_takes_the_place_of_the_one_before() -> None:
    device, kept = stage()
    kept.ended(turn("5"), 0.0, finished=True)
    kept.ended(turn("5", tokens=16), 9.0, finished=True)
    assert (kept.num_blocks, device.free_blocks, kept.next_s) == (4, 6, 14.0)


def test_no_more_than_the_share_stays_and_the_shortest_goes_first() -> None:
    _, kept = stage(share=0.5)
    kept.ended(turn("5"), 0.0, finished=True)
    kept.ended(turn("9"), 0.0, finished=True)
    kept.ended(turn("7"), 0.0, finished=True)
    assert (kept.num_blocks, kept.next_s) == (4, 7.0)


def test_residents_have_room_for_any_step() -> None:
    device, kept = stage()
    kept.ended(turn("5", tokens=16), 0.0, finished=True)
    kept.ended(turn("9", tokens=16), 0.0, finished=True)
    kept.before_step(
        view(1.0, residents=[turn(None)])
    )  # a block for the resident, one for the tokens of a step
    assert device.free_blocks == 2
    kept.before_step(view(1.0, residents=[turn(None), turn(None)]))
    assert (device.free_blocks, kept.next_s) == (6, 9.0)


def crowded() -> tuple[Device, KeptPrograms, dict[str, object]]:
    """Three programs kept, of which the second began last, and a job that waits for eight of ten blocks."""
    device, kept = stage()
    for program, began_s in (("500", 0.0), ("900", 2.0), ("700", 1.0)):
        kept.ended(turn(program, arrival_s=began_s), 3.0, finished=True)
    waiting = [turn(None, tokens=24, arrival_s=3.0), turn(None, arrival_s=4.0)]

    def missing(job: Job) -> int:
        return max(0, job.num_prompt_tokens // 4 - device.free_blocks)

    return device, kept, {"waiting": waiting, "missing_blocks": missing}


def test_where_none_runs_the_job_that_waits_longest_gets_what_it_lacks() -> None:
    device, kept, waits = crowded()
    kept.before_step(view(4.0, residents=[turn(None)], **waits))
    assert device.free_blocks == 4
    kept.before_step(view(4.0, **waits))
    assert (device.free_blocks, kept.next_s) == (6, 503.0)  # of the last to begin


def test_where_none_runs_the_first_of_the_plan_gets_what_it_lacks() -> None:
    """The oldest job lacks nothing, and does not start before the one that the policy serves first."""
    device, kept, waits = crowded()
    old = replace(turn(None, arrival_s=0.0), state=JobState.WAITING)
    first = replace(turn(None, tokens=24, arrival_s=3.0), state=JobState.WAITING)
    waits["waiting"] = [old, first]
    kept.before_step(view(4.0, **waits))
    assert device.free_blocks == 4
    kept.stepped(StepOutcome(now_s=4.0, plan=StepPlan(admit=[first, old])))
    kept.before_step(view(4.1, **waits))
    assert device.free_blocks == 6


def test_a_job_that_has_ended_takes_no_blocks() -> None:
    device, kept, waits = crowded()
    gone = replace(turn(None, tokens=40, arrival_s=3.0), state=JobState.WAITING)
    kept.stepped(StepOutcome(now_s=4.0, plan=StepPlan(admit=[gone])))
    gone.state = JobState.ENDED
    waits["waiting"] = []
    kept.before_step(view(4.1, **waits))
    assert device.free_blocks == 4


def test_no_job_waits_for_kept_blocks_without_end() -> None:
    device, kept, waits = crowded()
    kept.before_step(view(3.0 + PATIENCE_S, residents=[turn(None)], **waits))
    assert device.free_blocks == 4
    kept.before_step(view(3.1 + PATIENCE_S, residents=[turn(None)], **waits))
    assert device.free_blocks == 6


def test_a_turn_that_waits_takes_its_own_blocks_last() -> None:
    for tokens, left in ((32, (8, 2)), (40, (10, 0))):  # the second finds none of its own, and needs all ten
        device, kept, waits = crowded()
        waits["waiting"] = [turn("900", tokens=tokens, arrival_s=3.0)]
        kept.before_step(view(4.0, **waits))
        assert (device.free_blocks, kept.num_blocks) == left


def test_a_swapped_job_waits_no_longer_than_others() -> None:
    device, kept, waits = crowded()
    back = replace(turn(None, tokens=24, arrival_s=3.0), state=JobState.SWAPPED)
    kept.stepped(StepOutcome(now_s=4.0, plan=StepPlan(admit=[back])))
    waits |= {"waiting": [], "swapped": [back], "residents": [turn(None)]}
    kept.before_step(view(3.1 + PATIENCE_S, **waits))
    assert device.free_blocks == 6


def test_a_job_that_is_not_ready_keeps_no_other_from_its_blocks() -> None:
    device, kept, waits = crowded()
    held, next_one = (replace(turn(None, tokens=24, arrival_s=3.0), state=JobState.WAITING) for _ in range(2))
    held.id = "held"
    kept.stepped(StepOutcome(now_s=4.0, plan=StepPlan(admit=[held, next_one])))
    waits |= {"waiting": [held, next_one], "ready": lambda job: job is not held}
    kept.before_step(view(4.1, **waits))
    assert device.free_blocks == 6


def test_a_turn_is_told_when_its_program_began() -> None:
    _, kept = stage()
    told = []
    for job in (
        turn("5", arrival_s=5.0),
        turn("5", arrival_s=9.0),
        turn("6", arrival_s=9.0),
        replace(turn("5", arrival_s=9.0), tenant="other"),
        turn(None, arrival_s=9.0),
        turn("5", arrival_s=9.0 + GONE_S),
        turn("5", arrival_s=9.5 + 2 * GONE_S),
    ):
        kept.came(job, job.arrival_s)
        told.append(job.program_began_s)
    assert told == [5.0, 5.0, 9.0, 9.0, None, 5.0, 9.5 + 2 * GONE_S]


def test_what_was_swapped_out_comes_back_where_none_runs() -> None:
    device, kept = stage()
    kept.ended(turn("5"), 0.0, finished=True)
    kept.before_step(view(1.0, swapped=[turn(None)]))
    assert device.free_blocks == 10
