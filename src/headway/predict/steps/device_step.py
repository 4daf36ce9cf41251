"""Seconds of a step on a catalogue GPU: the sum of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from headway.core.batch_shape import BatchShape
from headway.predict.models.attention import AttentionLayers
from headway.predict.models.model_shape import ModelShape
from headway.predict.steps.kernels import AllReduce, Chunks, Heads, Kernels, Peaks
from headway.predict.steps.law import Curve

_KNOTS_A_DOUBLING = 8
_DOUBLINGS = 18
_COUNTS = tuple(
    sorted({round(2 ** (knot / _KNOTS_A_DOUBLING)) for knot in range(_KNOTS_A_DOUBLING * _DOUBLINGS + 1)})
)
"""Counts of tokens, jobs or context at which kernels are evaluated, with linear interpolation."""
_NORMS_A_LAYER = 2
_NORM_PASSES = 4
"""Passes over memory: read hidden and residual, write both."""
_LAUNCHES_A_LAYER = 5
"""Two norms, the rotation, the write to the cache, the activation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the step law sees it. `link_ratio` scales measured collectives to this device's link."""

    peaks: Peaks
    kernels: Kernels
    all_reduce: AllReduce
    link_ratio: float
    step_overhead_s: float
    sampler_s: float
    sampler_job_s: float


class _Attention:
    """Attention of the layers of one kind, in seconds of all of them."""

    def __init__(self, gpu: Gpu, model: ModelShape, kind: AttentionLayers, tp: int) -> None:
        self._gpu, self.kind = gpu, kind
        self.heads = Heads(
            query=kind.num_heads / tp,
            kv=max(1.0, kind.num_kv_heads / tp),
            dim=(kind.head_dim + kind.value_dim) // 2,
            kv_bytes=model.kv_bytes_per_value,
        )
        self._prompt_heads, self._decode_heads = self.heads, self.heads
        if model.latent:
            # Prompts attend with keys and values of every head, single tokens with one head as wide as a latent.
            self._prompt_heads = Heads(query=self.heads.query, kv=self.heads.query, dim=self.heads.dim)
            self._decode_heads = Heads(
                query=self.heads.query,
                kv=1.0,
                dim=model.latent.cached // 2,
                kv_bytes=model.kv_bytes_per_value,
            )
        self._prefill_work = gpu.kernels.prefill_work(self._prompt_heads)
        self._decodes: dict[int, Curve] = {}

    def seconds(self, shape: BatchShape) -> float:
        """Seconds of the step's prompts, and of its decodes."""
        shape = self.kind.seen(shape)
        decodes = shape.num_decodes
        prompts = self._prefill_s(shape) if shape.num_tokens > decodes else 0.0
        if not decodes:
            return prompts
        context = shape.decode_context_tokens / decodes
        shared = prompts > 0 and self._gpu.kernels.mixed_key_s > 0
        return prompts + self._decode_curve(decodes, shared).at(context)

    def _decode_curve(self, sequences: int, shared: bool) -> Curve:
        """Seconds by context; `shared`: in the prompts' kernel."""
        key = -sequences if shared else sequences
        curve = self._decodes.get(key)
        if curve is None:
            kernels, peaks, heads = self._gpu.kernels, self._gpu.peaks, self._decode_heads

            def seconds(context: int) -> float:
                alone_s = kernels.decode_s(peaks, heads, sequences, context)
                # In a kernel made for prompts no decode is faster than in its own.
                layer_s = (
                    max(alone_s, kernels.mixed_decode_s(heads, sequences, context)) if shared else alone_s
                )
                return self.kind.num_layers * layer_s

            curve = self._decodes[key] = _rising(seconds)
        return curve

    def _prefill_s(self, shape: BatchShape) -> float:
        return self.kind.num_layers * self._gpu.kernels.prefill_s(
            self._gpu.peaks,
            self._prompt_heads,
            self._prefill_work,
            Chunks(
                shape.num_jobs - shape.num_decodes,
                shape.num_prefill_tokens,
                shape.prefill_pairs,
                shape.prefill_context_tokens,
            ),
        )


class DeviceStep:
    """Step time = matrix products + attention + collectives + small kernels + a constant.

    Whatever depends only on the number of tokens, or of jobs, or on the mean context of a number of decodes, is stored
    as a curve that never falls. Measured kernels do fall where another tile size is chosen, and a policy must not
    exploit that. Decode curves are made on demand, one for each number of decodes.
    """

    def __init__(self, gpu: Gpu, model: ModelShape, tp: int = 1) -> None:
        self._gpu, self._model, self._tp = gpu, model, tp
        self._kinds = [_Attention(gpu, model, kind, tp) for kind in model.attention_layers]
        self._weight = model.bytes_per_weight
        self._tokens = _rising(lambda tokens: gpu.step_overhead_s + self.layers_s(tokens))
        self._jobs = _rising(self._output_s)

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of one step of this shape. About 2 us without prompts, 5 us with."""
        return self._tokens.at(shape.num_tokens) + self._jobs.at(shape.num_jobs) + self.attention_s(shape)

    def layers_s(self, tokens: int) -> float:
        """Seconds of everything that depends on the number of tokens alone, over all layers."""
        layer = self.products_s(tokens) + self.collectives_s(tokens) + self._small_s(tokens)
        return self._model.num_layers * layer

    def products_s(self, tokens: int) -> float:
        """Seconds of one layer's matrix products; the mean if layers differ."""
        model = self._model
        attention = self._attention_products_s(tokens)
        if not model.num_experts:
            return self._feed_forward_s(tokens, model.intermediate_size, self._weight.experts, attention)
        if not model.num_dense_layers:
            return attention + self._experts_s(tokens)
        plain = self._feed_forward_s(tokens, model.dense_intermediate_size, self._weight.dense)
        total = model.num_expert_layers * self._experts_s(tokens) + model.num_dense_layers * plain
        return attention + total / model.num_layers

    def _attention_products_s(self, tokens: int) -> float:
        return self._mean(lambda kind: self._kind_products_s(tokens, kind))

    def _mean(self, of_layer: Callable[[_Attention], float]) -> float:
        """The mean over all kinds of layers."""
        if len(self._kinds) == 1:
            return of_layer(self._kinds[0])
        total = sum(each.kind.num_layers * of_layer(each) for each in self._kinds)
        return total / self._model.num_layers

    def _kind_products_s(self, tokens: int, attention: _Attention) -> float:
        model, tp, heads, kind = self._model, self._tp, attention.heads, attention.kind
        hidden = model.hidden_size
        if model.latent:
            products = model.latent.whole_products(hidden)
            *queries, (_, inner) = model.latent.shared_products(hidden, model.num_heads)
            products += [(columns // tp, depth) for columns, depth in queries] + [(hidden, inner // tp)]
            return sum(self._product_s(tokens, *each, self._weight.attention) for each in products)
        fused = heads.query * kind.head_dim + heads.kv * (kind.head_dim + kind.value_dim)
        seconds = self._product_s(tokens, fused, hidden, self._weight.attention)
        return seconds + self._product_s(tokens, hidden, heads.query * kind.value_dim, self._weight.attention)

    def _feed_forward_s(self, tokens: int, width: int, weight: float, before_s: float = 0.0) -> float:
        hidden, inner = self._model.hidden_size, width / self._tp
        rising = self._product_s(tokens, (2 if self._model.gated else 1) * inner, hidden, weight)
        return before_s + rising + self._product_s(tokens, hidden, inner, weight)

    def _product_s(self, tokens: int, columns: float, depth: float, weight: float) -> float:
        gpu = self._gpu
        return gpu.kernels.gemm_s(gpu.peaks, tokens, columns, depth, self._model.bytes_per_value, weight)

    def _experts_s(self, tokens: int) -> float:
        """Router, the experts that some token is expected to choose (evenly), and the shared ones."""
        model, gpu = self._model, self._gpu
        idle = float((1 - model.experts_per_token / model.num_experts) ** tokens)
        read = self._weight.experts * model.expert_weights * model.num_experts * (1 - idle) / self._tp
        flops = 2.0 * tokens * model.experts_per_token * model.expert_weights / self._tp
        router = gpu.kernels.gemm_s(gpu.peaks, tokens, model.num_experts, model.hidden_size)
        seconds = router + gpu.kernels.experts_s(gpu.peaks, flops, read)
        if not model.shared_intermediate_size:
            return seconds
        return self._feed_forward_s(tokens, model.shared_intermediate_size, self._weight.dense, seconds)

    def collectives_s(self, tokens: int) -> float:
        """Seconds of one layer's two sums over the GPUs."""
        if self._tp == 1:
            return 0.0
        num_bytes = tokens * self._model.hidden_size * self._model.bytes_per_value
        return 2 * self._gpu.all_reduce.seconds(self._tp, num_bytes, self._gpu.link_ratio)

    def attention_s(self, shape: BatchShape) -> float:
        """Seconds of attention over all layers."""
        return sum(each.seconds(shape) for each in self._kinds)

    def _small_s(self, tokens: int) -> float:
        """Seconds of one layer's norms, rotation, cache write and activation."""
        model = self._model
        inner = model.active_width / self._tp
        values = _NORMS_A_LAYER * _NORM_PASSES * model.hidden_size + self._mean(self._rotated_and_written)
        values += (3 if model.gated else 2) * inner
        return self._gpu.kernels.elementwise_s(
            self._gpu.peaks, _LAUNCHES_A_LAYER, tokens * values * model.bytes_per_value
        )

    def _rotated_and_written(self, attention: _Attention) -> float:
        heads, kind = attention.heads, attention.kind
        return 2 * (heads.query + heads.kv) * kind.head_dim + 2 * heads.kv * self._model.kv_head_values(kind)

    def _output_s(self, jobs: int) -> float:
        """Seconds of the LM head and the sampler for one position a job."""
        model, gpu = self._model, self._gpu
        columns = model.vocab_size / self._tp
        head = gpu.kernels.gemm_s(gpu.peaks, jobs, columns, model.hidden_size, model.bytes_per_value)
        return head + gpu.sampler_s + gpu.sampler_job_s * jobs


def _rising(seconds: Callable[[int], float]) -> Curve:
    """`seconds` at the counts, as a curve that never falls."""
    risen = tuple(accumulate(map(seconds, _COUNTS), max))
    return Curve(knots=(0, *_COUNTS), seconds=(risen[0], *risen))
