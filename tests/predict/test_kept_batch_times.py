from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.predict.steps.batch_time import BatchRow
from headway.predict.steps.kept_batch_times import BatchTimes, load_batch_times, save_batch_times

ROWS: list[BatchRow] = [(1, 10, 10, 1.0), (8, 10, 10, 2.0), (8, 100, 100, 20.0)]


def test_rows_are_kept_and_the_last_of_very_many(tmp_path: Path) -> None:
    path = tmp_path / "lengths.batches"
    assert load_batch_times(path) == []
    save_batch_times(path, ROWS)
    assert load_batch_times(path) == ROWS
    many: list[BatchRow] = [(1, 1, number, 1.0) for number in range(1, 5001)]
    save_batch_times(path, many)
    assert load_batch_times(path) == many[-3000:]


@pytest.mark.parametrize(
    "content", ["", "{", '{"format":"other","version":1,"rows":[]}', '{"rows":[[0,1,1,1.0]],"version":1}']
)
def test_a_file_that_is_none_is_one_error_that_names_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lengths.batches"
    path.write_text(content)
    with pytest.raises(ConfigError, match="remove it, and they are measured anew") as caught:
        load_batch_times(path)
    assert str(path) in str(caught.value)


def test_times_start_from_what_was_measured_and_learn_by_the_clock() -> None:
    now_s = 100.0
    times = BatchTimes(lambda: now_s)
    assert (times.is_known, times.rows, times.predict(5, 10, 10)) == (False, [], 1.0)
    times.observe(8, 100, 100, 60.0)
    assert times.num_served == 0  # nothing to learn from, so nothing is kept
    times.measured(ROWS)
    assert times.predict(8, 100, 100) == pytest.approx(20.0, rel=1e-3)
    times.observe(8, 100, 100, 60.0)
    assert times.rows == [*ROWS, (8, 100, 100, 60.0)]
    now_s += 121.0  # its period is two minutes
    times.observe(1, 10, 10, 1.0)
    assert times.predict(8, 100, 100) > 30.0
    assert times.num_served == 2
