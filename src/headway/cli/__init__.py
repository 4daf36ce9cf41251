"""The `headway` command: one file per subcommand, imported only when that subcommand runs."""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from headway.cli.options import command_of, flag_of
from headway.errors import VLLM_COMES_BY, HeadwayError

COMMANDS = {
    "serve": "Serve a model with vLLM under a Headway policy.",
    "replay": "Send a trace to an OpenAI-compatible server and record what happened to each request.",
    "bench": "Compare policies on a real engine, one after another, on the same trace.",
    "record": "Make a trace of a server's log, in which prefixes survive and texts do not.",
    "simulate": "Compare policies on a virtual clock, over loads and seeds; explain one request's story.",
    "plan": "Choose policy, pools, sizes and GPUs for a trace and targets; print the command that deploys them.",
    "explain": "Why one request of a running server took as long as it did.",
    "shadow": "What another policy would have made of a running server's requests.",
    "profile": "Measure what a model costs on this machine and write a cost file.",
    "reproduce": "Repeat a paper's experiments and set its numbers beside ours.",
    "report": "Compare runs on disk: a table, JSON, one HTML page.",
    "top": "Watch a running gateway or server in the terminal.",
    "doctor": "Say what is installed, what works with this vLLM, and how to mend the rest.",
    "policies": "Show the preset table: what each policy is made of.",
}
"""Subcommand -> its summary in `headway --help`. Each is the function of that name in the module of that name."""

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

COME_BY = {
    "vllm": VLLM_COMES_BY,
    **dict.fromkeys(
        ("aiohttp", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
        "`headway doctor` names the packages",
    ),
}
"""Module that may be missing -> what installs it."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers for a write that found no space: a full disk, a quota, a file size limit, or a broken disk."""

EPILOG = """Try it without a download or a GPU:

  headway serve demo --port 8000

  headway replay --url http://127.0.0.1:8000 --out records.jsonl \\
      --trace gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=200

`headway COMMAND --help` has more examples. stdout is data, stderr is for people.
"""


class AsWritten:
    """Prints the epilog of `--help` as written. Rich would break and pad its examples, which are there to be copied."""

    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Let Rich print everything but the epilog, then add the epilog."""
        epilog, self.epilog = self.epilog, None
        super().format_help(ctx, formatter)  # type: ignore[misc]
        self.epilog = epilog
        if epilog:
            formatter.write(epilog)


class Command(AsWritten, TyperCommand):
    """A subcommand. An error about a setting names the flag that set it, and one about a flag where vLLM's go."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments. An unknown flag may be vLLM's, of which this parser knows none."""
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:  # Typer's classes of errors are Click's or its own copies, by version
            if type(error).__name__ == "NoSuchOption" and any(
                each.name == "vllm_flags" for each in self.params
            ):
                error.message += "; a flag of vLLM goes after `--`"  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. A setting that came from a file keeps its own name in an error."""
        try:
            return super().invoke(ctx)
        except HeadwayError as error:
            if flag := flag_of(ctx, error.setting):
                error.args, error.setting = (error.told_of(flag),), flag
            raise


class LazyGroup(AsWritten, TyperGroup):
    """Lists the subcommands without importing them, so that `--help` is quick and one cannot break another."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the subcommands that are installed, in the order of COMMANDS."""
        return [name for name in COMMANDS if find_spec(f"{__name__}.{name}") is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The subcommand: its name and summary until `resolve_command` has imported it."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return self.commands.get(cmd_name) or TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the subcommand that is about to run."""
        for name in self.list_commands(ctx):
            self.commands[name] = _load(name) if args[:1] == [name] else self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module = import_module(f"{__name__}.{name}")
    single = typer.Typer(add_completion=False)
    single.command(name, cls=Command, epilog=getattr(module, "EPILOG", None))(
        command_of(getattr(module, name))
    )
    return typer.main.get_command(single)


app = typer.Typer(
    cls=LazyGroup,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from headway.engine.machine import UNKNOWN, vllm_version

        engine = vllm_version()
        typer.echo(f"headway {version('headway')}, {'no vLLM' if engine == UNKNOWN else f'vLLM {engine}'}")
        raise typer.Exit


@app.callback()
def headway(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keeps LLM serving on schedule: latency-aware scheduling for vLLM, measured on the real engine."""


def main() -> None:
    """Run the command line.

    Deliberate errors, a full disk, and arguments that are not valid text become one line on stderr and exit code 2.
    """
    try:
        app(prog_name="headway")
    except HeadwayError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name not in COME_BY:
            raise
        _fail(missing(error.name))
    except UnicodeEncodeError:
        garbled = next((word for word in sys.argv if not _is_text(word)), None)
        if garbled is None:
            raise
        _fail(f"{garbled!r} on the command line is not UTF-8, and cannot be written down; use a name that is")
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _drop_stdout()
        _fail(f"output cannot be written ({error.strerror}); make room, or write elsewhere")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def _is_text(word: str) -> bool:
    """Whether `word` is valid text. Python represents undecodable bytes as lone surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def missing(module: str) -> str:
    """The error message for a module that is not installed."""
    return f"{module} is not installed; {COME_BY[module]}"


def _fail(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    sys.exit(EXIT_ERROR)


def _drop_stdout() -> None:
    """Discard what stdout still buffers: Python would flush it again at exit and print an error of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
