"""`headway plan`: from a trace, targets and GPUs to the command that deploys the best configuration found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.host_memory import KV_TIER_HELP, KV_TIER_SPEC
from headway.cli.measuring import progress, stdout_for_data
from headway.cli.option_panels import options_under
from headway.cli.out_folder import kept_or_temporary
from headway.cli.trace_flags import TimeUnit, Trace
from headway.errors import ConfigError, HeadwayError, UpstreamError

if TYPE_CHECKING:
    from headway.planner.planner import Effort, PlannedDeployment
    from headway.planner.preparation import Prepared
    from headway.planner.verify import Verified

EPILOG = """Examples:

  headway plan --trace azure.csv --hardware h100 --model Llama-3.1-8B --gpus 4 --slo-ttft 1 --slo-tbt 0.05

  headway plan --trace azure.csv --hardware a100-80g --model Qwen/Qwen3-8B --gpus 8 --slo-ttft 1 --load 1.2 \\
      --minutes 10 --out out/plan                     # as much as ten minutes allow; again to go on with it

  headway plan --trace azure.csv --hardware h100 --model Llama-3.1-8B --gpus 8 --slo-ttft 0.5 --fewest

  headway plan --trace demo --hardware cost.json --model demo --gpus 1 --verify --json

Tried are policies, low- and high-priority pools, tensor parallelism, seats, tokens a step, hand-off thresholds, host
memory for KV, and KV offloading where --kv-tier says what there is: few samples of the trace first, more and longer
ones for those that may be the best (docs/planner.md says how to read the table). With targets the best has the
largest goodput, without the least mean job completion time. stdout is the command that deploys it, or with --json
one object; DIR gets plan.json and pareto.svg. All figures are simulated, but for those of --verify, which deploys the
choice, scaled down, with model `demo` on this machine and compares what comes with what is predicted.
"""


DATA_FILE = "plan.json"
QUESTION_FILE = "plan-question.json"
VERIFY_SECONDS = 60.0
"""For which requests are sent, where nothing is said."""

_load = options_under("What is served")
_search = options_under("The search")
_check = options_under("The check")


def plan(
    trace: Trace,
    hardware: Annotated[str, typer.Option(metavar="H", help="GPU of the catalogue, or a cost file.")],
    model: Annotated[
        str, typer.Option(metavar="M", help="`demo`, a hub name that is known, or a directory.")
    ],
    gpus: Annotated[int, typer.Option(metavar="N", help="How many there are.")],
    slo_ttft: Annotated[float | None, _load("S", "Target for requests that name none: first token.")] = None,
    slo_tbt: Annotated[
        float | None, _load("S", "Target for requests that name none: between tokens.")
    ] = None,
    slo_deadline: Annotated[
        float | None, _load("S", "Target for requests that name none: whole answer.")
    ] = None,
    rate_scale: Annotated[float | None, _load("X", "Requests arrive X times as fast (default: 1).")] = None,
    load: Annotated[
        float | None, _load("X", "In its place: as fast as X times what stock vLLM gets through on all GPUs.")
    ] = None,
    time_unit: TimeUnit = None,
    limit: Annotated[int | None, _load("N", "Only the first N requests.")] = None,
    predictor: Annotated[
        str, _load("SPEC", "Who predicts answer lengths for policies that go by them, as for `serve`.")
    ] = "learned",
    policies: Annotated[
        str | None,
        _search("A,B,...", "Rows of the preset table, and ascendra for pools (default: a sensible set)."),
    ] = None,
    kv_tier: Annotated[
        str | None, _search(KV_TIER_SPEC, f"{KV_TIER_HELP} Every configuration is tried with and without.")
    ] = None,
    seeds: Annotated[int, _search("N", "Samples of the trace in the last round.")] = 5,
    budget: Annotated[int | None, _search("N", "Configurations to try (default: 240).")] = None,
    minutes: Annotated[
        float | None, _search("M", "In its place: as many as take about so long on this machine.")
    ] = None,
    jobs: Annotated[int | None, _search("N", "Processes (default: one a CPU).")] = None,
    fewest: Annotated[
        bool,
        _search(
            None, "Find the fewest GPUs that hold a goodput; exit status 1 if not even all do.", "--fewest"
        ),
    ] = False,
    goodput_aim: Annotated[float | None, _search("X", "That goodput (default: 0.9).")] = None,
    out: Annotated[
        Path | None, _search("DIR", "Keep runs, plan.json and pareto.svg; resumed if there.")
    ] = None,
    verify: Annotated[
        bool, _check(None, "Deploy the choice on this machine, replay, and compare.", "--verify")
    ] = False,
    verify_seconds: Annotated[
        float | None, _check("S", "Seconds for which requests are sent (default: 60).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object on stdout.")] = False,
) -> None:
    """Find what serves a trace best on so many GPUs: policy, pools, TP, seats, token budget, host memory."""
    from headway.core.slo import Slo
    from headway.lab.grid import parse_policies
    from headway.lab.stream import Stream
    from headway.planner.planner import Effort
    from headway.planner.preparation import prepare
    from headway.planner.request import PlanRequest
    from headway.sim.limits import parse_kv_tier

    seconds = _seconds_to_verify(verify_seconds, verify=verify)
    effort = Effort(budget=budget, minutes=minutes, jobs=os.cpu_count() or 1 if jobs is None else jobs)
    prepared = prepare(
        PlanRequest(
            hardware=hardware,
            model=model,
            gpus=gpus,
            stream=Stream(
                trace, limit, Slo(ttft_s=slo_ttft, tbt_s=slo_tbt, deadline_s=slo_deadline), time_unit
            ),
            rate_scale=rate_scale,
            load=load,
            policies=None if policies is None else parse_policies(policies),
            kv_tier=None if kv_tier is None else parse_kv_tier(kv_tier),
            seeds=seeds,
            predictor=predictor,
            fewest=fewest,
            aim=goodput_aim,
        )
    )
    if verify:
        _check_verifiable(prepared)
    _introduce(prepared)
    with kept_or_temporary(out) as root:
        planned = _plan(prepared, effort, root, kept=out is not None)
        _show(planned)
        if out is not None:
            _write(planned, out)
        try:
            verified = _verify(planned, root, seconds, out) if verify else None
        except (typer.Exit, HeadwayError):
            _answer(planned, None, as_json)  # the plan stands, and took longer than its check
            raise
        _answer(planned, verified, as_json)
    if planned.is_too_few:
        raise typer.Exit(1)


def _seconds_to_verify(asked: float | None, *, verify: bool) -> float:
    """How long requests are sent for a check. Raises ConfigError for no time at all, or where there is no check."""
    seconds = VERIFY_SECONDS if asked is None else asked
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--verify-seconds is {seconds}; accepted: more than 0")
    if asked is not None and not verify:
        raise ConfigError(f"--verify-seconds is {seconds} without --verify; accepted: with --verify")
    return seconds


def _check_verifiable(prepared: Prepared) -> None:
    from headway.planner.verify import check_verifiable

    check_verifiable(prepared)


def _introduce(prepared: Prepared) -> None:
    from headway.planner.preparation import introduction

    typer.echo(introduction(prepared), err=True)


def _plan(prepared: Prepared, effort: Effort, root: Path, *, kept: bool) -> PlannedDeployment:
    from headway.lab.manifest import open_folder
    from headway.planner.planner import make_plan
    from headway.planner.runs import KeptPlanRuns

    open_folder(root / QUESTION_FILE, prepared.manifest(), "plan")
    if kept:
        _check_writable(root)
    runs = KeptPlanRuns.read(root)
    try:
        with stdout_for_data(), progress() as tell:
            return make_plan(prepared, effort, runs, tell)
    except KeyboardInterrupt:
        there = "nothing is kept; give --out DIR to be able to go on"
        if kept:
            there = f"{len(runs.done):,} runs are kept in {root}; the same command goes on"
        typer.echo(f"interrupted: {there}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _check_writable(out: Path) -> None:
    """Raise ConfigError if what the search comes to could not be written: before it, since it takes minutes."""
    from headway.cli.writable import check_replaceable
    from headway.planner.report import FILE

    for name in (DATA_FILE, FILE):
        check_replaceable("--out", out / name)


def _verify(planned: PlannedDeployment, root: Path, seconds: float, out: Path | None) -> Verified:
    from headway.planner.verify import verify, verify_table

    try:
        with stdout_for_data():
            verified = verify(planned, root, seconds, lambda line: typer.echo(line, err=True))
    except KeyboardInterrupt:
        typer.echo("interrupted: the plan stands, and was not checked", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except UpstreamError as error:
        if out is not None:
            raise
        raise UpstreamError(f"{error}; without --out DIR nothing of it is kept") from None
    _print(verify_table(verified))
    if out is not None:
        _write_data(planned, verified, out)
    return verified


def _write(planned: PlannedDeployment, out: Path) -> None:
    """Keep the plan before it is checked: a check may fail."""
    from headway.planner.report import FILE, pareto_svg

    _write_data(planned, None, out)
    _write_file(out / FILE, pareto_svg(planned).encode())
    typer.echo(f"wrote {out / DATA_FILE} and {out / FILE}", err=True)


def _write_data(planned: PlannedDeployment, verified: Verified | None, out: Path) -> None:
    _write_file(out / DATA_FILE, _json(planned, verified).encode() + b"\n")


def _write_file(path: Path, content: bytes) -> None:
    """Raises ConfigError, which says what is not lost, if there is no room by now."""
    from headway.whole_file import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}), but every run is kept beside it; the same command goes on "
            "and simulates none of them again"
        ) from None


def _answer(planned: PlannedDeployment, verified: Verified | None, as_json: bool) -> None:
    """What goes to stdout: no command where --fewest found that not even all GPUs hold the goodput."""
    from headway.planner.deploy import command
    from headway.planner.report import serve_arguments

    if as_json:
        typer.echo(_json(planned, verified))
    elif not planned.is_too_few:
        typer.echo(command(serve_arguments(planned)))


def _json(planned: PlannedDeployment, verified: Verified | None) -> str:
    import json

    from headway.planner.report import plan_data

    checked = None if verified is None else verified.to_dict()
    return json.dumps(plan_data(planned) | {"verify": checked}, indent=2)


def _show(planned: PlannedDeployment) -> None:
    from headway.planner.report import plan_table

    _print(plan_table(planned))


def _print(what: object) -> None:
    from rich.console import Console

    Console(stderr=True).print(what)
