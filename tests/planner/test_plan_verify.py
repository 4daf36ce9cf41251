from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from headway.errors import ConfigError, UpstreamError
from headway.lab.server import free_port
from headway.planner.deploy import arguments, deployed
from headway.planner.machine import Configuration
from headway.planner.replay_setup import FEWEST_REQUESTS, ServingOverhead
from headway.planner.verify import Verified, verify, verify_table
from tests.planner.costs import write_costs
from tests.planner.plans import planned, prepared

HERE = Configuration(gpus=1, policy="vllm", tp=1, instances=1, seats=16, tokens_a_step=512)
VERIFIED = Verified(
    configuration=HERE,
    words=("headway", "serve", "demo", "--", "--max-num-seqs", "16"),
    requests=30,
    rate_rps=5.0,
    served=ServingOverhead(1.1, 0.002, 0.004),
    predicted={"mean_jct_s": 1.05, "p99_jct_s": 2.0, "mean_ttft_s": 0.1, "mean_tbt_s": 0.01, "goodput": 0.9},
    by_profile={"mean_jct_s": 0.8, "p99_jct_s": 1.0, "mean_ttft_s": 0.05, "mean_tbt_s": 0.01, "goodput": 1.0},
    achieved={"mean_jct_s": 1.0, "p99_jct_s": 2.5, "mean_ttft_s": 0.1, "mean_tbt_s": None, "goodput": 0.95},
    at_client={"mean_jct_s": 1.2, "p99_jct_s": 2.6, "mean_ttft_s": 0.3, "mean_tbt_s": None, "goodput": 0.9},
    client_late_s=0.031,
)


def test_errors_are_of_what_came_and_points_of_goodput() -> None:
    errors = VERIFIED.errors(VERIFIED.predicted)
    assert errors == {
        "mean_jct_s": pytest.approx(0.05),
        "p99_jct_s": pytest.approx(-0.2),
        "mean_ttft_s": pytest.approx(0.0),
        "mean_tbt_s": None,
        "goodput": pytest.approx(-0.05),
    }
    assert json.loads(json.dumps(VERIFIED.to_dict()))["errors_by_profile"]["mean_jct_s"] == pytest.approx(
        -0.2
    )


def test_predicted_stands_beside_achieved() -> None:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(verify_table(VERIFIED))
    text = capture.get()
    assert "+5.0%" in text
    assert "-20.0%" in text
    assert "1.10 times as long as profiled and 2.0 ms more, and adds 4.0 ms" in text
    assert "the client sent its requests up to 31 ms late" in text
    assert "1.200" in text
    assert "TBT mean" not in text


def test_no_time_to_check_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verify_seconds is 0; accepted: more than 0"):
        verify(planned(tmp_path, prepared(), budget=1), tmp_path, 0, lambda line: None)


def test_a_deployment_that_does_not_start_is_one_error(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    words = ("headway", "serve", "demo", "--policy", "nope", "--")
    says = r"the deployment did not get ready: unknown policy 'nope'; .*; its messages are in .*server\.log"
    with pytest.raises(UpstreamError, match=says), deployed(words, free_port(), log, tmp_path / "r.jsonl"):
        pytest.fail("it got ready")
    assert "unknown policy 'nope'" in log.read_text()


DEPLOYING = """
import sys
from pathlib import Path
from headway.planner.deploy import deployed

folder = Path(sys.argv[2])
with deployed(("headway", "serve", "demo", "--"), int(sys.argv[1]), folder / "server.log", folder / "records.jsonl"):
    sys.exit("it was not to get ready")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_a_killed_check_leaves_no_server_behind(tmp_path: Path) -> None:
    words = [sys.executable, "-c", DEPLOYING, str(free_port()), str(tmp_path)]
    with subprocess.Popen(words) as checking:
        children = Path(f"/proc/{checking.pid}/task/{checking.pid}/children")
        _soon(lambda: bool(children.read_text()))
        server = int(children.read_text())
        _soon(lambda: b"headway.cli" in Path(f"/proc/{server}/cmdline").read_bytes())
        os.kill(checking.pid, signal.SIGKILL)
    _soon(lambda: not _lives(server))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _soon(happened: Callable[[], bool]) -> None:
    for _ in range(500):
        if happened():
            return
        time.sleep(0.02)
    pytest.fail("it did not happen within ten seconds")


@pytest.mark.engine
@pytest.mark.long
def test_a_choice_is_deployed_replayed_and_compared(tmp_path: Path) -> None:
    costs = write_costs(tmp_path / "cost.json", jobs=128, tokens=2048)
    asked = prepared(hardware=str(costs), model="demo", policies=("predicted",), trace=_TRACE, load=0.5)
    folder = tmp_path / "plan"
    plan = planned(folder, asked, budget=1)
    told: list[str] = []
    # The costs are this machine's as far as the plan knows, so it is not profiled.
    found = verify(plan, folder, 1.0, told.append)
    assert found.words == arguments("demo", found.configuration, plan.prepared.request.trace.slo)
    assert found.requests >= FEWEST_REQUESTS
    assert found.configuration == plan.choice
    assert "--predictor" in found.words
    errors = found.errors(found.predicted)
    assert all(errors[key] is not None for key in ("mean_jct_s", "p99_jct_s", "mean_ttft_s", "mean_tbt_s"))
    assert errors["goodput"] is None
    assert found.served.step_factor > 0
    assert found.client_late_s > 0
    # What a request takes in the engine is part of what its client waits for it.
    assert 0 < (found.achieved["mean_jct_s"] or 0) < (found.at_client["mean_jct_s"] or 0)
    assert told[0].startswith("deploying:")
    assert told[1] == f"serving {found.requests} requests, to compare"


_TRACE = "gen:poisson:rate=10/input=constant:tokens=64/output=constant:tokens=16/count=400"
