"""FastServe's experiments from beginning to end: what is run, in which order, and what is made of it."""

from __future__ import annotations

from headway.lab.papers import Request, Size, Tell, Tick
from headway.predict.hardware import hardware
from headway.results.study import Study, StudyPart
from headway_reproduce.fastserve.end_to_end import (
    axis_part,
    cells_data,
    end_to_end_data,
    headline,
    shortfall,
)
from headway_reproduce.fastserve.findings import Findings
from headway_reproduce.fastserve.memory import k_sensitivity, memory_data, memory_part, peak_kv, slots_data
from headway_reproduce.fastserve.per_token import per_token_part
from headway_reproduce.fastserve.real import REAL_PLAN
from headway_reproduce.fastserve.scale import scale_part
from headway_reproduce.fastserve.scheduler import quantum_sensitivity, scheduler_part
from headway_reproduce.fastserve.scope import AXES, END_TO_END, Scope
from headway_reproduce.fastserve.setting import (
    BATCH,
    BLOCK_TOKENS,
    CAPACITY_SEEDS,
    CLUSTER,
    HARDWARE,
    JOBS,
    LONGEST_INPUT,
    LONGEST_OUTPUT,
    ORCA,
    SEEDS,
    SINGLE,
    SLOTS,
    TOKENS_A_STEP,
    Machine,
)
from headway_reproduce.real_study import RealRuns, real_part, real_runs, real_seconds
from headway_reproduce.study_runs import KeptRuns, run_study

NAME = "fastserve"
TITLE = "FastServe, repeated"


class FastServe:
    """GPT-175B on simulated A100s, its ablations on one of them, and a smaller run on this machine's engine."""

    def size(self, request: Request) -> Size:
        """As `Paper.size`."""
        scope, kept = Scope(quick=request.quick), KeptRuns.read(request.root)
        runs, first = scope.num_runs(), scope.capacity_runs()
        done = sum(kept.result(run) is not None for run in first)
        if done == len(first):
            capacity_rps = Findings(kept, scope).capacity_rps
            done += sum(kept.result(run) is not None for run in scope.loaded_runs(capacity_rps))
        seconds = (runs - done) * scope.seconds_a_run() / request.jobs
        if not request.quick:
            seconds += real_seconds(request.root, REAL_PLAN)
        return Size(runs=runs, kept=done, seconds=seconds)

    def reproduce(self, request: Request, tick: Tick, tell: Tell) -> Study:
        """As `Paper.reproduce`."""
        scope, kept = Scope(quick=request.quick), KeptRuns.read(request.root)
        findings = Findings(kept, scope)
        run_study(scope.capacity_runs(), kept, jobs=request.jobs, tick=tick)
        run_study(scope.loaded_runs(findings.capacity_rps), kept, jobs=request.jobs, tick=tick)
        real = None if scope.quick else real_runs(request.root, REAL_PLAN, tell)
        return _study(findings, real)


def _study(findings: Findings, real: RealRuns | None) -> Study:
    parts: list[StudyPart | None] = [
        headline(findings),
        shortfall(findings),
        *(axis_part(findings, axis) for axis in AXES),
        scheduler_part(findings),
        memory_part(findings),
        scale_part(findings),
        per_token_part(findings),
        real_part(real, REAL_PLAN),
    ]
    return Study(
        name=NAME,
        title=TITLE,
        facts=_facts(findings),
        parts=[part for part in parts if part is not None],
        data=_data(findings),
    )


def _facts(findings: Findings) -> list[tuple[str, str]]:
    """What was run on what."""
    scope = findings.scope
    part = "the quick part, 1 seed" if scope.quick else f"all; {SEEDS} seeds end to end, fewer for the rest"
    return [
        ("scope", f"{scope.num_runs():,} of {Scope().num_runs():,} simulated runs: {part}"),
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        *((machine.title, _sizes(machine)) for machine in (CLUSTER, SINGLE)),
        (
            "workload",
            f"{JOBS:,} jobs a run, to the last finish; prompts up to {LONGEST_INPUT} and answers up to "
            f"{LONGEST_OUTPUT} tokens, both by Zipf's law",
        ),
        (
            "load",
            f"1 is what {ORCA} gets through of the same jobs, all at once, mean of {CAPACITY_SEEDS} seeds: "
            f"{findings.capacity_rps(END_TO_END):.2f} req/s end to end",
        ),
    ]


def _sizes(machine: Machine) -> str:
    limits = machine.limits()
    return (
        f"{machine.gpus} GPUs, pipeline stages: {machine.stages}; {limits.num_blocks:,} KV blocks of {BLOCK_TOKENS} "
        f"tokens on the devices, {limits.host_blocks:,} on the host, batches of {BATCH} a stage, {SLOTS} slots, "
        f"{TOKENS_A_STEP:,} tokens a step, no prefix caching, synchronous"
    )


def _data(findings: Findings) -> dict[str, object]:
    """What scripts read, in a stable order."""
    scope = findings.scope
    ends, memory = end_to_end_data(findings), memory_data(findings)
    return {
        "quick": scope.quick,
        "cells_run": scope.num_runs(),
        "cells_total": Scope().num_runs(),
        "seeds": 1 if scope.quick else SEEDS,
        "max_mean_jct_gain_vs_orca": ends["max_mean_jct_gain_vs_orca"],
        "max_p99_jct_gain_vs_orca": ends["max_p99_jct_gain_vs_orca"],
        "gain_range": ends["gain_range"],
        "vs_fastertransformer": ends["vs_fastertransformer"],
        "vs_vllm_today": ends["vs_vllm_today"],
        "equal_at_low_load": ends["equal_at_low_load"],
        **memory,
        "gap_to_srpt": ends["gap_to_srpt"],
        "quantum_sensitivity": quantum_sensitivity(findings),
        "k_sensitivity": k_sensitivity(findings),
        "slots_sweep": slots_data(findings),
        "peak_kv_vs_fcfs": peak_kv(findings),
        "cells": cells_data(findings),
    }
