from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from headway.results import Run, RunInfo, RunMeta, labelled_summaries, sections

from .examples import make, shed

MeasuredOn = Literal["real engine", "simulated"]


def run(
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
        ([run("a", "vllm", "orca")], ["vllm", "orca"]),
        ([run("a", "vllm"), run("b", "orca")], ["vllm", "orca"]),
        ([run("a", "vllm"), run("b", "vllm", "orca")], ["vllm (a)", "vllm (b)", "orca (b)"]),
        ([run("a/x", "vllm"), run("b/x", "vllm")], ["vllm (a/x)", "vllm (b/x)"]),
        (
            [run("a", "vllm", on="simulated"), run("b", "vllm", on="real engine")],
            ["vllm (simulated)", "vllm (real engine)"],
        ),
        # different policies, but one is measured and one is not: the names say so
        ([run("a", "vllm", on="simulated"), run("b", "orca")], ["vllm (simulated)", "orca (not stated)"]),
        (
            [run("a", "vllm", on="simulated"), run("b", "vllm"), run("c", "vllm")],
            ["vllm (a)", "vllm (b)", "vllm (c)"],
        ),
    ],
)
def test_every_policy_has_the_shortest_name_of_its_own(runs: list[Run], names: list[str]) -> None:
    (section,) = sections(runs)
    assert list(section.records) == list(section.comparison.summaries) == names


def test_runs_side_by_side_are_one_section_whatever_their_load() -> None:
    (section,) = sections([run("a", "vllm", load=0.5), run("b", "orca", load=0.9)])
    assert section.load is None


@pytest.mark.parametrize(
    ("runs", "judged"),
    [
        ([run("a", "vllm", "orca")], True),
        ([run("monday", "vllm"), run("tuesday", "vllm")], True),
        ([run("a", "vllm", load=0.5), run("b", "orca", load=0.9)], False),
        ([run("a", "vllm", on="simulated"), run("b", "vllm", on="real engine")], False),
        (
            [run("seed=0", "vllm"), replace(run("seed=1", "vllm"), records={"vllm": [make(arrival_s=0.5)]})],
            False,
        ),
    ],
)
def test_a_verdict_is_of_the_same_requests_measured_in_one_way(runs: list[Run], judged: bool) -> None:
    (section,) = sections(runs)
    assert bool(section.verdict) == judged


def test_a_sweep_has_a_section_per_load() -> None:
    runs = [run("s", "vllm", load=0.9), run("s", "vllm", load=0.5), run("t", "orca", load=0.9), run("u", "x")]
    found = sections(runs)
    assert [(section.load, list(section.records)) for section in found] == [
        (None, ["x"]),
        (0.5, ["vllm"]),
        (0.9, ["vllm", "orca"]),
    ]
    assert list(labelled_summaries(found)) == ["x", "vllm load=0.5", "vllm load=0.9", "orca load=0.9"]


def test_one_section_needs_no_load_in_its_names() -> None:
    assert list(labelled_summaries(sections([run("a", "vllm", load=0.5)]))) == ["vllm"]


def test_a_section_says_where_its_numbers_come_from() -> None:
    runs = [
        run("a", "vllm", on="real engine", hardware="H200"),
        run("b", "orca", on="simulated", hardware="H200"),
        run("c", "srpt", on="simulated", hardware="H200"),
        run("d", "magnus"),
    ]
    assert sections(runs)[0].measured_on == "real engine, H200; simulated, H200; not stated"


def test_summaries_hold_what_the_run_knows_and_are_compared() -> None:
    one = run("a", "vllm", info=RunInfo(scheduler_us_per_step=7.0))
    other = run("b", "orca")
    other.records["orca"] = [shed(make())]
    (section,) = sections([one, other])
    assert section.comparison.summaries["vllm"].scheduler_us_per_step == 7.0
    assert not section.comparison.comparable
