from __future__ import annotations

from typing import Literal

import pytest

from headway.errors import ConfigError
from headway.predict.recompute_rows import BlockCopy
from headway.predict.swap_errors import swap_errors
from headway.predict.transfer import TransferModel

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
