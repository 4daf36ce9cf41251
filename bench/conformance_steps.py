"""What an engine decided in one step, what of it another engine decided otherwise, and how much was compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields

from headway.core.job import Job
from headway.core.ledger import Ledger
from headway.core.plan import Departure, Fate, StepOutcome
from headway.policies.order import Order, Predicting
from headway.policies.order.governed import Governed
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq


@dataclass(frozen=True, slots=True)
class Before:
    """An engine as a step finds it: its residents, those back from the host, free blocks of device and host."""

    residents: Sequence[Job]
    returned: Collection[str]
    free: tuple[int, int]


def before(ledger: Ledger, returned: Collection[Job], free: tuple[int, int]) -> Before:
    """The state before a step; copies what the step changes."""
    return Before(ledger.residents, {job.id for job in returned}, free)


@dataclass(frozen=True, slots=True)
class OrderState:
    """What an order keeps of live jobs: the queue each stands in, and whether it goes by predicted lengths."""

    levels: dict[str, int]
    trusting: bool


@dataclass(slots=True)
class Decisions:
    """What one engine decided in one step; free blocks are of device and host.

    `paused` keep their KV and get no tokens, as planned. `put_back` are those of `preempted` that had come back
    from the host and not run since, `departures` why those of `left` leave, `prefetched` those of `admitted` that
    came back without a place in the batch. `levels` are the queues of all live jobs after it, where the order has
    queues; `trusting`: whether it goes by predicted lengths.
    """

    admitted: list[str]
    granted: dict[str, int]
    paused: set[str]
    preempted: dict[str, Fate]
    put_back: set[str]
    offloaded: list[str]
    prefetched: list[str]
    left: set[str]
    departures: dict[str, Departure]
    levels: dict[str, int]
    trusting: bool
    free_before: tuple[int, int]
    free_after: tuple[int, int]

    def count(self) -> int:
        """How many jobs it names, each part by itself; the order's state and the free blocks are one more."""
        parts = (self.admitted, self.granted, self.paused, self.preempted, self.offloaded, self.left)
        return sum(map(len, parts)) + 1

    def differences(self, real: Decisions) -> list[str]:
        """In words, what differs from the real engine."""
        names = [part.name for part in fields(self)]
        return [
            f"{name}: simulated {getattr(self, name)}, real {getattr(real, name)}"
            for name in names
            if getattr(self, name) != getattr(real, name)
        ]


def decisions(
    found: Before,
    outcome: StepOutcome,
    granted: Mapping[str, int],
    left: set[str],
    order: OrderState,
    free_after: tuple[int, int],
) -> Decisions:
    """What a step with this outcome decided; tokens granted and who left are taken from the engine itself."""
    plan = outcome.plan
    named = {*plan.run, *plan.preempt}
    prefetches = set(plan.prefetch)
    return Decisions(
        admitted=[job.id for job in outcome.admitted],
        granted=dict(granted),
        paused={job.id for job in found.residents if job not in named},
        preempted={job.id: fate for job, fate in outcome.preempted.items()},
        put_back={job.id for job in outcome.preempted if job.id in found.returned},
        offloaded=[job.id for job in outcome.offloaded],
        prefetched=[job.id for job in outcome.admitted if job in prefetches],
        left=left,
        departures={job.id: why for job, why in outcome.left.items()},
        levels=order.levels,
        trusting=order.trusting,
        free_before=found.free,
        free_after=free_after,
    )


def order_of(order: Order, ledger: Ledger) -> OrderState:
    """The state of an order; its queues are those of MLFQ, also where they stand by."""
    trusting = isinstance(order, Predicting) and order.trusts_predictions
    queues = order._queues if isinstance(order, Governed) else order
    if not isinstance(queues, SkipJoinMlfq):
        return OrderState({}, trusting)
    live = [*ledger.waiting.values(), *ledger.swapped.values(), *ledger.residents]
    return OrderState({job.id: queues.level_of(job) for job in live}, trusting)


@dataclass(slots=True)
class Tally:
    """Decisions compared in one mode, and how many of them agreed.

    `met` counts what the real engine did: preemptions, swaps, pauses and so on.
    """

    steps: int = 0
    decisions: int = 0
    same: int = 0
    met: Counter[str] = field(default_factory=Counter)
    first_difference: str | None = None
    differing: list[str] = field(default_factory=list)
    _levels: dict[str, int] = field(default_factory=dict)

    def note(self, where: str, ours: Decisions, real: Decisions) -> None:
        """Compare one step."""
        found = ours.differences(real)
        self.steps += 1
        self.decisions += real.count()
        self.same += real.count() - min(len(found), real.count())
        self._count(real)
        if found:
            self.differing.append(f"{where}: {'; '.join(found)}")
            self.first_difference = self.first_difference or self.differing[0]

    def _count(self, real: Decisions) -> None:
        moved = [
            level - self._levels[job]
            for job, level in real.levels.items()
            if job in self._levels and level != self._levels[job]
        ]
        self._levels = real.levels
        self.met.update(
            preemptions=len(real.preempted),
            swaps=sum(fate is Fate.SWAP for fate in real.preempted.values()),
            put_back=len(real.put_back),
            pauses=len(real.paused),
            offloads=len(real.offloaded),
            prefetches=len(real.prefetched),
            hand_offs=sum(why is Departure.HAND_OFF for why in real.departures.values()),
            expiries=sum(why is Departure.EXPIRED for why in real.departures.values()),
            demotions=sum(by > 0 for by in moved),
            promotions=sum(by < 0 for by in moved),
            trusting=real.trusting,
        )
