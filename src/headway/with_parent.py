"""A process that does not outlive the one that started it."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Looked up beforehand: between fork and exec nothing should be loaded."""


def signal_with_parent(signum: int) -> None:
    """Ask the kernel to send this process a signal when its parent ends, however that ends; Linux only, else nothing.

    The parent is the thread that started it, so that is to be one that stays. Called by a process for itself, or as a
    `preexec_fn`, and then kept over the exec.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)
