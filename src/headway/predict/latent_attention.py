"""Multi-head latent attention: keys and values of all heads made from one small vector a token, all that is cached."""

from __future__ import annotations

from dataclasses import dataclass

from headway.predict.config_reader import ConfigReader

_FAMILIES = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe")
"""Model types whose latents vLLM 0.32 caches as they are; of others it caches the heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Sizes in the words of DeepSeek's configs; `q_lora_rank` is 0 where queries are made in one product.

    Source: DeepSeek-V2 (2024), section 2.1 and appendix C.
    """

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def cached(self) -> int:
        """Values a layer keeps of a token, whatever the number of heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def mean_head_dim(self) -> int:
        """Mean of a head's query and value: what attention of a prompt computes and moves by."""
        return (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim) // 2

    def whole_products(self, hidden: int) -> list[tuple[int, int]]:
        """(columns, depth) of a layer's products that every GPU of an instance computes in full."""
        return [(self.q_lora_rank + self.cached, hidden)]

    def shared_products(self, hidden: int, heads: int) -> list[tuple[int, int]]:
        """(columns, depth) of those whose heads the GPUs share; the last ends in the hidden size."""
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
        """Operations of a single token on one key, in the latents' own space, over those in a prompt."""
        return (self.cached + self.kv_lora_rank) / (2 * self.mean_head_dim)


def latent_attention_of(read: ConfigReader) -> LatentAttention | None:
    """What a config says of it; None for attention by heads. Raises ConfigError where vLLM caches something else."""
    if not read.known("kv_lora_rank"):
        return None
    if read.config.get("model_type") not in _FAMILIES:
        raise read.refuse("kv_lora_rank")
    return LatentAttention(
        q_lora_rank=read.known("q_lora_rank"),
        kv_lora_rank=read.needed("kv_lora_rank"),
        qk_nope_head_dim=read.needed("qk_nope_head_dim"),
        qk_rope_head_dim=read.needed("qk_rope_head_dim"),
        v_head_dim=read.needed("v_head_dim"),
    )
