"""Jobs and targets that the tests of `core` and `policies` share."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from headway.core.job import Job, JobState
from headway.core.ledger import Ledger
from headway.core.slo import NO_TARGETS, Slo
from headway.core.view import StepView

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Examples run as long as they need: a busy machine is no failure."""
SOME = settings(UNTIMED, max_examples=30)
"""The same for tests whose every example is a whole run, or that are repeated over a few policies."""
FEW = settings(UNTIMED, max_examples=10)
"""The same for tests that are themselves repeated over many policies."""


def make_job(id_: str = "a", *, prompt: int = 10, limit: int = 10, **fields: Any) -> Job:
    """A job that waits since 0 s, unless told otherwise."""
    return Job(id=id_, num_prompt_tokens=prompt, max_output_tokens=limit, **{"arrival_s": 0.0, **fields})


def decoding(id_: str = "a", *, prompt: int = 10, output: int = 1, **fields: Any) -> Job:
    """A resident job with everything computed but its newest token."""
    fields = {"num_computed_tokens": prompt + output - 1, "num_output_tokens": output, **fields}
    return make_job(id_, prompt=prompt, **{"state": JobState.RESIDENT, **fields})


def prefilling(id_: str = "a", *, prompt: int = 10, computed: int = 0, **fields: Any) -> Job:
    """A resident job that has computed some of its prompt."""
    return make_job(id_, prompt=prompt, num_computed_tokens=computed, state=JobState.RESIDENT, **fields)


def ids(jobs: Any) -> list[str]:
    """The ids of some jobs, in their order."""
    return [job.id for job in jobs]


def ledger_of(view: StepView) -> Ledger:
    """A ledger that holds the jobs of a view."""
    ledger = Ledger()
    ledger.waiting = {job.id: job for job in view.waiting}
    ledger.swapped = {job.id: job for job in view.swapped}
    ledger.residents = view.residents  # type: ignore[assignment]  # the view's own, as engines have it
    return ledger


instants = st.integers(0, 40).map(float)
"""Whole seconds, few enough that ties are common."""
_targets = st.none() | st.integers(1, 30).map(float)
_between = st.none() | st.sampled_from([0.05, 0.4, 1.0])
slos = st.just(NO_TARGETS) | st.builds(Slo, ttft_s=_targets, tbt_s=_between, deadline_s=_targets)


@st.composite
def waiting_jobs(draw: st.DrawFn, *, min_size: int = 0, max_size: int = 12) -> list[Job]:
    """Jobs that wait, with ties in everything but the id; ids are drawn in no order."""
    names = draw(st.lists(st.integers(0, 99), min_size=min_size, max_size=max_size, unique=True))
    return [
        make_job(
            f"{name:02}",
            arrival_s=draw(instants),
            prompt=draw(st.integers(1, 8) | st.integers(1, 3000)),
            slo=draw(slos),
            priority=draw(st.integers(-1, 1)),
        )
        for name in names
    ]
