from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.predict.transfer import TransferModel, fit_transfer


def test_an_affine_law_is_found_again() -> None:
    law = TransferModel(start_s=2e-5, bytes_per_s=8e9)
    found = fit_transfer([(size, law.seconds(size)) for size in (2**power for power in range(16, 28))])
    assert found.start_s == pytest.approx(law.start_s)
    assert found.bytes_per_s == pytest.approx(law.bytes_per_s)


def test_a_start_is_never_negative() -> None:
    # Larger copies are slower by the byte here, which a straight line would start below 0 for.
    found = fit_transfer([(100, 1e-6), (200, 3e-6), (400, 8e-6)])
    assert found.start_s == 0
    assert found.bytes_per_s > 0


@pytest.mark.parametrize("rows", [[], [(100, 1.0)], [(100, 1.0), (100, 2.0)], [(100, 0.0), (200, 1.0)]])
def test_too_few_sizes_are_refused(rows: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="at least two sizes"):
        fit_transfer(rows)


def test_copies_that_do_not_grow_are_refused() -> None:
    with pytest.raises(ConfigError, match="did not take longer"):
        fit_transfer([(100, 2.0), (200, 1.0), (400, 0.5)])
