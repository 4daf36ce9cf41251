"""How much of what was sent to each instance has not come back."""

from __future__ import annotations

from headway.core.job import Job


class OutstandingWork:
    """Tokens of the requests an instance has been sent and not ended: prompts, and an answer for each.

    How long an answer will be is not known; the mean of those that have ended stands for it, `guesses` of
    `guessed_tokens` among them (0 before the first, without). A request that ended without a token, refused or broken,
    had no answer. A token of an answer counts as `answer_weight` of a prompt. O(1) a call.
    """

    def __init__(self, *, answer_weight: float = 1.0, guesses: int = 0, guessed_tokens: int = 0) -> None:
        self._weight = answer_weight
        self._ended = guesses
        self._ended_tokens = guesses * guessed_tokens
        self._placed: dict[str, tuple[str, int]] = {}
        self._jobs: dict[str, int] = {}
        self._prompt_tokens: dict[str, int] = {}

    def place(self, job: Job, instance: str, prompt_tokens: int | None = None) -> None:
        """A job was sent to an instance, from another if it was placed before.

        `prompt_tokens` are those to be computed there (default: all).
        """
        self._take(job)
        tokens = job.num_prompt_tokens if prompt_tokens is None else prompt_tokens
        self._placed[job.id] = instance, tokens
        self._jobs[instance] = self._jobs.get(instance, 0) + 1
        self._prompt_tokens[instance] = self._prompt_tokens.get(instance, 0) + tokens

    def prompt_done(self, job: Job) -> None:
        """A job's prompt is computed where it was placed; its answer is still outstanding."""
        instance, tokens = self._placed[job.id]
        self._placed[job.id] = instance, 0
        self._prompt_tokens[instance] -= tokens

    def end(self, job: Job) -> None:
        """A job has ended, wherever it was."""
        self._take(job)
        self._ended += job.num_output_tokens > 0
        self._ended_tokens += job.num_output_tokens

    def tokens(self, instance: str) -> float:
        """Tokens outstanding at an instance."""
        answer = self._ended_tokens / self._ended if self._ended else 0.0
        return self._prompt_tokens.get(instance, 0) + self._jobs.get(instance, 0) * self._weight * answer

    def _take(self, job: Job) -> None:
        """It is no longer where it was placed, if it was."""
        instance, tokens = self._placed.pop(job.id, (None, 0))
        if instance is not None:
            self._jobs[instance] -= 1
            self._prompt_tokens[instance] -= tokens
