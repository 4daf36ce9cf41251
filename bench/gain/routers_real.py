"""Routers over two real instances: `python bench/gain/routers_real.py --out DIR --json`.

Two instances of the demo model on this machine's cores, one gateway for each router in front of both. Conversations of
five turns, each some 512 tokens longer than the one before (`bench/streams.py`); KV memory of an instance holds
some thirty long ones. A stream is sent to each router in turn, each time with other tokens, so that no prefix is found
that was not sent in that run. Loads are of what the two get through of requests that are all there at once, when hardly
a prefix is found; as they come they get through more. Per load and router, over all seeds' requests: mean and p99 JCT,
mean time to the first token, each seed's mean JCT, and what the prefix caches held of the prompts. A run takes some
30 s; nothing else should run meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from headway_reproduce.ascendra.real_servers import gateway, start_instances

from bench.command import command_line, say, stream_options
from bench.figures import jcts_s, latencies
from bench.streams import conversations
from headway.core.record import Record
from headway.engine.machine import machine_name, vllm_version
from headway.errors import SimulationError
from headway.lab.server import START_TIMEOUT_S, RunningServer
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.results.metrics import ttft_s
from headway.statistics import mean
from headway.traces import TraceRequest, at_once

ROUTERS = ("round-robin", "least-work", "cache-aware")
INSTANCES = 2
LOADS, SEEDS, SECONDS = (1.0, 1.5), 3, 20.0
KV_BLOCKS, BLOCK_TOKENS = 2560, 32
FLAGS = (
    *("--max-num-seqs", "16", "--max-num-batched-tokens", "1024", "--block-size", str(BLOCK_TOKENS)),
    *("--num-gpu-blocks-override", str(KV_BLOCKS + 1), "--enforce-eager"),
)
CAPACITY_SEED, CAPACITY_RPS = 99, 10.0
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class Servers:
    """The running servers: two instances, and a gateway for each router."""

    instances: Sequence[RunningServer]
    gateways: Mapping[str, RunningServer]

    def cache_counts(self) -> tuple[float, float]:
        """Prompt tokens looked up in prefix caches, and found there, so far."""
        totals = [asyncio.run(scrape(place.url, "vllm:prefix_cache")) for place in self.instances]
        return sum(each[QUERIES] for each in totals), sum(each[HITS] for each in totals)


@dataclass(frozen=True, slots=True)
class Sent:
    """Records of a stream, and the share of its prompt tokens that was cached."""

    records: Sequence[Record]
    cached: float


@contextmanager
def servers(policy: str, out: Path) -> Iterator[Servers]:
    """Instances and gateways; everything ends with the block. Raises UpstreamError if one does not start."""
    with ExitStack() as stack:
        started = start_instances(stack, "instance", {"": policy}, INSTANCES, out, FLAGS)
        for server in started.values():
            server.wait_ready(START_TIMEOUT_S)
        places = {name: RunningServer(server.url, server.pid) for name, server in started.items()}
        gateways = {router: stack.enter_context(gateway(router, router, places, out)) for router in ROUTERS}
        yield Servers(list(places.values()), gateways)


def send(running: Servers, router: str, requests: Sequence[TraceRequest], tokens_of: int) -> Sent:
    """Send a stream, its tokens drawn by `tokens_of`. Raises SimulationError if a request does not finish."""
    gc.collect()
    looked, found = running.cache_counts()
    options = ReplayOptions(url=running.gateways[router].url, seed=tokens_of)
    records = asyncio.run(replay(requests, options)).records
    finished = [record for record in records if record.outcome == "finished"]
    if len(finished) < len(requests):
        raise SimulationError(f"{len(requests) - len(finished)} of {len(requests)} requests did not finish")
    looked_after, found_after = running.cache_counts()
    return Sent(finished, (found_after - found) / (looked_after - looked))


def capacity_rps(running: Servers) -> float:
    """Requests a second of both instances with all requests queued."""
    backlog = at_once(conversations(CAPACITY_RPS, SECONDS, CAPACITY_SEED))
    send(running, ROUTERS[0], backlog[: len(backlog) // 10], tokens_of=-1)  # warms up the instances
    records = send(running, ROUTERS[0], backlog, tokens_of=-2).records
    return len(backlog) / max(jcts_s(records))


def measured(
    running: Servers, rps: float, loads: Sequence[float], seeds: int
) -> dict[tuple[float, str], list[Sent]]:
    """Every router's streams, run by run in turns."""
    found: dict[tuple[float, str], list[Sent]] = {}
    for number, (seed, load, router) in enumerate(product(range(seeds), loads, ROUTERS)):
        sent = send(running, router, conversations(load * rps, SECONDS, seed), tokens_of=number)
        found.setdefault((load, router), []).append(sent)
        mean_s = mean(jcts_s(sent.records))
        say(f"load {load:g}, seed {seed}, {router}: mean JCT {mean_s:.3f} s, {sent.cached:.0%} cached")
    return found


def cell(runs: Sequence[Sent]) -> dict[str, Any]:
    """Figures of a router's streams at a load."""
    by_seed = [jcts_s(sent.records) for sent in runs]
    first_tokens_s = [ttft_s(record) or 0.0 for sent in runs for record in sent.records]
    return {
        **latencies([each for times_s in by_seed for each in times_s]),
        "mean_ttft_s": mean(first_tokens_s),
        "by_seed": [mean(times_s) for times_s in by_seed],
        "cached": mean(sent.cached for sent in runs),
    }


def main() -> None:
    """Print one JSON object: a cell for each load, with every router in it."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for what the servers say")
    stream_options(parser, seeds=SEEDS, loads=LOADS)
    parser.add_argument("--policy", default="vllm", help="of both instances (default: vllm)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    loads = tuple(arguments.load or LOADS)
    with servers(arguments.policy, arguments.out) as running:
        rps = capacity_rps(running)
        say(f"capacity {rps:.1f} requests a second")
        found = measured(running, rps, loads, arguments.seeds)
    print(
        json.dumps(
            {
                "measured_on": machine_name(),
                "vllm": vllm_version(),
                "policy": arguments.policy,
                "capacity_rps": rps,
                "cells": {
                    f"{load:g}": {router: cell(found[load, router]) for router in ROUTERS} for load in loads
                },
            }
        )
    )


if __name__ == "__main__":
    main()
