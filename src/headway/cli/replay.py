"""`headway replay`: send a trace to any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.batch_flags import BatchFlags, CentralFlags
from headway.cli.options import (
    ApiKey,
    ClosedLoop,
    OptionGroup,
    SloTbt,
    SloTtft,
    Strict,
    TimeUnit,
    TraceSource,
)
from headway.cli.output import check_file, check_replaceable, counting
from headway.errors import ConfigError
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.core.record import Record
    from headway.gateway.request.central_queue import CentralBatching
    from headway.loadgen import ReplayOptions, ReplayReport
    from headway.routing.batch_service import BatchCounts
    from headway.traces import TraceRequest


EPILOG = """Examples:

  headway replay --url http://127.0.0.1:8000 --out records.jsonl \\
      --trace gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=200

  headway replay --url http://127.0.0.1:8000 --out records.jsonl \\
      --trace azure.csv --rate-scale 0.5 --limit 1000 --skip-too-long

  headway replay --url https://api.example.com --plain --out records.jsonl \\
      --trace mine.csv

  headway replay --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 \\
      --batches magnus --predictor learned --out records.jsonl --trace mine.jsonl

Requests are sent at their own times, whatever became of earlier ones; with --closed-loop a session's next request
waits for the answer. Prompts that the trace does not have
are made up to its lengths, and every answer is forced to the trace's length. Goodput is of requests with targets:
those of the trace, or --slo-ttft and --slo-tbt, which are also sent (not with --plain). Ctrl-C keeps what there is.
"""

EXIT_ALL_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFlags:
    """Which trace goes to which server, how, and where the records go."""

    url: Annotated[tuple[str, ...], Setting("Base URL of the server; repeatable with --batches.", "URL")]
    trace: TraceSource
    out: Annotated[
        Path, Setting("File for the records, one JSON line a request; an earlier one is kept.", "RECORDS")
    ]
    rate_scale: Annotated[float, Setting("Requests arrive this many times as fast.", "X")] = 1.0
    time_unit: TimeUnit = None
    strict: Strict = False
    closed_loop: ClosedLoop = False
    limit: Annotated[int | None, Setting("Only the first N requests of the trace.", "N")] = None
    slo_ttft_s: SloTtft = None
    slo_tbt_s: SloTbt = None
    model: Annotated[str | None, Setting("Model to ask for (default: the server's first).", "NAME")] = None
    seed: Annotated[int, Setting("Seed of the made-up prompts.")] = 0
    vocab_size: Annotated[
        int | None, Setting("Draw made-up prompts from N token ids, not from ids 256 to 999.", "N")
    ] = None
    token_times: Annotated[bool, Setting("Record the time of each token.")] = False
    skip_too_long: Annotated[bool, Setting("Count requests beyond the model's context as failed.")] = False
    plain: Annotated[bool, Setting("Send only what OpenAI's API defines: no forced lengths, no targets.")] = (
        False
    )
    own_stops: Annotated[
        bool, Setting("Let the model end its answers; the trace's lengths are not forced.")
    ] = False
    batch: Annotated[BatchFlags, OptionGroup()]
    predictor: Annotated[
        str | None,
        Setting("With --batches: the predictor of answer lengths, which it learns (learned).", "SPEC"),
    ] = None
    length_model: Annotated[
        Path | None,
        Setting("With --predictor: keep what is learned here, batch times beside it.", "FILE"),
    ] = None
    timeout_s: Annotated[float, Setting("Seconds after which a request is given up; inf: never.", "S")] = (
        3600.0
    )
    api_key: ApiKey = None
    as_json: Annotated[
        bool, Setting('Print {"replay": {summary}} on stdout.', shown=Shown(flag="--json"))
    ] = False

    def requests(self) -> list[TraceRequest]:
        """Read the requests, with their send times."""
        from headway.core.slo import Slo
        from headway.lab.trace import Trace
        from headway.traces import scale_rate

        slo = Slo(ttft_s=self.slo_ttft_s, tbt_s=self.slo_tbt_s)
        trace = Trace(self.trace, self.limit, slo, self.time_unit, self.strict, self.closed_loop)
        return scale_rate(trace.requests(), self.rate_scale)

    def central(self) -> CentralFlags:
        """Return the central queue's flags. Raises ConfigError for batch flags without `--batches`."""
        if self.batch.batches is None:
            if len(self.url) > 1:
                raise ConfigError(f"--url is given {len(self.url)} times; give it once, or add --batches")
            if self.predictor is not None:
                raise ConfigError("--predictor is accepted with --batches alone")
        return self.batch.central(self.predictor, self.length_model)

    def options(self) -> ReplayOptions:
        """Return the server and the way of sending."""
        from headway.loadgen import ReplayOptions

        return ReplayOptions(
            url=self.url[0],
            model=self.model,
            seed=self.seed,
            vocab_size=self.vocab_size,
            token_times=self.token_times,
            skip_too_long=self.skip_too_long,
            plain=self.plain,
            own_stops=self.own_stops,
            api_key=self.api_key,
            timeout_s=self.timeout_s,
        )


def replay(flags: ReplayFlags) -> None:
    """Send a trace to an OpenAI-compatible server and record what happened to each request.

    With --batches, whole batches go from one queue to one or several servers, as under `headway serve --batches`: a
    server gets its next batch when its last one has ended.
    """
    from headway.results import RecordWriter
    from headway.whole_file import number_earlier

    requests, options = flags.requests(), flags.options()
    central = flags.central()
    _check_output(flags.out, flags.trace, flags.length_model)
    with ExitStack() as files:
        batching = files.enter_context(central.open())

        @cache
        def writer() -> RecordWriter:
            number_earlier(flags.out)
            return files.enter_context(RecordWriter(flags.out))

        report = send_with_progress(
            requests, options, lambda record: writer().append(record), batching, flags.url
        )
    _tell(report, flags.as_json)
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if all(record.outcome == "failed" for record in report.records):
        raise typer.Exit(EXIT_ALL_FAILED)


def _check_output(out: Path, trace: str, length_model: Path | None) -> None:
    """Raise ConfigError if an output cannot be written, or would overwrite the trace."""
    if os.path.exists(out) and os.path.exists(trace) and os.path.samefile(out, trace):
        raise ConfigError(f"--out {out} is the trace itself; name another file")
    check_file("--out", out)
    if length_model is not None:
        check_replaceable("--length-model", length_model)


def send_with_progress(
    requests: Sequence[TraceRequest],
    options: ReplayOptions,
    on_record: Callable[[Record], None],
    batching: CentralBatching | None = None,
    urls: Sequence[str] = (),
) -> ReplayReport:
    """Replay under a progress bar. With `batching`, batches go to all of the `urls`.

    The first Ctrl-C stops sending and keeps the results so far; the second ends at once.
    """
    from headway.loadgen import replay as replay_requests

    async def run() -> ReplayReport:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def interrupt() -> None:
            stop.set()
            loop.remove_signal_handler(signal.SIGINT)

        loop.add_signal_handler(signal.SIGINT, interrupt)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        with counting("requests ended", len(requests)) as tick:

            def on_end(record: Record) -> None:
                on_record(record)
                tick(1)

            if batching is not None:
                from headway.lab.batched_replay import replay_batches

                return await replay_batches(requests, options, batching, urls, on_record=on_end, stop=stop)
            return await replay_requests(requests, options, on_record=on_end, stop=stop)

    return asyncio.run(run())


def _tell(report: ReplayReport, as_json: bool) -> None:
    """Print the table and the remarks on stderr, and the summary on stdout if asked for."""
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
    """Remarks on the quality of the measurement: how late the client sent, and which requests failed how."""
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


def batch_remark(counts: BatchCounts) -> str:
    """Summarise the batches in one line."""
    return f"{counts.sent} batches were sent with {counts.members} requests; of {counts.split} some came back"
