"""The toy worked by hand, and the law it is run on."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from headway_reproduce.magnus.engine import EagerStep, batches_seconds, engine_costs, toy
from headway_reproduce.magnus.setting import HARDWARE, PAPER_TOY_VS_S, VS

from headway.core.batch_shape import BatchShape
from headway.predict.steps.hardware import hardware

LARGE, SMALL = (1000, 1000), (10, 10)


@dataclass(frozen=True)
class Second:
    """Every step takes a second."""

    def step_s(self, shape: BatchShape) -> float:
        return 1.0


@dataclass(frozen=True)
class SecondForEight:
    """A step takes a second for each eight thousand tokens of context."""

    def step_s(self, shape: BatchShape) -> float:
        return shape.decode_context_tokens / 8000


def decodes(jobs: int, context: int) -> BatchShape:
    return BatchShape(num_jobs=jobs, num_tokens=jobs, num_decodes=jobs, decode_context_tokens=jobs * context)


def test_the_toy_by_hand() -> None:
    # Each token of the longest answer is a step, the first one's the prefill.
    mixed = [[LARGE, *[SMALL] * 6]] * 3
    assert batches_seconds(mixed, Second()) == pytest.approx(3 * 1000)
    assert batches_seconds([[SMALL] * 18, [LARGE] * 3], Second()) == pytest.approx(10 + 1000)


def test_who_waits_pays_for_the_longest() -> None:
    # Two members, prompts padded to 20, two steps after the prefill at contexts of 21 and 22 each.
    assert batches_seconds([[(10, 1), (20, 3)]], SecondForEight()) == pytest.approx(2 * (21 + 22) / 8000)


def test_the_one_constant_is_fitted_to_the_papers_seconds() -> None:
    found = toy()
    assert found.vs_s == pytest.approx(PAPER_TOY_VS_S)
    step = engine_costs(VS, found.fitted_overhead_s).step
    assert batches_seconds([[SMALL] * 18, [LARGE] * 3], step) == pytest.approx(found.magnus_s)
    # 3 batches of 1,000 steps against 1,010 steps, and each of them costs less.
    assert 3000 / 1010 < found.ratio == pytest.approx(found.vs_s / found.magnus_s)
    assert found.ratio < 4.0


def test_copying_the_cache_is_part_of_the_ratio() -> None:
    assert toy(copies=False).ratio < toy().ratio
    assert toy(copies=False).fitted_overhead_s > toy().fitted_overhead_s


def test_a_step_is_its_parts() -> None:
    step = EagerStep(Second(), overhead_s=0.5, copy_token_s=0.001, compute=1.3)
    assert step.step_s(decodes(7, 100)) == pytest.approx(0.5 + 0.7 + 1.3)


def test_copies_read_and_write_the_cache_at_less_than_the_devices_peak() -> None:
    with_copies, without = (engine_costs(VS, 0.0, copies=copies).step for copies in (True, False))
    shape = decodes(7, 1500)
    copied_s = with_copies.step_s(shape) - without.step_s(shape)
    least_s = 2 * 7 * 1500 * 448 * 1024 / hardware(HARDWARE).peaks.bytes_per_s
    assert least_s < copied_s < 2 * least_s
