from __future__ import annotations

from headway.core.ledger import LEFT_AS
from headway.core.plan import Departure


def test_every_departure_is_recorded_under_its_own_word() -> None:
    assert set(LEFT_AS) == set(Departure)
    assert all(departure.value == outcome.value for departure, outcome in LEFT_AS.items())
