"""Follows what another package's KV connector moves: loads under way, and blocks of ended requests that it still
reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm.v1.request import Request

from headway.core.job import Job
from headway.core.plan import StepPlan
from headway.engine.host_kv import CONNECTOR
from headway.engine.step.admission import Admission
from headway.engine.step.ports import StepPort

logger = logging.getLogger(__name__)

LATE_S = 60.0
"""A load or read that takes longer is reported once. Connectors give up by themselves, some after minutes."""


@dataclass(slots=True)
class _Hold:
    """Blocks that the connector reads or writes, and the start time."""

    since_s: float
    blocks: Sequence[int]
    told: bool = False


class Transfers:
    """Follows the KV that another package's connector moves for a `PolicyScheduler`. Decides nothing about that KV.

    When vLLM asks, the connector says how many tokens of a request it holds (if it knows yet), and whether it loads
    them asynchronously. A request with such a load holds blocks and waits in vLLM's `kv_holding_waiting`; its job stays
    WAITING until it runs. If a request ends while the connector still uses its blocks, the blocks stay until then.
    """

    def __init__(self, engine: StepPort, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._beside: dict[str, int] = {}
        self._undecided: set[str] = set()
        self._loads: dict[str, _Hold] = {}
        self._ended: dict[str, _Hold] = {}
        self._ask = engine.connector.get_num_new_matched_tokens
        engine.connector.get_num_new_matched_tokens = self._answer

    def _answer(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """Forward vLLM's question, and remember the connector's answer."""
        answer: tuple[int | None, bool] = self._ask(request, num_local_tokens)
        tokens, is_beside = answer
        self._beside[request.request_id] = tokens or 0 if is_beside else 0
        if tokens is None:
            self._undecided.add(request.request_id)
            return answer
        self._undecided.discard(request.request_id)
        if self._engine.kept is not None:
            job = self._engine.jobs[request.request_id]
            self._engine.kept.looked_up(job, num_local_tokens, num_local_tokens + tokens)
        return answer

    # ---- before a step -----------------------------------------------------------------------------

    def look(self) -> None:
        """Begin a step: enter into the view what the connector holds. O(loads and reads under way).

        Each request on which the connector is undecided costs a prefix lookup. The lookup happens here instead of in
        vLLM's loop.
        """
        engine, view = self._engine, self._engine.view
        if self._ended:
            self._ended = {id_: hold for id_, hold in self._ended.items() if id_ in engine.requests}
        for request_id in tuple(self._undecided):
            self._ask_again(engine.requests[request_id])
        undecided = {engine.jobs[request_id] for request_id in self._undecided}
        view.fetching = undecided.union(job for job in self._jobs() if not self.is_loaded(job))
        pool = engine.kv_cache_manager.block_pool
        view.total_blocks = pool.num_gpu_blocks - 1 - self._held_blocks()
        view.blocks_coming_free = sum(
            block.ref_cnt == 1 for _, blocks in engine.deferred_frees for block in blocks
        )
        self._report()

    def admit_loaded(self, plan: StepPlan) -> None:
        """Put jobs whose KV is loaded before the other jobs that a plan admits, in the order in which their loads
        began.

        As in vLLM this holds under every policy: the job holds blocks for which others may wait, and the policy chose
        it when its load began. A loaded job that does not fit ends admission, as in vLLM. If a plan pauses residents to
        admit particular jobs, a loaded job that does not fit is left out instead.
        """
        loaded = [job for job in self._jobs() if self.is_loaded(job) and job not in plan.leave]
        if not loaded:
            return
        others = [job for job in plan.admit if job not in loaded]
        if len(plan.run) < len(self._engine.ledger.residents):
            requests = self._engine.requests
            loaded = [job for job in loaded if self._admission.misfit(requests[job.id]) is None]
        plan.admit = [*loaded, *others]

    def is_loaded(self, job: Job) -> bool:
        """Whether only seats and memory keep a job with blocks from starting. O(1)."""
        return self._admission.not_ready(self._engine.requests[job.id]) is None

    def _jobs(self) -> Iterable[Job]:
        return (self._engine.jobs[request_id] for request_id in self._loads)

    def _held_blocks(self) -> int:
        if not (self._loads or self._ended):
            return 0
        holds = (*self._loads.values(), *self._ended.values())
        return len({block for hold in holds for block in hold.blocks})

    def _ask_again(self, request: Request) -> None:
        """Ask again about an undecided request, as vLLM does in every step, so that the policy knows before it
        chooses.
        """
        _, num_local, *_ = self._engine.kv_cache_manager.get_computed_blocks(request)
        self._answer(request, num_local - num_local % self._engine.block_size)

    def is_undecided(self, request: Request) -> bool:
        """Whether the connector's last answer about a waiting request was "not known yet". O(1)."""
        return request.request_id in self._undecided

    def loads_beside(self, request: Request) -> int:
        """Tokens that an asynchronous load would bring, by the connector's newest answer; 0 for none."""
        return 0 if request.num_computed_tokens else self._beside.get(request.request_id, 0)

    # ---- after a step ------------------------------------------------------------------------------

    def filled(self) -> None:
        """vLLM has filled a step: note the loads that began, forget those that ended. O(loads under way)."""
        engine, held = self._engine, self._engine.kv_holding_waiting
        if not (self._loads or held):
            return
        now_s, manager = engine.clock(), engine.kv_cache_manager
        loads = {request.request_id: self._loads[request.request_id] for request in held.find(self._loads)}
        for request in held:
            if request.request_id not in loads:
                loads[request.request_id] = _Hold(now_s, _blocks(manager, request))
        self._loads = loads

    def ended(self, request: Request) -> None:
        """A request ended; the connector may hold its blocks a while longer."""
        request_id = request.request_id
        self._undecided.discard(request_id)
        self._beside.pop(request_id, None)
        self._loads.pop(request_id, None)
        if request_id in self._engine.requests:
            manager = self._engine.kv_cache_manager
            self._ended[request_id] = _Hold(self._engine.clock(), _blocks(manager, request))

    def failed(self) -> None:
        """Loads of running requests failed: update how many tokens their jobs have computed. O(residents)."""
        for job in self._engine.ledger.residents:
            computed = self._engine.requests[job.id].num_computed_tokens
            job.recomputed_tokens += max(0, job.num_computed_tokens - computed)
            job.num_computed_tokens = computed

    # ---- what waits for the connector --------------------------------------------------------------

    @property
    def holds_blocks(self) -> bool:
        """Whether the connector holds blocks that will come free, or blocks of a loaded request that has not run."""
        pending: bool = self._engine.connector.has_pending_block_frees()
        return pending or bool(self._loads or self._ended)

    def _report(self) -> None:
        """Warn once of each transfer that takes too long: a request whose KV never comes waits for ever."""
        now_s = self._engine.clock()
        for what, holds in (("load", self._loads), ("read", self._ended)):
            for request_id, hold in holds.items():
                if now_s - hold.since_s < LATE_S:
                    break  # the remaining ones began later
                if not hold.told:
                    hold.told = True
                    self._engine.counters.late_transfers += 1
                    logger.error(
                        "the KV connector has not finished its %s for request %s after %.0f s; it holds %d KV blocks",
                        *(what, request_id, now_s - hold.since_s, len(hold.blocks)),
                    )


def _blocks(manager: Any, request: Request) -> list[int]:
    """The blocks of a request, over all groups of layers."""
    return [block for group in manager.get_block_ids(request.request_id) for block in group]


def transfers_of(engine: StepPort, admission: Admission) -> Transfers | None:
    """Follow a scheduler's KV connector; None without one, and for Headway's own."""
    return Transfers(engine, admission) if is_anothers(engine.vllm_config.kv_transfer_config) else None


def is_anothers(kv_transfer_config: Any) -> bool:
    """Whether a configuration starts a KV connector other than Headway's."""
    return kv_transfer_config is not None and kv_transfer_config.kv_connector != CONNECTOR
