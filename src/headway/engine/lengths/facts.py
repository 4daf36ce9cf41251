"""What vLLM's front end knows of a request when it comes, as a length predictor is told it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.hints import read_hints
from headway.predict.lengths.facts import RequestFacts, SharedPrefix

DECODED_TOKENS = 2048
"""Of a prompt that came as token ids, so many at most are turned into text: half from its start, half from its end."""


def facts_of(
    prompt: Any, params: Any, front_end: Any, prefixes: SharedPrefix, adapter: str = ""
) -> RequestFacts | None:
    """The facts of a prompt that vLLM's `front_end` has rendered; None where there is nothing to predict.

    That is pooling, raw or streamed input, a prompt of embeddings, a limit of one token. The limit is the one the
    engine's policies see: the declared one, if the client declared one. A prompt that came as token ids is decoded,
    and has no text where the server has no tokenizer. A request of no tenant has its LoRA adapter for one: that is
    another model, with lengths of its own.
    """
    if not isinstance(prompt, dict) or prompt.get("type", "embeds") == "embeds":
        return None
    return facts_of_ids(
        prompt.get("prompt_token_ids"),
        params,
        prefixes,
        max_model_len=front_end.model_config.max_model_len,
        tokenizer=front_end.renderer.tokenizer,
        text=prompt.get("prompt"),
        adapter=adapter,
    )


def facts_of_ids(
    ids: Sequence[int] | None,
    params: Any,
    prefixes: SharedPrefix,
    *,
    max_model_len: int,
    tokenizer: Any,
    text: str | None = None,
    adapter: str = "",
) -> RequestFacts | None:
    """The same facts of a prompt's token ids, and of its text if that is known."""
    from vllm.sampling_params import SamplingParams

    if not isinstance(params, SamplingParams) or not ids:
        return None
    hints = read_hints(params.extra_args)
    limit = hints.max_output_tokens or params.max_tokens or max_model_len - len(ids)
    if limit <= 1:
        return None
    text = text or _decoded(ids, tokenizer)
    tenant = hints.tenant or adapter
    return prefixes.facts(text, num_prompt_tokens=len(ids), max_output_tokens=limit, tenant=tenant)


def _decoded(ids: Sequence[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return ""
    if len(ids) > DECODED_TOKENS:
        half = DECODED_TOKENS // 2
        ids = [*ids[:half], *ids[-half:]]
    text: str = tokenizer.decode(ids)
    return text
