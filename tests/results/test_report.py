from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from headway.core.record import Outcome, Record
from headway.results import COLUMNS, Run, RunInfo, RunMeta, labelled_summaries, render_html, sections

from .examples import make, shed, unfinished, worked_run
from .page import Page

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert(1)</script>\"'&<img src=//evil.example>"

META: dict[str, Any] = {
    "measured_on": "simulated",
    "model": "demo",
    "trace": "bursts.csv",
    "command": "headway simulate --trace bursts.csv",
    "hardware": "H200",
    "versions": {"headway": "0.1.0", "vllm": "0.32.0"},
}


def run(
    folder: str = "out",
    load: float | None = None,
    load_name: Literal["load", "rate scale"] = "load",
    **records: list[Record],
) -> Run:
    return Run(
        folder=Path(folder),
        meta=RunMeta(**META, policies=tuple(records), load=load, load_name=load_name),
        records=records,
        infos={policy: RunInfo() for policy in records},
    )


def page_of(*runs: Run, **options: str) -> Page:
    return Page(render_html(runs, **options))


def two_policies() -> Run:
    return run(vllm=worked_run(), headway=[make()])


@cache
def page_of_two() -> Page:
    """Drawn once for all who only read it: a page takes as long as all else that is tested of it."""
    return page_of(two_policies(), title="Bursts")


@cache
def page_of_sweep() -> Page:
    """Two loads, with one policy of three at both, which finishes nothing at the higher."""
    return page_of(
        run(vllm=[make()], headway=[make()], load=0.5), run(headway=[shed(make())], orca=[make()], load=0.9)
    )


def test_the_page_shows_what_was_run_and_every_value() -> None:
    page = page_of_two()
    assert page.all("h1")
    for text in ("Bursts", "simulated, H200", "demo", "headway simulate --trace bursts.csv", "vllm 0.32.0"):
        assert text in page.text
    for column in COLUMNS.values():
        assert column.heading in page.text
        assert column.meaning in page.text
    assert "not comparable" in page.text
    assert "Latency of requests finished under all policies (1)" in page.text


def test_which_of_two_policies_did_better_stands_first() -> None:
    page = page_of(run(vllm=worked_run(), headway=worked_run()))
    said = page.text.index("In a simulation vllm and headway met about as many targets")
    assert said < page.text.index("measured on")


def test_the_load_is_told_with_the_capacity_that_it_is_a_share_of() -> None:
    found = run(vllm=[make()], headway=[make(finished_s=3.0)])
    meta = msgspec.structs.replace(found.meta, measured_on="real engine", load=0.9, capacity_rps=20.0)
    page = page_of(replace(found, meta=meta))
    assert (
        "At 0.9 of this machine's capacity (18 requests a second) headway answered sooner than vllm"
        in page.text
    )
    assert page.text.count("0.9 of this machine's capacity (18 requests a second)") == 2


def test_a_sweep_has_a_verdict_for_each_load() -> None:
    runs = [run(load=load, vllm=[make()], headway=[make(finished_s=3.0)]) for load in (0.5, 0.9)]
    page = page_of(*runs)
    for load in ("0.5", "0.9"):
        assert f"In a simulation at load {load} headway answered sooner than vllm" in page.text


def test_the_same_runs_give_the_same_bytes() -> None:
    assert render_html([two_policies()], title="Bursts") == page_of_two().source


def three_loads() -> Page:
    loads = (run(vllm=worked_run(), load=load) for load in (0.5, 0.9))
    return page_of(*loads, run("other", orca=[make()]))


@pytest.mark.parametrize("drawn", [page_of_two, three_loads], ids=["run", "sweep"])
def test_the_page_stands_alone_and_is_accessible(drawn: Callable[[], Page]) -> None:
    page = drawn()
    assert page.outside() == []
    assert page.repeated_ids() == []
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "img", "object"} == set()
    assert page.all("html") == [{"lang": "en"}]
    assert all(attrs["scope"] in ("col", "row") for attrs in page.all("th"))
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert len({svg["aria-label"] for svg in page.all("svg")}) == len(page.all("svg"))
    assert "prefers-color-scheme: dark" in page.source
    viewport = {"name": "viewport", "content": "width=device-width, initial-scale=1"}
    assert viewport in page.all("meta")
    policy = {"http-equiv": "Content-Security-Policy"}
    assert any(policy.items() <= attrs.items() for attrs in page.all("meta"))


def test_hostile_strings_are_escaped_wherever_they_stand() -> None:
    meta = RunMeta(
        measured_on="real engine",
        model=HOSTILE,
        trace=HOSTILE,
        command=HOSTILE,
        hardware=HOSTILE,
        versions={HOSTILE: HOSTILE},
    )
    hostile = Run(
        Path(HOSTILE), meta, {HOSTILE: worked_run(), "b": [make()]}, {HOSTILE: RunInfo(), "b": RunInfo()}
    )
    page = page_of(hostile, title=HOSTILE)
    assert page.all("script") == page.all("img") == []
    assert page.outside() == []
    assert page.text.count(HOSTILE) > 10


@pytest.mark.parametrize(
    "records",
    [
        [make()],
        [shed(make())],
        [unfinished("a", Outcome.HANDED_OFF, 0.0, None)],
        [make(first_scheduled_s=None, first_token_s=None, output_tokens=0)],
    ],
    ids=["one request", "none finished", "only a move", "hardly measured"],
)
def test_any_run_renders(records: list[Record]) -> None:
    assert page_of(run(vllm=records, load=0.5), run(load=0.9)).all("table")


def test_a_sweep_is_drawn_against_load_with_its_doubts() -> None:
    page = page_of_sweep()
    assert "JCT mean against load" in page.text
    assert "goodput against load" not in page.text  # no request had a target
    assert "At load 0.9 the policies finished different requests" in page.text
    assert "<dt>load</dt><dd>0.5, 0.9</dd>" in page.source
    assert len(page.all("details")) == 3  # two loads and the glossary


def test_a_sweep_over_rate_scales_says_so_wherever_it_names_one() -> None:
    runs = [
        run(load=scale, load_name="rate scale", vllm=[make()], headway=[make(finished_s=3.0)])
        for scale in (0.5, 2)
    ]
    page = page_of(*runs)
    assert "In a simulation at rate scale 2 headway answered sooner than vllm" in page.text
    assert "Against rate scale" in page.text
    assert "JCT mean against rate scale" in page.text
    assert "<dt>rate scale</dt><dd>0.5, 2</dd>" in page.source
    assert "Rate scale 0.5" in page.text
    assert "Queue length, rate scale 0.5" in page.text
    assert not re.search(r"\bload\b", page.text.partition("What the columns mean")[0])


def test_loads_and_rate_scales_side_by_side_stay_apart() -> None:
    loads = [run(load=load, vllm=[make()]) for load in (0.5, 2)]
    scales = [run("other", load=scale, load_name="rate scale", orca=[make()]) for scale in (0.5, 2)]
    assert [(part.load_name, part.load, list(part.records)) for part in sections([*scales, *loads])] == [
        ("load", 0.5, ["vllm"]),
        ("load", 2, ["vllm"]),
        ("rate scale", 0.5, ["orca"]),
        ("rate scale", 2, ["orca"]),
    ]
    page = page_of(*loads, *scales)
    assert "JCT mean against load" in page.text
    assert "JCT mean against rate scale" in page.text


def test_a_policy_keeps_its_colour_at_every_load() -> None:
    page = page_of_sweep()
    chips = {attrs["style"] for attrs in page.all("span") if attrs.get("class") == "chip"}
    assert chips == {"background: #0072B2", "background: #E69F00", "background: #009E73"}
    without_vllm = page.source[page.source.index("Load 0.9") :]
    assert "#0072B2" not in without_vllm
    assert "#E69F00" in without_vllm


def test_the_best_value_is_marked_by_more_than_colour() -> None:
    page = page_of(run(vllm=[make()], headway=[make(finished_s=5.0)]))
    assert {"title": "best"} in page.all("strong")
    assert any(attrs.get("aria-label") == "lower is better" for attrs in page.all("span"))


MeasuredOn = Literal["real engine", "simulated"]


def run_of(
    folder: str,
    *policies: str,
    load: float | None = None,
    on: MeasuredOn | None = None,
    hardware: str = "",
    info: RunInfo | None = None,
) -> Run:
    return Run(
        folder=Path(folder),
        meta=RunMeta(policies=policies, load=load, measured_on=on, hardware=hardware),
        records={policy: [make()] for policy in policies},
        infos={policy: info or RunInfo() for policy in policies},
    )


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([run_of("a", "vllm", "orca")], ["vllm", "orca"]),
        ([run_of("a", "vllm"), run_of("b", "orca")], ["vllm", "orca"]),
        ([run_of("a", "vllm"), run_of("b", "vllm", "orca")], ["vllm (a)", "vllm (b)", "orca (b)"]),
        ([run_of("a/x", "vllm"), run_of("b/x", "vllm")], ["vllm (a/x)", "vllm (b/x)"]),
        (
            [run_of("a", "vllm", on="simulated"), run_of("b", "vllm", on="real engine")],
            ["vllm (simulated)", "vllm (real engine)"],
        ),
        # different policies, but one is measured and one is not: the names say so
        (
            [run_of("a", "vllm", on="simulated"), run_of("b", "orca")],
            ["vllm (simulated)", "orca (not stated)"],
        ),
        (
            [run_of("a", "vllm", on="simulated"), run_of("b", "vllm"), run_of("c", "vllm")],
            ["vllm (a)", "vllm (b)", "vllm (c)"],
        ),
    ],
)
def test_every_policy_has_the_shortest_name_of_its_own(runs: list[Run], names: list[str]) -> None:
    (section,) = sections(runs)
    assert list(section.records) == list(section.comparison.summaries) == names


def test_runs_side_by_side_are_one_section_whatever_their_load() -> None:
    (section,) = sections([run_of("a", "vllm", load=0.5), run_of("b", "orca", load=0.9)])
    assert section.load is None


@pytest.mark.parametrize(
    ("runs", "judged"),
    [
        ([run_of("a", "vllm", "orca")], True),
        ([run_of("monday", "vllm"), run_of("tuesday", "vllm")], True),
        ([run_of("a", "vllm", load=0.5), run_of("b", "orca", load=0.9)], False),
        ([run_of("a", "vllm", on="simulated"), run_of("b", "vllm", on="real engine")], False),
        (
            [
                run_of("seed=0", "vllm"),
                replace(run_of("seed=1", "vllm"), records={"vllm": [make(arrival_s=0.5)]}),
            ],
            False,
        ),
    ],
)
def test_a_verdict_is_of_the_same_requests_measured_in_one_way(runs: list[Run], judged: bool) -> None:
    (section,) = sections(runs)
    assert bool(section.verdict) == judged


def test_a_sweep_has_a_section_per_load() -> None:
    runs = [
        run_of("s", "vllm", load=0.9),
        run_of("s", "vllm", load=0.5),
        run_of("t", "orca", load=0.9),
        run_of("u", "x"),
    ]
    found = sections(runs)
    assert [(section.load, list(section.records)) for section in found] == [
        (None, ["x"]),
        (0.5, ["vllm"]),
        (0.9, ["vllm", "orca"]),
    ]
    assert list(labelled_summaries(found)) == ["x", "vllm load=0.5", "vllm load=0.9", "orca load=0.9"]


def test_a_section_says_where_its_numbers_come_from() -> None:
    runs = [
        run_of("a", "vllm", on="real engine", hardware="H200"),
        run_of("b", "orca", on="simulated", hardware="H200"),
        run_of("c", "srpt", on="simulated", hardware="H200"),
        run_of("d", "magnus"),
    ]
    assert sections(runs)[0].measured_on == "real engine, H200; simulated, H200; not stated"


def test_summaries_hold_what_the_run_knows_and_are_compared() -> None:
    one = run_of("a", "vllm", info=RunInfo(scheduler_us_per_step=7.0))
    other = run_of("b", "orca")
    other.records["orca"] = [shed(make())]
    (section,) = sections([one, other])
    assert section.comparison.summaries["vllm"].scheduler_us_per_step == 7.0
    assert not section.comparison.comparable
