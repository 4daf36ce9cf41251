from __future__ import annotations

from headway.core.plan import Fate
from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.eviction.reactive import Recompute
from headway.policies.presets import PRESETS
from tests.policies.batching.scene import Scene
from tests.policies.contract import Arrival, Workload, drive, from_preset
from tests.policies.instance import small_engine
from tests.strategies import decoding


def test_nobody_is_preempted_ahead_of_need() -> None:
    scene = Scene(DecodeFirst(), residents=[decoding("a"), decoding("b")], free_blocks=0)
    plan = scene.plan()
    assert Recompute().evict(scene.view, plan, scene.order) is plan
    assert not plan.preempt


def test_on_shortage_the_last_resident_is_dropped_and_computed_again_by_hand() -> None:
    # 4 blocks of 4. Step 0: a and b take two blocks each for their prompts of 8 and bring a token. Step 1: a's
    # 9th token needs a third block: b, last, is dropped with 8 computed. a brings its 2nd and last token and ends.
    # Step 2: b computes its 8 and the token it had, 9 in all, and brings its 2nd and last.
    arrivals = tuple(Arrival(id=id_, at_step=0, prompt=8, output=2, limit=2) for id_ in "ab")
    workload = Workload(arrivals, small_engine(num_blocks=4, max_num_batched_tokens=32))
    run = drive(from_preset(PRESETS["vllm"])(workload), workload)
    assert run.ended == [set(), {"a"}, {"b"}]
    outcomes = run.instance.outcomes
    assert [{job.id: count for job, count in o.tokens.items()} for o in outcomes] == [
        {"a": 8, "b": 8},
        {"a": 1},
        {"b": 9},
    ]
    assert [{job.id: fate for job, fate in o.preempted.items()} for o in outcomes] == [
        {},
        {"b": Fate.RECOMPUTE},
        {},
    ]
    record = run.instance.records["b"]
    assert (record.preemptions, record.recomputed_tokens) == (1, 8)
