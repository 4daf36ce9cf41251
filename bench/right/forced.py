"""A real engine under stock's scheduler or a preset disturbed on purpose, for `bench/right/outputs.py`.

The disturbance (paused residents, capped chunks, preemptions) is made of parts like any other: registered by
entry points, named in the engine's settings. Unlike a product's parts they draw from a seeded generator: the
same calls give the same disturbance. A storm is none: the preset's own pauses and moves, as many as can be.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.plan import Fate, StepOutcome, StepPlan
from headway.core.view import StepView
from headway.engine.demo_model import DEMO_RANDOM, ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.machine import is_cpu_build
from headway.engine.servers.server_command import TRANSFER_FLAG
from headway.engine.stepped_engine import put_in_scheduler
from headway.errors import UpstreamError
from headway.lab.server import DEPLOY_TIMEOUT_S, free_port, why_not_ready
from headway.loadgen.queries import scrape
from headway.planner.deploy import deployed
from headway.policies.parts import build_part
from headway.policies.presets import Preset
from headway.policies.protocols import Learning, Order, Predicting

if TYPE_CHECKING:
    from headway.engine.scheduler import PolicyScheduler

PAUSE_SHARE = 0.25
"""Share of a step's jobs that are paused."""
CAPPED_SHARE = 0.5
"""Share of a step's prefills that are capped."""
CAPS_TOKENS = (1, 7, 31, 33)
"""One token, a few, and chunks that end beside a block's border."""
PREEMPT_SHARE = 0.2
"""Share of the paused jobs that are preempted."""
OFFLOAD_SHARE = 0.2
"""Share of the paused jobs that are offloaded, where there is host memory."""
MAX_PREEMPTIONS = 4
"""A job preempted this often is left alone, so that every run ends."""
SPARED = "spared"
"""Tenant of the jobs whose prompts are never cut in chunks."""

STORM_WIDTH = 2
"""Batch width in a storm, with eight seats."""
SHORT_QUANTA = {"quantum_s": "0.005", "starve_s": "0.05"}
"""Quanta for the storm, where a step takes 2 to 4 ms."""

SEATS = 8
NUM_BLOCKS = 16
"""One is vLLM's null block; 15 blocks of 32 tokens are too few for eight jobs, so that blocks run short."""
MAX_STEPS = 20_000
"""Most steps after the last arrival."""
COUNTED = (
    *("steps", "pauses", "swaps", "offloads", "prefetches", "put_backs"),
    *("swapped_out_blocks", "swapped_in_blocks"),
)
"""The scheduler's counters that are reported for a run."""
ADAPTERS = 3
ADAPTER_RANK = 4
ADAPTER_SPREAD = 0.25
"""Large enough that every adapter changes the tokens."""


# ---- the disturbance -------------------------------------------------------------------------------


class ForcedBatching:
    """The plan of the batching `around` which it is put, with some jobs paused and some chunks capped.

    `met` holds the largest value of each observation: adapters among the residents, cached tokens at an admission.
    """

    def __init__(self, around: str, seed: int = 0, cost: CostModel | None = None) -> None:
        self._around = build_part("batching", _inner(around), cost)
        self._random = random.Random(seed)
        self.met: Counter[str] = Counter()

    def plan(self, view: StepView, order: Order, leaving: Collection[Job]) -> StepPlan:
        """The step's plan, disturbed."""
        plan: StepPlan = self._around.plan(view, order, leaving)
        plan.run = [job for job in plan.run if self._random.random() >= PAUSE_SHARE]
        plan.chunk_cap = {**plan.chunk_cap, **self._caps([*plan.run, *plan.admit])}
        if view.host_total_blocks:
            running = set(plan.run)
            paused = [job for job in view.residents if job not in running]
            plan.offload = [job for job in paused if self._random.random() < OFFLOAD_SHARE]
        self._note("resident_adapters", len({job.lora_id for job in view.residents}))
        return plan

    def _caps(self, jobs: Iterable[Job]) -> dict[Job, int]:
        prefills = [job for job in jobs if job.prefilling and job.tenant != SPARED]
        capped = [job for job in prefills if self._random.random() < CAPPED_SHARE]
        return {job: self._random.choice(CAPS_TOKENS) for job in capped}

    def observe(self, outcome: StepOutcome) -> None:
        """Note prefix cache hits of new and resumed jobs; then pass the outcome to the inner part."""
        for job in outcome.admitted:
            kind = "resumed_hit_tokens" if job.num_preemptions else "first_hit_tokens"
            self._note(kind, outcome.cached_tokens[job])
        self._around.observe(outcome)

    def finished(self, job: Job) -> None:
        """Pass the answer to the inner part, if it learns from answers."""
        if isinstance(self._around, Learning):
            self._around.finished(job)

    def _note(self, what: str, value: int) -> None:
        self.met[what] = max(self.met[what], value)


class ForcedEviction:
    """The victims of the eviction `around` which it is put, and some of the jobs that this step pauses."""

    def __init__(self, around: str, seed: int = 0, cost: CostModel | None = None) -> None:
        self._around = build_part("eviction", _inner(around), cost)
        self._random = random.Random(seed)

    @property
    def serial(self) -> bool:
        """As the inner part says."""
        return bool(self._around.serial)

    def evict(self, view: StepView, plan: StepPlan, order: Order) -> StepPlan:
        """Choose victims; many of them ran in the step before, so their last output may still be in flight.

        With host memory most of them are swapped out.
        """
        running = set(plan.run)
        paused = [job for job in view.residents if job not in running]
        forced = [
            job
            for job in paused
            if job.num_preemptions < MAX_PREEMPTIONS and self._random.random() < PREEMPT_SHARE
        ]
        plan = self._around.evict(view, plan, order)
        fates = [Fate.SWAP, Fate.SWAP, Fate.RECOMPUTE] if view.host_total_blocks else [Fate.RECOMPUTE]
        plan.preempt = {**{job: self._random.choice(fates) for job in forced}, **plan.preempt}
        plan.offload = [job for job in plan.offload if job not in plan.preempt]
        return plan

    def next_change_s(self, view: StepView) -> float:
        """Unknown: victims are drawn at random."""
        return -inf

    def observe(self, outcome: StepOutcome) -> None:
        """Pass the outcome to the inner part."""
        self._around.observe(outcome)


def forced_settings(preset: Preset, seed: int) -> dict[str, Any]:
    """Engine settings that disturb a preset and have every step checked."""
    return {
        "policy": preset.name,
        "batching": f"forced:seed={seed},around={_outer(preset.batching)}",
        "eviction": f"forced:seed={seed},around={_outer(preset.eviction)}",
        "check": True,
    }


def storm_settings(preset: Preset) -> dict[str, Any]:
    """Engine settings under which a preset that pauses does so all the time, with every step checked."""
    return {
        "policy": preset.name,
        "order": _with_short_quanta(preset.order),
        "batch_width": STORM_WIDTH,
        "check": True,
    }


def _with_short_quanta(order: str) -> str:
    """The order with quanta of a step or two, if it has quanta."""
    name, _, given = order.partition(":")
    if name != "skip-join-mlfq":
        return order
    settings = dict(setting.split("=") for setting in given.split(",") if setting)
    return f"{name}:{','.join('='.join(setting) for setting in {**settings, **SHORT_QUANTA}.items())}"


def trusting(order: str) -> str:
    """The order, changed to trust predictions at once if it would first wait for an answer that confirms them."""
    name, _, given = order.partition(":")
    settings = ",".join(filter(None, (given, "trusted_at_first=true")))
    return f"{name}:{settings}" if name == "governed" else order


def _outer(spec: str) -> str:
    """Quote a part with its settings as a setting of another part, where a comma would end it."""
    return spec.replace(",", ";")


def _inner(spec: str) -> str:
    return spec.replace(";", ",")


def register_parts(folder: Path) -> None:
    """Make `folder`, once on the import path, register the two parts as an installed package would."""
    info = folder / "headway_bench-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headway-bench\nVersion: 0\n")
    parts = {"batching": ForcedBatching, "eviction": ForcedEviction}
    lines = [f"[headway.{kind}]\nforced = {__name__}:{part.__name__}\n" for kind, part in parts.items()]
    (info / "entry_points.txt").write_text("".join(lines))


# ---- the engine ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForcedRequest:
    """One request: the step of its arrival, its prompt, how it samples, its JSON schema.

    `adapter` is the number of its LoRA adapter, 0 for none.
    """

    at_step: int
    prompt: list[int]
    sampling: Mapping[str, Any]
    schema: Mapping[str, Any] | None = None
    adapter: int = 0

    @property
    def greedy(self) -> bool:
        """Whether it is decoded greedily."""
        return not self.sampling["temperature"]


@dataclass(slots=True)
class Answers:
    """Answers: per request and choice the tokens, and their log probabilities if asked for."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    logprobs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    most_at_once: int = 0

    def take(self, index: int, choice: Any) -> None:
        """Append the output of one step for one choice of one request."""
        key = (index, choice.index)
        self.tokens.setdefault(key, []).extend(choice.token_ids)
        self.logprobs.setdefault(key, []).extend(choice.logprobs or ())
        self.most_at_once = max(self.most_at_once, len(choice.token_ids))

    def differing(self, other: Answers) -> set[int]:
        """Requests with a choice whose tokens differ."""
        choices = self.tokens.keys() | other.tokens.keys()
        return {index for index, n in choices if self.tokens.get((index, n)) != other.tokens.get((index, n))}

    def gap(self, other: Answers, index: int) -> float:
        """How much more likely this token is than the other's, by these logprobs, where a request's outputs part.

        inf if one output only continues the other, or they are the same.
        """
        here, there = self.tokens[index, 0], other.tokens.get((index, 0), [])
        for mine, theirs, logprobs in zip(here, there, self.logprobs[index, 0], strict=False):
            if mine != theirs:
                return abs(float(logprobs[mine].logprob) - float(logprobs[theirs].logprob))
        return inf


class ForcedEngine:
    """vLLM's engine in this process; its scheduler, stock or Headway's, can be replaced while it is idle."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        token_budget: int,
        adapters: Path,
        host_blocks: int = 0,
        connector: Mapping[str, Any] | None = None,
    ) -> None:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        settings: dict[str, Any] = {
            "model": str(ensure_demo_random()),
            "dtype": "float32" if is_cpu_build() else "bfloat16",
            "enforce_eager": True,
            "block_size": 32,
            "num_gpu_blocks_override": NUM_BLOCKS,
            "gpu_memory_utilization": 0.1,
            "max_model_len": 256,
            "max_logprobs": -1,
            "max_num_seqs": SEATS,
            "max_num_batched_tokens": token_budget,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            **arguments,
        }
        if host_blocks:
            connector = HostKv(blocks=host_blocks).transfer_config()
        if connector is not None:
            settings["kv_transfer_config"] = KVTransferConfig(**connector)
        self._engine: Any = LLMEngine.from_engine_args(EngineArgs(**settings))
        self._core = self._engine.engine_core.engine_core
        self._adapters = adapters
        self._runs = 0

    @property
    def depth(self) -> int:
        """Steps in flight."""
        return int(self._core.vllm_config.max_concurrent_batches)

    def stock(
        self, requests: Sequence[ForcedRequest], token_budget: int, logprobs_of: Collection[int] = ()
    ) -> Answers:
        """Answers of vLLM's own scheduler to these requests."""
        scheduler = self._schedule_with(None, token_budget)
        assert type(scheduler).__module__.startswith("vllm.v1.core.sched.")
        return self._run(requests, logprobs_of)

    def ours(
        self, settings: dict[str, Any], requests: Sequence[ForcedRequest], token_budget: int
    ) -> tuple[Answers, Counter[str]]:
        """Answers of Headway under these settings, and counts of what the run met."""
        scheduler = self._schedule_with(settings, token_budget)
        in_flight = _preemptions_in_flight(scheduler)
        loaded = _loads(scheduler)
        answers = self._run(requests)
        counters = scheduler.counters
        assert not counters.policy_faults
        assert not counters.watchdog_faults
        batching = scheduler.guard.policy.batching
        met = Counter(batching.met if isinstance(batching, ForcedBatching) else ())
        met.update({name: getattr(counters, name) for name in COUNTED})
        met["shortages"] = counters.shortage_preemptions
        met["preemptions"] = counters.planned_preemptions + counters.shortage_preemptions
        met["in_flight_preemptions"] = sum(in_flight)
        met["loads"], met["resumed_loads"] = len(loaded), sum(loaded)
        if scheduler.swaps is not None:
            scheduler.swaps.check(())
            host = scheduler.swaps.copies.host
            assert host.free_blocks == host.num_blocks
        if isinstance(scheduler.guard.policy.order, Predicting):
            met["trusting_steps"] = counters.planned_steps - counters.distrusting_steps
        met["tokens_at_once"] = answers.most_at_once
        return answers, met

    def _schedule_with(self, settings: dict[str, Any] | None, token_budget: int) -> Any:
        """Put in a new scheduler, Headway with `settings` or vLLM's own, in the way of vLLM's engine core."""
        config = self._core.vllm_config
        assert not self._busy()
        config.scheduler_config.max_num_scheduled_tokens = token_budget
        config.scheduler_config.scheduler_cls = settings and "headway.engine.HeadwayScheduler"
        config.additional_config = {"headway": settings} if settings else {}
        put_in_scheduler(self._core)
        return self._core.scheduler

    def _run(self, requests: Sequence[ForcedRequest], logprobs_of: Collection[int] = ()) -> Answers:
        """Send every request at its step; return once all have ended and the workers know it."""
        answers = Answers()
        self._runs += 1
        pending = deque(enumerate(requests))
        for step in range(requests[-1].at_step + MAX_STEPS):
            while pending and pending[0][1].at_step <= step:
                index, request = pending.popleft()
                self._send(index, request, with_logprobs=index in logprobs_of)
            if not pending and not self._busy():
                return answers
            for output in self._engine.step():
                for choice in output.outputs:
                    answers.take(int(output.request_id.split("-")[1]), choice)
        raise RuntimeError(f"requests had not ended {MAX_STEPS} steps after the last arrived")

    def _busy(self) -> bool:
        core = self._core
        return bool(
            self._engine.has_unfinished_requests() or core.scheduler.has_requests() or core.batch_queue
        )

    def _send(self, index: int, request: ForcedRequest, *, with_logprobs: bool) -> None:
        from vllm.lora.request import LoRARequest
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        number = request.adapter
        sampling = SamplingParams(
            **request.sampling,
            structured_outputs=request.schema and StructuredOutputsParams(json=request.schema),
            logprobs=-1 if with_logprobs else None,
            output_kind=RequestOutputKind.DELTA,
            detokenize=False,
        )
        self._engine.add_request(
            f"{self._runs}-{index}",
            {"prompt_token_ids": request.prompt},
            sampling,
            lora_request=LoRARequest(f"{number}", number, str(self._adapters / f"{number}"))
            if number
            else None,
        )

    def close(self) -> None:
        """Stop the workers."""
        self._engine.engine_core.shutdown()


def _preemptions_in_flight(scheduler: PolicyScheduler) -> list[bool]:
    """One entry for each preemption from now on: whether output of the request was in flight."""
    preempt = scheduler._preempt_request
    found: list[bool] = []

    def noted(request: Any, *args: Any, **kwargs: Any) -> None:
        found.append(request.num_in_flight_tokens > 0)
        preempt(request, *args, **kwargs)

    scheduler._preempt_request = noted  # type: ignore[method-assign] # every call is heard
    return found


def _loads(scheduler: PolicyScheduler) -> list[bool]:
    """One entry for each load that a KV connector starts from now on: whether the request was preempted before."""
    found: list[bool] = []
    if scheduler.connector is None:
        return found
    allocated = scheduler.connector.update_state_after_alloc

    def noted(request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            found.append(request.num_preemptions > 0)
        allocated(request, blocks, num_external_tokens)

    scheduler.connector.update_state_after_alloc = noted
    return found


def write_adapters(folder: Path) -> None:
    """Random LoRA adapters for the demo model, as PEFT writes them, each in a folder named by its number."""
    import numpy as np
    from safetensors.numpy import save_file

    shape = json.loads((ensure_demo_random() / "config.json").read_text())
    modules = ["q_proj", "v_proj"]
    layers = [
        f"layers.{n}.self_attn.{module}" for n in range(shape["num_hidden_layers"]) for module in modules
    ]
    sizes = {"lora_A": (ADAPTER_RANK, shape["hidden_size"]), "lora_B": (shape["hidden_size"], ADAPTER_RANK)}
    settings = {"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": 2 * ADAPTER_RANK, "bias": "none"}
    for number in range(1, ADAPTERS + 1):
        rng = np.random.default_rng(number)
        weights = {
            f"base_model.model.model.{layer}.{half}.weight": ADAPTER_SPREAD
            * rng.standard_normal(size, dtype=np.float32)
            for layer in layers
            for half, size in sizes.items()
        }
        adapter = folder / f"{number}"
        adapter.mkdir()
        save_file(weights, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": modules}))


# ---- a prefill and a decode instance behind a gateway: feature `pd` ----------------------------------

AT_ONCE = 3
"""Requests under way together. The prompts of three fit a step of every preset: `ExampleConnector` stores the first
chunk of a prompt as if it were all of it.
"""
HITS = "vllm:external_prefix_cache_hits_total"


def two_stages(preset: str, requests: Sequence[ForcedRequest], folder: Path) -> tuple[Answers, Counter[str]]:
    """Answers of fresh instances under a preset, every second one streamed, and counts of what they met."""
    storage, port = folder / f"kv-{preset}", _three_free_ports()
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_connector_extra_config": {"shared_storage_path": str(storage)},
    }
    words = [
        *("headway", "serve", DEMO_RANDOM, "--policy", preset, "--pools", "prefill=1,decode=1", "--"),
        *("--dtype", "float32", "--block-size", "32", "--max-model-len", "256", "--max-num-seqs", str(SEATS)),
        *("--max-num-batched-tokens", "512", TRANSFER_FLAG, json.dumps(connector)),
    ]
    log = folder / f"{preset}.log"
    with deployed(words, port, log, folder / f"{preset}.jsonl") as url:
        asyncio.run(_until_both_are_ready(url))
        try:
            answers = asyncio.run(_ask(url, requests))
        except* aiohttp.ClientError as errors:
            raise UpstreamError(why_not_ready(f"{errors.exceptions[0]}", log)) from None
        gateway = asyncio.run(scrape(url, 'headway_gateway_prefills_total{result="apart"}'))
        decode = asyncio.run(scrape(f"http://127.0.0.1:{port + 2}", HITS))
    apart = sum(gateway.values())
    return answers, Counter(prompts_apart=int(apart), loaded_tokens=int(sum(decode.values())))


def _three_free_ports() -> int:
    """The first of three free ports: the gateway's, and then those of the instances that it starts."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as stack:
            for port in range(first, first + 3):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


async def _until_both_are_ready(url: str) -> None:
    async with asyncio.timeout(DEPLOY_TIMEOUT_S):
        while sum((await scrape(url, "headway_gateway_instance_up{")).values()) < 2:
            await asyncio.sleep(0.5)


async def _ask(url: str, requests: Sequence[ForcedRequest]) -> Answers:
    answers, places = Answers(), asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession() as session:

        async def ask(index: int, request: ForcedRequest) -> None:
            async with places:
                tokens = await _tokens(session, url, request, stream=index % 2 == 1)
                answers.tokens[index, 0] = tokens

        async with asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                group.create_task(ask(index, request))
    return answers


async def _tokens(
    session: aiohttp.ClientSession, url: str, request: ForcedRequest, *, stream: bool
) -> list[int]:
    sampling = request.sampling
    hints = {name: value for name, value in sampling["extra_args"].items() if value != ""}
    asked = {name: sampling[name] for name in ("temperature", "max_tokens", "ignore_eos")}
    body = {"model": DEMO_RANDOM, "prompt": request.prompt, **asked, "vllm_xargs": hints, "stream": stream}
    async with session.post(f"{url}/v1/completions", json={**body, "return_token_ids": True}) as response:
        text = await response.text()
        response.raise_for_status()
    whole = [text] if not stream else [line[6:] for line in text.split("\n") if line.startswith("data: {")]
    found: list[Any] = [choice for each in whole for choice in json.loads(each)["choices"]]
    return [token for choice in found for token in choice["token_ids"] or ()]
