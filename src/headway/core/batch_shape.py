"""What a step costs by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from headway.core.job import Job


class StepKind(StrEnum):
    """What a step computes: prompts, single tokens of answers, or both. Each has laws and errors of its own."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


@dataclass(slots=True, kw_only=True)
class BatchShape:
    """A step's work as sums over its jobs, so that it grows by a job, or by a token a job, in O(1).

    A job's `context` is the tokens whose KV it reads beside its new ones. One with a single new token
    counts as a decode, whatever phase it is in: the kernels see no difference. `prefill_pairs` is the
    number of (query, key) pairs causal attention computes for the others: new x (context + (new + 1) / 2).
    Source: Ascendra section 4.2 with the corrections for causal attention and the current chunk.
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
        """Which kind of step it is; one of no jobs counts as decodes."""
        if not self.num_prefill_tokens:
            return StepKind.DECODE
        return StepKind.MIXED if self.num_decodes else StepKind.PREFILL

    def add(self, new_tokens: int, context_tokens: int) -> None:
        """Count one more job in."""
        self.num_jobs += 1
        self.num_tokens += new_tokens
        if new_tokens == 1:
            self.num_decodes += 1
            self.decode_context_tokens += context_tokens + 1
        else:
            self.prefill_context_tokens += context_tokens + new_tokens
            self.prefill_pairs += new_tokens * (context_tokens + (new_tokens + 1) / 2)

    def grown(self) -> BatchShape:
        """The shape of the next step when this one was decodes alone and all go on."""
        return BatchShape(
            num_jobs=self.num_jobs,
            num_tokens=self.num_tokens,
            num_decodes=self.num_decodes,
            decode_context_tokens=self.decode_context_tokens + self.num_decodes,
        )


def shape_of(tokens: Mapping[Job, int]) -> BatchShape:
    """The shape of a step that granted `tokens`, asked after the ledger has applied it. O(jobs)."""
    # `BatchShape.add` spelled out: this runs for every job of every step.
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
    """As `shape_of`, of an engine that pads the prompts of a step to the longest of them. O(jobs).

    A step that grants no job more than one token has decodes alone, of which none is padded.
    """
    longest = max(tokens.values(), default=1)
    if longest == 1:
        return shape_of(tokens)
    shape = BatchShape()
    for job, new_tokens in tokens.items():
        shape.add(longest, job.num_computed_tokens - new_tokens)
    return shape


MOST_GRAPHED_TOKENS = 512
"""Tokens of a step that graphs hold at most, if vLLM is not told otherwise."""


def captured_tokens(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Tokens of a step that vLLM's graphs hold by default, up to its grid of 8 and 16: two for each of few seats.

    Source: vLLM 0.32, VllmConfig._set_cudagraph_sizes; on Blackwell up to 1,024, which no cost here knows of.
    """
    return min(2 * max_num_seqs, MOST_GRAPHED_TOKENS, max_num_batched_tokens)
