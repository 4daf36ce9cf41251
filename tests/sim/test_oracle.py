from __future__ import annotations

from statistics import fmean

import pytest

from headway.core.cost import UnknownCost
from headway.core.job import Job
from headway.core.slo import Slo
from headway.policies.presets import PRESETS
from headway.sim.oracles import ORACLES, Knowledge, most_on_time, saves_a_target, saves_work, shortest_work
from headway.sim.simulation import System
from tests.sim.worlds import Linear, calibration, limits, preset, request, run
from tests.strategies import decoding, ids, make_job

pytestmark = pytest.mark.slow


class PerToken(UnknownCost):
    """A second a token."""

    def prefill_s(self, num_tokens: int) -> float:
        return float(num_tokens)


def knowing(**output_tokens: int) -> Knowledge:
    return Knowledge(output_tokens, PerToken())


def due(id_: str, due_s: float, prompt: int) -> Job:
    return make_job(id_, prompt=prompt, slo=Slo(ttft_s=due_s))


def test_work_is_the_prefill_and_a_share_of_a_step_for_each_token_to_come() -> None:
    known = knowing(a=17, b=17)
    assert known.work_s(make_job("a", prompt=5)) == (5 - 1) + 17 / 8
    assert known.work_s(decoding("b", prompt=5, output=9)) == 8 / 8


def test_the_least_work_comes_first_by_hand() -> None:
    # a: 9 + 8/8 = 10; b: 1 + 64/8 = 9; c: 9 + 8/8 = 10 and came later.
    jobs = [make_job("a"), make_job("b", prompt=2), make_job("c", arrival_s=1.0)]
    assert ids(shortest_work(knowing(a=8, b=64, c=8), jobs, 0.0)) == ["b", "a", "c"]


def test_a_resident_goes_only_for_a_newcomer_that_saves_work() -> None:
    known = knowing(new=8, old=81)
    newcomer = make_job("new", prompt=3)  # 2 + 1 = 3
    assert saves_work(known, newcomer, decoding("old", prompt=5, output=1), 0.0)  # 80/8 = 10 > 3 + 5 lost
    assert not saves_work(known, newcomer, decoding("old", prompt=5, output=41), 0.0)  # 5 < 3 + 45


def test_the_fewest_are_late_by_hand() -> None:
    # Work 4, 4 and 2: prefills of 3, 3 and 1, and 8 tokens at an eighth of a step. Due at 4, 7 and 8. By due time
    # a ends at 4, b at 8 > 7: the longest so far goes, of the equals a and b the later id. c ends at 6.
    known = knowing(a=8, b=8, c=8)
    jobs = [due("a", 4.0, 4), due("b", 7.0, 4), due("c", 8.0, 2)]
    assert ids(most_on_time(known, jobs, 0.0)) == ["a", "c", "b"]
    # A second later a can no longer make it, with it gone b and c can.
    assert ids(most_on_time(known, jobs, 1.0)) == ["b", "c", "a"]


def test_only_who_has_no_target_makes_way_for_one() -> None:
    known = knowing(new=8, old=8)
    assert saves_a_target(known, due("new", 9.0, 4), decoding("old"), 0.0)
    assert not saves_a_target(known, due("new", 3.0, 4), decoding("old"), 0.0)
    assert not saves_a_target(known, due("new", 9.0, 4), decoding("old", slo=Slo(tbt_s=1.0)), 0.0)


def test_knowing_lengths_beats_every_preset_on_a_backlog() -> None:
    # Two seats, 20 requests of mixed lengths at once: SRPT has the least mean time.
    trace = [request(f"{n:02}", 0.0, 4 + n % 3, 2 + 7 * n % 50) for n in range(20)]
    system = System(limits=limits(max_num_seqs=2, num_blocks=64), calibration=calibration(Linear(1.0, 0.01)))
    oracle = ORACLES["srpt-oracle"]({each.id: each.output_tokens for each in trace})
    mean_s = {
        name: fmean((record.finished_s or 0.0) for record in run(trace, policy, system)[0].values())
        for name, policy in {"oracle": oracle, **{name: preset(name) for name in PRESETS}}.items()
    }
    assert min(mean_s, key=mean_s.__getitem__) == "oracle"


def test_no_name_a_flag_accepts_knows_a_length() -> None:
    assert not set(ORACLES) & set(PRESETS)
