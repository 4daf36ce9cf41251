"""`headway bench`: policies compared on real engines, one after another, on the same stream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.host_memory import HostKvBytesPerS, HostKvGib, host_memory
from headway.cli.target_flags import SloTbt, SloTtft
from headway.cli.trace_flags import TimeUnit, Trace
from headway.cli.written_command import written_command
from headway.errors import ConfigError

EPILOG = """Examples:

  headway bench --model demo --trace demo --load 0.9 --policies vllm,headway --out out/demo

  headway bench --model Qwen/Qwen3-8B --trace azure.csv --rate-scale 0.5 --limit 2000 \\
      --policies vllm,sarathi,edf --slo-ttft 1 --slo-tbt 0.05 --out out/azure -- --max-num-seqs 128

  headway bench --model demo --trace tasks.csv --policies fastserve,predicted --own-stops \\
      --predictor noisy-oracle:tau=0.8 --batch-width 16 --out out/predicted

Every policy gets a fresh server with the same flags and the same requests at the same times. With --load every
server first works through the same burst; the first one's rate is the capacity. Of two policies a sentence says
which did better. `headway report DIR --out FILE.html` draws what was written.
"""


def bench(
    model: Annotated[
        str, typer.Option(metavar="M", help="`demo`, `demo-random`, a directory, or a hub name.")
    ],
    trace: Trace,
    policies: Annotated[str, typer.Option(metavar="A,B,...", help="Rows of the preset table, in turn.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for records and logs; must be new.")],
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS]...", help="vLLM's own flags, after `--`.")
    ] = None,
    rate_scale: Annotated[float, typer.Option(metavar="X", help="Requests arrive X times as fast.")] = 1.0,
    time_unit: TimeUnit = None,
    load: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Requests arrive at X of this machine's capacity in the mean: what the first policy's server "
            "gets through when requests are there all at once. Measured first.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N requests.")] = None,
    slo_ttft: SloTtft = None,
    slo_tbt: SloTbt = None,
    batch_width: Annotated[
        int | None, typer.Option(metavar="N", help="Requests a step may run; the same for all policies.")
    ] = None,
    host_kv_gib: HostKvGib = None,
    host_kv_bytes_per_s: HostKvBytesPerS = None,
    predictor: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Predict lengths, to all policies alike: as `headway serve --predictor`, noisy-oracle:tau=T, "
            "broken:way=W or none (default: learned, to those that go by them).",
        ),
    ] = None,
    own_stops: Annotated[
        bool,
        typer.Option("--own-stops", help="Let the model end its answers itself; the trace needs prompts."),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Decides the made-up prompts, and what `demo` and `gen:` draw.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"<policy>": {summary}} on stdout.')] = False,
) -> None:
    """Compare policies on a real engine, one after another, on the same trace."""
    from headway.cli.replay import send_with_progress
    from headway.cli.report import show_tables, show_verdicts
    from headway.core.slo import Slo
    from headway.engine.settings import EngineSettings
    from headway.lab.grid import parse_policies
    from headway.lab.policy_bench import PolicyBench
    from headway.lab.stream import Stream
    from headway.results import has_run, labelled_summaries, read_run, sections, to_json
    from headway.traces import scale_rate

    if load is not None and rate_scale != 1:
        raise ConfigError(f"--load is {load:g} and --rate-scale {rate_scale:g}; accepted: one of the two")
    stream = Stream(trace, limit, Slo(ttft_s=slo_ttft, tbt_s=slo_tbt), time_unit)
    experiment = PolicyBench(
        model=model,
        policies=parse_policies(policies),
        requests=scale_rate(stream.requests(seed), rate_scale),
        out=out,
        settings=EngineSettings(
            slo_ttft_s=slo_ttft,
            slo_tbt_s=slo_tbt,
            batch_width=batch_width,
            host_kv=host_memory(host_kv_gib, host_kv_bytes_per_s),
        ),
        predictor=predictor,
        own_stops=own_stops,
        vllm_flags=tuple(vllm_flags or ()),
        load=load,
        seed=seed,
        trace=trace,
        command=written_command(sys.argv),
    )
    try:
        finished = experiment.run(send_with_progress, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        kept = f"what was recorded is in {out}" if has_run(out) else "nothing was recorded"
        typer.echo(f"interrupted: {kept}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    parts = sections([read_run(out)])
    if as_json:
        typer.echo(to_json(labelled_summaries(parts)))
    show_verdicts(parts)
    show_tables(parts)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
