"""Interrupts by a signal, told from exceptions of the same kinds that running code raises by itself."""

from __future__ import annotations

import dis
import signal
from functools import partial
from traceback import walk_tb
from types import CodeType

_RAISE = dis.opmap["RAISE_VARARGS"]


def raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this error, such as the operator's Ctrl-C, and not the code it interrupted.

    Python runs a handler between two instructions of the main thread. A handler written in Python is itself in the
    traceback. Python's own handler of Ctrl-C is not: its `KeyboardInterrupt` appears where no `raise` stands.
    """
    frames = [(frame.f_code, frame.f_lasti) for frame, _ in walk_tb(error.__traceback__)]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    if not {code for code, _ in frames}.isdisjoint(map(_code, handlers)):
        return True
    if not isinstance(error, KeyboardInterrupt) or signal.default_int_handler not in handlers:
        return False
    return bool(frames) and frames[-1][0].co_code[frames[-1][1]] != _RAISE


def _code(handler: object) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__code__", None)
