"""Processes that do not outlive their parent."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded in advance: nothing should be loaded between fork and exec."""


def signal_with_parent(signum: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends. Linux only; elsewhere does nothing.

    The parent is the thread that started the process, so that thread must stay alive. To be called by the process
    itself, or as a `preexec_fn`; the setting survives the exec.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
