"""Blocks that vLLM's pool keeps for agent programs, over its real scheduler and KV manager."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headway.core.kept_programs import KeptPrograms, Program
from headway.engine.kv.kept import KeptVllmBlocks
from headway.engine.model_free import ScriptedRequest, headway_builder, make_scheduler, replay
from tests.engine.scripted_connector import Script, TransferringEngine
from tests.engine.scripts import NUM_BLOCKS, HearingEngine, scheduler, stream
from tests.engine.test_connectors import config_of

pytestmark = pytest.mark.vllm


class ForLong:
    """Keeps every program for longer than the test lasts."""

    share = 0.8

    def __init__(self) -> None:
        self.kept: Counter[Program] = Counter()
        self.stored_shares: list[float] = []

    def came(self, program: Program, now_s: float) -> None:
        pass

    def keep_s(self, program: Program, num_tokens: int, now_s: float, stored_share: float = 0.0) -> float:
        self.kept[program] += 1
        self.stored_shares.append(stored_share)
        return 1e6


def programs(count: int) -> list[ScriptedRequest]:
    """A stream of which four in five requests are turns of four programs."""
    return [
        replace(each, extra_args={"headway_program": f"p{number % 4}"}) if number % 5 else each
        for number, each in enumerate(stream(count))
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_programs_keep_blocks_and_every_request_is_served(asynchronous: bool) -> None:
    built = scheduler(asynchronous=asynchronous, prefix_caching=True, policy="headway")
    rule = ForLong()
    manager = built.kv_cache_manager
    free = manager.block_pool.get_num_free_blocks()
    kept = built.kept = KeptPrograms(KeptVllmBlocks(manager), rule, NUM_BLOCKS)
    script = programs(40)
    engine = HearingEngine(built)
    most = 0
    for _ in replay(engine, script, 5_000):
        most = max(most, kept.num_blocks)
    assert len(engine.endings()) == len(script)
    assert built.counters.differences["unexplained"] == 0
    assert rule.kept.total() == sum(number % 5 > 0 for number in range(40))
    assert 0 < most <= 0.8 * NUM_BLOCKS
    kept.clear()
    assert manager.block_pool.get_num_free_blocks() == free


def test_a_turn_that_finds_none_of_its_kept_blocks_is_served() -> None:
    """As after its conversation was shortened: its own blocks are of no use to it, and leave no room for it."""
    built = scheduler(asynchronous=False, prefix_caching=True, policy="headway")
    rule = ForLong()
    kept = built.kept = KeptPrograms(KeptVllmBlocks(built.kv_cache_manager), rule, NUM_BLOCKS)
    num_tokens = (NUM_BLOCKS // 2 + 4) * built.cache_config.block_size
    first, second = (
        ScriptedRequest(f"{turn}", 40 * turn, range(base, base + num_tokens), 8, 0, {"headway_program": "p"})
        for turn, base in ((0, 10_000), (1, 500_000))
    )
    engine = HearingEngine(built)
    for _ in replay(engine, [first, second], 5_000):
        pass
    assert len(engine.endings()) == 2
    assert not built.guard.fell_back
    assert kept.num_blocks > 0


def test_stock_order_keeps_nothing() -> None:
    built = scheduler(asynchronous=False, prefix_caching=True, policy="headway")
    kept = built.kept = KeptPrograms(KeptVllmBlocks(built.kv_cache_manager), ForLong(), NUM_BLOCKS)
    steps = replay(HearingEngine(built), programs(40), 5_000)
    next(step for step in steps if kept)
    built.guard.fall_back("the test says so")
    next(steps)
    assert not kept


def test_a_connector_tells_what_it_holds_of_turns_that_come_back() -> None:
    config = config_of(Script(hits=1.0, beside=1.0, fails=0.0), asynchronous=False)
    built = make_scheduler(headway_builder(policy="headway"), config, NUM_BLOCKS)
    rule = ForLong()
    built.kept = KeptPrograms(KeptVllmBlocks(built.kv_cache_manager), rule, NUM_BLOCKS, has_store=True)
    for _ in replay(TransferringEngine(built), programs(20), 5_000):
        pass
    assert rule.stored_shares[0] == 1
    assert 0 < rule.stored_shares[-1] < 1


def test_nothing_is_kept_where_nothing_can_be_found() -> None:
    assert scheduler(prefix_caching=False, policy="headway").kept is None
    assert scheduler(prefix_caching=True, policy="vllm").kept is None
    assert scheduler(prefix_caching=True, policy="headway").kept is not None


def test_a_reset_of_the_prefix_cache_lets_go() -> None:
    built = scheduler(prefix_caching=True, policy="headway")
    kept = built.kept = KeptPrograms(KeptVllmBlocks(built.kv_cache_manager), ForLong(), NUM_BLOCKS)
    script = [replace(each, extra_args={"headway_program": "p"}) for each in stream(3)]
    for _ in replay(HearingEngine(built), script, 5_000):
        pass
    assert kept
    assert built.reset_prefix_cache()
    assert not kept
