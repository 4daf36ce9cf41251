"""`headway bench`: policies compared on real engines, one after another, on the same stream."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.traces import TraceRequest

EPILOG = """Examples:

  headway bench --model demo --trace demo --policies vllm,sjf --out out/demo

  headway bench --model Qwen/Qwen3-8B --trace azure.csv --rate-scale 0.5 --limit 2000 \\

      --policies vllm,sarathi,edf --slo-ttft 1 --slo-tbt 0.05 --out out/azure -- --max-num-seqs 128

Every policy gets a fresh server with the same flags and the same requests at the same times.
`headway report DIR --out FILE.html` draws what was written.
"""


def bench(
    model: Annotated[str, typer.Option(metavar="M", help="`demo`, a directory, or a hub name.")],
    trace: Annotated[
        str, typer.Option(metavar="FILE|gen:SPEC|demo", help="Trace file, generated workload, or the demo's.")
    ],
    policies: Annotated[str, typer.Option(metavar="A,B,...", help="Rows of the preset table, in turn.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for records and logs; must be new.")],
    vllm_flags: Annotated[
        list[str] | None, typer.Argument(metavar="[-- VLLM_FLAGS]...", help="vLLM's own flags, after `--`.")
    ] = None,
    rate_scale: Annotated[float, typer.Option(metavar="X", help="Requests arrive X times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N requests.")] = None,
    slo_ttft: Annotated[
        float | None, typer.Option(metavar="S", help="Target for requests that name none: first token.")
    ] = None,
    slo_tbt: Annotated[
        float | None, typer.Option(metavar="S", help="Target for requests that name none: between tokens.")
    ] = None,
    batch_width: Annotated[
        int | None, typer.Option(metavar="N", help="Requests a step may run; the same for all policies.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the made-up prompts, and the demo's stream.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help='Print {"<policy>": {summary}} on stdout.')] = False,
) -> None:
    """Compare policies on a real engine, one after another, on the same trace."""
    from headway.cli.replay import send_with_progress
    from headway.engine.settings import EngineSettings
    from headway.experiments.policy_bench import PolicyBench
    from headway.results import compare, read_run, summarize, terminal_table, to_json

    names = tuple(name.strip() for name in policies.split(",") if name.strip())
    if not names:
        raise ConfigError(f"--policies is {policies!r}; accepted: names of the preset table, comma-separated")
    experiment = PolicyBench(
        model=model,
        policies=names,
        requests=_requests(trace, limit, rate_scale, seed, slo_ttft, slo_tbt),
        out=out,
        settings=EngineSettings(slo_ttft_s=slo_ttft, slo_tbt_s=slo_tbt, batch_width=batch_width),
        vllm_flags=tuple(vllm_flags or ()),
        seed=seed,
        trace=trace,
        command=" ".join(["headway", *sys.argv[1:]]),
    )
    finished = experiment.run(send_with_progress, lambda line: typer.echo(line, err=True))
    run = read_run(out)
    summaries = {name: summarize(records, run=run.infos[name]) for name, records in run.records.items()}
    if as_json:
        typer.echo(to_json(summaries))
    _show(terminal_table(compare(summaries, run.records)))
    if not finished:
        raise typer.Exit(130)


def _requests(
    trace: str,
    limit: int | None,
    rate_scale: float,
    seed: int,
    slo_ttft: float | None,
    slo_tbt: float | None,
) -> list[TraceRequest]:
    """The stream, with the default targets written into the requests that name none."""
    from dataclasses import replace

    from headway.core.slo import Slo
    from headway.experiments import demo_stream
    from headway.traces import load_trace, scale_rate, take

    if trace == demo_stream.NAME:
        requests = demo_stream.demo_stream(seed)
        requests = requests if limit is None else take(requests, limit)
    else:
        requests = load_trace(trace, limit)
    default = Slo(ttft_s=slo_ttft, tbt_s=slo_tbt)
    requests = [request if request.slo else replace(request, slo=default) for request in requests]
    return scale_rate(requests, rate_scale)


def _show(table: object) -> None:
    from rich.console import Console

    Console(stderr=True).print(table)
