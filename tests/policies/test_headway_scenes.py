"""Small loads, as users have them, on a simulated H100, in which one rule or another once undid what can be kept."""

from __future__ import annotations

from headway.core.record import Record
from headway.core.slo import NO_TARGETS, Slo
from headway.experiments.engine_sizes import Sizes, engine_limits
from headway.experiments.policy_choice import OWN_PARTS, policy_factory
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.results.metrics import met_targets
from headway.sim.simulation import System, simulate
from headway.traces import TraceRequest

CHAT = Slo(ttft_s=1.0, tbt_s=0.1)


def stream(
    name: str, count: int, *, since_s: float, every_s: float, tokens: tuple[int, int], slo: Slo
) -> list[TraceRequest]:
    """So many requests of these prompts and answers."""
    return [
        TraceRequest(
            id=f"{name}{n}",
            arrival_s=since_s + every_s * n,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            slo=slo,
        )
        for n in range(count)
    ]


def served(*streams: list[TraceRequest], policy: str = "headway", seats: int | None = None) -> list[Record]:
    """What becomes of them on an engine with vLLM's own sizes, or so many seats."""
    requests = sorted((each for one in streams for each in one), key=lambda each: each.arrival_s)
    costs = calibration("h100", model_shape("Llama-3.1-8B"))
    records: list[Record] = []
    simulate(
        requests,
        policy_factory(policy, OWN_PARTS, requests),
        System(limits=engine_limits(Sizes(max_num_seqs=seats), "h100", costs), calibration=costs),
        on_record=records.append,
        max_output_tokens=4096,
    )
    return records


def kept(records: list[Record], name: str) -> float:
    """The share of a stream's requests that met their targets."""
    met = [met_targets(record) for record in records if record.id.startswith(name)]
    return sum(met) / len(met)


def test_answers_without_targets_give_their_seats_to_those_in_time() -> None:
    long = stream("long", 4, since_s=0.0, every_s=0.0, tokens=(200, 1500), slo=NO_TARGETS)
    chats = stream("chat", 10, since_s=1.0, every_s=1.0, tokens=(200, 20), slo=CHAT)
    assert kept(served(long, chats, policy="edf", seats=4), "chat") <= 0.2
    assert kept(served(long, chats, seats=4), "chat") == 1.0


def test_chats_start_beside_decodes_that_take_nearly_as_long_as_their_target() -> None:
    long = stream("long", 60, since_s=0.0, every_s=0.01, tokens=(3000, 600), slo=NO_TARGETS)
    chats = stream("chat", 30, since_s=6.0, every_s=0.2, tokens=(300, 100), slo=Slo(ttft_s=1.0, tbt_s=0.015))
    assert kept(served(long, chats), "chat") == 1.0


def test_one_in_a_hurry_does_not_shut_the_others_out() -> None:
    hurried = stream("hurried", 1, since_s=0.0, every_s=0.0, tokens=(200, 1500), slo=Slo(tbt_s=0.009))
    chats = stream("chat", 50, since_s=1.0, every_s=0.2, tokens=(2000, 50), slo=CHAT)
    records = served(hurried, chats)
    assert kept(records, "chat") >= 0.95
    assert kept(records, "hurried") == 1.0
