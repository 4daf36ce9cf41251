"""The real engine stepped by hand: vLLM's engine core and workers without a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from headway.core.batch_shape import BatchShape
from headway.core.job import Job
from headway.core.record import Outcome, Record
from headway.engine.machine import is_cpu_build
from headway.engine.servers.launcher import answer_for_missing_distribution
from headway.engine.servers.server_command import SCHEDULER, server_command
from headway.engine.servers.vllm_flags import parse_vllm_flags
from headway.engine.settings import EngineSettings
from headway.engine.step.step_model import graphed_tokens
from headway.errors import ConfigError, HeadwayError
from headway.policies.policy import Policy

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

    from headway.engine.scheduler import PolicyScheduler

Hints = dict[str, object]
StockPolicy = Literal["fcfs", "priority"]
"""vLLM's own `--scheduling-policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedSizes:
    """Sizes that the engine reports; `num_blocks` counts usable KV blocks, without vLLM's null block.

    `kv_bytes_per_token` covers all workers of the instance. `asynchronous`: whether it would be scheduled so when
    served. `windowed_capacity_tokens` is vLLM's count of the tokens that fit, for a model whose groups of layers keep
    different tokens; 0 for others.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    graphed_tokens: int
    prefix_caching: bool
    asynchronous: bool
    kv_bytes_per_token: int
    tensor_parallel: int
    dtype: str
    windowed_capacity_tokens: int = 0

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens whose KV fits the device."""
        return self.windowed_capacity_tokens or self.num_blocks * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedStep:
    """One step with work: its shape, its whole time by the host's clock, and the part before the device starts.

    `seconds` includes schedule, model, sampling and update, as in a serving engine's loop. `copy_wait_s` of it was
    spent waiting for KV copies.
    """

    shape: BatchShape
    seconds: float
    schedule_s: float
    copy_wait_s: float = 0.0


class SteppedEngine:
    """vLLM's engine core in this process, with workers as in serving; a turn is one iteration of its loop.

    Requests enter the core as token ids, as from an API server. While the engine is idle its scheduler can be replaced,
    by Headway's under another policy or vLLM's own; the model stays loaded. `core` is vLLM's engine core itself.
    """

    def __init__(
        self,
        model: str,
        vllm_flags: Sequence[str] = (),
        settings: EngineSettings | None = None,
        *,
        as_served: bool = False,
    ):
        """Start the engine as `headway serve` would: 10 s and more.

        Scheduling is synchronous, so that a step's time covers its own work only. With `as_served` it is as vLLM
        chooses, and steps are not timed. Raises ConfigError for a model, policy or flag that is not accepted, or if the
        engine does not start.
        """
        settings = settings or EngineSettings()
        self.core: EngineCore = start_core(
            model, vllm_flags, settings, asynchronous=None if as_served else False
        )
        if self.core.batch_queue is not None and not as_served:
            self.close()
            raise ConfigError(
                "several steps in flight cannot be timed one by one; use --pipeline-parallel-size 1"
            )
        self._served_asynchronously = (
            bool(self.core.vllm_config.scheduler_config.async_scheduling)
            if as_served
            else not is_cpu_build() and not _is_synchronous(vllm_flags)
        )
        self._scheduled: SchedulerOutput | None = None
        self._schedule_s = 0.0
        self._serial = 0
        self._listen()

    @property
    def sizes(self) -> ReportedSizes:
        """Sizes and limits of this engine."""
        config, pool = self.core.vllm_config, self.scheduler.kv_cache_manager.block_pool
        parallel = config.parallel_config
        return ReportedSizes(
            block_size=self.scheduler.block_size,
            num_blocks=pool.num_gpu_blocks - 1,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            graphed_tokens=graphed_tokens(config),
            prefix_caching=bool(config.cache_config.enable_prefix_caching),
            asynchronous=self._served_asynchronously,
            kv_bytes_per_token=_kv_bytes_per_token(self.scheduler) * parallel.world_size,
            tensor_parallel=parallel.tensor_parallel_size,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            windowed_capacity_tokens=_windowed_capacity_tokens(config, self.scheduler),
        )

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and answer together."""
        return int(self.core.vllm_config.model_config.max_model_len)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty if the worker is in this process."""
        return [worker.proc.pid for worker in getattr(self.core.model_executor, "workers", ())]

    @property
    def scheduler(self) -> PolicyScheduler:
        """Headway's scheduler as the core has it; vLLM's own after `schedule_with_stock`."""
        scheduler: PolicyScheduler = self.core.scheduler
        return scheduler

    @property
    def policy(self) -> Policy | None:
        """Headway's current policy; None under vLLM's own scheduler."""
        guard = getattr(self.scheduler, "guard", None)
        return None if guard is None else guard.policy

    @property
    def counters(self) -> dict[str, int]:
        """Headway's totals since the scheduler was installed; empty under vLLM's own."""
        counters = getattr(self.scheduler, "counters", None)
        return {} if counters is None else dict(counters.flat())

    @property
    def busy(self) -> bool:
        """Whether a turn would have something to do."""
        return bool(self.scheduler.has_requests() or self.core.batch_queue)

    def schedule_with(self, settings: EngineSettings, max_num_seqs: int | None = None) -> None:
        """Install a new scheduler with an empty prefix cache; the engine must be idle. Takes milliseconds.

        `max_num_seqs` None: paused requests may use all of the workers' slots.
        """
        self.core.vllm_config.additional_config = {"headway": asdict(settings)}
        self._put_in(max_num_seqs)

    def schedule_with_stock(self, policy: StockPolicy, max_num_seqs: int | None = None) -> None:
        """Install vLLM's own scheduler without any part of Headway; the engine must be without host memory."""
        config = self.core.vllm_config.scheduler_config
        assert self.core.vllm_config.kv_transfer_config is None, "stock vLLM does not know Headway's copies"
        before = config.scheduler_cls, config.policy
        config.scheduler_cls, config.policy = None, policy
        try:
            self._put_in(max_num_seqs)
        finally:
            config.scheduler_cls, config.policy = before

    def _put_in(self, max_num_seqs: int | None) -> None:
        assert not self.busy
        config = self.core.vllm_config.scheduler_config
        slots = config.max_num_seqs
        config.max_num_seqs = max_num_seqs or slots
        try:
            put_in_scheduler(self.core)
        finally:
            config.max_num_seqs = slots
        self._listen()

    def fresh_id(self) -> str:
        """A request id that was not used before."""
        self._serial += 1
        return f"request-{self._serial}"

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        output_tokens: int,
        hints: Hints | None = None,
        *,
        own_stop: bool = False,
    ) -> Request:
        """Make vLLM's request for exactly this many greedy tokens; with `own_stop`, at most as many, until the model
        stops.

        Its blocks are hashed now instead of when it is added. Its arrival time is now; `arrival_time` (wall clock) may
        be changed until it is added.
        """
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        sampling = SamplingParams(
            max_tokens=output_tokens, ignore_eos=not own_stop, temperature=0.0, extra_args=hints or None
        )
        if own_stop:
            model = self.core.vllm_config.model_config
            stops = model.try_get_generation_config()
            sampling.update_from_generation_config(stops, self._tokenizer().eos_token_id)
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self.core.request_block_hasher,
        )

    def token_ids(self, prompt: str) -> list[int]:
        """Tokenize a text as the completions API does."""
        ids: list[int] = self._tokenizer().encode(prompt)
        return ids

    def _tokenizer(self) -> Any:
        from vllm.tokenizers import cached_tokenizer_from_config

        return cached_tokenizer_from_config(self.core.vllm_config.model_config)

    def add(self, request: Request) -> None:
        """Queue a request made by `make_request`."""
        self.core.add_request(request)

    def turn(self) -> list[EngineCoreOutput]:
        """Run one iteration of the engine's loop; return vLLM's output for each request that has any."""
        self._scheduled = None
        outputs, _ = self.core.step_fn()
        return [output for of_client in (outputs or {}).values() for output in of_client.outputs]

    def step(self) -> SteppedStep | None:
        """Run one timed iteration under Headway's scheduler; None if it computed nothing."""
        counters = self.scheduler.counters
        waited_s = counters.copy_wait_s
        started = time.perf_counter()
        self.turn()
        seconds = time.perf_counter() - started
        output = self._scheduled
        if output is None or not output.total_num_scheduled_tokens:
            return None
        return SteppedStep(
            shape=_shape(output),
            seconds=seconds,
            schedule_s=self._schedule_s,
            copy_wait_s=counters.copy_wait_s - waited_s,
        )

    def hear_records(self, on_record: Callable[[Record], None]) -> None:
        """Pass each request's record to `on_record` when it ends, until the next `schedule_with`."""
        ledger = self.scheduler.ledger
        end = ledger.end

        def ended(job: Job, outcome: Outcome, now_s: float) -> Record:
            record = end(job, outcome, now_s)
            on_record(record)
            return record

        ledger.end = ended  # type: ignore[method-assign]  # heard, not changed

    def on_workers(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run `function(worker, *args)` on each worker and return the results; the function must be importable
        there.
        """
        answers: list[Any] = self.core.collective_rpc(function, args=args)
        return answers

    def close(self) -> None:
        """Stop the workers and free the device."""
        self.core.shutdown()

    def _listen(self) -> None:
        """Record each step's scheduler output, and how long making it took."""
        schedule = self.scheduler.schedule

        def noted(*args: Any, **kwargs: Any) -> SchedulerOutput:
            started = time.perf_counter()
            self._scheduled = schedule(*args, **kwargs)
            self._schedule_s = time.perf_counter() - started
            return self._scheduled

        self.scheduler.schedule = noted  # type: ignore[method-assign]  # timed, not changed


def start_core(
    model: str, vllm_flags: Sequence[str], settings: EngineSettings, *, asynchronous: bool | None = None
) -> EngineCore:
    """Start vLLM's engine core in this process as `headway serve` does: 10 s and more.

    `asynchronous` None: as the flags say, or as vLLM chooses. Raises ConfigError for a model, policy or flag that is
    not accepted, or if the engine does not start.
    """
    command = server_command(model, settings, ("127.0.0.1", 1), vllm_flags)
    answer_for_missing_distribution()
    from vllm.engine.arg_utils import AsyncEngineArgs

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # type: ignore[import-not-found]
    except ModuleNotFoundError:  # before vLLM 0.33
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.executor.abstract import Executor

    assert SCHEDULER in command.arguments
    # The server's own parser and usage, so that every default equals the server's.
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(list(command.arguments[1:]))
    arguments.model = arguments.model_tag or arguments.model
    if asynchronous is not None:
        arguments.async_scheduling = asynchronous
    try:
        engine_arguments = AsyncEngineArgs.from_cli_args(arguments)
        config = engine_arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        return EngineCore(config, Executor.get_class(config), log_stats=False)
    except HeadwayError:
        raise
    except Exception as error:  # vLLM raises ZeroDivisionError for a model without heads
        raise ConfigError(f"vLLM does not start with model {model!r}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """An error in one line: for a configuration with several errors, which begin with a count, the first.

    An error that is not written for people is preceded by its type.
    """
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        text = ": ".join([*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")])
    lines = text.strip().splitlines()
    if not lines:
        return repr(error)
    made_for_people = isinstance(error, OSError | ValueError | RuntimeError)
    return lines[0] if made_for_people else f"{type(error).__name__}: {lines[0]}"


def put_in_scheduler(core: EngineCore) -> None:
    """Replace the scheduler of an idle engine core by a new one, following the core's current configuration."""
    config, old = core.vllm_config, core.scheduler
    core.scheduler = config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=old.kv_cache_config,
        structured_output_manager=core.structured_output_manager,
        log_stats=False,
        block_size=old.block_size,
        hash_block_size=old.hash_block_size,
    )


def _shape(output: SchedulerOutput) -> BatchShape:
    """The shape of a step, from vLLM's scheduler output. O(jobs)."""
    granted = output.num_scheduled_tokens
    shape = BatchShape()
    for new in output.scheduled_new_reqs:
        shape.add(granted[new.req_id], new.num_computed_tokens)
    cached = output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        shape.add(granted[request_id], computed)
    return shape


def _is_synchronous(vllm_flags: Sequence[str]) -> bool:
    return any(flag.name == "--no-async-scheduling" for flag in parse_vllm_flags(vllm_flags))


def _kv_bytes_per_token(scheduler: Scheduler) -> int:
    """Bytes of KV that one worker keeps for one more token, in the layers that keep all tokens, or in all if none
    does.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    growing = [group for group in groups if isinstance(group.kv_cache_spec, FullAttentionSpec)] or groups
    if len(groups) > 1:
        specs = [(len(group.layer_names), group.kv_cache_spec) for group in growing]
        return sum(layers * int(spec.page_size_bytes) // int(spec.block_size) for layers, spec in specs)
    config = scheduler.kv_cache_config
    size = sum(int(tensor.size) for tensor in config.kv_cache_tensors)
    tokens = int(config.num_blocks) * int(scheduler.block_size)
    return -(-size // tokens)


def _windowed_capacity_tokens(config: VllmConfig, scheduler: Scheduler) -> int:
    """The KV cache size that vLLM logs for a model with sliding windows; 0 for others."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) == 1 and isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return 0
    tokens, _ = get_kv_cache_capacity(config, scheduler.kv_cache_config)
    return int(tokens)
