from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.results import Latency, cdf_svg, queue_svg, sweep_svg, timeline_svg
from headway.results.metrics import end_s, ends, jct_s
from headway.results.plots import (
    MAX_BARS,
    MAX_POINTS,
    distribution,
    phase_spans,
    queue_lengths,
    spread,
    thin_by_peaks,
)
from headway.results.svg import PALETTE

from .examples import make, runs, shed, unfinished, worked_run
from .page import Page


def test_the_queue_of_the_worked_run() -> None:
    # arrivals at 0 1 2 3 4 5 6; starts at 1 (a), 1 (b), 6 (c); d leaves at 12, e at 9, g at 7; f fails at 5
    times_s, lengths = queue_lengths(worked_run())
    assert dict(zip(times_s.tolist(), lengths.tolist(), strict=True)) == {
        0: 1,
        1: 0,  # b arrives and starts at once, a starts
        2: 1,
        3: 2,
        4: 3,
        5: 3,  # f arrives and fails at once
        6: 3,  # c starts, g arrives
        7: 2,
        9: 1,
        12: 0,
    }


def test_a_queue_is_counted_from_the_first_arrival_and_to_the_first_token_at_worst() -> None:
    times_s, lengths = queue_lengths([make(arrival_s=0.5, first_scheduled_s=None)])
    assert (times_s.tolist(), lengths.tolist()) == ([0.0, 1.5], [1, 0])


@given(records=runs())
def test_a_queue_is_never_negative_and_ends_empty(records: list[Record]) -> None:
    times_s, lengths = queue_lengths(records)
    assert (lengths >= 0).all()
    assert (np.diff(times_s) > 0).all()
    assert len(lengths) == 0 or (lengths[-1] == 0 and times_s[0] == 0)


def test_an_unfinished_request_holds_a_distribution_down() -> None:
    # JCT 6 and 8 of three requests: 1/3 and 2/3, never 1
    ended = [make("a"), make("b", finished_s=8.0), shed(make("c"))]
    values_s, shares = distribution(ended, jct_s)
    assert values_s.tolist() == [6, 8]
    assert shares.tolist() == pytest.approx([1 / 3, 2 / 3])


def test_a_distribution_has_no_zero_and_may_be_empty() -> None:
    at_once = make(first_scheduled_s=0.0, first_token_s=0.0, finished_s=0.0)
    assert distribution([at_once], jct_s)[0].tolist() == [1e-6]
    assert len(distribution([], jct_s)[0]) == 0


@given(count=st.integers(1, 3000))
def test_a_distribution_is_thinned_but_keeps_its_ends(count: int) -> None:
    ended = [make(str(i), finished_s=2.0 + i) for i in range(count)]
    values_s, shares = distribution(ended, jct_s)
    assert len(values_s) == min(count, MAX_POINTS)
    assert (values_s[0], values_s[-1], shares[-1]) == (2, 1 + count, 1)
    assert shares == pytest.approx((values_s - 1) / count)


@given(count=st.integers(0, 500), at_most=st.integers(2, 60))
def test_a_sample_is_even(count: int, at_most: int) -> None:
    found = spread(count, at_most)
    assert len(found) == len(set(found)) == min(count, at_most)
    if count > at_most:
        assert (found[0], found[-1]) == (0, count - 1)
        assert max(np.diff(found)) - min(np.diff(found)) <= 1


@given(lengths=st.lists(st.integers(0, 50), min_size=1, max_size=2000))
def test_a_thinned_queue_keeps_its_peak_and_its_end(lengths: list[int]) -> None:
    times_s = np.arange(len(lengths), dtype=float)
    thin_s, thin = thin_by_peaks(times_s, np.array(lengths))
    assert len(thin) <= MAX_POINTS + 1
    assert max(thin) == max(lengths)
    assert (thin_s[0], thin_s[-1], thin[-1]) == (0, len(lengths) - 1, lengths[-1])


@pytest.mark.parametrize(
    ("record", "spans"),
    [
        (make(arrival_s=0.5), [(0.0, 0.5), (0.5, 1.0), (1.5, 4.0)]),
        (make(arrival_s=0.5, first_scheduled_s=None), [(0.0, 1.5), (1.5, 0.0), (1.5, 4.0)]),
        (make(arrival_s=0.5, first_token_s=None), [(0.0, 0.5), (0.5, 5.0), (5.5, 0.0)]),
        (unfinished("x", Outcome.SHED, 1.5, 3.5), [(1.0, 2.0), (3.0, 0.0), (3.0, 0.0)]),
        (unfinished("x", Outcome.FAILED, 1.5, None), [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0)]),
    ],
)
def test_phases_of_a_request(record: Record, spans: list[tuple[float, float]]) -> None:
    assert phase_spans(record, 0.5) == spans


@given(records=runs())
def test_phases_fill_the_time_from_arrival_to_end(records: list[Record]) -> None:
    for record in ends(records):
        spans = phase_spans(record, 0.0)
        assert all(length_s >= 0 for _, length_s in spans)
        assert sum(length_s for _, length_s in spans) == pytest.approx(end_s(record) - record.arrival_s)


HOSTILE = "</text><script>x('y')</script>&\"$\\f_\x07"
NAMES = ["vllm", "_hidden", "$x^2$", "日本語", HOSTILE]
LONG = "n" * 200

Draw = Callable[[dict[str, list[Record]]], str]

CHARTS: dict[str, Draw] = {
    **{latency.name: lambda records, latency=latency: cdf_svg(records, latency) for latency in Latency},  # type: ignore[misc]
    "queue": queue_svg,
    "timeline": lambda records: timeline_svg(next(iter(records)), next(iter(records.values()))),
    "sweep": lambda records: sweep_svg({p: [(0.5, 1.0), (0.9, 2.5)] for p in records}, "p99_ttft_s", "load"),
}


def words(svg: str) -> list[str]:
    """Texts drawn in a chart; fails if it is no well-formed XML."""
    root = ElementTree.fromstring(svg)
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("chart", CHARTS)
def test_the_same_input_gives_the_same_bytes(chart: str) -> None:
    records = {"vllm": worked_run(), "headway": worked_run()[:3]}
    assert CHARTS[chart](records) == CHARTS[chart](records)


@pytest.mark.parametrize("chart", ["TTFT", "queue", "timeline"])
@pytest.mark.parametrize(
    "records",
    [
        [],
        [make()],
        [shed(make())],
        [unfinished("a", Outcome.HANDED_OFF, 0.0, None)],
        [make(first_scheduled_s=0.0, first_token_s=0.0, finished_s=0.0)],
    ],
    ids=["none", "one", "none finished", "lost", "all at once"],
)
def test_any_run_can_be_drawn(chart: str, records: list[Record]) -> None:
    assert words(CHARTS[chart]({"vllm": records}))


def check_text(svg: str, names: list[str]) -> None:
    page = Page(svg)
    assert page.all("script") == []
    assert page.outside() == []
    assert all(name in page.text for name in names)


@pytest.mark.parametrize("chart", [chart for chart in CHARTS if chart != "timeline"])
def test_any_policy_name_can_be_in_a_legend(chart: str) -> None:
    svg = CHARTS[chart]({name: worked_run() for name in [*NAMES, LONG]})
    check_text(svg, [*NAMES, f"{LONG[:39]}…"])


def test_a_chart_has_a_name_for_those_who_cannot_see_it() -> None:
    svg = cdf_svg({"vllm": worked_run()}, Latency.JCT, where=", load <1>")
    root = ElementTree.fromstring(svg)
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert root.get("role") == "img"
    assert root.get("aria-label") == title.text == "Job completion time, load <1>"


def test_charts_of_one_page_share_no_id() -> None:
    records = {"vllm": worked_run(), "headway": worked_run()}
    svgs = [chart(records) for chart in CHARTS.values()]
    assert Page("".join(svgs)).repeated_ids() == []


def test_colours_follow_the_page_and_policies_keep_theirs() -> None:
    both = cdf_svg({"vllm": worked_run(), "headway": worked_run()}, Latency.TTFT)
    second = cdf_svg({"vllm": [], "headway": worked_run()}, Latency.TTFT)
    assert "currentColor" in both
    assert "#010203" not in both
    assert PALETTE[0].lower() in both
    assert PALETTE[1].lower() in both
    assert PALETTE[0].lower() not in second
    assert PALETTE[1].lower() in second
    assert "vllm" not in words(second)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("ground", ["#ffffff", "#171c22"])
@pytest.mark.parametrize("colour", PALETTE)
def test_every_colour_shows_on_light_and_dark(colour: str, ground: str) -> None:
    low, high = sorted((luminance(colour), luminance(ground)))
    assert (high + 0.05) / (low + 0.05) > 2.1


def test_a_target_is_drawn_where_all_share_it() -> None:
    one = make("a", slo=Slo(ttft_s=0.25))
    assert "target 250 ms" in words(cdf_svg({"v": [one, make("b")]}, Latency.TTFT))
    two = [one, make("b", slo=Slo(ttft_s=0.5))]
    assert not any("target" in word for word in words(cdf_svg({"v": two}, Latency.TTFT)))
    assert not any("target" in word for word in words(cdf_svg({"v": [one]}, Latency.JCT)))


def test_a_timeline_says_how_many_requests_it_shows() -> None:
    few = [make(str(i)) for i in range(MAX_BARS)]
    many = [make(str(i), arrival_s=i / 1000) for i in range(1234)]
    assert f"vllm: requests over time (all {MAX_BARS})" in words(timeline_svg("vllm", few))
    assert "vllm: requests over time (60 of 1,234, evenly sampled)" in words(timeline_svg("vllm", many))
    assert len(timeline_svg("vllm", many)) < 1.2 * len(timeline_svg("vllm", few))


def test_long_runs_make_no_longer_charts() -> None:
    def run(count: int) -> dict[str, list[Record]]:
        return {"vllm": [make(str(i), arrival_s=i / 1e4, finished_s=6 + i % 97) for i in range(count)]}

    for chart in ("JCT", "queue"):
        assert len(CHARTS[chart](run(20_000))) < 1.2 * len(CHARTS[chart](run(2_000)))


@pytest.mark.parametrize("key", ["goodput", "throughput_rps", "p99_ttft_s"])
def test_a_sweep_leaves_out_what_was_not_measured(key: str) -> None:
    svg = sweep_svg({"vllm": [(0.5, None), (0.7, 0.9), (0.9, 0.5)], "orca": [(0.5, None)]}, key, "rate scale")
    assert "rate scale" in words(svg)
    assert "not measured" in words(sweep_svg({"vllm": [(0.5, None)]}, key, "load"))


@pytest.mark.filterwarnings("error")
def test_a_sweep_shows_times_of_zero_as_the_least_there_are() -> None:
    # A server that sends its whole answer at once has no time between tokens.
    assert "1 µs" in words(sweep_svg({"vllm": [(0.5, 0.0), (0.9, 0.0)]}, "p99_tbt_s", "load"))
    shown = words(sweep_svg({"vllm": [(0.5, 0.0)], "orca": [(0.5, 0.1)]}, "p99_tbt_s", "load"))
    assert {"1 µs", "100 ms"} <= set(shown)


def test_importing_the_results_draws_on_no_drawing_library() -> None:
    program = "import sys, headway.results; print({'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, encoding="utf-8")
    assert done.stdout == "set()\n"
