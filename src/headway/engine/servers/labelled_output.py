"""The output of one of several servers: passed on line by line under its name, its errors remembered."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from contextlib import suppress
from typing import IO

_PREFIX = re.compile(r"^\(\w+ pid=\d+\) ")
"""What vLLM puts in front of the lines of each of its processes."""

_ERROR = re.compile(
    r"^(?:(?:vllm[\w ]*: )?error: |Value error, |(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): )"
)
"""Last lines: Headway's own (`last_words`), of vLLM's flags, of pydantic's values, or of any traceback."""

_LONGEST_LINE_BYTES = 64 << 10
_LONGEST_REASON = 300
_CATCH_UP_S = 1.0


class LabelledOutput:
    """Reads what a server writes to `pipe` and passes it on, `[label] ` in front of each line, in a thread of its own.

    A line of more than 64 KiB is passed on in pieces. Where nobody reads what is passed on, it is dropped, so that the
    server never waits for a reader.
    """

    def __init__(self, label: str, output: int | IO[bytes]) -> None:
        self._label = f"[{label}] ".encode()
        # A copy, as the caller may close its own when the server was started.
        self._out = _copy(output if isinstance(output, int) else output.fileno())
        self._error = ""
        self._lock = threading.Lock()
        self._source, self.pipe = os.pipe()
        self._thread = threading.Thread(target=self._read, name=f"output of {label}", daemon=True)

    def start(self) -> None:
        """Begin, now that the server has its end of the pipe."""
        os.close(self.pipe)
        self._thread.start()

    def abandon(self) -> None:
        """Close everything again: there is no server."""
        for each in (self._source, self.pipe, self._out):
            os.close(each)

    def last_words(self) -> str:
        """The last line that told of an error, as it was written but for vLLM's prefix; empty if none did.

        Waits a moment for what a server that has ended wrote last.
        """
        self._thread.join(_CATCH_UP_S)
        with self._lock:
            return self._error

    def _read(self) -> None:
        with open(self._source, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE_BYTES):
                self._remember(line)
                with suppress(OSError):
                    os.write(self._out, self._label + line.rstrip(b"\r\n") + b"\n")
        os.close(self._out)

    def _remember(self, line: bytes) -> None:
        if error := error_told(line):
            with self._lock:
                self._error = error


def error_told(line: bytes) -> str:
    """The error that a line of a server's output tells of, without vLLM's prefix; empty if it tells of none."""
    text = _PREFIX.sub("", line.decode(errors="replace").strip())
    return text.removeprefix("error: ")[:_LONGEST_REASON] if _ERROR.match(text) else ""


def _copy(output: int) -> int:
    return os.open(os.devnull, os.O_WRONLY) if output == subprocess.DEVNULL else os.dup(output)
