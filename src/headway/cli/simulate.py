"""`headway simulate`: policies compared on a virtual clock, over loads and seeds, in seconds."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.options import (
    ClosedLoop,
    Json,
    KvTierSpec,
    OptionGroup,
    SloTbt,
    SloTtft,
    Strict,
    TimeUnit,
    TraceSource,
)
from headway.cli.output import counting, kept_or_temporary, show, written_command
from headway.errors import ConfigError
from headway.lab.engine_sizes import EngineSizes
from headway.lab.grid import GridCell, Parts, PolicyGrid, parse_loads, parse_policies
from headway.setting import Setting

if TYPE_CHECKING:
    from headway.lab.cells import CellFolder
    from headway.lab.simulation import CellResult, Setup, SimulationRequest

EPILOG = """Examples:

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,sjf,edf --slo-ttft 1 \\
      --trace gen:poisson:rate=12/input=sharegpt/output=sharegpt/count=2000

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,sjf --trace azure.csv \\
      --load 0.5..1.2 --steps 5 --seeds 3 --out out/sweep            # a sweep; again to go on with it

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies fastserve,predicted,srpt-oracle \\
      --trace azure.csv --predictor noisy-oracle:tau=0.8             # how good must predictions be?

  headway simulate --hardware a100-80g --model Llama-3.1-8B --policies ascendra,vllm,sarathi --pools lp=2,hp=1 \\
      --slo-ttft 1 --slo-tbt 0.15 --trace azure.csv                  # low- and high-priority instances

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,headway --instances 4 --router cache-aware \\
      --trace gen:poisson:rate=4/input=sharegpt/output=sharegpt/count=400/turns=5/think=20    # conversations

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,headway --kv-tier gib=200/gib_per_s=20 \\
      --trace gen:poisson:rate=4/input=sharegpt/output=sharegpt/count=400/turns=5/think=20    # and KV offloading?

  headway simulate --hardware cost.json --model demo --policies edf --trace demo --explain 17

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm --trace azure.csv --limit 500 \\
      --chrome-trace schedule.json.gz                                # for ui.perfetto.dev

HARDWARE is a GPU of the catalogue, a data sheet (custom:tflops=312,bandwidth=2039,memory=80: dense 16-bit TFLOP/s,
GB/s, GiB), or a file that `headway profile` wrote on a machine of yours. The same
command gives the same bytes, whatever --jobs. `headway report DIR --out FILE.html` draws what --out wrote.
In the JSON of a sweep keys are "POLICY load=X"; with several seeds values are means, with their `deviation`.
A generated workload (`gen:`, `demo`) is drawn anew for each seed; with a file, seeds vary the noise of the
simulated clock alone.
"""

_UNRECORDED_FLAGS = ("--jobs", "--out")
"""Flags that do not change the results, and are left out of the recorded command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFlags:
    """What to compare."""

    load: Annotated[
        str | None,
        Setting(
            "Share of capacity at which requests arrive; several values are a sweep. Capacity is what `vllm` gets "
            "through here with all requests queued.",
            "X|A..B|A,B,...",
        ),
    ] = None
    rate_scale: Annotated[
        str | None,
        Setting(
            "In place of --load: requests arrive X times as fast as in the trace (default: 1).",
            "X|A..B|A,B,...",
        ),
    ] = None
    steps: Annotated[int | None, Setting("Loads in a range A..B (default: 5).", "N")] = None
    seeds: Annotated[int, Setting("Repeat with N seeds.", "N")] = 1
    limit: Annotated[int | None, Setting("Only the first N requests.", "N")] = None
    slo_ttft_s: SloTtft = None
    slo_tbt_s: SloTbt = None
    max_output_tokens: Annotated[
        int | None, Setting("Output limit that policies see for requests that declare none.", "N")
    ] = None
    predictor: Annotated[
        str | None,
        Setting(
            "What predicts answer lengths, for policies that use them (default: learned): `none`, a predictor of "
            "`serve`, or, made from the true lengths, `noisy-oracle:tau=T` or `broken:way=W`.",
            "SPEC",
        ),
    ] = None
    jobs: Annotated[int | None, Setting("Processes (default: one a CPU).", "N")] = None

    def loads(self) -> tuple[float, ...]:
        """The loads: shares of capacity, or multiples of the trace's rate. Raises ConfigError."""
        if self.load is not None and self.rate_scale is not None:
            raise ConfigError(
                f"--load is {self.load} and --rate-scale {self.rate_scale}; accepted: one of the two"
            )
        if self.load is not None:
            return parse_loads(self.load, self.steps, name="load")
        return parse_loads(self.rate_scale or "1", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesFlags:
    """How many engines, how they share requests, and their sizes."""

    instances: Annotated[int | None, Setting("Engines behind the router (default: 1).", "N")] = None
    pools: Annotated[
        str | None,
        Setting(
            "Engines of each pool, for policies such as ascendra. Other policies get as many engines.",
            "lp=N,hp=M",
        ),
    ] = None
    router: Annotated[
        str | None, Setting("How engines share requests (default: cache-aware, as `serve`).", "NAME")
    ] = None
    pool_router: Annotated[str | None, Setting("How pools share requests (default: ascendra).", "NAME")] = (
        None
    )
    kv_tier: Annotated[str | None, KvTierSpec] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    """What to do with the runs."""

    out: Annotated[Path | None, Setting("Keep records, summaries and plots; resumed if there.", "DIR")] = None
    explain: Annotated[
        str | None, Setting("Print the story of one request on stdout, and nothing else.", "ID")
    ] = None
    chrome_trace: Annotated[
        Path | None, Setting("File for the schedule of a single run.", "FILE.json[.gz]")
    ] = None
    as_json: Annotated[bool, Json] = False

    def check(self) -> None:
        """Raise ConfigError if more than one output is asked for."""
        if self.out is not None and (self.explain is not None or self.chrome_trace is not None):
            raise ConfigError("--out is given with --explain or --chrome-trace; accepted: one of the three")
        if self.explain is not None and self.chrome_trace is not None:
            raise ConfigError("--explain and --chrome-trace are given; accepted: one of the two")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateFlags:
    """What to simulate, on which hardware, and what to do with the runs."""

    hardware: Annotated[
        str, Setting("GPU of the catalogue, its data sheet (custom:tflops=X,...), or a cost file.", "H")
    ]
    model: Annotated[str, Setting("`demo`, a hub name that is known, or a directory.", "M")]
    trace: TraceSource
    policies: Annotated[
        str,
        Setting(
            "Rows of the preset table; also ascendra (with --pools), mlfq-preempt, and srpt-oracle, edf-oracle "
            "(clairvoyant).",
            "A,B,...",
        ),
    ]
    output: Annotated[OutputFlags, OptionGroup(panel="Output")]
    experiment: Annotated[ExperimentFlags, OptionGroup(panel="What is compared")]
    time_unit: TimeUnit = None
    strict: Strict = False
    closed_loop: ClosedLoop = False
    engines: Annotated[EnginesFlags, OptionGroup(panel="The engine")]
    sizes: Annotated[EngineSizes, OptionGroup(panel="The engine")]
    parts: Annotated[Parts, OptionGroup(panel="Parts for every policy")]

    def request(self) -> SimulationRequest:
        """Build the simulation request."""
        from headway.core.slo import Slo
        from headway.lab.simulation import SimulationRequest
        from headway.lab.trace import Trace
        from headway.routing import DEFAULT_ROUTER
        from headway.routing.pools import parse_pools
        from headway.sim.limits import parse_kv_tier

        asked, engines = self.experiment, self.engines
        slo = Slo(ttft_s=asked.slo_ttft_s, tbt_s=asked.slo_tbt_s)
        return SimulationRequest(
            hardware=self.hardware,
            model=self.model,
            trace=Trace(self.trace, asked.limit, slo, self.time_unit, self.strict, self.closed_loop),
            grid=PolicyGrid(
                policies=parse_policies(self.policies),
                loads=asked.loads(),
                num_seeds=asked.seeds,
                of_capacity=asked.load is not None,
            ),
            sizes=self.sizes,
            instances=engines.instances,
            pools=None if engines.pools is None else parse_pools(engines.pools),
            router=engines.router or DEFAULT_ROUTER,
            pool_router=engines.pool_router,
            parts=self.parts,
            max_output_tokens=asked.max_output_tokens,
            predictor=asked.predictor,
            kv_tier=None if engines.kv_tier is None else parse_kv_tier(engines.kv_tier),
        )


def simulate(flags: SimulateFlags) -> None:
    """Simulate policies on a trace: same decisions as on the engine, measured or published step times."""
    from headway.lab.simulation import set_up

    output, jobs = flags.output, flags.experiment.jobs
    output.check()
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; accepted: 1 or more")
    setup = set_up(flags.request())
    _introduce(setup)
    if output.explain is not None:
        _explain(setup, output.explain, output.as_json)
    elif output.chrome_trace is not None:
        _trace(setup, output.chrome_trace, output.as_json)
    else:
        _run(setup, output.out, os.cpu_count() or 1 if jobs is None else jobs, output.as_json)


def _introduce(setup: Setup) -> None:
    """Say what is about to be simulated, above all the assumptions."""
    system, asked = setup.scenario.system, setup.asked
    limits = system.limits
    lines = [
        f"simulated: {asked.model} on {setup.hardware()}",
        f"an engine: {limits.max_num_seqs:,} seats, {limits.max_num_batched_tokens:,} tokens a step, "
        f"{limits.num_blocks:,} KV blocks of {limits.block_size}"
        f"{f' and {limits.host_blocks:,} on the host' if limits.host_blocks else ''}, prefix caching "
        f"{'on' if limits.prefix_caching else 'off'}, {'a' if limits.asynchronous else ''}synchronous",
    ]
    if setup.capacity_rps is not None:
        lines.append(f"capacity: {setup.capacity_rps:.3g} requests a second (`vllm`, all requests queued)")
    if system.store_blocks:
        lines.append(f"KV tier of an engine: {system.store_blocks:,} blocks ({system.kv_tier})")
    if setup.facts.undeclared_tokens and asked.max_output_tokens is None:
        why = "the largest declared"
        if setup.facts.declared_tokens < setup.facts.undeclared_tokens:
            why = "the longest output, rounded up to a power of two"
        lines.append(f"output limit policies see: {setup.scenario.max_output_tokens:,} tokens ({why})")
    if 0 < setup.context_tokens < setup.facts.longest_tokens:
        lines.append(
            f"the longest request has {setup.facts.longest_tokens:,} tokens; {asked.model} reads "
            f"{setup.context_tokens:,}, and vLLM refuses what is longer: here it stands for its costs alone"
        )
    lengths = setup.lengths()
    if lengths is not None:
        lines.append(f"answer lengths predicted by: {lengths}")
    if idle := setup.without_host():
        lines.append(
            f"no host memory (--host-kv-gib), so KV is computed again, not swapped: {', '.join(idle)}"
        )
    lines += setup.without_targets()
    for line in lines:
        typer.echo(line, err=True)


# ---- a grid of cells -----------------------------------------------------------------------------------


def _run(setup: Setup, out: Path | None, jobs: int, as_json: bool) -> None:
    from headway.lab.cells import CellFolder, run_cells
    from headway.lab.sim_tables import tables, to_json

    with kept_or_temporary(out) as root:
        folder = CellFolder(root, setup.asked.grid)
        folder.open(setup.manifest(), setup.meta(written_command(sys.argv, without=_UNRECORDED_FLAGS)))
        try:
            with counting("requests", setup.num_requests) as tick:
                results = run_cells(setup.scenario, folder, jobs=jobs, tick=tick)
        except KeyboardInterrupt:
            _say_how_to_go_on(folder, out)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if as_json:
            typer.echo(to_json(setup.asked.grid, results))
        show(tables(folder, results))
        _say_failures(folder, results)
        if out is not None:
            _draw(folder, results)
    if all(0 < result.summary.requests == result.summary.failed for result in results):
        raise typer.Exit(1)


def _say_how_to_go_on(folder: CellFolder, out: Path | None) -> None:
    cells = folder.grid.cells()
    done = sum(folder.result(cell) is not None for cell in cells)
    kept = "nothing is kept; give --out DIR to be able to go on"
    if out is not None:
        kept = f"{done} of {len(cells)} runs are kept in {out}; the same command goes on"
    typer.echo(f"interrupted: {kept}", err=True)


def _say_failures(folder: CellFolder, results: list[CellResult]) -> None:
    """For each run with failed requests, say how many failed and the most frequent reason."""
    from headway.results import read_records

    for result in results:
        if failed := result.summary.failed:
            records = read_records(folder.records(result.cell))
            reasons = Counter(record.error for record in records if record.error is not None)
            total = result.summary.requests  # not the number of records: a hand-off has one too
            for reason, count in reasons.most_common(1):
                share = "" if count == failed else f", {count} of them"
                typer.echo(f"{result.cell}: {failed} of {total} requests failed{share}: {reason}", err=True)


def _draw(folder: CellFolder, results: list[CellResult]) -> None:
    from headway.lab.sim_tables import sweep_pictures

    if len(folder.grid.loads) > 1:
        for name, svg in sweep_pictures(folder.grid, results).items():
            (folder.root / name).write_text(svg, encoding="utf-8")
    typer.echo(f"wrote {folder.root}; `headway report {folder.root} --out FILE.html` draws it", err=True)


# ---- one cell in detail --------------------------------------------------------------------------------


def _explain(setup: Setup, request_id: str, as_json: bool) -> None:
    """Print one story per policy, under the same load and seed."""
    from headway.explain.text import told_data, told_text
    from headway.lab.cells import explain

    cells = _close_cells(setup, "--explain", one_policy=False)
    stories = {}
    with counting("requests", setup.num_requests) as tick:
        for cell in cells:
            stories[cell.policy] = explain(setup.scenario, cell, request_id, tick)
    if as_json:
        import json

        typer.echo(json.dumps({policy: told_data(*told) for policy, told in stories.items()}))
        return
    for policy, told in stories.items():
        typer.echo(f"{policy}, {cells[0].place}, simulated\n{told_text(*told)}\n")


def _trace(setup: Setup, path: Path, as_json: bool) -> None:
    from headway.lab.cells import trace_schedule
    from headway.lab.sim_tables import to_json

    [cell] = _close_cells(setup, "--chrome-trace", one_policy=True)
    with counting("requests", setup.num_requests) as tick:
        result, schedule = trace_schedule(setup.scenario, cell, path, tick)
    if as_json:
        typer.echo(to_json(setup.asked.grid, [result]))
    cut = ""
    if schedule.cut_at_s is not None:
        cut = f" (cut there: what came at {schedule.cut_at_s:.1f} s and later of {result.end_s:.1f} s is missing)"
    typer.echo(f"wrote {path}: {schedule.num_events:,} events{cut}; open it in ui.perfetto.dev", err=True)


def _close_cells(setup: Setup, flag: str, *, one_policy: bool) -> list[GridCell]:
    """The cells of one load and seed. Raises ConfigError if there are more than the flag can show."""
    grid = setup.asked.grid
    cells = grid.cells()
    if len(grid.loads) * grid.num_seeds > 1 or (one_policy and len(cells) > 1):
        accepted = "one policy, one load, one seed" if one_policy else "one load, one seed"
        raise ConfigError(f"{flag} is given for {len(cells)} runs; accepted: {accepted}")
    return cells
