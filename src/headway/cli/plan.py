"""`headway plan`: from a trace, targets and GPUs to the command that deploys the best configuration found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli import EXIT_INTERRUPTED
from headway.cli.options import (
    ClosedLoop,
    KvTierSpec,
    OptionGroup,
    SloTbt,
    SloTtft,
    Strict,
    TimeUnit,
    TraceSource,
)
from headway.cli.output import kept_or_temporary, progress, show, stdout_for_data
from headway.errors import ConfigError, HeadwayError, UpstreamError
from headway.predict.steps.attention_kernels import DEFAULT_ATTENTION
from headway.setting import Setting, Shown

if TYPE_CHECKING:
    from headway.planner.planner import Effort, PlannedDeployment
    from headway.planner.preparation import Prepared
    from headway.planner.request import PlanRequest
    from headway.planner.verify import Verified

EPILOG = """Examples:

  headway plan --trace azure.csv --hardware h100 --model Llama-3.1-8B --gpus 4 --slo-ttft 1 --slo-tbt 0.05

  headway plan --trace azure.csv --hardware a100-80g --model Qwen/Qwen3-8B --gpus 8 --slo-ttft 1 --load 1.2 \\
      --minutes 10 --out out/plan                     # as much as ten minutes allow; again to go on with it

  headway plan --trace azure.csv --hardware h100 --model Llama-3.1-8B --gpus 8 --slo-ttft 0.5 --fewest

  headway plan --trace azure.csv --hardware h100 --model Llama-3.1-8B --gpus 16 --per-node 8 --slo-ttft 0.5 \\
      --price h100=2.5 --price l40s=0.9               # the cheapest GPUs that keep the targets

  headway plan --trace demo --hardware cost.json --model demo --gpus 1 --verify --json

Tried are policies, low- and high-priority pools, tensor parallelism, seats, tokens a step, those of each pool, hand-off
thresholds, host memory for KV, and KV offloading where --kv-tier says what there is: few samples of the trace first,
more and longer ones for those that may be the best (docs/planner.md says how to read the table). With targets the best
has the largest goodput, without the least mean job completion time. stdout is the command that deploys it, or with
--json one object; DIR gets plan.json and pareto.svg. All figures are simulated, but for those of --verify, which
deploys the choice, scaled down, with model `demo` on this machine and compares what comes with what is predicted.
"""


DATA_FILE = "plan.json"
VERIFY_SECONDS = 60.0
"""How long requests are sent if `--verify-seconds` is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFlags:
    """The workload."""

    slo_ttft_s: SloTtft = None
    slo_tbt_s: SloTbt = None
    slo_deadline_s: Annotated[
        float | None, Setting("Target for requests that name none: whole answer.", "S")
    ] = None
    rate_scale: Annotated[float | None, Setting("Requests arrive X times as fast (default: 1).", "X")] = None
    load: Annotated[
        float | None,
        Setting("In place of --rate-scale: X times the throughput of stock vLLM on all GPUs.", "X"),
    ] = None
    limit: Annotated[int | None, Setting("Only the first N requests.", "N")] = None
    predictor: Annotated[
        str, Setting("What predicts answer lengths for policies that use them, as for `serve`.", "SPEC")
    ] = "learned"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFlags:
    """What the search tries, and where it keeps its runs."""

    policies: Annotated[
        str | None,
        Setting("Rows of the preset table, and ascendra for pools (default: a sensible set).", "A,B,..."),
    ] = None
    kv_tier: Annotated[
        str | None,
        replace(KvTierSpec, help=f"{KvTierSpec.help} Every configuration is tried with and without."),
    ] = None
    seeds: Annotated[int, Setting("Samples of the trace in the last round.", "N")] = 5
    budget: Annotated[int | None, Setting("Configurations to try (default: 240).", "N")] = None
    minutes: Annotated[
        float | None, Setting("In place of --budget: as many as take about this long on this machine.", "M")
    ] = None
    jobs: Annotated[int | None, Setting("Processes (default: one a CPU).", "N")] = None
    fewest: Annotated[
        bool, Setting("Find the fewest GPUs that hold a goodput. Exit status 1 if all GPUs together do not.")
    ] = False
    goodput_aim: Annotated[float | None, Setting("The goodput of --fewest (default: 0.9).", "X")] = None
    out: Annotated[Path | None, Setting("Keep runs, plan.json and pareto.svg; resumed if there.", "DIR")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFlags:
    """Whether the choice is deployed as a check, and for how long."""

    verify: Annotated[bool, Setting("Deploy the choice on this machine, replay, and compare.")] = False
    verify_seconds: Annotated[
        float | None, Setting("Seconds of requests that --verify sends (default: 60).", "S")
    ] = None

    def seconds(self) -> float:
        """How long requests are sent. Raises ConfigError for zero, or if there is no check."""
        asked = self.verify_seconds
        seconds = VERIFY_SECONDS if asked is None else asked
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"--verify-seconds is {seconds}; accepted: more than 0")
        if asked is not None and not self.verify:
            raise ConfigError(f"--verify-seconds is {seconds} without --verify; add --verify")
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """What is planned, how it is searched, and whether the choice is checked."""

    trace: TraceSource
    hardware: Annotated[
        str, Setting("GPU of the catalogue, its data sheet (custom:tflops=X,...), or a cost file.", "H")
    ]
    model: Annotated[str, Setting("`demo`, a hub name that is known, or a directory.", "M")]
    gpus: Annotated[int, Setting("GPUs that there are.", "N")]
    per_node: Annotated[
        int | None, Setting("GPUs of one machine (default: all); TP stays within it.", "N")
    ] = None
    price: Annotated[
        tuple[str, ...],
        Setting(
            "Price of one GPU-hour; repeatable. Finds the cheapest GPUs that hold the targets, as --fewest.",
            "HARDWARE=X",
        ),
    ] = ()
    host_memory_gib: Annotated[
        float | None,
        Setting("Host memory of one machine for KV (default: as much as helps).", "GIB"),
    ] = None
    attention: Annotated[
        str,
        Setting(
            "Attention kernels of vLLM: flash-attn, or flashinfer, whose decodes beside prompts have a kernel of their "
            "own.",
            "NAME",
        ),
    ] = DEFAULT_ATTENTION
    load: Annotated[LoadFlags, OptionGroup(panel="What is served")]
    time_unit: TimeUnit = None
    strict: Strict = False
    closed_loop: ClosedLoop = False
    search: Annotated[SearchFlags, OptionGroup(panel="The search")]
    check: Annotated[CheckFlags, OptionGroup(panel="The check")]
    as_json: Annotated[bool, Setting("Print one object on stdout.", shown=Shown(flag="--json"))] = False

    def ask(self) -> PlanRequest:
        """Build the question for the search."""
        from headway.core.slo import Slo
        from headway.lab.grid import parse_policies
        from headway.lab.trace import Trace
        from headway.planner.request import PlanRequest
        from headway.sim.limits import parse_kv_tier

        load, search = self.load, self.search
        slo = Slo(ttft_s=load.slo_ttft_s, tbt_s=load.slo_tbt_s, deadline_s=load.slo_deadline_s)
        return PlanRequest(
            hardware=self.hardware,
            model=self.model,
            gpus=self.gpus,
            trace=Trace(self.trace, load.limit, slo, self.time_unit, self.strict, self.closed_loop),
            rate_scale=load.rate_scale,
            load=load.load,
            policies=None if search.policies is None else parse_policies(search.policies),
            kv_tier=None if search.kv_tier is None else parse_kv_tier(search.kv_tier),
            seeds=search.seeds,
            predictor=load.predictor,
            fewest=search.fewest,
            aim=search.goodput_aim,
            per_node=self.per_node,
            host_memory_gib=self.host_memory_gib,
            attention=self.attention,
        )


def plan(flags: PlanFlags) -> None:
    """Find the deployment that serves a trace best: policy, pools, TP, seats, token budget, host memory."""
    from headway.planner.planner import Effort
    from headway.planner.preparation import introduction, prepare
    from headway.planner.prices import cheapest, parse_prices, priced, prices_data, said_of_prices
    from headway.planner.report import plan_data, plan_table

    search, out = flags.search, flags.search.out
    seconds = flags.check.seconds()
    asked = priced(flags.ask(), parse_prices(flags.price))
    jobs = os.cpu_count() or 1 if search.jobs is None else search.jobs
    minutes = None if search.minutes is None else search.minutes / len(asked)
    effort = Effort(budget=search.budget, minutes=minutes, jobs=jobs)
    prepared = [prepare(each) for each in asked]
    for each in prepared:
        if flags.check.verify:
            from headway.planner.verify import (
                check_verifiable,
            )  # needs the packages of a server; planning alone does not

            check_verifiable(each)
        typer.echo(introduction(each), err=True)
    with kept_or_temporary(out) as root:
        plans = [
            _plan(each, effort, root if each is prepared[0] else root / f"gpu-{place}", kept=out is not None)
            for place, each in enumerate(prepared, 1)
        ]
        planned = cheapest(plans)
        show(plan_table(planned))
        for line in said_of_prices(plans):
            typer.echo(line, err=True)
        answer = plan_data(planned) | {"prices": prices_data(plans)}
        if out is not None:
            _write(planned, answer, out)
        try:
            verified = _verify(planned, answer, root, seconds, out) if flags.check.verify else None
        except (typer.Exit, HeadwayError):
            _answer(planned, answer, None, flags.as_json)  # print the plan first: the check takes a while
            raise
        _answer(planned, answer, verified, flags.as_json)
    if planned.is_too_few:
        raise typer.Exit(1)


def _plan(prepared: Prepared, effort: Effort, root: Path, *, kept: bool) -> PlannedDeployment:
    from headway.planner.planner import make_plan
    from headway.planner.runs import KeptPlanRuns

    runs = KeptPlanRuns.open(root, prepared.manifest())
    if kept:
        _check_writable(root)
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
    """Raise ConfigError before a search of minutes if its results could not be written."""
    from headway.cli.output import check_replaceable
    from headway.planner.report import FILE

    for name in (DATA_FILE, FILE):
        check_replaceable("--out", out / name)


def _verify(
    planned: PlannedDeployment, answer: Mapping[str, object], root: Path, seconds: float, out: Path | None
) -> Verified:
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
    show(verify_table(verified))
    if out is not None:
        _write_data(answer, verified, out)
    return verified


def _write(planned: PlannedDeployment, answer: Mapping[str, object], out: Path) -> None:
    """Write the plan before the check, which may fail."""
    from headway.planner.report import FILE, pareto_svg

    _write_data(answer, None, out)
    _write_file(out / FILE, pareto_svg(planned).encode())
    typer.echo(f"wrote {out / DATA_FILE} and {out / FILE}", err=True)


def _write_data(answer: Mapping[str, object], verified: Verified | None, out: Path) -> None:
    _write_file(out / DATA_FILE, _json(answer, verified).encode() + b"\n")


def _write_file(path: Path, content: bytes) -> None:
    """Write a file. If the disk is full, raises ConfigError, which says what is not lost."""
    from headway.whole_file import write_whole

    try:
        write_whole(path, content)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}), but every run is kept beside it; the same command goes on "
            "and simulates none of them again"
        ) from None


def _answer(
    planned: PlannedDeployment, answer: Mapping[str, object], verified: Verified | None, as_json: bool
) -> None:
    """What goes to stdout: no command where --fewest found that not even all GPUs hold the goodput."""
    from headway.planner.report import serve_script

    if as_json:
        typer.echo(_json(answer, verified))
    elif not planned.is_too_few:
        typer.echo(serve_script(planned))


def _json(answer: Mapping[str, object], verified: Verified | None) -> str:
    import json

    checked = None if verified is None else verified.to_dict()
    return json.dumps({**answer, "verify": checked}, indent=2)
