from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway.planner.runs import FILE
from tests.cli.conftest import Headway, Refused, words
from tests.planner.costs import write_costs
from tests.planner.plans import TRACE, two_classes

LONG = "gen:poisson:rate=1/input=constant:tokens=4000/output=constant:tokens=9/count=3"
FULL_DISK = Path("/dev/full")
FLAGS = {
    "hardware": "h100",
    "model": "Qwen/Qwen3-8B",
    "gpus": 1,
    "trace": TRACE,
    "policies": "vllm,edf",
    "seeds": 2,
    "budget": 4,
    "jobs": 1,
}


def command(*last: str, **flags: object) -> list[str]:
    """Words of a plan with these flags in place of good ones; None leaves one out."""
    given = {name: value for name, value in (FLAGS | flags).items() if value is not None}
    return ["plan", *words(given), *last]


@pytest.fixture
def plan(headway: Headway) -> Headway:
    """Makes a plan with these flags in place of good ones."""
    return lambda *last, **flags: headway(*command(*last, **flags))


def test_json_is_one_object_and_all_else_is_on_stderr(plan: Headway) -> None:
    code, out, err = plan("--json", slo_ttft=0.1, slo_tbt=0.02, load=1.2)
    assert code == 0
    found = json.loads(out)
    assert {"choice", "default", "gain", "gpus", "pareto", "rungs", "command", "arguments", "verify"} <= set(
        found
    )
    assert found["objective"] == "goodput"
    assert found["targets"] == {"ttft_s": 0.1, "tbt_s": 0.02, "deadline_s": None}
    assert found["target_ranges"] == {"ttft_s": [0.1, 0.1], "tbt_s": [0.02, 0.02], "deadline_s": None}
    assert found["verify"] is None
    assert found["choice"]["policy"] in ("vllm", "edf")
    assert shlex.split(found["command"])[:3] == ["headway", "serve", "Qwen/Qwen3-8B"]
    assert "--slo-ttft 0.1 --slo-tbt 0.02" in found["command"]
    assert "planning, simulated: Qwen/Qwen3-8B on 1 x h100 (H100 SXM 80 GB" in err
    assert "configurations possible" in err
    assert "choice" in err


def test_requests_with_targets_of_their_own_are_told_apart(plan: Headway, tmp_path: Path) -> None:
    trace = two_classes(tmp_path, "0.2,0.05", "0.5,0.05")
    code, out, err = plan("--json", trace=trace, budget=1, seeds=1)
    found = json.loads(out)
    assert (code, found["objective"]) == (0, "goodput")
    assert found["targets"] == {"ttft_s": None, "tbt_s": 0.05, "deadline_s": None}
    assert found["target_ranges"] == {"ttft_s": [0.2, 0.5], "tbt_s": [0.05, 0.05], "deadline_s": None}
    assert "their own targets: first token within 0.2 to 0.5 s, between tokens within 0.05 s\n" in err


def test_without_json_stdout_is_the_command_that_deploys(plan: Headway) -> None:
    code, out, err = plan()
    assert code == 0
    assert out.startswith("headway serve Qwen/Qwen3-8B --policy ")
    assert out.count("\n") == 1
    assert "the least mean job completion time" in err


def test_a_plan_is_kept_and_a_second_simulates_nothing(plan: Headway, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    code, printed, err = plan("--json", out=out)
    assert code == 0
    assert f"wrote {out / 'plan.json'} and {out / 'pareto.svg'}" in err
    assert json.loads((out / "plan.json").read_text()) == json.loads(printed)
    assert (out / "pareto.svg").read_text().startswith("<svg")
    lines = (out / FILE).read_text().splitlines()
    first, second = json.loads(printed), json.loads(plan("--json", out=out).out)
    assert second["runs"] == {"simulated": 0, "answered": 0, "kept": sum(first["runs"].values())}
    assert (out / FILE).read_text().splitlines() == lines
    for changing in ("runs", "wall_s"):
        del first[changing], second[changing]
    assert first == second


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"slo_ttft": 0.1}, "default_targets was {'ttft_s': None, "),
        ({"policies": "vllm,sjf"}, "policies was ['vllm', 'edf'], now ['vllm', 'sjf']"),
        ({"rate_scale": 2}, "rate_scale was 1.0, now 2.0"),
        ({"limit": 50}, "limit was None, now 50; requests was "),
    ],
)
def test_another_question_leaves_a_plan_alone(
    plan: Headway, tmp_path: Path, flags: dict[str, object], complaint: str
) -> None:
    out = tmp_path / "plan"
    assert plan(budget=1, seeds=1, out=out).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    code, printed, err = plan(budget=1, seeds=1, out=out, **flags)
    assert (code, printed) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith(f"error: {out} holds another plan ({complaint}")
    assert last.endswith("; give another folder")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert plan(budget=2, seeds=1, out=out).code == 0


@pytest.mark.parametrize("name", ["plan.json", "pareto.svg"])
def test_a_folder_in_place_of_a_file_is_refused_before_anything_is_searched(
    plan: Headway, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "plan"
    assert plan(budget=1, seeds=1, out=out).code == 0
    (out / name).unlink()
    (out / name).mkdir()
    before = (out / FILE).read_bytes()
    code, printed, err = plan(budget=3, seeds=1, out=out)
    assert (code, printed) == (2, "")
    said = f"error: --out {out / name} cannot be written (Is a directory); accepted: a file in a folder of yours\n"
    assert err.endswith(said)
    assert (out / FILE).read_bytes() == before


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", ["plan.json", "pareto.svg"])
def test_no_room_for_the_plan_loses_no_runs(plan: Headway, tmp_path: Path, name: str) -> None:
    out = tmp_path / "plan"
    assert plan(budget=1, seeds=1, out=out).code == 0
    (out / name).unlink()
    (out / name).symlink_to(FULL_DISK)
    code, printed, err = plan(budget=3, seeds=1, out=out)
    assert (code, printed) == (2, "")
    assert err.splitlines()[-1] == (
        f"error: {out / name} cannot be written (No space left on device), but every run is kept beside it; the same "
        "command goes on and simulates none of them again"
    )
    (out / name).unlink()
    code, printed, _ = plan("--json", budget=3, seeds=1, out=out)
    assert (code, json.loads(printed)["runs"]["simulated"]) == (0, 0)


def test_the_fewest_gpus_are_said(plan: Headway) -> None:
    code, out, err = plan("--json", "--fewest", slo_ttft=0.1, rate_scale=2, gpus=2, goodput_aim=0.05)
    assert code == 0
    assert json.loads(out)["fewest"]["gpus"] == 1
    assert "fewest GPUs that hold a goodput of 0.05: 1" in err


@pytest.mark.slow
def test_the_cheapest_gpus_are_found_and_kept(plan: Headway, tmp_path: Path) -> None:
    flags = {"slo_ttft": 0.5, "goodput_aim": 0.01, "out": tmp_path / "out", "per_node": 8}
    prices = ("--price", "h100=2.5", "--price", "l40s=0.9", "--json")
    code, out, err = plan(*prices, **flags)
    assert code == 0
    found = json.loads(out)
    assert {name: each["is_choice"] for name, each in found["prices"].items()} == {
        "h100": False,
        "l40s": True,
    }
    assert "l40s: 1 GPUs, 0.90 an hour (goodput" in err
    again = json.loads(plan(*prices, **flags).out)
    assert (again["runs"]["simulated"], again["choice"]) == (0, found["choice"])


def test_too_few_gpus_are_no_answer(plan: Headway) -> None:
    code, out, err = plan("--fewest", slo_ttft=1e-9)
    assert (code, out) == (1, "")
    assert "does not hold a goodput of 0.9" in err or "not even all GPUs hold a goodput of 0.9" in err
    code, out, _ = plan("--fewest", "--json", slo_ttft=1e-9)
    assert (code, json.loads(out)["fewest"]["gpus"]) == (1, None)


def test_what_is_longer_than_the_model_reads_is_left_out(plan: Headway, tmp_path: Path) -> None:
    """The instance holds all of it; vLLM would refuse it."""
    trace = tmp_path / "long.csv"
    rows = "".join(f"{second},{500 + 400 * (second % 5)},40\n" for second in range(20))
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    code, out, err = plan("--json", model="facebook/opt-6.7b", trace=trace)
    found = json.loads(out)
    assert (code, found["requests"], found["left_out"]) == (0, 16, 4)
    assert "4 too long for the model or any instance left out" in err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"policies": "vllm,nope"}, "unknown policy 'nope'; accepted: vllm, "),
        ({"policies": "vllm,srpt-oracle"}, "unknown policy 'srpt-oracle'"),
        (
            {"model": "facebook/opt-6.7b", "trace": LONG},
            "fits the 2,048 tokens that facebook/opt-6.7b reads; accepted: shorter requests or another model",
        ),
        ({"gpus": 0}, "--gpus is 0; accepted: 1 or more"),
        ({"per_node": 0}, "--per-node is 0; accepted: 1 or more"),
        ({"host_memory_gib": -1}, "--host-memory-gib is -1.0; accepted: 0 or more"),
        ({"price": "h100"}, "--price is 'h100'; accepted: HARDWARE=X, the price of one GPU for an hour"),
        ({"price": "l40s=1"}, "--price is not given for h100; accepted: HARDWARE=X"),
        ({"gpus": 513}, "--gpus is 513; accepted: 1 to 512"),
        ({"kv_tier": "200"}, "'200' of the KV tier '200' is unknown or given twice; accepted: gib=X"),
        ({"seeds": 0}, "--seeds is 0; accepted: 1 or more"),
        ({"budget": 0}, "--budget is 0; accepted: 1 configuration or more"),
        ({"minutes": 1}, "budget and minutes are given; accepted: one of the two"),
        ({"budget": None, "minutes": -1}, "--minutes is -1.0; accepted: more than 0"),
        ({"jobs": 0}, "--jobs is 0; accepted: 1 or more"),
        ({"load": -1}, "--load is -1.0; accepted: more than 0"),
        ({"load": 1, "rate_scale": 1}, "rate_scale and load are given; accepted: one of the two"),
        ({"slo_deadline": -1}, "--slo-deadline is -1.0; accepted"),
        ({"verify_seconds": 5}, "--verify-seconds is 5.0 without --verify; add --verify"),
        ({"goodput_aim": 0.5}, "--goodput-aim is 0.5 without fewest; accepted: with --fewest"),
        ({"predictor": "noisy-oracle:tau=1"}, "which knows the true lengths"),
    ],
)
def test_what_is_not_accepted_is_one_line_and_nothing_is_written(
    refused_in_one_line: Refused, flags: dict[str, object], complaint: str
) -> None:
    assert complaint in refused_in_one_line(*command(**flags))


@pytest.mark.parametrize("asked", [("--verify",), ()])
@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_no_time_to_verify_in_is_refused_before_anything_is_searched(
    plan: Headway, asked: tuple[str, ...], seconds: float
) -> None:
    code, out, err = plan(*asked, verify_seconds=seconds)
    assert (code, out) == (2, "")
    assert err == f"error: --verify-seconds is {seconds}; accepted: more than 0\n"


def test_too_few_requests_to_verify_with_are_refused_before_anything_is_searched(plan: Headway) -> None:
    code, printed, err = plan("--verify", trace=TRACE.replace("count=120", "count=30"))
    assert (code, printed) == (2, "")
    assert err.endswith("\nerror: the trace has 30 requests; accepted with verify: 48 or more\n")


def test_a_kv_tier_cannot_be_verified_here_which_is_said_before_anything_is_searched(plan: Headway) -> None:
    code, printed, err = plan("--verify", kv_tier="gib=10")
    assert (code, printed) == (2, "")
    assert err.endswith(
        "\nerror: the KV tier is gib=10 with verify; accepted: one of the two, since vLLM's offloading needs a GPU\n"
    )


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_plan_is_kept_when_its_check_fails(
    plan: Headway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = write_costs(tmp_path / "cost.json", jobs=128, tokens=2048)
    out = tmp_path / "plan"
    monkeypatch.setattr(sys, "executable", "/bin/false")  # the deployment ends as soon as it is started
    code, printed, err = plan("--verify", hardware=costs, model="demo", budget=1, out=out)
    # The plan stands, and took longer than its check.
    assert (code, printed) == (2, json.loads((out / "plan.json").read_text())["command"] + "\n")
    log = out / "verify-server.log"
    assert err.endswith(f"error: the deployment did not get ready; its messages are in {log}\n")
    assert json.loads((out / "plan.json").read_text())["verify"] is None
    _, _, err = plan("--verify", hardware=costs, model="demo", budget=1)
    assert err.endswith("verify-server.log; without --out DIR nothing of it is kept\n")


@pytest.mark.engine
def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "plan"
    arguments = command(trace=TRACE.replace("count=120", "count=6000"), budget=400, jobs=2, out=out)
    # A group of its own, as a terminal makes one: Ctrl-C reaches the workers too.
    running = subprocess.Popen(
        [sys.executable, "-m", "headway.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    file, deadline_s = out / FILE, time.monotonic() + 60
    while not (file.exists() and file.read_bytes().count(b"\n")) and time.monotonic() < deadline_s:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    done = file.read_bytes().count(b"\n")
    assert running.returncode == 130
    assert stdout == ""
    # One may have been written and not yet counted.
    assert stderr.splitlines()[-1] in [
        f"interrupted: {count} runs are kept in {out}; the same command goes on" for count in (done - 1, done)
    ]
    assert done >= 1


def test_planning_needs_neither_vllm_nor_http() -> None:
    program = (
        "import sys, headway.cli.plan, headway.planner.planner, headway.planner.report\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('vllm', 'torch', 'aiohttp')])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
