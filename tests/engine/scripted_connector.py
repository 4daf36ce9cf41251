"""A KV connector that follows a script, and engines whose workers report what a connector had them do.

vLLM loads the class by name, as it loads any other package's. What becomes of a request's load is drawn from the
script's seed, the request's id and how often it was loaded before: the same in every run, whoever asks, and when.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from headway.engine.model_free import BLOCK_SIZE
from tests.engine.scripts import HearingEngine

_SERVED = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
"""Only the KV of such requests is read: of others vLLM may still wait for a load, and frees the blocks after that."""


def _without(table: dict[Any, Any], keys: Collection[Any]) -> dict[Any, Any]:
    return {key: value for key, value in table.items() if key not in keys}


@dataclass(frozen=True, slots=True)
class Script:
    """Shares of requests, from 0 to 1, and how many steps things take at most."""

    seed: int = 0
    hits: float = 0.7
    beside: float = 0.6
    """Of the hits, loaded beside the steps; the others in the step in which the request starts."""
    undecided: float = 0.4
    """Of all requests, not found at once. Loads that failed are: vLLM would move others to the head of its queue."""
    fails: float = 0.2
    """Of the loads."""
    held: float = 0.4
    """Of all requests, read after they ended."""
    pending_frees: float = 0.0
    """Of the steps, in which the connector wants requests short of blocks to wait for it."""
    most_steps: int = 12
    never: tuple[str, ...] = ()
    """Requests whose loads never come."""


@dataclass(frozen=True, slots=True)
class Load:
    """The outcome of one load: whole blocks from the first that is not on the device."""

    blocks: int
    beside: bool
    steps: int
    failing_blocks: int
    undecided_steps: int


@dataclass(slots=True)
class Orders(KVConnectorMetadata):  # type: ignore[misc]
    """The orders that workers receive with a step: when each is done, and with which blocks invalid."""

    loads: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    sends: dict[str, int] = field(default_factory=dict)
    invalid: frozenset[int] = frozenset()


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """The scheduler's side. `log` holds what it was told, for comparison with another run."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.script = Script(**self._kv_transfer_config.kv_connector_extra_config)
        self.log: list[tuple[int, str, str, int]] = []
        self.loads: dict[str, int] = {}
        self._step = 0
        self._asked: dict[str, int] = {}
        self._matched: dict[str, int] = {}
        self._orders = Orders()

    def _drawn(self, *of: object) -> random.Random:
        return random.Random(f"{self.script.seed} {of}")

    def _load(self, request_id: str) -> Load:
        script, rng = self.script, self._drawn(request_id, self.loads.get(request_id, 0))
        is_hit, is_beside = rng.random() < script.hits, rng.random() < script.beside
        return Load(
            blocks=rng.randint(1, 8) if is_hit else 0,
            beside=is_beside or request_id in script.never,
            steps=10**9 if request_id in script.never else rng.randint(1, script.most_steps),
            failing_blocks=rng.randint(1, 4) if rng.random() < script.fails else 0,
            undecided_steps=rng.randint(1, script.most_steps)
            if rng.random() < script.undecided and request_id not in self.loads
            else 0,
        )

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        load = self._load(request.request_id)
        asked = self._asked.setdefault(request.request_id, self._step)
        if self._step < asked + load.undecided_steps:
            return None, False
        most = request.num_tokens if load.beside else request.num_tokens - 1
        tokens = min(load.blocks * BLOCK_SIZE, most - num_computed_tokens)
        tokens -= 0 if load.beside else tokens % BLOCK_SIZE
        self._matched[request.request_id] = num_computed_tokens
        return (tokens, load.beside) if tokens > 0 else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        request_id = request.request_id
        self.log.append((self._step, "allocated", request_id, num_external_tokens))
        if not num_external_tokens:
            return
        load = self._load(request_id)
        self.loads[request_id] = self.loads.get(request_id, 0) + 1
        first = self._matched[request_id] // BLOCK_SIZE
        filled = blocks.get_block_ids()[0][first : first - (-num_external_tokens // BLOCK_SIZE)]
        failing = frozenset(filled[-load.failing_blocks :] if load.failing_blocks else ())
        if load.beside:
            self._orders.loads[request_id] = (load.steps, failing)
        else:
            self._orders.invalid |= failing

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Orders:
        self._step += 1
        orders, self._orders = self._orders, Orders()
        return orders

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        rng = self._drawn("end", request.request_id)
        held = rng.random() < self.script.held and request.status in _SERVED
        self.log.append((self._step, "ended", request.request_id, held))
        if held:
            self._orders.sends[request.request_id] = rng.randint(0, self.script.most_steps)
        return held, None

    def has_pending_block_frees(self) -> bool:
        return self._drawn("frees", self._step).random() < self.script.pending_frees

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def transfer_config(
    script: Script, *, on_failure: str = "recompute", role: str = "kv_both"
) -> KVTransferConfig:
    """The configuration that makes vLLM load the connector."""
    return KVTransferConfig(
        kv_connector="ScriptedConnector",
        kv_connector_module_path=__name__,
        kv_role=role,
        kv_load_failure_policy=on_failure,
        kv_connector_extra_config=asdict(script),
    )


class TransferringEngine(HearingEngine):
    """A model-free engine whose workers load and send in the steps that the script says."""

    def __init__(self, built: Any) -> None:
        super().__init__(built)
        self._steps = 0
        self._recving: dict[str, tuple[int, frozenset[int]]] = {}
        self._sending: dict[str, int] = {}

    def kv_output(self, output: SchedulerOutput) -> KVConnectorOutput:
        orders = output.kv_connector_metadata
        assert isinstance(orders, Orders)
        now = self._steps = self._steps + 1
        self._recving.update({id_: (now + steps, bad) for id_, (steps, bad) in orders.loads.items()})
        self._sending.update({id_: now + steps for id_, steps in orders.sends.items()})
        received = {id_: bad for id_, (due, bad) in self._recving.items() if due <= now}
        sent = {id_ for id_, due in self._sending.items() if due <= now}
        self._recving = _without(self._recving, received)
        self._sending = _without(self._sending, sent)
        return KVConnectorOutput(
            finished_sending=sent,
            finished_recving=set(received),
            invalid_block_ids=set(orders.invalid.union(*received.values())),
        )


COPY_STEPS = 3
"""Steps until a copy of vLLM's own offloading is done."""


class OffloadingEngine(HearingEngine):
    """A model-free engine whose workers copy what vLLM's `OffloadingConnector` orders, as its own worker does."""

    def __init__(self, built: Any) -> None:
        super().__init__(built)
        self._steps = self.loads = 0
        self._due: dict[int, int] = {}
        self._loading: dict[int, str] = {}

    def kv_output(self, output: SchedulerOutput) -> KVConnectorOutput:
        orders = output.kv_connector_metadata
        assert isinstance(orders, OffloadingConnectorMetadata)
        self._steps += 1
        self.loads += len(orders.load_jobs)
        self._loading.update({number: load.req_id for number, load in orders.load_jobs.items()})
        self._due.update(dict.fromkeys([*orders.load_jobs, *orders.store_jobs], self._steps + COPY_STEPS))
        flushed = self._due.keys() & (orders.jobs_to_flush or set())
        self._due.update(dict.fromkeys(flushed, self._steps))
        done = {number for number, due in self._due.items() if due <= self._steps}
        received = {self._loading[number] for number in done if number in self._loading}
        self._due, self._loading = _without(self._due, done), _without(self._loading, done)
        return KVConnectorOutput(
            finished_recving=received,
            kv_connector_worker_meta=OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(done, 1)),
        )
