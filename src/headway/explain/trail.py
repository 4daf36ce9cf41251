"""Records what happens to every request of one engine, so that it can be explained later."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from itertools import chain, filterfalse
from typing import NamedTuple

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState, is_decode
from headway.core.plan import Fate, Reason, StepOutcome
from headway.core.record import Outcome, Record
from headway.core.view import StepView
from headway.explain.story import Kind
from headway.explain.track import (
    ChangeLog,
    Displacement,
    Mark,
    StepHistory,
    Surroundings,
    Track,
    TurnBefore,
)

MOST_NAMED = 3
"""Most ids that a preemption names; more ran in such a step than a reader wants."""

NO_SEAT = "all seats were taken"
_NO_TOKENS = "the tokens of the step were given to others"
_PREEMPTING = "blocks ran out, and no request starts in a step that preempts"
_COPYING = "its KV was still being copied"
WAITED = {
    Reason.SEATS: NO_SEAT,
    Reason.BUDGET: _NO_TOKENS,
    Reason.ISL: "its KV blocks did not fit the free ones",
    Reason.WATERMARK: "its KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "its whole prompt did not fit the tokens left in the step",
    Reason.STALE_OUTPUT: "a step from before its preemption was still under way",
    Reason.PREEMPTION: _PREEMPTING,
    Reason.BLOCKS: "KV blocks were short",
    Reason.REMOTE_KV: _COPYING,
    Reason.REMOTE_LOOKUP: "the KV connector had not yet said what it holds of it",
    Reason.RESTORES: "too many others were on their way back from the host",
    Reason.HOST_BLOCKS: "the host had no blocks left",
    Reason.LORA: "as many adapters ran as may",
    Reason.GRAMMAR: "its grammar was not ready",
    Reason.HELD: "the engine held it back",
    Reason.ENGINE_PAUSED: "the engine was paused, or deferred all prompts",
}
_BLOCKED = {
    Reason.ISL: "behind one whose KV blocks did not fit the free ones",
    Reason.WATERMARK: "behind one whose KV blocks would have left fewer free than the watermark",
    Reason.WHOLE_PROMPT: "behind one whose whole prompt did not fit the tokens left in the step",
}
_PAUSED = {
    Reason.BUDGET: _NO_TOKENS,
    Reason.IN_FLIGHT: "its last token was on its way",
    Reason.BLOCKS: "KV blocks were short",
    Reason.REMOTE_KV: "its KV was on its way back",
    Reason.LORA: "as many adapters ran as may",
    Reason.ENGINE_PAUSED: "the engine was paused, or deferred all prompts",
}
NEW_PROMPTS_FIRST = "the policy let new prompts run first"
OTHERS_FIRST = "the policy let others run"


def why_waiting(job: Job, outcome: StepOutcome) -> str:
    """Why a waiting job in particular was skipped; "" if it shares the reason of all others."""
    reason = outcome.passed_over.get(job)
    return "" if reason is None else WAITED.get(reason, str(reason))


def why_all_waited(view: StepView, outcome: StepOutcome) -> tuple[str, str]:
    """Why the other waiting jobs did not start, and the id of the job ahead of them, if there is one.

    O(jobs skipped), O(1) if the engine is full.
    """
    if len(outcome.preempted) > len(outcome.plan.preempt):
        return _PREEMPTING, ""
    if full := _full(view, outcome):
        return full, ""
    reasons = _of_admission(outcome)
    for reason in _BLOCKED:
        if reason in reasons:
            return _BLOCKED[reason], reasons[reason].id
    for reason in (Reason.SEATS, Reason.BUDGET):
        if reason in reasons:
            return WAITED[reason], ""
    if outcome.plan.admit:
        return "others were to start first", ""
    return "the policy let no request start", ""


def _full(view: StepView, outcome: StepOutcome) -> str:
    """Why no job could have joined, whatever its rank; "" if one could."""
    residents = len(view.residents) - len(outcome.preempted)
    if residents >= view.max_resident:
        return NO_SEAT
    return "the batch was as wide as it may be" if residents >= view.max_run else ""


def _of_admission(outcome: StepOutcome) -> dict[Reason, Job]:
    """Why jobs of `admit` were skipped, each reason with the last of them."""
    prefetched = outcome.plan.prefetch
    return {
        reason: job
        for job, reason in outcome.passed_over.items()
        if job.state is not JobState.RESIDENT and job not in outcome.preempted and job not in prefetched
    }


def why_paused(job: Job, view: StepView, outcome: StepOutcome) -> str:
    """Why a resident job in particular got no tokens; "" if the policy let others run."""
    reason = outcome.passed_over.get(job)
    if reason is not None:
        return _PAUSED.get(reason, str(reason))
    return _PAUSED[Reason.REMOTE_KV] if job in view.restoring else ""


def why_others_ran(outcome: StepOutcome) -> str:
    """The requests that the policy let run in a step in which residents paused."""
    new = any(job in outcome.tokens for job in outcome.admitted)
    return NEW_PROMPTS_FIRST if new else OTHERS_FIRST


def why_preempted(job: Job, view: StepView, outcome: StepOutcome) -> str:
    """Why a job's KV left the device, and what becomes of it."""
    fate = outcome.preempted[job]
    after = "copied to the host" if fate is Fate.SWAP else "to be computed again"
    if job in outcome.plan.preempt:
        first = outcome.plan.room_for or next(iter(outcome.plan.admit), None)
        return f"the policy made room{f' for {first.id}' if first else ''}; its KV is {after}"
    if not outcome.plan.token_budget:
        return f"the engine took its KV back between two steps; it is {after}"
    others = f"{len(outcome.tokens)} request{'' if len(outcome.tokens) == 1 else 's'}"
    return f"blocks ran out ({view.free_blocks} free) as {others} before it grew; its KV is {after}"


def who_displaced(job: Job, view: StepView, outcome: StepOutcome) -> Sequence[str]:
    """Ids of the jobs for which a step took KV away, at most MOST_NAMED.

    The job for which the policy made room; else some with tokens in the step: those that started, else those that took
    a new block, else any. Empty if no job ran. O(tokens) at worst.
    """
    newcomer = outcome.plan.room_for
    if newcomer is not None and job in outcome.plan.preempt:
        return [newcomer.id]
    tokens, size = outcome.tokens, view.block_size
    new = [started.id for started in outcome.admitted if started in tokens]
    if new:
        return new[:MOST_NAMED]
    grew = [
        ran.id
        for ran, granted in tokens.items()
        if (ran.num_computed_tokens - 1) // size != (ran.num_computed_tokens - granted - 1) // size
    ]
    return (grew or [ran.id for ran in tokens])[:MOST_NAMED]


KEPT_ENDED = 500
"""Ended requests that can still be explained."""
KEPT_JUDGED = 1024


# Looking up an enum member takes time, and these are needed for every request.
_QUEUED = (JobState.WAITING, JobState.SWAPPED)
_RESIDENT = JobState.RESIDENT
_ADMITTED, _PREFILL, _DECODE = Kind.ADMITTED, Kind.PREFILL, Kind.DECODE


class JudgedStep(NamedTuple):
    """A step that ended at `at_s`: its shape, the seconds predicted beforehand (0: none), and the real ones."""

    at_s: float
    shape: BatchShape
    predicted_s: float
    took_s: float


class Trail:
    """Follows every job from arrival to end, by its changes.

    A job in the same state as in the step before costs no note. The reason shared by all waiting (or paused) jobs is
    written once for all. The trail is told of each step after the ledger has followed it, with the view on which it was
    planned; it changes no job. Costs: O(1) a step in which every resident runs and none comes or goes; else O(jobs that
    change + jobs in prefill + skipped), and O(residents) in a step in which some pause. Memory: the tracks of live jobs
    and of the last `kept` ended ones, and logs of fixed length. Read it with `explain` (`explanation.py`), which uses
    the current `cost`.
    """

    def __init__(self, *, kept: int = KEPT_ENDED, cost: CostModel | None = None, name: str = "") -> None:
        self.name = name
        self.live: dict[str, Track] = {}
        self.ended: deque[Track] = deque(maxlen=kept)
        self.steps = StepHistory()
        self.waiting_for = ChangeLog()
        self.pausing_for = ChangeLog()
        self.judged: deque[JudgedStep] = deque(maxlen=KEPT_JUDGED)
        self.num_ended = 0
        self.num_judged = 0
        self.block_size = 1
        self.cost: CostModel = cost or UnknownCost()
        self._fresh: list[Track] = []
        self._in_prefill: dict[Job, Track] = {}
        self._paused: dict[Job, str] = {}
        self._passed_over: dict[Job, str] = {}
        self._programs: OrderedDict[tuple[str, str], TurnBefore] = OrderedDict()

    # ---- events --------------------------------------------------------------------------------------

    def arrived(self, job: Job, now_s: float) -> None:
        """A job arrived; nothing happens if it is followed already."""
        if job.id in self.live:
            return
        track = self.live[job.id] = Track(job, now_s, job.arrival_s)
        if job.program is not None:
            track.before = self._programs.get((job.tenant, job.program))
        self._fresh.append(track)

    def stepped(self, view: StepView, outcome: StepOutcome) -> None:
        """A step was filled, and the ledger has followed it."""
        self.block_size = view.block_size
        for job in outcome.admitted:
            if job.id not in self.live:
                self.arrived(job, outcome.now_s)
        if self._fresh:
            self._look_round(view, outcome)
        if outcome.preempted:
            self._follow_preempted(view, outcome)
        if self._in_prefill:
            self._follow_prefills(outcome)
        if outcome.admitted:
            self._follow_admitted(outcome)
        self._follow_paused(view, outcome)
        if outcome.passed_over or self._passed_over:
            self._follow_passed_over(outcome)
        if len(view.waiting) or len(view.swapped):
            self.waiting_for.note(outcome.now_s, self.steps.count, *why_all_waited(view, outcome))
        if outcome.tokens:
            self.steps.add(outcome.now_s, len(outcome.tokens))

    def judge(self, at_s: float, shape: BatchShape, predicted_s: float, took_s: float) -> None:
        """A step with a possible prediction ended."""
        self.num_judged += 1
        self.judged.append(JudgedStep(at_s, shape, predicted_s, took_s))

    def finished(self, record: Record) -> None:
        """A request ended, or left for another instance."""
        track = self.live.pop(record.id, None)
        if track is None:
            return
        assert record.finished_s is not None, "a request ended at no time"
        if track.waits_from_s is not None:
            track.waited_s, track.waits_from_s = track.waited_until(record.finished_s), None
        track.record, track.end_step = record, self.steps.count
        self._in_prefill.pop(track.job, None)
        self._paused.pop(track.job, None)
        self._passed_over.pop(track.job, None)
        self.num_ended += 1
        self.ended.append(track)
        if record.program is not None and record.outcome is Outcome.FINISHED:
            self._note_turn(
                (record.tenant, record.program), TurnBefore(record.finished_s, track.job.num_tokens)
            )

    def _note_turn(self, program: tuple[str, str], turn: TurnBefore) -> None:
        """A program's answer ended; as many programs are remembered as ended requests."""
        self._programs.pop(program, None)
        self._programs[program] = turn
        if len(self._programs) > (self.ended.maxlen or 0):
            self._programs.popitem(last=False)

    def find(self, id_: str) -> Track | None:
        """The track of a request, live or among the last that ended; the newest with that id. O(kept)."""
        ended = (track for track in reversed(self.ended) if track.job.id == id_)
        return self.live.get(id_) or next(ended, None)

    @property
    def tracks(self) -> Iterator[Track]:
        """All kept tracks."""
        return chain(self.live.values(), self.ended)

    # ---- one step ------------------------------------------------------------------------------------

    def _mark(
        self,
        track: Track,
        now_s: float,
        kind: Kind,
        why: str = "",
        *,
        granted: int = 0,
        then: Kind | None = None,
    ) -> None:
        """From this step on, in which it was `granted` tokens, something else is true of a job."""
        job = track.job
        computed, lost = track.computed - granted, job.recomputed_tokens
        track.add(Mark(now_s, self.steps.count, computed, job.num_output_tokens, kind, why, then, lost))

    def _look_round(self, view: StepView, outcome: StepOutcome) -> None:
        """Note what newly arrived jobs found."""
        found = Surroundings(
            outcome.now_s,
            self.steps.count,
            len(view.waiting) + len(outcome.admitted) - 1,
            len(view.residents),
            view.max_resident,
            view.free_blocks,
        )
        for track in self._fresh:
            if track.record is None:
                track.found = found
        self._fresh.clear()

    def _follow_preempted(self, view: StepView, outcome: StepOutcome) -> None:
        now_s = outcome.now_s
        for job, fate in outcome.preempted.items():
            track = self.live.get(job.id)
            if track is None:
                continue
            swapped = fate is Fate.SWAP
            moved = job.num_computed_tokens if swapped else job.recomputed_tokens - track.lost_tokens
            track.lost_tokens = job.recomputed_tokens
            why, by = why_preempted(job, view, outcome), tuple(who_displaced(job, view, outcome))
            track.displace(Displacement(now_s, moved, swapped, why, by))
            track.waits_from_s = now_s
            self._mark(track, now_s, Kind.PREEMPTED, f"{why} ({moved:,} tokens)", then=_queued(job))
            self._in_prefill.pop(job, None)
            self._paused.pop(job, None)

    def _follow_admitted(self, outcome: StepOutcome) -> None:
        now_s, step = outcome.now_s, self.steps.count
        for job in outcome.admitted:
            track, granted = self.live[job.id], outcome.tokens.get(job, 0)
            kept = job.num_computed_tokens - granted
            why = self._follow_kept(track, kept, outcome.cached_tokens.get(job, 0)) if kept else ""
            lost = track.lost_tokens = job.recomputed_tokens
            if track.waits_from_s is not None:
                track.waited_s += now_s - track.waits_from_s
                track.waits_from_s = None
            then = self._kind_of_run(job, track, granted) if granted else None
            track.add(Mark(now_s, step, kept + lost, job.num_output_tokens, _ADMITTED, why, then, lost))
            if self._passed_over:
                self._passed_over.pop(job, None)

    def _follow_kept(self, track: Track, kept: int, cached: int) -> str:
        """Where the KV that a job starts with comes from: what is not on the device is on the host."""
        found = f"{cached:,} of {track.job.num_tokens:,} tokens found in the prefix cache" if cached else ""
        if kept <= cached:
            return found
        track.restored_blocks += -(-kept // self.block_size) - cached // self.block_size
        return "its KV is copied back" + (f", but for {found}" if found else "")

    def _kind_of_run(self, job: Job, track: Track, granted: int) -> Kind:
        """What a job does with its first tokens; a prompt is watched until it is complete."""
        if is_decode(job, granted):
            return _DECODE
        self._in_prefill[job] = track
        return _PREFILL

    def _follow_prefills(self, outcome: StepOutcome) -> None:
        """Find prompts that are complete."""
        tokens = outcome.tokens
        through = [
            (job, granted)
            for job in self._in_prefill
            if (granted := tokens.get(job, 0)) and is_decode(job, granted)
        ]
        for job, granted in through:
            self._mark(self._in_prefill.pop(job), outcome.now_s, _DECODE, granted=granted)

    def _follow_paused(self, view: StepView, outcome: StepOutcome) -> None:
        """Find residents without tokens, and those that have some again."""
        tokens = outcome.tokens
        expected = len(view.residents) - len(outcome.preempted) + len(outcome.admitted)
        if len(tokens) == expected and not self._paused:
            return
        residents = chain(view.residents, outcome.admitted)
        paused = {
            job: why_paused(job, view, outcome)
            for job in filterfalse(tokens.__contains__, residents)
            if job.state is _RESIDENT
        }
        before, self._paused = self._paused, paused
        now_s = outcome.now_s
        for job, why in paused.items():
            if before.get(job) != why and job.id in self.live:
                self._in_prefill.pop(job, None)
                self._mark(self.live[job.id], now_s, Kind.PAUSED, why)
        for job in before:
            if job not in paused and job in tokens and job.id in self.live:
                track, granted = self.live[job.id], tokens[job]
                self._mark(track, now_s, self._kind_of_run(job, track, granted), granted=granted)
        if paused:
            self.pausing_for.note(now_s, self.steps.count, why_others_ran(outcome))

    def _follow_passed_over(self, outcome: StepOutcome) -> None:
        """Find waiting jobs with a new reason of their own, and those without one again."""
        now = {
            job: why_waiting(job, outcome)
            for job in outcome.passed_over
            if job.state is not _RESIDENT and job not in outcome.preempted
        }
        before, self._passed_over = self._passed_over, now
        for job, why in now.items():
            if before.get(job) != why and job.id in self.live:
                self._mark(self.live[job.id], outcome.now_s, _queued(job), why)
        for job in before:
            if (
                job not in now
                and job.state in _QUEUED
                and job not in outcome.preempted
                and job.id in self.live
            ):
                self._mark(self.live[job.id], outcome.now_s, _queued(job))


def _queued(job: Job) -> Kind:
    return Kind.SWAPPED if job.state is JobState.SWAPPED else Kind.WAITED
