from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.job import Job
from headway.core.record import Record
from headway.sim.clock import Clock, EventLoop, Phase
from headway.sim.static_batches import StaticInstance
from tests.sim.worlds import Linear
from tests.strategies import make_job


class Served:
    """One static instance whose prefill costs 0.1 s a token and whose every step 1 s more."""

    def __init__(self, capacity: int = 1000) -> None:
        self.loop = EventLoop()
        self.records: dict[str, Record] = {}
        self.failed: list[Sequence[Job]] = []
        self.idle_s: list[float] = []
        self.instance = StaticInstance(
            Clock(Linear(1.0, 0.1)),
            self.loop,
            kv_capacity_tokens=capacity,
            on_end=lambda record: self.records.update({record.id: record}),
            on_idle=lambda: self.idle_s.append(self.loop.now_s),
            on_out_of_memory=self.failed.append,
            name="s",
        )

    def serve(self, *batch: tuple[Job, int]) -> None:
        self.loop.at(0.0, Phase.SCHEDULE, lambda: self.instance.serve(batch))
        self.loop.run()


def test_members_are_padded_to_the_longest_and_return_together_by_hand() -> None:
    # Prompts 10 and 4, answers 3 and 1. Prefill of 2 x 10 tokens: 1 + 2 = 3 s. Two decodes of 2 tokens: 1.2 s
    # each. Both return at 5.4. Padding 6 tokens; the short answer's seat brings 2 tokens nobody wants.
    served = Served()
    served.serve((make_job("a", prompt=10), 3), (make_job("b", prompt=4), 1))
    assert {id_: record.finished_s for id_, record in served.records.items()} == pytest.approx(
        {"a": 5.4, "b": 5.4}
    )
    assert served.records["b"].first_token_s == pytest.approx(3.0)
    assert (served.records["b"].output_tokens, served.records["b"].instance) == (1, "s")
    waste = served.instance.waste
    assert (waste.valid_tokens, waste.pad_tokens, waste.invalid_tokens, waste.out_of_memory) == (4, 6, 2, 0)
    assert served.idle_s == pytest.approx([5.4])


def test_a_batch_that_outgrows_the_memory_is_lost_when_it_does() -> None:
    # Room for 24 tokens is 12 a member: 10 of the prompt and 2 more. The second token ends at 3 + 1.2.
    served = Served(capacity=24)
    served.serve((make_job("a", prompt=10), 3), (make_job("b", prompt=4), 1))
    assert served.records == {}
    assert [[job.id for job in jobs] for jobs in served.failed] == [["a", "b"]]
    assert served.instance.waste.out_of_memory == 1
    assert served.idle_s == pytest.approx([4.2])
    assert not served.instance.busy


def test_one_batch_at_a_time() -> None:
    served = Served()
    served.loop.at(0.0, Phase.SCHEDULE, lambda: served.instance.serve([(make_job("a"), 5)]))
    served.loop.at(1.0, Phase.SCHEDULE, lambda: served.instance.serve([(make_job("b"), 5)]))
    with pytest.raises(AssertionError, match="one batch at a time"):
        served.loop.run()
