"""Passes on why Headway cannot work: any process of a server leaves the reason, the one that the user sees shows it."""

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
"""Environment variable with the path of the file for the reason, shared by all processes of one server."""


def hear_reason() -> None:
    """When this process fails, end with the reason that any process of its server left, if there is one."""
    handle, name = tempfile.mkstemp(prefix="headway-reason-")
    os.close(handle)
    os.environ[REASON_FILE] = name
    # Python prints the fatal traceback before it calls this.
    atexit.register(_say, Path(name))


def _say(file: Path) -> None:
    reason = ""
    with suppress(OSError):  # machines clean up temporary files
        reason = file.read_text()
        file.unlink()
    if reason:
        print(f"error: {reason}", file=sys.stderr, flush=True)


@contextmanager
def reason_left() -> Iterator[None]:
    """Leave the reason for a failure of Headway. vLLM's processes tell one another only that they failed."""
    try:
        yield
    except HeadwayError as error:
        name = os.environ.get(REASON_FILE)
        if name is not None:
            with suppress(OSError):
                Path(name).write_text(str(error))
        raise
