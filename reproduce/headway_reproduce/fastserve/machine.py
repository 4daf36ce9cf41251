"""The engines of FastServe's experiments: models on pipeline stages of A100s, and the sizes of their memories.

Source: Wu et al. (arXiv 2305.05920) and the released code. What they leave open is marked "ours".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from headway.core.batch_shape import BatchShape
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.hardware import calibration
from headway.sim.limits import EngineLimits

HARDWARE = "a100-40g"
"""A100 40 GB, eight in a node, NVLink between them."""

SIMULATED = "simulated, A100 40 GB"
"""The machine named in tables of simulated runs."""

GPUS_A_NODE, HOST_BYTES_A_NODE = 8, 1152e9
"""p4d.24xlarge; all of a node's memory can hold KV."""

BLOCK_TOKENS, TOKENS_A_STEP = 16, 2048
"""KV block size, and prompt tokens of one step. Source: the released code."""

BATCH, SLOTS = 16, 256
"""Jobs in a step of one pipeline stage (the released code), and jobs that may be resident at once (ours).

FasterTransformer has one batch in both stages, with as many jobs as the two batches of the others together.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperMachine:
    """A model on one engine of `stages` pipeline stages of `tp` GPUs; `host_bytes` None is all of its nodes' memory."""

    title: str
    model: str
    tp: int = 1
    stages: int = 1
    host_bytes: float | None = None

    @property
    def gpus(self) -> int:
        """The number of GPUs of all stages."""
        return self.tp * self.stages

    def decode_step_s(self) -> float:
        """Seconds of a step that decodes one job with an empty context."""
        return self.iteration_s(1)

    def iteration_s(self, tokens: int, context_tokens: int = 0) -> float:
        """Seconds of a step in which one job computes this many tokens after a context of that many."""
        shape = BatchShape()
        shape.add(tokens, context_tokens)
        return _costs(self.model, self.tp, self.stages).step.step_s(shape)

    def limits(self, block_tokens: int = BLOCK_TOKENS) -> EngineLimits:
        """The engine's sizes, with KV in blocks of this many tokens."""
        costs = _costs(self.model, self.tp, self.stages)
        nodes = -(-self.gpus // GPUS_A_NODE)
        host_bytes = nodes * HOST_BYTES_A_NODE if self.host_bytes is None else self.host_bytes
        return EngineLimits(
            num_blocks=costs.kv_capacity_tokens // block_tokens,
            block_size=block_tokens,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=TOKENS_A_STEP,
            batch_width=BATCH,
            prefix_caching=False,
            asynchronous=False,
            pipeline_stages=self.stages,
            host_blocks=int(host_bytes // (block_tokens * costs.kv_bytes_per_token)),
        )

    def sizes(self) -> str:
        """The engine in words."""
        limits = self.limits()
        return (
            f"{self.gpus} GPUs, pipeline stages: {self.stages}; {limits.num_blocks:,} KV blocks of {BLOCK_TOKENS} "
            f"tokens on the devices, {limits.host_blocks:,} on the host, batches of {BATCH} a stage, {SLOTS} slots, "
            f"{TOKENS_A_STEP:,} tokens a step, no prefix caching, synchronous"
        )


@cache
def _costs(model: str, tp: int, stages: int) -> Calibration:
    return calibration(HARDWARE, model_shape(model), tp, stages)


def two_stages(name: str, model: str, gpus: int) -> PaperMachine:
    """A model on this many GPUs, half of them in each of two pipeline stages, as in the paper's section 6.4."""
    return PaperMachine(title=f"{name}, {gpus} GPUs", model=model, tp=gpus // 2, stages=2)


CLUSTER = two_stages("GPT-175B", "openai/gpt-175b", 2 * GPUS_A_NODE)
"""End to end: 16 GPUs, two pipeline stages of eight."""
SCALED_MACHINES = (
    *(two_stages("OPT-66B", "facebook/opt-66b", gpus) for gpus in (8, 16)),
    *(two_stages("GPT-175B", "openai/gpt-175b", gpus) for gpus in (12, 16)),
)
"""Ours, since the text gives neither model nor counts: machines of two stages that hold a model and divide its
heads.
"""
SINGLE = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b")
"""The machine of the ablations."""
SMALL = PaperMachine(title="OPT-2.7B, 1 GPU", model="facebook/opt-2.7b")
"""The machine for the peak of KV."""
RELEASED = PaperMachine(title="OPT-13B, 1 GPU", model="facebook/opt-13b", host_bytes=56e9)
"""The released code's engine with its swap space, for the curve of latency per token."""
