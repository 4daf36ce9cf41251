from __future__ import annotations

import os
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.servers.instances_command import (
    CORES_VARIABLE,
    GPUS_VARIABLE,
    Workers,
    bind_cores,
    bind_gpus,
    dealt,
    usable_cores,
    usable_gpus,
)
from headway.errors import ConfigError


@pytest.mark.parametrize(
    ("workers", "cores", "lists"),
    [
        # As many instances as cores: one each.
        (Workers(2), [0, 1], ["0", "1"]),
        # Two cores each: the second one is for the scheduler and the API server.
        (Workers(2), [0, 1, 2, 3], ["0", "2"]),
        # 7 cores for 2: 3 and 4, less one each.
        (Workers(2), [0, 1, 2, 3, 4, 5, 6], ["0,1", "3,4,5"]),
        # Two tensor-parallel workers each, two cores a worker.
        (Workers(2, 2), list(range(8)), ["0|2", "4|6"]),
        # One instance has the whole machine.
        (Workers(1), [4, 5, 6], ["4,5"]),
        (Workers(1), [3], ["3"]),
        # More instances than cores: in turn.
        (Workers(3), [0, 1], ["0", "1", "0"]),
        (Workers(2, 2), [0, 1, 2], ["0|1", "2|0"]),
    ],
)
def test_cores_are_shared_out(workers: Workers, cores: list[int], lists: list[str]) -> None:
    binding = bind_cores(workers, cores)
    assert [environment[CORES_VARIABLE] for environment in binding.environments] == lists
    assert binding.environment(len(lists) - 1) == {CORES_VARIABLE: lists[-1]}
    assert bool(binding.warnings) == (workers.total > len(cores))


def test_people_hear_who_computes_where() -> None:
    assert bind_cores(Workers(2), [0, 1, 2, 3, 4, 5, 6]).shown == ("cores 0,1", "cores 3,4,5")
    assert bind_cores(Workers(1, 2), [0, 1]).shown == ("cores 0 and 1",)
    crowded = bind_cores(Workers(3), [0, 1])
    assert crowded.shown == ("core 0", "core 1", "core 0")
    assert crowded.warnings[0].startswith("3 workers share 2 cores")
    with pytest.raises(ConfigError, match="no core of this machine may be used"):
        bind_cores(Workers(1), [])


@given(st.lists(st.integers(), unique=True, min_size=1, max_size=40), st.integers(1, 50))
def test_devices_are_dealt_evenly_and_none_is_left(devices: list[int], hands: int) -> None:
    shares = dealt(devices, hands)
    assert len(shares) == hands
    assert min(map(len, shares)) >= 1
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    held = list(chain.from_iterable(shares))
    assert set(held) == set(devices)
    if hands <= len(devices):
        assert held == devices
    else:
        times = [held.count(device) for device in devices]
        assert max(times) - min(times) <= 1


def test_each_instance_has_gpus_of_its_own() -> None:
    binding = bind_gpus(Workers(2, 2), ["0", "1", "2", "3", "4"])
    assert [environment[GPUS_VARIABLE] for environment in binding.environments] == ["0,1", "2,3"]
    assert (binding.shown, binding.warnings) == (("GPU 0, 1", "GPU 2, 3"), ())
    named = bind_gpus(Workers(2), ["GPU-aa", "GPU-bb"])
    assert [environment[GPUS_VARIABLE] for environment in named.environments] == ["GPU-aa", "GPU-bb"]


def test_too_few_gpus_are_refused_unless_their_memory_is_shared_out() -> None:
    with pytest.raises(ConfigError, match="3 instances of 1 GPU each need 3, and there are 2 here"):
        bind_gpus(Workers(3), ["0", "1"])
    shared = bind_gpus(Workers(3, shares_memory=True), ["0", "1"])
    assert [environment[GPUS_VARIABLE] for environment in shared.environments] == ["0", "1", "0"]
    assert len(shared.warnings) == 1
    # Three GPUs hold one group of two; the third is left over.
    pairs = bind_gpus(Workers(2, 2, shares_memory=True), ["0", "1", "2"])
    assert [environment[GPUS_VARIABLE] for environment in pairs.environments] == ["0,1", "0,1"]
    with pytest.raises(ConfigError, match="1 instances of 2 GPUs each need 2, and there are 1 here"):
        bind_gpus(Workers(1, 2, shares_memory=True), ["0"])


def test_this_machines_cores_are_some_of_those_we_may_use() -> None:
    cores = usable_cores()
    assert set(cores) <= os.sched_getaffinity(0)
    assert len(set(cores)) == len(cores) >= 1
    one = {cores[0]}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, one)
    try:
        assert set(usable_cores()) == one
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("named", "gpus"), [("2,3", ["2", "3"]), ("GPU-aa", ["GPU-aa"]), ("", [])])
def test_gpus_are_those_that_the_user_left_visible(
    monkeypatch: pytest.MonkeyPatch, named: str, gpus: list[str]
) -> None:
    monkeypatch.setenv(GPUS_VARIABLE, named)
    assert usable_gpus() == gpus


def test_without_a_driver_the_gpus_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GPUS_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "")
    assert usable_gpus() is None
