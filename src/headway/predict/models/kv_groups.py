"""How vLLM lays out the KV cache of a model whose layers differ: groups of layers that draw from one pool of blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape

_FEW_MORE = 1.5
"""With fewer times as many layers, the larger kind's number is the size of all groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """`count` groups of layers that keep the same tokens, each in a table of blocks of its own.

    A block holds `block_size` tokens of a group's layers. A request keeps the last `window` tokens, all if that is 0,
    or, where `chunked`, those since the last whole chunk of `window`.
    """

    count: int = 1
    block_size: int
    window: int = 0
    chunked: bool = False

    def dropped_tokens(self, computed: int) -> int:
        """Leading tokens that are not seen any more once so many are computed."""
        if not self.window:
            return 0
        if self.chunked:
            return computed // self.window * self.window
        return max(0, computed - self.window + 1)

    def computed_when_dropped(self, tokens: int) -> int:
        """The least computed tokens of which so many leading ones are not seen any more; there is a window."""
        if self.chunked:
            return -(-tokens // self.window) * self.window
        return tokens + self.window - 1

    def most_blocks(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Blocks of one table that a request of `num_tokens` holds at most, of which so many may be in flight at once.

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
        """Blocks that a request of so many tokens holds at most, in all groups."""
        return sum(group.count * group.most_blocks(num_tokens, in_flight_tokens) for group in self.groups)

    def capacity_tokens(self, num_blocks: int, context_tokens: int, in_flight_tokens: int) -> int:
        """Tokens that the pool holds in requests as long as the context: vLLM's "KV cache size"."""
        return int(num_blocks / self.request_blocks(context_tokens, in_flight_tokens) * context_tokens)


def kv_layout_of(model: ModelShape, tp: int, block_size: int) -> KvLayout:
    """As vLLM 0.32 lays it out on `tp` GPUs of which all cache with blocks of `block_size` tokens by default.

    Layers that keep the same tokens are one group, whatever their sizes. Else all blocks are made equally large: one of
    a smaller kind of layer holds more tokens, or is padded. Groups then have as many layers as the rarest kind, or as
    the commonest, if that is less than half as many again. Source: vLLM 0.32, `get_kv_cache_groups`.
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
    """The kinds of layers by what they keep; how many heads ask for it makes no difference."""
    kinds: dict[AttentionLayers, int] = {}
    for kind in model.attention_layers:
        each = replace(kind, num_layers=0, num_heads=0)
        kinds[each] = kinds.get(each, 0) + kind.num_layers
    return [replace(each, num_layers=number) for each, number in kinds.items()]
