"""vLLM's KV cache layout for a model whose layers differ: groups of layers that share one pool of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape

_FEW_MORE = 1.5
"""If the larger kind has fewer than this many times as many layers, its number is the size of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """`count` groups of layers that keep the same tokens, each with its own table of blocks.

    A block holds `block_size` tokens of a group's layers. A request keeps the last `window` tokens, all if that is 0,
    or, if `chunked`, those since the last whole chunk of `window`.
    """

    count: int = 1
    block_size: int
    window: int = 0
    chunked: bool = False

    def dropped_tokens(self, computed: int) -> int:
        """Leading tokens that no later token sees, once `computed` tokens are computed."""
        if not self.window:
            return 0
        if self.chunked:
            return computed // self.window * self.window
        return max(0, computed - self.window + 1)

    def computed_when_dropped(self, tokens: int) -> int:
        """The smallest number of computed tokens at which `tokens` leading ones are no longer seen; requires a
        window.
        """
        if self.chunked:
            return -(-tokens // self.window) * self.window
        return tokens + self.window - 1

    def most_blocks(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Most blocks of one table for a request of `num_tokens`, of which `in_flight_tokens` may be in flight at once.

        Source: vLLM 0.32, `max_admission_blocks_per_request`.
        """
        needed = -(-num_tokens // self.block_size)
        if not self.window:
            return needed
        kept = self.window if self.chunked else self.window - 1
        within = -(-(kept + in_flight_tokens) // self.block_size) + (not self.chunked)
        return min(needed, within)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """Groups that share a pool, and the bytes of one of its blocks on all GPUs of an instance."""

    groups: tuple[KvGroup, ...]
    block_bytes: int

    def request_blocks(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Most blocks that a request of `num_tokens` holds, in all groups."""
        return sum(group.count * group.most_blocks(num_tokens, in_flight_tokens) for group in self.groups)

    def capacity_tokens(self, num_blocks: int, context_tokens: int, in_flight_tokens: int) -> int:
        """Tokens that the pool holds in requests of context length: vLLM's "KV cache size"."""
        return int(num_blocks / self.request_blocks(context_tokens, in_flight_tokens) * context_tokens)


def kv_layout_of(model: ModelShape, tp: int, block_size: int) -> KvLayout:
    """The layout of vLLM 0.32 on `tp` GPUs, all with a default of `block_size` tokens a block.

    Layers that keep the same tokens form one group, whatever their sizes. Otherwise all blocks are made equally large:
    a block of a smaller kind of layer holds more tokens, or is padded. Groups then have as many layers as the rarest
    kind, or as the commonest, if that is less than half as many again. Source: vLLM 0.32, `get_kv_cache_groups`.
    """
    kinds = _alike_in_cache(model)
    sizes = {kind: model.gpu_kv_values(kind, tp) * model.kv_bytes_per_value for kind in kinds}
    if len({(kind.window, kind.chunked) for kind in kinds}) == 1:
        block_bytes = tp * block_size * sum(kind.num_layers * sizes[kind] for kind in kinds)
        group = KvGroup(block_size=block_size, window=kinds[0].window, chunked=kinds[0].chunked)
        return KvLayout(groups=(group,), block_bytes=block_bytes)
    largest = max(sizes.values())
    numbers = [kind.num_layers for kind in kinds]
    in_group = max(numbers) if max(numbers) < min(numbers) * _FEW_MORE else min(numbers)
    groups = tuple(
        KvGroup(
            count=-(-kind.num_layers // in_group),
            block_size=block_size * (1 if largest % sizes[kind] else largest // sizes[kind]),
            window=kind.window,
            chunked=kind.chunked,
        )
        for kind in kinds
    )
    layers = max(-(-kind.num_layers // group.count) for kind, group in zip(kinds, groups, strict=True))
    return KvLayout(groups=groups, block_bytes=tp * block_size * layers * largest)


def _alike_in_cache(model: ModelShape) -> list[AttentionLayers]:
    """The kinds of layers that differ in what they cache; the number of query heads does not matter."""
    kinds: dict[AttentionLayers, int] = {}
    for kind in model.attention_layers:
        each = replace(kind, num_layers=0, num_heads=0)
        kinds[each] = kinds.get(each, 0) + kind.num_layers
    return [replace(each, num_layers=number) for each, number in kinds.items()]
