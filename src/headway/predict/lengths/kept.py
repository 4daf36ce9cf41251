"""Stores what a length predictor learned in a file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from headway.errors import ConfigError
from headway.predict.kept_file import KEEP_EVERY_S, FileKeeper
from headway.predict.lengths.applications import KEY_BYTES, LINE, Application
from headway.predict.lengths.features import FEATURES
from headway.predict.lengths.predictor import LengthLearner
from headway.predict.lengths.ridge import LastErrors
from headway.whole_file import write_whole

FORMAT = "headway-lengths"
VERSION: Final = 2
Arrays = Mapping[str, npt.NDArray[Any]]

_NUMBERS = ("lately", "text_gain", "variance", "text_power", "low_tail", "high_tail")
"""Numbers of each application; those that may be negative come first."""


class LengthHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a lengths file; `sha256` covers everything after the line, a NumPy archive."""

    format: Literal["headway-lengths"] = "headway-lengths"
    version: Literal[2] = VERSION
    sha256: str


def save_lengths(path: Path, learner: LengthLearner) -> None:
    """Save everything that `learner` knows; the file appears by one rename. Raises OSError.

    The file has only numbers, which cannot execute anything; tenants and instructions are digests. 0.6 MB, and 3.5 kB
    for each application.
    """
    archive = BytesIO()
    with learner.lock:
        arrays = _arrays(learner)
    np.savez(archive, allow_pickle=False, **arrays)
    body = archive.getvalue()
    header = LengthHeader(sha256=sha256(body).hexdigest())
    write_whole(path, msgspec.json.encode(header) + b"\n" + body)


def load_lengths(path: Path, learner: LengthLearner) -> None:
    """Load learned data into a fresh `learner`, which then predicts like the saved one.

    Raises ConfigError for a file that is missing, damaged, or of another version.
    """
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ConfigError(f"lengths file {path} cannot be read: {error.strerror or error}") from error
    if sha256(body).hexdigest() != _header(path, line).sha256:
        raise _damaged(path, "what it holds is not what was written")
    try:
        with np.load(BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        _check(arrays)
    except (ValueError, OSError) as error:
        raise _damaged(path, str(error)) from error
    _restore(arrays, learner)


def _header(path: Path, line: bytes) -> LengthHeader:
    try:
        raw = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"its first line is not JSON: {error}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ConfigError(f"{path} is not a lengths file")
    if raw.get("version") != VERSION:
        raise ConfigError(
            f"lengths file {path} has version {raw.get('version')!r}; accepted: {VERSION} "
            "(remove it, and lengths are learned anew)"
        )
    try:
        return msgspec.convert(raw, LengthHeader)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, what: str) -> ConfigError:
    return ConfigError(f"lengths file {path} is damaged ({what}); remove it, and lengths are learned anew")


def _arrays(learner: LengthLearner) -> Arrays:
    """Copies of the numbers; among the applications, all requests together come first."""
    known = learner.applications
    each = [known.all, *known.by_key.values()]
    keys = np.frombuffer(b"".join(known.by_key), np.uint8).reshape(-1, KEY_BYTES)
    return {
        "answers": np.array(float(learner.num_answers)),
        "text_weights": learner.text.weights.copy(),
        "text_covariance": learner.text.covariance.copy(),
        "keys": keys.copy(),
        "weights": np.array([one.line.weights for one in each]),
        "covariances": np.array([one.line.covariance for one in each]),
        "numbers": np.array([[getattr(one, name) for name in _NUMBERS] for one in each]),
        "counts": np.array([float(one.errors.count) for one in each]),
        "places": np.array([one.errors.places for one in each]),
        "errors": np.array([one.errors.errors for one in each]),
    }


def _check(arrays: Arrays) -> None:
    """Raise ValueError unless these are the numbers of a learner."""
    count = len(arrays.get("keys", ())) + 1
    shapes = {
        "answers": (),
        "text_weights": (FEATURES,),
        "text_covariance": (FEATURES, FEATURES),
        "keys": (count - 1, KEY_BYTES),
        "weights": (count, LINE),
        "covariances": (count, LINE, LINE),
        "numbers": (count, len(_NUMBERS)),
        "counts": (count,),
        "places": (count, LastErrors.SIZE),
        "errors": (count, LastErrors.SIZE),
    }
    if missing := shapes.keys() - arrays.keys():
        raise ValueError(f"no {', '.join(sorted(missing))}")
    for name, shape in shapes.items():
        found = arrays[name]
        kind = np.uint8 if name == "keys" else np.float64
        if found.shape != shape or found.dtype != kind or not np.isfinite(found).all():
            raise ValueError(f"{name} is not {shape} finite numbers")
    if len({key.tobytes() for key in arrays["keys"]}) < count - 1:
        raise ValueError("two keys are alike")
    if (arrays["numbers"][:, 2:] < 0).any() or (arrays["counts"] < 0).any():
        raise ValueError("a variance or a count is below 0")


def _restore(arrays: Arrays, learner: LengthLearner) -> None:
    learner.num_answers = int(arrays["answers"])
    learner.text.weights = arrays["text_weights"]
    learner.text.covariance = arrays["text_covariance"]
    known = learner.applications
    keys = [key.tobytes() for key in arrays["keys"]]
    known.by_key = {key: Application(known.all) for key in keys}
    for index, one in enumerate([known.all, *known.by_key.values()]):
        one.line.weights = arrays["weights"][index]
        one.line.covariance = arrays["covariances"][index]
        for name, value in zip(_NUMBERS, arrays["numbers"][index].tolist(), strict=True):
            setattr(one, name, value)
        one.errors.places, one.errors.errors = arrays["places"][index], arrays["errors"][index]
        one.errors.count = int(arrays["counts"][index])


class LengthKeeper(FileKeeper):
    """A thread that periodically saves `learner` if it has learned since."""

    def __init__(self, learner: LengthLearner, path: Path, *, period_s: float = KEEP_EVERY_S) -> None:
        super().__init__(lambda: learner.num_answers, lambda: save_lengths(path, learner), period_s=period_s)
