"""A request-level engine: one padded batch at a time, returned as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.core.batch_shape import BatchShape
from headway.core.job import Job, JobState
from headway.core.record import Outcome, Record, record_of
from headway.sim.clock import Clock
from headway.sim.loop import EventLoop, Phase


@dataclass(slots=True)
class Waste:
    """Tokens a static engine computed: asked for, padding before prompts, and after an answer's end.

    `lost_tokens` are output of batches that ran out of memory, of which there were `out_of_memory`.
    """

    valid_tokens: int = 0
    pad_tokens: int = 0
    invalid_tokens: int = 0
    lost_tokens: int = 0
    out_of_memory: int = 0


class StaticInstance:
    """Pads prompts to the longest of the batch and decodes until the longest answer is complete.

    Members that have finished go on producing tokens nobody wants, and all come back together. When the
    batch outgrows the KV memory its work is lost: `on_out_of_memory` gets the members back. `on_idle` is
    called whenever a batch is over. Source: Magnus section 2 (Hugging Face generate, FasterTransformer).
    """

    def __init__(
        self,
        clock: Clock,
        loop: EventLoop,
        *,
        kv_capacity_tokens: int,
        on_end: Callable[[Record], None],
        on_idle: Callable[[], None],
        on_out_of_memory: Callable[[Sequence[Job]], None],
        name: str = "",
    ) -> None:
        self.name = name
        self.waste = Waste()
        self.busy = False
        self._clock = clock
        self._loop = loop
        self._capacity_tokens = kv_capacity_tokens
        self._on_end = on_end
        self._on_idle = on_idle
        self._on_out_of_memory = on_out_of_memory

    def serve(self, batch: Sequence[tuple[Job, int]]) -> None:
        """Start a batch of (job, true output tokens) now; the instance must be idle. O(longest answer)."""
        assert batch, "a batch has at least one member"
        assert not self.busy, "one batch at a time"
        self.busy = True
        start_s = self._loop.now_s
        prompt = max(job.num_prompt_tokens for job, _ in batch)
        longest = max(output for _, output in batch)
        fitting = self._capacity_tokens // len(batch) - prompt
        first_token_s = start_s + self._prefill_s(len(batch), prompt)
        reached = min(longest, max(fitting, 1))
        end_s = first_token_s + self._decode_s(len(batch), prompt, reached)
        for job, _ in batch:
            if job.first_scheduled_s is None:
                job.first_scheduled_s = start_s
        if fitting < longest:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._run_out([job for job, _ in batch], reached))
        else:
            self._loop.at(end_s, Phase.OUTPUT, lambda: self._return(batch, prompt, longest, first_token_s))

    def _prefill_s(self, jobs: int, prompt: int) -> float:
        shape = BatchShape()
        for _ in range(jobs):
            shape.add(prompt, 0)
        return self._clock.step_s(shape)

    def _decode_s(self, jobs: int, prompt: int, output: int) -> float:
        """Seconds from the first token to the last of `output`."""
        shape = BatchShape(
            num_jobs=jobs, num_tokens=jobs, num_decodes=jobs, decode_context_tokens=jobs * prompt
        )
        seconds = 0.0
        for _ in range(output - 1):
            shape = shape.grown()
            seconds += self._clock.step_s(shape)
        return seconds

    def _return(
        self, batch: Sequence[tuple[Job, int]], prompt: int, longest: int, first_token_s: float
    ) -> None:
        self.busy = False
        for job, output in batch:
            self.waste.valid_tokens += output
            self.waste.pad_tokens += prompt - job.num_prompt_tokens
            self.waste.invalid_tokens += longest - output
            job.num_output_tokens, job.first_token_s, job.state = output, first_token_s, JobState.ENDED
            record = record_of(job, Outcome.FINISHED, self._loop.now_s)
            record.instance = self.name
            self._on_end(record)
        self._on_idle()

    def _run_out(self, jobs: Sequence[Job], reached: int) -> None:
        self.busy = False
        self.waste.out_of_memory += 1
        self.waste.lost_tokens += reached * len(jobs)
        self._on_out_of_memory(jobs)
        if not self.busy:
            self._on_idle()
