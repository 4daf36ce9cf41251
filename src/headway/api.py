"""Headway from Python: simulate, plan and read results in a script or a notebook (docs/python.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from io import StringIO
from os import PathLike
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from weakref import finalize

from rich.console import Console, RenderableType

from headway.core.record import Record
from headway.errors import ConfigError
from headway.lab.cells import CellFolder, run_cells
from headway.lab.engine_sizes import EngineSizes
from headway.lab.grid import GridCell, Parts, PolicyGrid
from headway.lab.sim_tables import tables
from headway.lab.simulation import CellResult, SimulationRequest, set_up
from headway.lab.trace import Trace
from headway.planner.planner import Effort, PlannedDeployment, make_plan
from headway.planner.preparation import prepare
from headway.planner.report import plan_data, plan_table
from headway.planner.request import SEEDS, PlanRequest
from headway.planner.runs import KeptPlanRuns
from headway.policies.presets import Preset, find_preset, known_presets
from headway.predict.lengths.choice import DEFAULT_PREDICTOR
from headway.results import read_records
from headway.routing import DEFAULT_ROUTER
from headway.sim.limits import parse_kv_tier

DEFAULT_POLICIES = ("vllm", "headway")
_TABLE_WIDTH = 120


preset = find_preset


def presets() -> list[Preset]:
    """Return every available policy: the built-in ones and those of installed packages.

    >>> {"vllm", "headway", "fastserve"} <= {row.name for row in presets()}
    True
    """
    return [*known_presets().values()]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Simulation:
    """The results of `simulate`: one run for each policy, load and seed. `print` shows the table of `headway simulate`.

    Without `out` the runs lie in a temporary folder, which is deleted together with this object.
    """

    results: Sequence[CellResult]
    _folder: CellFolder

    def table(self) -> list[dict[str, Any]]:
        """A row for each run: `policy`, `load`, `seed`, then the keys of a summary in seconds and shares of 1.

        `pandas.DataFrame(simulation.table())` makes a frame of it.
        """
        return [_row(result) for result in self.results]

    def records(self, policy: str, load: float = 1.0, seed: int = 0) -> list[Record]:
        """Read from disk what happened to each request of one run. Raises ConfigError if there is no such run."""
        cell = GridCell(policy, load, seed, self._folder.grid.load_name)
        if all(result.cell != cell for result in self.results):
            runs = ", ".join(sorted({str(result.cell) for result in self.results}))
            raise ConfigError(f"no run of {cell}; there are: {runs}")
        return read_records(self._folder.records(cell))

    def __str__(self) -> str:
        return _text(tables(self._folder, self.results))


def _row(result: CellResult) -> dict[str, Any]:
    cell = result.cell
    return {"policy": cell.policy, "load": cell.load, "seed": cell.seed, **result.summary.to_dict()}


def simulate(
    trace: Trace | str,
    *,
    hardware: str,
    model: str,
    policies: Sequence[str] = DEFAULT_POLICIES,
    loads: Sequence[float] = (1.0,),
    of_capacity: bool = False,
    seeds: int = 1,
    engine: EngineSizes = EngineSizes(),  # noqa: B008 - a frozen value
    instances: int | None = None,
    pools: Mapping[str, int] | None = None,
    router: str = DEFAULT_ROUTER,
    pool_router: str | None = None,
    parts: Mapping[str, Any] | None = None,
    predictor: str | None = None,
    max_output_tokens: int | None = None,
    kv_tier: str | None = None,
    jobs: int = 1,
    out: str | PathLike[str] | None = None,
) -> Simulation:
    """Simulate every policy at every load with seeds 0 to `seeds` - 1.

    A load multiplies the trace's arrival rate. With `of_capacity` it is a share of the throughput that `vllm` reaches
    when all requests are queued.

    The arguments are those of `headway simulate`, which gives the same bytes. `parts` replaces parts of every policy,
    as `{"batching": "top-jobs"}`. `out` is the folder that keeps the runs; a repeated call continues there. With `jobs`
    above 1, a script must call this below `if __name__ == "__main__":`, since its processes import the script again.
    Raises ConfigError or TraceError, before anything runs, for arguments that are not accepted.

    >>> demo = simulate("demo", hardware="h100", model="Qwen/Qwen3-8B", policies=["vllm", "sjf"])
    >>> [(row["policy"], row["finished"]) for row in demo.table()]
    [('vllm', 480), ('sjf', 480)]
    """
    asked = SimulationRequest(
        hardware=hardware,
        model=model,
        trace=_trace(trace),
        grid=PolicyGrid(
            policies=tuple(policies), loads=tuple(sorted(loads)), num_seeds=seeds, of_capacity=of_capacity
        ),
        sizes=engine,
        instances=instances,
        pools=pools,
        router=router,
        pool_router=pool_router,
        parts=Parts(**(parts or {})),
        max_output_tokens=max_output_tokens,
        predictor=predictor,
        kv_tier=None if kv_tier is None else parse_kv_tier(kv_tier),
    )
    if jobs < 1:
        raise ConfigError.of("jobs", jobs, "1 or more")
    return _simulated(asked, jobs, out)


def _simulated(asked: SimulationRequest, jobs: int, out: str | PathLike[str] | None) -> Simulation:
    """Run the simulation in its folder, or in a temporary one if `asked` names none."""
    setup = set_up(asked)
    with ExitStack() as undone:
        root = Path(out or mkdtemp(prefix="headway-"))
        if out is None:
            undone.callback(rmtree, root)
        folder = CellFolder(root, asked.grid)
        folder.open(setup.manifest(), setup.meta("headway.simulate"))
        simulation = Simulation(run_cells(setup.scenario, folder, jobs=jobs), folder)
        undone.pop_all()
    if out is None:
        finalize(simulation, rmtree, root, ignore_errors=True)
    return simulation


@dataclass(frozen=True, slots=True)
class Plan:
    """The best deployment that a search found. `print` shows the table of `headway plan`."""

    planned: PlannedDeployment

    @property
    def command(self) -> str:
        """The shell command that deploys the plan."""
        return str(self.data()["command"])

    def data(self) -> dict[str, Any]:
        """Return the object of `headway plan --json`: the choice, the default, the gain, and what fewer GPUs would
        reach.
        """
        return plan_data(self.planned)

    def __str__(self) -> str:
        return _text(plan_table(self.planned))


def plan(
    trace: Trace | str,
    *,
    hardware: str,
    model: str,
    gpus: int,
    load: float | None = None,
    rate_scale: float | None = None,
    policies: Sequence[str] | None = None,
    fewest: bool = False,
    goodput_aim: float | None = None,
    budget: int | None = None,
    minutes: float | None = None,
    seeds: int = SEEDS,
    predictor: str = DEFAULT_PREDICTOR,
    kv_tier: str | None = None,
    jobs: int = 1,
    out: str | PathLike[str] | None = None,
) -> Plan:
    """Search the deployment that serves the trace best on `gpus` GPUs.

    The search covers policy, pools, parallelism, seats, token budget and host memory. The arguments are those of
    `headway plan`; `jobs` and `out` are as for `simulate`. Raises ConfigError or TraceError, before the search, for
    arguments that are not accepted.

    >>> chat = "gen:poisson:rate=8/input=sharegpt/output=sharegpt/count=60"
    >>> found = plan(chat, hardware="h100", model="Qwen/Qwen3-8B", gpus=1, policies=["vllm"], budget=2, seeds=2)
    >>> found.command.startswith("headway serve Qwen/Qwen3-8B")
    True
    """
    request = PlanRequest(
        hardware=hardware,
        model=model,
        gpus=gpus,
        trace=_trace(trace),
        rate_scale=rate_scale,
        load=load,
        policies=None if policies is None else tuple(policies),
        kv_tier=None if kv_tier is None else parse_kv_tier(kv_tier),
        seeds=seeds,
        predictor=predictor,
        fewest=fewest,
        aim=goodput_aim,
    )
    effort = Effort(budget=budget, minutes=minutes, jobs=jobs)
    prepared = prepare(request)
    with TemporaryDirectory(prefix="headway-") if out is None else nullcontext(out) as root:
        runs = KeptPlanRuns.open(Path(root), prepared.manifest())
        return Plan(make_plan(prepared, effort, runs, lambda share, text: None))


def _trace(trace: Trace | str) -> Trace:
    return Trace(trace) if isinstance(trace, str) else trace


def _text(table: RenderableType) -> str:
    console = Console(file=StringIO(), width=_TABLE_WIDTH, record=True)
    console.print(table)
    return console.export_text().rstrip()
