"""AdaptiveLLM's experiments from beginning to end, those on this machine's own engine too, and what is made of them."""

from __future__ import annotations

from headway.lab.papers import PaperRequest, Tell
from headway.lab.trace import Trace
from headway.predict.steps.hardware import hardware
from headway.results.study import Study
from headway.traces import NAMED_LAWS, TraceRequest, take
from headway_reproduce.adaptivellm.latency import LatencyFindings, Overheads
from headway_reproduce.adaptivellm.predictor_errors import errors_seconds, predictor_errors
from headway_reproduce.adaptivellm.setting import (
    ALL,
    BLOCK_TOKENS,
    DATA_SETS,
    GPU_BLOCKS,
    GROUPS,
    HARDWARE,
    HOST_BLOCKS,
    LINK_BYTES_PER_S,
    QUICK,
    REAL,
    REQUESTS,
    SEATS,
    SEEDS,
    SIMULATED,
    TOKENS_A_STEP,
    WATERMARK_BLOCKS,
    AdaptivePoint,
)
from headway_reproduce.adaptivellm.statements import (
    NOTE,
    LatencyStatements,
    ThroughputStatements,
    other_statements,
)
from headway_reproduce.adaptivellm.throughput import Throughput, ThroughputFindings
from headway_reproduce.claims import claims_part
from headway_reproduce.real_study import RealColumn, RealPlan, RealSizes, real_part
from headway_reproduce.study import RepeatedPaper, read_kept
from headway_reproduce.study_runs import RunResult

# ---- on this machine's own engine: the same kind of workload, fewer requests, a made model -------------

REAL_REQUESTS = 200
REAL_BLOCK_TOKENS = 32
"""The CPU backend's; as many KV tokens as in the paper, in fewer blocks."""


def real_requests(count: int = REAL_REQUESTS) -> list[TraceRequest]:
    """The first requests of a group's own draw, all at 0 s, each declaring the limit of its output."""
    return take(Trace(AdaptivePoint(group=GROUPS[0]).trace()).requests(0), count)


REAL_PLAN = RealPlan(
    policies=REAL,
    sizes=RealSizes(
        blocks=GPU_BLOCKS * BLOCK_TOKENS // REAL_BLOCK_TOKENS,
        host_blocks=HOST_BLOCKS * BLOCK_TOKENS // REAL_BLOCK_TOKENS,
        block_tokens=REAL_BLOCK_TOKENS,
    ),
    requests=real_requests,
    columns=(
        RealColumn("throughput_rps", "req/s", over=True),
        RealColumn("weighted_turnaround", "weighted turnaround"),
        RealColumn("preemptions", "preemptions"),
        RealColumn("swapped_out_blocks", "blocks out"),
        RealColumn("recomputed_tokens", "recomputed tokens"),
    ),
    what="requests of the chat groups, all at once",
    note="A CPU's copies and products are not a GPU's: this shows the same policies on the real engine, not the "
    "paper's gains. vLLM 0.2.5's batches are made here too, but no prompt is padded.",
    seconds=190.0,
)

# ---- from beginning to end -----------------------------------------------------------------------------


class AdaptiveLlm(RepeatedPaper[ThroughputFindings]):
    """The twelve groups on a simulated A800, and predictor errors and a smaller run on this machine's engine."""

    name = "adaptivellm"
    title = "AdaptiveLLM, repeated"

    def findings(self, request: PaperRequest) -> ThroughputFindings:
        """As `RepeatedPaper.findings`."""
        return ThroughputFindings(read_kept(request.root, RunResult), QUICK if request.quick else ALL)

    def more_seconds(self, request: PaperRequest) -> float:
        """Those of the predictors and the real engine."""
        return errors_seconds(request) + REAL_PLAN.measurement.more_seconds(request)

    def study(self, findings: ThroughputFindings, request: PaperRequest, tell: Tell) -> Study:
        """As `RepeatedPaper.study`."""
        made = findings.kept, findings.scope
        throughput, latency, overheads = Throughput(*made), LatencyFindings(*made), Overheads(*made)
        real = REAL_PLAN.measurement.found(request, tell)
        errors = predictor_errors(request, tell)
        claims = [
            *ThroughputStatements(*made).all(),
            *LatencyStatements(*made).all(),
            *other_statements(overheads, errors),
        ]
        return self.told(
            findings.scope,
            ALL,
            extent=f"all; {SEEDS} seeds for throughput, 1 for the rest",
            seeds=len(findings.scope.seeds(AdaptivePoint(group=GROUPS[0]))),
            facts=_facts(),
            claims=claims,
            parts=[
                claims_part(claims, f"{SIMULATED}; predictors and decisions timed on this machine", NOTE),
                throughput.table_3(),
                throughput.reasons(),
                throughput.figure_3(),
                latency.figure_4(),
                throughput.ablations(),
                latency.loaded(),
                errors.part(),
                overheads.part(),
                real_part(real, REAL_PLAN),
            ],
            data={
                **throughput.data(),
                **latency.data(),
                **overheads.data(),
                **errors.data(),
            },
        )


def _facts() -> list[tuple[str, str]]:
    """What was run on what."""
    laws = {name: NAMED_LAWS[law] for name, law in DATA_SETS.items()}
    lengths = "; ".join(
        f"{name} {law.input.expected_tokens():.2f} in, {law.output.expected_tokens():.1f} out"
        for name, law in laws.items()
    )
    return [
        ("hardware", f"simulated; {hardware(HARDWARE).provenance()}"),
        (
            "engine",
            f"{GPU_BLOCKS} KV blocks of {BLOCK_TOKENS} tokens on the device, {HOST_BLOCKS} on the host, {SEATS} seats, "
            f"{TOKENS_A_STEP:,} tokens a step, watermark {WATERMARK_BLOCKS} block, no prefix caching, synchronous; "
            f"copies at {LINK_BYTES_PER_S / 1e9:g} GB/s each way (assumed), after one another and before the step",
        ),
        ("workload", f"{REQUESTS:,} requests a group, all at 0 s; mean tokens before the limit: {lengths}"),
    ]
