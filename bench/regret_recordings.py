"""Recorded traces as endless loops, and windows cut out of them at any rate."""

from __future__ import annotations

import csv
import gzip
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from headway.errors import ConfigError
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

SEEDS = 5
"""Windows of one trace: they begin a fifth of it apart."""
MAIN_AGENT = "main"
SUB_AGENT = "sub-agent"
_DAY_S = 86_400.0
_RECORDED_BLOCK_TOKENS = 64
_BLOCKS_A_SESSION = 1 << 20
"""More than the block ids of any session: keeps sessions' ids apart."""
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
    """Requests in order of arrival that begin anew every `period_s`; `prefixes` are by id, with a session number."""

    requests: Sequence[TraceRequest]
    period_s: float
    prefixes: Mapping[str, tuple[int, Runs]] = field(default_factory=dict)

    def that_fit(self, longest_tokens: int) -> Recording:
        """Those whose prompt and answer together a model can hold."""
        return replace(self, requests=fitting(self.requests, longest_tokens))

    def whole(self, request: TraceRequest) -> TraceRequest:
        """The request with the identities of its prefix blocks, which are only told when needed: they are many."""
        if request.id not in self.prefixes:
            return request
        session, runs = self.prefixes[request.id]
        return replace(request, prefix_blocks=_trace_blocks(session, runs, request.input_tokens))

    def window(self, rate_rps: float, window_s: float, seed: int) -> list[TraceRequest]:
        """`window_s` seconds from the seed's place on, time divided so that the mean rate of the whole is `rate_rps`.

        So the intervals keep their coefficient of variation, and a window may have more or less than the mean. Windows
        of different seeds are apart while five fit into the trace; else they overlap, going on at its beginning.
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
    """Those that fit a model, with the limit that a client would put on their answers.

    That is the one they declare, or the longest answer of those that fit, rounded up to a power of two so that it gives
    no length away; but no more than the prompt leaves of the model's length.
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


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _request(row: Mapping[str, str], name: str, arrival_s: float, tenant: str) -> TraceRequest:
    tokens = int(row["input_tokens"]), int(row["output_tokens"])
    return TraceRequest(name, arrival_s, *tokens, tenant=tenant, session=row.get("session"))


def _one_clock(path: Path, tenant: str | None) -> Recording:
    """A file whose times are of one clock; it begins anew a mean interval after its end."""
    requests = [
        _request(row, str(number), float(row["arrival_s"]), row[tenant] if tenant else "")
        for number, row in enumerate(_rows(path))
        if int(row["output_tokens"])
    ]
    first_s = requests[0].arrival_s
    requests = [replace(request, arrival_s=request.arrival_s - first_s) for request in requests]
    last_s = requests[-1].arrival_s
    return Recording(requests, last_s + last_s / (len(requests) - 1))


def _sessions(path: Path) -> Recording:
    """Sessions with clocks of their own, each begun at a random time of a day that repeats; tenants are kinds of agent.

    Arrivals are as recorded: a turn does not wait for the answer to the one before.
    """
    prefixes = _prefixes(path.with_name(path.name.replace(".csv.gz", "_prefix.jsonl.gz")))
    rng, begins_s = Random("where sessions begin"), dict[str, float]()
    requests: list[TraceRequest] = []
    for row in _rows(path):
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


def _prefixes(path: Path) -> dict[tuple[str, int], Runs]:
    """(session, place in it) -> runs of block ids."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return {(row["s"], row["i"]): [(first, count) for first, count in row["r"]] for row in rows}


def _trace_blocks(session: int, runs: Runs, input_tokens: int) -> tuple[int, ...]:
    """The prompt's blocks of 512 tokens, each by the last of its 8 recorded ones: an id stands for all before it."""
    ids = [block for first, count in runs for block in range(first, first + count)]
    each = MOONCAKE_BLOCK_TOKENS // _RECORDED_BLOCK_TOKENS
    last = ids[each - 1 :: each][: input_tokens // MOONCAKE_BLOCK_TOKENS]
    return tuple(session * _BLOCKS_A_SESSION + block for block in last)
