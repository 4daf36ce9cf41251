"""The parts of the real comparison that need no engine: streams, targets, who is compared, and how it is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from headway_reproduce.ascendra.real_run import HAND_OFFS, counts, joined
from headway_reproduce.ascendra.real_servers import (
    GatewayInstance,
    GatewayState,
    HandOffs,
    gateway,
    gateway_command,
    ready_instances,
)
from headway_reproduce.ascendra.real_stream import Shape, TargetRule, bursty_stream
from headway_reproduce.ascendra.real_systems import (
    ASCENDRA,
    DROP,
    SERVICES,
    STOCK,
    SYSTEMS,
    RealService,
    RealSystem,
    calibrating,
    pool_sizes,
)
from headway_reproduce.process_cpu import ThreadTime, Usage
from hypothesis import given
from hypothesis import strategies as st

from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.errors import ConfigError, SimulationError, UpstreamError
from headway.lab.server import RunningServer
from headway.results import Summary, summarize
from headway.routing.pools import instance_names


@given(
    rate_rps=st.floats(1.0, 200.0),
    seconds=st.floats(1.0, 30.0),
    seed=st.integers(0, 5),
)
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
    assert max(request.input_tokens for request in requests) <= Shape().longest_input_tokens
    assert max(request.output_tokens for request in requests) <= Shape().longest_output_tokens
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
    found = TargetRule(ttft_factor=10.0, tbt_share=0.15).targets(light)
    assert found.ttft_s == pytest.approx(0.5)
    assert found.tbt_s == pytest.approx(0.075)


def test_no_targets_without_a_light_load() -> None:
    with pytest.raises(SimulationError, match="light load"):
        TargetRule().targets(_nothing())


def _nothing() -> Summary:
    return summarize([Record(id="a", arrival_s=0.0, prompt_tokens=8, outcome=Outcome.FAILED, finished_s=1.0)])


def test_four_of_stock_each_router_with_and_without_the_rule() -> None:
    stock = {(SYSTEMS[name].router, SERVICES[SYSTEMS[name].service].leaving) for name in STOCK}
    assert stock == {(router, rule) for router in ("round-robin", "least-work") for rule in (None, DROP)}
    assert all(SERVICES[SYSTEMS[name].service].presets == {"": "vllm"} for name in STOCK)
    assert set(SYSTEMS) == {ASCENDRA, *STOCK}
    assert calibrating(SYSTEMS) == STOCK[0]
    assert calibrating([ASCENDRA, "vllm least-work, drop"]) == "vllm least-work, drop"
    with pytest.raises(ConfigError, match="capacity"):
        calibrating([ASCENDRA])


@pytest.mark.parametrize(
    ("service", "instances", "names"),
    [
        (SERVICES["vllm"], 2, ["0", "1"]),
        (SERVICES[ASCENDRA], 2, ["lp-0", "hp-0"]),
        (SERVICES[ASCENDRA], 3, ["lp-0", "lp-1", "hp-0"]),
    ],
)
def test_instances_are_named_as_the_gateway_names_them(
    service: RealService, instances: int, names: list[str]
) -> None:
    assert list(instance_names(pool_sizes(service, instances))) == names


def test_pools_need_an_instance_each() -> None:
    with pytest.raises(ConfigError, match="2 or more"):
        pool_sizes(SERVICES[ASCENDRA], 1)


def test_a_gateway_joins_every_instance_in_its_pool() -> None:
    places = {"lp-0": RunningServer("http://a", 1), "hp-0": RunningServer("http://b", 2)}
    words = gateway_command(SYSTEMS[ASCENDRA], places, 8123)
    assert " ".join(words).endswith(
        "serve --join lp=http://a --join hp=http://b --router ascendra --port 8123"
    )
    words = gateway_command(SYSTEMS["vllm round-robin"], {"0": RunningServer("http://a", 1)}, 8123)
    assert " ".join(words).endswith("serve --join http://a --router round-robin --port 8123")


def test_what_a_gateway_did_is_counted_by_instance() -> None:
    instances = [GatewayInstance("lp-0", "ready", 1, 5), GatewayInstance("hp-0", "lost", 0, 7)]
    state = GatewayState(instances, [HandOffs(2), HandOffs(1)])
    assert counts(state) == {"lp-0": 5, "hp-0": 7, HAND_OFFS: 3}


def test_a_gateway_that_is_not_there_has_no_instance_ready() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert ready_instances(f"http://127.0.0.1:{probe.getsockname()[1]}") == 0


def test_several_processes_are_counted_as_one() -> None:
    one, two = Usage(1.0, {1: ThreadTime(1.0, 0.0)}), Usage(2.5, {2: ThreadTime(2.0, 1.0)})
    assert joined([one, two]) == Usage(3.5, {**one.threads, **two.threads})
    assert joined([]) == Usage(0.0, {})


def test_a_gateway_that_does_not_get_ready_says_why(tmp_path: Path) -> None:
    instances = {"0": RunningServer("http://127.0.0.1:1", 0)}
    with (
        pytest.raises(
            UpstreamError, match=r"did not get ready: .*'nope'.*; its messages are in .*a-b-gateway\.log"
        ),
        gateway("a b", RealSystem("vllm", "nope"), instances, tmp_path),
    ):
        pytest.fail("it got ready")
