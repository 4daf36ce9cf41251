"""The scene of `long_prompt` on simulated GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.long_prompt_scene import Measured, Scene, TokenTimes, light, light_gap_s, passage
from headway.core.plan import StepOutcome
from headway.core.record import Record
from headway.lab.engine_sizes import Sizes, engine_limits
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory
from headway.predict.hardware import calibration
from headway.predict.known_models import model_shape
from headway.sim.simulation import System, simulate

LONG_TOKENS, STREAMS, SHARED_BLOCKS = 20_000, 64, 2
BUDGETS = (256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU, a model and a scene that fits its memory; `note` is what has to be said of it."""

    hardware: str
    model: str
    scene: Scene
    note: str = ""

    def system(self) -> System:
        """One engine, as vLLM serves by default there."""
        costs = calibration(self.hardware, model_shape(self.model))
        return System(limits=engine_limits(Sizes(), self.hardware, costs), calibration=costs)


def _scene(stream_output_tokens: int) -> Scene:
    return Scene(
        streams=STREAMS,
        long_tokens=LONG_TOKENS,
        stream_output_tokens=stream_output_tokens,
        shared_blocks=SHARED_BLOCKS,
    )


MACHINES = {
    "H100, Llama-3.1-8B": Machine("h100", "Llama-3.1-8B", _scene(1_500)),
    "A100 80 GB, OPT-13B": Machine(
        "a100-80g",
        "opt-13b",
        _scene(480),
        "the costs of its shape: OPT's own positions end at 2,048; the streams end where memory does",
    ),
    "A100 80 GB, Qwen2.5-14B": Machine("a100-80g", "Qwen2.5-14B", _scene(1_500)),
}


@dataclass(slots=True)
class Heard:
    """Follows a run and notes when each request's tokens came.

    A step is told of before its output is processed, so what has grown since a job's last step came with that one.
    """

    times: TokenTimes = field(default_factory=TokenTimes)
    _known: dict[str, int] = field(default_factory=dict)
    _last_s: dict[str, float] = field(default_factory=dict)

    def stepped(self, instance: str, outcome: StepOutcome, started_s: float, finished_s: float) -> None:
        """The output of a step is about to be processed."""
        for job in outcome.tokens:
            if job.id in self._last_s:
                self._grown(job.id, job.num_output_tokens, self._last_s[job.id])
            self._last_s[job.id] = finished_s

    def ended(self, record: Record) -> None:
        """A request has ended with its last token."""
        self._grown(record.id, record.output_tokens, record.finished_s or 0.0)

    def _grown(self, request_id: str, output_tokens: int, at_s: float) -> None:
        new = output_tokens - self._known.get(request_id, 0)
        if new:
            self._known[request_id] = output_tokens
            self.times.came(request_id, new, at_s)


def simulated(
    machine: Machine, policy: str, parts: Parts, tbt_s: float | None, seed: int, *, with_long: bool = True
) -> TokenTimes:
    """When the tokens of the scene came under a policy, with this target for the streams."""
    requests, heard = machine.scene.requests(tbt_s, with_long=with_long, seed=seed), Heard()
    simulate(
        requests,
        policy_factory(policy, parts, requests),
        machine.system(),
        on_record=heard.ended,
        max_output_tokens=max(request.output_tokens for request in requests),
        seed=seed,
        watch=heard.stepped,
    )
    return heard.times


def measured(
    machine: Machine, policy: str, factors: Sequence[float], budgets: Sequence[int], seeds: int
) -> Measured:
    """Everything of one machine: the streams alone first, since their gaps set the targets."""
    scene, every = machine.scene, range(seeds)
    alone = [
        light(scene, simulated(machine, "vllm", OWN_PARTS, None, seed, with_long=False)) for seed in every
    ]
    gap_s = light_gap_s(alone)
    deaf = {"vllm": ("vllm", OWN_PARTS)} | {
        f"sarathi {budget}": ("sarathi", Parts(batching=f"decode-first:token_budget={budget}"))
        for budget in budgets
    }
    return Measured(
        light=alone,
        deaf={
            name: [passage(scene, simulated(machine, *who, None, seed)) for seed in every]
            for name, who in deaf.items()
        },
        policy={
            factor: [
                passage(scene, simulated(machine, policy, OWN_PARTS, factor * gap_s, seed)) for seed in every
            ]
            for factor in factors
        },
    )
