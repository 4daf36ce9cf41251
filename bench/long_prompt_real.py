"""The scene of `long_prompt` on the real CPU engine, scaled down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from headway_reproduce.mid_model import ensure_mid_model

from bench.long_prompt_scene import Measured, Passage, Scene, TokenTimes, light, light_gap_s, passage
from bench.serving_engine import ServingEngine
from headway.engine.settings import EngineSettings
from headway.whole_file import write_whole

MACHINE = "CPU, 46 M parameters"
SCENE = Scene(
    streams=12,
    long_tokens=1_500,
    stream_output_tokens=600,
    shared_blocks=1,
    settle_s=2.0,
    window_s=4.0,
    warm=8,
    rehearsal_s=5.0,
)
BUDGETS = (16, 32, 64, 128, 256, 512)
SEATS = 32
FLAGS = ("--max-num-seqs", str(SEATS), "--block-size", "32", "--max-model-len", "4096", "--enforce-eager")
NOTE = (
    "scaled down: 1,500 tokens amid 12 streams for 20,000 amid 64, and budgets to match; the engine's other sizes as "
    "vLLM chooses them"
)


@dataclass(slots=True)
class Kept:
    """Runs by name: those that are in the folder are read, the others made and put there, if there is a folder."""

    folder: Path | None
    say: Callable[[str], None]

    def times(self, name: str, make: Callable[[], TokenTimes]) -> TokenTimes:
        """When the tokens of a run came."""
        file = None if self.folder is None else self.folder / f"{name}.json"
        if file is not None and file.exists():
            return TokenTimes(msgspec.json.decode(file.read_bytes(), type=dict[str, list[float]]))
        self.say(f"long prompt: {name}")
        times = make()
        if file is not None:
            write_whole(file, msgspec.json.encode(times.of))
        return times


@contextmanager
def serving() -> Iterator[ServingEngine]:
    """The engine of all runs, without host memory: vLLM's own scheduler serves on it too."""
    engine = ServingEngine(str(ensure_mid_model()), FLAGS, EngineSettings())
    try:
        yield engine
    finally:
        engine.close()


@dataclass(frozen=True, slots=True)
class Stage:
    """An engine with a scene: each run is made at most once."""

    engine: ServingEngine
    kept: Kept
    scene: Scene

    def stock(self, seed: int, *, with_long: bool = True) -> TokenTimes:
        """Under vLLM's own scheduler."""
        name = f"vllm{'' if with_long else '-alone'}-{seed}"
        return self.kept.times(name, lambda: self._run(None, None, seed, with_long=with_long))

    def sarathi(self, budget: int, seed: int) -> TokenTimes:
        """Under a fixed budget of tokens a step."""
        settings = EngineSettings(policy="sarathi", batching=f"decode-first:token_budget={budget}")
        return self.kept.times(f"sarathi-{budget}-{seed}", lambda: self._run(settings, None, seed))

    def policy(self, policy: str, factor: float, gap_s: float, seed: int) -> TokenTimes:
        """Under a policy, its target so many times the streams' gap."""
        settings = EngineSettings(policy=policy)
        return self.kept.times(
            f"{policy}-{factor:g}-{seed}", lambda: self._run(settings, factor * gap_s, seed)
        )

    def _run(
        self, settings: EngineSettings | None, tbt_s: float | None, seed: int, *, with_long: bool = True
    ) -> TokenTimes:
        if settings is None:
            self.engine.use_stock("fcfs", SEATS)
        else:
            self.engine.use(settings)
        times = TokenTimes()
        requests = self.scene.requests(tbt_s, with_long=with_long, seed=seed)
        self.engine.serve(requests, seed, on_tokens=times.came)
        return times


def measured(
    policy: str,
    factors: Sequence[float],
    budgets: Sequence[int],
    seeds: int,
    kept: Kept,
    scene: Scene = SCENE,
) -> Measured:
    """Everything; the streams alone first, since their gaps set the targets, then all in turn, seed by seed."""
    every = range(seeds)
    with serving() as engine:
        stage = Stage(engine, kept, scene)
        alone = [light(scene, stage.stock(seed, with_long=False)) for seed in every]
        gap_s = light_gap_s(alone)
        deaf: dict[str, list[Passage]] = {"vllm": [], **{f"sarathi {budget}": [] for budget in budgets}}
        own: dict[float, list[Passage]] = {factor: [] for factor in factors}
        for seed in every:
            deaf["vllm"].append(passage(scene, stage.stock(seed)))
            for budget in budgets:
                deaf[f"sarathi {budget}"].append(passage(scene, stage.sarathi(budget, seed)))
            for factor in factors:
                own[factor].append(passage(scene, stage.policy(policy, factor, gap_s, seed)))
    return Measured(light=alone, deaf=deaf, policy=own)
