"""Routers that use only load, or nothing, and the load that they count."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from headway.core.job import Job


class OutstandingWork:
    """Tokens of requests that were sent to an instance and have not ended: prompts, and an answer for each.

    An answer's length is unknown; the mean of those that have ended represents it, together with `guesses` answers of
    `guessed_tokens` (0 before the first, without). A request that ended without a token, refused or broken, had no
    answer. A token of an answer counts as `answer_weight` of a prompt. O(1) a call.
    """

    def __init__(self, *, answer_weight: float = 1.0, guesses: int = 0, guessed_tokens: int = 0) -> None:
        self._weight = answer_weight
        self._ended = guesses
        self._ended_tokens = guesses * guessed_tokens
        self._placed: dict[str, tuple[str, int]] = {}
        self._jobs: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}

    def place(self, job: Job, instance: str, prompt_tokens: int | None = None) -> None:
        """A job was sent to an instance; it leaves its earlier instance, if there is one.

        `prompt_tokens` are those to be computed there (default: all).
        """
        self._take(job)
        tokens = job.num_prompt_tokens if prompt_tokens is None else prompt_tokens
        self._placed[job.id] = instance, tokens
        self._jobs[instance] = self._jobs.get(instance, 0) + 1
        self._prompt_tokens[instance] = self._prompt_tokens.get(instance, 0) + tokens

    def prompt_done(self, job: Job) -> None:
        """A job's prompt is computed; its answer is still outstanding."""
        instance, tokens = self._placed[job.id]
        self._placed[job.id] = instance, 0
        self._prompt_tokens[instance] -= tokens

    def end(self, job: Job) -> None:
        """A job ended, wherever it was."""
        self._take(job)
        self._ended += job.num_output_tokens > 0
        self._ended_tokens += job.num_output_tokens

    def tokens(self, instance: str) -> float:
        """Tokens outstanding at an instance."""
        answer = self._ended_tokens / self._ended if self._ended else 0.0
        return self._prompt_tokens.get(instance, 0) + self._jobs.get(instance, 0) * self._weight * answer

    def _take(self, job: Job) -> None:
        """Remove a job from its instance, if it has one."""
        instance, tokens = self._placed.pop(job.id, (None, 0))
        if instance is not None:
            self._jobs[instance] -= 1
            self._prompt_tokens[instance] -= tokens


class StaysPut:
    """A router that takes no hand-offs. By default it also ignores starts, ends and lost instances."""

    hands_off = False

    def started(self, job: Job) -> None:
        """Nothing depends on starts."""

    def end(self, job: Job) -> None:
        """Nothing is kept of a job."""

    def lost(self, instance: str) -> None:
        """Nothing is known of what an instance held."""

    def hand_off(self, job: Job, instances: Sequence[str]) -> str | None:
        """None: a job stays where it is."""
        return None

    def waiting_elsewhere(self, instance: str, instances: Sequence[str]) -> Sequence[int]:
        """Empty: no other instance takes a job over."""
        return ()


class RoundRobin(StaysPut):
    """The next instance of the list, whatever its load. O(1)."""

    def __init__(self) -> None:
        self._turn = 0

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The next in turn."""
        chosen = instances[self._turn % len(instances)]
        self._turn += 1
        return chosen


class _ByOutstandingWork(StaysPut):
    """A router that uses the tokens outstanding at each instance."""

    def __init__(self) -> None:
        self._work = OutstandingWork()

    def end(self, job: Job) -> None:
        """A job's tokens are no longer outstanding."""
        self._work.end(job)


class LeastLoaded(_ByOutstandingWork):
    """The instance with the fewest outstanding tokens; the first of equals. O(instances)."""

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The least loaded instance."""
        chosen = min(instances, key=self._work.tokens)
        self._work.place(job, chosen)
        return chosen


class PowerOfTwo(_ByOutstandingWork):
    """The less loaded of two instances picked by the job's id. O(1).

    Nearly as even as examining all, without all routers of a fleet flocking to the same least loaded instance. The id
    replaces randomness, so that a run can be repeated. Source: Mitzenmacher 2001, "The power of two choices in
    randomized load balancing".
    """

    def route(self, job: Job, instances: Sequence[str]) -> str:
        """The less loaded of the job's two instances; the first of two equals."""
        count, digest = len(instances), crc32(job.id.encode())
        first = digest % count
        # The second one differs from the first: it is 1 to count - 1 places further on.
        second = (first + 1 + digest // count % (count - 1)) % count if count > 1 else first
        chosen = min(instances[first], instances[second], key=self._work.tokens)
        self._work.place(job, chosen)
        return chosen
