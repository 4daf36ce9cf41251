"""Tokens under every preset against stock vLLM's own: `python bench/right/outputs.py --json`.

The real engine with the demo model, one process a feature: on a CPU in float32; on a GPU, where every feature is
scheduled asynchronously, in bfloat16 with batch-invariant kernels. First vLLM's own scheduler, then Headway under each
preset, every step checked, with pauses, chunk caps and preemptions forced on top (`bench/right/forced.py`). Half of the
requests are greedy and in chunked prompts. Of the other half, in whole
prompts, every second one samples with a seed: vLLM 0.32's CPU runner cannot compute a seeded request's
prompt in chunks. A `storm` forces nothing: a preset that pauses, in a batch much narrower than the worker slots
and with quanta of a step or two, over few blocks and much host memory. With a `connector-*` prompts repeat, so that
vLLM's own KV connector loads them, for preempted requests too. `pd` forces nothing either: a gateway sends greedy
requests to a prefill and a decode instance, which share KV by vLLM's `ExampleConnector`. A cell is

    {"requests": N, "identical": N, "near_ties": k, "steps": n, "preemptions": M, "pauses": P, "swaps": S,
     "offloads": o, "prefetches": p, "put_backs": b}

or {"unsupported": "<vLLM's reason>"}. A difference is a near tie if stock's own log probabilities of the two
tokens are within 1e-4 where they part. `error` in a cell says what went wrong, or what a run should have met
and did not: preemptions and pauses, and for example preemptions with output in flight under `async`. Exit
status 1 for any error, and for any request neither identical nor a near tie.

`--preset` and `--feature` pick a part; without them all presets run `plain`, in under a minute. The other
features take up to two minutes each, `pd` half a minute a preset. Three of them show what stock vLLM itself
cannot do on the CPU: `seeded-chunks` (it raises), `seeded-ngram` (seeded and greedy requests with drafts disturb
one another) and `lora-base` (a request without an adapter gets its neighbour's).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

import msgspec

from bench.command import command_line, moves_ahead, preset_option, say
from bench.right.forced import (
    SPARED,
    Answers,
    ForcedEngine,
    ForcedRequest,
    forced_settings,
    register_parts,
    storm_settings,
    trusting,
    two_stages,
    write_adapters,
)
from headway.engine.demo_model import ensure_demo_random
from headway.engine.machine import is_cpu_build
from headway.engine.vllm.plugin import CPU_ASYNC_SWITCH
from headway.policies.presets import Preset, build_policy, known_presets
from headway.policies.protocols import Predicting

NEAR_TIE = 1e-4
TOLD = ("steps", "preemptions", "pauses", "swaps", "offloads", "prefetches", "put_backs")
"""Counters that a cell sums over its runs."""
FEATURE_TIMEOUT_S = 900
APART_TIMEOUT_S = 120
"""Additional seconds for each preset where two servers and a gateway start and end."""
CELLS = "cells.jsonl"
STEPS_APART = 150
"""Arrival gap in steps, longer than any request runs, so that no two requests meet."""
PREFIX_TOKENS = 32
"""One block, shared by a third of the requests; a longer hit of a resumed job comes from its own blocks."""
VOCABULARY = range(10, 2000)
UNSTABLE = "stock's own tokens depend on what else is in the batch"

Cell = dict[str, int | str]


# ---- what is measured ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """The requests sent under one token budget a step."""

    name: str
    token_budget: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seeded: bool


CHUNKED = Load("chunked", 64, (20, 150), (8, 40), seeded=False)
WHOLE = Load("whole", 512, (8, 40), (8, 24), seeded=True)
"""The budget suffices for all seats together, so no prompt is ever cut for lack of it."""
STORED = Load("stored", 512, (34, 40), (8, 24), seeded=False)
"""Requests that vLLM's `ExampleConnector` can serve. It stores what the first step of a prompt computed, so no
prompt is cut. It finds a preempted request's file by the tokens of its full blocks, so no answer fills another
block.
"""
APART = Load("apart", 512, (40, 150), (8, 40), seeded=False)
"""Prompts longer than a block, which have KV to hand over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One way to run the engine: its arguments, its environment, its loads, how many steps are in flight.

    With `host_blocks` of host memory requests are also swapped out. `connector` is one of vLLM's own KV connectors, in
    the form of `--kv-transfer-config`; FOLDER in a value stands for an empty folder. In a `storm` nothing is forced,
    nor with `apart`, where one server computes prompts and another answers, behind a gateway. With `lengths` every
    request carries its answer's length, and policies that use lengths trust it from the start.

    `evidence` is what a run must have met, with the largest value that proves nothing; `refusal` is vLLM's message if
    it cannot do this.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    loads: tuple[Load, ...] = (CHUNKED, WHOLE)
    depth: int = 1
    host_blocks: int = 0
    connector: Mapping[str, Any] | None = None
    storm: bool = False
    apart: bool = False
    lengths: bool = False
    evidence: Mapping[str, int] = field(default_factory=dict)
    refusal: str | None = None


_ONE_THREAD = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""A model this small gains nothing from more threads, and threads that spin for one another lose on a busy machine."""
_ON_GPU = {"VLLM_BATCH_INVARIANT": "1"}
"""Kernels whose sums do not depend on the rest of the batch, like those of the CPU in float32."""
_GPU_DEPTH = 2
"""Steps in flight where vLLM schedules asynchronously by default."""
_TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
_ASYNC = {CPU_ASYNC_SWITCH: "1"}
_TP2 = {"tensor_parallel_size": 2}
_PP2 = {"pipeline_parallel_size": 2, "enforce_eager": False}
_CACHING = {"enable_prefix_caching": True}
_NGRAM = {
    **_CACHING,
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    },
}
_LORA = {**_CACHING, "enable_lora": True, "max_loras": 1, "max_cpu_loras": 3, "max_lora_rank": 8}
HOST_BLOCKS = 24
"""Room on the host for about as many requests as the device holds, so that some find it full."""
_SWAPS = {"swapped_out_blocks": 0, "swapped_in_blocks": 0}
STORM_HOST_BLOCKS = 400
"""Room on the host for all requests."""
_SPARE = {"num_gpu_blocks_override": 25}
"""Room for more requests than the two that run, so that KV moves ahead of need, but not for all seats."""
_STORM = Feature(engine=_SPARE, host_blocks=STORM_HOST_BLOCKS, storm=True, evidence={"pauses": 100})
FOLDER = "FOLDER"
_LOADS = {"loads": 0, "resumed_loads": 0}
PROMPTS_STORED = 8
"""Different prompts of a feature with a connector: each is computed once, and then loaded."""
_GRAMMAR = {"backend": "xgrammar", "disable_any_whitespace": True}


def _example(store: str) -> dict[str, Any]:
    """vLLM's own example connector, which keeps KV in files."""
    return {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": f"{FOLDER}/{store}"},
    }


_EXAMPLE = Feature(connector=_example("kv"), loads=(STORED,), evidence=_LOADS)
_MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [_example("first"), _example("second")]},
}

FEATURES = {
    "plain": Feature(),
    "async": Feature(environment=_ASYNC, depth=2, evidence={"in_flight_preemptions": 0}),
    "tp2": Feature(engine=_TP2, environment=_TWO_WORKERS),
    "pp2": Feature(
        engine=_PP2,
        environment=_TWO_WORKERS,
        depth=2,
        evidence={"in_flight_preemptions": 0},
    ),
    "prefix": Feature(
        engine=_CACHING,
        evidence={"first_hit_tokens": 0, "resumed_hit_tokens": PREFIX_TOKENS},
    ),
    "json": Feature(
        engine={**_CACHING, "structured_outputs_config": _GRAMMAR},
        loads=(
            replace(CHUNKED, output_tokens=(48, 48)),
            replace(WHOLE, prompt_tokens=(8, 16), output_tokens=(48, 48)),
        ),
    ),
    "n2": Feature(engine=_CACHING),
    "lora": Feature(engine=_LORA, evidence={"resident_adapters": 1}),
    "ngram": Feature(
        engine=_NGRAM, loads=(CHUNKED, replace(WHOLE, seeded=False)), evidence={"tokens_at_once": 1}
    ),
    "lengths": Feature(engine=_CACHING, host_blocks=HOST_BLOCKS, lengths=True, evidence=_SWAPS),
    "swap": Feature(host_blocks=HOST_BLOCKS, evidence=_SWAPS),
    "swap-prefix": Feature(engine=_CACHING, host_blocks=HOST_BLOCKS, evidence=_SWAPS),
    "swap-async": Feature(
        environment=_ASYNC,
        depth=2,
        host_blocks=HOST_BLOCKS,
        evidence={**_SWAPS, "in_flight_preemptions": 0},
    ),
    "swap-async-prefix": Feature(
        engine=_CACHING,
        environment=_ASYNC,
        depth=2,
        host_blocks=HOST_BLOCKS,
        evidence={**_SWAPS, "in_flight_preemptions": 0},
    ),
    "swap-tp2": Feature(
        engine=_TP2,
        environment=_TWO_WORKERS,
        host_blocks=HOST_BLOCKS,
        evidence=_SWAPS,
    ),
    "swap-pp2": Feature(
        engine=_PP2,
        environment=_TWO_WORKERS,
        depth=2,
        host_blocks=HOST_BLOCKS,
        evidence={**_SWAPS, "in_flight_preemptions": 0},
    ),
    "storm": _STORM,
    "storm-prefix": replace(_STORM, engine={**_SPARE, **_CACHING}),
    "storm-async": replace(_STORM, environment=_ASYNC, depth=2),
    "storm-async-prefix": replace(_STORM, engine={**_SPARE, **_CACHING}, environment=_ASYNC, depth=2),
    "storm-tp2": replace(_STORM, engine={**_SPARE, **_TP2}, environment=_TWO_WORKERS),
    "storm-pp2": replace(_STORM, engine={**_SPARE, **_PP2}, environment=_TWO_WORKERS, depth=2),
    "connector-example": _EXAMPLE,
    "connector-example-async": replace(_EXAMPLE, environment=_ASYNC, depth=2),
    "connector-multi": replace(_EXAMPLE, connector=_MULTI),
    "connector-offloading": Feature(
        engine={**_CACHING, "kv_offloading_size": 0.125},
        evidence=_LOADS,
        refusal="CPU Offloading is currently only supported on",
    ),
    "pd": Feature(apart=True, loads=(APART,), evidence={"prompts_apart": 0, "loaded_tokens": 0}),
    "seeded-chunks": Feature(
        loads=(replace(CHUNKED, seeded=True),), refusal="CPU Generator does not use offset"
    ),
    "seeded-ngram": Feature(engine=_NGRAM, loads=(WHOLE,), refusal=UNSTABLE),
    "lora-base": Feature(engine=_LORA, refusal=UNSTABLE),
}


class Answer(msgspec.Struct):
    """The schema of outputs under feature `json`."""

    word: Annotated[str, msgspec.Meta(pattern="^[a-z]{2,8}$")]
    ok: bool
    tags: Annotated[list[Literal["x", "yy"]], msgspec.Meta(min_length=1, max_length=2)]


def write_requests(feature: str, load: Load, count: int) -> list[ForcedRequest]:
    """The same requests for every run of a feature, arriving over a few steps."""
    rng = random.Random(f"{feature} {load.name}")
    adapters = {"lora": (1, 2, 3), "lora-base": (0, 1, 2, 3)}.get(feature, (0,))
    requests: list[ForcedRequest] = []
    for index in range(count):
        request = ForcedRequest(
            at_step=(requests[-1].at_step if requests else 0) + rng.choice((0, 0, 1, 3)),
            prompt=_prompt(feature, load, index, rng),
            sampling=_sampling(feature, load, index, rng),
            schema=msgspec.json.schema(Answer) if feature == "json" else None,
            adapter=adapters[index % len(adapters)],
        )
        requests.append(request)
    return requests


def _prompt(feature: str, load: Load, index: int, rng: random.Random) -> list[int]:
    if FEATURES[feature].connector is not None:
        rng = random.Random(f"{feature} {index % PROMPTS_STORED}")
    tokens = rng.choices(VOCABULARY, k=rng.randint(*load.prompt_tokens))
    if feature == "prefix":
        shared = random.Random(index % 3).choices(VOCABULARY, k=PREFIX_TOKENS)
        return (shared + tokens)[: load.prompt_tokens[1]]
    if "ngram" in feature:
        return (tokens[:5] * len(tokens))[: len(tokens)]
    return tokens


def _sampling(feature: str, load: Load, index: int, rng: random.Random) -> dict[str, Any]:
    seeded = load.seeded and index % 2 == 1
    hints: dict[str, Any] = {
        "headway_deadline_ms": rng.randint(600_000, 6_000_000),
        "headway_tenant": SPARED if seeded or load is STORED else "",
    }
    max_tokens = rng.randint(*load.output_tokens)
    if feature == "lengths":
        hints["headway_length"] = max(1.0, max_tokens * rng.lognormvariate(0.0, 0.3))
    return {
        "temperature": 0.8 if seeded else 0.0,
        "seed": index if seeded else None,
        "n": 2 if seeded and feature == "n2" else 1,
        "max_tokens": max_tokens,
        "ignore_eos": feature != "json",
        # A small vocabulary makes drafts often right.
        "allowed_token_ids": rng.choices(VOCABULARY, k=3) if "ngram" in feature else None,
        "extra_args": hints,
    }


# ---- one feature -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """One load: its requests, and stock vLLM's answers."""

    load: Load
    requests: list[ForcedRequest]
    stock: Answers = field(default_factory=Answers)


def measure(name: str, presets: Sequence[Preset], count: int, adapters: Path) -> Iterator[tuple[str, Cell]]:
    """One cell for each preset: stock answers first, then every preset on the same engine."""
    feature = FEATURES[name]
    trials = _trials(name, feature.loads, count)
    write_adapters(adapters)
    try:
        engine = _engine(feature, adapters)
    except Exception as error:
        unsupported = _known(feature, error)
        yield from ((preset.name, unsupported) for preset in presets)
        return
    try:
        assert engine.depth == (feature.depth if is_cpu_build() else max(feature.depth, _GPU_DEPTH))
        refusal = _ask_stock(engine, feature, trials)
        for preset in presets:
            cell = _cell(engine, name, preset, trials, adapters) if refusal is None else refusal
            yield preset.name, cell
    finally:
        engine.close()


def _trials(name: str, loads: Sequence[Load], count: int) -> list[Trial]:
    """The requests divided among the loads."""
    shares = [count * (at + 1) // len(loads) - count * at // len(loads) for at in range(len(loads))]
    return [Trial(load, write_requests(name, load, n)) for load, n in zip(loads, shares, strict=True)]


def _ask_stock(engine: ForcedEngine, feature: Feature, trials: Sequence[Trial]) -> Cell | None:
    """Store stock's answers; return a cell with the reason if vLLM is known to be unable to do this."""
    try:
        for trial in trials:
            trial.stock = engine.stock(trial.requests, trial.load.token_budget)
            _check_stability(engine, trial)
    except RuntimeError as error:
        return _known(feature, error)
    return None


def _engine(feature: Feature, folder: Path) -> ForcedEngine:
    """The feature's engine; its connector stores into a folder."""
    connector = feature.connector and json.loads(json.dumps(feature.connector).replace(FOLDER, str(folder)))
    return ForcedEngine(feature.engine, WHOLE.token_budget, folder, feature.host_blocks, connector)


def _known(feature: Feature, error: Exception) -> Cell:
    """The cell of a feature that vLLM itself is known not to support; raises any other error again."""
    if feature.refusal is None or feature.refusal not in str(error):
        raise error
    return {"unsupported": str(error)}


def _check_stability(engine: ForcedEngine, trial: Trial) -> None:
    """Raise RuntimeError if stock answers differently with one request at a time: then nothing is comparable."""
    apart = [replace(request, at_step=index * STEPS_APART) for index, request in enumerate(trial.requests)]
    alone = engine.stock(apart, trial.load.token_budget)
    differing = trial.stock.differing(alone)
    if len(differing) > _near_ties("stock, one at a time", engine, trial, alone, differing):
        raise RuntimeError(f"{UNSTABLE}: {len(differing)} of {len(apart)} requests differ from a run alone")


def _cell(engine: ForcedEngine, name: str, preset: Preset, trials: Sequence[Trial], folder: Path) -> Cell:
    """Run a preset under disturbance and compare; `error` says what the runs should have met and did not."""
    cell = dict.fromkeys(("requests", "identical", "near_ties", *TOLD), 0)
    feature = FEATURES[name]
    most: Counter[str] = Counter()
    for trial in trials:
        seed = random.Random(f"{preset.name} {trial.load.name}").randrange(10**6)
        settings = storm_settings(preset) if feature.storm else forced_settings(preset, seed)
        if feature.lengths:
            settings["order"] = trusting(preset.order)
        if feature.apart:
            answers, met = two_stages(preset.name, trial.requests, folder)
        else:
            answers, met = engine.ours(settings, trial.requests, trial.load.token_budget)
        wrong = trial.stock.differing(answers) | (_invalid(answers) if name == "json" else set())
        cell["requests"] += len(trial.requests)
        cell["identical"] += len(trial.requests) - len(wrong)
        cell["near_ties"] += _near_ties(f"{name}, {preset.name}", engine, trial, answers, wrong)
        for what in TOLD:
            cell[what] += met[what]
        most |= met
    say(f"{name}, {preset.name}: {cell}; the most one run met: {dict(most)}")
    forced = {} if feature.apart else {"preemptions": 0, "pauses": 0}
    least = {**forced, **feature.evidence, **(_moves(preset) if feature.storm else {})}
    if feature.lengths and isinstance(build_policy(preset).order, Predicting):
        least["trusting_steps"] = 0
    missing = [what for what in least if most[what] <= least[what]]
    error = {"error": f"the runs prove nothing, too few {', '.join(missing)}"} if missing else {}
    return {**cell, **error}


def _moves(preset: Preset) -> dict[str, int]:
    """The kinds of KV move that a preset makes by itself where memory is short."""
    ahead = {"offloads": 0, "prefetches": 0} if moves_ahead(preset) else {}
    return {**(_SWAPS if build_policy(preset).uses_host else {}), **ahead}


# ---- comparison ------------------------------------------------------------------------------------


def _invalid(answers: Answers) -> set[int]:
    """Requests whose output does not match its JSON schema."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(ensure_demo_random() / "tokenizer.json"))
    invalid = set()
    for (index, _), tokens in answers.tokens.items():
        try:
            msgspec.json.decode(tokenizer.decode(tokens), type=Answer)
        except msgspec.DecodeError:
            invalid.add(index)
    return invalid


def _near_ties(who: str, engine: ForcedEngine, trial: Trial, answers: Answers, wrong: set[int]) -> int:
    """How many of the `wrong` requests part from stock between two tokens that stock itself finds equally likely."""
    if not wrong:
        return 0
    again = engine.stock(trial.requests, trial.load.token_budget, logprobs_of=wrong)
    near_ties = 0
    for index in sorted(wrong):
        repeated = index not in trial.stock.differing(again)
        gap = again.gap(answers, index) if repeated and trial.requests[index].greedy else inf
        near_ties += gap <= NEAR_TIE
        verdict = "a near tie" if gap <= NEAR_TIE else "wrong"
        say(f"{who}: request {index} of {trial.load.name} is {verdict}, its logprobs differ by {gap:.2g}")
    return near_ties


# ---- the command -----------------------------------------------------------------------------------


def main() -> None:
    """Print `{"<preset>": {"<feature>": cell}}`; exit status 1 unless every cell is as it should be."""
    presets = known_presets()
    parser = command_line(__doc__)
    preset_option(parser, "--preset", "only this preset")
    parser.add_argument("--feature", action="append", choices=list(FEATURES), help="default: plain")
    parser.add_argument("--requests", type=int, default=48, help="requests a cell (default 48, at least 2)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.requests < 2:
        parser.error(f"--requests is {arguments.requests}; accepted: 2 or more")
    chosen = arguments.preset or list(presets)
    features = arguments.feature or ["plain"]
    if arguments.worker is not None:
        _work(arguments.worker, features[0], [presets[name] for name in chosen], arguments.requests)
        return
    table = outputs(chosen, features, arguments.requests)
    print(json.dumps(table))
    sys.exit(not all(passed(cell) for row in table.values() for cell in row.values()))


def outputs(presets: Sequence[str], features: Sequence[str], requests: int) -> dict[str, dict[str, Cell]]:
    """The table: every preset under every feature."""
    columns = {feature: run_feature(feature, presets, requests) for feature in features}
    return {preset: {feature: columns[feature][preset] for feature in features} for preset in presets}


def passed(cell: Cell) -> bool:
    """Whether a cell shows no fault: every request is identical or a near tie, or vLLM itself cannot do it."""
    if "error" in cell or "unsupported" in cell:
        return "error" not in cell
    return int(cell["identical"]) + int(cell["near_ties"]) == cell["requests"]


def run_feature(feature: str, presets: Sequence[str], requests: int) -> dict[str, Cell]:
    """Measure a feature's cells in a process of its own, so that vLLM starts afresh."""
    command = [sys.executable, __file__, "--feature", feature, "--requests", str(requests)]
    command += [argument for preset in presets for argument in ("--preset", preset)]
    started_s = time.monotonic()
    timeout_s = FEATURE_TIMEOUT_S + FEATURES[feature].apart * APART_TIMEOUT_S * len(presets)
    with tempfile.TemporaryDirectory() as folder:
        register_parts(Path(folder))
        cells_file = Path(folder, CELLS)
        cells_file.touch()
        try:
            worker = subprocess.run(
                [*command, "--worker", folder],
                env=_environment(feature, folder),
                stdout=2,  # stdout is for the table; what vLLM prints goes where its log goes
                timeout=timeout_s,
                check=False,
            )
            why = f"the engine's process ended with status {worker.returncode}; see its messages on stderr"
        except subprocess.TimeoutExpired:
            why = f"not done after {timeout_s} s"
        cells = dict(json.loads(line) for line in cells_file.read_text().splitlines())
    say(f"{feature}: {time.monotonic() - started_s:.0f} s")
    return {preset: cells.get(preset, {"error": why}) for preset in presets}


def _environment(feature: str, folder: str) -> dict[str, str]:
    """Environment of the worker: the engine in its own process, no switches from outside, our parts on the path."""
    outer = {key: value for key, value in os.environ.items() if key != CPU_ASYNC_SWITCH}
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join(filter(None, (folder, outer.get("PYTHONPATH")))),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        **(_ONE_THREAD if is_cpu_build() else _ON_GPU),
        **FEATURES[feature].environment,
    }


def _work(folder: Path, feature: str, presets: Sequence[Preset], requests: int) -> None:
    """Measure in the worker process, writing each cell at once."""
    from headway.engine import register

    register()
    with (folder / CELLS).open("a") as cells:
        for named in measure(feature, presets, requests, folder):
            print(json.dumps(named), file=cells, flush=True)


if __name__ == "__main__":
    main()
