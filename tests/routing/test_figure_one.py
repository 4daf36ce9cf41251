"""Figure 1 of the Ascendra paper: five requests, two GPUs, first tokens due after 5 units.

The figure gives E's prefill, 2 units, and that A to D come at 0 and E at 1. The others are chosen here: A 3, B 1, C 1.8
and D 1.9 units, with which all that the paper tells of it comes out. A unit is a second and ten tokens of a prompt;
a step takes a second and up to ten tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.job import Job
from headway.core.record import Outcome, Record
from headway.core.slo import Slo
from headway.policies.presets import Preset, build_policy, find_preset
from headway.routing import Router, build_router
from tests.policies.instance import STEP_S, Instance, LinearCost, small_engine

TARGET_S = 5.0
ENGINE = small_engine(num_blocks=100, max_num_seqs=8, max_num_batched_tokens=10)
FIVE = [("A", 0.0, 30), ("B", 0.0, 10), ("C", 0.0, 18), ("D", 0.0, 19), ("E", 1.0, 20)]
"""Name, arrival, prompt tokens."""
LOW = find_preset("ascendra-lp", leaving=("at-risk:threshold=-0.1,hp_tokens=5", "expired"))
"""Hands off when the next step would be too late, and not a step earlier: half a unit to wait, less half a unit."""


@dataclass
class Pair:
    """Two instances behind a router, on one clock; each answer is one token, so it ends with the first."""

    router: Router
    presets: dict[str, Preset]
    handed_off: list[tuple[str, float]] = field(default_factory=list)
    went_to: dict[str, list[str]] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: 1 for name, _, _ in FIVE}
        self.instances = {
            name: Instance(build_policy(preset, LinearCost()), lengths, ENGINE)
            for name, preset in self.presets.items()
        }

    def run(self) -> Pair:
        """Step both until everybody is served."""
        now_s = 0.0
        while len(self.first_token_s) < len(FIVE):
            for name, arrival_s, prompt in FIVE:
                if arrival_s == now_s:
                    job = Job(
                        id=name,
                        arrival_s=now_s,
                        num_prompt_tokens=prompt,
                        max_output_tokens=1,
                        slo=Slo(ttft_s=TARGET_S),
                        may_move=self.router.hands_off,
                    )
                    self._send(job, self.router.route(job, list(self.instances)))
            for instance in list(self.instances.values()):
                self._step(instance)
            now_s += STEP_S
            assert now_s < 20
        return self

    def _send(self, job: Job, name: str) -> None:
        self.went_to.setdefault(job.id, []).append(name)
        self.instances[name].arrive(job)

    def _step(self, instance: Instance) -> None:
        known = dict(instance.ledger.waiting)
        seen = set(instance.records)
        instance.step()
        for id_ in [id_ for id_ in instance.records if id_ not in seen]:
            self._ended(instance.records[id_], known.get(id_), instance.now_s)

    def _ended(self, record: Record, waited: Job | None, now_s: float) -> None:
        if record.outcome is not Outcome.HANDED_OFF:
            assert record.outcome is Outcome.FINISHED
            assert record.first_token_s is not None
            self.first_token_s[record.id] = record.first_token_s
            self.router.end(Job(id=record.id, arrival_s=0.0, num_prompt_tokens=1, max_output_tokens=1))
            return
        assert waited is not None
        decided_s = now_s - STEP_S
        self.handed_off.append((record.id, decided_s))
        gave_up = self.went_to[record.id][-1]
        del self.instances[gave_up].records[record.id]  # it may come back, and ends once
        name = self.router.hand_off(waited, list(self.instances)) or gave_up
        left = waited.slo.after(decided_s - waited.arrival_s)
        moved = Job(
            id=waited.id,
            arrival_s=decided_s,
            num_prompt_tokens=waited.num_prompt_tokens,
            max_output_tokens=1,
            slo=left,
            may_move=False,
        )
        self._send(moved, name)


def late(pair: Pair) -> list[str]:
    """The requests whose first token came after its deadline."""
    return [name for name, arrival_s, _ in FIVE if pair.first_token_s[name] > arrival_s + TARGET_S]


def test_first_come_first_served_in_turn_misses_one() -> None:
    # One GPU: A 0-3, C 3-5, E 5-7, due at 6. The other: B 0-1, D 1-3. E has waited 4 units.
    stock = find_preset("vllm-v0")
    pair = Pair(build_router("round-robin"), {"0": stock, "1": stock}).run()
    assert pair.first_token_s == {"B": 1.0, "A": 3.0, "D": 3.0, "C": 5.0, "E": 7.0}
    assert late(pair) == ["E"]


def test_ascendra_misses_nothing() -> None:
    # LP: A 0-3, D 3-5. HP: B by ticket 0-1, E by ticket 1-3, C 3-5, handed off at 3 because D goes first.
    pair = Pair(build_router("ascendra"), {"lp-0": LOW, "hp-0": find_preset("ascendra-hp")}).run()
    assert pair.went_to == {"A": ["lp-0"], "B": ["hp-0"], "C": ["lp-0", "hp-0"], "D": ["lp-0"], "E": ["hp-0"]}
    assert pair.handed_off == [("C", 3.0)]
    assert pair.first_token_s == {"B": 1.0, "A": 3.0, "E": 3.0, "C": 5.0, "D": 5.0}
    assert late(pair) == []


def test_without_tickets_it_misses_one_and_without_hand_off_too() -> None:
    # All five on LP: A, then E is due at 6 and of C, D and E only two can be in time.
    pools = {"lp-0": LOW, "hp-0": find_preset("ascendra-hp")}
    kept = {"lp-0": find_preset("ascendra-lp", leaving=()), "hp-0": pools["hp-0"]}
    assert late(Pair(build_router("ascendra"), kept).run()) == ["C"]
    assert Pair(build_router("ascendra-no-ticket"), pools).run().went_to["E"][0] == "lp-0"
