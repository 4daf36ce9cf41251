"""Agent programs on two real instances: `python bench/gain/agents_real.py --out DIR --vllm-router PATH --json`.

The recorded coding agents of `agents.py` on two instances of the demo model, on this machine's cores: a thirty-second
of their tokens, and a sixty-fourth of their pauses, since a prompt is computed so much sooner than there. The KV memory
of both holds a third of the tokens of a draw's programs. Compared: stock order behind the program scheduling of
`vllm-router` (PATH of its program; left out without) and behind `cache-aware`, and `headway` behind `cache-aware`.
Every contender serves every draw, in turns, each time with other tokens. Per contender: mean and p99 of a program's
completion, each draw's mean, and what prefix caches held of the prompts. Nothing else should run meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from headway_reproduce.ascendra.real_servers import gateway, start_instances

from bench.command import command_line, say, stream_options
from bench.gain.agents import FIRST_SEED, SHARE_HELD, drawn, programs
from bench.gain.regret_workloads import DATA
from headway.engine.machine import machine_name, vllm_version
from headway.errors import SimulationError
from headway.lab.server import START_TIMEOUT_S, RunningServer, command_server, free_port
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.results import Summary, summarize
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

STOCK, OURS = "vllm", "headway"
RUST, CACHE_AWARE = "vllm-router", "cache-aware"
CONTENDERS = ((STOCK, RUST), (STOCK, CACHE_AWARE), (OURS, CACHE_AWARE))
INSTANCES, SEEDS = 2, 3
FEWER_TOKENS, SHORTER_PAUSES = 32, 64.0
KV_BLOCKS, BLOCK_TOKENS = 512, 32
"""Of an instance: as many of its longest programs as an H100 holds of the recorded ones."""
FLAGS = (
    *("--max-num-seqs", "16", "--max-num-batched-tokens", "1024", "--block-size", str(BLOCK_TOKENS)),
    *("--num-gpu-blocks-override", str(KV_BLOCKS + 1), "--enforce-eager"),
)
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class Contender:
    """What serves: its instances, and the address in front of them."""

    instances: Sequence[RunningServer]
    front: RunningServer

    def cache_counts(self) -> tuple[float, float]:
        """Prompt tokens that were looked for in prefix caches, and found there, so far."""
        totals = [asyncio.run(scrape(place.url, "vllm:prefix_cache")) for place in self.instances]
        return sum(each[QUERIES] for each in totals), sum(each[HITS] for each in totals)


def shrunk(turn: TraceRequest) -> TraceRequest:
    """A turn with fewer tokens and a shorter pause; each block is named by the last of those that it stands for."""
    input_tokens = max(1, turn.input_tokens // FEWER_TOKENS)
    blocks = turn.prefix_blocks[FEWER_TOKENS - 1 :: FEWER_TOKENS][: input_tokens // MOONCAKE_BLOCK_TOKENS]
    return replace(
        turn,
        arrival_s=turn.arrival_s / SHORTER_PAUSES,
        think_s=(turn.think_s or 0.0) / SHORTER_PAUSES,
        input_tokens=input_tokens,
        output_tokens=max(1, turn.output_tokens // FEWER_TOKENS),
        prefix_blocks=blocks,
    )


def draw(data: Path, seed: int) -> list[TraceRequest]:
    """The turns of a draw's programs."""
    kv_tokens = INSTANCES * KV_BLOCKS * BLOCK_TOKENS
    return [shrunk(turn) for turn in drawn(programs(data), kv_tokens * FEWER_TOKENS, seed, SHARE_HELD)]


@contextmanager
def contenders(rust: Path | None, out: Path) -> Iterator[Mapping[str, Contender]]:
    """All of them, ready; everything ends with the block. Raises UpstreamError if one does not start."""
    with ExitStack() as stack:
        started = {
            policy: start_instances(stack, policy, {"": policy}, INSTANCES, out, FLAGS)
            for policy in (STOCK, OURS)
        }
        places: dict[str, dict[str, RunningServer]] = {}
        for policy, servers in started.items():
            for server in servers.values():
                server.wait_ready(START_TIMEOUT_S)
            places[policy] = {name: RunningServer(each.url, each.pid) for name, each in servers.items()}
        found = {}
        for policy, router in CONTENDERS:
            name, instances = f"{policy} behind {router}", places[policy]
            if router == RUST and rust is not None:
                front = stack.enter_context(program_scheduling(rust, list(instances.values()), out))
            elif router != RUST:
                front = stack.enter_context(gateway(name, router, instances, out))
            else:
                continue
            found[name] = Contender(list(instances.values()), front)
        yield found


@contextmanager
def program_scheduling(rust: Path, instances: Sequence[RunningServer], out: Path) -> Iterator[RunningServer]:
    """vllm-router with its program scheduling, told what an instance's KV memory holds."""
    port = free_port()
    settings = json.dumps({"token_capacity_per_dp_rank": KV_BLOCKS * BLOCK_TOKENS})
    words = [
        *(str(rust), "--worker-urls", *(place.url for place in instances)),
        *("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())),
        *("--log-level", "error"),
        *("--enable-program-scheduling", "--program-scheduling-config-json", settings),
    ]
    with command_server(words, port, out / "vllm-router.log", name=RUST) as server:
        yield server


def sent(contender: Contender, requests: Sequence[TraceRequest], tokens_of: int) -> tuple[Summary, float]:
    """What a draw came to, and the share of its prompts found. Raises SimulationError if a request does not finish."""
    looked, found = contender.cache_counts()
    records = asyncio.run(
        replay(requests, ReplayOptions(url=contender.front.url, seed=tokens_of, timeout_s=600.0))
    ).records
    unfinished = sum(record.outcome != "finished" for record in records)
    if unfinished:
        raise SimulationError(f"{unfinished} of {len(requests)} requests did not finish")
    looked_after, found_after = contender.cache_counts()
    return summarize(records), (found_after - found) / (looked_after - looked)


def cell(runs: Sequence[tuple[Summary, float]]) -> dict[str, Any]:
    """One contender's figures over the draws."""
    means_s = [summary.mean_program_s or 0.0 for summary, _ in runs]
    return {
        "programs": sum(summary.programs or 0 for summary, _ in runs),
        "mean_program_s": fmean(means_s),
        "p99_program_s": fmean(summary.p99_program_s or 0.0 for summary, _ in runs),
        "by_seed": means_s,
        "cached": fmean(cached for _, cached in runs),
    }


def main() -> None:
    """Print one JSON object."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what the servers say")
    stream_options(parser, seeds=SEEDS)
    parser.add_argument("--vllm-router", type=Path, metavar="PATH", help="the Rust router's program")
    parser.add_argument("--data", type=Path, default=DATA, help="recorded traces")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[tuple[Summary, float]]] = {}
    with contenders(arguments.vllm_router, arguments.out) as ready:
        seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        for number, (seed, name) in enumerate(product(seeds, ready)):
            summary, cached = sent(ready[name], draw(arguments.data, seed), tokens_of=number)
            runs.setdefault(name, []).append((summary, cached))
            say(f"seed {seed}, {name}: mean {summary.mean_program_s or 0.0:.1f} s, {cached:.0%} cached")
    found = {name: cell(each) for name, each in runs.items()}
    print(json.dumps({"measured_on": machine_name(), "vllm": vllm_version(), "cells": found}))


if __name__ == "__main__":
    main()
