"""Every request ends once, whatever happens to the instances: `python bench/gateway_storm.py --json`.

A gateway as a process of its own, over small instances (`--pools`, six by default) or, with `--real`, over real
vLLM engines of the demo model. Thousands of clients ask for greedy answers, streamed and whole, as completions and as
chats; one in ten leaves early, some have a target for their first token. Meanwhile instances are killed (SIGKILL),
frozen for seconds (SIGSTOP, SIGCONT) and, where they are small ones, made to answer garbage, each again and again.

`unaccounted` are requests without exactly one line in the gateway's access log that agrees with what the client saw;
`wrong` are answers, whole or broken off, that differ from the undisturbed ones. Exit status 1 for any of those, for a
client that HUNG past the limit or whose connection was BROKEN with no word, if not every instance is ready again
afterwards, if the gateway does not end with code 0, or if its memory (in MiB: before, at most, after) grew by 50.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.storm_accounts import unaccounted, wrong
from bench.storm_clients import Asked, Ending, storm, undisturbed
from bench.storm_harm import FREEZE, GARBAGE, KILL, harm_all
from bench.storm_process import GatewayProcess, Memory
from headway.traces.demo_tasks import demo_requests

TOKENS = (10, 100)
"""The shortest and the longest answer."""

MOST_GROWTH_MIB = 50.0
"""What a gateway may take in addition: about 10 MiB are caches and buffers that fill once."""

START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A storm: how many requests at which rate, how often harm comes, and how long a client waits at most.

    `texts` are the different prompts; each is asked many times, so that the undisturbed answers are soon there.
    """

    real: bool = False
    pools: str = "lp=4,hp=2"
    requests: int = 3000
    rate_rps: float = 120.0
    texts: int = 60
    harm_every_s: float = 1.5
    freeze_s: float = 4.0
    limit_s: float = 60.0
    seed: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is done to instances; vLLM's do not answer garbage when they are told to."""
        return (FREEZE, KILL) if self.real else (FREEZE, KILL, GARBAGE)

    @property
    def model(self) -> str:
        """What clients ask for."""
        return "demo" if self.real else "small"


SMALL = Plan()
REAL = Plan(
    real=True, pools="lp=1,hp=1", requests=400, rate_rps=6.0, texts=12, harm_every_s=15.0, limit_s=120.0
)


def main() -> int:
    """Print `{"requests": N, "ends": {...}, "unaccounted": 0, "wrong": 0, ..}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--real", action="store_true", help="real vLLM engines of the demo model")
    parser.add_argument("--pools", help=f"default {SMALL.pools}, with --real {REAL.pools}")
    parser.add_argument("--requests", type=int, help=f"default {SMALL.requests}, with --real {REAL.requests}")
    rates = f"default {SMALL.rate_rps:g}, with --real {REAL.rate_rps:g}"
    parser.add_argument("--rate", type=float, dest="rate_rps", help=f"requests a second; {rates}")
    parser.add_argument("--seed", type=int)
    given = vars(parser.parse_args())
    del given["json"]
    plan = REAL if given["real"] else SMALL
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    with tempfile.TemporaryDirectory() as folder:
        result = run(plan, Path(folder))
    print(json.dumps(result))
    return 0 if passed(result) else 1


def passed(result: Mapping[str, Any]) -> bool:
    """Whether every request ended once, said how, and all instances came back."""
    never = ("unaccounted", "wrong", "exit_code")
    ends, memory = result["ends"], result["gateway_memory_mib"]
    return (
        not any(result[key] for key in never)
        and not ends["hung"] + ends["broken"]
        and result["recovered"]
        and memory["peak"] - memory["start"] < MOST_GROWTH_MIB
    )


def run(plan: Plan, folder: Path) -> dict[str, Any]:
    """One storm; the gateway's log and access log stay in `folder`."""
    gateway = GatewayProcess(plan.pools, folder, real=plan.real)
    try:
        print(f"starting {plan.pools}", file=sys.stderr)
        if not gateway.wait_ready(START_TIMEOUT_S):
            raise SystemExit(f"the instances are not ready:\n{gateway.log.read_text()[-3000:]}")
        return asyncio.run(_run(plan, gateway))
    finally:
        gateway.stop()


async def _run(plan: Plan, gateway: GatewayProcess) -> dict[str, Any]:
    calm, requests = questions(plan)
    expected = await undisturbed(gateway.url, calm, plan.model, plan.limit_s)
    answers = {(heard.asked.prompt, heard.asked.chat): heard.text for heard in expected}
    print(f"{len(calm)} answers undisturbed; sending {len(requests)} requests", file=sys.stderr)
    memory, harm = Memory(gateway.resident_mib()), Counter[str]()
    watching = asyncio.create_task(memory.watch(gateway))
    rng, pid = random.Random(plan.seed), gateway.process.pid
    harming = asyncio.create_task(harm_all(pid, plan.kinds, rng, plan.harm_every_s, plan.freeze_s, harm))
    try:
        heard = await storm(gateway.url, requests, plan.model, plan.limit_s)
    finally:
        harming.cancel()
        await asyncio.wait([harming])
    calmed_s = time.monotonic()
    recovered = await asyncio.to_thread(gateway.wait_ready, START_TIMEOUT_S)
    recovered_s = time.monotonic() - calmed_s
    watching.cancel()
    memory.end = gateway.resident_mib()
    memory.peak = max(memory.peak, memory.end)
    told = gateway.instances()
    exit_code = await asyncio.to_thread(gateway.stop)
    lines = [json.loads(line) for line in gateway.access_log.read_bytes().splitlines()]
    refused = Counter(str(one.status) for one in heard if one.ending is Ending.REFUSED)
    broke_off = Counter(one.said for one in heard if one.ending is Ending.INTERRUPTED)
    return {
        "instances": plan.pools,
        "real": plan.real,
        "requests": len(requests),
        "ends": {ending.value: sum(one.ending is ending for one in heard) for ending in Ending},
        "unaccounted": len(unaccounted([*expected, *heard], lines)),
        "wrong": len(wrong([*expected, *heard], answers)),
        "resumed": sum(line.get("resumes", 0) > 0 for line in lines),
        "handed_off": sum(line.get("moves", 0) > 0 for line in lines),
        "refused_by_status": dict(refused),
        "interrupted_because": dict(broke_off.most_common(5)),
        "longest_wait_s": round(max(one.waited_s for one in heard), 3),
        "harm": dict(harm),
        "restarts": sum(each["restarts"] for each in told),
        "gateway_memory_mib": {name: round(size, 1) for name, size in asdict(memory).items()},
        "recovered": recovered,
        "recovered_after_s": round(recovered_s, 1),
        "exit_code": exit_code,
    }


def questions(plan: Plan) -> tuple[list[Asked], list[tuple[float, Asked]]]:
    """Each different question once, and the storm's requests with their times (a Poisson process)."""
    rng = random.Random(plan.seed)
    texts = [request.prompt or "" for request in demo_requests(plan.texts, 1.0, plan.seed)]
    sizes = [rng.randint(*TOKENS) for _ in texts]
    calm = [
        Asked(f"calm-{number}-{chat}", text, size, chat=chat, ignore_eos=plan.real)
        for number, (text, size) in enumerate(zip(texts, sizes, strict=True))
        for chat in (False, True)
    ]
    requests, at_s = [], 0.0
    for number in range(plan.requests):
        at_s += rng.expovariate(plan.rate_rps)
        asked = replace(
            rng.choice(calm),
            id=f"storm-{number}",
            stream=rng.random() < 0.85,
            ttft_ms=rng.choice([None, None, 1000, 4000]),
            leaves_after_s=rng.uniform(0.0, 1.0) if rng.random() < 0.1 else None,
        )
        requests.append((at_s, asked))
    return calm, requests


if __name__ == "__main__":
    sys.exit(main())
