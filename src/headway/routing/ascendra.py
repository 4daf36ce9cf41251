"""Sends requests to low-priority instances, and to high-priority ones by ticket or by hand-off."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import Job
from headway.routing.pools import HP, LP, pool_of


class Ascendra:
    """A new job takes the oldest ticket to its HP instance, else an LP instance in turn.

    A ticket invites one job to an HP instance at which no job waits, so that a job handed off there waits for about one
    step. Each instance has at most one ticket. The next is issued once no job waits there any more, so not before the
    ticketed job has its first token. A hand-off that arrives first leaves the ticket valid, as in the paper, or with
    `revoke` takes it back. What waits where follows from the calls alone: no instance is asked. `tickets=False`
    reserves the HP instances for hand-offs. LP instances are told what waits at the HP instances (`waiting_elsewhere`),
    and hand off no job that would be late there too.

    Instances whose pool is not `hp` count as LP. Without an LP instance new jobs take the HP ones in turn, and without
    an HP one no hand-off is taken. Instances may come and go: a ticket stays valid until its instance is back.
    O(instances) a call, and memory for each job that waits. Source: Ascendra (Ikram et al. 2025, arXiv:2504.20828),
    section on the controller; spec 3.3.
    """

    hands_off = True

    def __init__(self, *, tickets: bool = True, revoke: bool = False) -> None:
        self._gives_tickets = tickets
        self._revokes = revoke
        self._tickets: dict[str, None] = {}  # in order of issue
        self._known: set[str] = set()
        self._waits_at: dict[str, tuple[str, int]] = {}
        self._waiting: dict[str, int] = {}
        self._waiting_tokens: dict[str, int] = {}
        self._turns = {LP: 0, HP: 0}

    @property
    def tickets(self) -> tuple[str, ...]:
        """The HP instances with a ticket, oldest first."""
        return tuple(self._tickets)

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The instance of the oldest usable ticket, else the next in turn."""
        self._leave_queue(job)
        chosen = self._use_ticket(instances) or self._next_in_turn(instances)
        self._join_queue(job, chosen)
        self._welcome(instances)
        return chosen

    def _use_ticket(self, instances: Sequence[str]) -> str | None:
        ticket = next((name for name in self._tickets if name in instances), None)
        if ticket is not None:
            del self._tickets[ticket]
        return ticket

    def _next_in_turn(self, instances: Sequence[str]) -> str:
        """An LP instance if there is one, else an HP instance."""
        high, low = _split(instances)
        pool, members = (LP, low) if low else (HP, high)
        chosen = members[self._turns[pool] % len(members)]
        self._turns[pool] += 1
        return chosen

    def started(self, job: Job) -> None:
        """A job no longer waits."""
        self._leave_queue(job)

    def hand_off(self, job: Job, instances: Sequence[str]) -> str | None:
        """The HP instance at which the fewest prompt tokens wait, among equals the next in turn; None without one.

        The instance that gave the job up never gets it back here.
        """
        gave_up, _ = self._waits_at.get(job.id, ("", 0))
        high = [name for name in _split(instances)[0] if name != gave_up]
        if not high:
            return None
        first = self._turns[HP] % len(high)
        self._turns[HP] += 1
        chosen = min(high[first:] + high[:first], key=self._tokens_at)
        if self._revokes:
            self._tickets.pop(chosen, None)
        self._leave_queue(job)
        self._join_queue(job, chosen)
        self._welcome(instances)
        return chosen

    def waiting_elsewhere(self, instance: str, instances: Sequence[str]) -> Sequence[int]:
        """Waiting prompt tokens at each other HP instance."""
        return [self._tokens_at(name) for name in _split(instances)[0] if name != instance]

    def _tokens_at(self, name: str) -> int:
        return self._waiting_tokens.get(name, 0)

    def end(self, job: Job) -> None:
        """A job ended; if it still waited, it no longer does."""
        self._leave_queue(job)

    def lost(self, instance: str) -> None:
        """Nothing: the jobs of a lost instance are routed again or end, one by one."""

    def _welcome(self, instances: Sequence[str]) -> None:
        """Give each new HP instance its first ticket, after the job with which it was first seen.

        So the first of several simultaneous jobs finds none, as in Figure 1 of the paper.
        """
        for name in instances:
            if name not in self._known:
                self._known.add(name)
                self._issue(name)

    def _issue(self, name: str) -> None:
        """Issue a ticket for an HP instance at which no job waits, unless it has one."""
        if self._gives_tickets and pool_of(name) == HP and not self._waiting.get(name):
            self._tickets.setdefault(name)

    def _join_queue(self, job: Job, name: str) -> None:
        self._waits_at[job.id] = name, job.num_prompt_tokens
        self._waiting[name] = self._waiting.get(name, 0) + 1
        self._waiting_tokens[name] = self._tokens_at(name) + job.num_prompt_tokens

    def _leave_queue(self, job: Job) -> None:
        name, tokens = self._waits_at.pop(job.id, ("", 0))
        if name:
            self._waiting[name] -= 1
            self._waiting_tokens[name] -= tokens
            self._issue(name)


def _split(instances: Sequence[str]) -> tuple[list[str], list[str]]:
    """The HP instances, and the others."""
    high = [name for name in instances if pool_of(name) == HP]
    return high, [name for name in instances if pool_of(name) != HP]
