"""`bench/gain/gpu_real.py` without a GPU: its model, its report of kept runs, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from bench.gain.gpu_engine import StepTime, alike, beyond_sheet, llama_folder
from bench.gain.gpu_real import FACTS, GpuFacts, Study, against_sheet, measure, options, report, study_of
from bench.gain.regret_workloads import MACHINES
from bench.real_runs import KeptRun
from headway.core.batch_shape import MOST_GRAPHED_TOKENS, BatchShape
from headway.core.record import Record
from headway.errors import ConfigError
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.real_engine import ServedRequest
from headway.predict.models.known_models import model_shape
from headway.predict.steps.calibration import StepSeconds
from headway.sim.simulation import simulate
from headway.traces import parse_workload

H100 = MACHINES["h100-llama-8b"]
ASKED = ["--workload", "chat", "--seconds", "2", "--load", "0.5", "--class", "one", "--seats", "128"]


def study(out: Path, *further: str) -> Study:
    """Two seconds of chats at half of ten requests a second, with what comes before the runs."""
    found = study_of(options().parse_args(["--out", str(out), *ASKED, *further]))
    facts = GpuFacts(
        measured_on="1 x GPU",
        vllm="0.32.0",
        workload="chat",
        seconds=2.0,
        capacity_rps=10.0,
        num_blocks=28_185,
        worker_slots=1024,
        tokens_a_step=8192,
        asynchronous=True,
        steps=[StepTime(batch=16, new_tokens=1, context_tokens=532, seconds=0.007)],
    )
    if not (out / FACTS).exists():
        found.open()
        (out / FACTS).write_bytes(msgspec.json.encode(facts))
    return found


def keep_runs(found: Study) -> None:
    """Every answer comes within a fifth of a second, half as soon under stock with its own seats."""
    for run in found.runs():
        jct_s = 0.2 if run.seats == 1024 and run.contender.stock else 0.1
        served = [
            ServedRequest(
                number=at,
                output_tokens=request.output_tokens,
                arrival_s=request.arrival_s,
                first_token_s=request.arrival_s + 0.05,
                finished_s=request.arrival_s + jct_s,
            )
            for at, request in enumerate(found.stream(run.load, run.seed, run.kind))
        ]
        kept = KeptRun(served=served, counters={"pauses": 3}, schedule_s=[0.001, 0.002, 0.003])
        run.file(found.out).write_bytes(msgspec.json.encode(kept))


def test_the_made_model_has_the_shape_that_the_simulator_knows(tmp_path: Path) -> None:
    shape = model_shape(H100.model)
    made = model_shape(str(llama_folder(shape, tmp_path / "model")))
    for size in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"):
        assert getattr(made, size) == getattr(shape, size)
    assert (made.weight_bytes, made.context_tokens) == (shape.weight_bytes, shape.context_tokens)


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Mixtral"):
        llama_folder(model_shape("Mixtral-8x7B-v0.1"), tmp_path)


def test_requests_that_are_alike_are_all_there_at_once() -> None:
    assert [(each.id, each.arrival_s) for each in alike(2, 700, 24)] == [("0", 0.0), ("1", 0.0)]


def test_each_metric_is_compared_with_stock_at_its_best_seats(tmp_path: Path) -> None:
    found = study(tmp_path)
    keep_runs(found)
    measure(found)  # nothing is missing, so no GPU is asked for
    (cell,) = report(found)["cells"].values()
    # As soon as stock with 128 seats, twice as soon as stock with its own.
    assert cell["gain"]["mean_jct_s"] == pytest.approx(1.0)
    assert cell["real"]["stock-1024"]["mean_jct_s"] == pytest.approx(0.2)
    assert cell["gain"]["goodput"] == 1.0
    assert cell["schedule_ms"]["headway-1024"]["p50"] == pytest.approx(2.0)
    assert cell["pauses"] == 3
    assert set(cell["simulated"]) == set(cell["real"]) == {"stock-1024", "stock-128", "headway-1024"}


def test_steps_are_held_against_the_sheet() -> None:
    step = StepTime(batch=16, new_tokens=1, context_tokens=532, seconds=0.007)
    assert against_sheet(H100, step)["sheet_over_real"] == pytest.approx(1, abs=0.1)  # an H100 took 7.02 ms


def test_a_prompt_beside_decodes_is_held_against_a_step_of_both() -> None:
    alone = StepTime(batch=1, new_tokens=1024, context_tokens=0, seconds=0.03)
    beside = msgspec.structs.replace(alone, decodes=16, decode_context_tokens=532)
    shape = BatchShape()
    shape.add(1024, 0)
    for _ in range(16):
        shape.add(1, 532)
    assert against_sheet(H100, beside)["sheet_s"] == pytest.approx(H100.system().step.step_s(shape))
    assert against_sheet(H100, beside)["sheet_s"] > against_sheet(H100, alone)["sheet_s"]


@dataclass(frozen=True)
class Dearer:
    """A sheet with so much more for steps of more tokens than CUDA graphs hold at most, and for decodes alone."""

    sheet: StepSeconds
    large_s: float
    alone_s: float

    def step_s(self, shape: BatchShape) -> float:
        """Seconds of a step."""
        if not shape.num_prefill_tokens:
            return self.sheet.step_s(shape) + self.alone_s
        return self.sheet.step_s(shape) + (self.large_s if shape.num_tokens > MOST_GRAPHED_TOKENS else 0.0)


@pytest.mark.parametrize(("large_s", "off_ms"), [(0.004, 1.0), (0.0, 2.5)])
def test_what_steps_take_beyond_a_sheet_is_found_from_when_answers_begin_and_end(
    large_s: float, off_ms: float
) -> None:
    # Roughly: what there is within a millisecond, and where there is nothing two are found all the same.
    system = H100.system()
    costs = system.calibration
    real = replace(costs, step=Dearer(costs.step, large_s, alone_s=0.001))
    requests = parse_workload(
        "gen:poisson:rate=15/input=azure-conversation/output=azure-conversation/count=400/seed=1"
    ).requests()
    found: list[Record] = []
    simulate(
        requests,
        policy_factory("vllm", OWN_PARTS, requests),
        replace(system, calibration=real),
        on_record=found.append,
        max_output_tokens=4096,
    )
    ended = {record.id: record for record in found}
    served = [
        ServedRequest(
            number=at,
            output_tokens=request.output_tokens,
            arrival_s=request.arrival_s,
            first_token_s=ended[request.id].first_token_s,
            finished_s=ended[request.id].finished_s or 0.0,
        )
        for at, request in enumerate(requests)
    ]
    beyond = beyond_sheet(system, [(requests, served)])
    assert beyond["ms_beyond_graphs"] == pytest.approx(large_s * 1e3, abs=off_ms)
    assert beyond["ms_without_prompts"] == pytest.approx(1.0, abs=0.25)
    assert beyond["rms_after"] < beyond["rms_before"] / 3


def test_without_a_gpu_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.gain.gpu_real.is_cpu_build", lambda: True)
    with pytest.raises(ConfigError, match="on the CPU here"):
        measure(study(tmp_path))
