from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.lab.policy_choice import (
    OWN_PARTS,
    Parts,
    check_policies,
    code_digest,
    label,
    made_of,
    policies_of,
    policy_factory,
    said_without_targets,
    uses_predictions,
)
from headway.policies.order.due import EarliestDeadline
from headway.policies.order.skip_join_mlfq import SkipJoinMlfq
from headway.policies.presets import POOLED, PRESETS, build_policy, find_preset
from tests.lab import visitor

SWEPT = ("fastserve", "mlfq-preempt")


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
    assert going == ["predicted", "hrrn", "headway"]
    assert uses_predictions("vllm", Parts(order="predicted-remaining"))
    assert uses_predictions("fastserve", Parts(batching="top-jobs:reserve_confidence=0.9"))
    assert not uses_predictions("predicted", Parts(order="arrival", batching="top-jobs"))


def test_a_dial_is_turned_where_there_is_one_and_refused_where_there_is_none() -> None:
    parts = Parts(decode_share="0.6", tail=0.0)
    check_policies(["vllm", "headway"], parts)
    assert made_of("vllm", parts) == made_of("vllm")
    made = made_of("headway", parts)["headway"]
    assert (made["order"], made["batching"]) == ("on-time:tail=0", "paced:decode_share=0.6")
    with pytest.raises(
        ConfigError, match=r"decode_share is 0\.6; accepted: with a policy that has it: headway"
    ):
        check_policies(["vllm", "sjf"], Parts(decode_share="0.6"))


def test_who_needs_targets() -> None:
    [said] = said_without_targets([*PRESETS, *POOLED, "mlfq-preempt", "edf-oracle"])
    assert said == (
        "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf, ascendra-lp, "
        "ascendra-lp-no-hand-off, ascendra"
    )
    assert said_without_targets(["vllm"], Parts(order="slack")) == [
        "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: vllm"
    ]
    assert said_without_targets(["edf"], Parts(order="arrival")) == []


MadeOf = Callable[..., dict[str, Any]]


@pytest.fixture
def visiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeOf]:
    """The content of the visiting policy after its package was written with these changes."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # or edits within a second would not be seen

    def written(**changes: Any) -> dict[str, Any]:
        visitor.forget()
        visitor.write(tmp_path, **changes)
        return made_of(visitor.NAME)[visitor.NAME]

    yield written
    visitor.forget()


def test_a_policy_is_its_row_its_code_and_who_brings_it(visiting: MadeOf) -> None:
    made = visiting()
    assert len(made.pop("code")) == 16
    assert made == {
        "order": "visitor",
        "batching": "decode-first:token_budget=64",
        "eviction": "recompute",
        "leaving": [],
        "packages": ["headway_visitor 1.0"],
    }
    assert "packages" not in made_of("headway")["headway"]


@pytest.mark.parametrize(
    ("change", "differing"),
    [
        ({"token_budget": 2048}, {"batching", "code"}),
        ({"version": "1.1"}, {"packages"}),
        ({"remark": "But not always."}, {"code"}),
        ({"weight": 2}, {"code"}),
        ({}, set()),
    ],
)
def test_whatever_is_changed_of_it_is_seen(
    visiting: MadeOf, change: dict[str, object], differing: set[str]
) -> None:
    before, after = visiting(), visiting(**change)
    assert {key for key in before if before[key] != after[key]} == differing


def test_a_part_of_another_package_is_seen_in_a_row_of_headways(visiting: MadeOf) -> None:
    visiting()
    made = made_of("vllm", Parts(order="visitor"))["vllm"]
    assert (made["order"], made["packages"]) == ("visitor", ["headway_visitor 1.0"])
    assert made["code"] != made_of("vllm")["vllm"]["code"]


def test_parts_take_the_place_of_a_rows_own() -> None:
    made = made_of("ascendra-lp", Parts(order="edf", leaving=()))["ascendra-lp"]
    assert (made["order"], made["batching"], made["leaving"]) == ("edf", "within-budgets", [])


def test_pools_have_a_row_each_an_oracle_has_none_and_an_unknown_name_is_refused() -> None:
    assert list(made_of("ascendra")) == ["ascendra-lp", "ascendra-hp"]
    assert made_of("ascendra")["ascendra-lp"] == made_of("ascendra-lp")["ascendra-lp"]
    assert list(made_of("mlfq-preempt")) == ["mlfq-preempt"]
    assert made_of("srpt-oracle") == {}
    with pytest.raises(ConfigError, match="unknown policy 'nope'"):
        made_of("nope")


def test_the_code_of_a_part_is_that_of_all_it_uses_of_policies() -> None:
    edf, sjf = (build_policy(find_preset(name)) for name in ("edf", "sjf"))
    assert code_digest([edf.order]) == code_digest([build_policy(find_preset("edf")).order])
    assert len({code_digest([part]) for part in (edf.order, sjf.order, edf.batching)}) == 3
    assert code_digest([edf.batching]) == code_digest([sjf.batching])
    # `edf` is a due order, whose code it shares with `slack`: both files count.
    used = sha256(b"".join(Path(__file__).parents[2].joinpath(each).read_bytes() for each in EDF_FILES))
    assert code_digest([edf.order]) == used.hexdigest()


EDF_FILES = [
    f"src/headway/policies/{name}.py"
    for name in ("order/due", "order/keyed", "order/sorted_index", "protocols")
]
