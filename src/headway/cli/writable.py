"""Files that a command will write to, tried before it starts what takes long."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.settings import EngineSettings


def check_engine_files(settings: EngineSettings) -> None:
    """Raise ConfigError if what a server is to write under these settings cannot be written."""
    if settings.records is not None:
        check_file("--records", Path(settings.records))
    if settings.length_model is not None:
        check_replaceable("--length-model", Path(settings.length_model))


def check_file(flag: str, path: Path) -> None:
    """Raise ConfigError if the file that `flag` names cannot be opened to write; it stays as it is, or away.

    Folders on the way are made. Devices and pipes are not opened: that may wait for a reader.
    """
    with _refused(flag, path):
        _check_is_no_folder(path)
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            _check_folder(path)


def check_replaceable(flag: str, path: Path) -> None:
    """Raise ConfigError if the file that `flag` names cannot be replaced by a new one; it stays as it is, or away.

    Devices and pipes are not replaced but written to, and are not tried.
    """
    with _refused(flag, path):
        _check_is_no_folder(path)
        if path.is_file() or not path.exists():
            _check_folder(path)


@contextmanager
def _refused(flag: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{flag} {path} cannot be written ({error.strerror}); accepted: a file in a folder of yours"
        ) from None


def _check_is_no_folder(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def _check_folder(path: Path) -> None:
    """Raise OSError if no file can be made beside `path`, or beside what it links to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()
