"""One simulated engine: a policy, the fill rule, a ledger and KV memory; steps without a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headway.core.fill import fill
from headway.core.host_copies import Copy, Direction
from headway.core.job import Job, JobState
from headway.core.kept_programs import KeptPrograms, room_blocks
from headway.core.ledger import LEFT_AS, Ledger
from headway.core.plan import Reason, StepOutcome
from headway.core.plan_check import check_plan
from headway.core.prefix_watch import PrefixWatch
from headway.core.record import Outcome, Record
from headway.core.view import StepView
from headway.policies.policy import Policy
from headway.sim.grouped_pool import GroupedKvPool
from headway.sim.kv_pool import BlockKey, KvPool
from headway.sim.kv_tiers import HostTier, KvStore
from headway.sim.limits import EngineLimits


@dataclass(slots=True)
class EngineTotals:
    """Totals of an engine: steps with work, computed tokens, preempted KV, cached tokens.

    Swapped blocks were copied to or from the host or a KV store, including prefetches. Killed steps count as steps, but
    their tokens do not count as computed. `busy_s` is the device's time for all steps.
    """

    steps: int = 0
    killed_steps: int = 0
    tokens: int = 0
    admissions: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class _Flight:
    """A step in flight: its grants, and the jobs that get a token from it."""

    outcome: StepOutcome
    sampled: list[Job] = field(default_factory=list)


class SimulatedEngine:
    """Plans, fills and follows steps as `engine.PolicyScheduler` and vLLM do together.

    `schedule` starts a step and `update` ends the oldest one; with `limits.depth` 2 a step is scheduled before the
    tokens of the previous one are known. Only this class knows the true output lengths; no policy sees them.
    `on_first_token` receives jobs whose first token is out, `on_end` their records at the end. With `check` every
    invariant of ledger and pool is asserted after each step.

    With `limits.host_blocks` jobs can be swapped out; with `store_blocks` a connector keeps their KV in a store of that
    size. After each `schedule`, `update` and `copied`, the owner of the clock takes the copies that start then
    (`take_copies`), and calls `copied` when one is done.
    """

    def __init__(
        self,
        limits: EngineLimits,
        policy: Policy,
        *,
        on_end: Callable[[Record], None],
        on_first_token: Callable[[Job], None] = lambda job: None,
        name: str = "",
        store_blocks: int = 0,
        waiting_elsewhere: Callable[[], Sequence[int]] | None = None,
        check: bool = False,
    ) -> None:
        self.limits = limits
        self.policy = policy
        self.name = name
        self.ledger = Ledger()
        self.totals = EngineTotals()
        self.pool = self._kv_pool(limits)
        self.host = self._host_tier(limits) if limits.host_blocks else None
        self.store = KvStore(self.pool, store_blocks) if store_blocks else None
        assert self.host is None or self.store is None, "host memory beside a store is not simulated"
        self.tier = self.host or self.store
        self._kv: KvPool | HostTier | KvStore = self.tier or self.pool
        self._prefixes = self._prefix_watch() if policy.uses_prefixes and limits.prefix_caching else None
        self.kept = self._kept_programs(limits)
        self._on_end = on_end
        self._on_first_token = on_first_token
        self._waiting_elsewhere = waiting_elsewhere
        self._check = check
        self._output_tokens: dict[Job, int] = {}
        self._flights: deque[_Flight] = deque()
        self._stale_steps: dict[Job, int] = {}
        self.steady: StepOutcome | None = None
        self._view = StepView(
            total_blocks=limits.num_blocks,
            watermark_blocks=limits.watermark_blocks,
            block_size=limits.block_size,
            max_run=limits.max_run,
            max_resident=limits.max_num_seqs,
            max_tokens=limits.max_num_batched_tokens,
            graphed_tokens=limits.graphed_tokens,
            admissible=self._admissible,
            ready=self._ready,
            missing_blocks=self.pool.missing_blocks,
        )
        if self.host is not None:
            self._view.host_total_blocks = limits.host_blocks
            self._view.uncopied_blocks = self.host.copies.uncopied_blocks
            self._view.unsent_blocks = self.host.copies.unsent_blocks

    def _kv_pool(self, limits: EngineLimits) -> KvPool:
        if not limits.kv_groups:
            return KvPool(
                limits.num_blocks,
                block_size=limits.block_size,
                prefix_caching=limits.prefix_caching,
                watermark_blocks=limits.watermark_blocks,
            )
        return GroupedKvPool(
            limits.num_blocks,
            limits.kv_groups,
            block_size=limits.block_size,
            prefix_caching=limits.prefix_caching,
            watermark_blocks=limits.watermark_blocks,
            most_in_flight=limits.depth * limits.max_num_batched_tokens,
            in_flight=self._tokens_in_flight,
        )

    def _host_tier(self, limits: EngineLimits) -> HostTier:
        return HostTier(
            self.pool,
            limits.host_blocks,
            restore_blocks=limits.restore_blocks,
            serial=self.policy.serial_copies,
            in_flight=lambda job: self._steps_in_flight(job) > 0,
        )

    def _prefix_watch(self) -> PrefixWatch:
        stored = None if self.store is None else self.store.finds
        return PrefixWatch(self.pool.finds, self.limits.block_size, self.policy.touch, stored=stored)

    def _kept_programs(self, limits: EngineLimits) -> KeptPrograms | None:
        rule = self.policy.retention
        if rule is None or limits.kv_groups or not limits.prefix_caching:
            return None
        return KeptPrograms(self.pool, rule, limits.num_blocks, has_store=self.store is not None)

    @property
    def serial_copies(self) -> bool:
        """Whether a step waits for the copies decided with it. A store's copies run beside the steps."""
        return self.host is not None and self.policy.serial_copies

    # ---- arrivals ----------------------------------------------------------------------------------

    def arrive(self, job: Job, output_tokens: int, now_s: float, shared: Sequence[BlockKey] = ()) -> None:
        """Take in a job with `output_tokens` tokens to come; a job that can never fit fails at once."""
        self.steady = None
        self.expect(job, output_tokens)
        self.ledger.arrive(job)
        self.pool.add(job, shared)
        if self.kept is not None:
            self.kept.came(job, now_s)
        if self._prefixes is not None:
            self._prefixes.come(job)
            if self.kept is not None and self.store is not None:
                self.kept.looked_up(job, job.num_cached_tokens, job.num_found_tokens)
        self.policy.add(job)
        self._fail_if_oversized(job, now_s)

    def expect(self, job: Job, output_tokens: int) -> None:
        """Set how many tokens a job will produce."""
        self._output_tokens[job] = output_tokens

    def fail_oversized(self, now_s: float) -> bool:
        """End the waiting jobs that have outgrown even an empty pool; return whether there was one."""
        queued = [*self.ledger.waiting.values(), *self.ledger.swapped.values()]
        failed = [job for job in queued if self._fail_if_oversized(job, now_s)]
        return bool(failed)

    def _fail_if_oversized(self, job: Job, now_s: float) -> bool:
        needed = self.pool.blocks_for(job.num_tokens)
        if needed <= self.limits.num_blocks:
            return False
        why = f"needs {needed} KV blocks, the engine has {self.limits.num_blocks}"
        self._end(job, Outcome.FAILED, now_s, error=why)
        return True

    # ---- a step ------------------------------------------------------------------------------------

    def schedule(self, now_s: float) -> StepOutcome:
        """Plan and fill a step. It is in flight until `update`, unless it has no work."""
        view = self.view(now_s)
        if self.kept:
            self.kept.before_step(view)
            view.free_blocks = self.pool.free_blocks
        plan = self.policy.plan(view)
        check_plan(plan, view, self.ledger)
        for job, departure in plan.leave.items():
            self._end(job, LEFT_AS[departure], now_s)
        outcome = fill(
            plan,
            self.ledger.residents,
            self._kv,
            now_s=now_s,
            max_run=view.max_run,
            max_resident=view.max_resident,
        )
        self.ledger.apply(outcome)
        self._follow_preempted(outcome)
        flight = _Flight(outcome, self._awaiting_token(outcome))
        if self._prefixes is not None:
            self._prefixes.follow(outcome)
        self.policy.observe(outcome)
        if self.kept is not None:
            self.kept.stepped(outcome)
        if outcome.tokens:
            self._flights.append(flight)
        if outcome.tokens or outcome.preempted or outcome.admitted:
            self._count(outcome)
        self.steady = outcome if self._is_steady(flight) else None
        if self._check:
            self.check()
            assert all(job not in self._kv.restoring for job in outcome.tokens), "tokens without their KV"
        return outcome

    def view(self, now_s: float) -> StepView:
        """The policy's view; one object, filled anew."""
        view = self._view
        view.now_s = now_s
        view.residents = self.ledger.residents
        view.waiting = self.ledger.waiting.values()
        view.free_blocks = self.pool.free_blocks
        if self.tier is not None:
            view.restoring = self.tier.restoring
            view.returned = self.tier.returned
            view.blocks_coming_free = self.tier.blocks_coming_free
        if self.host is not None:
            view.swapped = self.ledger.swapped.values()
            view.host_free_blocks = self.host.copies.host.free_blocks
        if self._waiting_elsewhere is not None:
            view.waiting_elsewhere, view.told_elsewhere_s = self._waiting_elsewhere(), now_s
        return view

    def _admissible(self, job: Job) -> bool:
        seat = len(self.ledger.residents) < self.limits.max_num_seqs
        return seat and self._ready(job) and self._kv.misfit(job) is None

    def _ready(self, job: Job) -> bool:
        return self._kv.ready(job) is None

    def _awaiting_token(self, outcome: StepOutcome) -> list[Job]:
        """Jobs whose last known token this step computes; under asynchronous scheduling they can continue."""
        sampled: list[Job] = []
        placeholders = self.limits.asynchronous
        for job in outcome.tokens:
            known = job.num_prompt_tokens + job.num_output_tokens + job.num_output_placeholders
            if job.num_computed_tokens >= known:
                sampled.append(job)
                job.num_output_placeholders += placeholders
        return sampled

    def _follow_preempted(self, outcome: StepOutcome) -> None:
        """A job preempted in flight can start again only after its tokens in flight have arrived."""
        for job in outcome.preempted:
            steps = self._steps_in_flight(job)
            if steps:
                self._stale_steps[job] = steps
                self.pool.not_ready[job] = Reason.STALE_OUTPUT

    def _tokens_in_flight(self, job: Job) -> int:
        return sum(flight.outcome.tokens.get(job, 0) for flight in self._flights)

    def _steps_in_flight(self, job: Job) -> int:
        """Steps in flight that compute tokens of a job; O(steps in flight)."""
        return sum(job in flight.outcome.tokens for flight in self._flights)

    def _count(self, outcome: StepOutcome) -> None:
        totals = self.totals
        totals.steps += bool(outcome.tokens)
        totals.tokens += outcome.num_tokens
        totals.admissions += len(outcome.admitted)
        totals.preemptions += len(outcome.preempted)
        totals.cached_tokens += sum(outcome.cached_tokens.values())

    # ---- outputs -----------------------------------------------------------------------------------

    def update(self, now_s: float) -> None:
        """Process the output of the oldest step in flight: one token for each job, and the ends that follow."""
        flight = self._flights.popleft()
        stale = self._stale_before(flight) if self._stale_steps else frozenset()
        if self.host is not None and self.host.copies.awaited:
            self._follow_restored(self.host, flight.outcome)
        grown: list[Job] = []
        for job in flight.sampled:
            if job.state is not JobState.ENDED and self._sampled(job, now_s, is_stale=job in stale):
                grown.append(job)
        # After all ends, since vLLM processes a whole output before anything learns of its tokens.
        for job in grown:
            self.policy.touch(job)
        if self.host is not None and stale:
            self._copy_drained(self.host, flight.outcome)
        if self._check:
            self.check()

    def kill(self) -> None:
        """Abandon the only step in flight: it yields nothing, and its jobs keep the blocks that they got for it."""
        outcome = self._flights.popleft().outcome
        assert not self._flights, "a step in flight was planned on the tokens of the one that is killed"
        self.steady = None
        for job, tokens in outcome.tokens.items():
            job.num_computed_tokens -= tokens
        self.totals.killed_steps += 1
        self.totals.tokens -= outcome.num_tokens
        if self._check:
            self.check()

    def _stale_before(self, flight: _Flight) -> frozenset[Job]:
        """The jobs preempted since this step was scheduled; counts each step in flight down once."""
        stale = frozenset(job for job in flight.outcome.tokens if job in self._stale_steps)
        for job in stale:
            self._stale_steps[job] -= 1
            if not self._stale_steps[job]:
                self._fresh(job)
        return stale

    def _copy_drained(self, host: HostTier, outcome: StepOutcome) -> None:
        """Start copying swapped jobs that have not ended and that no step computes any more."""
        for job in outcome.tokens:
            if job not in self._stale_steps:
                host.copies.advance(job)

    def _follow_restored(self, host: HostTier, outcome: StepOutcome) -> None:
        """After a restored job has run, others may come back in its place."""
        for job in outcome.tokens:
            if host.copies.ran(job):
                self.steady = None

    def _fresh(self, job: Job) -> None:
        self._stale_steps.pop(job, None)
        self.pool.not_ready.pop(job, None)

    def _sampled(self, job: Job, now_s: float, *, is_stale: bool) -> bool:
        """Count an arrived token; return whether the job continues with a possibly changed rank."""
        is_news = is_stale or job.first_token_s is None
        if is_news:
            self.steady = None
            if self.ledger.sampled(job, 1, now_s):
                self._on_first_token(job)
        else:
            job.num_output_tokens += 1
        if self.limits.asynchronous and not is_stale:
            job.num_output_placeholders -= 1
            self.pool.cache(job, job.num_computed_tokens - job.num_output_placeholders)
        if job.num_output_tokens >= self._output_tokens[job]:
            self._end(job, Outcome.FINISHED, now_s)
            return False
        return is_news

    def _end(self, job: Job, outcome: Outcome, now_s: float, error: str | None = None) -> None:
        self.steady = None
        self.policy.end(job, finished=outcome is Outcome.FINISHED)
        if self._prefixes is not None:
            self._prefixes.end(job)
        if self.kept is not None:
            self.kept.ended(job, now_s, finished=outcome is Outcome.FINISHED)
        self._kv.forget(job)
        self._fresh(job)
        del self._output_tokens[job]
        record = self.ledger.end(job, outcome, now_s)
        record.instance = self.name
        record.error = error
        self._on_end(record)

    # ---- copies between device and host or store ---------------------------------------------------

    def take_copies(self) -> list[Copy]:
        """The copies that started since the last call, in order; serial ones are done already."""
        copies = [] if self.tier is None else self.tier.take_copies()
        for copy in copies:
            if copy.direction is Direction.TO_HOST:
                self.totals.swapped_out_blocks += len(copy.blocks)
            else:
                self.totals.swapped_in_blocks += len(copy.blocks)
        return copies

    def copied(self, copy: Copy) -> None:
        """A copy is done: its blocks, or its job, can be used in the next step."""
        assert self.tier is not None
        self.steady = None
        self.tier.finish(copy)
        if self._check:
            self.check()

    # ---- skipping steps that repeat --------------------------------------------------------------------

    def _is_steady(self, flight: _Flight) -> bool:
        """Whether the next plan repeats this one: all residents decode, and no job came, left or waits for anything
        but time.
        """
        outcome = flight.outcome
        plan, residents = outcome.plan, self.ledger.residents
        return (
            outcome.num_tokens == len(residents) == len(flight.sampled) > 0
            and not (outcome.admitted or outcome.preempted or plan.leave or plan.chunk_cap)
            and not (plan.offload or plan.prefetch)
            and list(plan.run) == residents
            and not self._stale_steps
        )

    def steady_rounds(self) -> int:
        """How often the last step can be scheduled again, with an output each time, before anything changes.

        0 if the last step was not steady, or if something has happened since or will: a copy ends, or a restored job
        takes its first step, which ends its host copy. Stops before the token that ends a job and before blocks run
        out. O(residents).
        """
        if self.steady is None or (self.tier is not None and self.tier.busy):
            return 0
        lengths, residents = self._output_tokens, self.ledger.residents
        left = self.pool.steady_tokens(len(residents))
        if self.kept:
            # While others wait, a freed block could start one of them; and residents free no more than they need.
            spare_blocks = 0 if self.ledger.waiting else self.pool.free_blocks - room_blocks(self._view)
            left = min(left, spare_blocks // len(residents) * self.limits.block_size)
        for job in residents:
            if job.first_token_s is None:
                return 0
            left = min(left, lengths[job] - job.num_output_tokens)
        return max(0, left - 1 - len(self._flights))

    def repeat(self, rounds: int) -> None:
        """Schedule the last step and process an output `rounds` times at once; at most `steady_rounds`.

        Has the same effect as single steps: blocks come from the front of the line whichever job takes them, nothing is
        freed meanwhile, and the last output makes all tokens except the newest known.
        """
        residents = self.ledger.residents
        for job in residents:
            grown = self.pool.grow(job, rounds)
            assert grown, "a stretch ran out of blocks"
            job.num_computed_tokens += rounds
            job.num_output_tokens += rounds
            self.pool.cache(job, job.num_tokens - 1)
        self.totals.steps += rounds
        self.totals.tokens += rounds * len(residents)

    def schedule_again(self) -> None:
        """Schedule the last, steady step once more; its output arrives like any other's."""
        assert self.steady is not None
        for job in self.ledger.residents:
            grown = self.pool.grow(job, 1)
            assert grown, "a stretch ran out of blocks"
            job.num_computed_tokens += 1
            job.num_output_placeholders += self.limits.asynchronous
        self._flights.append(_Flight(self.steady, list(self.ledger.residents)))
        self.totals.steps += 1
        self.totals.tokens += len(self.ledger.residents)

    # ---- checks ------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Steps whose output is still to come."""
        return len(self._flights)

    def check(self) -> None:
        """Assert the invariants of ledger and pool; O(jobs + blocks)."""
        self.ledger.check()
        self._kv.check(self.ledger.residents)
