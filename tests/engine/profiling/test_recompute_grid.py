from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.profiling.recompute_grid import (
    FULL,
    GLIMPSE,
    QUICK,
    GridMeasurements,
    GridPlan,
    measure_grid,
)
from headway.errors import ConfigError
from headway.predict.recompute.rows import load_rows
from tests.engine.stepped import SCHEDULE_S, FakeEngine, law_s

PLAN = GridPlan(
    name="small",
    depths=(1, 2),
    widths=(128,),
    tokens=(16, 32),
    batches=(1, 2),
    repetitions=3,
    max_step_tokens=256,
)


class Started(FakeEngine):
    """A fake engine that knows which model it has and whether it was closed."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Engines:
    """Starts fake engines, the last of which is interrupted after so many steps."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.started: list[Started] = []
        self._interrupt_after = interrupt_after

    def start(self, directory: Path, plan: GridPlan) -> Started:
        assert all(engine.closed for engine in self.started)
        engine = Started(directory)
        engine.interrupt_after = self._interrupt_after
        self.started.append(engine)
        return engine


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def test_the_full_grid_is_what_was_asked_for() -> None:
    # At least six shapes, 3 depths x 2 widths, and 2,000 rows.
    assert (len(FULL.depths), len(FULL.widths), len(FULL.recipes())) == (3, 2, 6)
    assert FULL.num_rows == 2352
    assert {tokens * batch for tokens, batch in FULL.configurations()} <= set(range(16, 1025))
    assert len({plan.name for plan in (FULL, QUICK, GLIMPSE)}) == 3
    assert GLIMPSE.num_rows < QUICK.num_rows < FULL.num_rows / 4
    assert len(QUICK.depths) == 3
    assert len(GLIMPSE.recipes()) == 1


def test_models_share_their_keys_between_two_heads() -> None:
    ((name, recipe),) = GLIMPSE.recipes()
    assert name == "4x256"
    assert (recipe.num_attention_heads, recipe.num_key_value_heads) == (4, 2)
    assert recipe.intermediate_size == 896


@pytest.mark.parametrize("width", [0, 64, 200])
def test_a_width_no_head_fits_is_refused(width: int) -> None:
    with pytest.raises(ConfigError, match=f"width is {width}; accepted: multiples of 128"):
        GridPlan(name="odd", depths=(1,), widths=(128, width))


def test_every_kind_of_step_is_measured_once_a_repetition(cache: Path) -> None:
    engines, found = Engines(), GridMeasurements()
    told: list[float] = []
    measure_grid(PLAN, found, lambda share, what: told.append(share), engines.start, cache)
    assert len(found.steps) == PLAN.num_rows == 2 * 3 * 4
    for model in ("1x128", "2x128"):
        kinds = [step.configuration[1:] for step in found.steps if step.model == model]
        assert sorted(kinds) == sorted(PLAN.configurations() * 3)
        assert kinds[:4] != kinds[4:8] or kinds[4:8] != kinds[8:]
    assert all(step.seconds == pytest.approx(law_s(step.shape()) + SCHEDULE_S) for step in found.steps)
    assert told == sorted(told)
    assert all(0 <= share < 1 for share in told)


def test_models_and_copies_are_kept_beside_the_steps(cache: Path) -> None:
    engines, found = Engines(), GridMeasurements()
    measure_grid(PLAN, found, lambda share, what: None, engines.start, cache)
    assert [(model.name, model.num_layers, model.hidden_size) for model in found.models] == [
        ("1x128", 1, 128),
        ("2x128", 2, 128),
    ]
    sizes = {(copy.model, copy.direction, copy.num_bytes) for copy in found.copies}
    assert len(sizes) == len(found.copies) == 2 * 2 * 9  # models, ways, 1 to 256 blocks
    assert [engine.closed for engine in engines.started] == [True, True]
    assert len({engine.directory for engine in engines.started}) == 2


def test_steps_and_copies_of_one_kind_tell_first_how_noisy_the_machine_is(cache: Path) -> None:
    # The fake engine takes the same time for the same step; its copies are real.
    engines, found = Engines(), GridMeasurements()
    measure_grid(PLAN, found, lambda share, what: None, engines.start, cache)
    assert len(found.noise) == 2 * 2
    assert found.noise[::2] == pytest.approx([0.0, 0.0])
    assert min(found.noise[1::2]) > 0
    assert found.rows(PLAN).noise == max(found.noise)


def test_where_copies_of_one_size_differ_too_much_they_are_not_kept(cache: Path) -> None:
    engines, found = Engines(), GridMeasurements()
    strict = replace(PLAN, most_noise=1e-9)
    with pytest.raises(ConfigError, match="this machine is busy: copies of one size differ by"):
        measure_grid(strict, found, lambda share, what: None, engines.start, cache)
    assert found.copies == []


def test_on_a_machine_too_noisy_for_the_plan_nothing_more_is_measured(cache: Path) -> None:
    engines, found = Engines(), GridMeasurements()
    strict = replace(PLAN, most_noise=-0.1)
    with pytest.raises(ConfigError, match="this machine is busy: steps of one kind differ by 0% on average"):
        measure_grid(strict, found, lambda share, what: None, engines.start, cache)
    assert (found.steps, found.copies) == ([], [])
    assert [engine.closed for engine in engines.started] == [True]


def test_an_interruption_keeps_what_was_measured_and_stops_the_engine(cache: Path) -> None:
    # The warm-up of the fake engine takes 11 steps, the noise 21, and each repetition one more than it counts.
    engines, found = Engines(interrupt_after=39), GridMeasurements()
    with pytest.raises(KeyboardInterrupt):
        measure_grid(PLAN, found, lambda share, what: None, engines.start, cache)
    assert 0 < len(found.steps) < 12
    assert len(found.models) == 1
    assert engines.started[0].closed


@given(
    tokens=st.sets(st.integers(2, 3000), min_size=1, max_size=6),
    batches=st.sets(st.integers(1, 64), min_size=1, max_size=6),
    most=st.integers(64, 4096),
)
def test_every_step_fits_the_engine_it_is_started_for(tokens: set[int], batches: set[int], most: int) -> None:
    plan = GridPlan(
        name="any",
        depths=(1,),
        widths=(128,),
        tokens=tuple(tokens),
        batches=tuple(batches),
        max_step_tokens=most,
    )
    flags = dict(zip(plan.vllm_flags()[:-1:2], plan.vllm_flags()[1::2], strict=True))
    for length, batch in plan.configurations():
        assert length * batch <= int(flags["--max-num-batched-tokens"])
        assert batch <= int(flags["--max-num-seqs"])
        assert length < int(flags["--max-model-len"])


# ---- on the real engine ------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.timeout(200)
def test_the_real_engine_takes_exactly_these_steps(tmp_path: Path) -> None:
    # In a process of its own: workers are spawned, and would run this file again.
    out, log = tmp_path / "rows.json", tmp_path / "log"
    words = (sys.executable, "-m", "headway.cli", "profile", "--recompute-grid", "--quick", "--out", str(out))
    with log.open("wb") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said)
    while "4x256: starting" not in log.read_text():
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130, log.read_text()[-3000:]
    assert "interrupted; --from" in log.read_text()
    rows = load_rows(out)
    assert rows.interrupted
    assert (rows.plan, rows.engine) == ("quick", "cpu-engine")
    of_first = [step for step in rows.steps if step.model == "2x256"]
    assert {step.configuration[1:] for step in of_first} == set(QUICK.configurations())
    assert len(of_first) == QUICK.num_rows / 3
    assert len(rows.copies) >= 18
