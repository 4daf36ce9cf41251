from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS, Slo
from headway.gateway.book.accounts import KEPT_REFUSALS, Accounts, BatchLine, Entry, Refusal, recent_rank
from headway.gateway.book.classes import (
    MAX_CLASSES,
    MAX_CLASSES_OF_A_TENANT,
    OTHER,
    ClassKey,
    RequestCounts,
    slo_label,
)
from headway.results import met_targets

URGENT, EASY = Slo(ttft_s=0.5, tbt_s=0.1), Slo(deadline_s=10)
ENDS = [outcome for outcome in Outcome if outcome is not Outcome.HANDED_OFF]
NAMES = ("lp-0", "lp-1", "hp-0")


class Book(RuleBasedStateMachine):
    """Applies the events of requests in any order, with deaths of instances."""

    entries: Bundle[Entry] = Bundle("entries")

    def __init__(self) -> None:
        super().__init__()
        self.accounts = Accounts()
        self.now_s = 0.0
        self.offered = self.ended = self.tokens = self.moved = 0

    @rule(
        target=entries, slo=st.sampled_from([URGENT, EASY, NO_TARGETS]), tenant=st.sampled_from(["", "blue"])
    )
    def offer(self, slo: Slo, tenant: str) -> Entry:
        self.offered += 1
        return self.accounts.offer(f"r{self.offered}", slo, tenant, self.now_s)

    @rule(step_s=st.sampled_from([0.01, 0.3, 5.0]))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s

    @rule(entry=entries, name=st.sampled_from(NAMES))
    def place(self, entry: Entry, name: str) -> None:
        """The first time, after a hand-off or a loss, or to go on with its stream."""
        if entry.instance:
            self.moved += name != entry.instance
            self.accounts.hand_off(entry, name)
        self.accounts.place(entry, name)

    @rule(entry=entries, tokens=st.integers(0, 3))
    def answer(self, entry: Entry, tokens: int) -> None:
        self.accounts.first_token(entry, self.now_s)
        self.accounts.progress(entry, tokens, self.now_s)
        self.tokens += tokens

    @rule(entry=consumes(entries), outcome=st.sampled_from(ENDS), rejected=st.booleans())
    def end(self, entry: Entry, outcome: Outcome, rejected: bool) -> None:
        self.accounts.end(entry, outcome, self.now_s, rejected=rejected)
        self.ended += 1
        with pytest.raises(ValueError, match="has ended already"):
            self.accounts.end(entry, outcome, self.now_s)

    @invariant()
    def each_request_is_in_one_place(self) -> None:
        accounts = self.accounts
        accounts.check()
        totals = accounts.totals
        assert totals.offered == self.offered
        assert totals.ended == self.ended
        assert totals.met <= totals.finished
        assert accounts.output_tokens == self.tokens
        assert sum(accounts.moves.values()) == self.moved
        assert len(accounts.live) == self.offered - self.ended
        assert accounts.in_time_so_far(self.now_s) <= len(accounts.live)
        waiting = sum(account.waiting for account in accounts.instances.values())
        placed = [entry for entry in accounts.live if entry.instance and entry.first_s is None]
        assert waiting == len(placed)
        assert len(accounts.waiting_at_door) == sum(not entry.instance for entry in accounts.live)


TestBook = Book.TestCase


def finished(slo: Slo, *token_times_s: float, end_s: float) -> Entry:
    """A request that came at second 10 and got a token at each of these times."""
    accounts = Accounts()
    entry = accounts.offer("r", slo, "", 10.0)
    accounts.place(entry, "a")
    for time_s in token_times_s:
        accounts.first_token(entry, time_s)
        accounts.progress(entry, 1, time_s)
    accounts.end(entry, Outcome.FINISHED, end_s)
    return entry


@pytest.mark.parametrize(
    ("slo", "times_s", "end_s", "met"),
    [
        # First token after 0.5 s, then 0.1 s and 0.3 s: 0.2 s a token on average.
        (Slo(ttft_s=0.5, tbt_s=0.2), (10.5, 10.625, 10.875), 10.875, True),
        (Slo(ttft_s=0.49), (10.5, 10.6), 10.6, False),
        (Slo(tbt_s=0.18), (10.5, 10.625, 10.875), 10.875, False),
        (Slo(deadline_s=1), (10.5,), 11.0, True),
        (Slo(deadline_s=1), (10.5,), 11.01, False),
        (Slo(tbt_s=0.001), (15.0,), 15.0, True),  # a single token has no time between tokens
        (NO_TARGETS, (), 99.0, True),
        (Slo(ttft_s=100), (), 11.0, False),  # never begun, as far as anybody saw
    ],
)
def test_whether_targets_were_met(slo: Slo, times_s: tuple[float, ...], end_s: float, met: bool) -> None:
    assert finished(slo, *times_s, end_s=end_s).met is met


def test_an_answer_in_one_piece_has_no_time_between_tokens() -> None:
    entry = finished(Slo(tbt_s=0.001), 15.0, 15.0, 15.0, end_s=15.0)
    assert (entry.tokens, entry.tbt_s, entry.met) == (3, None, True)
    assert entry.account.tbt.count == 0


SECONDS = st.integers(1, 64).map(lambda eighths: eighths / 8)  # exact in binary
TARGETS = st.one_of(st.none(), SECONDS)


@given(
    slo=st.builds(Slo, ttft_s=TARGETS, tbt_s=TARGETS, deadline_s=TARGETS),
    gaps_s=st.lists(SECONDS, min_size=1, max_size=5),
)
def test_targets_are_judged_as_records_are(slo: Slo, gaps_s: list[float]) -> None:
    """The live goodput and that of a report are the same."""
    times_s = [10.0 + sum(gaps_s[: place + 1]) for place in range(len(gaps_s))]
    entry = finished(slo, *times_s, end_s=times_s[-1])
    record = Record(
        id="r",
        arrival_s=10.0,
        prompt_tokens=1,
        outcome=Outcome.FINISHED,
        output_tokens=len(times_s),
        first_token_s=times_s[0],
        finished_s=times_s[-1],
        slo=slo,
    )
    assert entry.met is met_targets(record)


def test_goodput_leaves_out_whom_nobody_could_serve() -> None:
    # 3 of 4 finished in time, 1 expired, 1 shed, 1 failed; 5 cancelled and 7 rejected count for nothing.
    totals = RequestCounts(20, finished=4, met=3, expired=1, shed=1, failed=1, cancelled=5, rejected=7)
    assert totals.goodput == 3 / 7
    assert totals.ended == 19
    assert RequestCounts(cancelled=2).goodput is None


def served(accounts: Accounts, tenant: str, slo: Slo = URGENT) -> None:
    accounts.end(accounts.offer("r", slo, tenant, 0.0), Outcome.FINISHED, 1.0)


def test_the_class_that_was_seen_longest_ago_is_counted_among_the_others() -> None:
    accounts = Accounts()
    served(accounts, "first")
    for number in range(2 * MAX_CLASSES):
        served(accounts, f"t{number}")
        served(accounts, "steady")
    names = {key.tenant for key in accounts.classes}
    assert len(accounts.classes) <= MAX_CLASSES + 1
    assert {"steady", f"t{2 * MAX_CLASSES - 1}", OTHER} <= names
    assert not {"first", "t0"} & names
    assert accounts.classes[ClassKey(slo_label(URGENT), "steady")].totals.offered == 2 * MAX_CLASSES
    others = accounts.classes[ClassKey(OTHER, OTHER)]
    assert others.totals.finished == others.ttft.count + others.totals.finished == others.folded.finished
    assert accounts.totals.finished == 4 * MAX_CLASSES + 1
    accounts.check()


def test_a_class_with_a_live_request_keeps_its_name() -> None:
    accounts = Accounts()
    live = [accounts.offer("r", URGENT, f"t{number}", 0.0) for number in range(MAX_CLASSES)]
    late = accounts.offer("r", URGENT, "late", 0.0)
    assert late.key == ClassKey(OTHER, OTHER)
    assert late.tenant == "late"
    for entry in (late, *live):
        accounts.end(entry, Outcome.FINISHED, 1.0)
    accounts.check()
    assert accounts.offer("r", URGENT, "late", 0.0).key.tenant == "late"


def test_a_tenant_that_names_what_time_it_has_left_takes_no_others_classes() -> None:
    accounts = Accounts()
    for number in range(2 * MAX_CLASSES):
        served(accounts, "red", Slo(deadline_s=1 + number / 7))
    assert len(accounts.classes) == MAX_CLASSES_OF_A_TENANT + 1
    beyond = accounts.classes[ClassKey(OTHER, "red")].totals.offered
    assert beyond == 2 * MAX_CLASSES - MAX_CLASSES_OF_A_TENANT
    served(accounts, "blue")
    assert ClassKey(slo_label(URGENT), "blue") in accounts.classes


@pytest.mark.parametrize(
    ("slo", "label"),
    [
        (NO_TARGETS, "none"),
        (Slo(), "none"),
        (URGENT, "ttft=0.5s tbt=0.1s"),
        (Slo(ttft_s=2, deadline_s=30), "ttft=2s deadline=30s"),
    ],
)
def test_a_class_is_named_by_its_targets(slo: Slo, label: str) -> None:
    assert slo_label(slo) == label


def test_slack_is_the_share_of_the_target_that_is_left() -> None:
    accounts = Accounts()
    waiting = accounts.offer("a", Slo(ttft_s=4), "", 0.0)
    accounts.offer("b", EASY, "", 0.0)
    accounts.first_token(accounts.offer("c", URGENT, "", 0.0), 0.2)
    assert accounts.slacks(1.0) == [0.75, None]
    assert accounts.slacks(6.0, limit=1) == [-0.5]
    assert [accounts.in_time_so_far(now_s) for now_s in (1.0, 6.0, 11.0)] == [3, 2, 1]
    assert accounts.waiting_at_door[0] is waiting


def test_the_last_refusals_are_kept_and_all_are_counted() -> None:
    accounts = Accounts()
    for number in range(KEPT_REFUSALS + 5):
        accounts.refuse(Refusal(float(number), 429, "expired", "late", "none", ""))
    assert [note.at_s for note in accounts.refusals] == [float(n) for n in range(5, KEPT_REFUSALS + 5)]
    assert dict(accounts.refused) == {(429, "expired"): KEPT_REFUSALS + 5}


def test_recent_first_token_times_of_an_instance() -> None:
    accounts = Accounts()
    assert recent_rank(accounts.at("a").recent_ttfts_s, 0.5) is None
    for number in range(1, 101):
        entry = accounts.offer("r", NO_TARGETS, "", 0.0)
        accounts.place(entry, "a")
        accounts.first_token(entry, number / 100)
    assert recent_rank(accounts.at("a").recent_ttfts_s, 0.5) == 0.5
    assert recent_rank(accounts.at("a").recent_ttfts_s, 0.99) == 0.99
    assert recent_rank(accounts.at("a").recent_ttfts_s, 1.0) == 1.0
    assert accounts.at("a").waiting == 0


def test_a_hand_off_is_no_end() -> None:
    accounts = Accounts()
    entry = accounts.offer("r", NO_TARGETS, "", 0.0)
    with pytest.raises(ValueError, match="a move and no end"):
        accounts.end(entry, Outcome.HANDED_OFF, 1.0)


def test_histograms_hold_the_finished_ones() -> None:
    entry = finished(URGENT, 10.5, 10.6, end_s=10.6)
    assert (entry.account.ttft.count, entry.account.tbt.count) == (1, 1)
    assert entry.account.ttft.sum_s == pytest.approx(0.5)
    bounds = dict(entry.account.ttft.cumulative())
    assert (bounds["0.2"], bounds["0.5"], bounds["+Inf"]) == (0, 1, 1)


def test_requests_of_batches_are_none_that_a_client_waits_for() -> None:
    accounts = Accounts()
    slo = Slo(ttft_s=1.0, deadline_s=9.0)
    line = BatchLine("batch_1", 1, "c", 10)
    of_batch, own = accounts.offer("b", slo, "", 0.0, line), accounts.offer("a", slo, "", 0.0)
    assert of_batch.key == ClassKey("batch", "")
    assert accounts.slacks(0.5) == [0.5]
    for entry in (of_batch, own):
        accounts.end(entry, Outcome.FAILED, 1.0)
    assert (accounts.judged, accounts.missed) == (1, 1)
    assert (accounts.own_totals.failed, accounts.totals.failed) == (1, 2)
    assert [*accounts.recent] == [own]
    assert accounts.find("b") is of_batch
    accounts.check()
