"""The value of swapping on vLLM as it is now, over context length, shortness of memory and link speed (ours; not in
the paper).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.results.study import StudyPart, StudyTable, Value
from headway.sim.limits import EngineLimits
from headway_reproduce.claims import EQUAL
from headway_reproduce.study import Runs, ratio
from headway_reproduce.study_runs import RunResult, StudyRun, throughput_rps

MODEL = "meta-llama/Llama-3.1-8B"
STOCK, PLUS, TWIN = "vllm", "adaptivellm-plus", "adaptivellm-plus-recompute"
"""vLLM as it is now, which recomputes; swapping where it is cheaper, beside the steps; and the same order that
always recomputes.
"""
CONTEXTS, FITTING = (1024, 4096, 16384), (8, 32)
"""Mean tokens of a request, and how many such requests fit the device's KV; six times as many are queued at the
start.
"""
LINKS = (0.25, 1.0, 8.0)
"""Link speeds as shares of the catalogue's: block-by-block copies get a quarter of it; eight times as much is about
a link between chips.
"""
GPUS = ("a100-80g", "h100", "l40s", "rtx-4090")
BLOCK_TOKENS, HOST_SHARE, QUEUED = 16, 4, 6
"""Tokens of a block, host blocks for each device block, and queued requests for each that fits."""
PROMPT_SHARE, SPREAD, LONGEST = 0.75, 0.4, 3
"""The prompt's share of the context; sigma of both lengths; and the longest of either, as a multiple of the mean."""


@dataclass(frozen=True, slots=True)
class WorthPoint:
    """One GPU with scarce KV memory, long contexts, and a link to a host that is never full."""

    hardware: str
    context: int
    fitting: int
    link: float

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes a second in each direction."""
        return self.link * calibration(self.hardware, model_shape(MODEL)).to_host.bytes_per_s

    def run(self, policy: str) -> StudyRun:
        """The run of a policy at this setting; the link makes no difference to a policy that never copies."""
        prompt, answer = round(PROMPT_SHARE * self.context), round((1 - PROMPT_SHARE) * self.context)
        lengths = (
            f"lognormal-fitted:mean={tokens},sigma={SPREAD},max={LONGEST * tokens}"
            for tokens in (prompt, answer)
        )
        blocks = self.fitting * self.context // BLOCK_TOKENS
        return StudyRun(
            hardware=self.hardware,
            model=MODEL,
            trace="gen:at-once/input={}/output={}".format(*lengths) + f"/count={QUEUED * self.fitting}",
            policy=policy,
            seed=0,
            max_output_tokens=LONGEST * answer,
            limits=EngineLimits(
                num_blocks=blocks,
                block_size=BLOCK_TOKENS,
                host_blocks=HOST_SHARE * blocks if policy == PLUS else 0,
                asynchronous=True,
            ),
            copy_bytes_per_s=self.link_bytes_per_s if policy == PLUS else None,
        )


def worth_points(quick: bool) -> list[WorthPoint]:
    """The settings to run. Quick: two contexts on one GPU, with memory for eight requests."""
    if quick:
        return [
            WorthPoint("h100", context, FITTING[0], link) for context, link in product(CONTEXTS[:2], LINKS)
        ]
    return [WorthPoint(*cell) for cell in product(GPUS, CONTEXTS, FITTING, LINKS)]


def worth_runs(points: Iterable[WorthPoint]) -> list[StudyRun]:
    """The runs of the points, each once."""
    return list(dict.fromkeys(point.run(policy) for point, policy in product(points, (STOCK, PLUS, TWIN))))


def worth_part(runs: Runs[StudyRun, RunResult], points: Sequence[WorthPoint]) -> StudyPart:
    """Throughput relative to vLLM and to the twin that recomputes. Raises SimulationError for a run that was not
    made.
    """

    rows: list[list[Value]] = []
    gains: list[float] = []
    for point in points:
        stock, plus, twin = (runs.made(point.run(policy), policy, point) for policy in (STOCK, PLUS, TWIN))
        over = [ratio(throughput_rps(plus), throughput_rps(other)) for other in (stock, twin)]
        gains.append(over[1] or 0.0)
        left = plus.meter.swaps + plus.meter.recomputes
        rows.append(
            [
                *(point.hardware, f"{point.context:,}", point.fitting, point.link_bytes_per_s / 1e9, *over),
                *(left / plus.summary.requests, ratio(float(plus.meter.swaps), float(left))),
            ]
        )
    wins = sum(gain > EQUAL for gain in gains)
    text = (
        f"Taking the cheaper way gets more than {EQUAL - 1:.0%} more through than always recomputing in {wins} of "
        f"{len(gains)} cells: {min(gains):.2f} to {max(gains):.2f} times as much."
    )
    table = StudyTable(
        name="worth",
        title="adaptivellm-plus beside vllm and beside its twin that always recomputes (Llama-3.1-8B)",
        measured_on="simulated",
        headings=[
            *("GPU", "context", "fit", "link, GB/s", "over vllm", "over its twin", "victims a request"),
            "of them swapped",
        ],
        rows=rows,
        note=f"Throughput. Prompt and answer are three to one, {QUEUED} requests wait for each that fits, the host is "
        "never full; copies go on beside the steps. Not in the paper.",
        keys=2,
    )
    return StudyPart(title="What is swapping worth today?", text=[text], tables=[table])
