"""Reads what vLLM did with a plan, from its output and queues, and follows the sampled tokens."""

from __future__ import annotations

from vllm.v1.engine import EngineCoreOutputs

from headway.core.job import Job, JobState
from headway.core.plan import StepOutcome, StepPlan
from headway.engine.step.context import FilledStep
from headway.engine.step.ports import StepPort


class Outcomes:
    """Reads the outcomes of a scheduler's steps. Must run before anything else changes.

    `alike`: whether the last step had the same outcome as the one before.
    """

    def __init__(self, engine: StepPort) -> None:
        self._engine = engine
        self._before: FilledStep | None = None
        self._last = StepOutcome(now_s=0.0, plan=StepPlan())
        self.alike = False

    @property
    def tokens(self) -> dict[Job, int]:
        """Tokens that each job got in the last step."""
        return self._last.tokens

    def of(self, filled: FilledStep) -> StepOutcome:
        """The outcome of a filled step; for a repeated plan, the previous outcome at a later time."""
        self.alike = filled.as_before(self._before)
        self._before = filled
        if self.alike:
            self._last.now_s = filled.now_s
            self._last.free_blocks = self._engine.kv_cache_manager.block_pool.get_num_free_blocks()
        else:
            self._last = self._read(filled)
        return self._last

    def _read(self, filled: FilledStep) -> StepOutcome:
        """Read an outcome: admitted requests stand at the end of `running`, preempted ones are missing there."""
        engine, plan, output = self._engine, filled.step.plan, filled.output
        granted = output.num_scheduled_tokens
        outcome = StepOutcome(
            now_s=filled.now_s,
            plan=plan,
            tokens=dict(zip(map(engine.jobs.__getitem__, granted), granted.values(), strict=True)),
            num_tokens=output.total_num_scheduled_tokens,
            preempted=dict(engine.preempted),
            offloaded=[
                job
                for job in plan.offload
                if job not in filled.step.not_offloaded and job not in engine.preempted
            ],
            left=dict(plan.leave),
            free_blocks=engine.kv_cache_manager.block_pool.get_num_free_blocks(),
            decoded_tokens=engine.view.decoded_tokens,
        )
        engine.preempted.clear()
        outcome.admitted = self._admitted(filled.step.num_running)
        for job in outcome.admitted:
            outcome.cached_tokens[job] = self._found_tokens(job, outcome)
        return outcome

    def between_steps(self, now_s: float) -> StepOutcome:
        """What vLLM did to residents since the last step, as an outcome that leaves all other jobs unchanged."""
        engine = self._engine
        victims = {job: fate for job, fate in engine.preempted.items() if job.state is JobState.RESIDENT}
        engine.preempted.clear()
        return StepOutcome(
            now_s=now_s,
            plan=StepPlan(run=engine.ledger.residents),
            preempted=victims,
            decoded_tokens=engine.view.decoded_tokens,
        )

    def _admitted(self, num_running: int) -> list[Job]:
        """The jobs that became resident: those behind the first `num_running`, or as reported where KV is swapped."""
        engine = self._engine
        if engine.swaps is None:
            return [engine.jobs[request.request_id] for request in engine.running[num_running:]]
        admitted, engine.swaps.admitted = engine.swaps.admitted, []
        return admitted

    def _found_tokens(self, job: Job, outcome: StepOutcome) -> int:
        """Leading tokens of an admitted job that were found on the device."""
        if job.state is JobState.SWAPPED:
            assert self._engine.swaps is not None
            return self._engine.swaps.found_tokens.pop(job)
        computed: int = self._engine.requests[job.id].num_computed_tokens
        return computed - outcome.tokens[job]


_NEWEST_DECODE_SHARE = 0.01
"""Weight of the newest decode in the running mean of tokens per decode with drafts."""


def follow_sampled(outputs: dict[int, EngineCoreOutputs], engine: StepPort, now_s: float) -> None:
    """Count the sampled tokens. Requests that they ended are already out of the table."""
    jobs, resident, drafts = engine.jobs, JobState.RESIDENT, engine.num_spec_tokens
    for engine_outputs in outputs.values():
        for output in engine_outputs.outputs:
            job = jobs.get(output.request_id)
            if job is None:
                continue
            if job.first_token_s is not None and job.state is resident and not drafts:
                job.num_output_tokens += len(output.new_token_ids)
            elif output.new_token_ids:
                _follow_rarer(job, len(output.new_token_ids), engine, now_s)


def _follow_rarer(job: Job, num_tokens: int, engine: StepPort, now_s: float) -> None:
    """Follow a rarer case: a first token, a token of a job preempted meanwhile, or one beside drafts that may be
    refused.
    """
    is_first = engine.ledger.sampled(job, num_tokens, now_s)
    if not is_first:
        view = engine.view
        view.decoded_tokens += (num_tokens - view.decoded_tokens) * _NEWEST_DECODE_SHARE
    if engine.num_spec_tokens and job.state is JobState.RESIDENT:
        job.num_computed_tokens = engine.requests[job.id].num_computed_tokens
    if is_first or job.state is not JobState.RESIDENT:
        engine.guard.touch(job)
