"""Fits a length predictor on a thread, and keeps what it learned in a file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from threading import Event, Thread
from typing import Final, Literal

import msgspec
import numpy as np

from headway.errors import ConfigError
from headway.predict.lengths.forest import Rows, Tokens
from headway.predict.lengths.predictor import ForestPredictor
from headway.whole_file import write_whole

FORMAT = "headway-lengths"
VERSION: Final = 1
_FEATURE, _TOKEN = np.dtype("<f4"), np.dtype("<f8")
_RATIOS = 2
"""Numbers of each answer that the interval keeps."""


class LengthHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a lengths file: what the numbers behind it are.

    `kind` names the features; `sha256` is of everything behind the line.
    """

    format: Literal["headway-lengths"] = "headway-lengths"
    version: Literal[1] = VERSION
    kind: str
    num_answers: int
    num_rows: int
    num_features: int
    num_ratios: int
    sha256: str


def save_lengths(path: Path, predictor: ForestPredictor) -> None:
    """Write the rows and the interval of `predictor`; the file appears by one rename. Raises OSError.

    One line of JSON, then little-endian numbers: features (rows, features) of 4 bytes, answers (rows,) and the
    interval's ratios (ratios, 2) of 8. Forests are not in it: they are fitted again from the rows, which is a matter
    of seconds, and numbers can neither run anything nor outlive a library's own format.
    """
    rows, tokens, ratios = predictor.snapshot()
    body = rows.astype(_FEATURE).tobytes() + tokens.astype(_TOKEN).tobytes() + ratios.astype(_TOKEN).tobytes()
    header = LengthHeader(
        kind=predictor.features.name,
        num_answers=predictor.num_answers,
        num_rows=len(tokens),
        num_features=predictor.features.num_features,
        num_ratios=len(ratios),
        sha256=sha256(body).hexdigest(),
    )
    write_whole(path, msgspec.json.encode(header) + b"\n" + body)


def load_lengths(path: Path, predictor: ForestPredictor) -> None:
    """Give an untaught `predictor` what was learned before, and fit it.

    Raises ConfigError for a file that is missing, damaged, of another version, or of other features.
    """
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"lengths file {path} cannot be read: {error.strerror or error}") from error
    header = _header(path, line)
    if header.kind != predictor.features.name:
        raise ConfigError(
            f"lengths file {path} was learned from {header.kind!r}; "
            f"this predictor uses {predictor.features.name!r}"
        )
    if sha256(body).hexdigest() != header.sha256:
        raise _damaged(path, "what it holds is not what was written")
    if header.num_features != predictor.features.num_features:
        raise _damaged(path, f"{header.num_features} features in place of {predictor.features.num_features}")
    rows, tokens, ratios = _arrays(path, header, body)
    predictor.restore(rows, tokens, ratios, header.num_answers)


def _header(path: Path, line: bytes) -> LengthHeader:
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"its first line is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a lengths file")
    if raw.get("version") != VERSION:
        raise ConfigError(f"lengths file {path} has version {raw.get('version')!r}; accepted: {VERSION}")
    try:
        return msgspec.convert(raw, LengthHeader)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error


def _arrays(path: Path, header: LengthHeader, body: bytes) -> tuple[Rows, Tokens, Tokens]:
    """Features, answers and ratios, as many as the header says, and possible ones."""
    counts = (header.num_rows * header.num_features, header.num_rows, header.num_ratios * _RATIOS)
    ends = np.cumsum([0, counts[0] * _FEATURE.itemsize, *(count * _TOKEN.itemsize for count in counts[1:])])
    if min(counts) < 0 or header.num_ratios < 1 or ends[-1] != len(body):
        raise _damaged(path, f"{len(body)} bytes of numbers in place of {ends[-1]}")
    rows = np.frombuffer(body[: ends[1]], _FEATURE).reshape(header.num_rows, header.num_features)
    tokens = np.frombuffer(body[ends[1] : ends[2]], _TOKEN)
    ratios = np.frombuffer(body[ends[2] :], _TOKEN).reshape(header.num_ratios, _RATIOS)
    # Features may be missing (not a number), but not without bound.
    if np.isinf(rows).any() or not (np.isfinite(ratios).all() and np.isfinite(tokens).all()):
        raise _damaged(path, "numbers without bound")
    if (tokens < 1).any():
        raise _damaged(path, "answers of less than a token")
    return rows.astype(np.float32), tokens.astype(np.float64), ratios.astype(np.float64)


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"lengths file {path} is damaged ({what}); remove it, and lengths are learned anew")


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
