from __future__ import annotations

from pathlib import Path

import pytest

from headway.planner.preparation import introduction
from tests.planner.plans import TARGETS, prepared, two_classes


def test_the_introduction_says_what_is_not_possible_and_why() -> None:
    found = prepared(slo=TARGETS, gpus=2)
    text = introduction(found)
    assert "planning, simulated: Qwen/Qwen3-8B on 2 x h100 (H100 SXM 80 GB: fitted to" in text
    assert (
        "the best has the most requests with first token within 0.02 s, between tokens within 0.008 s" in text
    )
    for why, count in found.space.impossible.items():
        assert f"  {count:,}: {why}" in text
    assert "no request has a target" not in text
    assert "overlap" not in text  # a generated workload is drawn anew for each sample


def test_the_introduction_says_who_goes_by_targets_that_are_not_there() -> None:
    text = introduction(prepared(policies=("vllm", "edf")))
    assert "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf" in text
    assert "the best has the least mean job completion time" in text


@pytest.mark.parametrize(("requests", "warned"), [(5000, True), (7000, False)])
def test_a_trace_too_short_for_its_windows_is_warned_of(tmp_path: Path, requests: int, warned: bool) -> None:
    """Of 600 s six windows of 200 s may have half each."""
    trace = tmp_path / "trace.csv"
    rows = "".join(f"{0.1 * number:.1f},100,20\n" for number in range(requests))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    said = "s are taken of it: they overlap" in introduction(prepared(trace=str(trace), seeds=2))
    assert said == warned


def test_the_introduction_says_that_requests_have_targets_of_their_own(tmp_path: Path) -> None:
    text = introduction(prepared(trace=two_classes(tmp_path)))
    assert (
        "the best has the most requests that meet their own targets: "
        "first token within 0.5 s, between tokens within 0.05 s" in text
    )
