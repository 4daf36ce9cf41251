"""Work of a step, counted: floating-point operations and bytes of memory traffic."""

from __future__ import annotations

from headway.core.batch_shape import BatchShape
from headway.predict.models.model_shape import ModelShape


class Roofline:
    """Counts what one of an instance's GPUs does in a step.

    Real operations and real bytes, with grouped-query attention, gated feed-forward, causal attention, the
    current chunk, and the LM head for one position a job. Tensor parallelism divides weights, heads and
    inner activations; activations as wide as the hidden size stay whole on each GPU, and a GPU holds at
    least one KV head. Of several experts, those are read that are expected to be chosen by some token.
    Source: Ascendra section 4.2, corrected; the attention of FlashAttention-2 (Dao 2023).
    """

    def __init__(self, model: ModelShape, tp: int = 1) -> None:
        self.model = model
        query = model.query_width / tp
        kv_values = max(model.kv_head_values, model.num_kv_heads * model.kv_head_values / tp)
        hidden, wide = model.hidden_size, model.bytes_per_value
        inner = model.active_width / tp
        inner_passes = 3 if model.gated else 2
        layers = model.num_layers
        self._token_flops = 2 * model.active_weights / tp
        self._pair_flops = layers * 4 * query
        self._decode_pairs = model.decode_pairs
        self._job_flops = 2 * hidden * model.vocab_size / tp
        activations = 4 * hidden + query + kv_values + query + inner_passes * inner
        self._token_bytes = layers * (wide * (activations + 2 * query) + model.kv_bytes_per_value * kv_values)
        self._context_bytes = layers * model.kv_bytes_per_value * kv_values
        head = wide * hidden * model.vocab_size / tp
        self._expert_bytes = model.expert_bytes / tp
        self._fixed_bytes = model.fixed_bytes / tp + head

    def flops(self, shape: BatchShape) -> float:
        """Floating-point operations on each GPU."""
        pairs = shape.prefill_pairs + self._decode_pairs * shape.decode_context_tokens
        return self.product_flops(shape) + self._pair_flops * pairs

    def product_flops(self, shape: BatchShape) -> float:
        """Of the operations, those that are matrix products with weights."""
        return self._token_flops * shape.num_tokens + self._job_flops * shape.num_jobs

    def prefill_attention_flops(self, shape: BatchShape) -> float:
        """Of the operations, those that are attention of jobs with more than one new token."""
        return self._pair_flops * shape.prefill_pairs

    def weight_bytes(self, shape: BatchShape) -> float:
        """Of the bytes, those that are weights."""
        return self._fixed_bytes + self._expert_bytes * self._experts_read(shape.num_tokens)

    def prefill_context_bytes(self, shape: BatchShape) -> float:
        """Of the bytes, those that are KV read for jobs with more than one new token."""
        return self._context_bytes * shape.prefill_context_tokens

    def mixed_context_bytes(self, shape: BatchShape) -> float:
        """Of the bytes, those that are KV read for decodes beside prompts; 0 in a step of decodes alone."""
        alone = shape.num_tokens == shape.num_decodes
        return 0.0 if alone else self._context_bytes * shape.decode_context_tokens

    def bytes(self, shape: BatchShape) -> float:
        """Bytes each GPU reads and writes."""
        context = shape.prefill_context_tokens + shape.decode_context_tokens
        # A decode's own key and value are in its context already: counting them once more as written is
        # less than a part in a hundred of its traffic.
        return self.weight_bytes(shape) + self._token_bytes * shape.num_tokens + self._context_bytes * context

    def _experts_read(self, num_tokens: int) -> float:
        """Share of the feed-forward weights that some token needs, if tokens choose evenly."""
        model = self.model
        if not model.num_experts:
            return 1.0
        return 1.0 - float((1.0 - model.experts_per_token / model.num_experts) ** num_tokens)
