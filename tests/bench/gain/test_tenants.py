from __future__ import annotations

from dataclasses import replace

from bench.gain.tenants import CALM, FLOOD, TenantCell, trace_of
from bench.streams import NONE, Targets
from headway.core.slo import Slo

TARGETS = Targets(interactive=Slo(ttft_s=1.0), patient=Slo(ttft_s=20.0))
CELL = TenantCell("headway", True, NONE, 1.5, 0, 2.0, TARGETS)


def test_the_same_requests_whoever_is_told_whose_they_are() -> None:
    named, whose = trace_of(CELL)
    unnamed, _ = trace_of(replace(CELL, named=False))
    assert [replace(request, tenant="") for request in named] == list(unnamed)
    assert {request.tenant for request in named} == {CALM, FLOOD}
    share = sum(request.tenant == CALM for request in named) / len(named)
    assert 0.1 < share < 0.2
    alone, _ = trace_of(replace(CELL, alone=True))
    assert [request.id for request in alone] == [each.id for each in named if whose[each.id] == CALM]
