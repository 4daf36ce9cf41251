"""`headway record`: a trace made from a server's log, without the texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import Strict, TimeUnit
from headway.setting import Setting, Shown

EPILOG = """Examples:

  headway record access.jsonl --out trace.csv.gz       # requests with a time and OpenAI's `usage`, any server's

  headway record served.jsonl --out trace.csv          # what `headway serve --records` wrote

  headway record vllm.log --out trace.jsonl            # a vLLM log with token ids, as lines in Mooncake's format

LOG is any file that `--trace` reads elsewhere. No text, id or name of the log is in the trace: of each prompt it has
the numbers of its blocks of 512 tokens, which are the same in two requests as far as they begin alike.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFlags:
    """Which log to read, and which trace to write."""

    log: Annotated[str, Setting("Access log, records or any trace.", "LOG", shown=Shown(argument=True))]
    out: Annotated[
        Path,
        Setting("The trace: CSV, or lines in Mooncake's format if named .jsonl; .gz packs it.", "FILE"),
    ]
    time_unit: TimeUnit = None
    strict: Strict = False
    limit: Annotated[int | None, Setting("Only the first N requests of the log.", "N")] = None
    force: Annotated[bool, Setting("Replace the file.")] = False


def record(flags: RecordFlags) -> None:
    """Make a trace from a server's log. Shared prefixes are kept; texts are not."""
    from headway.cli.output import check_target
    from headway.traces.reader import read_with_texts
    from headway.traces.recording import recorded, shared_share
    from headway.traces.writer import write_mooncake, write_trace

    check_target(flags.out, flags.force)
    read = read_with_texts(flags.log, limit=flags.limit, time_unit=flags.time_unit, strict=flags.strict)
    requests = recorded(read)
    is_mooncake = ".jsonl" in flags.out.suffixes
    (write_mooncake if is_mooncake else write_trace)(requests, flags.out)
    told = "the log tells no prompts, so requests share nothing"
    if any(request.prefix_blocks for request in requests):
        told = f"{shared_share(requests):.0%} of prompt tokens are in blocks that came before"
    typer.echo(f"{flags.out}: {len(requests):,} requests; {told}", err=True)
