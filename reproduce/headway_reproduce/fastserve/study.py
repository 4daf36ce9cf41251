"""FastServe's experiments from beginning to end, including those on this machine's own engine, and the report."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.predict.steps.hardware import hardware
from headway.results.study import Study
from headway_reproduce.claims import claims_part
from headway_reproduce.fastserve.ablations import MemoryFindings, Scheduler
from headway_reproduce.fastserve.cells import (
    ABLATED,
    ABLATED_JOBS,
    ABLATED_THETA,
    ALL,
    AXES,
    BATCH,
    BLOCK_TOKENS,
    CAPACITY_SEEDS,
    CLUSTER,
    CONTEXT_TOKENS,
    END_TO_END,
    FCFS,
    FURTHER_AXES,
    HARDWARE,
    JOBS,
    LONGEST_TOKENS,
    ORCA,
    QUICK,
    SEEDS,
    SIMULATED,
    SINGLE,
    SLOTS,
    THETA,
    TOKENS_A_STEP,
    PaperMachine,
)
from headway_reproduce.fastserve.end_to_end import EndToEnd
from headway_reproduce.fastserve.findings import FastServeFindings
from headway_reproduce.fastserve.fixed_points import FixedPoints
from headway_reproduce.fastserve.further import FastServeFurther
from headway_reproduce.study import RepeatedPaper, read_kept
from headway_reproduce.study_runs import RunResult


class FastServe(RepeatedPaper[FastServeFindings]):
    """GPT-175B on simulated A100s, its ablations on one of them, and a smaller run on this machine's engine."""

    name = "fastserve"
    title = "FastServe, repeated"

    def findings(self, request: PaperRequest) -> FastServeFindings:
        """As `RepeatedPaper.findings`."""
        return FastServeFindings(read_kept(request.root, RunResult), QUICK if request.quick else ALL)

    def more_seconds(self, request: PaperRequest) -> float:
        """Always 0, since nothing else is run."""
        return 0.0

    def study(self, findings: FastServeFindings, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        made = findings.kept, findings.scope
        ends, scheduler, memory = EndToEnd(*made), Scheduler(*made), MemoryFindings(*made)
        further, fixed = FastServeFurther(*made), FixedPoints(*made)
        claims = [*ends.claims(), *scheduler.claims(), *memory.claims(), *further.claims()]
        axes = AXES if findings.scope.quick else (*AXES, *FURTHER_AXES)
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds end to end, fewer for the rest",
            seeds=1 if findings.scope.quick else SEEDS,
            facts=_facts(findings),
            claims=claims,
            parts=[
                ends.headline(),
                claims_part(claims, SIMULATED),
                ends.reasons(),
                fixed.part(),
                *map(ends.axis_part, axes),
                *scheduler.parts(),
                memory.part(),
                further.scale_part(),
                further.per_token_part(),
            ],
        )


def _facts(findings: FastServeFindings) -> list[tuple[str, str]]:
    """The settings of the runs."""
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        *((machine.title, _sizes(machine)) for machine in (CLUSTER, SINGLE)),
        (
            "workload",
            f"{JOBS:,} jobs a run, to the last finish, {ABLATED_JOBS:,} in the ablations; prompts and answers by "
            f"Zipf's law up to {LONGEST_TOKENS:,} tokens each, theta {THETA:g}, {ABLATED_THETA:g} in the "
            "ablations: chosen by the paper's own fixed points",
        ),
        (
            "load",
            f"1 is what the baseline gets through of the same jobs, all at once, mean of {CAPACITY_SEEDS} seeds: "
            f"{ORCA}, which reserves the context of {CONTEXT_TOKENS:,} tokens for each, "
            f"{findings.capacity_rps(END_TO_END):.2f} req/s end to end; {FCFS} {findings.capacity_rps(ABLATED):.2f} "
            "req/s for the ablations",
        ),
    ]


def _sizes(machine: PaperMachine) -> str:
    limits = machine.limits()
    return (
        f"{machine.gpus} GPUs, pipeline stages: {machine.stages}; {limits.num_blocks:,} KV blocks of {BLOCK_TOKENS} "
        f"tokens on the devices, {limits.host_blocks:,} on the host, batches of {BATCH} a stage, {SLOTS} slots, "
        f"{TOKENS_A_STEP:,} tokens a step, no prefix caching, synchronous"
    )
