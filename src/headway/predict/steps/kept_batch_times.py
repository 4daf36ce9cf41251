"""Times of served batches, kept in a file beside the lengths of answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from headway.errors import ConfigError
from headway.predict.steps.batch_time import BatchRow, BatchTimeModel
from headway.whole_file import write_whole

SUFFIX = ".batches"
"""What the file is called beside that of the lengths."""
_MOST_ROWS = 3000
"""So many of the batches served last are kept; the model has room for as many again."""


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["headway-batch-times"] = "headway-batch-times"
    version: Literal[1] = 1
    rows: list[BatchRow]


def load_batch_times(path: Path) -> list[BatchRow]:
    """What a file keeps; nothing if it is not there. Raises ConfigError for a file that cannot be read."""
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
    """Write the rows, the last of them if they are many; the file appears by one rename. Raises OSError."""
    write_whole(path, msgspec.json.encode(_Kept(rows=rows[-_MOST_ROWS:])))


class BatchTimes:
    """How long batches take: a model that starts from what was `measured`, and learns whenever its period is over.

    Before that all batches are taken to last equally long: the one that came first goes first.
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
        """Start from these."""
        self._model = BatchTimeModel(rows)

    def predict(self, size: int, prompt_tokens: int, output_tokens: int) -> float:
        """Seconds, as the model says."""
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
