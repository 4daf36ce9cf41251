from __future__ import annotations

from dataclasses import replace

from bench.gain.tenants import CALM, FLOOD, TenantCell, cells, markdown, trace_of
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


def test_every_run_is_made_once() -> None:
    made = cells(2.0, TARGETS)
    assert len(made) == len(set(made)) == 60
    assert {cell.name for cell in made} == {"vllm", "fastserve", "headway", "headway, tenants not named"}


def test_the_table_has_a_column_a_system() -> None:
    tenants = {
        CALM: {"mean_jct_s": 4.0, "goodput": 0.5, "slowdown": 1.25},
        FLOOD: {"mean_jct_s": 6.0, "goodput": 1.0},
    }
    table = markdown({"cells": {"none, 1.5": {"vllm": tenants}, "two, 1.5": {"vllm": tenants}}})
    assert table.splitlines()[0] == "| clients, load | `vllm` |"
    assert table.splitlines()[2:] == [
        "| none, 1.5 | 4 (1.2 x) / 6 s |",
        "| two, 1.5 | 4 (1.2 x) / 6 s, 0.50 / 1.00 |",
    ]
