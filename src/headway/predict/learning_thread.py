"""Fits a length predictor beside the requests it answers, and keeps what it learned in a file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

from headway.predict.forest_predictor import ForestPredictor
from headway.predict.length_file import save_lengths

logger = logging.getLogger(__name__)


class LearningThread:
    """A thread that fits `predictor` whenever that is due, looking every `poll_s`, and saves it after each fit.

    A context manager: leaving it waits for a fit under way and saves once more. A fit or a save that fails is
    logged, once each, and the predictor goes on with the forest it has.
    """

    def __init__(
        self,
        predictor: ForestPredictor,
        *,
        save_to: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        poll_s: float = 1.0,
    ) -> None:
        self._predictor = predictor
        self._save_to = save_to
        self._clock = clock
        self._poll_s = poll_s
        self._stopped = Event()
        self._failed: set[str] = set()
        self._thread = Thread(target=self._run, name="headway-length-learning", daemon=True)

    def __enter__(self) -> LearningThread:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def stop(self) -> None:
        """Wait for a fit under way, and save what was learned since."""
        self._stopped.set()
        self._thread.join()
        self._save()

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_s):
            if self._predictor.due(self._clock()):
                self._attempt("fitted", lambda: self._predictor.refit(self._clock()))
                self._save()

    def _save(self) -> None:
        path = self._save_to
        if path is not None and self._predictor.num_answers:
            self._attempt("saved", lambda: save_lengths(path, self._predictor))

    def _attempt(self, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # whatever a library raises on some rows, requests go on
            if what not in self._failed:
                self._failed.add(what)
                logger.exception("the length predictor could not be %s; it goes on with what it has", what)
