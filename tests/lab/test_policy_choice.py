from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.lab.policy_choice import (
    OWN_PARTS,
    Parts,
    check_policies,
    label,
    policies_of,
    policy_factory,
    said_without_targets,
    uses_predictions,
)
from headway.policies.order.due import EarliestDeadline
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.presets import POOLED, PRESETS, find_preset

SWEPT = ("mlfq-no-preempt", "mlfq-preempt")


def test_names_say_what_no_engine_has() -> None:
    names = ["fastserve", "mlfq-preempt", "srpt-oracle"]
    assert list(map(label, names)) == [
        "fastserve",
        "mlfq-preempt (simulator only)",
        "srpt-oracle (clairvoyant)",
    ]


def test_a_policy_of_pools_is_a_policy_for_each() -> None:
    check_policies(["ascendra"], OWN_PARTS, {"lp": 2, "hp": 1})
    policies = policies_of("ascendra", Parts(order="edf"), ())
    assert isinstance(policies, Mapping)
    built = {pool: build(UnknownCost()) for pool, build in policies.items()}
    assert {pool: policy.name for pool, policy in built.items()} == {"lp": "ascendra-lp", "hp": "ascendra-hp"}
    assert {type(policy.order) for policy in built.values()} == {EarliestDeadline}
    assert not uses_predictions("ascendra", OWN_PARTS)


def test_an_engine_refuses_what_the_simulator_alone_has() -> None:
    for name in ("mlfq-preempt", "srpt-oracle"):
        check_policies([name], OWN_PARTS)
        with pytest.raises(ConfigError, match=f"unknown policy '{name}'; accepted: vllm, "):
            find_preset(name)


@pytest.mark.parametrize("name", SWEPT)
def test_a_quantum_can_be_given_to_all_that_have_one(name: str) -> None:
    parts = Parts(order="skip-join-mlfq:skip_join=false,quantum_s=0.02")
    check_policies([name], parts)
    order = policy_factory(name, parts, ())(UnknownCost()).order
    assert isinstance(order, SkipJoinMlfq)
    assert (order.quantum_s, order.skip_join) == (0.02, False)


@pytest.mark.parametrize(
    ("name", "parts", "complaint"),
    [
        (
            "nope",
            OWN_PARTS,
            "unknown policy 'nope'; accepted: vllm, .*, mlfq-preempt, srpt-oracle, edf-oracle",
        ),
        ("srpt-oracle", Parts(order="edf"), "'srpt-oracle' is an oracle, which has no parts"),
        ("mlfq-preempt", Parts(order="edf"), "order of 'mlfq-preempt' is 'edf'; accepted: skip-join-mlfq"),
        ("mlfq-preempt", Parts(eviction="nope"), "unknown eviction 'nope'"),
    ],
)
def test_what_is_not_accepted_is_said(name: str, parts: Parts, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_policies([name], parts)


def test_parts_that_are_given_take_the_place_of_the_rows_own() -> None:
    parts = replace(OWN_PARTS, batching="decode-first", leaving=("expired",))
    assert parts.given() == {"batching": "decode-first", "leaving": ("expired",)}
    assert not OWN_PARTS.given()
    assert not OWN_PARTS


def test_who_goes_by_predictions() -> None:
    going = [name for name in (*PRESETS, "mlfq-preempt", "srpt-oracle") if uses_predictions(name, OWN_PARTS)]
    headway = [name for name in PRESETS if name.startswith("headway")]
    assert going == ["predicted", "hrrn", *headway]
    assert uses_predictions("vllm", Parts(order="predicted-remaining"))
    assert uses_predictions("fastserve", Parts(batching="top-jobs:reserve_confidence=0.9"))
    assert not uses_predictions("predicted", Parts(order="arrival", batching="top-jobs"))


def test_who_needs_targets() -> None:
    [said] = said_without_targets([*PRESETS, *POOLED, "mlfq-preempt", "edf-oracle"])
    assert said == (
        "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf, ascendra-lp, "
        "ascendra-lp-edf, ascendra-lp-no-hand-off, ascendra, ascendra-edf, ascendra-fixed, ascendra-no-hand-off"
    )
    assert said_without_targets(["vllm"], Parts(order="slack")) == [
        "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: vllm"
    ]
    assert said_without_targets(["edf"], Parts(order="arrival")) == []
