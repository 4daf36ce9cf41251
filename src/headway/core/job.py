"""A request inside a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headway.core.length_estimate import LengthEstimate
from headway.core.slo import NO_TARGETS, Slo

PREFIX_BLOCK_TOKENS = 512
"""Tokens of a block in `Job.prefix_blocks`, as in Mooncake's traces."""


class JobState(Enum):
    """Where a live job is; each live job is in exactly one of the first three."""

    WAITING = "waiting"
    SWAPPED = "swapped"
    RESIDENT = "resident"
    ENDED = "ended"


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request as a policy sees it: live, and compared by identity.

    The ledger keeps it up to date, and so does what reads a step's tokens (`engine/step/outcomes.py`, `sim/engine.py`).
    Token counts use vLLM's words:

    - `num_computed_tokens`: tokens whose KV is on the device, computed by a step in flight, on the host, or on its way
      between the two. It falls to 0 when the KV is dropped.
    - `swapped_blocks`: blocks copied to the host so far.
    - `num_output_placeholders`: output tokens of steps in flight, on which later steps build before they are known
      (asynchronous scheduling).
    - `num_cached_tokens`: tokens of a waiting job that the prefix cache held when `PrefixWatch` last looked; 0 if it
      never did.
    - `num_stored_tokens`: leading tokens that need not be computed once a connector's store has loaded what it holds of
      them, as last known; 0 without a store.
    - `max_output_tokens`: the limit that the client set, never an estimate; `predicted_length` is one. The true length
      is not here.
    - `program`: the agent program (session, conversation) of which the request is a turn; None if not told.
      `program_began_s` is the arrival of its first turn here, None where that is not followed, and `num_kept_tokens`
      those of the turn before whose KV was kept until this one came (`KeptPrograms`).
    - `may_move`: the request would be served elsewhere if this instance gave it up. A gateway before several says so.
    - `prefix_blocks` name the leading blocks of the prompt, each for all before it too, where it is known which prompts
      begin alike. Routers look at them, policies at `num_cached_tokens`.
    """

    id: str
    arrival_s: float
    num_prompt_tokens: int
    max_output_tokens: int
    slo: Slo = NO_TARGETS
    priority: int = 0
    tenant: str = ""
    program: str | None = None
    program_began_s: float | None = None
    num_kept_tokens: int = 0
    predicted_length: LengthEstimate | None = None
    lora_id: int = 0
    may_move: bool = False
    prefix_blocks: tuple[int, ...] = ()
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_stored_tokens: int = 0
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    num_preemptions: int = 0
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    recomputed_tokens: int = 0
    swapped_blocks: int = 0
    state: JobState = JobState.WAITING

    @property
    def num_tokens(self) -> int:
        """Prompt and output known so far."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_found_tokens(self) -> int:
        """Leading tokens that need not be computed, as far as known: computed, cached or stored ones."""
        return max(self.num_computed_tokens, self.num_cached_tokens, self.num_stored_tokens)

    @property
    def num_loaded_tokens(self) -> int:
        """Tokens whose KV a connector loads before the job runs: stored ones that the device does not hold."""
        return max(0, self.num_stored_tokens - max(self.num_computed_tokens, self.num_cached_tokens))

    @property
    def predicted_output_tokens(self) -> float | None:
        """The median predicted length of the answer, if it was predicted."""
        return None if self.predicted_length is None else self.predicted_length.tokens

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest token still has to be computed."""
        return self.num_computed_tokens < self.num_prompt_tokens + self.num_output_tokens - 1

    @property
    def awaiting_output(self) -> bool:
        """Whether the step that computes its newest token is in flight."""
        return self.num_computed_tokens >= self.num_prompt_tokens + self.num_output_tokens

    @property
    def ttft_deadline_s(self) -> float | None:
        """When the first token is due; None once it is out, or without such a target."""
        if self.slo.ttft_s is None or self.num_output_tokens:
            return None
        return self.arrival_s + self.slo.ttft_s

    @property
    def due_s(self) -> float | None:
        """The earliest moment after which a target of this job is certainly missed; None without targets."""
        first_token = self.ttft_deadline_s
        if self.slo.deadline_s is None:
            return first_token
        whole = self.arrival_s + self.slo.deadline_s
        return whole if first_token is None else min(first_token, whole)

    def __repr__(self) -> str:
        progress = f"{self.num_computed_tokens}/{self.num_tokens}"
        return f"Job({self.id!r}, {self.state.value}, computed {progress})"


def is_decode(job: Job, tokens: int) -> bool:
    """Whether the `tokens` that a step granted, which count as computed already, extend the job's answer, drafts or
    not.

    Call after the ledger has followed the step. A prompt, or one computed again after a preemption, is a prefill.
    """
    before = job.num_computed_tokens - tokens
    return before >= job.num_prompt_tokens + max(0, job.num_output_tokens - 1)


def has_prompts(tokens: dict[Job, int]) -> bool:
    """Whether a step that granted `tokens` computed part of a prompt. Call as `is_decode`.

    O(jobs); less if prompts stand last.
    """
    return any(not is_decode(job, count) for job, count in reversed(tokens.items()))
