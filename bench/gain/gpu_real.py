"""What `headway` is worth on a GPU: `python bench/gain/gpu_real.py --out DIR --json`.

A cell of `bench/gain/regret.py` on the real thing: vLLM on this GPU with a model of the machine's shape and made
weights, answers of the workload's lengths, arrivals over `--seconds` at shares of capacity, which is what vLLM's own
scheduler gets through here when the first requests are all there at once. `stock` is vLLM's own scheduler with
everything as vLLM chooses it (chunked prefill, prefix caching, asynchronous scheduling, compiled, CUDA graphs), once
with vLLM's seats and once with each of `--seats`; each metric is compared with its best value of these. `headway` has
vLLM's seats, and lengths that it learns as it serves. Stock never sees targets, so its runs serve all classes.
Targets are the cell's, by the machine's cost sheet.

`steps` has what lone prompts, batches of decodes and prompts beside these take here and what the sheet says;
`beyond_sheet` what steps with prompts and those without take beyond it in stock's runs (`bench/gain/gpu_engine.py`);
`cells` each system's figures, and beside them those of the simulator by the sheet, at the same streams; `gain` how
many times as good as stock. `schedule_ms` is the scheduler's own time a step. What is in DIR already is not run
again: without a GPU the report of a folder measured elsewhere can be made. One seed at two loads takes some eight
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import split
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec

from bench.command import command_line, out_option, say, stream_options
from bench.figures import GOODPUT, MEAN_JCT, Runs, figures, gain
from bench.gain.gpu_engine import StepTime, Stream, beyond_sheet, engine_spec, serve_on_gpu, step_times
from bench.gain.regret_runs import contender
from bench.gain.regret_workloads import (
    CLASSES,
    DATA,
    MACHINES,
    NONE,
    ONE,
    Machine,
    ServedWorkload,
    known_workloads,
    with_classes,
)
from bench.real_runs import STOCK, Contender, KeptRun, Run, kept, records
from headway.core.batch_shape import BatchShape
from headway.core.record import Record
from headway.engine.machine import is_cpu_build, machine_name, vllm_version
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import ConfigError
from headway.json_file import made_once
from headway.lab.kept_runs import open_folder
from headway.lab.real_engine import served_rps
from headway.lab.simulation import simulate_policy
from headway.policies.presets import find_preset
from headway.statistics import mean_of_all, quantile
from headway.traces import TraceRequest
from headway.whole_file import write_whole

# ---- runs, and where they are kept -------------------------------------------------------------------

FACTS = "facts.json"


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured before any run, and on which engine."""

    measured_on: str
    vllm: str
    workload: str
    seconds: float
    capacity_rps: float
    num_blocks: int
    worker_slots: int
    tokens_a_step: int
    asynchronous: bool
    steps: list[StepTime]


@dataclass(frozen=True)
class Study:
    """What is measured, and where it is stored."""

    out: Path
    machine: Machine
    workload: ServedWorkload
    policy: str
    seconds: float
    seeds: int
    loads: Sequence[float]
    kinds: Sequence[str]
    seats: Sequence[int]
    vllm_flags: Sequence[str] = ()

    @cached_property
    def facts(self) -> GpuFacts:
        """The first measurements."""
        return msgspec.json.decode((self.out / FACTS).read_bytes(), type=GpuFacts)

    def open(self) -> None:
        """Make the folder, or continue in it. Raises ConfigError if it has runs of other streams."""
        asked = {"workload": self.workload.name, "seconds": self.seconds}
        open_folder(self.out / "bench.json", asked, "bench")

    def runs(self) -> Iterator[Run]:
        """All of them, load by load."""
        slots, own = self.facts.worker_slots, contender(self.policy)
        ours = Contender(own.name, own.preset, predictor=own.predictor)
        for seed in range(1, self.seeds + 1):
            for load in self.loads:
                yield Run(STOCK, NONE, slots, load, seed)
                for kind in self.kinds:
                    yield Run(ours, kind, slots, load, seed)
                for seats in self.seats:
                    yield Run(STOCK, NONE, seats, load, seed)

    def stream(self, load: float, seed: int, kind: str) -> list[TraceRequest]:
        """The requests of a run, with the targets of a class."""
        rate_rps = load * self.facts.capacity_rps
        requests = self.workload.window(rate_rps, self.seconds, seed)
        return with_classes(requests, self.workload, kind, seed)

    def kept(self, run: Run) -> KeptRun:
        """The stored result of a run."""
        return kept(run, self.out)


# ---- the report --------------------------------------------------------------------------------------


def report(study: Study) -> dict[str, Any]:
    """All figures."""
    facts = study.facts
    cells: dict[str, dict[str, Any]] = {}
    for load in study.loads:
        for kind in study.kinds:
            say(f"simulating {kind!r} at load {load:g}")
            cells[f"{load:g} {kind}"] = cell(study, [run for run in study.runs() if run.load == load], kind)
    return {
        **{name: getattr(facts, name) for name in facts.__struct_fields__ if name != "steps"},
        "seeds": study.seeds,
        "steps": [against_sheet(study.machine, step) for step in facts.steps],
        "beyond_sheet": beyond_sheet(study.machine.system(), stock_streams(study)),
        "cells": cells,
    }


def stock_streams(study: Study) -> Iterator[Stream]:
    """Each stream that stock served, with the results."""
    for run in study.runs():
        if run.contender is STOCK:
            yield study.stream(run.load, run.seed, NONE), study.kept(run).served


def against_sheet(machine: Machine, step: StepTime) -> dict[str, float]:
    """A step's time, and its ratio to the sheet's."""
    shape = BatchShape()
    for _ in range(step.batch):
        shape.add(step.new_tokens, step.context_tokens)
    for _ in range(step.decodes):
        shape.add(1, step.decode_context_tokens)
    told_s = machine.system().step.step_s(shape)
    return {**msgspec.structs.asdict(step), "sheet_s": told_s, "sheet_over_real": told_s / step.seconds}


def cell(study: Study, runs: Sequence[Run], kind: str) -> dict[str, Any]:
    """Each system's figures, real and simulated, and the gains over stock's best."""
    systems: dict[str, list[Run]] = {}
    for run in runs:
        if run.contender is STOCK or run.kind == kind:
            systems.setdefault(f"{run.contender.name}-{run.seats}", []).append(run)
    real = {name: Runs([real_records(study, run, kind) for run in its]) for name, its in systems.items()}
    told = {name: Runs([told_records(study, run, kind) for run in its]) for name, its in systems.items()}
    own = next(name for name, (run, *_) in systems.items() if run.contender is not STOCK)
    return {
        "gain": {metric: best_gain(real, own, metric) for metric in (GOODPUT, MEAN_JCT)},
        "simulated_gain": {metric: best_gain(told, own, metric) for metric in (GOODPUT, MEAN_JCT)},
        "real": {name: figures(each, {}) for name, each in real.items()},
        "simulated": {name: figures(each, {}) for name, each in told.items()},
        "schedule_ms": {name: schedule_ms(study, its) for name, its in systems.items()},
        "pauses": sum(study.kept(run).counters["pauses"] for run in systems[own]),
    }


def best_gain(systems: dict[str, Runs], own: str, metric: str) -> float | None:
    """The gain over the best of the others; None if a value is missing."""

    def value(name: str) -> float | None:
        return mean_of_all([getattr(summary, metric) for summary in systems[name].summaries()])

    others = [found for name in systems if name != own and (found := value(name)) is not None]
    if not others:
        return None
    return gain(metric, value(own), max(others) if metric == GOODPUT else min(others))


def real_records(study: Study, run: Run, kind: str) -> list[Record]:
    """The records of a run on the GPU, judged by the targets of a class."""
    return records(study.stream(run.load, run.seed, kind), study.kept(run).served)


def told_records(study: Study, run: Run, kind: str) -> list[Record]:
    """The simulator's records of the same stream, by the cost sheet."""
    requests, facts, system = study.stream(run.load, run.seed, kind), study.facts, study.machine.system()
    limits = replace(
        system.limits,
        num_blocks=facts.num_blocks,
        max_num_seqs=run.seats,
        max_num_batched_tokens=facts.tokens_a_step,
        max_cudagraph_capture_size=system.limits.graphed_tokens,  # one engine served all runs, whatever their seats
        asynchronous=facts.asynchronous,
        host_blocks=0,
    )
    return simulate_policy(
        requests,
        run.contender.policy,
        replace(system, limits=limits),
        max_output_tokens=study.machine.longest_tokens,
        seed=run.seed,
        lengths=run.contender.predictor,
    ).records


def schedule_ms(study: Study, runs: Sequence[Run]) -> dict[str, float]:
    """The scheduler's own time a step, over all these runs."""
    times_s = [seconds for run in runs for seconds in study.kept(run).schedule_s]
    return {
        **{f"p{share}": quantile(times_s, share / 100) * 1e3 for share in (50, 99)},
        "steps": len(times_s),
    }


# ---- on the GPU --------------------------------------------------------------------------------------

BACKLOG = 600
"""Requests in the measurement of capacity."""


def measure(study: Study) -> None:
    """Run what is not stored yet; starts the engine only if anything is left."""
    study.open()
    with ExitStack() as stack:
        engines: list[SteppedEngine] = []

        def engine() -> SteppedEngine:
            if not engines:
                if is_cpu_build():
                    raise ConfigError(
                        f"vLLM computes on the CPU here, and not all runs are in {study.out}; accepted: vLLM for GPUs"
                    )
                say("starting vLLM")
                spec = engine_spec(study.machine, study.out, study.vllm_flags)
                engines.append(stack.enter_context(spec.serving()))
            return engines[0]

        made_once(study.out / FACTS, GpuFacts, lambda: first_facts(study, engine()))
        for run in study.runs():
            file = run.file(study.out)
            if not file.exists():
                stream = study.stream(run.load, run.seed, run.kind)
                found = serve_on_gpu(engine(), run.contender, run.seats, stream, run.seed)
                write_whole(file, msgspec.json.encode(found))
                last_s = max(each.finished_s for each in found.served)
                say(f"{file.name}: {len(stream)} requests, the last ended after {last_s:.1f} s")


def first_facts(study: Study, engine: SteppedEngine) -> GpuFacts:
    """Measure single steps, then capacity."""
    steps = step_times(engine)
    say(
        "steps: "
        + ", ".join(
            f"{each.batch} x {each.new_tokens} beside {each.decodes}: {each.seconds * 1e3:.1f} ms"
            for each in steps
        )
    )
    backlog = [replace(request, id=f"{at}") for at, request in enumerate(study.workload.backlog()[:BACKLOG])]
    sizes = engine.sizes
    capacity_rps = served_rps(serve_on_gpu(engine, STOCK, sizes.max_num_seqs, backlog, 0).served)
    say(f"capacity: {capacity_rps:.2f} requests a second; {sizes.num_blocks} KV blocks")
    return GpuFacts(
        measured_on=machine_name(),
        vllm=vllm_version(),
        workload=study.workload.name,
        seconds=study.seconds,
        capacity_rps=capacity_rps,
        num_blocks=sizes.num_blocks,
        worker_slots=sizes.max_num_seqs,
        tokens_a_step=sizes.max_num_batched_tokens,
        asynchronous=sizes.asynchronous,
        steps=steps,
    )


# ---- the bench ---------------------------------------------------------------------------------------

LOADS = (1.2, 0.5)
SECONDS = 40.0


def options() -> argparse.ArgumentParser:
    """The command's options."""
    parser = command_line(__doc__)
    out_option(parser)
    parser.add_argument("--machine", choices=tuple(MACHINES), default="h100-llama-8b")
    parser.add_argument(
        "--workload", default="chat", help="of bench/gain/regret.py (default chat, which needs no file)"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the recorded traces")
    parser.add_argument("--policy", default="headway", help="a preset (default headway)")
    stream_options(parser, seconds=SECONDS, seeds=1, loads=LOADS)
    parser.add_argument(
        "--class", dest="kind", choices=CLASSES, action="append", help=f"of targets (default {ONE})"
    )
    parser.add_argument("--seats", type=int, action="append", help="of stock, beside vLLM's own")
    parser.add_argument(
        "--vllm-flags", default="", help="one text of further flags, the same for all systems"
    )
    parser.add_argument("--measure-only", action="store_true", help="leave the report to another machine")
    return parser


def study_of(arguments: argparse.Namespace) -> Study:
    """The study that the options ask for. Raises ConfigError for what is not accepted."""
    find_preset(arguments.policy)
    known = known_workloads(arguments.data)
    if arguments.workload not in known:
        raise ConfigError(f"workload is {arguments.workload!r}; accepted: {', '.join(known)}")
    machine = MACHINES[arguments.machine]
    return Study(
        out=arguments.out,
        machine=machine,
        workload=ServedWorkload(arguments.workload, machine, arguments.data),
        policy=arguments.policy,
        seconds=arguments.seconds,
        seeds=arguments.seeds,
        loads=arguments.load or LOADS,
        kinds=arguments.kind or (ONE,),
        seats=arguments.seats or (),
        vllm_flags=split(arguments.vllm_flags),
    )


def main() -> None:
    """Measure what is missing and print the report."""
    arguments = options().parse_args()
    study = study_of(arguments)
    measure(study)
    if not arguments.measure_only:
        print(json.dumps(report(study)))


if __name__ == "__main__":
    main()
