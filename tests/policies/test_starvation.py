"""How long FastServe may leave a job idle, whatever arrives in the meantime."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.presets import find_preset
from headway.sim.limits import EngineLimits
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import STEP_S, Instance, LinearCost, small_engine
from tests.strategies import SOME

COST = LinearCost()


@dataclass
class Wait:
    """One stretch without a token: since when, and what is ahead once nothing can get ahead any more."""

    since_s: float
    ahead_s: float | None = None


@dataclass
class Waits:
    """Follows a run, and the longest a job of it may still be idle."""

    workload: Workload
    copies_s: float = 0.0
    order_spec: str = "skip-join-mlfq"
    instance: Instance = field(init=False)
    waits: dict[Job, Wait] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {each.id: each.output for each in self.workload.arrivals}
        policy = from_preset(find_preset("fastserve", order=self.order_spec))(self.workload)
        self.instance = Instance(policy, lengths, self.workload.engine)

    @property
    def order(self) -> SkipJoinMlfq:
        """The queues."""
        order = self.instance.policy.order
        assert isinstance(order, SkipJoinMlfq)
        return order

    def run(self) -> None:
        """To the end; each wait is checked when it is over, and as long as it lasts."""
        due = deque(sorted(self.workload.arrivals, key=lambda arrival: arrival.at_step))
        while due or self.instance.ledger.live:
            now_s = self.instance.now_s
            while due and due[0].at_step * STEP_S <= now_s:
                job = due.popleft().job()
                self.waits[job] = Wait(now_s)
                self.instance.arrive(job)
            self._look_ahead(now_s)
            served = self.instance.step().tokens
            for job in list(self.waits):
                if job.id in self.instance.records:
                    del self.waits[job]
                elif job in served:
                    self.waits[job] = Wait(self.instance.now_s)
                else:
                    self._check(job, now_s + STEP_S)

    def _look_ahead(self, now_s: float) -> None:
        """Note what is ahead of those at level 1, and of those that are promoted now."""
        ranked = self.order.rank(list(self.waits), now_s)
        for place, job in enumerate(ranked):
            wait = self.waits[job]
            starves = now_s - wait.since_s >= 3.0
            # Who has just stopped may be about to sink.
            stays = now_s > wait.since_s and self.order.level_of(job) == 1
            if wait.ahead_s is None and (starves or stays):
                wait.ahead_s = sum(self._longest_s(other) for other in ranked[:place])

    def _longest_s(self, job: Job) -> float:
        """The longest a job stays ahead while it runs: its allowance at level 1, and the step that exceeds it."""
        allowance_s = max(self.order.level_quantum_s(1), COST.prefill_s(job.num_tokens))
        return allowance_s + STEP_S

    def _check(self, job: Job, now_s: float) -> None:
        """A wait that has lasted until now is within the bound."""
        wait = self.waits[job]
        ahead_s = (wait.ahead_s or 0.0) / self.workload.engine.max_run
        bound_s = 3.0 + STEP_S + ahead_s + self.copies_s
        assert now_s - wait.since_s <= bound_s, f"{job!r} has been idle since {wait.since_s} s at {now_s} s"


@st.composite
def bursts(draw: st.DrawFn, engine: EngineLimits) -> Workload:
    """A few long prompts first, then short ones that keep coming."""
    width = engine.max_run
    early = draw(st.lists(st.tuples(st.integers(1, 28), st.integers(1, 12)), min_size=1, max_size=6))
    late = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(1, 6)), max_size=40))
    arrivals = [
        Arrival(id=f"e{number:02}", at_step=0, prompt=prompt, output=output, limit=12)
        for number, (prompt, output) in enumerate(early * width)
    ]
    arrivals += [
        Arrival(id=f"l{number:02}", at_step=at_step, prompt=prompt, output=output, limit=12)
        for number, (at_step, prompt, output) in enumerate(late)
    ]
    return Workload(tuple(arrivals), engine)


ROOMY = {"num_blocks": 1000, "max_num_seqs": 200, "max_num_batched_tokens": 1000}
"""Memory and tokens for everybody: only the batch width is short."""


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("host", [0, 400])
@SOME
@given(data=st.data())
def test_no_job_is_idle_longer_than_the_bound(width: int, host: int, data: st.DataObject) -> None:
    """Idle at most: the limit, a step, and the time of those ahead at level 1 at that moment over the batch width.

    After `starve_s` a job is at the tail of level 1, at the latest when the next step is planned: one step more. Who
    comes later, or is promoted later, is behind it. Each one ahead leaves level 1, or ends, once it has run longer
    than its allowance, so after its allowance and one step at most. In a step in which the job does not run all
    places are taken by those ahead, so it waits for the sum of that over the number of places.
    """
    engine = small_engine(**ROOMY, batch_width=width, host_blocks=host)
    run = Waits(data.draw(bursts(engine)))
    run.run()
    assert all(len(outcome.tokens) <= width for outcome in run.instance.outcomes)


def test_without_promotions_it_does_not_hold() -> None:
    # Somebody short comes every second, so the long prompt never has its turn.
    arrivals = [Arrival(id=f"{n:02}", at_step=n, prompt=1, output=1, limit=1) for n in range(30)]
    arrivals.append(Arrival(id="long", at_step=0, prompt=20, output=1, limit=1))
    workload = Workload(tuple(arrivals), small_engine(**ROOMY, batch_width=1))
    Waits(workload).run()
    with pytest.raises(AssertionError, match=r"Job\('long'.* has been idle since 0.0 s"):
        Waits(workload, order_spec="skip-join-mlfq:starve_s=inf").run()


COPIES_S = 6 * STEP_S
"""A copy takes the step it was decided with and the next; room is made by one, the way back is one, and who came back
before holds the room for those on their way for another.
"""


@SOME
@given(data=st.data())
def test_with_a_host_it_holds_though_not_all_kv_fits(data: st.DataObject) -> None:
    """As above, and copies, where a batch of the longest fits beside as much idle room.

    The longest are 28 + 12 tokens, 10 blocks; three of them 30, and 60 blocks there are.
    """
    engine = small_engine(**{**ROOMY, "num_blocks": 60}, batch_width=3, host_blocks=400)
    Waits(data.draw(bursts(engine)), copies_s=COPIES_S).run()


@pytest.mark.parametrize("host", [0, 40])
@pytest.mark.parametrize(("num_blocks", "prompt", "watermark"), [(12, 44, 0), (14, 30, 4)])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"eviction": "proactive:ahead=false,serial=true"},
        {"eviction": "proactive:drop=true,ahead=false"},
        {"order": "skip-join-mlfq:skip_join=false"},
    ],
)
def test_short_prompts_that_keep_coming_do_not_keep_a_long_one_out(
    parts: dict[str, Any], num_blocks: int, prompt: int, watermark: int, host: int
) -> None:
    """A prompt of 11 of the 12 blocks gets its room though there is always somebody who needs only two.

    So does one of 8 of 14, of which 4 are to stay free beside others.
    """
    # A small one comes each second for a minute. big comes at 4 s and is promoted at 7 s; from then on nobody starts
    # before it. At most six are resident, of 5 tokens each, four at a time: it starts within 8 s more.
    smalls = tuple(Arrival(id=f"{n:02}", at_step=n, prompt=4, output=5, limit=8) for n in range(60))
    big = Arrival(id="big", at_step=4, prompt=prompt, output=2, limit=4)
    engine = small_engine(
        num_blocks=num_blocks,
        max_num_seqs=8,
        batch_width=4,
        max_num_batched_tokens=16,
        host_blocks=host,
        watermark_blocks=watermark,
    )
    workload = Workload((*smalls, big), engine)
    run = drive(from_preset(find_preset("fastserve", **parts))(workload), workload)
    started_s = run.instance.records["big"].first_scheduled_s
    assert started_s is not None
    assert started_s <= 15.0


@pytest.mark.parametrize(("tail", "by_s"), [(1.0, 60), (0.5, 170), (0.0, 800)])
def test_the_dial_bounds_how_long_short_work_passes_long(tail: float, by_s: int) -> None:
    # One runs at a time, and a short one each second would take all of it. The four long ones need 40 steps. Each has
    # some 100 times the work of a short one, the memory that it holds included. At first the backlog is mostly theirs.
    # With each short one the mean falls, T with it (to 2 s at 0.5, to 0.07 s at 1), and the long ones have their turn.
    shorts = tuple(Arrival(id=f"{n:03}", at_step=n, prompt=1, output=1, limit=1) for n in range(800))
    longs = tuple(Arrival(id=f"long{n}", at_step=0, prompt=24, output=10, limit=12) for n in range(4))
    workload = Workload((*shorts, *longs), small_engine(**ROOMY, batch_width=1))
    preset = find_preset("headway", order=f"on-time:tail={tail},patience_s=1e9")
    records = drive(from_preset(preset)(workload), workload).instance.records
    ended_s = [records[long.id].finished_s or 0.0 for long in longs]
    if tail:
        assert max(ended_s) <= by_s
    else:
        assert min(ended_s) > by_s


def test_late_work_has_a_hundredth_of_what_work_in_time_would_take() -> None:
    # One runs at a time, and each second one comes that can be in time. The long one is late at once and needs 10
    # steps: it is overdue at 2 s, and done when a hundredth of the time has come to that.
    hurried = tuple(
        Arrival(id=f"{n:04}", at_step=n, prompt=1, output=1, limit=1, slo=Slo(ttft_s=500.0))
        for n in range(1500)
    )
    long = Arrival(id="long", at_step=0, prompt=24, output=10, limit=12, slo=Slo(ttft_s=0.1))
    workload = Workload((*hurried, long), small_engine(**ROOMY, batch_width=1))
    ended_s = {}
    for patience_s in ("2", "1e9"):
        preset = find_preset("headway", order=f"on-time:patience_s={patience_s}")
        records = drive(from_preset(preset)(workload), workload).instance.records
        ended_s[patience_s] = records["long"].finished_s or 0.0
    assert ended_s["2"] <= 1100 < 1500 < ended_s["1e9"]
