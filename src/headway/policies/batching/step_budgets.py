"""What is left of a step's time, memory, tokens and seats while jobs are put into it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel
from headway.core.fill import uncomputed_tokens
from headway.core.job import Job
from headway.core.view import StepView
from headway.policies.batching.step_shapes import decode_shape, with_prompt


@dataclass(slots=True, kw_only=True)
class StepBudgets:
    """A step being put together: who decodes, who is in mid-prompt, what each prompt gets, and what is left.

    `blocks` is what newcomers may take, below 0 if those resident already may lack some; `longest_s` the tightest
    target of those who decode. `least_tokens` is the least a prompt gets unless it lacks less.
    """

    view: StepView
    cost: CostModel
    tokens: int
    least_tokens: int
    blocks: int = 0
    seats: int = 0
    longest_s: float = inf
    shape: BatchShape = field(default_factory=BatchShape)
    decodes: list[Job] = field(default_factory=list)
    prompts: list[Job] = field(default_factory=list)
    granted: dict[Job, int] = field(default_factory=dict)
    _too_long_tokens: float = inf

    @property
    def used_up(self) -> bool:
        """Whether nobody can be given more."""
        return self.tokens <= 0 or self.blocks < 0

    def serve_oldest(self) -> None:
        """The least for the prompt that has been under way longest, whatever it takes."""
        if self.prompts and self.tokens > 0:
            oldest = min(self.prompts, key=_under_way_since)
            self._grant(oldest, min(uncomputed_tokens(oldest), self.least_tokens, self.tokens))

    def serve(self, prompt: Job) -> None:
        """A chunk for a prompt that has begun, if one fits."""
        chunk = self._fitting_chunk(prompt, uncomputed_tokens(prompt) - self.granted.get(prompt, 0), inf)
        if chunk:
            self._grant(prompt, chunk)

    def chunk_to_start(self, job: Job, *, heeds_own_target: bool) -> int:
        """The tokens a waiting job could start with; 0 if it does not fit. An engine without jobs is all its own."""
        alone = not self.view.residents and not self.granted
        if self.view.blocks(job.num_tokens) + (not alone) > self.blocks:
            return 0
        own_s = job.slo.tbt_s if heeds_own_target else None
        return self._fitting_chunk(job, uncomputed_tokens(job), inf if own_s is None else own_s)

    def start(self, job: Job, chunk: int) -> None:
        """A waiting job starts with so many tokens."""
        self.seats -= 1
        self.blocks -= self.view.blocks(job.num_tokens) + 1
        self._grant(job, chunk)

    def caps(self) -> dict[Job, int]:
        """What was granted to those who lack more than that."""
        return {job: tokens for job, tokens in self.granted.items() if tokens < uncomputed_tokens(job)}

    def _fitting_chunk(self, job: Job, lacking: int, own_s: float) -> int:
        """The most of `lacking` tokens, halved until it fits the time; 0 if the least does not."""
        chunk, least = min(lacking, self.tokens), min(lacking, self.least_tokens)
        if chunk < least or not chunk:
            return 0
        if not self.decodes:
            return chunk
        while not self._keeps_time(job, chunk, own_s):
            if chunk <= least:
                return 0
            chunk = max(least, chunk // 2)
        return chunk

    def _keeps_time(self, job: Job, chunk: int, own_s: float) -> bool:
        """Whether the step with so many tokens of a job in it keeps the targets, as far as predicted.

        What was too long at the start of a prompt is too long for all that come after it, and not predicted again.
        """
        if chunk >= self._too_long_tokens:
            return False
        seconds = self.cost.step_s(self._shape_with(job, chunk))
        if seconds > self.longest_s and not job.num_computed_tokens:
            self._too_long_tokens = chunk
        return seconds <= min(self.longest_s, own_s)

    def _shape_with(self, job: Job, chunk: int) -> BatchShape:
        """A second piece of one prompt counts as a job of its own: it costs next to nothing more."""
        return with_prompt(self.shape, chunk, job.num_computed_tokens + self.granted.get(job, 0))

    def _grant(self, job: Job, chunk: int) -> None:
        self.shape = self._shape_with(job, chunk)
        self.granted[job] = self.granted.get(job, 0) + chunk
        self.tokens -= chunk


def begin_step(view: StepView, cost: CostModel, token_budget: int, *, least_tokens: int) -> StepBudgets:
    """A step with all that decode in it, and room kept for each to grow and each begun prompt to end. O(residents).

    One whose KV is on its way back from the host gets no tokens and counts with those who decode.
    """
    step = StepBudgets(view=view, cost=cost, tokens=token_budget, least_tokens=least_tokens)
    context = unfinished_blocks = 0
    for job in view.residents:
        computed = job.num_computed_tokens
        # `job.prefilling` spelled out: this runs for every resident of every step.
        if computed < job.num_prompt_tokens + job.num_output_tokens - 1 and job not in view.restoring:
            step.prompts.append(job)
            unfinished_blocks += view.blocks(job.num_tokens) - view.blocks(computed)
            continue
        step.decodes.append(job)
        context += computed
        target_s = job.slo.tbt_s
        if target_s is not None and target_s < step.longest_s:
            step.longest_s = target_s
    step.shape = decode_shape(len(step.decodes), context, view.tokens_a_decode)
    step.tokens -= step.shape.num_tokens
    step.blocks = view.free_blocks - len(step.decodes) - unfinished_blocks
    return step


def _under_way_since(job: Job) -> tuple[float, float, str]:
    assert job.first_scheduled_s is not None, "a prompt that has begun was scheduled"
    return (job.first_scheduled_s, job.arrival_s, job.id)
