from __future__ import annotations

from headway.core.ledger import LEFT_AS
from headway.core.plan import Departure
from headway.core.record import Outcome, Record
from headway.core.slo import NO_TARGETS


def test_what_never_happened_is_none_or_zero() -> None:
    record = Record(id="a", arrival_s=1.0, prompt_tokens=3, outcome=Outcome.SHED)
    assert (record.first_scheduled_s, record.first_token_s, record.finished_s) == (None, None, None)
    assert (record.output_tokens, record.preemptions, record.recomputed_tokens) == (0, 0, 0)
    assert record.slo is NO_TARGETS


def test_every_departure_is_recorded_under_its_own_word() -> None:
    assert set(LEFT_AS) == set(Departure)
    assert all(departure.value == outcome.value for departure, outcome in LEFT_AS.items())
