"""Simulated engines that four clients share, for `broken_predictions` and `tenants`.

The clients' answers have lengths of their own: medians of 10, 40, 120 and 300 tokens. One engine has few seats and room
for all KV (`roomy`), one few seats and little memory (`short memory`), one little memory and a seat for every request
(`wide`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from headway.lab.engine_sizes import EngineSizes, engine_limits
from headway.lab.simulation import simulate_policy
from headway.predict.models.known_models import model_shape
from headway.predict.steps.hardware import calibration
from headway.sim.simulation import System
from headway.traces import Constant, Poisson, TraceRequest, Zipf, at_once, generate

REQUESTS = 600
LIMIT_TOKENS = 1_024
MEDIANS_TOKENS = (10, 40, 120, 300)
SPREAD = 0.5
HARDWARE, MODEL = "a100-40g", "opt-13b"
SYSTEMS = {
    "roomy": EngineSizes(max_num_seqs=256, batch_width=16, host_blocks=4_000),
    "short memory": EngineSizes(max_num_seqs=256, batch_width=16, num_blocks=250, host_blocks=4_000),
    "wide": EngineSizes(max_num_seqs=256, num_blocks=400, host_blocks=4_000),
}


def requests(rate_rps: float, seed: int, count: int = REQUESTS) -> list[TraceRequest]:
    """The four clients' requests, in random order; all declare the same limit."""
    made = generate(
        Poisson(rate_rps=rate_rps),
        Zipf(theta=1.1, maximum=512),
        Constant(tokens=1),  # the clients' own answers replace it
        count,
        seed,
    )
    rng = Random(f"clients of {seed}")
    return [_of_a_client(request, rng) for request in made]


def _of_a_client(request: TraceRequest, rng: Random) -> TraceRequest:
    client = rng.randrange(len(MEDIANS_TOKENS))
    tokens = round(MEDIANS_TOKENS[client] * rng.lognormvariate(0.0, SPREAD))
    return replace(
        request,
        tenant=f"client {client}",
        output_tokens=min(max(1, tokens), LIMIT_TOKENS),
        max_output_tokens=LIMIT_TOKENS,
    )


def capacity_rps(system: str) -> float:
    """Requests a second that `vllm` serves if all arrive at once."""
    backlog: Sequence[TraceRequest] = at_once(requests(1.0, 0))
    found = simulate_policy(backlog, "vllm", system_of(system), max_output_tokens=LIMIT_TOKENS)
    return len(found.records) / found.end_s


def system_of(name: str) -> System:
    """The engine of that name."""
    costs = calibration(HARDWARE, model_shape(MODEL))
    return System(limits=engine_limits(SYSTEMS[name], HARDWARE, costs), calibration=costs)
