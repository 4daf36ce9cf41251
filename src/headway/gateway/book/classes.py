"""Classes of requests, by targets and tenant, with their counts; the number of classes is bounded."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from headway.core.slo import NO_TARGETS, Slo

BOUNDS_S = (*(round(factor * 10.0**power, 6) for power in range(-3, 2) for factor in (1, 2, 5)), 100.0)
"""1, 2, 5, 10 ms ... 50, 100 s; longer times have a bucket of their own."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, each up to and including its bound, and the sum. O(log buckets) a value."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def add(self, value_s: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, value_s)] += 1
        self.sum_s += value_s

    @property
    def count(self) -> int:
        """Durations counted so far."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """(bound as text, count at or below it), the last bound being +Inf."""
        bounds = (*map(str, BOUNDS_S), "+Inf")
        return [(bound, float(total)) for bound, total in zip(bounds, accumulate(self.counts), strict=True)]


class ClassKey(NamedTuple):
    """Requests with equal targets from one tenant."""

    slo: str
    tenant: str


@dataclass(slots=True)
class RequestCounts:
    """Running counts; each ended request is in exactly one of the counts besides `offered`.

    `met` are the finished ones within all of their targets; `rejected` those that no instance could have served (bad
    requests).
    """

    offered: int = 0
    finished: int = 0
    met: int = 0
    expired: int = 0
    shed: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0

    @property
    def ended(self) -> int:
        """Requests that have ended."""
        return self.finished + self.expired + self.shed + self.failed + self.cancelled + self.rejected

    @property
    def goodput(self) -> float | None:
        """Share of the ended requests that met their targets, without cancelled and rejected ones."""
        judged = self.finished + self.expired + self.shed + self.failed
        return self.met / judged if judged else None


@dataclass(slots=True, eq=False)
class ClassAccount:
    """Counts and latencies of one class: tokens sent to clients, latencies of finished requests.

    `folded` is the part of `totals` that other classes had counted before they were merged into this one.
    """

    totals: RequestCounts = field(default_factory=RequestCounts)
    folded: RequestCounts = field(default_factory=RequestCounts)
    output_tokens: int = 0
    ttft: Histogram = field(default_factory=Histogram)
    tbt: Histogram = field(default_factory=Histogram)

    def add(self, other: ClassAccount) -> None:
        """Add the counts of another class."""
        self.totals = add_counts((self.totals, other.totals))
        self.folded = add_counts((self.folded, other.totals))
        self.output_tokens += other.output_tokens
        for mine, theirs in ((self.ttft, other.ttft), (self.tbt, other.tbt)):
            mine.counts = [sum(both) for both in zip(mine.counts, theirs.counts, strict=True)]
            mine.sum_s += theirs.sum_s


_NO_TARGETS_LABEL = "none"


def slo_label(slo: Slo) -> str:
    """Targets as a label: `ttft=1s tbt=0.1s`; `none` without any."""
    if slo is NO_TARGETS or not slo:
        return _NO_TARGETS_LABEL
    named = (("ttft", slo.ttft_s), ("tbt", slo.tbt_s), ("deadline", slo.deadline_s))
    return " ".join(f"{name}={value:g}s" for name, value in named if value is not None)


def add_counts(parts: Iterable[RequestCounts]) -> RequestCounts:
    """The sum of several counts."""
    names = RequestCounts.__slots__
    counts = [[getattr(part, name) for name in names] for part in parts]
    return RequestCounts(*map(sum, zip(*counts, strict=True)))


MAX_CLASSES, MAX_CLASSES_OF_A_TENANT = 200, 20
"""Most pairs of targets and tenant, in all and of a named tenant, which may send its remaining time as a target. A
new class evicts the idle class that was seen longest ago; its counts go to the class of others, of its tenant or of
all.
"""
OTHER = "other"
BATCH = "batch"
"""Replaces the targets of requests of batches, each of which has the rest of the window as its deadline."""
_ALL_OTHERS = ClassKey(OTHER, OTHER)


class Classes(dict[ClassKey, ClassAccount]):
    """The classes, those seen last at the end. Bounded by MAX_CLASSES and busy classes."""

    def __init__(self) -> None:
        super().__init__()
        self._of_tenant: dict[str, dict[ClassKey, None]] = {}

    def offered(self, label: str, tenant: str) -> tuple[ClassKey, ClassAccount]:
        """Count a new request; return its class and account."""
        key = self._key(label, tenant)
        account = self._seen(key)
        account.totals.offered += 1
        return key, account

    def _key(self, label: str, tenant: str) -> ClassKey:
        """Find or make room for a class; if all are busy, return a broader one."""
        key, others = ClassKey(label, tenant), ClassKey(OTHER, tenant)
        if key in self:
            return key
        theirs = self._of_tenant.get(tenant, {}) if tenant else {}
        if len(theirs) >= MAX_CLASSES_OF_A_TENANT and not self._fold(theirs, others):
            return others
        if len(self) >= MAX_CLASSES and not self._fold(self, _ALL_OTHERS):
            return others if others in self else _ALL_OTHERS
        return key

    def _seen(self, key: ClassKey) -> ClassAccount:
        """The account of a class, which now counts as seen last."""
        account = self.pop(key, None) or ClassAccount()
        self[key] = account
        theirs = self._of_tenant.setdefault(key.tenant, {})
        theirs.pop(key, None)
        theirs[key] = None
        return account

    def _fold(self, keys: Iterable[ClassKey], into: ClassKey) -> bool:
        """Merge the class that was seen longest ago, and has no live request, into another; False if there is none."""
        for key in keys:
            account = self[key]
            if key in (into, _ALL_OTHERS) or account.totals.offered > account.totals.ended:
                continue
            del self[key], self._of_tenant[key.tenant][key]
            if not self._of_tenant[key.tenant]:
                del self._of_tenant[key.tenant]
            self._seen(into).add(account)
            return True
        return False
