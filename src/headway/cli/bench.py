"""`headway bench`: policies compared on real engines, one after another, on the same stream."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.options import (
    Given,
    Json,
    OptionGroup,
    SloTbt,
    SloTtft,
    Strict,
    TimeUnit,
    TraceSource,
    VllmFlags,
    host_memory,
)
from headway.cli.output import written_command
from headway.engine.host_kv import HostKv
from headway.errors import ConfigError
from headway.setting import Setting

if TYPE_CHECKING:
    from headway.lab.policy_bench import PolicyBench

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What to compare, on which stream of requests, and where the records go."""

    model: Annotated[str, Setting("`demo`, `demo-random`, a directory, or a hub name.", "M")]
    trace: TraceSource
    policies: Annotated[str, Setting("Rows of the preset table, in turn.", "A,B,...")]
    out: Annotated[Path, Setting("Folder for records and logs; must be new.", "DIR")]
    vllm_flags: VllmFlags = ()
    rate_scale: Annotated[float, Setting("Requests arrive X times as fast.", "X")] = 1.0
    time_unit: TimeUnit = None
    strict: Strict = False
    load: Annotated[
        float | None,
        Setting(
            "Share of this machine's capacity at which requests arrive. Capacity is the throughput of "
            "the first policy's server with all requests queued; it is measured first.",
            "X",
        ),
    ] = None
    limit: Annotated[int | None, Setting("Only the first N requests.", "N")] = None
    slo_ttft_s: SloTtft = None
    slo_tbt_s: SloTbt = None
    batch_width: Annotated[
        int | None, Setting("Most requests that one step runs, under every policy.", "N")
    ] = None
    host_kv: Annotated[Given, OptionGroup(of=HostKv, prefix="host_kv_")]
    predictor: Annotated[
        str | None,
        Setting(
            "What predicts answer lengths, for all policies: as `headway serve --predictor`, noisy- "
            "oracle:tau=T, broken:way=W or none (default: learned, for policies that use lengths).",
            "SPEC",
        ),
    ] = None
    own_stops: Annotated[bool, Setting("Let the model end its answers; the trace needs prompts.")] = False
    seed: Annotated[int, Setting("Seed of the made-up prompts, and of what `demo` and `gen:` draw.")] = 0
    as_json: Annotated[bool, Json] = False

    def experiment(self) -> PolicyBench:
        """Build the experiment from the flags."""
        from headway.core.slo import Slo
        from headway.engine.settings import EngineSettings
        from headway.lab.grid import parse_policies
        from headway.lab.policy_bench import PolicyBench
        from headway.lab.trace import Trace
        from headway.traces import scale_rate

        if self.load is not None and self.rate_scale != 1:
            raise ConfigError(
                f"--load is {self.load:g} and --rate-scale {self.rate_scale:g}; accepted: one of the two"
            )
        slo = Slo(ttft_s=self.slo_ttft_s, tbt_s=self.slo_tbt_s)
        stream = Trace(self.trace, self.limit, slo, self.time_unit, self.strict)
        return PolicyBench(
            model=self.model,
            policies=parse_policies(self.policies),
            requests=scale_rate(stream.requests(self.seed), self.rate_scale),
            out=self.out,
            settings=EngineSettings(
                slo_ttft_s=self.slo_ttft_s,
                slo_tbt_s=self.slo_tbt_s,
                batch_width=self.batch_width,
                host_kv=host_memory(**self.host_kv),
            ),
            predictor=self.predictor,
            own_stops=self.own_stops,
            vllm_flags=self.vllm_flags,
            load=self.load,
            seed=self.seed,
            trace=self.trace,
            command=written_command(sys.argv),
        )


def bench(flags: BenchFlags) -> None:
    """Compare policies on a real engine, one after another, on the same trace."""
    from headway.cli.replay import send_with_progress
    from headway.cli.report import show_tables, show_verdicts
    from headway.results import has_run, labelled_summaries, read_run, sections, to_json

    experiment, out = flags.experiment(), flags.out
    try:
        finished = experiment.run(send_with_progress, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        kept = f"what was recorded is in {out}" if has_run(out) else "nothing was recorded"
        typer.echo(f"interrupted: {kept}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    parts = sections([read_run(out)])
    if flags.as_json:
        typer.echo(to_json(labelled_summaries(parts)))
    show_verdicts(parts)
    show_tables(parts)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
