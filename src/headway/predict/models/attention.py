"""Attention of a model's layers: its width, its cache, and the tokens it sees."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.batch_shape import BatchShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Layers of a model with the same attention, with keys `head_dim` wide and values `value_dim` wide.

    A token sees the last `window` tokens including itself, or all of them if that is 0. `chunked`: a token sees the
    preceding tokens of its chunk of `window` tokens.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False

    @property
    def cached_values(self) -> int:
        """Values that one layer caches for a token, over all KV heads."""
        return self.num_kv_heads * (self.head_dim + self.value_dim)

    def projections(self, hidden: int) -> dict[str, int]:
        """Weights of each of one layer's projections, by the name of its module in vLLM."""
        return {
            "qkv_proj": hidden * (self.num_heads * self.head_dim + self.cached_values),
            "o_proj": hidden * self.num_heads * self.value_dim,
        }

    def seen(self, shape: BatchShape) -> BatchShape:
        """The step as these layers see it: context and query-key pairs inside the window.

        A step has only sums over its jobs, so the window is applied to its mean decode and its mean prompt: exact if
        jobs are equal or none reaches the window. A chunk counts as a window of its size: at most twice as much. O(1).
        """
        window = self.window
        if not window:
            return shape
        decodes, prompts = shape.num_decodes, shape.num_jobs - shape.num_decodes
        seen = BatchShape(num_jobs=shape.num_jobs, num_tokens=shape.num_tokens, num_decodes=decodes)
        seen.decode_context_tokens = min(shape.decode_context_tokens, decodes * window)
        if prompts:
            new = shape.num_prefill_tokens / prompts
            context = shape.prefill_context_tokens / prompts
            reach = min(context, new + window - 1)
            seen.prefill_context_tokens = round(prompts * reach)
            seen.prefill_pairs = (
                shape.prefill_pairs * _pairs(new, context, window) / _pairs(new, context, context)
            )
        return seen


def _pairs(new: float, context: float, window: float) -> float:
    """Query-key pairs of `new` tokens at the end of `context`, each of which sees at most `window`."""
    before = context - new
    growing = min(new, max(0.0, window - before))
    return growing * (before + (growing + 1) / 2) + (new - growing) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes under the names of DeepSeek's configs; `q_lora_rank` is 0 if queries are made in one product.

    Source: DeepSeek-V2 (2024), section 2.1 and appendix C.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def cached(self) -> int:
        """Values that a layer caches for a token, whatever the number of heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def mean_head_dim(self) -> int:
        """Mean width of a head's query and value: what attention of a prompt computes and moves."""
        return (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim) // 2

    def whole_products(self, hidden: int) -> list[tuple[int, int]]:
        """(columns, depth) of a layer's products that every GPU of an instance computes in full."""
        return [(self.q_lora_rank + self.cached, hidden)]

    def shared_products(self, hidden: int, heads: int) -> list[tuple[int, int]]:
        """(columns, depth) of the products whose heads are divided among GPUs; the last ends in the hidden size."""
        query = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        return [
            (query, self.q_lora_rank or hidden),
            (heads * (self.qk_nope_head_dim + self.v_head_dim), self.kv_lora_rank),
            (hidden, heads * self.v_head_dim),
        ]

    def projections(self, hidden: int, heads: int) -> dict[str, int]:
        """Weights of each of a layer's projections, by the name of its module in vLLM."""
        query, keys_and_values, out = (
            columns * depth for columns, depth in self.shared_products(hidden, heads)
        )
        return {
            "q_a_proj": self.q_lora_rank * hidden,
            "kv_a_proj_with_mqa": self.cached * hidden,
            "q_b_proj" if self.q_lora_rank else "q_proj": query,
            "kv_b_proj": keys_and_values,
            "o_proj": out,
        }

    @property
    def decode_pairs(self) -> float:
        """Operations of a single token on one key, in latent space, over those in a prompt."""
        return (self.cached + self.kv_lora_rank) / (2 * self.mean_head_dim)
