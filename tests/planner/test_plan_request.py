from __future__ import annotations

from itertools import permutations

import pytest

from headway.core.slo import NO_TARGETS, Slo
from headway.planner.request import Targets
from headway.traces import TraceRequest

CLASSES = [Slo(ttft_s=0.5), Slo(ttft_s=2.0, tbt_s=0.05), NO_TARGETS, Slo(ttft_s=0.5, deadline_s=9.0)]


def of(*slos: Slo) -> Targets:
    requests = [
        TraceRequest(id=str(number), arrival_s=float(number), input_tokens=1, output_tokens=1, slo=slo)
        for number, slo in enumerate(slos)
    ]
    return Targets.of(requests)


def test_targets_are_those_of_all_requests_in_whatever_order() -> None:
    found = of(*CLASSES)
    assert found.shortest == Slo(ttft_s=0.5, tbt_s=0.05, deadline_s=9.0)
    assert found.longest == Slo(ttft_s=2.0, tbt_s=0.05, deadline_s=9.0)
    assert found.alike == NO_TARGETS
    assert found.differ
    assert found.ranges() == {"ttft_s": (0.5, 2.0), "tbt_s": (0.05, 0.05), "deadline_s": (9.0, 9.0)}
    assert (
        str(found) == "first token within 0.5 to 2 s, between tokens within 0.05 s, whole answer within 9 s"
    )
    assert {of(*slos) for slos in permutations(CLASSES)} == {found}


@pytest.mark.parametrize(
    ("slos", "alike", "differ"),
    [
        ([Slo(ttft_s=1.0, tbt_s=0.05)] * 2, Slo(ttft_s=1.0, tbt_s=0.05), False),
        ([NO_TARGETS, Slo(ttft_s=1.0), NO_TARGETS], Slo(ttft_s=1.0), False),
        ([Slo(ttft_s=1.0, tbt_s=0.05), Slo(ttft_s=1.0, tbt_s=0.1)], Slo(ttft_s=1.0), True),
        ([Slo(ttft_s=1.0, tbt_s=0.05), Slo(ttft_s=1.0)], Slo(ttft_s=1.0), True),
        ([Slo(ttft_s=1.0), Slo(tbt_s=1.0)], NO_TARGETS, True),
    ],
)
def test_what_all_with_targets_ask_for_is_alike(slos: list[Slo], alike: Slo, differ: bool) -> None:
    assert (of(*slos).alike, of(*slos).differ) == (alike, differ)


def test_without_targets_there_is_nothing_to_say() -> None:
    for found in (of(), of(NO_TARGETS)):
        assert not found
        assert not found.differ
        assert str(found) == ""
        assert found.ranges() == {"ttft_s": None, "tbt_s": None, "deadline_s": None}
