"""How wrong the recompute and the swap analyser are about times measured on a real engine (section 4.5)."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from headway.errors import VLLM_COMES_BY, ConfigError
from headway.json_file import read_json, write_json
from headway.lab.papers import PaperRequest, Tell
from headway.predict.recompute.rows import RecomputeRows, load_rows, write_rows
from headway.predict.recompute.verdict import MOST_NOISE
from headway.results.study import StudyPart, StudyTable, Value

PAPER_RECOMPUTE_ERROR = {"OPT": 0.0176, "Llama": 0.0130}
"""Mean relative error of predicted prefill times on rows held out (section 4.5)."""
PAPER_SWAP_ERROR = {"in": (0.015, 0.011), "out": (0.010, 0.012)}
"""The same for copies, Llama-13B and Llama-32.5B (section 4.5)."""
NEEDED = {"vllm": VLLM_COMES_BY, "sklearn": "pip install scikit-learn"}
"""Modules that measuring and fitting need, and the command that installs each."""

QUICK_SECONDS, FULL_SECONDS = 35.0, 660.0
"""About how long measuring and fitting take on two cores."""


class RecomputeError(msgspec.Struct, frozen=True, kw_only=True):
    """Mean absolute relative error of the fitted recompute analyser; on prompts held out, and on a shape held out."""

    value: float | None = None
    measured_on: str | None = None
    held_out_rows: int = 0
    held_out_shape: float | None = None
    regressor: str | None = None
    degree: int | None = None


class SwapError(msgspec.Struct, frozen=True, kw_only=True, rename={"into": "in"}):
    """The same errors for copies of KV blocks, back to the device and out to the host."""

    into: float | None = None
    out: float | None = None
    measured_on: str | None = None


class PredictorErrors(msgspec.Struct, frozen=True, kw_only=True):
    """Both analysers' errors; empty where nothing was measured, or the machine was too busy, with the `reason`.

    `noise` is how far the best possible prediction of a prefill is off.
    """

    recompute_error: RecomputeError = RecomputeError()
    swap_error: SwapError = SwapError()
    machine: str = ""
    rows: int = 0
    noise: float | None = None
    reason: str = ""

    def part(self) -> StudyPart:
        """A table of the errors beside the paper's."""
        recompute, swap = self.recompute_error, self.swap_error
        rows: list[list[Value]] = [
            ["recompute", recompute.value, *PAPER_RECOMPUTE_ERROR.values()],
            ["recompute, shape not seen", recompute.held_out_shape, None, None],
            ["the same prefill again (noise)", self.noise, None, None],
            ["swap in", swap.into, *PAPER_SWAP_ERROR["in"]],
            ["swap out", swap.out, *PAPER_SWAP_ERROR["out"]],
        ]
        table = StudyTable(
            name="predictors",
            title="Mean absolute relative error of predicted times",
            measured_on=f"real engine, {self.machine}" if self.machine else "not measured",
            headings=["predictor", "ours", "paper: OPT, Llama-13B", "paper: Llama, Llama-32.5B"],
            rows=rows,
            note="On times held out. The paper's are of GPUs: OPT and Llama for recompute, Llama-13B and Llama-32.5B "
            "for copies.",
            decimals=4,
        )
        return StudyPart(title="Predictor errors (section 4.5)", text=[self._said()], tables=[table])

    def _said(self) -> str:
        if self.reason:
            return self.reason
        found = self.recompute_error
        return (
            f"Best of the paper's regressors here: {found.regressor}, degree {found.degree}, fitted to measured "
            f"prefills of models made on this machine and judged on {found.held_out_rows} of {self.rows}."
        )


def errors_seconds(request: PaperRequest) -> float:
    """About how long `predictor_errors` will take."""
    if _missing() or _file(request, "predictors").exists():
        return 0.0
    return QUICK_SECONDS if request.quick else FULL_SECONDS


def predictor_errors(request: PaperRequest, tell: Tell) -> PredictorErrors:
    """The errors kept in the folder, or measured now on this machine's engine, fitted and kept, with the measured rows.

    With `quick`: one model, three degrees, so no shape is held out. Without vLLM or scikit-learn the result is empty,
    with the reason. So it is, and is not kept, on a machine so busy that the same prefill varies by more than
    MOST_NOISE from time to time.
    """
    path = _file(request, "predictors")
    kept = read_json(path, PredictorErrors)
    if kept is not None:
        return kept
    missing = _missing()
    if missing:
        return PredictorErrors(reason=f"Not measured: needs {' and '.join(missing)}.")
    try:
        rows = _rows(request, tell)
    except ConfigError as error:
        return PredictorErrors(reason=f"Not measured: {error}.")
    found = _judged(rows, request, tell)
    if found.noise is not None and found.noise > MOST_NOISE:
        _file(request, "recompute-rows").unlink(missing_ok=True)
        reason = (
            f"Measured, and refused: on this busy machine the same prefill differs by {found.noise:.0%} in the mean "
            f"from one time to the next, and no prediction can be better; accepted: up to {MOST_NOISE:.0%}."
        )
        return PredictorErrors(noise=found.noise, reason=reason)
    write_json(path, found)
    return found


def _missing() -> list[str]:
    return [install for module, install in NEEDED.items() if find_spec(module) is None]


def _file(request: PaperRequest, stem: str) -> Path:
    return request.root / f"{stem}{'-quick' if request.quick else ''}.json"


def _rows(request: PaperRequest, tell: Tell) -> RecomputeRows:
    from headway.engine.profiling.recompute_grid import FULL, GLIMPSE, GridMeasurements, measure_grid

    path = _file(request, "recompute-rows")
    plan = replace(GLIMPSE if request.quick else FULL, most_noise=MOST_NOISE)
    if path.exists():
        return load_rows(path)
    tell(f"real engine: measuring {plan.num_rows:,} prefills of {len(plan.recipes())} models")
    measured = GridMeasurements()
    measure_grid(plan, measured, lambda share, what: None)
    rows = measured.rows(plan)
    write_rows(path, rows)
    return rows


def _judged(rows: RecomputeRows, request: PaperRequest, tell: Tell) -> PredictorErrors:
    from headway.predict.recompute.regressors import DEGREES, QUICK_DEGREES
    from headway.predict.recompute.verdict import judge

    tell("fitting the recompute analyser")
    degrees = QUICK_DEGREES if request.quick else DEGREES
    try:
        found = judge(rows, lambda share, what: None, degrees=degrees)
    except ConfigError as error:
        return PredictorErrors(reason=f"Measured, but not enough to judge by: {error}.")
    verdict = found.to_dict()
    return PredictorErrors(
        recompute_error=msgspec.convert(verdict["recompute_error"], RecomputeError),
        swap_error=msgspec.convert(verdict["swap_error"], SwapError),
        noise=found.noise,
        machine=f"{rows.machine}, vLLM {rows.vllm_version}",
        rows=len(rows.steps),
    )
