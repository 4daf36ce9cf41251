"""Runs worked out by hand: every step takes a second, unless said otherwise."""

from __future__ import annotations

from headway.core.cost import CostModel
from headway.core.job import Job
from headway.core.record import Outcome
from headway.policies.policy import Policy
from headway.policies.presets import build_policy, find_preset
from headway.sim.simulation import System
from tests.policies.instance import LinearCost
from tests.sim.worlds import Linear, calibration, limits, preset, request, run

A = request("a", 0.0, 4, 3)
B = request("b", 0.5, 2, 1)


def test_one_seat() -> None:
    # a: prefill 0-1 brings its first token, decodes 1-2 and 2-3. b starts at 3 and ends with its only token at 4.
    records, result = run([A, B], system=System(limits=limits(max_num_seqs=1), calibration=calibration()))
    assert (records["a"].first_token_s, records["a"].finished_s) == (1.0, 3.0)
    assert (records["b"].first_scheduled_s, records["b"].first_token_s, records["b"].finished_s) == (3, 4, 4)
    assert (result.end_s, result.totals["0"].steps, result.totals["0"].tokens) == (4.0, 4, 4 + 1 + 1 + 2)


def test_two_seats() -> None:
    # b came during the first step and joins the second, 1-2, beside a's decode.
    records, result = run([A, B])
    assert (records["a"].finished_s, records["b"].finished_s) == (3.0, 2.0)
    assert result.totals["0"].steps == 3


def test_the_hosts_share_adds_to_every_step_of_a_synchronous_engine() -> None:
    records, _ = run([A], system=System(limits=limits(), calibration=calibration(host_s=0.25)))
    assert (records["a"].first_token_s, records["a"].finished_s) == (1.25, 3.75)


def test_asynchronous_scheduling_hides_the_host_and_wastes_a_step_at_the_end() -> None:
    # Steps 1 and 2 are handed over at 0: 1 runs 0.25-1.25, 2 follows at once, to 2.25. Step 3 is scheduled when
    # 1 is back and runs to 3.25, step 4 when 2 is back. At 3.25 the third token turns out to be the last: step
    # 4 computes a token for nobody until 4.25.
    system = System(limits=limits(asynchronous=True), calibration=calibration(host_s=0.25))
    records, result = run([A], system=system)
    assert (records["a"].first_token_s, records["a"].finished_s) == (1.25, 3.25)
    assert (result.totals["0"].steps, result.end_s) == (4, 4.25)


def test_asynchronous_scheduling_wastes_no_step_on_a_limit_it_knows() -> None:
    known = request("a", 0.0, 4, 3, max_output_tokens=3)
    _, result = run([known], system=System(limits=limits(asynchronous=True), calibration=calibration()))
    assert (result.totals["0"].steps, result.end_s) == (3, 3.0)


def test_two_stages_work_on_two_steps_at_a_time() -> None:
    # A step is half a second on each stage; 4 tokens a step. At 0: a's prompt, stage one 0-0.5, out at 1; then
    # b's, stage one 0.5-1, out at 1.5. a decodes 1-2 and 2-3; b, one out of phase, 1.5-2.5.
    system = System(limits=limits(pipeline_stages=2, max_num_batched_tokens=4), calibration=calibration())
    records, _ = run([A, request("b", 0.0, 4, 2)], system=system)
    assert (records["a"].first_token_s, records["a"].finished_s) == (1.0, 3.0)
    assert (records["b"].first_token_s, records["b"].finished_s) == (1.5, 2.5)


def test_who_runs_out_of_blocks_computes_again() -> None:
    # 4 blocks of 4. 0-1: both prompts of 8. 1-2: a's 9th token needs a third block: b, last, loses its two with 8
    # computed; a ends at 2 with its second token. 2-3: b computes its 8 and its first token, and ends at 3.
    system = System(limits=limits(num_blocks=4, prefix_caching=False), calibration=calibration())
    records, result = run([request("a", 0.0, 8, 2), request("b", 0.0, 8, 2)], system=system)
    assert (records["a"].finished_s, records["b"].finished_s) == (2.0, 3.0)
    assert (records["b"].preemptions, records["b"].recomputed_tokens) == (1, 8)
    assert result.totals["0"].preemptions == 1


def test_with_prefix_caching_it_finds_what_nobody_took() -> None:
    # As above, but b's first block was found again: a took one of the two, the one freed last to first.
    system = System(limits=limits(num_blocks=4), calibration=calibration())
    records, result = run([request("a", 0.0, 8, 2), request("b", 0.0, 8, 2)], system=system)
    assert records["b"].recomputed_tokens == 4
    assert result.totals["0"].cached_tokens == 4


def test_a_shared_prefix_is_computed_once() -> None:
    # A second a token. One trace block of 512 tokens is shared: b computes its own 8 tokens only.
    system = System(
        limits=limits(block_size=16, max_num_batched_tokens=1024), calibration=calibration(Linear(0.0, 1.0))
    )
    first = request("a", 0.0, 520, 1, prefix_blocks=(7,))
    second = request("b", 1000.0, 520, 1, prefix_blocks=(7,))
    records, result = run([first, second], system=system)
    assert records["a"].finished_s == 520.0
    assert records["b"].finished_s == 1008.0
    assert result.totals["0"].cached_tokens == 512


def test_a_prompt_that_can_never_fit_fails_at_once() -> None:
    system = System(limits=limits(num_blocks=4), calibration=calibration())
    records, _ = run([request("big", 0.0, 17, 1), request("small", 0.0, 4, 1)], system=system)
    assert records["big"].outcome is Outcome.FAILED
    assert records["big"].error == "needs 5 KV blocks, the engine has 4"
    assert records["small"].outcome is Outcome.FINISHED


def test_an_answer_that_outgrows_the_memory_fails_and_the_rest_goes_on() -> None:
    system = System(limits=limits(num_blocks=4), calibration=calibration())
    records, _ = run([request("big", 0.0, 14, 9), request("small", 0.0, 4, 1)], system=system)
    assert (records["big"].outcome, records["big"].output_tokens) == (Outcome.FAILED, 3)
    assert records["small"].outcome is Outcome.FINISHED


class AmpleMemory(LinearCost):
    """A cost model with the KV memory of `limits` in blocks of 16."""

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV."""
        return 16_000


def test_whose_prompt_is_in_the_cache_goes_before_shorter_ones() -> None:
    # A sixteenth of a second a token, one at a time. The whole of a is computed by 32.5. Then of b's 1,032 tokens 512
    # are found, which leaves 520: less than c's 600, although b's prompt is longer. Without caching c would be first,
    # and end at 70. None is overdue.
    at = Linear(0.0, 1 / 16)
    first = request("a", 0.0, 520, 1, prefix_blocks=(7,))
    found = request("b", 1.0, 1032, 1, prefix_blocks=(7,))
    other = request("c", 2.0, 600, 1)
    ends = {}

    def knowing(cost: CostModel) -> Policy:
        return build_policy(find_preset("headway", order="on-time:patience_s=1e9"), AmpleMemory())

    for caching in (True, False):
        one = limits(block_size=16, max_num_seqs=1, max_num_batched_tokens=2048, prefix_caching=caching)
        records, _ = run([first, found, other], knowing, System(limits=one, calibration=calibration(at)))
        ends[caching] = [records[name].finished_s for name in "abc"]
    assert ends == {True: [32.5, 65.0, 102.5], False: [32.5, 134.5, 70.0]}


def test_who_ends_with_an_output_is_learned_from_before_its_first_tokens_rank() -> None:
    # 16 tokens a step: the second has a's last 4 and b's 4. As vLLM does it, b has ended when a's token is told of.
    told: list[tuple[str, str]] = []

    class Telling(Policy):
        def touch(self, job: Job) -> None:
            told.append(("grew", job.id))
            Policy.touch(self, job)

        def end(self, job: Job, *, finished: bool) -> None:
            told.append(("ended", job.id))
            Policy.end(self, job, finished=finished)

    def telling(cost: CostModel) -> Policy:
        policy = build_policy(find_preset("vllm"), cost)
        return Telling(policy.name, policy.order, policy.batching, policy.eviction)

    small = System(limits=limits(max_num_batched_tokens=16), calibration=calibration())
    run([request("a", 0.0, 20, 2), request("b", 0.0, 4, 1)], telling, small)
    assert told == [("ended", "b"), ("grew", "a"), ("ended", "a")]


def test_padded_prompts_take_the_time_of_the_longest() -> None:
    # A second a token. Prompts of 3 and 1 tokens: 4 s, padded 2 x 3 = 6 s. b, which brings one token, ends with them; a
    # decodes once more, a second.
    requests = [request("a", 0.0, 3, 2), request("b", 0.0, 1, 1)]
    system = System(limits=limits(prefix_caching=False), calibration=calibration(Linear(0.0, 1.0)))
    for name, prompts_s in (("vllm-v0", 4.0), ("vllm-0.2.5", 6.0)):
        records, result = run(requests, preset(name), system)
        assert (records["b"].finished_s, records["a"].finished_s) == (prompts_s, prompts_s + 1)
        assert result.totals["0"].tokens == 3 + 1 + 1
