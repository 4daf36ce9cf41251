"""Program scheduling in front of stock vLLM, as in vllm-router 0.1.17, for one simulated instance.

The rules of its `program_scheduling` with KV memory as `token_capacity`: an active program counts with its whole
context, and its requests pass at once. Requests of other programs pass while they fit beside, with a reserve for
growth; the program served last goes first. A program stays active after an answer for the time that is worth most under
a log-normal fit of its pauses, once a hundred pauses are known. Left out: shared prefixes, the batch-gain bypass and
privileges.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from math import ceil, erf, exp, inf, log, sqrt
from statistics import fmean, pstdev

from headway.core.cost import CostModel, UnknownCost
from headway.core.job import Job
from headway.core.plan import StepOutcome
from headway.policies.order.arrival import Arrival
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, build_policy
from headway.policies.protocols import Drifting

WINDOW = 100
LONGEST_TTL_S, FORCED_S = 10.0, 300.0
MOST_ROUNDS = 14
DECODE_BUFFER_TOKENS = 100
MISS_WEIGHT = 1.85
"""Weight of a prefill, during which decodes stand still."""


@dataclass(slots=True)
class _Active:
    num_tokens: int
    until_s: float = inf
    rounds: int = 0


class ProgramTtl(Drifting, Arrival):
    """Order of arrival among the requests that program scheduling has let pass; the policy does not see the others."""

    def __init__(self, cost: CostModel | None = None) -> None:
        super().__init__()
        self._cost: CostModel = cost or UnknownCost()
        self._now_s = 0.0
        self._active: dict[str, _Active] = {}
        self._ended_s: dict[str, float] = {}
        self._sizes: dict[str, int] = {}
        self._held: dict[Job, None] = {}
        self._pauses_s: deque[float] = deque(maxlen=WINDOW)
        self._growths: deque[int] = deque(maxlen=WINDOW)
        self._rounds: deque[int] = deque(maxlen=WINDOW)

    def add(self, job: Job) -> None:
        """Hold a newcomer; one that was preempted has passed."""
        if job.num_preemptions:
            super().add(job)
            return
        self._now_s = max(self._now_s, job.arrival_s)
        if (ended_s := self._ended_s.get(_name(job))) is not None:
            self._pauses_s.append(max(0.05, job.arrival_s - ended_s))
        self._held[job] = None

    def remove(self, job: Job) -> None:
        """A job no longer waits."""
        self._held.pop(job, None)
        super().remove(job)

    def end(self, job: Job) -> None:
        """A job has ended and its program's tool runs now: decide how long the program stays active."""
        name = _name(job)
        if name in self._sizes:
            self._growths.append(max(0, job.num_tokens - self._sizes[name]))
        self._sizes[name], self._ended_s[name] = job.num_tokens, self._now_s
        if (active := self._active.get(name)) is not None:
            active.num_tokens, active.rounds = job.num_tokens, active.rounds + 1
            self._rounds.append(active.rounds)
            active.until_s = self._now_s + self._ttl_s(MISS_WEIGHT * self._cost.prefill_s(job.num_tokens))

    def observe(self, outcome: StepOutcome) -> None:
        """Note the time."""
        self._now_s = outcome.now_s

    def top(self, k: int, now_s: float) -> list[Job]:
        """The first k of the jobs that have passed by now."""
        self._now_s = max(self._now_s, now_s)
        self._active = {name: each for name, each in self._active.items() if each.until_s > self._now_s}
        for job in sorted(self._held, key=self._rank):
            if self._passes(job):
                active = self._active.setdefault(_name(job), _Active(job.num_tokens))
                active.num_tokens, active.until_s = max(active.num_tokens, job.num_tokens), inf
                del self._held[job]
                super().add(job)
        return super().top(k, now_s)

    def _rank(self, job: Job) -> tuple[bool, float, float, str]:
        return not self._is_forced(job), -self._ended_s.get(_name(job), -1.0), job.arrival_s, job.id

    def _is_forced(self, job: Job) -> bool:
        return self._now_s - job.arrival_s >= FORCED_S

    def _passes(self, job: Job) -> bool:
        if not self._active or _name(job) in self._active or self._is_forced(job):
            return True
        used = sum(each.num_tokens + DECODE_BUFFER_TOKENS for each in self._active.values())
        wanted = job.num_tokens + DECODE_BUFFER_TOKENS
        return used + wanted + self._reserve_tokens() <= self._cost.kv_tokens

    def _reserve_tokens(self) -> float:
        """Tokens by which active programs and one more may grow."""
        if len(self._rounds) < WINDOW or not self._growths:
            return 0.0
        target = min(MOST_ROUNDS, ceil(2 * fmean(self._rounds)))
        left = sum(max(0, target - each.rounds) for each in self._active.values())
        return fmean(self._growths) * (target + left)

    def _ttl_s(self, miss_s: float) -> float:
        longest_s = min(LONGEST_TTL_S, miss_s)
        if len(self._pauses_s) < WINDOW or longest_s <= 0:
            return 0.0
        logs = [log(pause_s) for pause_s in self._pauses_s]
        mean, deviation = fmean(logs), max(1e-6, pstdev(logs))
        shortest = log(min(0.05, longest_s))
        ttls_s = [exp(shortest + (log(longest_s) - shortest) * step / 31) for step in range(32)]

        def worth(ttl_s: float) -> float:
            back = _normal((log(ttl_s) - mean) / deviation)
            waited_s = exp(mean + deviation**2 / 2) * _normal((log(ttl_s) - mean - deviation**2) / deviation)
            return miss_s * back - waited_s - ttl_s * (1 - back)

        best_s = max(ttls_s, key=worth)
        return best_s if worth(best_s) > 0 else 0.0


def behind_program_ttl(cost: CostModel) -> Policy:
    """Stock vLLM's policy behind program scheduling."""
    return replace(build_policy(PRESETS["vllm"], cost), order=ProgramTtl(cost), uses_costs=True)


def _name(job: Job) -> str:
    return job.program or job.id


def _normal(value: float) -> float:
    return 0.5 * (1 + erf(value / sqrt(2)))
