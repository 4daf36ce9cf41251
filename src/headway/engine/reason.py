"""Why Headway cannot work here, left by any process of a server and said by the one that a user sees end."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headway.errors import HeadwayError

REASON_FILE = "HEADWAY_REASON_FILE"
"""Names the file, to all processes of one server, in which the reason is left."""


def hear_reason() -> None:
    """Have this process end with the reason that any process of its server leaves, if one does."""
    handle, name = tempfile.mkstemp(prefix="headway-reason-")
    os.close(handle)
    os.environ[REASON_FILE] = name
    # Python prints the traceback of what ends a process before it calls this.
    atexit.register(_say, Path(name))


def _say(file: Path) -> None:
    reason = ""
    with suppress(OSError):  # machines tidy such files away
        reason = file.read_text()
        file.unlink()
    if reason:
        print(f"error: {reason}", file=sys.stderr, flush=True)


@contextmanager
def reason_left() -> Iterator[None]:
    """Leave the reason if Headway cannot work: vLLM's processes only tell one another that they failed."""
    try:
        yield
    except HeadwayError as error:
        name = os.environ.get(REASON_FILE)
        if name is not None:
            with suppress(OSError):
                Path(name).write_text(str(error))
        raise
