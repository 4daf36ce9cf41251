"""What of the real comparison needs no engine: streams, targets, the compared systems and their start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from headway_reproduce.ascendra.real_servers import (
    ASCENDRA,
    SERVICES,
    SYSTEMS,
    VLLM,
    gateway,
    gateway_command,
    pool_sizes,
    ready_instances,
)
from headway_reproduce.ascendra.real_stream import (
    LONGEST_INPUT_TOKENS,
    LONGEST_OUTPUT_TOKENS,
    bursty_stream,
    targets,
)
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import SimulationError, UpstreamError
from headway.lab.server import RunningServer
from headway.results import Summary, summarize
from headway.routing.pools import instance_names


@given(rate_rps=st.floats(1.0, 200.0), seconds=st.floats(1.0, 30.0), seed=st.integers(0, 5))
def test_a_stream_has_exactly_the_load_it_is_called(rate_rps: float, seconds: float, seed: int) -> None:
    requests = bursty_stream(rate_rps, seconds, seed)
    assert len(requests) == max(2, round(rate_rps * seconds))
    times_s = [request.arrival_s for request in requests]
    assert times_s == sorted(times_s)
    assert times_s[0] == 0.0
    assert times_s[-1] == pytest.approx(seconds)


def test_a_stream_fits_the_demo_model_and_has_its_targets() -> None:
    slo = Slo(ttft_s=0.4, tbt_s=0.06)
    requests = bursty_stream(50.0, 20.0, 1, slo)
    assert max(request.input_tokens for request in requests) <= LONGEST_INPUT_TOKENS
    assert max(request.output_tokens for request in requests) <= LONGEST_OUTPUT_TOKENS
    assert {request.slo for request in requests} == {slo}


def test_targets_follow_from_light_load_by_the_rule() -> None:
    def record(ttft_s: float) -> Record:
        return Record(
            id=f"{ttft_s}",
            arrival_s=0.0,
            prompt_tokens=8,
            outcome=Outcome.FINISHED,
            output_tokens=1,
            first_token_s=ttft_s,
            finished_s=ttft_s,
        )

    light = summarize([record(ttft_s) for ttft_s in (0.03, 0.05, 0.4)])
    # Ten times the median, 50 ms; and of that as much as 0.15 s is of 1 s.
    found = targets(light)
    assert found.ttft_s == pytest.approx(0.5)
    assert found.tbt_s == pytest.approx(0.075)


def test_no_targets_without_a_light_load() -> None:
    with pytest.raises(SimulationError, match="light load"):
        targets(_nothing())


def _nothing() -> Summary:
    return summarize([Record(id="a", arrival_s=0.0, prompt_tokens=8, outcome=Outcome.FAILED, finished_s=1.0)])


@pytest.mark.parametrize(
    ("service", "instances", "names"),
    [(VLLM, 2, ["0", "1"]), (ASCENDRA, 2, ["lp-0", "hp-0"]), (ASCENDRA, 3, ["lp-0", "lp-1", "hp-0"])],
)
def test_instances_are_named_as_the_gateway_names_them(
    service: str, instances: int, names: list[str]
) -> None:
    assert list(instance_names(pool_sizes(SERVICES[service], instances))) == names


def test_a_gateway_joins_every_instance_in_its_pool() -> None:
    places = {"lp-0": RunningServer("http://a", 1), "hp-0": RunningServer("http://b", 2)}
    words = gateway_command(SYSTEMS[ASCENDRA].router, places, 8123)
    assert " ".join(words).endswith(
        "serve --join lp=http://a --join hp=http://b --router ascendra --port 8123"
    )
    words = gateway_command("round-robin", {"0": RunningServer("http://a", 1)}, 8123)
    assert " ".join(words).endswith("serve --join http://a --router round-robin --port 8123")


def test_a_gateway_that_is_not_there_has_no_instance_ready() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert ready_instances(f"http://127.0.0.1:{probe.getsockname()[1]}") == 0


def test_a_gateway_that_does_not_get_ready_says_why(tmp_path: Path) -> None:
    instances = {"0": RunningServer("http://127.0.0.1:1", 0)}
    with (
        pytest.raises(
            UpstreamError, match=r"did not get ready: .*'nope'.*; its messages are in .*a-b-gateway\.log"
        ),
        gateway("a b", "nope", instances, tmp_path),
    ):
        pytest.fail("it got ready")
