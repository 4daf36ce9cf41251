"""Stores the times of served batches in a file beside the answer lengths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from headway.errors import ConfigError
from headway.predict.steps.batch_time import BatchRow, BatchTimeModel
from headway.whole_file import write_whole

SUFFIX = ".batches"
"""Suffix of the file, after the name of the lengths file."""
_MOST_ROWS = 3000
"""Most served batches in the file; the model has room for as many again."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["headway-batch-times"] = "headway-batch-times"
    version: Literal[1] = 1
    rows: list[BatchRow]


def load_batch_times(path: Path) -> list[BatchRow]:
    """The stored rows; empty without a file. Raises ConfigError for an unreadable file."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=_Kept).rows
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"batch times {path} cannot be read ({error}); remove it, and they are measured anew"
        ) from None
    if any(min(row) <= 0 for row in rows):
        raise ConfigError(
            f"batch times {path} hold a row with a number below 1; remove it, and they are measured anew"
        )
    return rows


def save_batch_times(path: Path, rows: list[BatchRow]) -> None:
    """Write the rows, or the last of them if there are many; the file appears by one rename. Raises OSError."""
    write_whole(path, msgspec.json.encode(_Kept(rows=rows[-_MOST_ROWS:])))


class BatchTimes:
    """Predicts batch times with a model that starts from `measured` rows and learns each time its period is over.

    Before that all batches are assumed to last equally long, so the first to come goes first.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._model: BatchTimeModel | None = None
        self._began_s = clock()
        self.num_served = 0

    @property
    def is_known(self) -> bool:
        """Whether there are rows to start from."""
        return self._model is not None

    @property
    def rows(self) -> list[BatchRow]:
        """All rows, those served last at the end."""
        return [] if self._model is None else self._model.rows

    def measured(self, rows: list[BatchRow]) -> None:
        """Start from these rows."""
        self._model = BatchTimeModel(rows)

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Predicted seconds."""
        return 1.0 if self._model is None else self._model.predict(size, prompt_tokens, output_tokens)

    def observe(self, size: int, prompt_tokens: int, output_tokens: int, seconds: float) -> None:
        """A batch was served."""
        if self._model is None:
            return
        self.num_served += 1
        self._model.observe(size, prompt_tokens, output_tokens, seconds)
        now_s = self._clock() - self._began_s
        if self._model.due(now_s):
            self._model.refit(now_s)
