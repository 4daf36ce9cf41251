"""A few hundred requests through a real server, with clients that vanish: every one is accounted for."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import openai
import pytest

from bench.right import soak
from headway.core.record import Outcome, Record
from headway.engine.host_kv import HostKv


def knock(url: str) -> None:
    """Requests that must not reach the engine: each is a 400 that says what was wrong."""
    bad_hints: dict[str, tuple[str, object]] = {
        "headway_ttft_ms is -5; accepted: milliseconds in": ("headway_ttft_ms", -5),
        "headway_tbt_ms is 1000000000000": ("headway_tbt_ms", 1e12),
        "headway_deadline_ms is 'soon'; accepted: milliseconds in": ("headway_deadline_ms", "soon"),
        "unknown headway_urgency in vllm_xargs; accepted:": ("headway_urgency", 1),
    }
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        ask = partial(client.completions.create, model="demo", max_tokens=1)
        for complaint, (key, value) in bad_hints.items():
            with pytest.raises(openai.BadRequestError, match=complaint):
                ask(prompt=[1, 2, 3], extra_body={"vllm_xargs": {key: value}})
        with pytest.raises(openai.BadRequestError, match=f"maximum context length is {soak.MAX_MODEL_LEN}"):
            ask(prompt=[300] * (soak.MAX_MODEL_LEN + 1))


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("policy", "leaving", "host_kv", "batch_width"),
    [
        pytest.param("sjf", ["queue-bound:max_waiting=48"], None, None, marks=pytest.mark.long),
        pytest.param(soak.SWAPPING_POLICY, [], HostKv(gib=0.05), None, marks=pytest.mark.long),
        pytest.param("fastserve", [], HostKv(gib=0.1), 3, marks=pytest.mark.long),
    ],
    ids=["sjf", "swapping", "pausing"],
)
def test_every_request_ends_once_on_both_sides(
    policy: str, leaving: list[str], host_kv: HostKv | None, batch_width: int | None, tmp_path: Path
) -> None:
    result = soak.soak(policy, leaving, 150, tmp_path, visit=knock, host_kv=host_kv, batch_width=batch_width)
    log = (tmp_path / "log").read_text(errors="replace")
    assert soak.passed(result), f"{result}\n{log[-3000:]}"
    assert (result["requests"], result["unaccounted"], result["unexplained"]) == (150, 0, 0)
    assert sum(result[outcome] for outcome in ("finished", "cancelled", "shed", "failed")) == 150
    assert result["cancelled"] > 10
    assert result["preemptions"] > 0
    assert (result["swapped_out_blocks"] > 0) == (result["swapped_in_blocks"] > 0) == bool(host_kv)
    assert result["failed_copies"] == result["lost_copies"] == 0
    assert (result["shed"] > 0) == bool(leaving)
    assert (result["pauses"] > 1000) == (result["prefetches"] > 0) == (batch_width is not None)
    assert (result["policy"], result["exit_code"]) == (policy, 0)
    assert "Traceback" not in log.partition("[shutdown]")[0]  # vLLM may log its engine's end as an error


# ---- the accounting itself can fail ------------------------------------------------------------------


def record(id_: str, outcome: str = "finished", output_tokens: int = 5, tenant: str = "") -> Record:
    return Record(
        id=id_,
        tenant=tenant,
        arrival_s=0.0,
        prompt_tokens=3,
        outcome=Outcome(outcome),
        output_tokens=output_tokens,
        finished_s=1.0,
    )


def served(tenant: str, outcome: str = "finished", output_tokens: int = 5) -> Record:
    """The engine's record of a request, under an id of its own."""
    return record(f"cmpl-{tenant}", outcome, output_tokens, tenant)


CLIENT = [record("a"), record("b", "cancelled", 2), record("c", "shed", 0), record("d", "cancelled", 0)]
SERVED = [served("a"), served("b", "cancelled", 3), served("c", "shed", 0), served("d")]


def test_both_sides_of_a_good_run_agree() -> None:
    assert soak.unaccounted("abcd", CLIENT, SERVED) == 0
    assert soak.unaccounted("abcd", CLIENT[::-1], SERVED) == 0


@pytest.mark.parametrize(
    ("client", "engine", "missing"),
    [
        (CLIENT[:3], SERVED, 1),
        (CLIENT, SERVED[1:], 1),
        ([*CLIENT, CLIENT[0]], SERVED, 1),
        (CLIENT, [*SERVED, SERVED[0], SERVED[0]], 1),
        (CLIENT, [*SERVED, served("nobody's")], 1),
        ([*CLIENT, record("stranger")], SERVED, 1),
        (CLIENT, [served("a", output_tokens=4), *SERVED[1:]], 1),
        (CLIENT, [served("a", "cancelled"), *SERVED[1:]], 1),
        (CLIENT, [SERVED[0], served("b", "shed", 0), *SERVED[2:]], 1),
        ([record("a", "failed"), *CLIENT[1:]], SERVED, 1),
        ([], [], 4),
    ],
)
def test_a_request_lost_doubled_or_told_in_two_ways_is_unaccounted(
    client: list[Record], engine: list[Record], missing: int
) -> None:
    assert soak.unaccounted("abcd", client, engine) == missing


FAULTS = ["failed", "unaccounted", "unexplained", "policy_faults", "watchdog_faults", "exit_code"]


@pytest.mark.parametrize("fault", FAULTS)
def test_one_thing_wrong_fails_the_run(fault: str) -> None:
    good = {"requests": 9, "finished": 9, **dict.fromkeys(FAULTS, 0)}
    assert soak.passed(good)
    assert not soak.passed({**good, fault: 1})


def test_the_requests_fit_the_model_and_are_named_on_both_sides() -> None:
    requests = soak.make_requests(300)
    assert len({request.id for request in requests}) == len(requests) == 300
    assert all(request.tenant == request.id for request in requests)
    assert max(request.input_tokens + request.output_tokens for request in requests) <= soak.MAX_MODEL_LEN


def test_waiting_for_the_engines_records_ends_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "records"
    path.write_text("1\n2\n")
    soak.wait_for_lines(path, 2)
