"""How much of what was sent to each instance has not come back."""

from __future__ import annotations

from headway.core.job import Job


class OutstandingWork:
    """Tokens of the requests an instance has been sent and not ended: prompts, and an answer for each.

    How long an answer will be is not known; the mean of those that have ended stands for it (0 before the
    first). A request that ended without a token, refused or broken, had no answer. O(1) a call.
    """

    def __init__(self) -> None:
        self._placed: dict[str, str] = {}
        self._jobs: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}
        self._ended = 0
        self._ended_tokens = 0

    def place(self, job: Job, instance: str) -> None:
        """A job was sent to an instance, from another if it was placed before."""
        self._take(job)
        self._placed[job.id] = instance
        self._jobs[instance] = self._jobs.get(instance, 0) + 1
        self._prompt_tokens[instance] = self._prompt_tokens.get(instance, 0) + job.num_prompt_tokens

    def end(self, job: Job) -> None:
        """A job has ended, wherever it was."""
        self._take(job)
        self._ended += job.num_output_tokens > 0
        self._ended_tokens += job.num_output_tokens

    def _take(self, job: Job) -> None:
        """It is no longer where it was placed, if it was."""
        instance = self._placed.pop(job.id, None)
        if instance is not None:
            self._jobs[instance] -= 1
            self._prompt_tokens[instance] -= job.num_prompt_tokens

    def tokens(self, instance: str) -> float:
        """Tokens outstanding at an instance."""
        answer = self._ended_tokens / self._ended if self._ended else 0.0
        return self._prompt_tokens.get(instance, 0) + self._jobs.get(instance, 0) * answer
