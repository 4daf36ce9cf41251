"""The length predictor of a process, and the facts about a request that it receives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headway.core.hints import read_hints
from headway.engine.lengths.forecasts import Forecasts, LengthMetrics
from headway.engine.settings import EngineSettings
from headway.errors import ConfigError
from headway.predict.lengths.choice import length_predictor
from headway.predict.lengths.facts import RequestFacts, SharedPrefix
from headway.predict.lengths.kept import LengthKeeper, load_lengths
from headway.predict.lengths.predictor import LengthLearner

logger = logging.getLogger(__name__)

DECODED_TOKENS = 2048
"""At most this many tokens of a prompt given as token ids are decoded to text: half from its start, half from its
end.
"""


def facts_of(
    prompt: Any, params: Any, front_end: Any, prefixes: SharedPrefix, adapter: str = ""
) -> RequestFacts | None:
    """The facts of a prompt that vLLM's `front_end` has rendered; None if there is no length to predict.

    There is none for pooling, raw or streamed input, prompt embeddings, and a limit of one token. The limit is the one
    that the engine's policies see: the client's declared limit, if there is one. A prompt of token ids is decoded; it
    has no text if the server has no tokenizer. Without a tenant the LoRA adapter takes its place: an adapter is another
    model, with other lengths.
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
    """The facts that a predictor receives about a request, from the prompt's token ids, and its text if known."""
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


def made_predictor(spec: str, model_file: Path | None) -> LengthLearner:
    """Make the predictor that `--predictor` names, and load `--length-model` if the file exists.

    Raises ConfigError for an unknown predictor, a damaged file, or a file that could not be written.
    """
    predictor = length_predictor(spec)
    if model_file is not None:
        if not model_file.parent.is_dir():
            raise ConfigError(
                f"length model {model_file} has no folder to be in; accepted: a file in one that exists"
            )
        if model_file.exists():
            load_lengths(model_file, predictor)
    return predictor


class LengthService:
    """The forecasts of one process, the prefix index that tells instructions from input, and the thread that saves.

    Several API servers learn separately, each from the answers that it sends. The first one's model is saved.
    """

    def __init__(self, predictor: LengthLearner, *, api_server: int, save_to: Path | None) -> None:
        self.prefixes = SharedPrefix()
        self.forecasts = Forecasts(predictor, LengthMetrics(api_server))
        self._keeper = None if save_to is None else LengthKeeper(predictor, save_to)
        if self._keeper is not None:
            self._keeper.start()
        self._closed = False

    def close(self) -> None:
        """Stop predicting, and save. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.forecasts.close()
        if self._keeper is not None:
            self._keeper.stop()


def open_service(vllm_config: Any, number: int, learner: str = "API server") -> LengthService | None:
    """Open what the settings ask for; None if they ask for nothing. Raises ConfigError as `made_predictor` does.

    `number` distinguishes processes that learn; `learner` names them in messages.
    """
    settings = EngineSettings.from_additional_config(vllm_config.additional_config)
    spec = settings.length_predictor()
    if spec is None:
        return None
    model_file = None if settings.length_model is None else Path(settings.length_model)
    predictor = made_predictor(spec, model_file)
    if number and model_file is not None:
        logger.warning(
            "%s %d learns lengths for itself; %s keeps those of the first one", learner, number, model_file
        )
    return LengthService(predictor, api_server=number, save_to=None if number else model_file)
