"""Counts the work of a step: floating-point operations and bytes of memory traffic."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.batch_shape import BatchShape
from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape


class StepWork(NamedTuple):
    """Floating-point operations and bytes of a step on each GPU, and some of their parts.

    - `product_flops` are matrix products with weights. `prefill_attention_flops` are attention of jobs with more than
      one new token.
    - `prefill_context_bytes` are KV read for these jobs, `decode_context_bytes` for the others.
    """

    flops: float
    product_flops: float
    prefill_attention_flops: float
    bytes: float
    weight_bytes: float
    prefill_context_bytes: float
    decode_context_bytes: float


class Roofline:
    """Counts what one of an instance's GPUs does in a step.

    Counts real operations and bytes, with grouped-query attention, gated feed-forward, causal attention, the current
    chunk, and the LM head for one position a job. Tensor parallelism divides weights, heads and inner activations;
    activations as wide as the hidden size stay whole on each GPU, and a GPU holds at least one KV head. Layers with a
    sliding window only process the window. Of several experts, those count that some token is expected to choose.
    Source: Ascendra section 4.2, corrected; the attention of FlashAttention-2 (Dao 2023).
    """

    def __init__(self, model: ModelShape, tp: int = 1) -> None:
        self.model = model
        hidden, wide = model.hidden_size, model.bytes_per_value
        inner = model.active_width / tp
        inner_passes = 3 if model.gated else 2
        self._token_flops = 2 * model.active_weights / tp
        self._decode_pairs = model.decode_pairs
        self._job_flops = 2 * hidden * model.vocab_size / tp
        self._pair_flops = self._context_bytes = self._token_bytes = 0.0
        self._windowed: list[tuple[AttentionLayers, float, float]] = []
        for kind in model.attention_layers:
            query, out = kind.num_heads * kind.head_dim / tp, kind.num_heads * kind.value_dim / tp
            kv_values = model.gpu_kv_values(kind, tp)
            kv_bytes = kind.num_layers * model.kv_bytes_per_value * kv_values
            activations = 4 * hidden + query + kv_values + out + inner_passes * inner
            self._token_bytes += kind.num_layers * wide * (activations + query + out) + kv_bytes
            pair_flops = kind.num_layers * 2 * (query + out)
            if kind.window:
                self._windowed.append((kind, pair_flops, kv_bytes))
            else:
                self._pair_flops += pair_flops
                self._context_bytes += kv_bytes
        head = wide * hidden * model.vocab_size / tp
        self._expert_bytes = model.expert_bytes / tp
        self._fixed_bytes = model.fixed_bytes / tp + head

    def of(self, shape: BatchShape) -> StepWork:
        """What each GPU does in such a step."""
        decode_flops = self._pair_flops * shape.decode_context_tokens
        prompts_flops = self._pair_flops * shape.prefill_pairs
        prompts_bytes = self._context_bytes * shape.prefill_context_tokens
        decodes_bytes = self._context_bytes * shape.decode_context_tokens
        for kind, pair_flops, size in self._windowed:
            seen = kind.seen(shape)
            decode_flops += pair_flops * seen.decode_context_tokens
            prompts_flops += pair_flops * seen.prefill_pairs
            prompts_bytes += size * seen.prefill_context_tokens
            decodes_bytes += size * seen.decode_context_tokens
        product_flops = self._token_flops * shape.num_tokens + self._job_flops * shape.num_jobs
        weight_bytes = self._fixed_bytes + self._expert_bytes * self._experts_read(shape.num_tokens)
        return StepWork(
            flops=product_flops + prompts_flops + self._decode_pairs * decode_flops,
            product_flops=product_flops,
            prefill_attention_flops=prompts_flops,
            # A decode's own key and value are in its context already: counting them once more as written is
            # less than a part in a hundred of its traffic.
            bytes=weight_bytes + self._token_bytes * shape.num_tokens + (prompts_bytes + decodes_bytes),
            weight_bytes=weight_bytes,
            prefill_context_bytes=prompts_bytes,
            decode_context_bytes=decodes_bytes,
        )

    def _experts_read(self, num_tokens: int) -> float:
        """Share of the expert weights that some token needs, if tokens choose evenly."""
        model = self.model
        if not model.num_experts:
            return 1.0
        return 1.0 - float((1.0 - model.experts_per_token / model.num_experts) ** num_tokens)
