from __future__ import annotations

import re
from typing import Any

import pytest

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.batching.prefill_first import PrefillFirst
from headway.policies.batching.reserved import RequestLevel
from headway.policies.batching.swapped_or_waiting import SwappedOrWaiting
from headway.policies.eviction.cheapest import Cheapest
from headway.policies.eviction.reactive import Swap
from headway.policies.leaving.queue_limits import QueueBound
from headway.policies.order.due import LeastSlack
from headway.policies.order.response_ratio import DeadlineAware, WaitedOverLength
from headway.policies.parts import BUILT_IN, build_part, known_parts, part_settings
from headway.policies.presets import PRESETS, find_preset
from tests.policies.conftest import MODULE, Install

HUGE = 10**20
"""More than a container of the standard library can be told to hold."""

GUEST = "[headway.order]\nguest = headway_guest:Guest\n"


# ---- built in --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, parts in BUILT_IN.items() for name in parts]
)
def test_every_built_in_part_is_built_by_its_name(kind: str, name: str) -> None:
    # The one part that cannot do without a setting.
    spec = "queue-bound:max_waiting=1" if name == "queue-bound" else name
    assert type(build_part(kind, spec, None)) is BUILT_IN[kind][name]


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("batching", "decode-first", DecodeFirst()),
        ("batching", "decode-first:", DecodeFirst()),
        ("batching", "decode-first:token_budget=512", DecodeFirst(512)),
        ("batching", "request-level:batch_size=4,reserve=false", RequestLevel(4, reserve=False)),
        ("batching", "request-level:reserve=true", RequestLevel(reserve=True)),
        ("batching", "prefill-first:host_room=true", PrefillFirst(host_room=True)),
        ("batching", "swapped-or-waiting:skip_misfit=true", SwappedOrWaiting(skip_misfit=True)),
        ("eviction", "swap:serial=true,fallback=false", Swap(serial=True, fallback=False)),
        ("eviction", "cheapest:min_residency=4", Cheapest(min_residency=4)),
        ("order", "deadline-aware:most=2,prompt_only=true", DeadlineAware(2.0, prompt_only=True)),
        ("order", "waited-over-length:prompt_only=true", WaitedOverLength(prompt_only=True)),
        ("leaving", "queue-bound:max_age_s=2.5,max_waiting=3", QueueBound(max_waiting=3, max_age_s=2.5)),
    ],
)
def test_settings_follow_the_name(kind: str, spec: str, expected: Any) -> None:
    built = build_part(kind, spec, None)
    names = part_settings(type(expected))
    assert {name: getattr(built, name) for name in names} == {name: getattr(expected, name) for name in names}
    assert type(built) is type(expected)


def test_a_part_that_asks_for_the_cost_model_gets_it() -> None:
    cost = UnknownCost()
    assert build_part("order", "slack", cost)._cost is cost
    assert isinstance(build_part("order", "slack", None)._cost, UnknownCost)


def test_settings_are_the_public_parameters_with_their_plain_types() -> None:
    assert part_settings(DecodeFirst) == {"token_budget": int, "head_room": int}
    assert part_settings(RequestLevel) == {"batch_size": int, "reserve": bool}
    assert part_settings(QueueBound) == {"max_waiting": int, "max_waiting_tokens": int, "max_age_s": float}
    assert part_settings(LeastSlack) == {}


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        (
            "order",
            "fifo",
            "unknown order 'fifo'; accepted: arrival, boost, deadline-aware, edf, governed, hrrn, ",
        ),
        (
            "batching",
            "",
            "unknown batching ''; accepted: decode-first, elastic, iteration-level, paced, prefill-first, request-",
        ),
        ("eviction", "drop", "unknown eviction 'drop'; accepted: cheapest, proactive, recompute, swap"),
        (
            "leaving",
            "Expired",
            "unknown leaving 'Expired'; did you mean expired? All: `headway policies`",
        ),
        (
            "batching",
            "decode-first:budget=5",
            "batching 'decode-first' has no setting 'budget=5'; did you mean token_budget? accepted: head_room=..., ",
        ),
        (
            "batching",
            "request-level:reserve",
            "batching 'request-level' has no setting 'reserve'; accepted: batch_size=..., reserve=...",
        ),
        ("order", "slack:cost=3", "order 'slack' has no setting 'cost=3'; accepted: none"),
        (
            "leaving",
            "queue-bound:_waiting_tokens=3",
            "has no setting '_waiting_tokens=3'; did you mean max_waiting_tokens or ",
        ),
        (
            "batching",
            "decode-first:token_budget=1.5",
            "batching 'decode-first', token_budget is '1.5'; accepted: a value of type int",
        ),
        ("batching", "decode-first:token_budget=", "token_budget is ''; accepted: a value of type int"),
        ("batching", "request-level:reserve=yes", "reserve is 'yes'; accepted: true or false"),
        ("leaving", "queue-bound:max_age_s=soon", "max_age_s is 'soon'; accepted: a value of type float"),
        ("leaving", "queue-bound", "queue-bound needs at least one of"),
        ("batching", "decode-first:token_budget=0", "token_budget is 0; accepted: 1 or more"),
        ("batching", "decode-first:head_room=-1", "head_room is -1; accepted: 0 or more blocks"),
        ("eviction", "cheapest:min_residency=-1", "min_residency is -1; accepted: 0 to 1,000,000"),
        ("eviction", f"cheapest:min_residency={HUGE}", f"min_residency is {HUGE}; accepted: 0 to 1,000,000"),
        ("order", "deadline-aware:most=0.5", "most is 0.5; accepted: 1 or more, as a factor"),
        ("order", "deadline-aware:most=inf", "most is inf; accepted: 1 or more, as a factor"),
    ],
)
def test_what_cannot_be_built_is_said_with_what_can(kind: str, spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_part(kind, spec, None)


# ---- installed by others ---------------------------------------------------------------------------


def test_another_package_brings_a_part(install: Install) -> None:
    assert "guest" not in known_parts("order")
    install(GUEST)
    cost = UnknownCost()
    part = build_part("order", "guest:share=0.25,name=y,on=true,k=7", cost)
    assert type(part).__module__ == MODULE
    assert (part.settings, part.cost) == ((0.25, "y", True, 7), cost)
    assert build_part("order", "guest", None).settings == (0.5, "x", False, None)
    with pytest.raises(ConfigError, match="accepted: arrival, boost, deadline-aware, edf, governed, guest, "):
        build_part("order", "nobody", None)


def test_a_part_belongs_to_its_own_kind(install: Install) -> None:
    install(GUEST)
    assert "guest" in known_parts("order")
    assert all("guest" not in known_parts(kind) for kind in ("batching", "eviction", "leaving"))


@pytest.mark.parametrize(
    ("entry_points", "message"),
    [
        (
            "[headway.order]\narrival = headway_guest:Guest\n",
            "headway_guest:Guest and Headway's own are both called 'arrival' in 'headway.order'",
        ),
        (
            "[headway.order]\nguest = headway_guest:Guest\n[headway.order]\nguest = headway_guest:PRESET\n",
            "headway_guest:PRESET and headway_guest:Guest are both called 'guest' in 'headway.order'",
        ),
    ],
    ids=["a built-in name", "one name twice"],
)
def test_two_of_one_name_are_refused_whoever_is_asked_for(
    install: Install, entry_points: str, message: str
) -> None:
    install(entry_points)
    for name in ("arrival", "slack"):
        with pytest.raises(ConfigError, match=message):
            build_part("order", name, None)
    with pytest.raises(ConfigError, match=message):
        known_parts("order")


def test_a_guest_that_cannot_be_imported_is_in_nobodys_way(install: Install) -> None:
    install("[headway.order]\nguest = headway_guest:Nothing\n")
    build_part("order", "arrival", None)
    with pytest.raises(AttributeError, match="Nothing"):
        build_part("order", "guest", None)


def test_distributions_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find_preset("vllm")
    monkeypatch.delattr("headway.policies.parts.entry_points")
    assert find_preset("sarathi") is PRESETS["sarathi"]
