"""The shape of a step: the sums that determine its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headway.core.job import Job


class StepKind(StrEnum):
    """What a step computes: prompts, single tokens of answers, or both. Each kind has its own laws and errors."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(slots=True, kw_only=True)
class BatchShape:
    """A step's work as sums over its jobs, updated in O(1) for one more job, or one more token for each.

    A job's `context` is the tokens whose KV it reads beside its new ones. A job with a single new token counts as a
    decode, whatever its phase: the kernels see no difference. `prefill_pairs` is the number of (query, key) pairs that
    causal attention computes for the others: new x (context + (new + 1) / 2). Source: Ascendra section 4.2 with the
    corrections for causal attention and the current chunk.
    """

    num_jobs: int = 0
    num_tokens: int = 0
    num_decodes: int = 0
    decode_context_tokens: int = 0
    prefill_context_tokens: int = 0
    prefill_pairs: float = 0.0

    @property
    def num_prefill_tokens(self) -> int:
        """New tokens of the jobs with more than one."""
        return self.num_tokens - self.num_decodes

    @property
    def kind(self) -> StepKind:
        """The kind of the step; one without jobs counts as decodes."""
        if not self.num_prefill_tokens:
            return StepKind.DECODE
        return StepKind.MIXED if self.num_decodes else StepKind.PREFILL

    def add(self, new_tokens: int, context_tokens: int) -> None:
        """Add one more job."""
        self.num_jobs += 1
        self.num_tokens += new_tokens
        if new_tokens == 1:
            self.num_decodes += 1
            self.decode_context_tokens += context_tokens + 1
        else:
            self.prefill_context_tokens += context_tokens + new_tokens
            self.prefill_pairs += new_tokens * (context_tokens + (new_tokens + 1) / 2)

    def grown(self) -> BatchShape:
        """The shape of the next step if this one was decodes alone and all continue."""
        return BatchShape(
            num_jobs=self.num_jobs,
            num_tokens=self.num_tokens,
            num_decodes=self.num_decodes,
            decode_context_tokens=self.decode_context_tokens + self.num_decodes,
        )


def shape_of(tokens: Mapping[Job, int]) -> BatchShape:
    """The shape of a step that granted `tokens`, after the ledger has applied it. O(jobs)."""
    # `BatchShape.add` is inlined, since this runs for every job of every step.
    num_decodes = decode_context = num_prefill_tokens = prefill_context = 0
    pairs = 0.0
    for job, new_tokens in tokens.items():
        computed = job.num_computed_tokens
        if new_tokens == 1:
            num_decodes += 1
            decode_context += computed
        else:
            num_prefill_tokens += new_tokens
            prefill_context += computed
            pairs += new_tokens * (computed - new_tokens + (new_tokens + 1) / 2)
    return BatchShape(
        num_jobs=len(tokens),
        num_tokens=num_decodes + num_prefill_tokens,
        num_decodes=num_decodes,
        decode_context_tokens=decode_context,
        prefill_context_tokens=prefill_context,
        prefill_pairs=pairs,
    )


def padded_shape_of(tokens: Mapping[Job, int]) -> BatchShape:
    """As `shape_of`, for an engine that pads the prompts of a step to the longest of them. O(jobs).

    A step that grants no job more than one token has only decodes, which are not padded.
    """
    longest = max(tokens.values(), default=1)
    if longest == 1:
        return shape_of(tokens)
    shape = BatchShape()
    for job, new_tokens in tokens.items():
        shape.add(longest, job.num_computed_tokens - new_tokens)
    return shape


MOST_GRAPHED_TOKENS = 512
"""vLLM's default for the largest step in CUDA graphs, in tokens."""


def captured_tokens(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """The largest step in vLLM's CUDA graphs by default, in tokens of its grid of 8 and 16: two for each seat if these
    are few.

    Source: vLLM 0.32, VllmConfig._set_cudagraph_sizes; on Blackwell up to 1,024, which no cost model here knows.
    """
    return min(2 * max_num_seqs, MOST_GRAPHED_TOKENS, max_num_batched_tokens)
