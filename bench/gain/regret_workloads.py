"""The machines, recorded and drawn workloads, and targets of `bench/gain/regret.py`."""

from __future__ import annotations

import csv
import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from math import ceil
from pathlib import Path
from random import Random

from headway.core.batch_shape import BatchShape
from headway.core.slo import NO_TARGETS, Slo
from headway.errors import ConfigError
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.simulation import fingerprint
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, parse_workload

# ---- machines: one with memory to spare and many seats, one short of both ----------------------------

HOST_BYTES = 64 << 30
"""Host memory for KV, the same for every policy; most have no use for it."""
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs and a model by the names that `headway simulate` takes, and the longest sequence that this machine
    serves.
    """

    name: str
    hardware: str
    model: str
    longest_tokens: int
    tp: int = 1

    def system(self) -> System:
        """One engine with vLLM's own defaults for this GPU, and host memory."""
        return _system(self)

    def fingerprint(self) -> str:
        """Distinguishes any two versions of the machine's costs and engine sizes."""
        return _fingerprint(self)


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("h100-llama-8b", "h100", "Llama-3.1-8B", 131_072),
        Machine("a100-opt-13b", "a100-40g", "opt-13b", 2_048),
        Machine("h100-experts", "h100", "Qwen3-30B-A3B", 40_960),
        Machine("h200-llama-70b", "h200", "Llama-3.1-70B", 131_072, tp=2),
        Machine("l40s-qwen-8b", "l40s", "Qwen3-8B", 40_960),
        Machine("4090-qwen-8b", "rtx-4090", "Qwen3-8B", 16_384),
        Machine("a100-mistral-7b", "a100-80g", "Mistral-7B", 32_768),
        Machine("b200-qwen-32b", "b200", "Qwen3-32B", 40_960),
    )
}
"""By name. FastServe's testbed had A100s of 40 GB; OPT's positions end at 2,048. An RTX 4090 holds some 25,000 tokens
of KV beside this model."""
TUNED = ("h100-llama-8b", "a100-opt-13b", "h100-experts", "l40s-qwen-8b")
"""Machines on which the rules of `headway` may be tuned; the others are only reported."""


@lru_cache(maxsize=len(MACHINES))
def _system(machine: Machine) -> System:
    costs = calibration(machine.hardware, model_shape(machine.model), machine.tp)
    host_blocks = HOST_BYTES // (costs.kv_bytes_per_token * BLOCK_TOKENS)
    sizes = EngineSizes(block_size=BLOCK_TOKENS, host_blocks=host_blocks)
    return System(limits=engine_limits(sizes, machine.hardware, costs), calibration=costs)


@lru_cache(maxsize=len(MACHINES))
def _fingerprint(machine: Machine) -> str:
    return f"{fingerprint(_system(machine).calibration)} {_system(machine).limits}"


# ---- recorded traces as endless loops, and windows of them at any rate -------------------------------

SEEDS = 5
"""Windows of one trace: they begin a fifth of it apart."""
MAIN_AGENT = "main"
SUB_AGENT = "sub-agent"
_DAY_S = 86_400.0
_RECORDED_BLOCK_TOKENS = 64
_BLOCKS_A_SESSION = 1 << 20
"""Larger than any session's block ids, so that sessions' ids stay apart."""
_TENANT_COLUMNS = {"servegen_deepseek_r1_1h_resampled": "client", "servegen_m_large_1h_resampled": "client"}
_SESSIONS = "agentic_claude_code"

RECORDINGS = {
    "azure-code": "azure2023_code",
    "azure-conv": "azure2023_conv",
    "agentic": _SESSIONS,
    "servegen-r1": "servegen_deepseek_r1_1h_resampled",
    "servegen-large": "servegen_m_large_1h_resampled",
}
"""Name -> file of the shared data, without its ending."""

Runs = Sequence[tuple[int, int]]
"""Prefix blocks of 64 tokens as (first id, how many)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Requests in order of arrival that repeat every `period_s`; `prefixes` are by id, with a session number."""

    requests: Sequence[TraceRequest]
    period_s: float
    prefixes: Mapping[str, tuple[int, Runs]] = field(default_factory=dict)

    def that_fit(self, longest_tokens: int) -> Recording:
        """The requests whose prompt and answer together fit a model of this length."""
        return replace(self, requests=fitting(self.requests, longest_tokens))

    def whole(self, request: TraceRequest) -> TraceRequest:
        """The request with the identities of its prefix blocks, which are added only when needed because they are
        many.
        """
        if request.id not in self.prefixes:
            return request
        session, runs = self.prefixes[request.id]
        return replace(request, prefix_blocks=trace_blocks(session, runs, request.input_tokens))

    def window(self, rate_rps: float, window_s: float, seed: int) -> list[TraceRequest]:
        """`window_s` seconds from the seed's starting point, with time scaled so that the mean rate of the whole
        recording is `rate_rps`.

        Scaling keeps the intervals' coefficient of variation, and a window may have more or fewer requests than the
        mean. Windows of different seeds do not overlap while five fit into the trace; else they overlap and wrap around
        to its beginning.
        """
        speed_up = self.speed_up(rate_rps)
        start_s, length_s = self.period_s * (seed % SEEDS) / SEEDS, window_s * speed_up
        count = len(self.requests)
        place = bisect_left(self.requests, start_s, key=lambda request: request.arrival_s)
        found: list[TraceRequest] = []
        while True:
            lap, index = divmod(place, count)
            request = self.requests[index]
            arrival_s = request.arrival_s + lap * self.period_s - start_s
            if arrival_s >= length_s:
                return found
            name = request.id if not lap else f"{request.id}+{lap}"
            found.append(replace(self.whole(request), id=name, arrival_s=arrival_s / speed_up))
            place += 1

    def speed_up(self, rate_rps: float) -> float:
        """How many recorded seconds pass in one of a window."""
        return rate_rps * self.period_s / len(self.requests)


def fitting(requests: Sequence[TraceRequest], longest_tokens: int) -> list[TraceRequest]:
    """The requests that fit a model, with the output limit that a client would set.

    That is the declared limit, or the longest fitting answer rounded up to a power of two so that it gives no length
    away; but no more than the prompt leaves of the model's length.
    """
    fit = [each for each in requests if each.input_tokens + each.output_tokens <= longest_tokens]
    longest_answer = max((each.output_tokens for each in fit), default=1)
    usual = 1 << (longest_answer - 1).bit_length()
    return [
        replace(
            each, max_output_tokens=min(each.max_output_tokens or usual, longest_tokens - each.input_tokens)
        )
        for each in fit
    ]


def recorded(name: str, data: Path) -> Recording:
    """A trace of the shared data by its name here; requests without output are left out. ConfigError without it."""
    if name not in RECORDINGS:
        raise ConfigError(f"unknown recording {name!r}; accepted: {', '.join(RECORDINGS)}")
    file = RECORDINGS[name]
    path = data / f"{file}.csv.gz"
    if not path.is_file():
        raise ConfigError(f"{path} is not there; accepted: the folder of the shared traces, by --data")
    return _sessions(path) if file == _SESSIONS else _one_clock(path, _TENANT_COLUMNS.get(file))


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """The rows of a compressed CSV, by column."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _request(row: Mapping[str, str], name: str, arrival_s: float, tenant: str) -> TraceRequest:
    tokens = int(row["input_tokens"]), int(row["output_tokens"])
    return TraceRequest(name, arrival_s, *tokens, tenant=tenant, session=row.get("session"))


def _one_clock(path: Path, tenant: str | None) -> Recording:
    """Read a file whose times are of one clock; it repeats after a mean interval from its end."""
    requests = [
        _request(row, str(number), float(row["arrival_s"]), row[tenant] if tenant else "")
        for number, row in enumerate(rows_of(path))
        if int(row["output_tokens"])
    ]
    first_s = requests[0].arrival_s
    requests = [replace(request, arrival_s=request.arrival_s - first_s) for request in requests]
    last_s = requests[-1].arrival_s
    return Recording(requests, last_s + last_s / (len(requests) - 1))


def _sessions(path: Path) -> Recording:
    """Read sessions with clocks of their own, each begun at a random time of a day that repeats; tenants are kinds of
    agent.

    Arrivals are as recorded: a turn does not wait for the answer to the one before.
    """
    prefixes = prefixes_of(path.with_name(path.name.replace(".csv.gz", "_prefix.jsonl.gz")))
    rng, begins_s = Random("where sessions begin"), dict[str, float]()
    requests: list[TraceRequest] = []
    for row in rows_of(path):
        session = row["session"]
        if session not in begins_s:
            begins_s[session] = rng.uniform(0, _DAY_S)
        if int(row["output_tokens"]):
            arrival_s = (begins_s[session] + float(row["arrival_s"])) % _DAY_S
            tenant = MAIN_AGENT if row["agent"] == MAIN_AGENT else SUB_AGENT
            requests.append(_request(row, f"{session}-{row['seq']}", arrival_s, tenant))
    requests.sort(key=lambda request: request.arrival_s)  # stable: ties stay in the order of the file
    numbers = {session: number for number, session in enumerate(begins_s)}
    known = {
        f"{session}-{seq}": (numbers[session], runs)
        for (session, seq), runs in prefixes.items()
        if session in numbers
    }
    return Recording(requests, _DAY_S, known)


def prefixes_of(path: Path) -> dict[tuple[str, int], Runs]:
    """(session, place in it) -> runs of block ids."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {(row["s"], row["i"]): [(first, count) for first, count in row["r"]] for row in rows}


def trace_blocks(session: int, runs: Runs, input_tokens: int) -> tuple[int, ...]:
    """The prompt's blocks of 512 tokens, each by the last of its 8 recorded ones: an id stands for all before it."""
    ids = [block for first, count in runs for block in range(first, first + count)]
    each = MOONCAKE_BLOCK_TOKENS // _RECORDED_BLOCK_TOKENS
    last = ids[each - 1 :: each][: input_tokens // MOONCAKE_BLOCK_TOKENS]
    return tuple(session * _BLOCKS_A_SESSION + block for block in last)


DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
DRAWN_COUNT = 1_200
"""Requests that make up the whole of a drawn workload, which has no recorded length."""
BACKLOG_SEED = 1_000
"""Seed of the backlog, different from the windows' seeds."""
MOST_BACKLOG_TOKENS = 4_000_000
"""Tokens (prompts and answers) of a backlog: the first requests up to this sum stand for a trace."""
LEAST_SHARE = 0.1
"""A workload of which a model can hold a smaller share is not served on it: the rest would be another workload."""
_MORE_THAN_DUE = 1.5

_TURNS = "input=sharegpt-turns/output=sharegpt-turns/max_output=1024"
DRAWN = {
    "chat": ("poisson:rate={rate}", _TURNS),
    "chat-bursty": ("gamma:rate={rate},cv=4", _TURNS),
    "skewed": (
        "poisson:rate={rate}",
        "input=zipf:theta=1,max=8192/output=zipf:theta=1,max=8192/max_output=8192",
    ),
    "long-prompts": ("poisson:rate={rate}", "input=zipf:theta=1,max=16384/output=sharegpt/max_output=2048"),
}
"""Name -> arrivals and lengths as `headway simulate --trace gen:...` takes them. Lengths are drawn independently, so
nothing about a request says how long its answer will be."""


@dataclass(frozen=True, slots=True)
class ServedWorkload:
    """A workload as served on one machine."""

    name: str
    machine: Machine
    data: Path

    def backlog(self) -> Sequence[TraceRequest]:
        """The whole workload (at most MOST_BACKLOG_TOKENS), queued at the start: capacity is measured with it."""
        if self.name in DRAWN:
            drawn = _draw(self.name, 1.0, DRAWN_COUNT, BACKLOG_SEED)
            requests = fitting(drawn, self.machine.longest_tokens)
        else:
            found = _that_fit(self)
            requests = [found.whole(request) for request in beginning(found.requests, MOST_BACKLOG_TOKENS)]
        return [replace(request, arrival_s=0.0) for request in requests]

    def window(self, rate_rps: float, window_s: float, seed: int) -> Sequence[TraceRequest]:
        """The seed's fitting requests in order of arrival from 0 to `window_s`; `rate_rps` is their rate."""
        return _window(self, rate_rps, window_s, seed)

    def facts(self) -> WorkloadFacts:
        """How much of the workload fits."""
        return _facts(self)


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """A workload on a machine: requests that fit and those dropped, and the times that targets are derived from.

    `recorded_rps` is the mean rate of those that fit, None for a drawn workload.
    """

    requests: int
    dropped: int
    p90_prompt_tokens: int
    mean_context_tokens: int
    recorded_rps: float | None

    @property
    def served(self) -> bool:
        """Whether enough of it fits."""
        return self.requests >= LEAST_SHARE * (self.requests + self.dropped)


def beginning(requests: Sequence[TraceRequest], most_tokens: int) -> Sequence[TraceRequest]:
    """The first requests whose tokens sum to at most `most_tokens`."""
    tokens = accumulate(request.input_tokens + request.output_tokens for request in requests)
    return requests[: bisect_right(list(tokens), most_tokens)]


def known_workloads(data: Path) -> tuple[str, ...]:
    """The drawn workloads, and the recorded ones that are in the folder."""
    there = [name for name, file in RECORDINGS.items() if (data / f"{file}.csv.gz").is_file()]
    return (*there, *DRAWN)


@lru_cache(maxsize=4)
def _whole(name: str, data: Path) -> Recording:
    return recorded(name, data)


@lru_cache(maxsize=4)
def _that_fit(served: ServedWorkload) -> Recording:
    return _whole(served.name, served.data).that_fit(served.machine.longest_tokens)


@lru_cache(maxsize=32)
def _facts(served: ServedWorkload) -> WorkloadFacts:
    if served.name in DRAWN:
        every, period_s = DRAWN_COUNT, None
        requests: Sequence[TraceRequest] = served.backlog()
    else:
        every = len(_whole(served.name, served.data).requests)
        requests, period_s = _that_fit(served).requests, _that_fit(served).period_s
    if not requests:
        return WorkloadFacts(0, every, 0, 0, None)
    prompts = sorted(request.input_tokens for request in requests)
    context = sum(request.input_tokens + request.output_tokens / 2 for request in requests) / len(requests)
    return WorkloadFacts(
        requests=len(requests),
        dropped=every - len(requests),
        p90_prompt_tokens=prompts[ceil(0.9 * len(prompts)) - 1],
        mean_context_tokens=round(context),
        recorded_rps=None if period_s is None else len(requests) / period_s,
    )


@lru_cache(maxsize=2)
def _window(served: ServedWorkload, rate_rps: float, window_s: float, seed: int) -> Sequence[TraceRequest]:
    if served.name not in DRAWN:
        return _that_fit(served).window(rate_rps, window_s, seed)
    facts = served.facts()
    drawn_rps = rate_rps * (facts.requests + facts.dropped) / facts.requests
    requests = _drawn_until(served.name, drawn_rps, window_s, seed)
    return fitting(requests, served.machine.longest_tokens)


def _drawn_until(name: str, rate_rps: float, until_s: float, seed: int) -> list[TraceRequest]:
    """All requests that arrive before `until_s`: fewer arrivals are the beginning of more."""
    count = ceil(_MORE_THAN_DUE * rate_rps * until_s) + 1
    while (requests := _draw(name, rate_rps, count, seed))[-1].arrival_s < until_s:
        count *= 2
    return [request for request in requests if request.arrival_s < until_s]


def _draw(name: str, rate_rps: float, count: int, seed: int) -> list[TraceRequest]:
    arrivals, lengths = DRAWN[name]
    text = f"{arrivals.format(rate=f'{rate_rps:.6g}')}/{lengths}/count={count}/seed={seed}"
    return parse_workload(text).requests()


# ---- targets: multiples of the time that a lone request takes ----------------------------------------

NONE, ONE, TWO = "none", "one", "two"
FIXED = {
    "strict": Slo(ttft_s=0.3, tbt_s=0.02),
    "middle": Slo(ttft_s=1.0, tbt_s=0.05),
    "relaxed": Slo(ttft_s=5.0, tbt_s=0.15),
    "deadline": Slo(deadline_s=30.0),
}
"""The same targets for all, whatever the machine."""
TARGETED = (ONE, TWO, *FIXED)
CLASSES = (NONE, *TARGETED)
"""No targets; targets derived from the machine, the same for all or interactive requests beside patient ones; FIXED."""


@dataclass(frozen=True, slots=True)
class Multiples:
    """Targets as multiples of the time to first token of a long prompt (the 90th percentile) at light load, and of
    a light-load step.
    """

    ttft: float
    tbt: float


USUAL = Multiples(ttft=5, tbt=5)
INTERACTIVE = Multiples(ttft=3, tbt=5)
PATIENT = Multiples(ttft=50, tbt=20)
INTERACTIVE_SHARE = 0.5
"""Share of interactive requests where the trace has no classes of its own."""
RULE = (USUAL, INTERACTIVE, PATIENT, INTERACTIVE_SHARE)
PATIENT_PRIORITY = 1
"""Interactive requests have 0, which runs first: what `priority` needs to know of the classes."""


def light_ttft_s(system: System, prompt_tokens: int) -> float:
    """Seconds from a prompt to its first token on an engine that has just begun a step of the largest size.

    After that step the prompt's chunks are computed one after another, with no others beside them.
    """
    budget, computed = system.limits.max_num_batched_tokens, 0
    seconds = _chunk_s(system, budget, 0)
    while computed < prompt_tokens:
        chunk = min(budget, prompt_tokens - computed)
        seconds += _chunk_s(system, chunk, computed)
        computed += chunk
    return seconds


def _chunk_s(system: System, tokens: int, context_tokens: int) -> float:
    shape = BatchShape()
    shape.add(tokens, context_tokens)
    return system.step.step_s(shape)


def light_step_s(system: System, context_tokens: int) -> float:
    """Seconds of a step with a single decode."""
    return _chunk_s(system, 1, context_tokens)


def targets(served: ServedWorkload, multiples: Multiples) -> Slo:
    """The targets of every request of a workload on a machine, whatever its own length."""
    return _targets(served, multiples)


@lru_cache(maxsize=64)
def _targets(served: ServedWorkload, multiples: Multiples) -> Slo:
    facts, system = served.facts(), served.machine.system()
    return Slo(
        ttft_s=round(multiples.ttft * light_ttft_s(system, facts.p90_prompt_tokens), 4),
        tbt_s=round(multiples.tbt * light_step_s(system, facts.mean_context_tokens), 5),
    )


def with_classes(
    requests: Sequence[TraceRequest], served: ServedWorkload, classes: str, seed: int
) -> list[TraceRequest]:
    """The requests with the targets of `classes`; with two classes also with priorities."""
    if classes == NONE:
        return [replace(request, slo=NO_TARGETS, priority=0) for request in requests]
    if classes == ONE or classes in FIXED:
        slo = FIXED.get(classes) or targets(served, USUAL)
        return [replace(request, slo=slo, priority=0) for request in requests]
    tight, loose = targets(served, INTERACTIVE), targets(served, PATIENT)
    return [
        replace(request, slo=tight, priority=0)
        if is_interactive(request, seed)
        else replace(request, slo=loose, priority=PATIENT_PRIORITY)
        for request in requests
    ]


def is_interactive(request: TraceRequest, seed: int) -> bool:
    """Whether a request is interactive: by the trace's own classes where it has some (agents; their sub-agents are
    patient), else by a draw with the seed.
    """
    if request.tenant in (MAIN_AGENT, SUB_AGENT):
        return request.tenant == MAIN_AGENT
    return Random(f"{seed} {request.id}").random() < INTERACTIVE_SHARE
