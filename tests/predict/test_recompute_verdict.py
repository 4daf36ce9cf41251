from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Literal

import msgspec
import pytest

from headway.errors import ConfigError
from headway.predict.recompute.rows import BlockCopy
from headway.predict.recompute.verdict import (
    ANALYSER,
    LAW,
    MACHINE,
    ONLINE,
    RecomputeContender,
    RecomputeVerdict,
    judge,
    missing_in,
    swap_errors,
)
from headway.predict.steps.copies import TransferModel
from tests.predict.prefills import SIX, rows

PCIE = TransferModel(start_s=0.0, bytes_per_s=12e9)
SIZES = tuple(2**power for power in range(16, 25))


def copies(
    model: str, direction: Literal["to_host", "to_device"], law: TransferModel, off: float = 0.0
) -> list[BlockCopy]:
    """Copies that follow a law, every second of them `off` by a share of its time."""
    return [
        BlockCopy(
            model=model,
            direction=direction,
            num_bytes=size,
            seconds=law.seconds(size) * (1 + off * (index % 2)),
        )
        for index, size in enumerate(SIZES)
    ]


def test_the_error_is_that_of_the_sizes_nothing_was_fitted_to() -> None:
    slow = TransferModel(start_s=1e-4, bytes_per_s=1e9)
    measured = [
        *copies("a", "to_host", PCIE, off=0.25),
        *copies("b", "to_host", slow),
        *copies("a", "to_device", PCIE),
        *copies("b", "to_device", slow, off=0.25),
    ]
    found = swap_errors(measured[::-1])
    # Predicted / measured - 1 = 1 / 1.25 - 1 = -0.2 for one of two models each way.
    assert found.out == pytest.approx(0.1)
    assert found.into == pytest.approx(0.1)
    assert found.num_held_out == 4 * 4


@pytest.mark.parametrize("ways", [("to_host",), ("to_device",), ()])
def test_both_ways_are_needed(ways: tuple[Literal["to_host", "to_device"], ...]) -> None:
    measured = [copy for way in ways for copy in copies("a", way, PCIE)]
    with pytest.raises(ConfigError, match="too few to judge; at least 4 sizes each way"):
        swap_errors(measured)


def test_three_sizes_are_too_few() -> None:
    few = copies("a", "to_host", PCIE)[:3] + copies("a", "to_device", PCIE)[:3]
    with pytest.raises(ConfigError, match="6 copies are too few"):
        swap_errors(few)


@cache
def verdict() -> RecomputeVerdict:
    return judge(rows(repetitions=3), lambda share, what: None, degrees=(1, 2))


def contender(name: str, found: RecomputeVerdict | None = None) -> RecomputeContender:
    return next(one for one in (found or verdict()).contenders if one.name == name)


def test_all_are_judged_and_nobody_beats_the_machine_itself() -> None:
    assert [one.name for one in verdict().contenders] == [ANALYSER, LAW, ONLINE, MACHINE]
    best = contender(MACHINE)
    assert best.held_out is not None
    assert best.held_out < 0.02
    for name in (ANALYSER, LAW, ONLINE):
        error = contender(name).held_out
        assert error is not None
        assert best.held_out < error


def test_the_law_and_the_online_model_learn_what_the_steps_follow() -> None:
    for name in (LAW, ONLINE):
        found = contender(name)
        assert found.held_out is not None
        assert found.alone is not None
        assert max(found.held_out, found.alone) < 0.1


def test_of_an_unseen_shape_the_law_knows_nothing_and_the_online_model_after_twenty_steps() -> None:
    assert contender(LAW).on_unseen_shape is None
    online = contender(ONLINE).on_unseen_shape
    assert online is not None
    assert online < 0.15


def test_medians_are_told_better_than_single_steps() -> None:
    for name in (LAW, ONLINE):
        found = contender(name)
        assert found.on_medians is not None
        assert found.held_out is not None
        assert found.on_medians < found.held_out
    assert contender(MACHINE).on_medians is None


def test_asking_takes_time_which_the_machine_is_not_asked_for() -> None:
    assert contender(MACHINE).asking_s is None
    asked = [contender(name).asking_s for name in (LAW, ONLINE, ANALYSER)]
    assert all(seconds is not None and 0 < seconds < 0.1 for seconds in asked)


@pytest.mark.parametrize(
    ("analyser", "online", "better"), [(0.1, 0.2, ANALYSER), (0.2, 0.1, ONLINE), (0.1, 0.1, ONLINE)]
)
def test_the_less_wrong_one_is_used_and_among_equals_the_one_without_a_grid(
    analyser: float, online: float, better: str
) -> None:
    errors = {ANALYSER: analyser, ONLINE: online, LAW: 0.0, MACHINE: 0.0}
    found = replace(
        verdict(),
        contenders=tuple(RecomputeContender(name=name, held_out=error) for name, error in errors.items()),
    )
    assert found.better == better


def test_scripts_read_the_papers_two_figures_and_how_they_came_about() -> None:
    data = json.loads(json.dumps(verdict().to_dict()))
    chosen = verdict().chosen
    assert data["recompute_error"] == {
        "value": chosen.held_out,
        "on_medians": chosen.on_medians,
        "measured_on": "cpu-engine",
        "held_out_rows": len(verdict().parts.held_out),
        "held_out_shape": chosen.on_unseen_shape,
        "regressor": chosen.cell.regressor,
        "degree": chosen.cell.degree,
        "cells": 16,
    }
    assert data["swap_error"] == {
        "in": pytest.approx(0.0, abs=1e-9),
        "out": pytest.approx(0.0, abs=1e-9),
        "measured_on": "cpu-engine",
    }
    assert len(data["grid"]) == 16
    assert (data["plan"], data["unseen_shape"], data["rows"]) == ("made up", "8x512", 6 * 3 * 27)
    assert data["better"] in (ANALYSER, ONLINE)


def test_one_shape_is_enough_for_all_but_the_unseen_one() -> None:
    found = judge(rows(SIX[:1]), lambda share, what: None, degrees=(1,))
    assert found.to_dict()["unseen_shape"] is None
    assert contender(ONLINE, found).on_unseen_shape is None
    assert contender(ANALYSER, found).held_out is not None


def test_too_little_is_refused_by_name() -> None:
    some = rows()
    few = msgspec.structs.replace(some, steps=some.steps[: 54 + 10])
    assert missing_in(some) == []
    missing = missing_in(few)
    assert missing[0].startswith("steps of 4x512 (")
    assert missing[-1] == "steps of 8x512 (0 of 21)"
    with pytest.raises(ConfigError, match="too little was measured to judge by; missing: steps of 4x512"):
        judge(few, lambda share, what: None)
    told: list[str] = []
    with pytest.raises(ConfigError, match="0 copies are too few to judge"):
        judge(msgspec.structs.replace(some, copies=()), lambda share, what: told.append(what))
    assert not told  # nothing was fitted in vain
    nothing = msgspec.structs.replace(some, models=(), steps=())
    assert missing_in(nothing) == ["steps of any model (0 of 20 to learn from)"]


@pytest.mark.parametrize(("before", "after", "noise"), [(0.3, 0.1, 0.3), (0.1, 0.2, 0.2), (None, 0.2, 0.2)])
def test_noise_is_the_more_of_what_was_measured_before_and_what_is_known_after(
    before: float | None, after: float, noise: float
) -> None:
    found = replace(
        verdict(),
        rows=msgspec.structs.replace(verdict().rows, noise=before),
        contenders=(RecomputeContender(name=MACHINE, held_out=after),),
    )
    assert found.noise == noise
