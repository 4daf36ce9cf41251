"""Where a command writes its output: folders, files, stdout, progress."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.engine.settings import EngineSettings


@contextmanager
def kept_or_temporary(out: Path | None) -> Iterator[Path]:
    """Yield the folder that the user named, or a temporary one that is deleted afterwards, on SIGTERM too."""
    with _terminated_in_order():
        if out is not None:
            yield out
            return
        with TemporaryDirectory(prefix="headway-") as folder:
            yield Path(folder)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Turn SIGTERM into an orderly exit with the shell's usual code while the block runs; a second one ends at once."""

    def end(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Tell = Callable[[float, str], None]


def check_target(out: Path, force: bool) -> None:
    """Raise ConfigError, before work starts, if the output file could not be written."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a directory; accepted: a file")
    if out.exists() and not force:
        raise ConfigError(f"--out {out} exists; name a new file, or add --force to replace it")
    for parent in out.absolute().parents:
        if parent.exists() and not parent.is_dir():
            raise ConfigError(f"--out {out}: {parent} is not a folder that can be written to")
    if out.is_file() or not out.exists():
        check_replaceable("--out", out)


@contextmanager
def stdout_for_data() -> Iterator[None]:
    """Redirect what vLLM and its workers print to stderr, and limit vLLM's log to errors."""
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
    """Yield a function that shows progress: the share done (0-1) and the current activity.

    A terminal gets a bar on stderr, a log gets a line for each tenth.
    """
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
    """Return a function that writes a line whenever another tenth begins."""
    written = -1

    def tell(share: float, what: str) -> None:
        nonlocal written
        if int(share * 10) > written:
            written = int(share * 10)
            print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)

    return tell


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts finished items: a bar with the time left, or a line for each tenth in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _counted_tenths(what, total)
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, advance=done)


_LINE_EVERY_S = 2.0


def _counted_tenths(
    what: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Callable[[int], None]:
    """Return a function that writes a line for each tenth, at most one every two seconds."""
    done, told = 0, 0
    begun_s = told_s = clock()

    def tick(more: int) -> None:
        nonlocal done, told, told_s
        done += more
        now_s = clock()
        if done * 10 // total > told and now_s - told_s >= _LINE_EVERY_S:
            told, told_s = done * 10 // total, now_s
            left_s = (now_s - begun_s) / done * (total - done)
            line = f"{what}: {done:,} of {total:,}, about {left_s:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    return tick


def show(what: object) -> None:
    """Print a table, or anything that Rich can draw, on stderr."""
    from rich.console import Console

    Console(stderr=True).print(what)


def check_engine_files(settings: EngineSettings) -> None:
    """Raise ConfigError if a server with these settings could not write its files."""
    if settings.records is not None:
        check_file("--records", Path(settings.records))
    if settings.length_model is not None:
        check_replaceable("--length-model", Path(settings.length_model))


def check_file(flag: str, path: Path) -> None:
    """Raise ConfigError if the file that `flag` names cannot be opened for writing. The file is left unchanged.

    Creates missing folders. Devices and pipes are not opened, since that may block until there is a reader.
    """
    with _refused(flag, path):
        _check_is_no_folder(path)
        if path.is_file():
            path.open("ab").close()
        elif not path.exists():
            _check_folder(path)


def check_replaceable(flag: str, path: Path) -> None:
    """Raise ConfigError if the file that `flag` names cannot be replaced by a new one. The file is left unchanged.

    Devices and pipes are written to, not replaced, so they are not checked.
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
    """Raise OSError if no file can be created beside `path`, or beside the target of a link."""
    path.parent.mkdir(parents=True, exist_ok=True)
    TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()


_SECRETS = ("--api-key", "--hf-token")
"""Flags of vLLM whose values are secrets."""
_HIDDEN = "***"


def written_command(arguments: Sequence[str], *, without: Collection[str] = ()) -> str:
    """Rebuild the command line of these arguments (`sys.argv`) for a shell.

    Flags in `without` are left out with their values. Flags that hold secrets keep only their name.
    """
    kept, flag, is_left_out = ["headway"], "", False
    for word in arguments[1:]:
        if word.startswith("--"):
            flag, has_value, _ = word.partition("=")
            flag = flag.replace("_", "-")  # vLLM accepts both spellings
            is_left_out = flag in without and not has_value
            if flag not in without:
                kept.append(f"{flag}={_HIDDEN}" if has_value and flag in _SECRETS else word)
        elif is_left_out:
            is_left_out = False
        else:
            kept.append(_HIDDEN if flag in _SECRETS else word)
    return shlex.join(kept)


def targets(ttft_s: float | None, tbt_s: float | None) -> str:
    """Describe the default targets, for requests that name none."""
    both = {"first token within": ttft_s, "time between tokens": tbt_s}
    named = [f"{what} {value_s:g} s" for what, value_s in both.items() if value_s is not None]
    return f"targets: {', '.join(named)}" if named else "no latency targets"


def base_url(address: tuple[str, int], *, tls: bool = False) -> str:
    """The base URL at which clients reach a server on this address."""
    host, port = address
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def three_lines(model: str, policy: str, look: str) -> str:
    """The three lines with which every server starts: model and engine, policy, where to look."""
    named = {"model": model, "policy": policy, "look": look}
    return "\n".join(f"headway: {name:6} {says}" for name, says in named.items())


def engine_here(chosen: Sequence[str]) -> str:
    """Describe the engine of servers launched here, and the flags chosen for it."""
    from headway.engine.machine import is_cpu_build, processors, vllm_version
    from headway.engine.servers.instances_command import usable_gpus

    gpus = None if is_cpu_build() else usable_gpus()
    devices = processors() if is_cpu_build() else "its GPUs" if gpus is None else f"GPU {', '.join(gpus)}"
    flags = f"; chosen here: {', '.join(chosen)}" if chosen else ""
    return f"vLLM {vllm_version()} on {devices}{flags}"
