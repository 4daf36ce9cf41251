from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.lab.policy_choice import Parts
from headway.lab.policy_source import code_digest, made_of
from headway.policies.presets import build_policy, find_preset
from tests.lab import visitor

MadeOf = Callable[..., dict[str, Any]]


@pytest.fixture
def visiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MadeOf]:
    """What the visiting policy is made of, once its package was written with these changes."""
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
    # `edf` is a due order, which is a keyed one: the files of both count.
    used = sha256(b"".join(Path(__file__).parents[2].joinpath(each).read_bytes() for each in EDF_FILES))
    assert code_digest([edf.order]) == used.hexdigest()


EDF_FILES = [
    f"src/headway/policies/{name}.py"
    for name in ("order/due", "order/keyed", "order/sorted_index", "protocols")
]
