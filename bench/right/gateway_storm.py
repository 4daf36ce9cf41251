"""Every request ends once, whatever happens to the instances: `python bench/right/gateway_storm.py --json`.

A gateway as a process of its own, over small instances (`--pools`, six by default) or, with `--real`, over real
vLLM engines of the demo model. Thousands of clients ask for greedy answers, streamed and whole, as completions and as
chats; one in ten leaves early, some have a target for their first token. Meanwhile instances are killed (SIGKILL),
frozen for seconds (SIGSTOP, SIGCONT) and, where they are small ones, made to answer garbage, each again and again.

`unaccounted` are requests without exactly one line in the gateway's access log that agrees with what the client saw;
`wrong` are answers, whole or broken off, that differ from the undisturbed ones. Exit status 1 for any of those, for a
client that HUNG past the limit or whose connection was BROKEN with no word, if more than 10 % were refused or more than
5 % interrupted, if not every instance is ready again afterwards, if the gateway does not end with code 0, or if its
memory (in MiB: before, at most, after) grew by 50.

With `--hostile` nothing is done to instances. Honest tenants ask alone, then beside attackers (`storm_hostile.py`) at a
gateway with keys, few files and little room for bodies. `good` is the share of honest answers that are right and in
time. Exit status 1 if they have less than 0.95 of what they have alone, if `/health` takes over 250 ms in the worst
hundredth, if memory grows by more than the gateway may hold (`allowed`), if an attacker reads of another tenant, or if
there were too few `attacks` (the machine was busy). A bench by itself: it needs two idle cores.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from bench.command import command_line
from bench.right.storm_clients import Asked, Ending, Heard, is_wrong, storm, unaccounted, undisturbed, wrong
from bench.right.storm_hostile import (
    BODY_MIB,
    BUFFERED_MIB,
    HONEST,
    MARK,
    OPERATOR,
    key_of,
    keys_file,
)
from headway.errors import UpstreamError
from headway.lab.server import CommandProcess, free_port
from headway.traces.demo_tasks import demo_requests

# ---- what a storm does to instances ------------------------------------------------------------------

KILL, FREEZE, GARBAGE = "kills", "freezes", "garbage"


def instances_of(gateway_pid: int) -> list[int]:
    """The processes that a gateway has launched, ordered by the port that each serves on."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if folder.name.isdecimal() and f"PPid:\t{gateway_pid}\n" in (folder / "status").read_text():
                words = (folder / "cmdline").read_text().split("\0")
                found.append((int(words[words.index("--port") + 1]), int(folder.name)))
    return [pid for _, pid in sorted(found)]


async def kill(pid: int) -> None:
    """Kill the process alone; its children are for the gateway to end."""
    os.kill(pid, signal.SIGKILL)


async def freeze(pid: int, freeze_s: float) -> None:
    """Freeze all of its processes for a while."""
    try:
        os.killpg(pid, signal.SIGSTOP)
        await asyncio.sleep(freeze_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


async def garbage(pid: int) -> None:
    """Have a small instance of the storm answer garbage for a while."""
    os.kill(pid, signal.SIGUSR1)


async def harm_all(
    gateway_pid: int,
    kinds: Sequence[str],
    rng: random.Random,
    every_s: float,
    freeze_s: float,
    done: Counter[str],
) -> None:
    """Harm instances drawn by lot, with each kind of harm in turn, until cancelled; counted in `done`.

    The pause between two harms is `every_s`, more or less by half.
    """
    ways: dict[str, Callable[[int], Awaitable[None]]] = {
        KILL: kill,
        FREEZE: lambda pid: freeze(pid, freeze_s),
        GARBAGE: garbage,
    }
    async with asyncio.TaskGroup() as group:
        for kind in cycle(kinds):
            await asyncio.sleep(every_s * rng.uniform(0.5, 1.5))
            if pids := instances_of(gateway_pid):
                group.create_task(_harm(ways[kind], rng.choice(pids)))
                done[kind] += 1


async def _harm(way: Callable[[int], Awaitable[None]], pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        await way(pid)


# ---- the gateway as a process ------------------------------------------------------------------------

DELAY_S = 0.01
"""Delay of a small instance before each token."""

REAL_FLAGS = ("--dtype", "float32", "--max-num-seqs", "64")
"""In float32 a greedy answer does not depend on the rest of the batch."""

START_TIMEOUT_S = STOP_TIMEOUT_S = 300.0
SAMPLE_S = 0.25
MIB = 1 << 20


class GatewayProcess(CommandProcess):
    """A gateway over vLLM engines of the demo model (`real`) or small instances; its logs are in `folder`.

    `layout` replaces the default pool flags for engines. `hostile`: the gateway requires the keys of `storm_hostile`,
    and has small instances.
    """

    def __init__(
        self, pools: str, folder: Path, *, real: bool, hostile: bool = False, layout: Sequence[str] = ()
    ) -> None:
        port = free_port()
        self.access_log = folder / "access.jsonl"
        small = Path(__file__).with_name("storm_servers.py")
        words = [sys.executable, str(small), "gateway", str(port), pools, str(self.access_log)]
        self._headers = {}
        if hostile:
            keys = folder / "keys"
            keys.write_text(keys_file())
            words.append(str(keys))
            self._headers = {"Authorization": f"Bearer {OPERATOR}"}
        if real:
            flags = [
                *(layout or ("--pools", pools)),
                "--port",
                str(port),
                "--access-log",
                str(self.access_log),
            ]
            words = [sys.executable, "-m", "headway.cli", "serve", "demo", *flags, "--", *REAL_FLAGS]
        environment = {**os.environ, "STORM_DELAY_S": str(DELAY_S)}
        super().__init__(words, port, folder / "log", name=pools, environment=environment)

    def instances(self) -> list[dict[str, Any]]:
        """What the gateway's page says about each instance; empty while it does not answer."""
        asked = urllib.request.Request(f"{self.url}/dashboard/state", headers=self._headers)
        with suppress(OSError, urllib.error.URLError, ValueError):
            with urllib.request.urlopen(asked, timeout=30) as response:
                told: list[dict[str, Any]] = json.load(response)["instances"]
            return told
        return []

    def wait_all_ready(self) -> None:
        """Return once every instance is ready. Raises UpstreamError if that takes too long."""

        def ready(_: str) -> bool:
            told = self.instances()
            return bool(told) and all(each["condition"] == "ready" for each in told)

        self.wait_ready(ready, START_TIMEOUT_S)

    def recovers(self) -> bool:
        """Whether every instance became ready in time."""
        try:
            self.wait_all_ready()
        except UpstreamError:
            return False
        return True

    def resident_mib(self) -> float:
        """Its resident memory now; 0 once it has ended."""
        with suppress(OSError):
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / MIB
        return 0.0

    def stop(self) -> int:
        """Ask it to stop; return its exit code."""
        return self.end(timeout_s=STOP_TIMEOUT_S)


@dataclass(slots=True)
class Memory:
    """Resident memory of a gateway, in MiB."""

    start: float = 0.0
    peak: float = 0.0
    end: float = 0.0

    async def watch(self, gateway: GatewayProcess) -> None:
        """Update the maximum until cancelled."""
        while True:
            self.peak = max(self.peak, gateway.resident_mib())
            await asyncio.sleep(SAMPLE_S)


# ---- the bench ---------------------------------------------------------------------------------------

TOKENS = (10, 100)
"""The shortest and the longest answer."""

MOST_GROWTH_MIB = 50.0
"""Memory that a gateway may take in addition: about 10 MiB are caches and buffers that fill once."""

LEAST_GOOD, MOST_HEALTH_MS = 0.95, 250.0
LEAST_ATTACKS = 5000
"""On a busy machine attackers may not get to attack; then nothing was withstood."""
ALLOWED_MIB = BUFFERED_MIB + 4 * BODY_MIB + MOST_GROWTH_MIB
"""Growth allowed beside attackers: buffered bodies, and the largest body on its way into another process, in four
pieces at most.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """A storm: how many requests at which rate, the pause between harms, and how long a client waits at most.

    `texts` is the number of different prompts; each is asked many times, so that the undisturbed answers are soon
    known. `most_refused` and `most_interrupted` are shares of the requests, without which a gateway that refuses
    everything would pass.
    """

    real: bool = False
    pools: str = "lp=4,hp=2"
    requests: int = 3000
    rate_rps: float = 120.0
    texts: int = 60
    harm_every_s: float = 1.5
    freeze_s: float = 4.0
    limit_s: float = 60.0
    most_refused: float = 0.1
    most_interrupted: float = 0.05
    seed: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of harm to instances; vLLM's cannot be told to answer garbage."""
        return (FREEZE, KILL) if self.real else (FREEZE, KILL, GARBAGE)

    @property
    def model(self) -> str:
        """The model that clients name."""
        return "demo" if self.real else "small"


SMALL = Plan()
REAL = Plan(
    real=True, pools="lp=1,hp=1", requests=400, rate_rps=6.0, texts=12, harm_every_s=15.0, limit_s=120.0
)
HOSTILE = Plan(pools="lp=1,hp=1", requests=300, rate_rps=15.0, texts=12)


def main() -> int:
    """Print `{"requests": N, "ends": {...}, "unaccounted": 0, "wrong": 0, ..}`."""
    parser = command_line(__doc__)
    parser.add_argument("--real", action="store_true", help="real vLLM engines of the demo model")
    parser.add_argument("--hostile", action="store_true", help="attackers beside honest tenants")
    parser.add_argument("--pools", help=f"default {SMALL.pools}, with --real {REAL.pools}")
    parser.add_argument("--requests", type=int, help=f"default {SMALL.requests}, with --real {REAL.requests}")
    rates = f"default {SMALL.rate_rps:g}, with --real {REAL.rate_rps:g}"
    parser.add_argument("--rate", type=float, dest="rate_rps", help=f"requests a second; {rates}")
    parser.add_argument("--seed", type=int)
    given = vars(parser.parse_args())
    del given["json"]
    hostile = given.pop("hostile")
    plan = HOSTILE if hostile else REAL if given["real"] else SMALL
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    with tempfile.TemporaryDirectory() as folder:
        result = run(plan, Path(folder), hostile=hostile)
    print(json.dumps(result))
    return 0 if (withstood if hostile else passed)(result) else 1


def passed(result: Mapping[str, Any]) -> bool:
    """Whether every request ended once, said how, and all instances came back."""
    never = ("unaccounted", "wrong", "exit_code")
    ends, memory = result["ends"], result["gateway_memory_mib"]
    return (
        not any(result[key] for key in never)
        and not ends["hung"] + ends["broken"]
        and all(ends[ending] <= most for ending, most in result["at_most"].items())
        and result["recovered"]
        and memory["peak"] - memory["start"] < MOST_GROWTH_MIB
    )


def withstood(result: Mapping[str, Any]) -> bool:
    """Whether honest tenants were served as well as alone, and attackers got nothing."""
    memory = result["gateway_memory_mib"]
    return (
        not any(result[key] for key in ("wrong", "leaks", "exit_code"))
        and result["attacks"] >= LEAST_ATTACKS
        and result["good_beside"] >= LEAST_GOOD * result["good_alone"] > 0
        and result["health_ms"]["p99"] <= MOST_HEALTH_MS
        and memory["peak"] - memory["start"] <= result["allowed_mib"]
    )


def run(plan: Plan, folder: Path, *, hostile: bool = False) -> dict[str, Any]:
    """Run one storm; the gateway's log and access log stay in `folder`."""
    gateway = GatewayProcess(plan.pools, folder, real=plan.real, hostile=hostile)
    try:
        print(f"starting {plan.pools}", file=sys.stderr)
        gateway.wait_all_ready()
        return asyncio.run((_run_hostile if hostile else _run)(plan, gateway))
    finally:
        gateway.stop()


async def _run(plan: Plan, gateway: GatewayProcess) -> dict[str, Any]:
    calm, requests = questions(plan)
    expected = await undisturbed(gateway.url, calm, plan.model, plan.limit_s)
    answers = {(heard.asked.prompt, heard.asked.chat): heard.text for heard in expected}
    print(f"{len(calm)} answers undisturbed; sending {len(requests)} requests", file=sys.stderr)
    memory, harm = Memory(gateway.resident_mib()), Counter[str]()
    watching = asyncio.create_task(memory.watch(gateway))
    rng, pid = random.Random(plan.seed), gateway.pid
    harming = asyncio.create_task(harm_all(pid, plan.kinds, rng, plan.harm_every_s, plan.freeze_s, harm))
    try:
        heard = await storm(gateway.url, requests, plan.model, plan.limit_s)
    finally:
        harming.cancel()
        await asyncio.wait([harming])
    calmed_s = time.monotonic()
    recovered = await asyncio.to_thread(gateway.recovers)
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
        "at_most": {
            Ending.REFUSED.value: plan.most_refused * len(requests),
            Ending.INTERRUPTED.value: plan.most_interrupted * len(requests),
        },
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


async def _run_hostile(plan: Plan, gateway: GatewayProcess) -> dict[str, Any]:
    calm, requests = questions(plan)
    expected = await undisturbed(gateway.url, calm, plan.model, plan.limit_s, key=OPERATOR)
    answers = {(heard.asked.prompt, heard.asked.chat): heard.text for heard in expected}
    alone = await _ask_honestly(plan, gateway, requests, "alone")
    print(f"alone: {_good(alone, answers):.3f} good; now beside attackers", file=sys.stderr)
    memory, seconds = Memory(gateway.resident_mib()), requests[-1][0] + 2.0
    watching = asyncio.create_task(memory.watch(gateway))
    others = [
        asyncio.create_task(_told_by(script, gateway.url, seconds))
        for script in ("storm_hostile.py", "storm_health.py")
    ]
    await asyncio.sleep(1.0)
    beside = await _ask_honestly(plan, gateway, requests, "beside")
    attack, health = await asyncio.gather(*others)
    watching.cancel()
    memory.end = gateway.resident_mib()
    exit_code = await asyncio.to_thread(gateway.stop)
    refused = Counter(f"{one.status} {one.said}"[:120] for one in beside if one.ending is not Ending.FINISHED)
    return {
        "requests": len(beside),
        "good_alone": round(_good(alone, answers), 4),
        "good_beside": round(_good(beside, answers), 4),
        "ends": {ending.value: sum(one.ending is ending for one in beside) for ending in Ending},
        "not_finished": dict(refused.most_common(5)),
        "wrong": len(wrong([*alone, *beside], answers)),
        "health_ms": health,
        "gateway_memory_mib": {name: round(size, 1) for name, size in asdict(memory).items()},
        "allowed_mib": ALLOWED_MIB,
        "exit_code": exit_code,
        "attacks": sum(sum(counts.values()) for counts in attack["answers"].values()),
        **attack,
    }


async def _told_by(script: str, url: str, seconds: float) -> dict[str, Any]:
    """What a script beside this one prints, as a process in a session of its own: Linux shares cores among sessions."""
    words = (sys.executable, str(Path(__file__).with_name(script)), url, str(seconds))
    process = await asyncio.create_subprocess_exec(
        *words, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    told: dict[str, Any] = json.loads((await process.communicate())[0])
    return told


async def _ask_honestly(
    plan: Plan, gateway: GatewayProcess, requests: Sequence[tuple[float, Asked]], when: str
) -> list[Heard]:
    """Send the storm's requests, dealt to the honest tenants, each with its key."""
    storms = []
    for number, tenant in enumerate(HONEST):
        theirs = [
            (at_s, replace(asked, id=f"{MARK}-{tenant}-{when}-{at_s:.3f}", ttft_ms=None, leaves_after_s=None))
            for at_s, asked in requests[number :: len(HONEST)]
        ]
        storms.append(storm(gateway.url, theirs, plan.model, plan.limit_s, key=key_of(tenant)))
    return [heard for each in await asyncio.gather(*storms) for heard in each]


def _good(heard: Sequence[Heard], answers: Mapping[tuple[str, bool], str]) -> float:
    """The share of right answers that took at most a second and three times as long as their tokens take."""
    return sum(
        one.ending is Ending.FINISHED
        and not is_wrong(one, answers)
        and one.waited_s <= 1.0 + 3 * DELAY_S * one.asked.max_tokens
        for one in heard
    ) / len(heard)


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
