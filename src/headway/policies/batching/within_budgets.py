"""Runs decodes first, then prompts by rank, within a step's limits of time, memory and tokens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from headway.core.batch_shape import BatchShape
from headway.core.cost import CostModel, UnknownCost
from headway.core.fill import uncomputed_tokens
from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.core.view import StepView
from headway.errors import ConfigError
from headway.policies.batching.admission import startable
from headway.policies.batching.step_shapes import decode_shape, with_prompt
from headway.policies.batching.step_tokens import check_step_tokens, low_step_tokens
from headway.policies.protocols import LearnsNothing, Order


@dataclass(slots=True, kw_only=True)
class StepBudgets:
    """A step under construction: its decodes, the prompts in progress, the chunk of each prompt, and what is left.

    `blocks` is what newcomers may take, negative if the residents may lack some. `longest_s` is the decodes' tightest
    target. `least_tokens` is the smallest chunk, unless a prompt lacks less.
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
        """Whether no job can be given more."""
        return self.tokens <= 0 or self.blocks < 0

    def serve_oldest(self) -> None:
        """Give the oldest prompt in progress the smallest chunk, however long that takes."""
        if self.prompts and self.tokens > 0:
            oldest = min(self.prompts, key=_under_way_since)
            self._grant(oldest, min(uncomputed_tokens(oldest), self.least_tokens, self.tokens))

    def serve(self, prompt: Job) -> None:
        """Give a prompt in progress a chunk, if one fits."""
        chunk = self._fitting_chunk(prompt, uncomputed_tokens(prompt) - self.granted.get(prompt, 0), inf)
        if chunk:
            self._grant(prompt, chunk)

    def chunk_to_start(self, job: Job, *, heeds_own_target: bool) -> int:
        """The tokens with which a waiting job could start; 0 if it does not fit. In an empty engine everything is
        available.
        """
        alone = not self.view.residents and not self.granted
        if self.view.blocks(job.num_tokens) + (not alone) > self.blocks:
            return 0
        own_s = job.slo.tbt_s if heeds_own_target else None
        return self._fitting_chunk(job, uncomputed_tokens(job), inf if own_s is None else own_s)

    def start(self, job: Job, chunk: int) -> None:
        """Start a waiting job with a chunk."""
        self.seats -= 1
        self.blocks -= self.view.blocks(job.num_tokens) + 1
        self._grant(job, chunk)

    def caps(self) -> dict[Job, int]:
        """The chunks granted to jobs that lack more."""
        return {job: tokens for job, tokens in self.granted.items() if tokens < uncomputed_tokens(job)}

    def _fitting_chunk(self, job: Job, lacking: int, own_s: float) -> int:
        """The largest chunk of the `lacking` tokens, halved until it fits the time; 0 if the smallest does not."""
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
        """Whether the step with this chunk of a job keeps the targets, as far as predicted.

        A chunk too long at the start of a prompt is too long for all later prompts, and is not predicted again.
        """
        if chunk >= self._too_long_tokens:
            return False
        seconds = self.cost.step_s(self._shape_with(job, chunk))
        if seconds > self.longest_s and not job.num_computed_tokens:
            self._too_long_tokens = chunk
        return seconds <= min(self.longest_s, own_s)

    def _shape_with(self, job: Job, chunk: int) -> BatchShape:
        """The shape with one more chunk. A second piece of the same prompt counts as another job, at almost no
        extra cost.
        """
        return with_prompt(self.shape, chunk, job.num_computed_tokens + self.granted.get(job, 0))

    def _grant(self, job: Job, chunk: int) -> None:
        self.shape = self._shape_with(job, chunk)
        self.granted[job] = self.granted.get(job, 0) + chunk
        self.tokens -= chunk


def begin_step(view: StepView, cost: CostModel, token_budget: int, *, least_tokens: int) -> StepBudgets:
    """Begin a step with all decodes in it, and memory kept for their growth and for the prompts in progress.
    O(residents).

    A job whose KV is on its way back from the host gets no tokens and counts as a decode.
    """
    step = StepBudgets(view=view, cost=cost, tokens=token_budget, least_tokens=least_tokens)
    context = unfinished_blocks = 0
    for job in view.residents:
        computed = job.num_computed_tokens
        # `job.prefilling` is inlined, since this runs for every resident of every step.
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


MOST_SCANNED = 64
"""Waiting jobs examined in a step, by rank; those behind them wait for the next step."""
_LEAST_SHARE = 8
"""No chunk is smaller than an eighth of the token budget unless the prompt lacks less: tiny chunks hold memory for
long.
"""


class WithinBudgets(LearnsNothing):
    """Runs every decode; prompts, in progress or waiting, get chunks in rank order while the limits allow.

    Time: no chunk may make the predicted step longer than the tightest TBT target of the decodes, nor, beside a decode,
    than the job's own. The chunk is halved until it fits, down to an eighth of `token_budget`. Without decodes or
    targets, or while steps have no predicted time, time is no limit. Memory: a waiting job starts only if all its
    tokens and one block more fit beside a block for each decode and the unfinished rest of every prompt in progress, as
    vLLM wants room for a whole sequence before it starts. Tokens: `token_budget` a step, which the paper does not give;
    by default it follows from targets and step times (`low_step_tokens`). `width`: most residents. A job that does not
    fit is skipped; the scan ends when tokens or memory are used up, or after 64 waiting jobs. Residents in mid-prompt
    that get nothing are paused.

    No job starves. (1) The oldest prompt in progress gets an eighth of the budget, or the rest of it, in every step,
    before all others and regardless of time; so k prompts of at most p tokens that hold memory are computed within k x
    ceil(8 p / token_budget) steps in which the decodes leave that many tokens. (2) So an engine always has something to
    compute: a decode, or the oldest prompt, or, if it is empty, the first job that is ready and fits. (3) A job that
    has waited longer than `patience_s` is skipped only for one that ranks higher: its own TBT target no longer counts,
    and while it lacks time or memory no job that ranks lower starts. Then residents end one by one, and finally it
    fits, or is alone.

    O(residents + m log m) with m prompts examined, and a prediction for each chunk tried. Source: Ascendra Algorithm 1
    (Ikram et al. 2025, arXiv:2504.20828), LP instances; spec 3.4.
    """

    def __init__(
        self,
        cost: CostModel | None = None,
        *,
        token_budget: int | None = None,
        width: int = 128,
        patience_s: float = 10.0,
    ) -> None:
        check_step_tokens("token_budget", token_budget)
        if width < 1:
            raise ConfigError.of("width", width, "1 or more residents")
        if not patience_s >= 0:
            raise ConfigError.of("patience_s", patience_s, "0 or more seconds")
        self.token_budget = token_budget
        self.width = width
        self.patience_s = patience_s
        self._cost: CostModel = cost or UnknownCost()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """Plan all decodes, the oldest prompt, then prompts as the limits allow."""
        waiting = self._waiting(view, order, leaving)
        budget = self._budget(view, waiting)
        step = begin_step(view, self._cost, budget, least_tokens=max(1, budget // _LEAST_SHARE))
        if not step.prompts and not waiting:
            return StepPlan(run=order.rank(view.residents, view.now_s), token_budget=budget)
        step.seats = self._seats(view)
        step.serve_oldest()
        begun = set(step.prompts)
        starting: list[Job] = []
        for job in order.rank([*step.prompts, *waiting], view.now_s):
            if step.used_up:
                break
            if job in begun:
                step.serve(job)
            elif step.seats > 0 and self._starts(view, step, job):
                starting.append(job)
        # The oldest was granted first, so it stands before the other prompts and loses its KV after them.
        served = [job for job in step.granted if job in begun]
        return StepPlan(
            run=[*order.rank(step.decodes, view.now_s), *served],
            admit=starting,
            token_budget=budget,
            chunk_cap=step.caps(),
        )

    def _budget(self, view: StepView, waiting: Sequence[Job]) -> int:
        if self.token_budget is not None:
            return min(self.token_budget, view.max_tokens)
        return low_step_tokens(self._cost, chain(view.residents, waiting), view.max_tokens)

    def _seats(self, view: StepView) -> int:
        return min(view.seats, self.width - len(view.residents))

    def _waiting(self, view: StepView, order: Order, leaving: Collection[Job]) -> Sequence[Job]:
        """The first MOST_SCANNED waiting jobs, if there is a seat."""
        if self._seats(view) <= 0 or not (view.waiting or view.swapped):
            return ()
        return startable(view, order, leaving, MOST_SCANNED)

    def _starts(self, view: StepView, step: StepBudgets, job: Job) -> bool:
        """Whether a waiting job starts in this step. A job that has waited too long to be skipped ends the scan."""
        impatient = view.now_s - job.arrival_s > self.patience_s
        chunk = step.chunk_to_start(job, heeds_own_target=not impatient)
        if chunk and view.admissible(job):
            step.start(job, chunk)
            return True
        # The engine's own check may fail too, because of a watermark for example.
        if impatient and (not chunk or view.ready(job)):
            step.seats = 0
        return False

    def next_change_s(self, view: StepView) -> float:
        """Unknown while a waiting job could get a seat, since step times change with every token."""
        waits = bool(view.waiting or view.swapped)
        return -inf if waits and self._seats(view) > 0 else inf
