"""Tokens under every preset against stock vLLM's own: `python bench/outputs.py --json`.

The real CPU engine in float32 with the demo model, one process a feature: first vLLM's own scheduler, then
Headway under each preset with pauses, chunk caps and preemptions forced on top (`bench/forced.py`) and every
step checked. Two loads: greedy requests in chunked prompts, and greedy beside seeded ones in whole prompts,
since vLLM 0.32's CPU runner cannot compute a seeded request's prompt in chunks (feature `seeded-chunks`
shows its error). A cell is

    {"requests": N, "identical": N, "near_ties": k, "preemptions": M, "pauses": P}

or {"unsupported": "<vLLM's reason>"} or {"error": "..."}. A difference is a near tie if stock's own log
probabilities of the two tokens are within 1e-4 where they part. Exit status 1 unless each request is
identical or a near tie and each cell met what its feature is about (preemptions and pauses, and for example
preemptions of requests in flight under `async`). `--preset` and `--feature` pick a part; without them all
presets run `plain`. The other features take up to two minutes each.
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
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from headway.engine.demo_model import ensure_demo_model
from headway.engine.plugin import CPU_ASYNC_SWITCH
from headway.policies.presets import Preset, known_presets

ROOT = Path(__file__).parents[1]
FEATURE_TIMEOUT_S = 900
MAX_STEPS = 20_000
STEPS_APART = 120
"""More than any request needs, so that requests this far apart never meet."""
NEAR_TIE = 1e-4
SEATS = 8
NUM_BLOCKS = 16
"""One is vLLM's null block; the rest holds two to four of the chunked requests."""
SPARE = "seeded"
"""Tenant of the requests whose prompts must not be cut in chunks."""
ADAPTERS = 3
PREFIX_TOKENS = 32
"""One block, shared by a third of the requests; a longer hit is on a job's own blocks."""
VOCABULARY = range(10, 2000)

CELLS = "cells.jsonl"

Cell = dict[str, int | str]
KEYS = ("requests", "identical", "near_ties", "preemptions", "pauses")


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent under one token budget a step."""

    name: str
    token_budget: int
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seeded: bool


CHUNKED = Load("chunked", 64, (20, 150), (8, 40), seeded=False)
WHOLE = Load("whole", 512, (8, 40), (8, 24), seeded=True)
"""All seats filled need no more than the budget, so nobody's prompt is ever cut for lack of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One way to run the engine, how many steps it has in flight, and what a run must have met.

    `evidence` is the largest value that proves nothing; `refusal` is what vLLM says if it cannot do this.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    loads: tuple[Load, ...] = (CHUNKED, WHOLE)
    depth: int = 1
    evidence: Mapping[str, int] = field(default_factory=dict)
    refusal: str | None = None


_TWO_WORKERS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
_NGRAM = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 1,
    }
}
_LORA = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": ADAPTERS, "max_lora_rank": 8}
UNSTABLE = "stock's own tokens depend on what else is in the batch"

FEATURES = {
    "plain": Feature(),
    "async": Feature(environment={CPU_ASYNC_SWITCH: "1"}, depth=2, evidence={"in_flight_preemptions": 0}),
    "tp2": Feature(engine={"tensor_parallel_size": 2}, environment=_TWO_WORKERS),
    "pp2": Feature(
        engine={"pipeline_parallel_size": 2, "enforce_eager": False},
        environment=_TWO_WORKERS,
        depth=2,
        evidence={"in_flight_preemptions": 0},
    ),
    "prefix": Feature(
        engine={"enable_prefix_caching": True},
        evidence={"first_hit_tokens": 0, "resumed_hit_tokens": PREFIX_TOKENS},
    ),
    "json": Feature(
        engine={"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
        loads=(
            replace(CHUNKED, output_tokens=(48, 48)),
            replace(WHOLE, prompt_tokens=(8, 16), output_tokens=(48, 48)),
        ),
    ),
    "n2": Feature(),
    "lora": Feature(engine=_LORA, evidence={"resident_adapters": 1}),
    "ngram": Feature(
        engine=_NGRAM, loads=(CHUNKED, replace(WHOLE, seeded=False)), evidence={"longest_delta": 1}
    ),
    "seeded-chunks": Feature(
        loads=(replace(CHUNKED, seeded=True),), refusal="CPU Generator does not use offset"
    ),
    "seeded-ngram": Feature(engine=_NGRAM, loads=(WHOLE,), refusal=UNSTABLE),
    "lora-base": Feature(engine=_LORA, refusal=UNSTABLE),
}


# ---- what is sent ----------------------------------------------------------------------------------


class Answer(msgspec.Struct):
    """What feature `json` binds outputs to."""

    word: Annotated[str, msgspec.Meta(pattern="^[a-z]{2,8}$")]
    ok: bool
    tags: Annotated[list[Literal["x", "yy"]], msgspec.Meta(min_length=1, max_length=2)]


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the step it arrives at, its prompt, how it samples, and its adapter (0: none)."""

    at_step: int
    prompt: list[int]
    sampling: dict[str, Any]
    adapter: int = 0

    @property
    def greedy(self) -> bool:
        """Whether it takes the most probable token."""
        return not self.sampling["temperature"]


def write_requests(feature: str, load: Load, count: int) -> list[Request]:
    """The same requests for every run of a feature."""
    rng = random.Random(f"{feature} {load.name}")
    requests = []
    at_step = 0
    for index in range(count):
        at_step += rng.choice((0, 0, 1, 3))
        sampling = _sampling(feature, load, index, rng)
        adapters = {"lora": (1, 2, 3), "lora-base": (0, 1, 2, 3)}.get(feature, (0,))
        prompt = _prompt(feature, load, index, rng)
        requests.append(Request(at_step, prompt, sampling, adapters[index % len(adapters)]))
    return requests


def _prompt(feature: str, load: Load, index: int, rng: random.Random) -> list[int]:
    tokens = [rng.choice(VOCABULARY) for _ in range(rng.randint(*load.prompt_tokens))]
    if feature == "prefix":
        shared = random.Random(index % 3).choices(VOCABULARY, k=PREFIX_TOKENS)
        return (shared + tokens)[: load.prompt_tokens[1]]
    if "ngram" in feature:
        return (tokens[:5] * len(tokens))[: len(tokens)]
    return tokens


def _sampling(feature: str, load: Load, index: int, rng: random.Random) -> dict[str, Any]:
    seeded = load.seeded and index % 2 == 1
    hints = {
        "headway_deadline_ms": rng.randint(600_000, 6_000_000),
        "headway_tenant": SPARE if seeded else "",
    }
    sampling: dict[str, Any] = {
        "temperature": 0.8 if seeded else 0.0,
        "seed": index if seeded else None,
        "max_tokens": rng.randint(*load.output_tokens),
        "ignore_eos": True,
        "extra_args": hints,
    }
    if feature == "json":
        sampling |= {"json": msgspec.json.schema(Answer), "ignore_eos": False}
    if feature == "n2" and seeded:
        sampling["n"] = 2
    if "ngram" in feature:  # few tokens to choose from, so that drafts are often right
        sampling["allowed_token_ids"] = rng.choices(VOCABULARY, k=3)
    return sampling


# ---- the engine ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answers:
    """What came back: per request and choice the tokens, their log probabilities if asked for, the text."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    longest_delta: int = 0

    def take(self, index: int, choice: Any) -> None:
        """Append what one step brought for one choice of one request."""
        key = (index, choice.index)
        self.tokens.setdefault(key, []).extend(choice.token_ids)
        self.logprobs.setdefault(key, []).extend(choice.logprobs or ())
        self.texts[key] = self.texts.get(key, "") + choice.text
        self.longest_delta = max(self.longest_delta, len(choice.token_ids))


class Engine:
    """vLLM's engine in this process; while it is idle its scheduler is built anew, stock or ours."""

    def __init__(self, feature: Feature, adapters: Path) -> None:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments: dict[str, Any] = {
            "model": str(ensure_demo_model()),
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "num_gpu_blocks_override": NUM_BLOCKS,
            "gpu_memory_utilization": 0.1,
            "max_model_len": 256,
            "max_logprobs": -1,
            "max_num_seqs": SEATS,
            "max_num_batched_tokens": WHOLE.token_budget,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            **feature.engine,
        }
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**arguments))
        self._core = self._engine.engine_core.engine_core
        self._adapters = adapters
        self._runs = 0
        assert self._core.vllm_config.max_concurrent_batches == feature.depth

    def schedule_with(self, settings: dict[str, Any] | None, token_budget: int) -> Any:
        """Put in a new scheduler: Headway with `settings`, or vLLM's own, as vLLM's engine core does it."""
        config, old = self._core.vllm_config, self._core.scheduler
        assert not old.has_requests()
        assert not self._core.batch_queue
        config.scheduler_config.max_num_scheduled_tokens = token_budget
        config.scheduler_config.scheduler_cls = settings and "headway.engine.HeadwayScheduler"
        config.additional_config = {"headway": settings} if settings else {}
        self._core.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=self._core.structured_output_manager,
            log_stats=False,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
        )
        if not settings:
            assert type(self._core.scheduler).__module__.startswith("vllm.v1.core.sched.")
        return self._core.scheduler

    def run(self, requests: Sequence[Request], logprobs_of: frozenset[int] = frozenset()) -> Answers:
        """Send every request at its step, until all have ended and the workers know it."""
        answers = Answers()
        self._runs += 1
        pending = deque(enumerate(requests))
        for step in range(requests[-1].at_step + MAX_STEPS):
            while pending and pending[0][1].at_step <= step:
                self._send(*pending.popleft(), logprobs_of)
            if not pending and not self._busy():
                return answers
            for output in self._engine.step():
                for choice in output.outputs:
                    answers.take(int(output.request_id.split("-")[1]), choice)
        raise RuntimeError(f"not done {MAX_STEPS} steps after the last arrival")

    def _busy(self) -> bool:
        core = self._core
        return bool(
            self._engine.has_unfinished_requests() or core.scheduler.has_requests() or core.batch_queue
        )

    def _send(self, index: int, request: Request, logprobs_of: frozenset[int]) -> None:
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        arguments = {**request.sampling, "output_kind": RequestOutputKind.DELTA}
        if index in logprobs_of:
            arguments["logprobs"] = -1
        if schema := arguments.pop("json", None):
            arguments["structured_outputs"] = StructuredOutputsParams(json=schema)
        number = request.adapter
        lora = LoRARequest(f"adapter-{number}", number, str(self._adapters / str(number))) if number else None
        self._engine.add_request(
            f"{self._runs}-{index}",
            {"prompt_token_ids": request.prompt},
            SamplingParams(**arguments),
            lora_request=lora,
        )

    def close(self) -> None:
        """Stop the workers."""
        self._engine.engine_core.shutdown()


def write_adapters(directory: Path) -> None:
    """Three random LoRA adapters of rank 4 for the demo model, as PEFT writes them."""
    import numpy as np
    from safetensors.numpy import save_file

    shape = json.loads((ensure_demo_model() / "config.json").read_text())
    hidden, layers, rank, modules = shape["hidden_size"], shape["num_hidden_layers"], 4, ("q_proj", "v_proj")
    for number in range(1, ADAPTERS + 1):
        rng = np.random.default_rng(number)
        weights = {}
        for name in (f"layers.{layer}.self_attn.{module}" for layer in range(layers) for module in modules):
            for half, size in (("lora_A", (rank, hidden)), ("lora_B", (hidden, rank))):
                matrix = rng.standard_normal(size) * 0.25
                weights[f"base_model.model.model.{name}.{half}.weight"] = matrix.astype(np.float32)
        adapter = directory / str(number)
        adapter.mkdir()
        save_file(weights, adapter / "adapter_model.safetensors")
        settings = {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 2 * rank,
            "target_modules": modules,
            "bias": "none",
        }
        (adapter / "adapter_config.json").write_text(json.dumps(settings))


# ---- one feature -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Trial:
    """One load: its requests, and what stock vLLM answers."""

    load: Load
    requests: list[Request]
    stock: Answers = field(default_factory=Answers)


def measure(name: str, presets: Sequence[Preset], count: int, adapters: Path) -> Iterator[tuple[str, Cell]]:
    """One cell a preset: stock answers first, then every preset on the same engine."""
    feature = FEATURES[name]
    trials = _trials(name, feature, count)
    write_adapters(adapters)
    engine = Engine(feature, adapters)
    try:
        refusal = _ask_stock(engine, feature, trials)
        for preset in presets:
            yield preset.name, _cell(engine, name, preset, trials) if refusal is None else refusal
    finally:
        engine.close()


def _trials(name: str, feature: Feature, count: int) -> list[Trial]:
    """The requests shared out among the loads, the last one taking what is left over."""
    trials = []
    for left, load in zip(range(len(feature.loads), 0, -1), feature.loads, strict=True):
        share = count // left
        count -= share
        trials.append(Trial(load, write_requests(name, load, share)))
    return trials


def _ask_stock(engine: Engine, feature: Feature, trials: Sequence[Trial]) -> Cell | None:
    """Fill in stock's answers; if vLLM itself cannot do this, and is known not to, why."""
    try:
        for trial in trials:
            engine.schedule_with(None, trial.load.token_budget)
            trial.stock = engine.run(trial.requests)
            _check_stability(engine, trial)
    except RuntimeError as error:
        if feature.refusal is None or feature.refusal not in str(error):
            raise
        return {"unsupported": str(error)}
    return None


def _check_stability(engine: Engine, trial: Trial) -> None:
    """RuntimeError if stock answers otherwise when it has one request at a time: then nothing is comparable."""
    apart = [replace(request, at_step=index * STEPS_APART) for index, request in enumerate(trial.requests)]
    engine.schedule_with(None, trial.load.token_budget)
    alone = engine.run(apart)
    differing = _differing(trial, alone)
    if len(differing) > _near_ties(engine, trial, alone, differing):
        raise RuntimeError(f"{UNSTABLE}: {len(differing)} of {len(apart)} requests differ from a run alone")


def _cell(engine: Engine, name: str, preset: Preset, trials: Sequence[Trial]) -> Cell:
    """Run a preset under disturbance and compare; `error` says what the runs should have met and did not."""
    totals = Counter(dict.fromkeys(KEYS, 0))
    met: Counter[str] = Counter()
    for seed, trial in enumerate(trials):
        answers, seen = _disturbed(engine, preset, trial, seed)
        wrong = _differing(trial, answers) | (_invalid(answers) if name == "json" else set())
        totals["requests"] += len(trial.requests)
        totals["identical"] += len(trial.requests) - len(wrong)
        totals["near_ties"] += _near_ties(engine, trial, answers, wrong)
        totals["preemptions"] += seen["preemptions"]
        totals["pauses"] += seen["pauses"]
        met |= seen
    cell: Cell = dict(totals)
    least = {"preemptions": 0, "pauses": 0, **FEATURES[name].evidence}
    missing = [what for what in least if met[what] <= least[what]]
    if missing:
        cell["error"] = f"the runs prove nothing, they had too few {', '.join(missing)}"
    _say(f"{name}, {preset.name}: {cell}, met {dict(met)}")
    return cell


def _disturbed(engine: Engine, preset: Preset, trial: Trial, seed: int) -> tuple[Answers, Counter[str]]:
    """A preset's answers, and what its run met."""
    from bench.forced import forced_settings

    settings = forced_settings(preset, seed=seed, spare=SPARE)
    scheduler = engine.schedule_with(settings, trial.load.token_budget)
    in_flight = _preemptions_in_flight(scheduler)
    answers = engine.run(trial.requests)
    counters = scheduler.counters
    assert not counters.policy_faults
    assert not counters.watchdog_faults
    seen = Counter(scheduler.guard.policy.batching.seen)
    seen["pauses"] = counters.pauses
    seen["shortages"] = counters.shortage_preemptions
    seen["preemptions"] = counters.planned_preemptions + counters.shortage_preemptions
    seen["in_flight_preemptions"] = sum(in_flight)
    seen["longest_delta"] = answers.longest_delta
    return answers, seen


def _preemptions_in_flight(scheduler: Any) -> list[bool]:
    """One entry for each preemption from now on: whether output of the request was in flight."""
    preempt = scheduler._preempt_request
    found: list[bool] = []

    def noted(request: Any, *args: Any, **kwargs: Any) -> None:
        found.append(request.num_in_flight_tokens > 0)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted
    return found


# ---- comparison ------------------------------------------------------------------------------------


def _differing(trial: Trial, answers: Answers) -> set[int]:
    """Requests with a choice whose tokens are not stock's."""
    stock = trial.stock.tokens
    choices = stock.keys() | answers.tokens.keys()
    return {choice[0] for choice in choices if answers.tokens.get(choice) != stock.get(choice)}


def _invalid(answers: Answers) -> set[int]:
    """Requests whose text is not the JSON it was bound to."""
    invalid = set()
    for (index, _), text in answers.texts.items():
        try:
            msgspec.json.decode(text, type=Answer)
        except msgspec.DecodeError:
            invalid.add(index)
    return invalid


def _near_ties(engine: Engine, trial: Trial, answers: Answers, wrong: set[int]) -> int:
    """How many of the `wrong` part from stock between two tokens that stock itself finds equally likely."""
    if not wrong:
        return 0
    engine.schedule_with(None, trial.load.token_budget)
    again = engine.run(trial.requests, logprobs_of=frozenset(wrong))
    near_ties = 0
    for index in sorted(wrong):
        gap = _gap(trial, answers, again, index)
        near_ties += gap <= NEAR_TIE
        _say(f"request {index} of {trial.load.name} differs; log probabilities differ by {gap:.2g}")
    return near_ties


def _gap(trial: Trial, answers: Answers, again: Answers, index: int) -> float:
    """Stock's own difference of log probability where a request's tokens part; inf if it cannot be told."""
    key = (index, 0)
    stock, ours = trial.stock.tokens[key], answers.tokens.get(key, [])
    if not trial.requests[index].greedy or again.tokens[key] != stock or stock == ours:
        return inf
    at = next(i for i, (left, right) in enumerate(zip_longest(stock, ours)) if left != right)
    likely = again.logprobs[key][at] if at < min(len(stock), len(ours)) else {}
    if ours[at : at + 1] == [] or ours[at] not in likely:
        return inf
    return float(abs(likely[stock[at]].logprob - likely[ours[at]].logprob))


# ---- the command -----------------------------------------------------------------------------------


def main() -> None:
    """Print `{"<preset>": {"<feature>": cell}}`; exit status 1 unless every cell is as it should be."""
    presets = known_presets()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout (the default output)")
    parser.add_argument("--preset", action="append", choices=list(presets), help="only this preset")
    parser.add_argument("--feature", action="append", choices=list(FEATURES), help="default: plain")
    parser.add_argument("--requests", type=int, default=48, help="requests a cell (default 48)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = arguments.preset or list(presets)
    if arguments.worker is not None:
        _work(arguments.worker, arguments.feature[0], [presets[name] for name in chosen], arguments.requests)
        return
    table = outputs(chosen, arguments.feature or ["plain"], arguments.requests)
    print(json.dumps(table))
    sys.exit(not all(passed(cell) for row in table.values() for cell in row.values()))


def outputs(presets: Sequence[str], features: Sequence[str], requests: int) -> dict[str, dict[str, Cell]]:
    """The table: every preset under every feature."""
    columns = {feature: run_feature(feature, presets, requests) for feature in features}
    return {preset: {feature: columns[feature][preset] for feature in features} for preset in presets}


def passed(cell: Cell) -> bool:
    """Whether a cell shows nothing wrong: all tokens stock's or near ties, or vLLM itself cannot do it."""
    if "error" in cell or "unsupported" in cell:
        return "error" not in cell
    return int(cell["identical"]) + int(cell["near_ties"]) == cell["requests"]


def run_feature(feature: str, presets: Sequence[str], requests: int) -> dict[str, Cell]:
    """A feature's cells, measured in a process of its own, so that vLLM starts afresh."""
    with tempfile.TemporaryDirectory() as folder:
        _register_parts(Path(folder))
        command = [sys.executable, "-m", "bench.outputs", "--worker", folder]
        command += ["--feature", feature, "--requests", str(requests)]
        command += [argument for preset in presets for argument in ("--preset", preset)]
        started_s = time.monotonic()
        try:
            status = subprocess.run(
                command, env=_environment(feature, folder), stdout=2, timeout=FEATURE_TIMEOUT_S, check=False
            ).returncode
            why = f"the engine's process ended with status {status}; its messages are on stderr"
        except subprocess.TimeoutExpired:
            why = f"not done after {FEATURE_TIMEOUT_S} s"
        _say(f"{feature}: {time.monotonic() - started_s:.0f} s")
        cells = dict(json.loads(line) for line in (Path(folder) / CELLS).read_text().splitlines())
    return {preset: cells.get(preset, {"error": why}) for preset in presets}


def _environment(feature: str, folder: str) -> dict[str, str]:
    """The engine in the worker's own process, no switch left over from outside, our parts on the path."""
    outer = {key: value for key, value in os.environ.items() if key != CPU_ASYNC_SWITCH}
    return {
        **outer,
        "PYTHONPATH": os.pathsep.join([str(ROOT), folder]),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        **FEATURES[feature].environment,
    }


def _register_parts(folder: Path) -> None:
    """Make a folder that, on the import path, registers `bench.forced` as an installed package would."""
    (folder / CELLS).touch()
    info = folder / "headway_bench-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headway-bench\nVersion: 0\n")
    lines = [
        f"[headway.{kind}]\nforced = bench.forced:Forced{kind.title()}\n" for kind in ("batching", "eviction")
    ]
    (info / "entry_points.txt").write_text("".join(lines))


def _work(folder: Path, feature: str, presets: Sequence[Preset], requests: int) -> None:
    """In the worker: measure, writing each cell down at once."""
    from headway.engine import register

    register()
    with (folder / CELLS).open("a") as file:
        for named in measure(feature, presets, requests, folder):
            print(json.dumps(named), file=file, flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
