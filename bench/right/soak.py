"""Every request accounted for, through the whole stack: `python bench/right/soak.py --json`.

A real vLLM engine (`headway serve demo`, with few seats and few KV blocks) gets the start of the Azure 2023
conversation trace where the shared data is there, else the fitted law of the same name: lengths scaled to the
model, arrivals so close that requests queue, and one client in five going away before its answer is whole.
With `--host-kv-gib` the engine has host memory, and a policy that swaps puts the KV of preempted requests there;
with `--batch-width` a step runs fewer requests than there are seats, and a policy that pauses lets the others wait.

`unaccounted` are requests that do not end exactly once on both sides, the client's records and the engine's,
in outcomes that agree; `unexplained` are differences between plan and step for which there was no reason.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.core.record import Outcome, Record
from headway.engine.host_kv import HostKv
from headway.engine.servers.server_command import server_command
from headway.engine.servers.server_process import ServerProcess
from headway.engine.settings import EngineSettings
from headway.lab.server import free_port
from headway.lab.trace import Trace
from headway.loadgen import ReplayOptions, replay
from headway.loadgen.queries import scrape
from headway.results import read_records
from headway.traces import TraceRequest, scale_lengths, scale_rate

SHARED_TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "azure2023_conv.csv.gz"
OWN_TRACE = "gen:poisson:rate=6/input=azure-conversation/output=azure-conversation/seed=1/count="

REQUESTS = 600
POLICY = "sjf"
SWAPPING_POLICY = "adaptivellm-plus"
LEAVING = "queue-bound:max_waiting=24"
MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS = 900, 160
RATE_SCALE = 12.0
VANISH_FRACTION = 0.2
CLOSING = "closing"
"""Tenant of one request after all others, which makes the engine send its last totals."""

MAX_MODEL_LEN = 1536
VLLM_FLAGS = (
    *("--max-num-seqs", "8", "--max-num-batched-tokens", "512", "--max-model-len", str(MAX_MODEL_LEN)),
    *("--block-size", "32", "--num-gpu-blocks-override", "65"),
)
START_TIMEOUT_S = 300.0
SETTLE_TIMEOUT_S = 60.0


def main() -> int:
    """Print `{"requests": N, "finished": .., "cancelled": .., "shed": .., "failed": .., "unaccounted": 0, ..}`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--policy", help=f"default {POLICY}")
    parser.add_argument("--leaving", nargs="*", default=[LEAVING], help=f"rules, or none; default {LEAVING}")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"default {REQUESTS}")
    parser.add_argument(
        "--host-kv-gib",
        type=float,
        help=f"host memory, for a policy that swaps; with it the default policy is {SWAPPING_POLICY}",
    )
    parser.add_argument("--batch-width", type=int, help="requests a step may run (default: all seats)")
    arguments = parser.parse_args()
    host_kv = HostKv(gib=arguments.host_kv_gib) if arguments.host_kv_gib else None
    policy = arguments.policy or (POLICY if host_kv is None else SWAPPING_POLICY)
    with tempfile.TemporaryDirectory() as folder:
        result = soak(
            policy,
            arguments.leaving,
            arguments.requests,
            Path(folder),
            host_kv=host_kv,
            batch_width=arguments.batch_width,
        )
    print(json.dumps(result))
    return 0 if passed(result) else 1


def passed(result: dict[str, Any]) -> bool:
    """Whether nothing was lost, nothing failed, and the server ended as it should."""
    bad = ("failed", "unaccounted", "unexplained", "policy_faults", "watchdog_faults", "exit_code")
    return not any(result[key] for key in bad)


def soak(
    policy: str,
    leaving: Sequence[str],
    count: int,
    folder: Path,
    visit: Callable[[str], object] = lambda url: None,
    *,
    host_kv: HostKv | None = None,
    batch_width: int | None = None,
) -> dict[str, Any]:
    """Serve and replay; return the counts. The server's log and records stay in `folder`.

    `visit` is called with the server's URL once the requests have ended.
    """
    requests = make_requests(count)
    engine_file = folder / "served.jsonl"
    settings = EngineSettings(
        policy=policy,
        leaving=tuple(leaving),
        host_kv=host_kv,
        batch_width=batch_width,
        records=str(engine_file.absolute()),
    )
    address = ("127.0.0.1", free_port())
    command = server_command("demo", settings, address, VLLM_FLAGS)
    print(f"{policy}: starting vLLM", file=sys.stderr)
    with (folder / "log").open("wb") as log, ServerProcess(command.arguments, address, log=log) as server:
        server.wait_ready(START_TIMEOUT_S)
        print(f"{policy}: sending {count} requests", file=sys.stderr)
        options = ReplayOptions(url=server.url, vanish_fraction=VANISH_FRACTION)
        client = asyncio.run(replay(requests, options)).records
        wait_for_lines(engine_file, count)
        visit(server.url)
        asyncio.run(replay([TraceRequest(CLOSING, 0.0, 1, 1, tenant=CLOSING)], ReplayOptions(url=server.url)))
        totals = asyncio.run(scrape(server.url, "headway_"))
        unexplained = asyncio.run(
            scrape(server.url, 'headway_differences_total{engine="0",reason="unexplained"}')
        )
        exit_code = server.stop()
    engine = [record for record in read_records(engine_file) if record.tenant != CLOSING]
    outcomes = Counter(record.outcome for record in client)
    for record in client:
        if record.outcome is Outcome.FAILED:
            print(f"{record.id}: {record.error}", file=sys.stderr)
    return {
        "requests": count,
        **{outcome.value: outcomes[outcome] for outcome in SHOWN},
        "unaccounted": unaccounted([request.id for request in requests], client, engine),
        "unexplained": int(unexplained["headway_differences_total"]),
        "policy": policy,
        "policy_faults": int(totals["headway_policy_faults_total"]),
        "watchdog_faults": int(totals["headway_watchdog_faults_total"]),
        "preemptions": sum(record.preemptions for record in engine),
        **{name: int(totals[f"headway_{name}_total"]) for name in MOVES},
        "steps": int(totals["headway_steps_total"]),
        "exit_code": exit_code,
    }


MOVES = (
    *("pauses", "swaps", "offloads", "prefetches", "put_backs"),
    *("swapped_out_blocks", "swapped_in_blocks", "refused_swaps", "failed_copies", "lost_copies"),
)
SHOWN = (Outcome.FINISHED, Outcome.CANCELLED, Outcome.SHED, Outcome.FAILED)


def make_requests(count: int) -> list[TraceRequest]:
    """The trace's start, fitted to the model; each request is its own tenant, so that both sides have the same name
    for it.
    """
    source = str(SHARED_TRACE) if SHARED_TRACE.exists() else f"{OWN_TRACE}{count}"
    print(f"requests of {Path(source).name}", file=sys.stderr)
    requests = scale_lengths(Trace(source, count).requests(), MAX_INPUT_TOKENS, MAX_OUTPUT_TOKENS)
    return [replace(request, tenant=request.id) for request in scale_rate(requests, RATE_SCALE)]


def unaccounted(ids: Sequence[str], client: Sequence[Record], engine: Sequence[Record]) -> int:
    """How many requests, sent or not, lack a pair of agreeing records."""
    heard, served = _by_key(client, "id"), _by_key(engine, "tenant")
    known = {*ids, *heard, *served}
    accounted = [
        id_
        for id_ in ids
        if len(heard.get(id_, ())) == len(served.get(id_, ())) == 1 and agree(heard[id_][0], served[id_][0])
    ]
    return len(known) - len(set(accounted))


def _by_key(records: Sequence[Record], key: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(getattr(record, key), []).append(record)
    return found


def agree(client: Record, engine: Record) -> bool:
    """Whether both sides report the same end: a client that went away may have missed that it was finished."""
    if client.outcome is Outcome.CANCELLED:
        return engine.outcome in (Outcome.CANCELLED, Outcome.FINISHED)
    same_tokens = client.output_tokens == engine.output_tokens or client.outcome is not Outcome.FINISHED
    return client.outcome is engine.outcome and same_tokens


def wait_for_lines(path: Path, count: int) -> None:
    """Return when a file has this many lines, or after SETTLE_TIMEOUT_S: aborts take a moment."""
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while path.read_bytes().count(b"\n") < count and time.monotonic() < deadline_s:
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
