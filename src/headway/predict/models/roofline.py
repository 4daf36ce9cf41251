"""Counts the work of a step: floating-point operations and bytes of memory traffic."""

from __future__ import annotations

from headway.core.batch_shape import BatchShape
from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape


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

    def flops(self, shape: BatchShape) -> float:
        """Floating-point operations on each GPU."""
        decodes = self._pair_flops * shape.decode_context_tokens
        for kind, pair_flops, _ in self._windowed:
            decodes += pair_flops * kind.seen(shape).decode_context_tokens
        return self.product_flops(shape) + self.prefill_attention_flops(shape) + self._decode_pairs * decodes

    def product_flops(self, shape: BatchShape) -> float:
        """The part of the operations in matrix products with weights."""
        return self._token_flops * shape.num_tokens + self._job_flops * shape.num_jobs

    def prefill_attention_flops(self, shape: BatchShape) -> float:
        """The part of the operations in attention of jobs with more than one new token."""
        windowed = sum(flops * kind.seen(shape).prefill_pairs for kind, flops, _ in self._windowed)
        return self._pair_flops * shape.prefill_pairs + windowed

    def weight_bytes(self, shape: BatchShape) -> float:
        """The part of the bytes that is weights."""
        return self._fixed_bytes + self._expert_bytes * self._experts_read(shape.num_tokens)

    def prefill_context_bytes(self, shape: BatchShape) -> float:
        """The part of the bytes that is KV read for jobs with more than one new token."""
        windowed = sum(size * kind.seen(shape).prefill_context_tokens for kind, _, size in self._windowed)
        return self._context_bytes * shape.prefill_context_tokens + windowed

    def mixed_context_bytes(self, shape: BatchShape) -> float:
        """The part of the bytes that is KV read for decodes beside prompts; 0 in a step of decodes alone."""
        alone = shape.num_tokens == shape.num_decodes
        return 0.0 if alone else self._decode_context_bytes(shape)

    def bytes(self, shape: BatchShape) -> float:
        """Bytes that each GPU reads and writes."""
        context_bytes = self.prefill_context_bytes(shape) + self._decode_context_bytes(shape)
        # A decode's own key and value are in its context already: counting the write too would add less than one per
        # cent.
        return self.weight_bytes(shape) + self._token_bytes * shape.num_tokens + context_bytes

    def _decode_context_bytes(self, shape: BatchShape) -> float:
        windowed = sum(size * kind.seen(shape).decode_context_tokens for kind, _, size in self._windowed)
        return self._context_bytes * shape.decode_context_tokens + windowed

    def _experts_read(self, num_tokens: int) -> float:
        """Share of the expert weights that some token needs, if tokens choose evenly."""
        model = self.model
        if not model.num_experts:
            return 1.0
        return 1.0 - float((1.0 - model.experts_per_token / model.num_experts) ** num_tokens)
