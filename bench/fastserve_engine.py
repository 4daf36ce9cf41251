"""One real engine that serves streams under one policy after another, for the benches that compare policies on it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headway.engine.settings import EngineSettings
from headway.engine.stepped_engine import Hints, core_request, prompt_tokens, start_core
from headway.experiments.real_engine import Prophet, made_requests
from headway.sim.length_source import LengthSource
from headway.traces import TraceRequest

NAP_S = 0.002
"""How long an idle engine waits before it looks for arrivals again."""
START_MARGIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Served:
    """One request: its place in the stream, how many tokens came, and when, in seconds of the run."""

    number: int
    output_tokens: int
    arrival_s: float
    first_token_s: float
    finished_s: float

    @property
    def jct_s(self) -> float:
        """From arrival to the last token."""
        return self.finished_s - self.arrival_s


class ServingEngine:
    """vLLM's engine core in this process, scheduled as vLLM chooses (asynchronously, where it does so by default).

    The scheduler is put in anew for every run; model and workers stay.
    """

    def __init__(self, model: str, vllm_flags: Sequence[str], settings: EngineSettings) -> None:
        self._core = start_core(model, vllm_flags, settings)
        self._worker_slots = self._core.vllm_config.scheduler_config.max_num_seqs

    @property
    def asynchronous(self) -> bool:
        """Whether steps are scheduled ahead of the last one's tokens."""
        return bool(self._core.vllm_config.scheduler_config.async_scheduling)

    def use(self, settings: EngineSettings, max_num_seqs: int | None = None) -> None:
        """Put in a new scheduler with an empty prefix cache; requests that pause have all slots, or so many."""
        self._core.vllm_config.additional_config = {"headway": asdict(settings)}
        self._schedule_with(max_num_seqs or self._worker_slots)

    def _schedule_with(self, max_num_seqs: int) -> None:
        config, old = self._core.vllm_config, self._core.scheduler
        assert not old.has_requests()
        config.scheduler_config.max_num_seqs = max_num_seqs
        self._core.scheduler = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=old.kv_cache_config,
            structured_output_manager=self._core.structured_output_manager,
            log_stats=False,
            block_size=old.block_size,
            hash_block_size=old.hash_block_size,
        )
        config.scheduler_config.max_num_seqs = self._worker_slots

    @property
    def max_model_len(self) -> int:
        """Tokens that prompt and answer may have together."""
        return int(self._core.vllm_config.model_config.max_model_len)

    def serve(
        self,
        requests: Sequence[TraceRequest],
        seed: int,
        *,
        lengths: LengthSource | None = None,
        own_stops: bool = False,
    ) -> list[Served]:
        """Serve a stream (in order of arrival) in real time, each request added when it is due; all of them end.

        With `own_stops` the model ends its answers itself; `lengths` predicts each as its request is added.
        """
        made = deque(made_requests(self, requests, seed, own_stops=own_stops))
        prophet = Prophet(lengths, [request for request, _ in made], self.max_model_len)
        tokens: Counter[str] = Counter()
        first_s: dict[str, float] = {}
        finished_s: dict[str, float] = {}
        origin_s, wall_s = time.perf_counter() + START_MARGIN_S, time.time() + START_MARGIN_S
        while made or self._busy():
            now_s = time.perf_counter() - origin_s
            while made and made[0][0].arrival_s <= now_s:
                request, ready = made.popleft()
                ready.arrival_time = wall_s + request.arrival_s
                prophet.arrives(request, ready)
                self._core.add_request(ready)
            if not self._busy():
                time.sleep(NAP_S)
                continue
            outputs, _ = self._core.step_fn()
            now_s = time.perf_counter() - origin_s
            for output in (output for core in (outputs or {}).values() for output in core.outputs):
                if output.new_token_ids:
                    first_s.setdefault(output.request_id, now_s)
                    tokens[output.request_id] += len(output.new_token_ids)
                if output.finish_reason is not None:
                    finished_s[output.request_id] = now_s
                    prophet.finished(output.request_id, tokens[output.request_id])
        return [
            Served(number, tokens[request.id], request.arrival_s, first_s[request.id], finished_s[request.id])
            for number, request in enumerate(requests)
        ]

    def _busy(self) -> bool:
        return bool(self._core.scheduler.has_requests() or self._core.batch_queue)

    def make_request(
        self,
        request_id: str,
        prompt: Sequence[int],
        output_tokens: int,
        hints: Hints | None = None,
        *,
        own_stop: bool = False,
    ) -> Any:
        """As `core_request`, of this engine."""
        return core_request(self._core, request_id, prompt, output_tokens, hints, own_stop=own_stop)

    def token_ids(self, prompt: str) -> list[int]:
        """As `prompt_tokens`, of this engine's model."""
        return prompt_tokens(self._core, prompt)

    def close(self) -> None:
        """Stop the workers and free the device."""
        self._core.shutdown()
