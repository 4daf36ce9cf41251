"""Runs in groups: what is kept when, and what each is told of those before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headway.lab.kept_runs import FILE, Kept, run_groups


@dataclass(frozen=True)
class Run:
    name: str

    def digest(self) -> str:
        return self.name


GROUPS = [[Run(f"{group}{place}") for place in range(size)] for group, size in (("a", 4), ("b", 2), ("c", 1))]


def told(runs: Sequence[Run], results: Sequence[str]) -> str:
    """The run, and the last character of what each before it came to."""
    return runs[len(results)].name + "".join(result[1] for result in results)


def stopped(runs: Sequence[Run], results: Sequence[str]) -> str:
    """The messages as in `told`, up to the third of a group."""
    if len(results) == 2:
        raise KeyboardInterrupt
    return told(runs, results)


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_is_told_what_those_before_it_in_its_group_came_to(tmp_path: Path, jobs: int) -> None:
    kept: Kept[Run, str] = Kept(tmp_path)
    ticks: list[int] = []
    run_groups(GROUPS, kept, told, jobs=jobs, tick=lambda: ticks.append(len(kept.done)))
    assert kept.done == {
        "a0": "a0", "a1": "a10", "a2": "a201", "a3": "a3012", "b0": "b0", "b1": "b10", "c0": "c0",
    }  # fmt: skip
    assert ticks == [1, 2, 3, 4, 5, 6, 7]


def test_what_is_done_of_a_group_is_kept_when_it_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_groups(GROUPS, Kept[Run, str](tmp_path), stopped, jobs=1)
    again: Kept[Run, str] = Kept(tmp_path)
    again.load(str)
    assert list(again.done) == ["a0", "a1"]
    assert (tmp_path / FILE).read_bytes().count(b"\n") == 2
