"""`headway replay`: a trace against any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.replay_batches import (
    Batches,
    BatchFlags,
    BatchSize,
    KvTokens,
    LengthModel,
    Predictor,
    SafetyFactor,
    WmaLimit,
    batch_remark,
)
from headway.cli.target_flags import SloTbt, SloTtft
from headway.cli.trace_flags import TimeUnit, Trace
from headway.cli.writable import check_file, check_replaceable
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.core.record import Record
    from headway.loadgen import BatchPlan, ReplayOptions, ReplayReport
    from headway.traces import TraceRequest

EPILOG = """Examples:

  headway replay --url http://127.0.0.1:8000 --out records.jsonl \\
      --trace gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=200

  headway replay --url http://127.0.0.1:8000 --out records.jsonl \\
      --trace azure.csv --rate-scale 0.5 --limit 1000 --skip-too-long

  headway replay --url https://api.example.com --plain --out records.jsonl \\
      --trace mine.csv

  headway replay --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 \\
      --batches magnus --predictor hash --out records.jsonl --trace mine.jsonl

Requests are sent at their own times, whatever became of earlier ones. Prompts that the trace does not have
are made up to its lengths, and every answer is forced to the trace's length. Goodput is of requests with targets:
those of the trace, or --slo-ttft and --slo-tbt, which are also sent (not with --plain). Ctrl-C keeps what there is.
"""

EXIT_ALL_FAILED = 1


def replay(
    url: Annotated[
        list[str], typer.Option(metavar="URL", help="Base URL of the server; repeatable with --batches.")
    ],
    trace: Trace,
    out: Annotated[Path, typer.Option(metavar="RECORDS", help="Write one JSON line per request here.")],
    rate_scale: Annotated[
        float, typer.Option(metavar="X", help="Requests arrive this many times as fast.")
    ] = 1.0,
    time_unit: TimeUnit = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N requests of the trace.")
    ] = None,
    slo_ttft: SloTtft = None,
    slo_tbt: SloTbt = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to ask for; default: the first that is served.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the made-up prompts.")] = 0,
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draw made-up prompts from N token ids, not from ids 256 to 999."),
    ] = None,
    token_times: Annotated[
        bool, typer.Option("--token-times", help="Record the time of each token.")
    ] = False,
    skip_too_long: Annotated[
        bool, typer.Option("--skip-too-long", help="Count requests beyond the model's context as failed.")
    ] = False,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Send only what OpenAI's API defines: no forced lengths, no targets."),
    ] = False,
    own_stops: Annotated[
        bool,
        typer.Option(
            "--own-stops", help="Let the model end its answers; the trace's lengths are not forced."
        ),
    ] = False,
    batches: Batches = None,
    predictor: Predictor = None,
    length_model: LengthModel = None,
    kv_tokens: KvTokens = None,
    batch_size: BatchSize = None,
    wma_limit: WmaLimit = None,
    safety_factor: SafetyFactor = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Give a request up after so many seconds; inf: never.")
    ] = 3600.0,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", show_envvar=True, help="Sent as bearer token.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"replay": {summary}} on stdout.')] = False,
) -> None:
    """Send a trace to an OpenAI-compatible server and record what happened to each request.

    With --batches, to one or several servers in whole batches from one queue: a server gets its next batch
    when the last has ended.
    """
    from headway.core.slo import Slo
    from headway.lab.stream import Stream
    from headway.loadgen import ReplayOptions
    from headway.results import RecordWriter
    from headway.traces import scale_rate

    stream = Stream(trace, limit, Slo(ttft_s=slo_ttft, tbt_s=slo_tbt), time_unit)
    requests = scale_rate(stream.requests(), rate_scale)
    flags = BatchFlags(
        batches=batches,
        predictor=predictor,
        length_model=length_model,
        kv_tokens=kv_tokens,
        batch_size=batch_size,
        wma_limit=wma_limit,
        safety_factor=safety_factor,
    )
    options = ReplayOptions(
        url=url[0],
        model=model,
        seed=seed,
        vocab_size=vocab_size,
        token_times=token_times,
        skip_too_long=skip_too_long,
        plain=plain,
        own_stops=own_stops,
        api_key=api_key,
        timeout_s=timeout,
    )
    flags.check(url)
    _check_output(out, trace, length_model)
    with ExitStack() as files:
        plan = files.enter_context(flags.plan(url))

        @cache
        def writer() -> RecordWriter:
            return files.enter_context(RecordWriter(out))

        report = send_with_progress(requests, options, lambda record: writer().append(record), plan)
    _tell(report, as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if all(record.outcome == "failed" for record in report.records):
        raise typer.Exit(EXIT_ALL_FAILED)


def _check_output(out: Path, trace: str, length_model: Path | None) -> None:
    """Raise ConfigError if what is to be written cannot be, or would be written over the trace."""
    if os.path.exists(out) and os.path.exists(trace) and os.path.samefile(out, trace):
        raise ConfigError(f"--out {out} is the trace itself; accepted: another file")
    check_file("--out", out)
    if length_model is not None:
        check_replaceable("--length-model", length_model)


def send_with_progress(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    on_record: Callable[[Record], None],
    plan: BatchPlan | None = None,
) -> ReplayReport:
    """Replay under a progress bar, in batches if there is a plan for them.

    Ctrl-C ends it with what there is, a second one at once.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from headway.loadgen import replay as replay_requests
    from headway.loadgen import replay_batches

    console = Console(stderr=True)
    columns = (
        *(TextColumn("ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()),
        *(TextColumn("left"), TimeRemainingColumn()),
    )

    async def run() -> ReplayReport:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            bar = progress.add_task("", total=len(requests))

            def on_end(record: Record) -> None:
                on_record(record)
                progress.advance(bar)

            if plan is not None:
                return await replay_batches(requests, options, plan, on_record=on_end, stop=stop)
            return await replay_requests(requests, options, on_record=on_end, stop=stop)

    return asyncio.run(run())


def _tell(report: ReplayReport, as_json: bool) -> None:
    """The table and what to know beside it on stderr, the summary on stdout if asked for."""
    from rich.console import Console

    from headway.results import compare, summarize, terminal_table, to_json

    console = Console(stderr=True)
    if report.records:
        summary = summarize(report.records)
        console.print(terminal_table(compare({"replay": summary}, {"replay": report.records})))
        if as_json:
            typer.echo(to_json({"replay": summary}))
    for line in remarks(report):
        console.print(line, markup=False, highlight=False)


def remarks(report: ReplayReport) -> list[str]:
    """How good the measurement is: the client's lateness, and what went wrong with which requests."""
    lines = []
    if report.lateness_s:
        late_ms = sorted(1000 * max(0.0, late_s) for late_s in report.lateness_s)
        typical_ms, worst_ms = late_ms[len(late_ms) // 2], late_ms[-1]
        lines.append(f"requests were sent {typical_ms:.1f} ms late (median; at most {worst_ms:.1f} ms)")
    reasons = Counter(record.error for record in report.records if record.error is not None)
    lines += [
        f"{count} of {len(report.records)} requests: {reason}" for reason, count in reasons.most_common(5)
    ]
    if report.batches is not None:
        lines.append(batch_remark(report.batches))
    if report.interrupted:
        lines.append(f"interrupted: {len(report.records)} requests recorded")
    return lines
