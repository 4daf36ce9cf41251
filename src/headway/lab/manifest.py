"""What a folder of runs is about: the same command goes on with it, any other is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from headway.errors import ConfigError
from headway.json_file import write_json

Manifest = Mapping[str, object]
"""All that decides the results, as plain data."""


def open_folder(path: Path, wanted: Manifest, kind: str) -> None:
    """Make the folder of a manifest, the file `path`, or go on with it.

    Raises ConfigError if it holds anything but the very same `kind` of experiment, or cannot be written.
    """
    folder = path.parent
    try:
        if path.exists():
            _check_same(path, wanted, kind)
        elif folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty; accepted: a new folder, or one to go on with")
        write_json(path, wanted)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from error


def _check_same(path: Path, wanted: Manifest, kind: str) -> None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give another folder") from error
    plain = msgspec.json.decode(msgspec.json.encode(wanted), type=dict[str, object])
    differing = sorted(key for key in found.keys() | plain.keys() if found.get(key) != plain.get(key))
    if differing:
        shown = "; ".join(f"{key} was {found.get(key)}, now {plain.get(key)}" for key in differing[:3])
        raise ConfigError(f"{path.parent} holds another {kind} ({shown}); give another folder")
