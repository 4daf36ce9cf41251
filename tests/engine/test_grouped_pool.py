"""A simulated pool of a model with sliding windows beside vLLM's own KV cache manager: the same, block for block."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headway.core.job import Job
from headway.core.plan import Fate
from headway.predict.models.kv_groups import KvGroup
from headway.sim.grouped_pool import GroupedKvPool
from tests.strategies import make_job

pytestmark = pytest.mark.vllm

SIZE = 4
IN_FLIGHT = 2 * 16
FULL, FEW, MANY = (KvGroup(block_size=SIZE, window=window) for window in (0, 6, 21))


def spec_of(group: KvGroup) -> Any:
    """vLLM's word for a group, whose blocks are as large as any other's."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec

    sizes = {"num_kv_heads": 1, "dtype": torch.float16, "block_size": group.block_size}
    sizes["head_size"] = 64 * SIZE // group.block_size
    if not group.window:
        return FullAttentionSpec(**sizes)
    if group.chunked:
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=group.window)
    return SlidingWindowSpec(**sizes, sliding_window=group.window)


class Twins:
    """A pool and vLLM's manager, asked the same; `check` holds their free blocks against each other."""

    def __init__(self, groups: tuple[KvGroup, ...], num_blocks: int, *, caching: bool) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(SIZE, sha256)
        each = [group for group in groups for _ in range(group.count)]
        layers = [KVCacheGroupSpec([f"layer.{index}"], spec_of(group)) for index, group in enumerate(each)]
        self.vllm = KVCacheManager(
            KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=layers),
            max_model_len=4096,
            scheduler_block_size=max(group.block_size for group in groups),
            hash_block_size=SIZE,
            max_in_flight_tokens=IN_FLIGHT,
            enable_caching=caching,
        )
        self.ours = GroupedKvPool(
            num_blocks,
            groups,
            block_size=SIZE,
            prefix_caching=caching,
            most_in_flight=IN_FLIGHT,
            in_flight=lambda job: self.requests[job].num_in_flight_tokens,
        )
        self.requests: dict[Job, Any] = {}
        self.running: list[Job] = []

    def add(self, id_: str, tokens: list[int]) -> Job:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        job = make_job(id_, prompt=len(tokens), limit=500)
        ends = range(SIZE, len(tokens) + 1, SIZE)
        self.ours.add(job, [abs(hash(tuple(tokens[:end]))) for end in ends])
        self.requests[job] = Request(
            request_id=id_,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=500),
            pooling_params=None,
            block_hasher=self._hasher,
        )
        return job

    def start(self, job: Job, most_tokens: int) -> bool:
        """Admit a waiting job, if all of it fits."""
        request = self.requests[job]
        blocks, theirs, _ = self.vllm.get_computed_blocks(request)
        ours = self.ours.cached_tokens(job)
        assert ours == theirs
        new = min(most_tokens, job.num_tokens - ours)
        missing = self.ours.missing_blocks(job)
        why_not = self.ours.start(job, new)
        allocated = self.vllm.allocate_slots(request, new, theirs, blocks, full_sequence_must_fit=True)
        assert (why_not is None) == (allocated is not None)
        assert missing == 0 or why_not is not None
        if why_not is None:
            self.running.append(job)
            self._schedule(job, ours + new, new)
        return why_not is None

    def grow(self, job: Job, new: int) -> bool:
        allocated = self.vllm.allocate_slots(self.requests[job], new)
        grown = self.ours.grow(job, new)
        assert grown == (allocated is not None)
        if grown:
            self._schedule(job, job.num_computed_tokens + new, new)
        return grown

    def _schedule(self, job: Job, computed: int, new: int) -> None:
        request = self.requests[job]
        job.num_computed_tokens = request.num_computed_tokens = computed
        request.num_in_flight_tokens += new

    def settle(self, job: Job, token: int) -> None:
        """The step's output comes: a token, if all that is known was computed."""
        request = self.requests[job]
        request.num_in_flight_tokens = 0
        if job.num_computed_tokens >= job.num_tokens:
            request.append_output_token_ids(token)
            job.num_output_tokens += 1

    def leave(self, job: Job, *, preempted: bool) -> None:
        self.vllm.free(self.requests[job])
        self.running.remove(job)
        if preempted:
            self.ours.release(job, Fate.RECOMPUTE)
            job.num_computed_tokens = self.requests[job].num_computed_tokens = 0
        else:
            self.ours.forget(job)
            del self.requests[job]

    def check(self) -> None:
        assert self.ours.free_blocks == self.vllm.block_pool.get_num_free_blocks()
        self.ours.check(self.running)


@pytest.mark.parametrize("groups", [
    (FULL, FEW), (FULL, KvGroup(count=3, block_size=SIZE, window=6)), (FULL, FEW, MANY), (FEW,), (MANY,),
    (KvGroup(count=3, block_size=SIZE), MANY),
    (FULL, KvGroup(block_size=SIZE, window=16, chunked=True)),
    (KvGroup(block_size=2 * SIZE), FEW),
    (FULL, KvGroup(block_size=2 * SIZE, window=21)),
])  # fmt: skip
@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_of_groups_is_vllms_block_for_block(groups: tuple[KvGroup, ...], caching: bool) -> None:
    for seed in range(12):
        rng = Random(seed)
        twins = Twins(groups, num_blocks=rng.choice([24, 40, 90]), caching=caching)
        prefix = [rng.randrange(1000) for _ in range(80)]
        waiting: list[Job] = []
        for step in range(60):
            if rng.random() < 0.4:
                own = [1000 + 100 * step + index for index in range(rng.randrange(1, 30))]
                waiting.append(twins.add(f"{step}", prefix[: rng.choice([0, 9, 24, 41, 80])] + own))
            granted = [job for job in twins.running if twins.grow(job, need(job, rng))]
            if waiting and twins.start(waiting[0], rng.choice([1, 5, 16])):
                granted.append(waiting.pop(0))
            twins.check()
            if rng.random() < 0.8:  # else two steps are in flight
                for job in granted:
                    twins.settle(job, 100_000 + step)
            if twins.running and rng.random() < 0.3:
                job = rng.choice(twins.running)
                if not twins.requests[job].num_in_flight_tokens:
                    preempted = rng.random() < 0.4
                    twins.leave(job, preempted=preempted)
                    if preempted:
                        waiting.insert(0, job)
            twins.check()


def need(job: Job, rng: Random) -> int:
    """Tokens of a job's next step: a chunk of its prompt, or one."""
    return max(1, min(rng.choice([1, 5, 16]), job.num_tokens - job.num_computed_tokens))
