"""What has to hold after every step; asked in tests, and where settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.plan import Reason, StepOutcome

if TYPE_CHECKING:
    from headway.engine.step.scheduler import PolicyScheduler


def check_step(outcome: StepOutcome, scheduler: PolicyScheduler) -> None:
    """Assert that ledger and vLLM hold the same jobs in the same places, and that each difference has a reason."""
    ledger = scheduler.ledger
    ledger.check()
    running = [request.request_id for request in scheduler.running]
    queued = {request.request_id for request in scheduler.waiting}
    if scheduler.swaps is None:
        assert [job.id for job in ledger.residents] == running
        queued |= {request.request_id for request in scheduler.kv_holding_waiting}
    else:
        running += [request.request_id for request in scheduler.kv_holding_waiting]
        assert sorted(job.id for job in ledger.residents) == sorted(running)
        scheduler.swaps.check(ledger.residents)
    assert {*ledger.waiting, *ledger.swapped} == queued
    unexplained = [job for job, why in outcome.passed_over.items() if why is Reason.UNEXPLAINED]
    assert not unexplained, f"no reason why the engine differs from the plan for {unexplained}"
