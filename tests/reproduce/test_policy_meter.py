from __future__ import annotations

import pytest
from headway_reproduce.study_runs import Meter, metered

from headway.core.cost import UnknownCost
from headway.core.record import Record
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.sim.killed_steps import KillingPolicy
from headway.sim.limits import EngineLimits
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest
from tests.sim.worlds import SECOND_STEPS

# Blocks of 4 tokens, 4 of them. Two prompts of 4 tokens: each decodes into a second block at once, and the
# device is full. At the ninth token the first job needs a third block, and the second job, with its 2, must go;
# it comes back when the first has ended.
PAIR = [TraceRequest("a", 0.0, 4, 8), TraceRequest("b", 0.0, 4, 8)]


def served(policy: str, host_blocks: int) -> tuple[Meter, list[Record]]:
    meter, records = Meter(), list[Record]()
    limits = EngineLimits(
        num_blocks=4, block_size=4, max_num_seqs=2, prefix_caching=False, host_blocks=host_blocks
    )
    simulate(
        PAIR,
        metered(policy_factory(policy, OWN_PARTS, PAIR), meter),
        System(limits=limits, calibration=SECOND_STEPS),
        on_record=records.append,
        max_output_tokens=8,
    )
    return meter, records


@pytest.mark.parametrize(
    ("policy", "host_blocks", "counts"),
    [
        ("vllm-s-fallback", 2, (1, 0, 0)),  # the victim's 2 blocks find room
        ("vllm-s-fallback", 1, (0, 1, 1)),  # they do not
        ("vllm-v0", 2, (0, 1, 0)),  # nobody asks the host
    ],
)
def test_preemptions_are_counted_by_what_became_of_them(
    policy: str, host_blocks: int, counts: tuple[int, int, int]
) -> None:
    meter, records = served(policy, host_blocks)
    assert (meter.swaps, meter.recomputes, meter.host_full) == counts
    assert sum(record.preemptions for record in records) == 1


def test_kv_is_counted_where_it_is_asked_for_on_the_host_too() -> None:
    # At most all 4 blocks of the device: both have 2 when the third token is planned; the victim's, on the host,
    # are counted with the 3 that the other then has.
    limits = EngineLimits(num_blocks=4, block_size=4, max_num_seqs=2, prefix_caching=False, host_blocks=2)
    meter = Meter()
    simulate(
        PAIR,
        metered(policy_factory("vllm-s-fallback", OWN_PARTS, PAIR), meter, count_kv=True),
        System(limits=limits, calibration=SECOND_STEPS),
        on_record=lambda record: None,
        max_output_tokens=8,
        shortcut=False,
    )
    assert meter.peak_kv_blocks == 5
    assert served("vllm-s-fallback", 2)[0].peak_kv_blocks == 0


def test_a_metered_policy_is_still_of_its_own_kind() -> None:
    policy = metered(policy_factory("mlfq-preempt", OWN_PARTS, PAIR), Meter())(UnknownCost())
    assert isinstance(policy, KillingPolicy)


def test_decisions_are_timed_and_stay_the_same() -> None:
    meter, records = served("vllm-s-fallback", 2)
    assert meter.plans > 1
    assert meter.plan_s > 0
    plain: list[Record] = []
    limits = EngineLimits(num_blocks=4, block_size=4, max_num_seqs=2, prefix_caching=False, host_blocks=2)
    simulate(
        PAIR,
        policy_factory("vllm-s-fallback", OWN_PARTS, PAIR),
        System(limits=limits, calibration=SECOND_STEPS),
        on_record=plain.append,
        max_output_tokens=8,
    )
    assert records == plain
