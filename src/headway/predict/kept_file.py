"""Saves learned data periodically and at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread

_LOG = logging.getLogger(__name__)
KEEP_EVERY_S = 180.0


class FileKeeper:
    """A thread that calls `save` every `period_s` if `count` has changed since.

    Used as a context manager: leaving it saves once more. A failed save (OSError) is logged once, and learning
    continues.
    """

    def __init__(
        self, count: Callable[[], int], save: Callable[[], None], *, period_s: float = KEEP_EVERY_S
    ) -> None:
        self._count = count
        self._save_all = save
        self._period_s = period_s
        self._saved = 0
        self._has_failed = False
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="headway-keeper", daemon=True)

    def __enter__(self) -> FileKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread, once."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for a running save, then save what was learned since."""
        self._stopped.set()
        self._thread.join()
        self._save()

    def _run(self) -> None:
        while not self._stopped.wait(self._period_s):
            self._save()

    def _save(self) -> None:
        count = self._count()
        if count == self._saved:
            return
        try:
            self._save_all()
        except OSError:
            if not self._has_failed:
                self._has_failed = True
                _LOG.exception("what was learned could not be saved; predictions go on")
        else:
            self._saved = count
