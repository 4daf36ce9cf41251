"""Each ablation of `headway` decides otherwise than it somewhere: on crowds that want more than a GPU has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import pytest

from bench.gain.regret_runs import ABLATIONS, SUBJECT
from headway.core.slo import NO_TARGETS, Slo
from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.policy_choice import OWN_PARTS, policy_factory
from headway.lab.predictor_choice import length_source
from headway.predict.lengths.choice import NONE
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System, simulate
from headway.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

pytestmark = pytest.mark.slow

KNOWING = "noisy-oracle:tau=1"
MIXED = (
    *[Slo(ttft_s=1.0, tbt_s=0.06)] * 9,
    *[Slo(ttft_s=1.5)] * 3,
    *[Slo(deadline_s=20.0), Slo(tbt_s=0.1)] * 2,
    *[NO_TARGETS] * 4,
)
SHORT_MEMORY = ("a100-40g", "facebook/opt-13b")
SHARED_KERNEL = ("a100-80g", "Llama-3.1-8B")
"""Its decodes are far slower beside prompts, in one kernel with them, than alone."""


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """This many requests at this rate, with one of several equally likely targets each; prompts with log-normal
    lengths around this one.
    """

    count: int
    rate_rps: float
    targets: tuple[Slo, ...]
    prompt_tokens: int = 200
    machine: tuple[str, str] = SHORT_MEMORY

    def requests(self) -> list[TraceRequest]:
        """Requests in order of arrival, by two tenants; the longer prompts begin in one of two ways."""
        rng, now_s = Random(1), 0.0
        found = []
        for number in range(self.count):
            now_s += rng.expovariate(self.rate_rps)
            prompt_tokens = int(16 + self.prompt_tokens * min(6, rng.lognormvariate(0, 1)))
            found.append(
                TraceRequest(
                    id=str(number),
                    arrival_s=now_s,
                    input_tokens=prompt_tokens,
                    output_tokens=int(min(700, 2 + rng.lognormvariate(4.8, 0.8))),
                    slo=rng.choice(self.targets),
                    tenant="ab"[rng.random() < 0.2],
                    prefix_blocks=(rng.randrange(2),) if prompt_tokens >= MOONCAKE_BLOCK_TOKENS else (),
                )
            )
        return found


CROWDS = {
    "mixed": Crowd(count=80, rate_rps=14.0, targets=MIXED),
    "no targets": Crowd(count=24, rate_rps=10.0, targets=(NO_TARGETS,)),
    "long contexts": Crowd(
        count=72,
        rate_rps=14.0,
        targets=(Slo(ttft_s=2.0, tbt_s=0.1),),
        prompt_tokens=1500,
        machine=SHARED_KERNEL,
    ),
}
SHOWN_BY = {"headway-long-steps": "no targets", "headway-no-triage": "long contexts"}
"""Of the ablations of which no crowd of mixed targets knows."""
Served = list[tuple[str, float | None, float | None]]


@cache
def served(contender: str, name: str, predictor: str = KNOWING) -> Served:
    """When each of a crowd had its first token and its last."""
    requests, (gpu, model) = CROWDS[name].requests(), CROWDS[name].machine
    costs = calibration(gpu, model_shape(model))
    found: Served = []
    simulate(
        requests,
        policy_factory(*ABLATIONS.get(contender, (SUBJECT, OWN_PARTS)), requests),
        System(limits=engine_limits(EngineSizes(host_kv_gib=8.0), gpu, costs), calibration=costs),
        on_record=lambda record: found.append((record.id, record.first_token_s, record.finished_s)),
        max_output_tokens=800,
        lengths=None if predictor == NONE else length_source(predictor, requests, 1),
    )
    return sorted(found)


@pytest.mark.parametrize("policy", ABLATIONS)
def test_it_decides_otherwise_somewhere(policy: str) -> None:
    crowd = SHOWN_BY.get(policy, "mixed")
    assert served(policy, crowd) != served("headway", crowd)


def test_without_lengths_it_is_blind_to_the_best_of_predictions() -> None:
    assert served("headway-no-lengths", "mixed") == served("headway", "mixed", NONE)
    assert served("headway", "mixed") != served("headway", "mixed", NONE)
