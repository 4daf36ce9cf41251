from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Headway, Refused, words

TRACE = "gen:poisson:rate=30/input=zipf:theta=1.1,max=600/output=zipf:theta=1.1,max=60/count=40"
FLAGS = {
    "hardware": "h100",
    "model": "Qwen/Qwen3-8B",
    "trace": TRACE,
    "policies": "vllm,sjf",
    "max_num_seqs": 8,
    "num_blocks": 120,
    "jobs": 1,
}


def command(*last: str, **flags: object) -> list[str]:
    """Words of a simulation with these flags in place of good ones."""
    return ["simulate", *words(FLAGS | flags), *last]


@pytest.fixture
def simulate(headway: Headway) -> Headway:
    """Runs a simulation with these flags in place of good ones."""
    return lambda *last, **flags: headway(*command(*last, **flags))


def test_json_is_one_object_and_all_else_is_on_stderr(simulate: Headway) -> None:
    code, out, err = simulate("--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == ["vllm", "sjf"]
    assert found["sjf"]["requests"] == found["sjf"]["finished"] == 40
    assert "simulated: Qwen/Qwen3-8B on 1 instance of h100 (H100 SXM 80 GB" in err
    assert "8 seats, 8,192 tokens a step, 120 KV blocks of 16, prefix caching on, asynchronous" in err
    assert "output limit policies see: 64 tokens (the longest output, rounded up to a power of two)" in err
    assert "How requests ended" in err


def test_a_load_is_a_share_of_capacity(simulate: Headway) -> None:
    code, out, err = simulate("--json", load="0.2,2", policies="vllm")
    assert code == 0
    light, heavy = (json.loads(out)[f"vllm load={load}"] for load in ("0.2", "2"))
    assert light["mean_ttft_s"] < heavy["mean_ttft_s"]
    assert light["duration_s"] > 3 * heavy["duration_s"]
    assert "requests a second (`vllm`, all requests queued)" in err


def test_why_requests_failed_is_said_and_a_run_in_which_all_did_is_no_success(
    simulate: Headway, tmp_path: Path
) -> None:
    all_long, one_long = tmp_path / "all.csv", tmp_path / "one.csv"
    all_long.write_text("arrival_s,input_tokens,output_tokens\n0,9999,5\n1,8888,5\n")
    one_long.write_text("arrival_s,input_tokens,output_tokens\n0,9999,5\n1,88,5\n")
    why = ": needs 625 KV blocks, the engine has 120"
    for trace, status, failed in (
        (all_long, 1, "2 of 2 requests failed, 1 of them"),
        (one_long, 0, "1 of 2 requests failed"),
    ):
        code, _, err = simulate(trace=trace, policies="sjf")
        assert code == status
        assert f"sjf at rate scale 1, seed 0: {failed}{why}\n" in err


@pytest.mark.parametrize(("prompt", "is_long"), [(2000, False), (2100, True)])
def test_a_request_longer_than_the_model_reads_is_said(
    simulate: Headway, tmp_path: Path, prompt: int, is_long: bool
) -> None:
    trace = tmp_path / f"{prompt}.csv"
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n0,{prompt},5\n1,88,5\n")
    code, _, err = simulate(trace=trace, model="facebook/opt-6.7b", num_blocks=200)
    assert code == 0
    assert ("the longest request has 2,105 tokens; facebook/opt-6.7b reads 2,048" in err) is is_long


def test_policies_that_swap_do_so_where_there_is_host_memory(simulate: Headway) -> None:
    tight = {"policies": "adaptivellm,vllm-s-fallback", "num_blocks": 45, "rate_scale": 20}
    code, out, err = simulate("--json", "--no-prefix-caching", host_blocks=40, **tight)
    assert code == 0
    assert "45 KV blocks of 16 and 40 on the host" in err
    found = json.loads(out)
    assert found["vllm-s-fallback"]["swapped_out_blocks"] >= found["vllm-s-fallback"]["swapped_in_blocks"] > 0
    _, out, _ = simulate("--json", "--no-prefix-caching", **tight)
    assert {summary["swapped_out_blocks"] for summary in json.loads(out).values()} == {0}


def test_policies_that_find_no_host_to_swap_to_are_named(simulate: Headway) -> None:
    policies = "vllm,adaptivellm,fastserve,srpt-oracle"
    _, _, err = simulate(policies=policies)
    assert (
        "no host memory (--host-kv-gib), so KV is computed again, not swapped: adaptivellm, fastserve\n"
        in err
    )
    assert "no host memory" not in simulate(policies=policies, host_blocks=40).err
    assert "no host memory" not in simulate("--eviction", "recompute", policies="vllm,adaptivellm").err


def test_what_a_kv_tier_is_worth_is_told_as_everything_else(simulate: Headway) -> None:
    turns = "gen:poisson:rate=4/input=constant:tokens=600/output=constant:tokens=40/count=20/turns=4/think=4"
    tight = {"policies": "vllm,headway", "num_blocks": 400, "trace": turns}
    code, out, err = simulate("--json", kv_tier="gib=20/latency_ms=0", **tight)
    assert code == 0
    assert "KV tier of an engine: 9,102 blocks (gib=20/latency_ms=0)\n" in err
    with_tier = json.loads(out)
    without = json.loads(simulate("--json", **tight).out)
    for policy in ("vllm", "headway"):
        assert with_tier[policy]["swapped_out_blocks"] >= with_tier[policy]["swapped_in_blocks"] > 0
        assert with_tier[policy]["mean_ttft_s"] < without[policy]["mean_ttft_s"]
    empty = json.loads(simulate("--json", kv_tier="gib=0", **tight).out)
    assert empty == without
    # Whom the tier gives their KV back does not lack host memory.
    assert "no host memory" not in simulate(kv_tier="gib=20", policies="fastserve").err


def test_policies_that_find_no_targets_are_named(simulate: Headway, tmp_path: Path) -> None:
    said = "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf\n"
    assert simulate(policies="vllm,edf,headway,srpt-oracle").err.count(said) == 1
    assert "no request has a target" not in simulate(policies="vllm,headway").err
    assert "no request has a target" not in simulate(policies="edf", slo_tbt=0.1).err
    assert "no request has a target" not in simulate("--order", "arrival", policies="edf").err
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens,ttft_s\n0,9,5,\n1,9,5,0.5\n")
    assert "no request has a target" not in simulate(policies="edf", trace=trace).err


def test_a_host_of_less_than_no_blocks_or_more_than_any_machine_has_is_refused(simulate: Headway) -> None:
    for flag, value in (("host_blocks", -1), ("host_kv_gib", -1.0), ("host_kv_gib", 1e300)):
        code, _, err = simulate(**{flag: value})
        assert code == 2
        assert f"--{flag.replace('_', '-')} is {value}; accepted: 0 or more" in err


def test_it_is_said_who_predicts_lengths(simulate: Headway) -> None:
    code, out, err = simulate("--json", policies="vllm,predicted", predictor="noisy-oracle:tau=0.8")
    assert code == 0
    made = "noisy-oracle:tau=0.8 (made from the true lengths)"
    assert json.loads(out)["predicted"]["predictor"] == made
    assert f"answer lengths predicted by: {made}, for predicted" in err


def test_without_json_stdout_is_empty(simulate: Headway) -> None:
    code, out, err = simulate("--no-prefix-caching", "--sync", trace=f"{TRACE}/max_output=100")
    assert (code, out) == (0, "")
    assert "prefix caching off, synchronous" in err
    assert "output limit" not in err


@pytest.mark.slow
def test_a_sweep_is_kept_drawn_and_gone_on_with(simulate: Headway, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    sweep = {"rate_scale": "0.5..1.5", "steps": 3, "slo_ttft": 0.2, "out": out}
    code, printed, err = simulate("--json", **sweep)
    assert code == 0
    assert [name for name in json.loads(printed) if name.startswith("sjf")] == [
        "sjf load=0.5",
        "sjf load=1",
        "sjf load=1.5",
    ]
    assert f"wrote {out}; `headway report {out} --out FILE.html` draws it" in err
    assert (out / "goodput.svg").read_text().startswith("<svg")
    written = (out / "load=1/vllm.records.jsonl").stat().st_mtime_ns
    assert simulate("--json", **sweep)[1] == printed
    assert (out / "load=1/vllm.records.jsonl").stat().st_mtime_ns == written
    code, printed, err = simulate(**{**sweep, "slo_ttft": 0.3})
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: {out} holds another simulation (default_targets was ")


@pytest.mark.slow
def test_what_is_kept_can_be_reported(simulate: Headway, headway: Headway, tmp_path: Path) -> None:
    _, printed, _ = simulate("--json", rate_scale="0.5,1", out=tmp_path / "sweep")
    page = tmp_path / "page.html"
    reported = headway("report", tmp_path / "sweep", "--json", "--out", page)
    assert json.loads(reported.out) == json.loads(printed)
    text = page.read_text()
    assert "simulated" in text
    assert "headway simulate --hardware h100" in text
    assert "against rate scale" in text
    assert str(tmp_path / "page") not in text


def test_a_request_is_explained(simulate: Headway) -> None:
    code, out, _ = simulate("--explain", "7", slo_ttft=0.1)
    assert code == 0
    assert out.startswith("vllm, rate scale 1, simulated\nrequest 7: ")
    assert "\nsjf, rate scale 1, simulated\nrequest 7: " in out
    assert "target first token within 100 ms: " in out
    code, out, _ = simulate("--explain", "7", "--json", policies="sjf")
    assert json.loads(out)["sjf"]["id"] == "7"


def test_pools_are_served_beside_as_many_equal_instances(simulate: Headway) -> None:
    code, out, err = simulate("--json", policies="ascendra,vllm", pools="lp=2,hp=1", slo_ttft=0.1)
    assert code == 0
    assert {policy: summary["finished"] for policy, summary in json.loads(out).items()} == {
        "ascendra": 40,
        "vllm": 40,
    }
    assert "on 3 instances of h100, 2 lp and 1 hp under ascendra (" in err


def test_a_schedule_is_written(simulate: Headway, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    code, out, err = simulate("--json", policies="sjf", chrome_trace=path)
    assert code == 0
    assert list(json.loads(out)) == ["sjf"]
    events = json.loads(path.read_text())["traceEvents"]
    assert f"wrote {path}: {len(events):,} events; open it in ui.perfetto.dev" in err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"policies": "vllm,nope"}, "unknown policy 'nope'; accepted: vllm, "),
        ({"policies": " ,"}, "policies is ' ,'; accepted: names of the preset table"),
        ({"policies": "vllm,vllm"}, "policies are 'vllm, vllm'; accepted: different names"),
        ({"order": "nope"}, "unknown order 'nope'; accepted: "),
        ({"hardware": "abacus"}, "unknown hardware 'abacus'; accepted: "),
        ({"hardware": "local"}, "this machine has not been measured; run `headway profile"),
        ({"hardware": "missing.json"}, "cost file missing.json cannot be read"),
        ({"model": "parrot"}, "unknown model 'parrot'; accepted: "),
        ({"trace": "missing.csv"}, "missing.csv"),
        ({"trace": "gen:nonsense"}, "'gen:nonsense'"),
        ({"limit": 0}, "limit is 0; accepted: 1 or more"),
        ({"rate_scale": "0"}, "--rate-scale is '0'; accepted: a number above 0"),
        ({"steps": 5}, "steps is 5, but rate_scale is '1'; accepted with a range, as 0.5..1.5"),
        ({"seeds": 0}, "seeds is 0; accepted: 1 or more"),
        ({"jobs": 0}, "--jobs is 0; accepted: 1 or more"),
        ({"instances": 0}, "instances is 0; accepted: 1 or more"),
        ({"router": "dice"}, "unknown router 'dice'; accepted: "),
        (
            {"pool_router": "least-work"},
            "--pool-router is 'least-work' without pools; accepted: with --pools",
        ),
        ({"pools": "two"}, "pools are 'two'; accepted: POOL=COUNT,..."),
        ({"pools": "lp=1", "instances": 2}, "instances and pools are given; accepted: one of the two"),
        (
            {"policies": "ascendra"},
            "policy 'ascendra' serves pools; give their sizes (of lp, hp), as lp=2,hp=1",
        ),
        ({"policies": "ascendra", "pools": "hp=1"}, "pools are hp alone; accepted: lp beside it"),
        ({"slo_ttft": -1}, "--slo-ttft is -1.0; accepted"),
        ({"rate_scale": "1,1e-300"}, "rate factor is 1e-300, at which the last request arrives after "),
        ({"max_num_seqs": 0}, "--max-num-seqs is 0; accepted: 1 or more"),
        ({"max_output_tokens": 1}, "--max-output-tokens is 1; accepted: "),
        ({"tp": 3}, "tensor parallelism 3"),
        ({"pp": 999}, "999 pipeline stages do not share the 36 layers of Qwen/Qwen3-8B; accepted: 1 to 36"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens is 0; accepted: 1 or more"),
        ({"predictor": "tea-leaves"}, "unknown predictor 'tea-leaves'; accepted: none, learned, "),
        ({"predictor": "noisy-oracle:tau=2"}, "tau of a noisy oracle is 2.0; accepted: above 0, at most 1"),
        ({"load": "0"}, "load is '0'; accepted: a number above 0"),
        ({"load": "1", "rate_scale": "2"}, "--load is 1 and --rate-scale 2; accepted: one of the two"),
        ({"explain": "x"}, "no request 'x' in the trace; its 40 ids begin 0, 1, 2, 3, 4"),
        ({"explain": "1", "seeds": 2}, "accepted: one load, one seed"),
        ({"explain": "1", "rate_scale": "1,2"}, "accepted: one load, one seed"),
        ({"explain": "1", "out": "out"}, "accepted: one of the three"),
        ({"explain": "1", "chrome_trace": "t.json"}, "accepted: one of the two"),
        ({"chrome_trace": "t.json"}, "--chrome-trace is given for 2 runs; accepted: one policy"),
    ],
)
def test_what_is_not_accepted_is_one_line_and_nothing_is_written(
    refused_in_one_line: Refused, flags: dict[str, object], complaint: str
) -> None:
    assert complaint in refused_in_one_line(*command(**flags))


@pytest.mark.engine
def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = command(
        trace=TRACE.replace("count=40", "count=2000"), seeds=6, jobs=2, out=out, policies="vllm"
    )
    # A group of its own, as a terminal makes one: Ctrl-C reaches the workers too.
    running = subprocess.Popen(
        [sys.executable, "-m", "headway.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    deadline_s = time.monotonic() + 60
    while not list(out.rglob("*.cell.json")) and time.monotonic() < deadline_s:
        assert running.poll() is None, running.communicate()
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    done = len(list(out.rglob("*.cell.json")))
    assert running.returncode == 130
    assert stdout == ""
    assert (
        stderr.splitlines()[-1]
        == f"interrupted: {done} of 6 runs are kept in {out}; the same command goes on"
    )
    assert 1 <= done < 6
    assert not list(out.rglob("*.partial"))
    assert len(list(out.rglob("*.records.jsonl"))) == done


def test_what_is_left_out_of_a_trace_is_said_once_whoever_reads_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,9,5\n1,9,0\n2,9,5\n")
    words = command("--json", trace=trace, jobs=2)
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli", *words], capture_output=True, text=True, check=True
    )
    assert [summary["requests"] for summary in json.loads(done.stdout).values()] == [2, 2]
    assert done.stderr.count("left out") == 1
    assert done.stderr.startswith(
        f"{trace}: left out 1 of 3 rows: output_tokens is not 1 or more (1, first line 3)\n"
    )


def test_the_simulator_needs_neither_vllm_nor_http() -> None:
    program = (
        "import sys, headway.cli.simulate, headway.lab.simulation, headway.lab.cells,"
        "headway.lab.sim_tables, headway.lab.cells, headway.explain.text\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('vllm', 'torch', 'aiohttp')"
        " or name.startswith(('headway.engine', 'headway.gateway'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
