"""Multi-level feedback queues that a job joins at the level of its first iteration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import inf, nextafter
from typing import NamedTuple

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.order.sorted_index import Key, SortedIndex


class _Move(NamedTuple):
    """Where a job moves: its new place, and how long it may run there."""

    key: Key
    allowance_s: float


_NOTHING_FORESEEN: tuple[float, dict[Job, _Move]] = (-inf, {})


class SkipJoinMlfq:
    """Lower levels first, and within a level the job that joined it first; knows and predicts no length.

    Level i has the quantum q_1 x ratio^(i-1), in wall time in which a job runs, whatever runs beside it. q_1 is
    `quantum_s`, or else the time of a decode step by the cost model, at least `least_quantum_s`. A job joins the first
    level whose quantum covers its prefill (`skip_join`; else level 1). After its quantum it goes to the tail of the
    queue `demote_levels` lower, or of the first that covers its next iteration, if that is lower still. A job that has
    not run for `starve_s` goes to the tail of level 1, with q_1 or the time of its next iteration to run, whichever is
    longer. A job that makes way within its quantum keeps its place and the rest of the quantum. With `artifact_order`
    demoted and promoted jobs go to the head, as in the released code.

    Time runs from the start of a job's step to the start of the first step after its output came, so it is known when
    that one is planned. Until the cost model knows anything, prompts count as short. No job starves in the queues:
    after `starve_s` it is in level 1, behind jobs each of which leaves after one allowance of running, and before later
    ones. For memory it may wait longer: a running job keeps its KV.

    Costs: add, remove, end O(log n); observe O(batch), O(1) while the same jobs run; top O(k) and rank O(n log n), with
    O(m log m) for the m jobs that move at that moment. Source: FastServe (Wu et al. 2023), section 4.1, Algorithm 1;
    `demote_levels`, `starve_s` and `artifact_order` fill its gaps F1 to F4 and F7.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        quantum_s: float | None = None,
        least_quantum_s: float = 0.01,
        ratio: float = 2.0,
        starve_s: float = 3.0,
        demote_levels: int = 1,
        skip_join: bool = True,
        artifact_order: bool = False,
    ) -> None:
        for name, value in (("quantum_s", quantum_s), ("least_quantum_s", least_quantum_s)):
            if value is not None and not 0 < value < inf:
                raise ConfigError.of(name, value, "more than 0 seconds")
        if not 1 < ratio < inf:
            raise ConfigError.of("ratio", ratio, "more than 1")
        if not starve_s > 0:
            raise ConfigError.of("starve_s", starve_s, "more than 0 seconds, inf for never")
        if demote_levels < 1:
            raise ConfigError.of("demote_levels", demote_levels, "1 or more")
        self.quantum_s = quantum_s
        self.least_quantum_s = least_quantum_s
        self.ratio = ratio
        self.starve_s = starve_s
        self.demote_levels = demote_levels
        self.skip_join = skip_join
        self.artifact_order = artifact_order
        self._cost: CostModel = cost or UnknownCost()
        self._queued = SortedIndex()
        self._waits: set[Job] = set()
        self._keys: dict[Job, Key] = {}
        self._left_s: dict[Job, float] = {}
        self._ends_s: dict[Job, float] = {}
        self._idle_since_s: dict[Job, float] = {}
        self._jobs_at: Counter[int] = Counter()
        self._serials = 0
        self._first_move_s = inf
        self._ran: object = None
        self._foreseen = _NOTHING_FORESEEN

    # ---- queues: every live job, running or not, has a place (level, serial) ------------------------

    def add(self, job: Job) -> None:
        """Queue a new job at the level of its prefill; a preempted job keeps its place."""
        if job not in self._keys:
            self._join(job)
        self._queued.insert(job, self._keys[job])
        self._waits.add(job)

    def _join(self, job: Job) -> None:
        self._foreseen = _NOTHING_FORESEEN
        level, quantum_s = self._covering(self._next_iteration_s(job) if self.skip_join else 0.0)
        self._serials += 1
        self._keys[job] = (level, self._serials)
        self._left_s[job] = quantum_s
        self._jobs_at[level] += 1
        if level > 1:
            self._idle_since_s[job] = job.arrival_s
            self._first_move_s = min(self._first_move_s, self._starves_s(job))

    def remove(self, job: Job) -> None:
        """Remove a job that no longer waits from the queues; it keeps its place among the running ones."""
        self._queued.remove(job, self._keys[job])
        self._waits.remove(job)

    def end(self, job: Job) -> None:
        """Forget a job."""
        self._foreseen = _NOTHING_FORESEEN
        self._ran = None  # the set may contain the job
        self._jobs_at[self.level_of(job)] -= 1
        for known in (self._keys, self._left_s, self._ends_s, self._idle_since_s):
            known.pop(job, None)

    def touch(self, job: Job) -> None:
        """Nothing: a job's place changes with time alone."""

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k waiting jobs."""
        moves = self._moves(now_s)
        if not moves:
            return self._queued.slice(0, k)
        moved = [job for job in moves if job in self._waits]
        staying = [job for job in self._queued.slice(0, k + len(moved)) if job not in moves]
        return self._sorted([*moved, *staying], moves)[:k]

    def rank(self, jobs: Sequence[Job], now_s: float) -> Sequence[Job]:
        """Sort `jobs` by level and place."""
        return self._sorted(jobs, self._moves(now_s))

    def _sorted(self, jobs: Sequence[Job], moves: dict[Job, _Move]) -> list[Job]:
        keys = self._keys
        if not moves:
            return sorted(jobs, key=keys.__getitem__)
        placed = {job: keys[job] for job in jobs}
        placed.update({job: move.key for job, move in moves.items()})
        return sorted(jobs, key=placed.__getitem__)

    # ---- quanta ------------------------------------------------------------------------------------

    def level_quantum_s(self, level: int) -> float:
        """Seconds that a job may run at a level."""
        first_s = self.quantum_s or max(self.least_quantum_s, self._cost.prefill_s(1))
        return first_s * self.ratio ** (level - 1)

    def quantum_ends_s(self, job: Job) -> float:
        """When a running job will have used up its quantum."""
        return self._ends_s[job]

    def level_of(self, job: Job) -> int:
        """The level in which a live job was last put."""
        level: int = self._keys[job][0]
        return level

    def _covering(self, iteration_s: float, highest: int = 1) -> tuple[int, float]:
        """The first level, from `highest` on, whose quantum is at least `iteration_s`, and that quantum."""
        level, quantum_s = highest, self.level_quantum_s(highest)
        while quantum_s < iteration_s:
            level, quantum_s = level + 1, quantum_s * self.ratio
        return level, quantum_s

    def _next_iteration_s(self, job: Job) -> float:
        """Seconds of a job's next iteration alone: the rest of its prefill, or one token."""
        return self._cost.prefill_s(max(1, job.num_tokens - job.num_computed_tokens))

    # ---- moves between levels ----------------------------------------------------------------------

    def _starves_s(self, job: Job) -> float:
        """When an idle job has waited long enough for a promotion."""
        return self._idle_since_s[job] + self.starve_s

    def _moves(self, now_s: float) -> dict[Job, _Move]:
        """The moves of `_due`, cached until something changes, since a plan asks several times at one instant."""
        if now_s < self._first_move_s:
            return {}
        if now_s != self._foreseen[0]:
            self._foreseen = (now_s, self._due(now_s))
        return self._foreseen[1]

    def _due(self, now_s: float) -> dict[Job, _Move]:
        """Where the jobs move that have used up their quantum or starved by now; changes nothing.

        The same rule applies before a step is planned and when its outcome is learned. A job that computed more of its
        prefill in between may join a higher level than foreseen; one that got nothing joins the same level.
        """
        moves = self._demotions(now_s)
        moves.update(self._promotions(now_s, len(moves)))
        return moves

    def _demotions(self, now_s: float) -> dict[Job, _Move]:
        moves: dict[Job, _Move] = {}
        # Many decodes sink at once, each for the same iteration, so the destination is computed once a level.
        of_one_token: dict[int, tuple[int, float]] = {}
        for job, ends_s in self._ends_s.items():
            if now_s > ends_s:
                lower = self._keys[job][0] + self.demote_levels
                if job.prefilling:
                    level, quantum_s = self._covering(self._next_iteration_s(job), lower)
                else:
                    if lower not in of_one_token:
                        of_one_token[lower] = self._covering(self._next_iteration_s(job), lower)
                    level, quantum_s = of_one_token[lower]
                moves[job] = _Move(self._place(level, len(moves)), quantum_s)
        return moves

    def _promotions(self, now_s: float, num_before: int) -> dict[Job, _Move]:
        moves: dict[Job, _Move] = {}
        # In the order in which they became idle, except for arrivals that were reported late.
        for job in self._idle_since_s:
            if now_s < self._starves_s(job):
                break
            allowance_s = max(self.level_quantum_s(1), self._next_iteration_s(job))
            moves[job] = _Move(self._place(1, num_before + len(moves)), allowance_s)
        return moves

    def _place(self, level: int, number: int) -> Key:
        """A place at the end of a queue, behind the `number` places given at the same moment."""
        serial = self._serials + number + 1
        return (level, -serial if self.artifact_order else serial)

    def observe(self, outcome: StepOutcome) -> None:
        """The last step is over: move jobs between levels, and note which run now."""
        now_s, running = outcome.now_s, outcome.tokens
        # Discard the cached moves, since jobs have progressed.
        moves = {} if now_s < self._first_move_s else self._due(now_s)
        self._foreseen = _NOTHING_FORESEEN
        for job, move in moves.items():
            self._move(job, move, now_s)
        self._serials += len(moves)
        if running is not self._ran:
            self._ran = running
            self._stop([job for job in self._ends_s if job not in running and not _in_flight(job)], now_s)
            self._start([job for job in running if job not in self._ends_s], now_s)
        elif not moves:
            return
        self._first_move_s = self._next_move_s()

    def _move(self, job: Job, move: _Move, now_s: float) -> None:
        old = self._keys[job]
        if job in self._waits:
            self._queued.remove(job, old)
            self._queued.insert(job, move.key)
        self._keys[job] = move.key
        self._jobs_at[old[0]] -= 1
        self._jobs_at[move.key[0]] += 1
        if job in self._ends_s:
            self._ends_s[job] = now_s + move.allowance_s
        else:
            self._left_s[job] = move.allowance_s
            del self._idle_since_s[job]

    def _stop(self, jobs: Sequence[Job], now_s: float) -> None:
        """Jobs that ran in the last step and not in this one keep the rest of their quantum."""
        for job in jobs:
            self._left_s[job] = self._ends_s.pop(job) - now_s
            if self.level_of(job) > 1:
                self._idle_since_s[job] = now_s

    def _start(self, jobs: Sequence[Job], now_s: float) -> None:
        for job in jobs:
            self._ends_s[job] = now_s + self._left_s[job]
            self._idle_since_s.pop(job, None)

    def _next_move_s(self) -> float:
        """When the next quantum ends or the next job starves; later if other jobs run by then."""
        starves_s = next(map(self._starves_s, self._idle_since_s), inf)
        return min(starves_s, min(self._ends_s.values(), default=inf))

    def next_change_s(self, view: StepView) -> float:
        """When a quantum ends or a job starves."""
        return nextafter(self._first_move_s, -inf) if self._first_move_s < inf else inf

    # ---- forecast ----------------------------------------------------------------------------------

    def next_service_s(self, jobs: Sequence[Job], now_s: float, width: int) -> list[float]:
        """Expected seconds until each job is served next (ENST).

        min(time until it starves, time until all jobs of higher levels have sunk to its own, `width` of them at a
        time). Jobs within a level are equal; `rank` orders them. O(jobs + levels). Source: FastServe section 4.2 (spec
        4.6), divided by the batch width as in its later versions.
        """
        levels = range(1, max(self._jobs_at, default=0) + 1)
        # Level i waits for each job above it to use up the quanta of the levels between: sum of q_k x N_k, k < i, with
        # N_k the jobs at level k or above.
        above = accumulate(self._jobs_at[level] for level in levels)
        sinking_s = accumulate(
            (
                jobs_above * self.level_quantum_s(level)
                for level, jobs_above in zip(levels, above, strict=True)
            ),
            initial=0.0,
        )
        until_s = [0.0, *(seconds / width for seconds in sinking_s)]
        keys, idle_since_s, starved_s = self._keys, self._idle_since_s, self.starve_s - now_s
        sinking = [until_s[keys[job][0]] for job in jobs]
        starving = [starved_s + idle_since_s.get(job, now_s) for job in jobs]
        # min and max are inlined: as calls they would be most of the work.
        return [
            sinks_s if sinks_s <= starves_s else starves_s if starves_s > 0 else 0.0
            for sinks_s, starves_s in zip(sinking, starving, strict=True)
        ]

    def num_at_first(self, levels: int) -> int:
        """Live jobs at the first `levels` levels."""
        return sum(self._jobs_at[level] for level in range(1, levels + 1))


def _in_flight(job: Job) -> bool:
    """Whether a job's step is still in flight, though later steps have started."""
    return job.state is JobState.RESIDENT and job.awaiting_output
