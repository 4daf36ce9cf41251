"""A batch beside interactive requests on the real engine: `python bench/gain/batch_beside.py --out DIR --json`.

One instance of the demo model behind `headway serve` with `--batch-dir`, under `--policy` (default `headway`).
Interactive requests come in waves, 0.2 to 0.9 of capacity and back twice in a run, with two targets (first token 1 s,
between tokens 0.15 s). Capacity is what the instance gets through of these requests when all are there.
Three runs of `--seconds`, the same stream each time, repeated `--rounds` times with another stream, so that a machine
whose speed changes slows down all three:

alone      the interactive requests
batch      an endless batch alone: what the engine does offline
beside     both; with `--kill` the gateway is killed half-way (SIGKILL) and started again

`headline`: batch tokens a second beside over (offline tokens a second times the idle share, 1 less the mean of the
waves), interactive goodput beside less alone, p99 TTFT beside over alone. `answers`: lines that were answered, and how
many `custom_id`s more than once or never (0 is right). Interactive requests that the kill broke have failed. `--svg`
draws what both came to over time in the last round. `--quick`: 20 s a run. About 11 minutes by default; nothing else
should run meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import math
import signal
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import aiohttp
import msgspec
from headway_reproduce.ascendra.real_servers import start_instances
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.command import command_line, out_option, say
from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo
from headway.engine.machine import machine_name, vllm_version
from headway.errors import SimulationError
from headway.http_client import NO_ANSWER
from headway.lab.server import START_TIMEOUT_S, CommandProcess, free_port, headway_command
from headway.loadgen import ReplayOptions, replay
from headway.results import summarize
from headway.results.svg import INK, PALETTE, draw
from headway.traces import TraceRequest, at_once
from headway.whole_file import write_whole

LOW, HIGH = 0.2, 0.9
SECONDS, QUICK_S, WAVES, ROUNDS = 80.0, 20.0, 2, 2
PROMPT_TOKENS, ANSWER_TOKENS = (32, 256), (16, 96)
BATCH_PROMPT_TOKENS, BATCH_ANSWER_TOKENS, BATCH_LINES = 192, 64, 20_000
TARGETS = Slo(ttft_s=1.0, tbt_s=0.15)
CAPACITY_REQUESTS = 200
FLAGS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "1024", "--enforce-eager")
ENDPOINT = "/v1/completions"
READY_S, SETTLE_S = 120.0, 120.0
FINAL = ("completed", "cancelled", "expired", "failed")
POINTS = 40
"""Of a picture's course."""


def request(number: int, arrival_s: float, rng: Random, slo: Slo) -> TraceRequest:
    """An interactive request."""
    return TraceRequest(
        id=f"i{number}",
        arrival_s=arrival_s,
        input_tokens=rng.randint(*PROMPT_TOKENS),
        output_tokens=rng.randint(*ANSWER_TOKENS),
        slo=slo,
    )


def waves(
    rps: float,
    seconds: float,
    seed: int,
    made_as: Callable[[int, float, Random, Slo], TraceRequest] = request,
    slo: Slo = TARGETS,
) -> list[TraceRequest]:
    """Requests whose rate goes from LOW to HIGH times `rps` and back, WAVES times (thinned Poisson arrivals).

    Those of different seeds have different ids.
    """
    rng, at_s, made = Random(seed), 0.0, list[TraceRequest]()
    while (at_s := at_s + rng.expovariate(HIGH * rps)) < seconds:
        height = LOW + (HIGH - LOW) * (1 - math.cos(2 * math.pi * WAVES * at_s / seconds)) / 2
        if rng.random() < height / HIGH:
            made.append(made_as(1_000_000 * seed + len(made), at_s, rng, slo))
    return made


def batch_file(seed: int) -> bytes:
    """The lines of a batch that does not finish within a run."""
    rng = Random(f"batch {seed}")
    lines = (
        {
            "custom_id": f"b{number}",
            "method": "POST",
            "url": ENDPOINT,
            "body": {
                "prompt": [rng.randint(256, 999) for _ in range(BATCH_PROMPT_TOKENS)],
                "max_tokens": BATCH_ANSWER_TOKENS,
                "ignore_eos": True,
            },
        }
        for number in range(BATCH_LINES)
    )
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


# ---- the gateway -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Site:
    """A gateway over one instance that can be killed and started again."""

    instance: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: CommandProcess | None = None

    @property
    def url(self) -> str:
        """The base URL for clients."""
        assert self.process is not None
        return self.process.url

    async def start(self) -> None:
        """Start the gateway and wait until it takes requests. Raises UpstreamError if it does not."""
        words = ("serve", "--join", self.instance, "--port", str(self.port))
        command = headway_command(*words, "--batch-dir", str(self.folder / "batches"))
        self.process = CommandProcess(command, self.port, self.folder / "gateway.log", name="the gateway")
        await asyncio.to_thread(self.process.wait_ready, "/ready", READY_S)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the gateway with this signal."""
        assert self.process is not None
        self.process.end(number)


@contextmanager
def instance(policy: str, out: Path) -> Iterator[str]:
    """Run an instance; yield its URL when it is ready."""
    with ExitStack() as stack:
        [server] = start_instances(stack, "instance", {"": policy}, 1, out, FLAGS).values()
        server.wait_ready(START_TIMEOUT_S)
        yield server.url


@asynccontextmanager
async def gateway(instance_url: str, out: Path) -> AsyncIterator[Site]:
    """Run a gateway."""
    site = Site(instance_url, out)
    try:
        await site.start()
        yield site
    finally:
        site.end()


# ---- batches ---------------------------------------------------------------------------------------------


async def begin_batch(url: str, seed: int) -> str:
    """Start a batch; return its id once it is being served."""
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", batch_file(seed), filename="in.jsonl")
    async with aiohttp.ClientSession(url) as session:
        async with session.post("/v1/files", data=form) as answer:
            file = await answer.json()
        asked = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
        async with session.post("/v1/batches", json=asked) as answer:
            batch_id: str = (await answer.json())["id"]
    while (await batch(url, batch_id))["status"] == "validating":
        await asyncio.sleep(0.1)
    return batch_id


async def batch(url: str, batch_id: str) -> dict[str, Any]:
    """The batch as the gateway shows it, waiting until it exists. Raises SimulationError if it does not come back."""
    until_s = time.monotonic() + READY_S
    async with aiohttp.ClientSession(url) as session:
        while time.monotonic() < until_s:
            try:
                async with session.get(f"/v1/batches/{batch_id}") as answer:
                    found: dict[str, Any] = await answer.json()
                    return found
            except NO_ANSWER:
                await asyncio.sleep(0.1)
    raise SimulationError(f"the gateway did not answer within {READY_S:g} s")


async def end_batch(url: str, batch_id: str) -> dict[str, int]:
    """Cancel a batch and count its answered lines: each `custom_id` must appear once."""
    async with aiohttp.ClientSession(url) as session:
        async with session.post(f"/v1/batches/{batch_id}/cancel"):
            pass
        until_s = time.monotonic() + SETTLE_S
        while (found := await batch(url, batch_id))["status"] not in FINAL and time.monotonic() < until_s:
            await asyncio.sleep(0.2)
        named: Counter[str] = Counter()
        for file_id in (found["output_file_id"], found["error_file_id"]):
            if file_id is not None:
                async with session.get(f"/v1/files/{file_id}/content") as answer:
                    named.update(json.loads(line)["custom_id"] for line in (await answer.read()).splitlines())
    return {
        "lines": len(named),
        "completed": found["request_counts"]["completed"],
        "more_than_once": sum(count > 1 for count in named.values()),
        "missing": BATCH_LINES - len(named),
    }


async def output_tokens(url: str, batch_id: str) -> int:
    """Tokens of a batch's stored answers."""
    tokens: int = (await batch(url, batch_id))["usage"]["output_tokens"]
    return tokens


# ---- runs ------------------------------------------------------------------------------------------------


async def send(url: str, requests: Sequence[TraceRequest], seed: int) -> list[Record]:
    """Records of interactive requests; those that a killed gateway broke have failed."""
    found = (await replay(requests, ReplayOptions(url=url, seed=seed))).records
    broken = sum(each.outcome is Outcome.FAILED for each in found)
    if broken:
        say(f"{broken} requests failed")
    return found


async def beside(
    site: Site, requests: Sequence[TraceRequest], seconds: float, *, kill: bool
) -> dict[str, Any]:
    """Run both together: tokens a second of the batch, the interactive records, and the batch's answered lines."""
    batch_id = await begin_batch(site.url, seed=2)
    before = await output_tokens(site.url, batch_id)
    course: list[tuple[float, int]] = []

    async def killing() -> None:
        await asyncio.sleep(seconds / 2)
        if kill:
            site.end(signal.SIGKILL)
            await site.start()
            say("the gateway was killed, and serves again")

    async def counting() -> None:
        began_s = time.monotonic()
        for point in range(1, POINTS + 1):
            await asyncio.sleep(max(0.0, began_s + point * seconds / POINTS - time.monotonic()))
            tokens = await output_tokens(site.url, batch_id) - before
            course.append((time.monotonic() - began_s, tokens))

    records, _, _ = await asyncio.gather(send(site.url, requests, seed=3), killing(), counting())
    return {
        "tokens_per_s": course[-1][1] / course[-1][0],
        "course": course,
        "records": records,
        "answers": await end_batch(site.url, batch_id),
    }


async def offline(site: Site, seconds: float) -> float:
    """Tokens a second of a batch alone."""
    batch_id = await begin_batch(site.url, seed=1)
    await asyncio.sleep(min(10.0, seconds / 2))  # until as many are in flight as the engine can run
    before = await output_tokens(site.url, batch_id)
    await asyncio.sleep(seconds)
    rate = (await output_tokens(site.url, batch_id) - before) / seconds
    await end_batch(site.url, batch_id)
    return rate


async def capacity_rps(site: Site) -> float:
    """Requests a second that the instance serves if all arrive at once. Raises SimulationError if some fail."""
    rng = Random("capacity")
    backlog = at_once([request(number, 0.0, rng, NO_TARGETS) for number in range(CAPACITY_REQUESTS)])
    await send(site.url, backlog[: CAPACITY_REQUESTS // 10], seed=0)  # one-time costs
    records = await send(site.url, backlog, seed=1)
    failed = sum(record.outcome is not Outcome.FINISHED for record in records)
    if failed:
        raise SimulationError(
            f"{failed} of {len(records)} requests failed: is the machine busy with something else?"
        )
    return len(records) / max(record.finished_s or 0.0 for record in records)


def picture(course: Sequence[tuple[float, int]], records: Sequence[Record], offline_tps: float) -> str:
    """Stacked tokens a second of both, and the rate of a batch alone, as an SVG element."""
    marks = [(0.0, 0), *course]
    spans = list(pairwise(marks))
    batch_tps = [(to[1] - since[1]) / (to[0] - since[0]) for since, to in spans]
    tokens = [sum(tokens_between(each, since[0], to[0]) for each in records) for since, to in spans]
    others_tps = [count / (to[0] - since[0]) for count, (since, to) in zip(tokens, spans, strict=True)]

    def paint(axes: Axes) -> None:
        axes.stackplot([to[0] for _, to in spans], others_tps, batch_tps, colors=PALETTE[:2])
        axes.axhline(offline_tps, color=INK, linewidth=1.0, linestyle=":")
        axes.set_xlabel("seconds")
        axes.set_ylabel("tokens a second")

    legend: list[tuple[Any, str]] = [
        (Patch(color=colour), name)
        for colour, name in zip(PALETTE, ("interactive requests", "batch beside them"), strict=False)
    ]
    alone = Line2D([], [], color=INK, linewidth=1.0, linestyle=":"), "a batch alone"
    return draw("A batch fills what interactive requests leave", (9.0, 3.0), paint, [*legend, alone])


def tokens_between(record: Record, from_s: float, until_s: float) -> float:
    """Tokens of an answer in this interval, assuming an even spread."""
    if record.first_token_s is None or record.finished_s is None:
        return 0.0
    lasted_s = max(record.finished_s - record.first_token_s, 1e-6)
    there_s = min(until_s, record.finished_s) - max(from_s, record.first_token_s)
    return record.output_tokens * max(0.0, there_s) / lasted_s


def interactive(records: Sequence[Record]) -> dict[str, Any]:
    """Figures of interactive requests."""
    summary = summarize(records)
    return {
        "requests": len(records),
        "goodput": summary.goodput,
        "p50_ttft_s": summary.p50_ttft_s,
        "p99_ttft_s": summary.p99_ttft_s,
        "failed": summary.failed,
    }


async def measured(arguments: Namespace, instance_url: str) -> dict[str, Any]:
    """All runs."""
    seconds = QUICK_S if arguments.quick else arguments.seconds
    alone, together = list[Record](), list[Record]()
    offline_tps, beside_tps = list[float](), list[float]()
    answers: Counter[str] = Counter()
    async with gateway(instance_url, arguments.out) as site:
        rps = await capacity_rps(site)
        say(f"capacity {rps:.1f} requests a second")
        for number in range(arguments.rounds):
            requests = waves(rps, seconds, seed=number)
            alone += await send(site.url, requests, seed=2)
            offline_tps.append(await offline(site, seconds))
            both = await beside(site, requests, seconds, kill=arguments.kill)
            together += both["records"]
            beside_tps.append(both["tokens_per_s"])
            answers.update(both["answers"])
            say(f"round {number + 1} of {arguments.rounds}: {beside_tps[-1]:.0f} tokens a second beside")
    if arguments.svg is not None:
        write_whole(arguments.svg, picture(both["course"], both["records"], offline_tps[-1]).encode())
    return {
        "measured_on": machine_name(),
        "vllm": vllm_version(),
        "policy": arguments.policy,
        "killed": arguments.kill,
        "seconds": seconds,
        "rounds": arguments.rounds,
        "capacity_rps": rps,
        "alone": interactive(alone),
        "beside": interactive(together),
        "batch": {"offline_tokens_per_s": fmean(offline_tps), "beside_tokens_per_s": fmean(beside_tps)},
        "answers": answers,
        "headline": headline(
            interactive(alone), interactive(together), fmean(beside_tps) / fmean(offline_tps)
        ),
    }


def headline(alone: Mapping[str, Any], beside: Mapping[str, Any], of_offline: float) -> dict[str, float]:
    """What the batch got, `of_offline` of its rate alone, and what it cost the interactive requests."""
    return {
        "batch_share_of_idle": of_offline / (1 - (LOW + HIGH) / 2),
        "goodput_less": alone["goodput"] - beside["goodput"],
        "p99_ttft_times": beside["p99_ttft_s"] / alone["p99_ttft_s"],
    }


def main() -> None:
    """Print one JSON object."""
    parser = command_line(__doc__)
    out_option(parser, "what servers say, and the batches")
    parser.add_argument("--policy", default="headway", help="of the instance (default: headway)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of a run (default {SECONDS:g})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the three runs (default {ROUNDS})")
    parser.add_argument("--kill", action="store_true", help="kill the gateway half-way, and start it again")
    parser.add_argument("--svg", type=Path, help="file for a picture of both over time")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_S:g} s a run, to see that it works")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with instance(arguments.policy, arguments.out) as url:
        print(json.dumps(asyncio.run(measured(arguments, url))))


if __name__ == "__main__":
    main()
