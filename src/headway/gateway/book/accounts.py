"""What became of every request: who waits where, who was in time, who was refused and why."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import chain, islice

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.gateway.book.account_rows import (
    ClassAccount,
    ClassKey,
    Entry,
    InstanceAccount,
    Prefill,
    RefusalNote,
    Totals,
    add_totals,
    slo_label,
)

__all__ = [
    "Accounts",
    "ClassAccount",
    "ClassKey",
    "Entry",
    "InstanceAccount",
    "RefusalNote",
    "Totals",
    "slo_label",
]

MAX_CLASSES, MAX_CLASSES_OF_A_TENANT = 200, 20
"""So many pairs of targets and tenant are told apart, in all and of a named tenant, which may send what is left of its
time as a target; of what comes after them tenants, up to as many again."""

KEPT_REFUSALS = 50
KEPT_ENDED = 500
"""Ended requests that are still known by their ids."""
OTHER = "other"


class Accounts:
    """The gateway's book: pure, told of times. Each offered request is ended exactly once.

    `live` are those that have not ended, `recent` the last that have. Everything is bounded: by the live requests,
    MAX_CLASSES, the instances there ever were, KEPT_REFUSALS and KEPT_ENDED.
    """

    def __init__(self) -> None:
        self.live: dict[Entry, None] = {}
        self.recent: deque[Entry] = deque(maxlen=KEPT_ENDED)
        self.classes: dict[ClassKey, ClassAccount] = {}
        self.instances: dict[str, InstanceAccount] = {}
        self.moves: Counter[tuple[str, str]] = Counter()
        self.refusals: deque[RefusalNote] = deque(maxlen=KEPT_REFUSALS)
        self.refused: Counter[tuple[int, str]] = Counter()
        self.classes_left_out = 0
        self.resumed = 0
        self.retried = 0
        self.prefills: Counter[Prefill] = Counter()
        self._classes_of: Counter[str] = Counter()
        self._left_out: set[ClassKey] = set()

    # ---- one request ----------------------------------------------------------------------------------------------

    def offer(self, request_id: str, slo: Slo, tenant: str, now_s: float) -> Entry:
        """A request has come; it waits at the door."""
        key = self._key(slo, tenant)
        account = self.classes.get(key)
        if account is None:
            account = self.classes[key] = ClassAccount()
            self._classes_of[tenant] += 1
        account.totals.offered += 1
        entry = Entry(request_id, slo, tenant, key, account, now_s)
        self.live[entry] = None
        return entry

    def place(self, entry: Entry, instance: str) -> None:
        """It was sent to an instance: its first, or another one after the last."""
        self._leave(entry)
        entry.instance = instance
        entry.places.append(instance)
        there = self.at(instance)
        there.in_flight += 1
        there.waiting += entry.first_s is None

    def prefill_ended(self, entry: Entry, prefill: Prefill, now_s: float) -> None:
        """Where its prompt was computed; told twice (APART, then FAILED) if its KV did not reach a decode instance."""
        self.prefills[prefill] += 1
        entry.prefill = prefill
        entry.prefilled_s = now_s if prefill is Prefill.APART else None
        if prefill is Prefill.APART:
            self.at(entry.instance).recent_ttfts_s.append(now_s - entry.arrival_s)

    def hand_off(self, entry: Entry, target: str) -> None:
        """Its instance gave it up unstarted; `target` gets it next, the same one again if no other takes it.

        `entry.moves` counts both, as they are limited together; `moves` counts those that went elsewhere.
        """
        entry.moves += 1
        if target != entry.instance:
            self.moves[entry.instance, target] += 1

    def retry(self, entry: Entry) -> None:
        """Its instance broke before anything had come; it is asked for again, elsewhere if possible."""
        self.retried += 1

    def resume(self, entry: Entry) -> None:
        """Its instance broke in the middle of its answer, which goes on elsewhere."""
        entry.resumes += 1
        self.resumed += 1

    def first_token(self, entry: Entry, now_s: float) -> None:
        """Its first token has come: it no longer waits. Later calls change nothing."""
        if entry.first_s is None:
            entry.first_s = entry.last_s = now_s
            if entry.instance:
                there = self.at(entry.instance)
                there.waiting -= 1
                there.recent_ttfts_s.append(now_s - entry.arrival_s)

    def progress(self, entry: Entry, tokens: int, now_s: float) -> None:
        """So many more of its tokens went to the client."""
        entry.tokens += tokens
        entry.last_s = now_s
        entry.account.output_tokens += tokens

    def end(self, entry: Entry, outcome: Outcome, now_s: float, *, rejected: bool = False) -> None:
        """Its one end. `rejected`: nothing would have served it. Raises ValueError for one that has ended."""
        if entry.outcome is not None:
            raise ValueError(f"request {entry.id!r} has ended already ({entry.outcome}); accepted: one end")
        if outcome is Outcome.HANDED_OFF:
            raise ValueError("a hand-off is a move and no end; accepted: one of the other outcomes")
        entry.outcome, entry.rejected, entry.ended_s = outcome, rejected, now_s
        self.recent.append(entry)
        del self.live[entry]
        self._leave(entry)
        totals = entry.account.totals
        if rejected:
            totals.rejected += 1
        else:
            setattr(totals, outcome.value, getattr(totals, outcome.value) + 1)
        if outcome is Outcome.FINISHED and not rejected:
            self._judge(entry, now_s)

    def refuse(self, note: RefusalNote) -> None:
        """A request, offered or not even that, was answered with an error of the gateway's own."""
        self.refusals.append(note)
        self.refused[note.status, note.code] += 1

    # ---- all of them ----------------------------------------------------------------------------------------------

    @property
    def totals(self) -> Totals:
        """Counts over all classes. O(classes)."""
        return add_totals(account.totals for account in self.classes.values())

    @property
    def output_tokens(self) -> int:
        """Tokens that clients were sent so far. O(classes)."""
        return sum(account.output_tokens for account in self.classes.values())

    @property
    def waiting_at_door(self) -> list[Entry]:
        """Live requests that no instance has, oldest first. O(live)."""
        return [entry for entry in self.live if not entry.instance]

    def at(self, instance: str) -> InstanceAccount:
        """The account of an instance; a fresh one for a new name."""
        account = self.instances.get(instance)
        if account is None:
            account = self.instances[instance] = InstanceAccount()
        return account

    def find(self, request_id: str, tenant: str = "") -> Entry | None:
        """The newest request of that id, live or among the last that ended; clients may use one twice. O(live).

        With a tenant, no request of another one.
        """
        newest_first = chain(reversed(self.live), self.newest_ended(tenant))
        found = (entry for entry in newest_first if entry.id == request_id)
        return next((entry for entry in found if tenant in ("", entry.tenant)), None)

    def newest_ended(self, tenant: str = "") -> Iterator[Entry]:
        """The last requests that ended, newest first; with a tenant, its own alone."""
        return (entry for entry in reversed(self.recent) if tenant in ("", entry.tenant))

    def slacks(self, now_s: float, limit: int | None = None) -> list[float | None]:
        """Share of its TTFT target that each waiting request has left (negative: late; None: no target). O(live)."""
        waiting = (entry for entry in self.live if entry.first_s is None)
        return [_slack(entry, now_s) for entry in islice(waiting, limit)]

    def in_time_so_far(self, now_s: float) -> int:
        """Live requests that have missed no target that can be judged yet. O(live)."""
        return sum(_still_in_time(entry, now_s) for entry in self.live)

    def check(self) -> None:
        """Raises AssertionError unless every request is in exactly one place. O(live + instances)."""
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

    def _key(self, slo: Slo, tenant: str) -> ClassKey:
        key = ClassKey(slo_label(slo), tenant)
        most = MAX_CLASSES_OF_A_TENANT if tenant else MAX_CLASSES
        if key in self.classes or (len(self.classes) < MAX_CLASSES and self._classes_of[tenant] < most):
            return key
        if key not in self._left_out and len(self._left_out) < MAX_CLASSES:
            self._left_out.add(key)
            self.classes_left_out += 1
        any_targets = ClassKey(OTHER, tenant)
        known = any_targets in self.classes or len(self.classes) < 2 * MAX_CLASSES
        return any_targets if known else ClassKey(OTHER, OTHER)


def _slack(entry: Entry, now_s: float) -> float | None:
    if entry.slo.ttft_s is None:
        return None
    return 1.0 - (now_s - entry.arrival_s) / entry.slo.ttft_s


def _still_in_time(entry: Entry, now_s: float) -> bool:
    if entry.first_s is not None:
        return entry.within_targets(now_s)
    waited_s, slo = now_s - entry.arrival_s, entry.slo
    return all(target is None or waited_s <= target for target in (slo.ttft_s, slo.deadline_s))
