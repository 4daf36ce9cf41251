"""Accounts for every request: where each waits, whether it was in time, which were refused and why."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, islice

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.gateway.book.classes import (
    BATCH,
    ClassAccount,
    Classes,
    ClassKey,
    RequestCounts,
    add_counts,
    slo_label,
)
from headway.statistics import rank

_RECENT_TIMES = 512


class Prefill(StrEnum):
    """Where the prompt of a request was computed, if prefill and decode are separate."""

    APART = "apart"
    """At a prefill instance."""
    FAILED = "failed"
    """At the decode instance, since the prefill instance or the transfer of the KV failed."""
    NONE = "none"
    """At the decode instance: the request has no prefill stage, or no prefill instance is ready for it."""


@dataclass(slots=True)
class InstanceAccount:
    """An instance's requests: `waiting` of the `in_flight` have no token yet.

    `recent_ttfts_s` are times from arrival to the first token; at a prefill instance, to the end of the prompt.
    `recent_tbts_s` are mean times between tokens, each of one finished answer.
    """

    in_flight: int = 0
    waiting: int = 0
    recent_ttfts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TIMES))
    recent_tbts_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TIMES))


def recent_rank(times_s: Collection[float], share: float) -> float | None:
    """The smallest recent time that this share of them does not exceed; None if there is none."""
    return rank(times_s, share) if times_s else None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was not served: when (by the accounts' clock; on the page since 1970), its status, and why."""

    at_s: float
    status: int
    code: str
    reason: str
    slo: str
    tenant: str


@dataclass(frozen=True, slots=True)
class BatchLine:
    """The line of a batch that a request comes from: its number, its own id, and when the batch's window closes
    (since 1970).
    """

    batch: str
    line: int
    custom_id: str
    expires_at: int


@dataclass(slots=True, eq=False)
class Entry:
    """One request that was offered. Times are seconds of the caller's clock.

    `tenant` is the name that the request or its API key gave; its class in `key` may be a broader one. `instance` is
    where it is, empty while it waits in the admission queue; `places` are all instances that it was sent to, in order.
    `program` is the agent program to which it belongs, empty if unknown. `tokens` counts output tokens, or events if
    the instance reports no tokens. `prefill` is None if prefill and decode are not separate; `prefilled_s` is when a
    prefill instance had computed the prompt. `batch` is None unless the request belongs to a batch.
    """

    id: str
    slo: Slo
    tenant: str
    key: ClassKey
    account: ClassAccount
    arrival_s: float
    batch: BatchLine | None = None
    program: str = ""
    instance: str = ""
    first_s: float | None = None
    last_s: float | None = None
    prefill: Prefill | None = None
    prefilled_s: float | None = None
    tokens: int = 0
    moves: int = 0
    resumes: int = 0
    outcome: Outcome | None = None
    rejected: bool = False
    met: bool = False
    places: list[str] = field(default_factory=list)
    ended_s: float | None = None

    @property
    def outcome_name(self) -> str:
        """The outcome as a word: `live` before the end, `rejected` if no instance would have served it."""
        return "rejected" if self.rejected else str(self.outcome or "live")

    @property
    def ttft_s(self) -> float | None:
        """Arrival to first token, as the client saw it."""
        return None if self.first_s is None else self.first_s - self.arrival_s

    @property
    def prefill_s(self) -> float | None:
        """Arrival to the prompt's end at its prefill instance."""
        return None if self.prefilled_s is None else self.prefilled_s - self.arrival_s

    @property
    def tbt_s(self) -> float | None:
        """Mean time per token after the first; None with fewer than two, and for an answer in one piece."""
        if self.first_s is None or self.last_s is None or self.tokens < 2 or self.last_s <= self.first_s:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)

    def within_targets(self, end_s: float) -> bool:
        """Whether an answer that is complete at `end_s` met all of its targets.

        Judged as in `results.summarize`; an answer in one piece has no time between tokens.
        """
        ttft_s, tbt_s, slo = self.ttft_s, self.tbt_s, self.slo
        return (
            (slo.ttft_s is None or (ttft_s is not None and ttft_s <= slo.ttft_s))
            and (slo.tbt_s is None or tbt_s is None or tbt_s <= slo.tbt_s)
            and (slo.deadline_s is None or end_s - self.arrival_s <= slo.deadline_s)
        )


KEPT_REFUSALS = 50
KEPT_ENDED = 500
"""Ended requests that are still known by their ids."""


class Accounts:
    """The gateway's accounts: pure, with times passed in. Each offered request ends exactly once.

    `live` are the requests that have not ended, `recent` the last that have, `recent_of_batches` those of batches.
    `judged` interactive requests had targets and have ended, and `missed` of them missed one. Everything is bounded: by
    the live requests, MAX_CLASSES, the instances there ever were, KEPT_REFUSALS and KEPT_ENDED.
    """

    def __init__(self) -> None:
        self.live: dict[Entry, None] = {}
        self.recent: deque[Entry] = deque(maxlen=KEPT_ENDED)
        self.recent_of_batches: deque[Entry] = deque(maxlen=KEPT_ENDED)
        self.judged = self.missed = 0
        self.classes = Classes()
        self.instances: dict[str, InstanceAccount] = {}
        self.moves: Counter[tuple[str, str]] = Counter()
        self.refusals: deque[Refusal] = deque(maxlen=KEPT_REFUSALS)
        self.refused: Counter[tuple[int, str]] = Counter()
        self.resumed = 0
        self.retried = 0
        self.prefills: Counter[Prefill] = Counter()

    # ---- one request ----------------------------------------------------------------------------------------------

    def offer(
        self, request_id: str, slo: Slo, tenant: str, now_s: float, batch: BatchLine | None = None
    ) -> Entry:
        """A request arrived; it waits in the admission queue."""
        key, account = self.classes.offered(slo_label(slo) if batch is None else BATCH, tenant)
        entry = Entry(request_id, slo, tenant, key, account, now_s, batch)
        self.live[entry] = None
        return entry

    def place(self, entry: Entry, instance: str) -> None:
        """A request was sent to an instance: its first, or a later one."""
        self._leave(entry)
        entry.instance = instance
        entry.places.append(instance)
        there = self.at(instance)
        there.in_flight += 1
        there.waiting += entry.first_s is None

    def prefill_ended(self, entry: Entry, prefill: Prefill, now_s: float) -> None:
        """Note where a prompt was computed; called twice (APART, then FAILED) if its KV did not reach a decode
        instance.
        """
        self.prefills[prefill] += 1
        entry.prefill = prefill
        entry.prefilled_s = now_s if prefill is Prefill.APART else None
        if prefill is Prefill.APART:
            self.at(entry.instance).recent_ttfts_s.append(now_s - entry.arrival_s)

    def hand_off(self, entry: Entry, target: str) -> None:
        """An instance gave a request up unstarted; `target` gets it next, which is the same instance if no other takes
        it.

        `entry.moves` counts both cases, as they share a limit; `moves` counts real moves only.
        """
        entry.moves += 1
        if target != entry.instance:
            self.moves[entry.instance, target] += 1

    def retry(self, entry: Entry) -> None:
        """An instance broke before the answer began; the request is sent again, elsewhere if possible."""
        self.retried += 1

    def resume(self, entry: Entry) -> None:
        """An instance broke in the middle of an answer, which continues elsewhere."""
        entry.resumes += 1
        self.resumed += 1

    def first_token(self, entry: Entry, now_s: float) -> None:
        """A request's first token arrived, so it no longer waits. Later calls change nothing."""
        if entry.first_s is None:
            entry.first_s = entry.last_s = now_s
            if entry.instance:
                there = self.at(entry.instance)
                there.waiting -= 1
                there.recent_ttfts_s.append(now_s - entry.arrival_s)

    def progress(self, entry: Entry, tokens: int, now_s: float) -> None:
        """More tokens of a request went to the client."""
        entry.tokens += tokens
        entry.last_s = now_s
        entry.account.output_tokens += tokens

    def end(self, entry: Entry, outcome: Outcome, now_s: float, *, rejected: bool = False) -> None:
        """Enter a request's only end. `rejected`: no instance would have served it. Raises ValueError if it has
        ended.
        """
        if entry.outcome is not None:
            raise ValueError(f"request {entry.id!r} has ended already ({entry.outcome}); accepted: one end")
        if outcome is Outcome.HANDED_OFF:
            raise ValueError("a hand-off is a move and no end; accepted: one of the other outcomes")
        entry.outcome, entry.rejected, entry.ended_s = outcome, rejected, now_s
        (self.recent if entry.batch is None else self.recent_of_batches).append(entry)
        del self.live[entry]
        self._leave(entry)
        totals = entry.account.totals
        name = "rejected" if rejected else outcome.value
        setattr(totals, name, getattr(totals, name) + 1)
        if outcome is Outcome.FINISHED and not rejected:
            self._judge(entry, now_s)
        if entry.slo and entry.batch is None and not rejected and outcome is not Outcome.CANCELLED:
            self.judged += 1
            self.missed += not entry.met

    def refuse(self, note: Refusal) -> None:
        """The gateway answered a request, offered or not, with an error of its own."""
        self.refusals.append(note)
        self.refused[note.status, note.code] += 1

    # ---- all of them ----------------------------------------------------------------------------------------------

    @property
    def totals(self) -> RequestCounts:
        """Counts over all classes. O(classes)."""
        return add_counts(account.totals for account in self.classes.values())

    @property
    def own_totals(self) -> RequestCounts:
        """Counts over all classes except those of batches. O(classes)."""
        return add_counts(account.totals for key, account in self.classes.items() if key.slo != BATCH)

    @property
    def output_tokens(self) -> int:
        """Tokens sent to clients so far. O(classes)."""
        return sum(account.output_tokens for account in self.classes.values())

    @property
    def waiting_at_door(self) -> list[Entry]:
        """Live requests that are at no instance, oldest first. O(live)."""
        return [entry for entry in self.live if not entry.instance]

    def at(self, instance: str) -> InstanceAccount:
        """The account of an instance; a new one for a new name."""
        found = self.instances.get(instance)
        if found is None:
            found = self.instances[instance] = InstanceAccount()
        return found

    def find(self, request_id: str, tenant: str = "") -> Entry | None:
        """The newest request with this id, live or among the last that ended; ids may repeat. O(live).

        With a tenant, only that tenant's requests.
        """
        newest_first = chain(reversed(self.live), self.newest_ended(tenant), reversed(self.recent_of_batches))
        found = (entry for entry in newest_first if entry.id == request_id)
        return next((entry for entry in found if tenant in ("", entry.tenant)), None)

    def newest_ended(self, tenant: str = "") -> Iterator[Entry]:
        """Yield the last requests that ended, except those of batches, newest first; with a tenant, only its own."""
        return (entry for entry in reversed(self.recent) if tenant in ("", entry.tenant))

    def slacks(self, now_s: float, limit: int | None = None) -> list[float | None]:
        """Share of its TTFT target that each waiting request has left (negative: late; None: no target). O(live).

        Requests of batches are left out: no client waits for them.
        """
        waiting = (entry for entry in self.live if entry.first_s is None and entry.batch is None)
        return [
            None if entry.slo.ttft_s is None else 1.0 - (now_s - entry.arrival_s) / entry.slo.ttft_s
            for entry in islice(waiting, limit)
        ]

    def in_time_so_far(self, now_s: float) -> int:
        """Live requests that have missed none of the targets that can be judged yet. O(live)."""
        return sum(_still_in_time(entry, now_s) for entry in self.live)

    def check(self) -> None:
        """Raise AssertionError unless every request is in exactly one place. O(live + instances)."""
        totals = self.totals
        assert totals.offered == totals.ended + len(self.live), "offered = ended + live"
        for name, account in self.instances.items():
            here = [entry for entry in self.live if entry.instance == name]
            assert account.in_flight == len(here), f"in flight at {name}"
            assert account.waiting == sum(entry.first_s is None for entry in here), f"waiting at {name}"

    def _leave(self, entry: Entry) -> None:
        if entry.instance:
            there = self.instances[entry.instance]
            there.in_flight -= 1
            there.waiting -= entry.first_s is None
            entry.instance = "" if entry.outcome is None else entry.instance

    def _judge(self, entry: Entry, now_s: float) -> None:
        account = entry.account
        entry.met = entry.within_targets(now_s)
        account.totals.met += entry.met
        if entry.ttft_s is not None:
            account.ttft.add(entry.ttft_s)
        if entry.tbt_s is not None:
            account.tbt.add(entry.tbt_s)
            if entry.instance:
                self.instances[entry.instance].recent_tbts_s.append(entry.tbt_s)


def _still_in_time(entry: Entry, now_s: float) -> bool:
    if entry.first_s is not None:
        return entry.within_targets(now_s)
    waited_s, slo = now_s - entry.arrival_s, entry.slo
    return all(target is None or waited_s <= target for target in (slo.ttft_s, slo.deadline_s))
