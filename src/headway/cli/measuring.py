"""What commands that measure the real engine do alike: a target checked first, a clean stdout, a bar on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.cli.writable import check_replaceable
from headway.errors import ConfigError

Tell = Callable[[float, str], None]


def check_target(out: Path, force: bool) -> None:
    """Raise ConfigError before anything starts if the file could not be written in the end."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory; accepted: a file")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists; accepted: a new file, or --force to replace it")
    for parent in out.absolute().parents:
        if parent.exists() and not parent.is_dir():
            raise ConfigError(f"--out {out}: {parent} is not a folder that can be written to")
    if out.is_file() or not out.exists():
        check_replaceable("--out", out)


@contextmanager
def stdout_for_data() -> Iterator[None]:
    """Send to stderr what vLLM and its workers print meanwhile, and have vLLM say no more than errors."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def progress() -> Iterator[Tell]:
    """What is told of the share done (0-1) and of what is going on: a bar on stderr, or a line each tenth to a log."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _tenths()
        return
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, what: bar.update(task, completed=share, description=what)


def _tenths() -> Tell:
    """Writes a line whenever another tenth is begun."""
    written = -1

    def tell(share: float, what: str) -> None:
        nonlocal written
        if int(share * 10) > written:
            written = int(share * 10)
            print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)

    return tell
