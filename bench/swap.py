"""AdaptiveLLM's choice beside always recomputing and always swapping: `python bench/swap.py --json`.

The real CPU engine with a made model and few KV blocks, so that requests are preempted all the time: short prompts
and long ones (the paper's Summary), all there at once, outputs of set lengths, greedy. Policies of a family differ
in the eviction alone: `adaptivellm`, and its twins `recompute` and `swap`; copies wait. The same once more for
`adaptivellm-plus`, whose copies go on beside the steps. Copies are held to bandwidths `slow`, `fast` and, if asked
for, `even`: multiples of the break-even at which a victim of that workload takes as long out and back as to prefill,
measured first. Every run begins with requests that do not count, from which costs are learned.

Policies take turns in rounds, every second one backwards. `adaptivellm_vs_better` is its throughput over that of the
twin with the lower median makespan: the median of the rounds' ratios, `spread` their least and largest;
`adaptivellm_vs_better_at_one_speed` takes each run's steps at what a law fitted to the steps of all runs says of
their shapes, and adds what they waited for copies, so that how busy the machine was does not count (nor what steps
lose to copies beside them). `copy_bandwidth`: a copier's blocks both ways on an idle engine beside one memcpy of as
many bytes, and what runs reached. `copy_time_hidden`: the share of copy time that nobody waited for. With copies
beside the steps that is: steps longer than others of their shape, and turns of the loop without work.

Under 8 minutes on 2 cores. The exit status tells of errors only: on another machine times are other times.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, TypeGuard

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.swap_engine import CopySeconds, Watch, WatchedEngine, copies_on_worker
from bench.swap_figures import (
    COUNTED,
    Run,
    StepSeconds,
    at_one_speed_s,
    hidden_share,
    law_of,
    lengthened,
    policy_row,
    run_of,
    versus,
)
from headway.engine.demo_model import DemoRecipe, ensure_model
from headway.engine.kv.host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.traces import AllAtOnce, LogNormal, TraceRequest, Workload

RECIPE = DemoRecipe(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
)
"""8 million parameters: a prefill and a swap take milliseconds, a run seconds."""
BLOCK_TOKENS, DEVICE_BLOCKS = 32, 128
"""As many blocks as the paper has, each of them the CPU backend's size."""
HOST_BLOCKS = 384
"""Room for all that the device holds and more, so that no swap is refused."""
SEATS = 64
LONGEST_TOKENS = 1024
SIZES_BLOCKS = (1, 2, 4, 8, 16)
"""Of the copies on an idle engine."""
PROBED_TOKENS = (32, 64, 128, 256, 384, 512)
BANDWIDTHS = {"slow": 0.25, "even": 1.0, "fast": 8.0}
"""Multiples of a workload's break-even."""
DEFAULT_BANDWIDTHS = ("slow", "fast")
DEFAULT_ROUNDS = 2
LEARNING_SHARE = 1.0
"""Requests served before a run's own, in shares of them."""
OTHER_SEED = 10**6
"""What those are drawn with, on top of the run's own seed."""
TWINS = ("recompute", "swap")


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: how many requests, and the laws of their lengths."""

    name: str
    requests: int
    mean_input_tokens: float
    longest_input_tokens: int
    mean_output_tokens: float
    longest_output_tokens: int

    def draw(self, count: int, seed: int) -> list[TraceRequest]:
        """So many requests, all there at once."""
        return Workload(
            AllAtOnce(),
            LogNormal.fitted(self.mean_input_tokens, 0.5, self.longest_input_tokens, 4),
            LogNormal.fitted(self.mean_output_tokens, 0.4, self.longest_output_tokens, 8),
            count,
            seed,
            self.longest_output_tokens,
        ).requests()


LOADS = (Load("short", 80, 20.0, 128, 100.0, 200), Load("long", 16, 340.0, 640, 240.0, 384))


@dataclass(frozen=True, slots=True)
class Family:
    """Policies that differ in the eviction alone: a preset, and its twins' evictions."""

    preset: str
    evictions: Mapping[str, str]

    def settings(self) -> dict[str, EngineSettings]:
        """By the name a cell has for it: the twins, then the preset itself."""
        host = HostKv(blocks=HOST_BLOCKS)
        suffix = self.preset.removeprefix("adaptivellm")
        twins = {
            f"{twin}{suffix}": EngineSettings(policy=self.preset, eviction=eviction, host_kv=host)
            for twin, eviction in self.evictions.items()
        }
        return {**twins, self.preset: EngineSettings(policy=self.preset, host_kv=host)}


FAMILIES = (
    Family("adaptivellm", {"recompute": "recompute", "swap": "swap:serial=true"}),
    Family("adaptivellm-plus", {"recompute": "recompute", "swap": "swap:min_residency=4"}),
)


def run_once(
    engine: WatchedEngine, load: Load, settings: EngineSettings, seed: int, learning_share: float
) -> Run:
    """Serve a load under one policy, after some requests of the same kind from which it learns costs."""
    engine.schedule_with(settings)
    gc.collect()
    if learning := round(learning_share * load.requests):
        engine.serve(load.draw(learning, seed + OTHER_SEED), seed)
    counters = engine.scheduler.counters
    before = {name: getattr(counters, name) for name in COUNTED}
    engine.watch = watch = Watch()
    makespan_s = engine.serve(load.draw(load.requests, seed), seed)
    if counters.policy_faults or counters.refused_swaps or counters.failed_copies:
        raise RuntimeError(f"the policy or its copies failed: {counters}")
    grown = {name: getattr(counters, name) - before[name] for name in COUNTED}
    return run_of(watch, makespan_s, grown)


# ---- costs, measured first -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """What this machine takes to prefill so many tokens, and to copy so many blocks."""

    prefill_s: Mapping[int, float]
    copies: Mapping[int, CopySeconds]
    block_bytes: int

    def break_even_bytes_per_s(self, num_tokens: int, prefill_s: float) -> float:
        """The bandwidth at which so many tokens' KV takes as long out and back as to be computed again."""
        return 2 * -(-num_tokens // BLOCK_TOKENS) * self.block_bytes / prefill_s

    def to_dict(self) -> dict[str, Any]:
        """By number of tokens."""
        return {
            str(tokens): {
                "prefill_s": seconds,
                "kv_bytes": -(-tokens // BLOCK_TOKENS) * self.block_bytes,
                "break_even_bytes_per_s": self.break_even_bytes_per_s(tokens, seconds),
            }
            for tokens, seconds in self.prefill_s.items()
        }

    def copy_bandwidth(self) -> dict[str, Any]:
        """By number of blocks, in bytes a second."""
        return {
            str(blocks): {
                "bytes": blocks * self.block_bytes,
                **{
                    f"{way}_bytes_per_s": blocks * self.block_bytes / getattr(seconds, way)
                    for way in CopySeconds._fields
                },
            }
            for blocks, seconds in self.copies.items()
        }


def measure_costs(engine: WatchedEngine) -> Costs:
    """Prefills alone, and copies on an idle engine without a limit."""
    engine.limit_copies(None)
    block_bytes = engine.sizes.kv_bytes_per_token * BLOCK_TOKENS
    engine.prefill_s(PROBED_TOKENS[-1])  # the first pays for allocations
    found = engine.on_workers(copies_on_worker, SIZES_BLOCKS, block_bytes)[0]
    return Costs(
        {tokens: engine.prefill_s(tokens) for tokens in PROBED_TOKENS},
        dict(zip(SIZES_BLOCKS, found, strict=True)),
        block_bytes,
    )


def victim(engine: WatchedEngine, load: Load, costs: Costs) -> dict[str, float]:
    """A load's mean victim, from a run that always recomputes: its tokens, its prefill and its break-even."""
    run = run_once(engine, load, FAMILIES[0].settings()["recompute"], seed=0, learning_share=0.0)
    tokens = round(run.recomputed_tokens / run.recomputes)
    prefill_s = engine.prefill_s(tokens)
    return {
        "victim_tokens": tokens,
        "prefill_s": prefill_s,
        "break_even_bytes_per_s": costs.break_even_bytes_per_s(tokens, prefill_s),
    }


# ---- the bench -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A load at a bandwidth."""

    load: Load
    bandwidth: str
    bytes_per_s: float

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"{self.load.name}/{self.bandwidth}"


Runs = dict[str, dict[str, list[Run]]]
"""By case, then by policy: one run a round."""


def measure(engine: WatchedEngine, cases: Sequence[Case], rounds: int, learning_share: float) -> Runs:
    """Every policy of every case once a round, every second round backwards."""
    settings = {name: each for family in FAMILIES for name, each in family.settings().items()}
    runs: Runs = {case.name: {name: [] for name in settings} for case in cases}
    for number, case in product(range(rounds), cases):
        engine.limit_copies(case.bytes_per_s)
        for name in list(settings)[:: -1 if number % 2 else 1]:
            run = run_once(engine, case.load, settings[name], number, learning_share)
            runs[case.name][name].append(run)
            _say(
                f"{case.name}, round {number + 1}, {name}: {run.makespan_s:.2f} s, "
                f"{run.swaps} swaps, {run.recomputes} recomputes, {run.copy_s:.2f} s of copies"
            )
    return runs


def report(cases: Sequence[Case], runs: Runs, block_bytes: int) -> dict[str, Any]:
    """`cells` and `copy_time_hidden`."""
    laws = {
        load.name: law_of([run for case in cases if case.load is load for run in _all(runs[case.name])])
        for load in {id(case.load): case.load for case in cases}.values()
    }
    cells = {case.name: _cell(case, runs[case.name], laws[case.load.name], block_bytes) for case in cases}
    hidden = {case.name: _hidden(runs[case.name], laws[case.load.name]) for case in cases}
    return {"cells": cells, "copy_time_hidden": hidden}


def _all(by_policy: Mapping[str, Sequence[Run]]) -> list[Run]:
    return [run for found in by_policy.values() for run in found]


def _cell(
    case: Case, runs: Mapping[str, Sequence[Run]], law: StepSeconds, block_bytes: int
) -> dict[str, Any]:
    cell: dict[str, Any] = {"bytes_per_s": case.bytes_per_s}
    for family in FAMILIES:
        *twins, own = family.settings()
        cell.update((name, policy_row(runs[name], law, block_bytes)) for name in (*twins, own))
        times_s = {name: [run.makespan_s for run in runs[name]] for name in (*twins, own)}
        found = versus(times_s[own], {twin: times_s[twin] for twin in twins})
        cell[f"{own}_vs_better"] = found["ratio"]
        cell[f"{own}_vs_better_spread"] = found["spread"]
        cell[f"{own}_better"] = found["better"]
        even_s = {name: [at_one_speed_s(run, law) for run in runs[name]] for name in (*twins, own)}
        cell[f"{own}_vs_better_at_one_speed"] = versus(even_s[own], {twin: even_s[twin] for twin in twins})[
            "ratio"
        ]
    return cell


def _hidden(runs: Mapping[str, Sequence[Run]], law: StepSeconds) -> dict[str, Any]:
    """For each policy that copied in every round, the medians over the rounds."""
    found: dict[str, Any] = {}
    for family in FAMILIES:
        for name, settings in family.settings().items():
            serial = "serial=true" in settings.preset().eviction
            shares = [hidden_share(run, law, serial=serial) for run in runs[name]]
            if None in shares:
                continue
            found[name] = {"serial": serial, "hidden_share": median(filter(_known, shares))}
            if not serial:
                longer = (lengthened(run, law) for run in runs[name])
                found[name]["steps_longer_share"] = median(filter(_known, longer))
    return found


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None


def start(settings: EngineSettings) -> WatchedEngine:
    """The engine, its worker on the first core and this loop on the last, so that they do not trade places."""
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if len(cores) > 1:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores[:-1])))
    flags = (
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(DEVICE_BLOCKS + 1)),
        *("--max-num-seqs", str(SEATS), "--max-num-batched-tokens", "2048"),
        *("--max-model-len", str(LONGEST_TOKENS), "--no-enable-prefix-caching", "--enforce-eager"),
    )
    engine = WatchedEngine(str(ensure_model("swap", RECIPE)), flags, settings)
    os.sched_setaffinity(0, cores[-1:])
    return engine


def swap(
    loads: Sequence[Load], bandwidths: Mapping[str, float], rounds: int, learning_share: float
) -> dict[str, Any]:
    """The whole report."""
    engine = start(FAMILIES[0].settings()["recompute"])
    try:
        costs = measure_costs(engine)
        victims = {load.name: victim(engine, load, costs) for load in loads}
        _say(f"break-even: {victims}")
        cases = [
            Case(load, name, factor * victims[load.name]["break_even_bytes_per_s"])
            for load, (name, factor) in product(loads, bandwidths.items())
        ]
        runs = measure(engine, cases, rounds, learning_share)
    finally:
        engine.close()
    found = report(cases, runs, costs.block_bytes)
    return {
        "machine": f"{machine_name()}, vLLM {vllm_version()}",
        "rounds": rounds,
        **found,
        "copy_bandwidth": costs.copy_bandwidth(),
        "break_even": {"victims": victims, "tokens": costs.to_dict()},
    }


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    for name, cell in found["cells"].items():
        yield f"{name}: copies at {cell['bytes_per_s'] / 1e6:.0f} MB/s"
        for family in FAMILIES:
            *_, own = family.settings()
            for policy in family.settings():
                row = cell[policy]
                yield (
                    f"  {policy:17} {row['makespan_s']:6.2f} s ({row['makespan_at_one_speed_s']:.2f} at one speed)  "
                    f"{row['output_tps']:5.0f} tokens/s  JCT {row['mean_jct_s']:.2f} s, p99 {row['p99_jct_s']:.2f} s  "
                    f"preemptions {row['preemptions']:.0f}, swapped {row['swap_share'] or 0:.0%}"
                )
            low, high = cell[f"{own}_vs_better_spread"]
            yield (
                f"  {own} over {cell[f'{own}_better']}: {cell[f'{own}_vs_better']:.3f} ({low:.3f} to {high:.3f}), "
                f"at one speed {cell[f'{own}_vs_better_at_one_speed']:.3f}"
            )
        for policy, hidden in found["copy_time_hidden"][name].items():
            beside = "" if hidden["serial"] else f", steps {hidden['steps_longer_share']:+.1%} beside copies"
            yield f"  {policy}: {hidden['hidden_share']:.0%} of copy time hidden{beside}"
    for blocks, row in found["copy_bandwidth"].items():
        ways = ", ".join(f"{way} {row[f'{way}_bytes_per_s'] / 1e9:.2f} GB/s" for way in CopySeconds._fields)
        yield f"copies of {blocks} blocks ({row['bytes'] / 1e6:.2f} MB): {ways}"
    for tokens, row in found["break_even"]["tokens"].items():
        yield (
            f"{tokens} tokens: prefill {row['prefill_s'] * 1e3:.1f} ms, "
            f"break-even {row['break_even_bytes_per_s'] / 1e6:.0f} MB/s"
        )


def main() -> None:
    """Print one JSON object, or a table; exit status 1 for an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument(
        "--load", action="append", choices=[load.name for load in LOADS], help="only this one"
    )
    parser.add_argument(
        "--bandwidth", action="append", choices=list(BANDWIDTHS), help="default: slow and fast"
    )
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help=f"default {DEFAULT_ROUNDS}")
    parser.add_argument(
        "--learning", type=float, default=LEARNING_SHARE, metavar="SHARE", help=f"default {LEARNING_SHARE}"
    )
    arguments = parser.parse_args()
    loads = [load for load in LOADS if load.name in (arguments.load or [load.name])]
    chosen = arguments.bandwidth or DEFAULT_BANDWIDTHS
    found = swap(loads, {name: BANDWIDTHS[name] for name in chosen}, arguments.rounds, arguments.learning)
    print(json.dumps(found) if arguments.json else "\n".join(table(found)))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
