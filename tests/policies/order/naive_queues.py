"""The rules of skip-join queues as one would write them down: a list a level, everybody looked at in each step."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.job import Job


@dataclass
class _Account:
    allowance_s: float
    idle_since_s: float
    used_s: float = 0.0


@dataclass
class NaiveQueues:
    """The level of each job, for jobs that take `token_s` a token."""

    quantum_s: float
    token_s: float
    ratio: float
    starve_s: float
    demote_levels: int
    skip_join: bool
    artifact_order: bool
    queues: dict[int, list[Job]] = field(default_factory=dict)
    accounts: dict[Job, _Account] = field(default_factory=dict)
    running: list[Job] = field(default_factory=list)
    idle: list[Job] = field(default_factory=list)
    last_s: float = 0.0

    def quantum_of(self, level: int) -> float:
        """Seconds a job may run at a level."""
        return self.quantum_s * self.ratio ** (level - 1)

    def next_s(self, job: Job) -> float:
        """Seconds of a job's next iteration."""
        return self.token_s * max(1, job.num_tokens - job.num_computed_tokens)

    def covering(self, seconds: float, level: int = 1) -> int:
        """The first level, from `level` on, whose quantum is so long."""
        while self.quantum_of(level) < seconds:
            level += 1
        return level

    def level_of(self, job: Job) -> int:
        """The level a job is at."""
        return next(level for level, queue in self.queues.items() if job in queue)

    def ranked(self) -> list[Job]:
        """All live jobs in rank order."""
        return [job for level in sorted(self.queues) for job in self.queues[level]]

    def arrive(self, job: Job) -> None:
        """A new job joins the tail of its level."""
        level = self.covering(self.next_s(job)) if self.skip_join else 1
        self.queues.setdefault(level, []).append(job)
        self.accounts[job] = _Account(self.quantum_of(level), job.arrival_s)
        self.idle.append(job)

    def end(self, job: Job) -> None:
        """A job is gone."""
        self.queues[self.level_of(job)].remove(job)
        del self.accounts[job]
        self.running = [other for other in self.running if other is not job]
        self.idle = [other for other in self.idle if other is not job]

    def step(self, now_s: float, running: list[Job]) -> None:
        """A step is over: charge those who ran, move whoever has to move, and note who runs now."""
        for job in self.running:
            self.accounts[job].used_s += now_s - self.last_s
        self.last_s = now_s
        for job, level, allowance_s in self._due(now_s):
            self._move(job, level, allowance_s)
        stopped = [job for job in self.running if job not in running]
        for job in stopped:
            self.accounts[job].idle_since_s = now_s
        self.running = [job for job in self.running if job in running]
        self.running += [job for job in running if job not in self.running]
        self.idle = [job for job in self.idle if job not in running] + stopped

    def _due(self, now_s: float) -> list[tuple[Job, int, float]]:
        """Each job's next level, and how long it may run there: first the jobs that sink, then those that are
        promoted.
        """
        due = []
        for job in self.running:
            if self.accounts[job].used_s > self.accounts[job].allowance_s:
                level = self.covering(self.next_s(job), self.level_of(job) + self.demote_levels)
                due.append((job, level, self.quantum_of(level)))
        for job in self.idle:
            if self.level_of(job) > 1 and now_s - self.accounts[job].idle_since_s >= self.starve_s:
                due.append((job, 1, max(self.quantum_of(1), self.next_s(job))))
        return due

    def _move(self, job: Job, level: int, allowance_s: float) -> None:
        self.queues[self.level_of(job)].remove(job)
        queue = self.queues.setdefault(level, [])
        queue.insert(0 if self.artifact_order else len(queue), job)
        self.accounts[job].allowance_s = allowance_s
        self.accounts[job].used_s = 0.0
