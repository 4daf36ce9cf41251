"""CPU time Headway adds to stock vLLM's scheduling, per step: `python bench/cost/plan_overhead.py --json`.

Stock's scheduler and ours run in turn in one process, without a model, on the same kind of stream: 256
running, 1,000 or 10,000 waiting, `--arrivals` (10) arrivals and about as many finishes a step. A step is add_request
for the arrivals, schedule and update_from_output; what is reported is the difference of process CPU time, ours
minus stock's, step by step (in microseconds): `added_us` of all of it, `held_us` without what is done while the workers
compute. Most real steps have few arrivals: with one a step answers are 256 tokens long on average. Of every order, or
of the presets of `--preset` as a whole.

Both schedulers read a clock of the bench's own. A step takes some 25 ms on it, and more with more tokens: quanta end,
step times are learned, and what is decided does not hang on this machine's speed.

`plans` is the CPU time of a policy's own part of it, `plan` and `observe`, with 1,000 and 10,000 waiting: every preset
of `--plan` with as many worker slots as run, and, for those that swap, with twice as many and host memory, where most
residents pause. Aim with 1,000 waiting: plan within 200 us (p50) and 500 us (p99).

With `--tenants` each request of these names one of so many tenants.

`light` is what a preset of `--light` adds where next to nothing is to be decided: some 8 running, none waiting, a
step each 10 ms, targets, and host memory where the preset uses it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM logs to stdout, which is for data here
sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script, only this folder is on the path

from vllm.v1.core.sched.scheduler import Scheduler

from bench.command import command_line, preset_option
from headway.core.plan import StepOutcome, StepPlan
from headway.core.view import StepView
from headway.engine.demo_model import ensure_demo_random
from headway.engine.host_kv import HostKv
from headway.engine.model_free import (
    ModelFreeEngine,
    ScriptedRequest,
    engine_config,
    headway_builder,
    make_scheduler,
    to_request,
)
from headway.engine.step.guard import GuardedPolicy
from headway.policies.order import ORDERS
from headway.policies.presets import build_policy, find_preset
from headway.statistics import quantile

RUNNING = 256
WAITING = (1_000, 10_000)
ARRIVALS_A_STEP = 10
WARM_STEPS, WARM_ANSWERS = 250, 4
"""Warm-up in steps, and in answer lengths: until as many answers end as arrive, and the orders' estimates have
settled.
"""
NUM_BLOCKS = 8_000
PLANNED = ("vllm", "fastserve")
LIGHT = ("vllm", "headway")
TICK_S, TOKEN_S = 0.008, 15e-6
"""Roughly an H100 serving 8 billion parameters: some 25 ms for 256 decodes and ten prompts."""
QUANTILES = {"p50": 0.5, "p99": 0.99}
HOST_BLOCKS = 600
"""Room on the host for some 200 requests."""
TTFT_CLASSES_MS = (200, 1_000, 5_000, 60_000)


def main() -> None:
    """Print `{"<order or preset>": {"added_us_256_1000": {"p50": a, "p99": b}, "held_us_256_1000": {...}, ...}}`."""
    parser = options(__doc__)
    parser.add_argument(
        "--order", action="append", choices=sorted(ORDERS), metavar="ORDER", help="measure only this order"
    )
    preset_option(parser, "--preset", "measure all that these presets add")
    parser.add_argument(
        "--arrivals",
        type=int,
        default=ARRIVALS_A_STEP,
        choices=range(1, RUNNING + 1),
        metavar="N",
        help=f"arrivals a step of --order, --preset and --plan (default {ARRIVALS_A_STEP})",
    )
    parser.add_argument(
        "--tenants",
        type=int,
        default=0,
        choices=range(1_000_001),
        metavar="N",
        help="requests of --order, --preset and --plan are each of one of N tenants (default 0: they name none)",
    )
    preset_option(parser, "--plan", "measure these presets'")
    preset_option(parser, "--light", "measure these presets at light load")
    arguments = parser.parse_args()
    model = str(ensure_demo_random())
    table: dict[str, Any] = {}
    chosen = arguments.order or arguments.preset or arguments.plan or arguments.light
    presets = arguments.plan or (() if chosen else PLANNED)
    whole = {order: headway_builder(order=order) for order in arguments.order or (() if chosen else ORDERS)}
    whole |= {preset: headway_builder(policy=preset) for preset in arguments.preset or ()}
    for name, build in whole.items():
        table[name] = {}
        for waiting in WAITING:
            print(f"{name}, {waiting} waiting ...", file=sys.stderr)
            stock, ours = (
                Lane(model, each, waiting, arrivals=arguments.arrivals, tenants=arguments.tenants)
                for each in (Scheduler, build)
            )
            for kind, figures in warmed_quantiles(stock, ours, arguments.steps).items():
                table[name][f"{kind}_us_{RUNNING}_{waiting}"] = figures
    if presets:
        table["plans"] = {
            preset: plan_times(model, preset, arguments.steps, arguments.arrivals, arguments.tenants)
            for preset in presets
        }
    light = arguments.light or (() if chosen else LIGHT)
    if light:
        table["light"] = {preset: light_times(model, preset, arguments.steps) for preset in light}
    print(json.dumps(table))


def options(description: str | None) -> argparse.ArgumentParser:
    """Options common to the benches of a step's overhead."""
    parser = command_line(description)
    parser.add_argument("--steps", type=int, default=400, help="measured steps per cell (default 400)")
    return parser


def plan_times(
    model: str, preset: str, steps: int, arrivals: int, tenants: int
) -> dict[str, dict[str, float]]:
    """CPU times of a preset's plans, by the number of running residents and of waiting jobs."""
    layouts: dict[int, HostKv | None] = {RUNNING: None}
    if build_policy(find_preset(preset)).uses_host:
        layouts[2 * RUNNING] = HostKv(blocks=HOST_BLOCKS)
    table = {}
    for slots, host_kv in layouts.items():
        for waiting in WAITING:
            name = f"{RUNNING}_of_{slots}_{waiting}"
            print(f"plans of {preset}, {name} ...", file=sys.stderr)
            lane = _PlanLane(
                model, preset, waiting, slots=slots, host_kv=host_kv, arrivals=arrivals, tenants=tenants
            )
            table[name] = lane.measure(steps)
    return table


def light_times(model: str, preset: str, steps: int) -> dict[str, dict[str, float]]:
    """What a preset adds to a step with hardly anything to decide."""
    print(f"{preset} at light load ...", file=sys.stderr)
    host_kv = HostKv(blocks=HOST_BLOCKS) if build_policy(find_preset(preset)).uses_host else None
    stock = _LightLane(model, Scheduler, 0)
    ours = _LightLane(model, headway_builder(policy=preset), 0, host_kv=host_kv)
    return {f"{kind}_us": figures for kind, figures in warmed_quantiles(stock, ours, steps).items()}


class Added(NamedTuple):
    """Extra microseconds of one step: in all, and without work done while the workers compute."""

    added: float
    held: float


def warmed_quantiles(without: Lane, with_it: Lane, steps: int) -> dict[str, dict[str, float]]:
    """Quantiles of both kinds of `Added`, over `steps` steps after the warm-up."""
    for lane in (without, with_it):
        lane.warm()
    found = list(added_us(without, with_it, steps))
    return {kind: quantiles(getattr(step, kind) for step in found) for kind in Added._fields}


def added_us(without: Lane, with_it: Lane, steps: int) -> Iterator[Added]:
    """The extra time of one lane over the other, step by step in alternation."""
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        all_s = with_it.step_s() - without.step_s()
        beside_s = with_it.beside_s - without.beside_s
        yield Added(all_s * 1e6, (all_s - beside_s) * 1e6)
    gc.unfreeze()


class Lane:
    """One scheduler kept at constant load; `beside_s` is the part of its last step's CPU time hidden behind the
    workers.

    The workers take `tick_s` for a step, and TOKEN_S for each token, of the engine's own clock.
    """

    running = RUNNING
    tick_s = TICK_S
    arrivals_a_step: float = ARRIVALS_A_STEP
    beside_s = 0.0
    _due = 0.0

    def __init__(
        self,
        model: str,
        build: Callable[..., Any],
        waiting: int,
        *,
        slots: int = RUNNING,
        host_kv: HostKv | None = None,
        arrivals: int | None = None,
        tenants: int = 0,
    ) -> None:
        if arrivals is not None:
            self.arrivals_a_step = arrivals
        config = engine_config(model, max_num_seqs=slots, max_num_batched_tokens=4096, host_kv=host_kv)
        self.engine = ModelFreeEngine(make_scheduler(build, config, NUM_BLOCKS), copy_steps=1)
        self.engine.scheduler.clock = lambda: self.engine.now_s
        self._random = random.Random(0)
        self._tenants = tenants
        self.count = 0
        for _ in range(self.running + waiting):
            self.engine.add(self.next())

    def next(self) -> ScriptedRequest:
        """The next request to arrive."""
        self.count += 1
        tokens = self._random.randint(8, 160)
        return ScriptedRequest(
            id=str(self.count),
            arrival_step=0,
            prompt_token_ids=range(self.count * 200, self.count * 200 + tokens),
            output_tokens=self._random.randint(1, 2 * self._mean_output_tokens),
            priority=self._random.randint(0, 3),
            extra_args={**self.targets(), **self._tenant()},
        )

    @property
    def _mean_output_tokens(self) -> int:
        """The output length with which as many requests end as arrive; 0 without arrivals."""
        return int(self.running / self.arrivals_a_step) if self.arrivals_a_step else 0

    def targets(self) -> dict[str, Any]:
        """The targets of the next request."""
        return {"headway_ttft_ms": self._random.choice(TTFT_CLASSES_MS)}

    def _tenant(self) -> dict[str, Any]:
        return {"headway_tenant": str(self._random.randrange(self._tenants))} if self._tenants else {}

    def step_s(self) -> float:
        """CPU seconds of one step with its arrivals, without the making of requests and tokens."""
        self._due += self.arrivals_a_step
        arrivals = [to_request(self.next()) for _ in range(int(self._due))]
        self._due -= len(arrivals)
        scheduler = self.engine.scheduler
        started = time.process_time()
        for request in arrivals:
            scheduler.add_request(request)
        output = scheduler.schedule()
        scheduled = time.process_time()
        scheduler.get_grammar_bitmask(output)
        followed = time.process_time()
        self.engine.now_s += self.tick_s + TOKEN_S * output.total_num_scheduled_tokens
        computed = self.engine.compute(output)
        resumed = time.process_time()
        scheduler.update_from_output(output, computed)
        self.beside_s = followed - scheduled
        return time.process_time() - resumed + followed - started

    def warm(self) -> None:
        """Run steps until the load is steady."""
        for _ in range(max(WARM_STEPS, WARM_ANSWERS * self._mean_output_tokens)):
            self.step_s()


class _LightLane(Lane):
    """A scheduler with little to do."""

    tick_s = 0.01
    running = 8
    arrivals_a_step = running / 64

    def targets(self) -> dict[str, Any]:
        """Targets that are easily kept."""
        return {"headway_ttft_ms": 500, "headway_tbt_ms": 50}


class _Timed(GuardedPolicy):
    """A guard that measures its policy's last calls, in CPU seconds."""

    plan_s = observe_s = 0.0

    def plan(self, view: StepView) -> StepPlan:
        """Plan, and measure it."""
        started = time.process_time()
        plan = super().plan(view)
        self.plan_s = time.process_time() - started
        return plan

    def observe(self, outcome: StepOutcome) -> None:
        """Observe, and measure it."""
        started = time.process_time()
        super().observe(outcome)
        self.observe_s = time.process_time() - started


class _PlanLane(Lane):
    """A preset at constant load."""

    def __init__(
        self,
        model: str,
        preset: str,
        waiting: int,
        **load: Any,
    ) -> None:
        super().__init__(model, headway_builder(policy=preset, batch_width=RUNNING), waiting, **load)
        scheduler = self.engine.scheduler
        scheduler.guard = self._timed = _Timed(scheduler.guard.policy, scheduler.ledger, scheduler.counters)

    def measure(self, steps: int) -> dict[str, float]:
        """Quantiles over `steps` steps, and the number of requests in the last one."""
        timed, ledger = self._timed, self.engine.scheduler.ledger
        plans_us, observes_us, found = [], [], Counter[str]()
        self.warm()
        gc.collect()
        gc.freeze()
        for _ in range(steps):
            self.step_s()
            plans_us.append(timed.plan_s * 1e6)
            observes_us.append(timed.observe_s * 1e6)
            found.update(residents=len(ledger.residents), swapped=len(ledger.swapped))
        gc.unfreeze()
        return {
            **{f"plan_us_{name}": value for name, value in quantiles(plans_us).items()},
            **{f"observe_us_{name}": value for name, value in quantiles(observes_us).items()},
            **{name: round(total / steps) for name, total in found.items()},
        }


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """The median and the 99th percentile, by name."""
    found = list(values)
    return {name: round(quantile(found, share), 1) for name, share in QUANTILES.items()}


if __name__ == "__main__":
    main()
