"""The records of what an engine served, which cost no request if they cannot be written."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.core.record import Record
from headway.errors import RecordError
from headway.results.records import RecordWriter

logger = logging.getLogger(__name__)


class ServedRecords:
    """One engine's file of records. When the disk is full it ends, with one error in the log; serving goes on."""

    def __init__(self, path: Path) -> None:
        self._writer: RecordWriter | None = RecordWriter(path)

    def append(self, record: Record) -> bool:
        """Write one record, unless one before it could not be written; whether it was."""
        if self._writer is None:
            return False
        try:
            self._writer.append(record)
        except RecordError as error:
            logger.error("%s; no record is written from here on", error)
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(RecordError):  # what could not be written cannot be flushed either
                writer.close()


def records_of(scheduler: Any) -> ServedRecords | None:
    """Those that a scheduler's settings ask for. Of several data-parallel engines each has a file of its own.

    An engine of a dense model is told its index alone, not that there are others: there the first keeps the name.
    """
    if scheduler.settings.records is None:
        return None
    path, parallel = Path(scheduler.settings.records), scheduler.parallel_config
    index = parallel.data_parallel_index
    if parallel.data_parallel_size > 1 or index:
        path = path.with_stem(f"{path.stem}-dp{index}")
    return ServedRecords(path)
