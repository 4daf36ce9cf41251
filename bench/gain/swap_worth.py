"""What swapping is worth today: `python bench/gain/swap_worth.py --json [--hardware NAME ...]`.

Simulated: the catalogue's GPUs with Llama-3.1-8B (prefix caching and asynchronous scheduling as vLLM has them), so
short of KV that requests are preempted all the time. Three axes: context (prompt and answer, three to one,
log-normal), how many requests of mean length the KV holds, and the link to host memory, in shares of what the
catalogue gives the GPU: 1 is its PCIe link, a quarter what copies block by block get of it, 8 about NVLink-C2C. The
host is never full. Six requests wait for each that fits, all there at once.

Policies: `vllm`, which recomputes; `adaptivellm-plus`, which takes the cheaper way; and its twin that always
recomputes, so that what its order does is told from what swaps do. Per cell: throughput of `adaptivellm-plus` over
`vllm` and over its twin, preemptions a request, and the share of the lost KV that was swapped. `wins` names the cells
in which it gets 1.02 times its twin's throughput or more, `loses` those in which its twin does.

On the CPU engine `python bench/gain/swap.py --policy adaptivellm-plus --bandwidth slow --bandwidth even --bandwidth
fast --json` asks the same: `adaptivellm-plus_vs_vllm`, and over its twins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import all_done, command_line, jobs_option, markdown_option
from headway.lab.grid import OWN_PARTS, Parts
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import Calibration
from headway.predict.steps.copies import TransferModel
from headway.predict.steps.hardware import calibration, hardware_names
from headway.results import summarize
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System
from headway.traces import AllAtOnce, LogNormal, TraceRequest, Workload

MODEL = "meta-llama/Llama-3.1-8B"
HARDWARE = ("a100-80g", "h100", "l40s", "rtx-4090")
"""Where none is named: one of each kind."""
CONTEXTS = (1024, 4096, 16384)
FITTING = (8, 32)
LINKS = (0.25, 1.0, 8.0)
PROMPT_SHARE, SPREAD, LONGEST = 0.75, 0.4, 3
"""Of the context; sigma of both lengths; and the longest of either, in means."""
QUEUED = 6
BLOCK_TOKENS = 16
HOST_SHARE = 4
"""Host blocks for each of the device."""
GAIN = 1.02
"""From which on a ratio counts as a gain."""
STOCK, CHEAPER, RECOMPUTES = "vllm", "adaptivellm-plus", "its twin that recomputes"
PARTS = {STOCK: OWN_PARTS, CHEAPER: OWN_PARTS, RECOMPUTES: Parts(eviction="recompute")}


@dataclass(frozen=True, slots=True)
class ShortEngine:
    """One GPU so short of KV, serving contexts so long over such a link."""

    hardware: str
    context: int
    fitting: int
    link: float

    @property
    def blocks(self) -> int:
        """KV blocks of the device."""
        return -(-self.fitting * self.context // BLOCK_TOKENS)

    def costs(self) -> Calibration:
        """What steps and copies take on it."""
        found = calibration(self.hardware, model_shape(MODEL))
        return replace(
            found, to_host=_scaled(found.to_host, self.link), to_device=_scaled(found.to_device, self.link)
        )

    def system(self) -> System:
        """The engine."""
        limits = EngineLimits(
            num_blocks=self.blocks,
            host_blocks=HOST_SHARE * self.blocks,
            block_size=BLOCK_TOKENS,
            asynchronous=True,
        )
        return System(limits=limits, calibration=self.costs())


def _scaled(law: TransferModel, share: float) -> TransferModel:
    return replace(law, bytes_per_s=share * law.bytes_per_s)


@cache
def requests_of(context: int, fitting: int, seed: int = 0) -> list[TraceRequest]:
    """All there at once; none is longer than the KV holds."""
    prompt, answer = PROMPT_SHARE * context, (1 - PROMPT_SHARE) * context
    return Workload(
        AllAtOnce(),
        LogNormal.fitted(prompt, SPREAD, int(LONGEST * prompt)),
        LogNormal.fitted(answer, SPREAD, int(LONGEST * answer)),
        QUEUED * fitting,
        seed,
        int(LONGEST * answer),
    ).requests()


@dataclass(frozen=True, slots=True)
class ShortRun:
    """One policy on one engine."""

    engine: ShortEngine
    policy: str


@dataclass(frozen=True, slots=True)
class ShortResult:
    """Requests a second, times a request lost its place in the mean, and what share of the tokens whose KV went from
    the device was swapped and not computed again.
    """

    throughput_rps: float
    preemptions: float
    swapped: float


def simulated(run: ShortRun) -> ShortResult:
    """What a run came to."""
    engine = run.engine
    requests = requests_of(engine.context, engine.fitting)
    result = simulate_policy(
        requests,
        CHEAPER if run.policy == RECOMPUTES else run.policy,
        engine.system(),
        parts=PARTS[run.policy],
        max_output_tokens=int(LONGEST * engine.context),
        named=run,
    )
    summary = summarize(result.records)
    assert summary.throughput_rps is not None
    swapped = BLOCK_TOKENS * summary.swapped_out_blocks
    lost = swapped + summary.recomputed_tokens
    return ShortResult(
        summary.throughput_rps, summary.preemptions / len(requests), swapped / lost if lost else 0.0
    )


def asked(engine: ShortEngine, policy: str) -> ShortRun:
    """The run of a policy; to those that never copy all links are one."""
    return ShortRun(engine if policy == CHEAPER else replace(engine, link=LINKS[0]), policy)


def report(engines: Sequence[ShortEngine], jobs: int) -> dict[str, Any]:
    """All figures, and where swapping wins and loses."""
    todo = dict.fromkeys(asked(*pair) for pair in product(engines, PARTS))
    found = all_done(simulated, list(todo), jobs)
    rows = [_row(engine, *(found[asked(engine, policy)] for policy in PARTS)) for engine in engines]
    return {
        "measured_on": "simulated",
        "model": MODEL,
        "cells": rows,
        "wins": [row for row in rows if row["over_its_twin"] >= GAIN],
        "loses": [row for row in rows if row["over_its_twin"] <= 1 / GAIN],
    }


def _row(engine: ShortEngine, stock: ShortResult, cheaper: ShortResult, twin: ShortResult) -> dict[str, Any]:
    return {
        "hardware": engine.hardware,
        "context": engine.context,
        "requests_that_fit": engine.fitting,
        "link": engine.link,
        "link_bytes_per_s": engine.costs().to_host.bytes_per_s,
        "over_vllm": cheaper.throughput_rps / stock.throughput_rps,
        "over_its_twin": cheaper.throughput_rps / twin.throughput_rps,
        "preemptions": cheaper.preemptions,
        "vllm_preemptions": stock.preemptions,
        "swapped": cheaper.swapped,
    }


def markdown(found: dict[str, Any]) -> Iterator[str]:
    """A table."""
    yield "| GPU | context | fit | link GB/s | over `vllm` | over its twin | preemptions | swapped |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for row in found["cells"]:
        yield (
            f"| {row['hardware']} | {row['context']:,} | {row['requests_that_fit']} | "
            f"{row['link_bytes_per_s'] / 1e9:.3g} | {row['over_vllm']:.3f} | {row['over_its_twin']:.3f} | "
            f"{row['preemptions']:.2f} | {row['swapped']:.0%} |"
        )


def main() -> None:
    """Print one JSON object, or a table."""
    parser = command_line(__doc__)
    markdown_option(parser)
    for flag, kind, default in (
        ("--context", int, CONTEXTS),
        ("--fitting", int, FITTING),
        ("--link", float, LINKS),
    ):
        parser.add_argument(flag, type=kind, action="append", help=f"repeatable (default {default})")
    parser.add_argument(
        "--hardware",
        action="append",
        choices=[*hardware_names(), "all"],
        help=f"repeatable (default {', '.join(HARDWARE)})",
    )
    jobs_option(parser)
    arguments = parser.parse_args()
    named = arguments.hardware or HARDWARE
    engines = [
        ShortEngine(*cell)
        for cell in product(
            hardware_names() if "all" in named else named,
            arguments.context or CONTEXTS,
            arguments.fitting or FITTING,
            arguments.link or LINKS,
        )
    ]
    found = report(engines, arguments.jobs)
    print("\n".join(markdown(found)) if arguments.markdown else json.dumps(found))


if __name__ == "__main__":
    main()
