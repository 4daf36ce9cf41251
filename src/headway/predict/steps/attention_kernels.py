"""How engines launch attention in a step with prompts and decodes: in one kernel, or in one for each."""

from __future__ import annotations

from dataclasses import dataclass

from headway.errors import ConfigError, meant


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernels:
    """The kernel layout of an engine version, and its source.

    `shared`: decodes beside prompts run in the kernel of the prompts, which on GPUs with FlashAttention 2 neither
    splits their keys nor shares their KV heads. Otherwise they have a kernel of their own in every step, as in steps of
    decodes alone. `vllm_backend` is the value of vLLM's `--attention-backend` with this layout; empty if today's vLLM
    has none.
    """

    name: str
    shared: bool
    engines: str
    source: str
    vllm_backend: str = ""

    def __str__(self) -> str:
        layout = (
            "one kernel for prompts and decodes" if self.shared else "a kernel each for prompts and decodes"
        )
        return f"{self.engines}: {layout} ({self.source})"


_ROWS = (
    AttentionKernels(
        name="flash-attn",
        shared=True,
        engines="vLLM V1 with FLASH_ATTN",
        source="vllm/v1/attention/backends/flash_attn.py of vLLM 0.32: one flash_attn_varlen_func for all tokens",
        vllm_backend="FLASH_ATTN",
    ),
    AttentionKernels(
        name="flashinfer",
        shared=False,
        engines="vLLM V1 with FLASHINFER",
        source="vllm/v1/attention/backends/flashinfer.py of vLLM 0.32: split_decodes_and_prefills",
        vllm_backend="FLASHINFER",
    ),
    AttentionKernels(
        name="vllm-v0",
        shared=False,
        engines="vLLM before its V1 engine",
        source="vllm/attention/backends/flash_attn.py of vLLM 0.5: prefill_metadata, then decode_metadata",
    ),
    AttentionKernels(
        name="sarathi-serve",
        shared=False,
        engines="Sarathi-Serve",
        source="flashinfer_attention_wrapper.py: prefill_wrapper, then decode_wrapper",
    ),
)

ATTENTION_KERNELS = {row.name: row for row in _ROWS}
"""The engine versions that a flag can name."""
DEFAULT_ATTENTION = "flash-attn"
"""vLLM 0.32's default on the GPUs that were measured."""


def attention_kernels(name: str) -> AttentionKernels:
    """The layout of a named engine version. Raises ConfigError for an unknown name."""
    if name not in ATTENTION_KERNELS:
        raise ConfigError.of("attention", f"{name!r}; {meant(name, ATTENTION_KERNELS)}")
    return ATTENTION_KERNELS[name]
