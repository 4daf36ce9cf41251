"""Contains failures of a policy, so that the engine keeps serving."""

from __future__ import annotations

import dis
import logging
import signal
from functools import partial
from traceback import walk_tb
from types import CodeType, TracebackType

from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import StepOutcome, StepPlan
from headway.core.plan_check import check_plan
from headway.core.view import StepView
from headway.engine.step.counters import Counters, TrustWatch
from headway.engine.step.slow_calls import SlowCalls
from headway.engine.step.steady_plan import SteadyPlan
from headway.policies.policy import Policy
from headway.policies.presets import PRESETS, build_policy

logger = logging.getLogger(__name__)


_RAISE = dis.opmap["RAISE_VARARGS"]


def stock_policy(*, priority_first: bool = False) -> Policy:
    """The fallback policy of an instance: vLLM's own order, by arrival or by priority."""
    return build_policy(PRESETS["vllm"], priority_first=priority_first)


class _Call:
    """Context of one kind of call to a policy: measures it, and turns its errors into a fall-back."""

    __slots__ = ("_guard", "_name")

    def __init__(self, guard: GuardedPolicy, name: str) -> None:
        self._guard = guard
        self._name = name

    def __enter__(self) -> None:
        self._guard.slow_calls.begin(self._guard.policy)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._guard.slow_calls.end(self._name)
        return error is not None and self._guard.take_over(self._name, error)


class GuardedPolicy:
    """Forwards calls to a policy. On the first error, which is logged, the stock policy takes over for good.

    A plan that breaks the rules of `check_plan` counts as an error. So do `SystemExit`, `KeyboardInterrupt` and their
    like if the policy raises them itself; those raised by a signal end the server (`_raised_by_signal`).

    The ledger is up to date before each call, so the stock policy starts from the ledger's waiting jobs and nothing is
    lost. With `steady`, a policy that would repeat its last plan is not asked. `SlowCalls` reports plans and
    observations that take long.
    """

    def __init__(
        self,
        policy: Policy,
        ledger: Ledger,
        counters: Counters,
        steady: SteadyPlan | None = None,
        *,
        priority_first: bool = False,
    ) -> None:
        self.policy = policy
        self.priority_first = priority_first
        self._steady = steady
        self._trust: TrustWatch | None = TrustWatch(policy.order, counters)
        self._ledger = ledger
        self._counters = counters
        self.slow_calls = SlowCalls(counters)
        # Measures only the calls made once a step; there are dozens of the others.
        self._planning, self._observing = _Call(self, "plan"), _Call(self, "observe")
        self._trusting = _Call(self, "whether it trusts predictions")
        self.fell_back = False
        """Whether the stock policy has taken over."""
        self.repeated = False
        """Whether the last plan repeated the one before it."""

    def add(self, job: Job) -> None:
        """A job starts to wait."""
        try:
            self.policy.add(job)
        except BaseException as error:
            if not self.take_over("add", error):
                raise

    def end(self, job: Job, *, finished: bool) -> None:
        """A job ended, its answer `finished` or not; called before the ledger marks it as ended."""
        try:
            self.policy.end(job, finished=finished)
        except BaseException as error:
            if not self.take_over("end", error):
                raise
            self.policy.end(job, finished=finished)

    def touch(self, job: Job) -> None:
        """A job's rank may have changed: its first token is out, or something about the waiting job changed."""
        try:
            self.policy.touch(job)
        except BaseException as error:
            if not self.take_over("touch", error):
                raise

    def observe(self, outcome: StepOutcome) -> None:
        """A step was filled."""
        with self._observing:
            self.policy.observe(outcome)

    def plan(self, view: StepView) -> StepPlan:
        """The policy's plan, or the stock one if the policy raises or returns an invalid plan."""
        plan = None if self._steady is None else self._steady.again(view)
        self.repeated = plan is not None
        if plan is None:
            plan = self._made(view)
        self._counters.planned_steps += 1
        if self._trust is not None:
            with self._trusting:
                self._trust.planned()
        return plan

    def _made(self, view: StepView) -> StepPlan:
        with self._planning:
            plan = self.policy.plan(view)
            check_plan(plan, view, self._ledger)
            if self._steady is not None:
                self._steady.note(plan, view, self.policy)
            return plan
        return self.policy.plan(view)

    def take_over(self, call: str, error: BaseException) -> bool:
        """Fall back, unless a signal ends the server; return whether it fell back. A part's own `SystemExit` is a
        fault.
        """
        if _raised_by_signal(error):
            return False
        self._counters.policy_faults += 1
        self.fall_back(f"policy {self.policy.name!r} raised in {call}", exc_info=True)
        return True

    def fall_back(self, why: str, *, exc_info: bool = False) -> None:
        """Serve in stock order from now on, starting with the waiting jobs."""
        logger.error("%s; serving goes on in stock order", why, exc_info=exc_info)
        self.policy = stock_policy(priority_first=self.priority_first)
        self.fell_back = True
        self._trust = self._steady = None
        queued = [*self._ledger.waiting.values(), *self._ledger.swapped.values()]
        by_arrival = sorted(queued, key=lambda job: (job.arrival_s, job.id))
        # Each preempted job goes to the front of the queue, so the oldest one must come last.
        preempted = [job for job in reversed(by_arrival) if job.num_preemptions]
        for job in [*preempted, *(job for job in by_arrival if not job.num_preemptions)]:
            self.policy.add(job)


def _raised_by_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this error, such as the operator's Ctrl-C, and not the interrupted code.

    Python runs a handler between two instructions of the main thread. A handler written in Python appears in the
    traceback. Python's own Ctrl-C handler does not: its `KeyboardInterrupt` appears on a line without a `raise`.
    """
    frames = [(frame.f_code, frame.f_lasti) for frame, _ in walk_tb(error.__traceback__)]
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    if not {code for code, _ in frames}.isdisjoint(map(_code, handlers)):
        return True
    if not isinstance(error, KeyboardInterrupt) or signal.default_int_handler not in handlers:
        return False
    return bool(frames) and frames[-1][0].co_code[frames[-1][1]] != _RAISE


def _code(handler: object) -> CodeType | None:
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(handler, "__code__", None)
