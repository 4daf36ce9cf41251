"""A catalogue model on a real GPU, with generated weights: its engine, its runs, and its step times."""

from __future__ import annotations

import gc
import json
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bench.gain.regret_workloads import BLOCK_TOKENS, Machine
from bench.real_runs import STOCK, Contender, EngineSpec, KeptRun
from headway.core.batch_shape import BatchShape
from headway.engine.stepped_engine import SteppedEngine
from headway.errors import ConfigError
from headway.lab.real_engine import ServedRequest, serve
from headway.policies.batching.step_shapes import decode_shape, together
from headway.predict.lengths.choice import NONE, length_predictor
from headway.predict.models.known_models import model_shape
from headway.predict.models.model_shape import ModelShape
from headway.sim.lengths import AskedPredictor
from headway.sim.simulation import System
from headway.statistics import median
from headway.traces import TraceRequest
from headway.whole_file import write_whole

WARM_REQUESTS = 64
WARM_TOKENS = (700, 24)


def llama_folder(shape: ModelShape, folder: Path) -> Path:
    """Make a checkpoint folder without weights, which vLLM generates (`--load-format dummy`).

    Raises ConfigError for a shape that is not of Llama's architecture.
    """
    if not shape.gated or shape.num_experts or shape.latent or shape.quantized:
        raise ConfigError(f"model is {shape.name}; accepted: dense models with Llama's layers")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": shape.tied_embeddings,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context_tokens,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "config.json", json.dumps(config, indent=1).encode())
    return folder


def engine_spec(machine: Machine, out: Path, flags: Sequence[str] = ()) -> EngineSpec:
    """The engine of all runs; unspecified settings are vLLM's."""
    longest = str(machine.longest_tokens)
    made = ("--load-format", "dummy", "--skip-tokenizer-init", "--max-model-len", longest)
    return EngineSpec(
        model=str(llama_folder(model_shape(machine.model), out / "model")),
        flags=(*made, *flags),
        block_tokens=BLOCK_TOKENS,
        warm=warm_up,
    )


def warm_up() -> list[TraceRequest]:
    """Requests with which vLLM compiles what it compiles on first use."""
    return alike(WARM_REQUESTS, *WARM_TOKENS)


def alike(count: int, prompt_tokens: int, output_tokens: int) -> list[TraceRequest]:
    """`count` requests of one size, all arriving at once."""
    return [
        TraceRequest(id=f"{at}", arrival_s=0.0, input_tokens=prompt_tokens, output_tokens=output_tokens)
        for at in range(count)
    ]


def serve_on_gpu(
    engine: SteppedEngine, contender: Contender, seats: int, requests: Sequence[TraceRequest], seed: int
) -> KeptRun:
    """Serve a run. Lengths are learned from finished answers beside it, as in `headway serve`."""
    contender.put_in(engine, seats)
    schedule_s = _timed_schedule(engine)
    gc.collect()
    if contender.predictor in (None, NONE):
        served = serve(engine, requests, seed)
    else:
        predictor = AskedPredictor(length_predictor(contender.predictor))
        served = serve(engine, requests, seed, lengths=predictor)
    return KeptRun(served=served, counters=engine.counters, schedule_s=schedule_s)


def _timed_schedule(engine: SteppedEngine) -> list[float]:
    """Measure the seconds of each call from now on."""
    schedule, found = engine.scheduler.schedule, []

    def timed(*args: Any, **kwargs: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return schedule(*args, **kwargs)
        finally:
            found.append(time.perf_counter() - began_s)

    engine.scheduler.schedule = timed  # type: ignore[method-assign]  # timed, not changed
    return found


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """Median seconds between two steps of a uniform batch, each computing `new_tokens` after `context_tokens`.

    `decodes` of them bring a token in the same step, after `decode_context_tokens` each.
    """

    batch: int
    new_tokens: int
    context_tokens: int
    seconds: float
    decodes: int = 0
    decode_context_tokens: int = 0


PROMPTS = (128, 512, 2048, 8192)
"""Tokens of a lone prompt."""
DECODES = ((1, 512), (16, 512), (64, 512), (256, 512), (16, 4096), (64, 4096))
"""Numbers of requests that decode together, and the tokens of each prompt."""
DECODED_TOKENS = 40
REPETITIONS = 5
JOINED = (
    (16, 128),
    (16, 480),
    (16, 1024),
    (64, 128),
    (64, 400),
    (64, 1024),
    (64, 2048),
    (200, 128),
    (200, 1024),
)
"""Numbers of decodes, and the tokens of prompts that join them one by one: within CUDA graphs, and beyond."""
BESIDE_TOKENS = (128, 260)
"""Prompt and answer lengths of the decodes: long enough to be running when the last prompt has joined."""
FIRST_JOINS_S, JOINS_EVERY_S = 1.0, 0.1


def step_times(engine: SteppedEngine) -> list[StepTime]:
    """Measure lone prompts, batches of decodes alone, and prompts beside them; under a minute."""
    STOCK.put_in(engine, None)
    return [
        *(_prompt(engine, tokens) for tokens in PROMPTS),
        *(_decode(engine, *each) for each in DECODES),
        *(_joined(engine, *each) for each in JOINED),
    ]


def _prompt(engine: SteppedEngine, tokens: int) -> StepTime:
    """No two prompts begin alike, so the prefix cache finds nothing."""
    served = [serve(engine, alike(1, tokens, 2), f"{tokens} {at}") for at in range(REPETITIONS)]
    seconds = median(each.first_token_s or 0.0 for (each,) in served)
    return StepTime(batch=1, new_tokens=tokens, context_tokens=0, seconds=seconds)


def _decode(engine: SteppedEngine, batch: int, prompt_tokens: int) -> StepTime:
    """The steps in which every request brings a token."""
    at_s: Counter[float] = Counter()

    def came(request_id: str, tokens: int, now_s: float) -> None:
        at_s[now_s] += tokens

    serve(engine, alike(batch, prompt_tokens, DECODED_TOKENS), f"{batch} {prompt_tokens}", on_tokens=came)
    times_s = sorted(at_s)
    gaps_s = [after - before for before, after in pairwise(times_s) if at_s[before] == at_s[after] == batch]
    return StepTime(
        batch=batch,
        new_tokens=1,
        context_tokens=prompt_tokens + DECODED_TOKENS // 2,
        seconds=median(gaps_s),
    )


def _joined(engine: SteppedEngine, decodes: int, prompt_tokens: int) -> StepTime:
    """The steps in which a prompt's first token comes beside those of all decodes."""
    at_s: Counter[float] = Counter()
    first_s: dict[str, float] = {}

    def came(request_id: str, tokens: int, now_s: float) -> None:
        at_s[now_s] += 1
        first_s.setdefault(request_id, now_s)

    beside = [replace(each, id=f"beside {each.id}") for each in alike(decodes, *BESIDE_TOKENS)]
    joining = [
        replace(each, arrival_s=FIRST_JOINS_S + JOINS_EVERY_S * at)
        for at, each in enumerate(alike(REPETITIONS, prompt_tokens, 1))
    ]
    serve(engine, [*beside, *joining], f"{decodes} beside {prompt_tokens}", on_tokens=came)
    before_s = {after: before for before, after in pairwise(sorted(at_s))}
    joined_s = [first_s[each.id] for each in joining]
    return StepTime(
        batch=1,
        new_tokens=prompt_tokens,
        context_tokens=0,
        seconds=median(now_s - before_s[now_s] for now_s in joined_s),
        decodes=int(median(at_s[now_s] - 1 for now_s in joined_s)),
        decode_context_tokens=sum(BESIDE_TOKENS) - BESIDE_TOKENS[1] // 2,
    )


# ---- What steps take beyond a cost sheet, from nothing but when answers began and ended under stock vLLM.
#
# An answer of n tokens lives through n - 1 steps after its first token, whatever else is there: stock pauses none.
# The steps with prompts among them are those in which others have their first token, since its moment is that of the
# step's end; the others are decodes alone. So what an answer takes beyond the sheet's sum for its steps is the sum
# of what each kind of step takes beyond it, and hundreds of answers tell them apart.
#
# It is a rough estimate: a prompt that takes several steps is seen in the last alone. On simulated streams of known
# cost it finds 2 ms for a large step where there are none, 4.4 to 6.7 where there are 4, the more the nearer stock
# is to saturation, and 5.7 where there are 6 (`tests/bench/gain/test_gpu_real.py` has the first two at moderate
# load).


LEAST_TOKENS = 60
"""Least tokens of an answer that counts: the time of decode steps is known only as a mean over its life."""
EVERY_S = 0.05
"""Interval between two counts of decoding requests."""
COLUMNS = (
    "ms_beyond_graphs",
    "ms_with_prompts_within_graphs",
    "ms_per_gb_read_beside_prompts",
    "ms_without_prompts",
    "ms_per_gb_read_without",
)

Stream = tuple[Sequence[TraceRequest], Sequence[ServedRequest]]


def beyond_sheet(system: System, streams: Iterable[Stream]) -> dict[str, float]:
    """The extra time of steps beyond the cost sheet, in milliseconds.

    For steps with prompts (of more tokens than CUDA graphs hold, and of fewer) and without, as constants and a slope by
    the KV that decodes read; `rms_before` and `rms_after` are of the answers' relative errors. O(answers x steps with
    prompts).
    """
    rows = [row for stream in streams for row in _rows(system, *stream)]
    taken_s, told_s, *features = np.array(rows).T
    design = np.stack(features, axis=1) / taken_s[:, None]
    left = (taken_s - told_s) / taken_s
    found, *_ = np.linalg.lstsq(design, left, rcond=None)
    rms = [float(np.sqrt(np.mean(errors**2))) for errors in (left, left - design @ found)]
    return {
        **{name: float(value) * 1e3 for name, value in zip(COLUMNS, found, strict=True)},
        "answers": len(rows),
        "rms_before": rms[0],
        "rms_after": rms[1],
    }


def _rows(
    system: System, requests: Sequence[TraceRequest], served: Sequence[ServedRequest]
) -> list[tuple[float, ...]]:
    """For each answer: its seconds, the sheet's, and the factors of the coefficients, in the order of COLUMNS."""
    prompts = np.array([request.input_tokens for request in requests])
    tokens = np.array([each.output_tokens for each in served])
    first_s = np.array([each.first_token_s or 0.0 for each in served])
    end_s = np.array([each.finished_s for each in served])
    gb_a_token = system.calibration.kv_bytes_per_token / 1e9

    def decodes_at(now_s: float) -> BatchShape:
        """The decodes of the step that ends then, assuming that each request's tokens come evenly."""
        on = (first_s < now_s) & (end_s >= now_s)
        done = (now_s - first_s[on]) / np.maximum(end_s[on] - first_s[on], 1e-9)
        context = prompts[on] + 1 + done * (tokens[on] - 1)
        return decode_shape(int(on.sum()), int(context.sum()))

    begun: dict[float, BatchShape] = defaultdict(BatchShape)
    for moment_s, prompt in zip(first_s, prompts, strict=True):
        begun[moment_s].add(int(prompt), 0)
    moments_s = sorted(begun)
    beside = [decodes_at(moment_s) for moment_s in moments_s]
    step_s, graphed_tokens = system.step.step_s, system.limits.graphed_tokens
    told = [step_s(together(decodes, begun[at])) for decodes, at in zip(beside, moments_s, strict=True)]
    beyond = [
        decodes.num_tokens + begun[at].num_tokens > graphed_tokens
        for decodes, at in zip(beside, moments_s, strict=True)
    ]
    told_by, read_by, beyond_by = (
        [0.0, *accumulate(each)]
        for each in (told, [decodes.decode_context_tokens * gb_a_token for decodes in beside], beyond)
    )
    looks_s = np.arange(0.0, end_s.max(), EVERY_S)
    looks = [decodes_at(look_s) for look_s in looks_s]
    alone_s = np.array([step_s(decodes) if decodes.num_jobs else 0.0 for decodes in looks])
    alone_gb = np.array([decodes.decode_context_tokens * gb_a_token for decodes in looks])
    found: list[tuple[float, ...]] = []
    for first, end, count in zip(first_s, end_s, tokens, strict=True):
        a, b = bisect_right(moments_s, first), bisect_right(moments_s, end)
        alone, during = (count - 1) - (b - a), (looks_s > first) & (looks_s < end)
        if count >= LEAST_TOKENS and alone >= 0 and during.any():
            sheet_s = told_by[b] - told_by[a] + alone * alone_s[during].mean()
            large = beyond_by[b] - beyond_by[a]
            read_gb = read_by[b] - read_by[a], alone * alone_gb[during].mean()
            found.append((end - first, sheet_s, large, b - a - large, read_gb[0], alone, read_gb[1]))
    return found
