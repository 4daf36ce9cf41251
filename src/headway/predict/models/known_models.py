"""Models known by name, so that a simulation needs no download."""

from __future__ import annotations

from dataclasses import replace

from headway.errors import ConfigError, meant
from headway.predict.models.model_shape import ModelShape, read_model_shape
from headway.written_path import written_path


def _llama(
    name: str, context: int, layers: int, width: int, heads: tuple[int, int], inner: int, vocab: int
) -> ModelShape:
    """A dense decoder with gated feed-forward, heads of 128 and an LM head of its own."""
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=width,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        intermediate_size=inner,
        vocab_size=vocab,
        context_tokens=context,
    )


def _experts(dense: ModelShape, experts: int, per_token: int) -> ModelShape:
    return replace(dense, num_experts=experts, experts_per_token=per_token)


def _gpt(name: str, layers: int, width: int, vocab: int, head_dim: int = 128) -> ModelShape:
    """A dense decoder of GPT kind: plain feed-forward of four times the width, every head its own KV, tied tables, a
    context of 2,048."""
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=width,
        num_heads=width // head_dim,
        num_kv_heads=width // head_dim,
        head_dim=head_dim,
        intermediate_size=4 * width,
        vocab_size=vocab,
        gated=False,
        tied_embeddings=True,
        context_tokens=2048,
    )


_DEMO = ModelShape(
    name="demo",
    num_layers=4,
    hidden_size=256,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=512,
    vocab_size=2048,
    context_tokens=4096,
)

KNOWN_MODELS: tuple[ModelShape, ...] = (
    _DEMO,
    replace(_DEMO, name="demo-random"),
    _llama("meta-llama/Llama-3.1-8B", 131072, 32, 4096, (32, 8), 14336, 128256),
    _llama("meta-llama/Llama-3.1-8B-Instruct", 131072, 32, 4096, (32, 8), 14336, 128256),
    _llama("meta-llama/Meta-Llama-3-8B", 8192, 32, 4096, (32, 8), 14336, 128256),
    _llama("meta-llama/Llama-3.1-70B", 131072, 80, 8192, (64, 8), 28672, 128256),
    _llama("meta-llama/Llama-3.1-70B-Instruct", 131072, 80, 8192, (64, 8), 28672, 128256),
    _llama("meta-llama/Meta-Llama-3-70B", 8192, 80, 8192, (64, 8), 28672, 128256),
    _llama("meta-llama/Llama-2-7b-hf", 4096, 32, 4096, (32, 32), 11008, 32000),
    _llama("meta-llama/Llama-2-7b", 4096, 32, 4096, (32, 32), 11008, 32000),
    _llama("meta-llama/Llama-2-13b-hf", 4096, 40, 5120, (40, 40), 13824, 32000),
    _llama("meta-llama/Llama-2-13b", 4096, 40, 5120, (40, 40), 13824, 32000),
    _llama("meta-llama/Llama-2-70b-hf", 4096, 80, 8192, (64, 8), 28672, 32000),
    _llama("meta-llama/Llama-2-70b", 4096, 80, 8192, (64, 8), 28672, 32000),
    _llama("huggyllama/llama-13b", 2048, 40, 5120, (40, 40), 13824, 32000),
    _llama("huggyllama/llama-30b", 2048, 60, 6656, (52, 52), 17920, 32000),
    _llama("codellama/CodeLlama-34b-Instruct-hf", 16384, 48, 8192, (64, 8), 22016, 32000),
    _llama("codellama/CodeLlama-34b", 16384, 48, 8192, (64, 8), 22016, 32000),
    _llama("mistralai/Mistral-7B-v0.1", 32768, 32, 4096, (32, 8), 14336, 32000),
    _llama("mistralai/Mistral-7B", 32768, 32, 4096, (32, 8), 14336, 32000),
    _experts(_llama("mistralai/Mixtral-8x7B-v0.1", 32768, 32, 4096, (32, 8), 14336, 32000), 8, 2),
    _llama("Qwen/Qwen-14B", 2048, 40, 5120, (40, 40), 13696, 152064),
    _llama("Qwen/Qwen2.5-14B", 131072, 48, 5120, (40, 8), 13824, 152064),
    _llama("Qwen/Qwen-72B", 32768, 80, 8192, (64, 64), 24576, 152064),
    _llama("Qwen/Qwen3-8B", 40960, 36, 4096, (32, 8), 12288, 151936),
    _llama("Qwen/Qwen3-14B", 40960, 40, 5120, (40, 8), 17408, 151936),
    _llama("Qwen/Qwen3-32B", 40960, 64, 5120, (64, 8), 25600, 151936),
    _experts(_llama("Qwen/Qwen3-30B-A3B", 40960, 48, 2048, (32, 4), 768, 151936), 128, 8),
    _experts(_llama("Qwen/Qwen3-30B-A3B-Instruct-2507", 262144, 48, 2048, (32, 4), 768, 151936), 128, 8),
    _llama("internlm/internlm-20b", 4096, 60, 5120, (40, 40), 13824, 103168),
    _llama("01-ai/Yi-34B", 4096, 60, 7168, (56, 8), 20480, 64000),
    _gpt("facebook/opt-2.7b", 32, 2560, 50272, head_dim=80),
    _gpt("facebook/opt-6.7b", 32, 4096, 50272),
    _gpt("facebook/opt-13b", 40, 5120, 50272),
    _gpt("facebook/opt-30b", 48, 7168, 50272),
    _gpt("facebook/opt-66b", 64, 9216, 50272),
    _gpt("facebook/opt-175b", 96, 12288, 50272),
    _gpt("openai/gpt-175b", 96, 12288, 50257),
    _gpt("bigscience/bloom-176b", 70, 14336, 250880),
    replace(_gpt("THUDM/chatglm-6b", 28, 4096, 130528), tied_embeddings=False),
)
"""Sizes from each model's published config.json; OPT-175B and GPT-175B from Zhang 2022 and Brown 2020, table 2.1.

The context is what vLLM derives from the config: for Qwen-14B its `seq_length`. Mistral 7B v0.1 has no sliding window
here, as the papers ran it; read from a directory with its config it has one of 4,096 tokens.
"""

_SERVED_BYTES = 2
_BY_NAME = {shape.name.lower(): shape for shape in KNOWN_MODELS}
_BY_LAST_PART = {name.rpartition("/")[2]: shape for name, shape in _BY_NAME.items()}


def model_shape(name: str) -> ModelShape:
    """The shape of a directory's config.json, or of a known model by its hub name or the last part of it.

    As vLLM serves it without a requested dtype: a 32-bit checkpoint runs in 16 bits.

    Case does not matter. Raises ConfigError for anything else, with the accepted names.
    """
    found = _BY_NAME.get(name.lower()) or _BY_LAST_PART.get(name.lower())
    if found is not None:
        return found
    directory = written_path(name)
    if name and directory.is_dir():
        return _at_most_16_bits(read_model_shape(directory))
    names = [shape.name for shape in KNOWN_MODELS]
    near = names if "/" in name else [each.rpartition("/")[2] for each in names]
    accepted = f"a directory with config.json, or one of {', '.join(names)}"
    raise ConfigError(f"unknown model {name!r}; {meant(name, near, accepted)}")


def _at_most_16_bits(shape: ModelShape) -> ModelShape:
    return replace(
        shape,
        bytes_per_value=min(_SERVED_BYTES, shape.bytes_per_value),
        kv_bytes_per_value=min(_SERVED_BYTES, shape.kv_bytes_per_value),
    )
