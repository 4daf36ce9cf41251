"""`headway simulate`: policies compared on a virtual clock, over loads and seeds, in seconds."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.host_memory import KV_TIER_HELP, KV_TIER_SPEC
from headway.cli.option_panels import options_under
from headway.cli.out_folder import kept_or_temporary
from headway.cli.trace_flags import TimeUnit, Trace
from headway.cli.written_command import written_command
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.lab.cell_folder import CellFolder
    from headway.lab.grid import Cell
    from headway.lab.run_cells import Tick
    from headway.lab.simulation import CellResult
    from headway.lab.simulation_setup import Setup

EPILOG = """Examples:

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,sjf,edf --slo-ttft 1 \\
      --trace gen:poisson:rate=12/input=sharegpt/output=sharegpt/count=2000

  headway simulate --hardware h100 --model Qwen/Qwen3-8B --policies vllm,sjf --trace azure.csv \\
      --rate-scale 0.5..1.5 --steps 5 --seeds 3 --out out/sweep      # a sweep; again to go on with it

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

HARDWARE is a GPU of the catalogue, or a file that `headway profile` wrote on a machine of yours. The same
command gives the same bytes, whatever --jobs. `headway report DIR --out FILE.html` draws what --out wrote.
In the JSON of a sweep keys are "POLICY load=X"; with several seeds values are means, with their `deviation`.
A generated workload (`gen:`, `demo`) is drawn anew for each seed; with a file, seeds vary the noise of the
simulated clock alone.
"""

_UNRECORDED_FLAGS = ("--jobs", "--out")
"""Flags that do not change what is written, and so are not part of the command that is written down."""


_experiment = options_under("What is compared")
_engine = options_under("The engine")
_part = options_under("Parts for every policy")
_output = options_under("Output")


def simulate(
    hardware: Annotated[str, typer.Option(metavar="H", help="GPU of the catalogue, or a cost file.")],
    model: Annotated[
        str, typer.Option(metavar="M", help="`demo`, a hub name that is known, or a directory.")
    ],
    trace: Trace,
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Rows of the preset table; also ascendra (with --pools), mlfq-preempt, and srpt-oracle, edf-oracle "
            "(clairvoyant).",
        ),
    ],
    out: Annotated[
        Path | None, _output("DIR", "Keep records, summaries and plots; resumed if there.")
    ] = None,
    rate_scale: Annotated[
        str, _experiment("X|A..B|A,B,...", "Requests arrive X times as fast; several: a sweep.")
    ] = "1",
    steps: Annotated[int | None, _experiment("N", "Loads in a range A..B (default: 5).")] = None,
    seeds: Annotated[int, _experiment("N", "Repeat with N seeds.")] = 1,
    time_unit: TimeUnit = None,
    limit: Annotated[int | None, _experiment("N", "Only the first N requests.")] = None,
    slo_ttft: Annotated[
        float | None, _experiment("S", "Target for requests that name none: first token.")
    ] = None,
    slo_tbt: Annotated[
        float | None, _experiment("S", "Target for requests that name none: between tokens.")
    ] = None,
    instances: Annotated[int | None, _engine("N", "Engines behind the router (default: 1).")] = None,
    pools: Annotated[
        str | None,
        _engine("lp=N,hp=M", "Engines of each pool, for policies such as ascendra; as many for the others."),
    ] = None,
    router: Annotated[
        str | None, _engine("NAME", "How they share requests (default: cache-aware, as `serve`).")
    ] = None,
    pool_router: Annotated[
        str | None, _engine("NAME", "The same, where there are pools (default: ascendra).")
    ] = None,
    tp: Annotated[int, _engine("N", "GPUs of an engine, tensor-parallel.")] = 1,
    pp: Annotated[int, _engine("N", "Pipeline stages of an engine.")] = 1,
    max_num_seqs: Annotated[int | None, _engine("N", "Seats (default: vLLM's).")] = None,
    max_num_batched_tokens: Annotated[int | None, _engine("N", "Tokens a step (default: vLLM's).")] = None,
    max_cudagraph_capture_size: Annotated[
        int | None,
        _engine("N", "Tokens of a step that CUDA graphs hold; 0 as with --enforce-eager (default: vLLM's)."),
    ] = None,
    block_size: Annotated[
        int | None,
        _engine("N", "Tokens a KV block (default: vLLM's, or what a cost file was measured with)."),
    ] = None,
    num_blocks: Annotated[int | None, _engine("N", "KV blocks (default: what fits the memory).")] = None,
    host_blocks: Annotated[
        int,
        _engine("N", "KV blocks of host memory that policies may swap to; with none they compute KV again."),
    ] = 0,
    host_kv_gib: Annotated[float, _engine("GIB", "The same in GiB, as `headway serve` has it.")] = 0.0,
    kv_tier: Annotated[str | None, _engine(KV_TIER_SPEC, KV_TIER_HELP)] = None,
    batch_width: Annotated[int | None, _engine("N", "Requests a step may run (default: all seats).")] = None,
    max_output_tokens: Annotated[
        int | None, _experiment("N", "Limit policies see where a request declares none.")
    ] = None,
    predictor: Annotated[
        str | None,
        _experiment(
            "SPEC",
            "Who predicts answer lengths, for policies that go by them (default: learned): `none`, a predictor of "
            "`serve`, or, made from the true lengths, `noisy-oracle:tau=T` or `broken:way=W`.",
        ),
    ] = None,
    prefix_caching: Annotated[
        bool,
        _engine(text="Prompts that begin alike share their KV.", flag="--prefix-caching/--no-prefix-caching"),
    ] = True,
    asynchronous: Annotated[
        bool | None,
        _engine(text="vLLM's asynchronous scheduling (default: on for GPUs, --pp 1).", flag="--async/--sync"),
    ] = None,
    order: Annotated[str | None, _part("PART", "In place of every policy's.")] = None,
    batching: Annotated[str | None, _part("PART", "In place of every policy's.")] = None,
    eviction: Annotated[str | None, _part("PART", "In place of every policy's.")] = None,
    leaving: Annotated[
        list[str] | None, _part("PART", "In place of every policy's rules; repeatable.")
    ] = None,
    jobs: Annotated[int | None, _experiment("N", "Processes (default: one a CPU).")] = None,
    explain: Annotated[str | None, _output("ID", "Tell one request's story on stdout, nothing else.")] = None,
    chrome_trace: Annotated[
        Path | None, _output("FILE.json[.gz]", "Write the schedule of a single run.")
    ] = None,
    as_json: Annotated[bool, _output(text='Print {"<policy>": {summary}} on stdout.', flag="--json")] = False,
) -> None:
    """Simulate policies on a trace: same decisions as on the engine, measured or published step times."""
    from headway.core.slo import Slo
    from headway.lab.engine_sizes import Sizes
    from headway.lab.grid import Grid, parse_loads, parse_policies
    from headway.lab.policy_choice import Parts
    from headway.lab.simulation_setup import Wish, set_up
    from headway.lab.stream import Stream
    from headway.routing import DEFAULT_ROUTER
    from headway.routing.pools import parse_pools
    from headway.sim.limits import parse_kv_tier

    _check_output(out, explain, chrome_trace)
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs is {jobs}; accepted: 1 or more")
    setup = set_up(
        Wish(
            hardware=hardware,
            model=model,
            stream=Stream(trace, limit, Slo(ttft_s=slo_ttft, tbt_s=slo_tbt), time_unit),
            grid=Grid(
                policies=parse_policies(policies), loads=parse_loads(rate_scale, steps), num_seeds=seeds
            ),
            sizes=Sizes(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_cudagraph_capture_size=max_cudagraph_capture_size,
                block_size=block_size,
                num_blocks=num_blocks,
                host_blocks=host_blocks,
                host_kv_gib=host_kv_gib,
                batch_width=batch_width,
                prefix_caching=prefix_caching,
                asynchronous=asynchronous,
                tp=tp,
                pp=pp,
            ),
            instances=instances,
            pools=None if pools is None else parse_pools(pools),
            router=router or DEFAULT_ROUTER,
            pool_router=pool_router,
            parts=Parts(
                order=order,
                batching=batching,
                eviction=eviction,
                leaving=tuple(leaving) if leaving else None,
            ),
            max_output_tokens=max_output_tokens,
            predictor=predictor,
            kv_tier=None if kv_tier is None else parse_kv_tier(kv_tier),
        )
    )
    _introduce(setup)
    if explain is not None:
        _explain(setup, explain, as_json)
    elif chrome_trace is not None:
        _trace(setup, chrome_trace, as_json)
    else:
        _run(setup, out, os.cpu_count() or 1 if jobs is None else jobs, as_json)


def _check_output(out: Path | None, explain: str | None, chrome_trace: Path | None) -> None:
    """Raise ConfigError if more than one is wanted."""
    if out is not None and (explain is not None or chrome_trace is not None):
        raise ConfigError("--out is given with --explain or --chrome-trace; accepted: one of the three")
    if explain is not None and chrome_trace is not None:
        raise ConfigError("--explain and --chrome-trace are given; accepted: one of the two")


def _introduce(setup: Setup) -> None:
    """What is about to be simulated, for people: above all what was not said and is assumed."""
    system, wish = setup.scenario.system, setup.wish
    limits = system.limits
    lines = [
        f"simulated: {wish.model} on {setup.hardware()}",
        f"an engine: {limits.max_num_seqs:,} seats, {limits.max_num_batched_tokens:,} tokens a step, "
        f"{limits.num_blocks:,} KV blocks of {limits.block_size}"
        f"{f' and {limits.host_blocks:,} on the host' if limits.host_blocks else ''}, prefix caching "
        f"{'on' if limits.prefix_caching else 'off'}, {'a' if limits.asynchronous else ''}synchronous",
    ]
    if system.store_blocks:
        lines.append(f"KV tier of an engine: {system.store_blocks:,} blocks ({system.kv_tier})")
    if setup.facts.undeclared_tokens and wish.max_output_tokens is None:
        why = "the largest declared"
        if setup.facts.declared_tokens < setup.facts.undeclared_tokens:
            why = "the longest output, rounded up to a power of two"
        lines.append(f"output limit policies see: {setup.scenario.max_output_tokens:,} tokens ({why})")
    if 0 < setup.context_tokens < setup.facts.longest_tokens:
        lines.append(
            f"the longest request has {setup.facts.longest_tokens:,} tokens; {wish.model} reads "
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
    from headway.lab.cell_folder import CellFolder
    from headway.lab.run_cells import run_cells
    from headway.lab.sim_tables import tables, to_json

    with kept_or_temporary(out) as root:
        folder = CellFolder(root, setup.wish.grid)
        folder.open(setup.manifest(), setup.meta(written_command(sys.argv, without=_UNRECORDED_FLAGS)))
        try:
            with _progress(setup.num_requests) as tick:
                results = run_cells(setup.scenario, folder, jobs=jobs, tick=tick)
        except KeyboardInterrupt:
            _say_how_to_go_on(folder, out)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if as_json:
            typer.echo(to_json(setup.wish.grid, results))
        _show(tables(folder, results))
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
    """How many requests of a run failed, and the usual reason, for each run in which some did."""
    from headway.results import read_records

    for result in results:
        if failed := result.summary.failed:
            records = read_records(folder.records(result.cell))
            reasons = Counter(record.error for record in records if record.error is not None)
            total = result.summary.requests  # records are more, where some were handed off
            for reason, count in reasons.most_common(1):
                share = "" if count == failed else f", {count} of them"
                typer.echo(f"{result.cell}: {failed} of {total} requests failed{share}: {reason}", err=True)


def _draw(folder: CellFolder, results: list[CellResult]) -> None:
    from headway.lab.sim_tables import sweep_pictures

    if len(folder.grid.loads) > 1:
        for name, svg in sweep_pictures(results).items():
            (folder.root / name).write_text(svg, encoding="utf-8")
    typer.echo(f"wrote {folder.root}; `headway report {folder.root} --out FILE.html` draws it", err=True)


# ---- a single cell, closely ----------------------------------------------------------------------------


def _explain(setup: Setup, request_id: str, as_json: bool) -> None:
    """One story a policy, under the same load and seed."""
    from headway.explain.text import told_data, told_text
    from headway.lab.watch_cell import explain

    cells = _close_cells(setup, "--explain", one_policy=False)
    stories = {}
    with _progress(setup.num_requests) as tick:
        for cell in cells:
            stories[cell.policy] = explain(setup.scenario, cell, request_id, tick)
    if as_json:
        import json

        typer.echo(json.dumps({policy: told_data(*told) for policy, told in stories.items()}))
        return
    for policy, told in stories.items():
        typer.echo(f"{policy}, load {cells[0].load:g}, simulated\n{told_text(*told)}\n")


def _trace(setup: Setup, path: Path, as_json: bool) -> None:
    from headway.lab.sim_tables import to_json
    from headway.lab.watch_cell import trace_schedule

    [cell] = _close_cells(setup, "--chrome-trace", one_policy=True)
    with _progress(setup.num_requests) as tick:
        result, schedule = trace_schedule(setup.scenario, cell, path, tick)
    if as_json:
        typer.echo(to_json(setup.wish.grid, [result]))
    cut = ""
    if schedule.cut_at_s is not None:
        cut = f" (cut there: what came at {schedule.cut_at_s:.1f} s and later of {result.end_s:.1f} s is missing)"
    typer.echo(f"wrote {path}: {schedule.num_events:,} events{cut}; open it in ui.perfetto.dev", err=True)


def _close_cells(setup: Setup, flag: str, *, one_policy: bool) -> list[Cell]:
    """The cells of one load and seed; ConfigError if there are more than the flag can show."""
    grid = setup.wish.grid
    cells = grid.cells()
    if len(grid.loads) * grid.num_seeds > 1 or (one_policy and len(cells) > 1):
        accepted = "one policy, one load, one seed" if one_policy else "one load, one seed"
        raise ConfigError(f"{flag} is given for {len(cells)} runs; accepted: {accepted}")
    return cells


# ---- for people ----------------------------------------------------------------------------------------


@contextmanager
def _progress(num_requests: int) -> Iterator[Tick]:
    """A bar on stderr, if that is a terminal, moved by the requests that have ended."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=num_requests)
        yield lambda requests: progress.update(task, advance=requests)


def _show(table: object) -> None:
    from rich.console import Console

    Console(stderr=True).print(table)
