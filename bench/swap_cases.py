"""What `bench/swap.py` compares: policies that differ in the eviction alone, loads, and the engine they run on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from bench.swap_engine import WatchedEngine
from headway.engine.demo_model import DemoRecipe, ensure_model
from headway.engine.kv.host import HostKv
from headway.engine.settings import EngineSettings
from headway.traces import AllAtOnce, LogNormal, TraceRequest, Workload

RECIPE = DemoRecipe(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
)
"""8 million parameters: a prefill and a swap take milliseconds, a run seconds."""
BLOCK_TOKENS, DEVICE_BLOCKS = 32, 128
"""As many blocks as the paper has, each of them the CPU backend's size."""
HOST_BLOCKS = 384
"""Room for all that the device holds and more, so that no swap is refused."""
SEATS = 64
LONGEST_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: how many requests, and the laws of their lengths."""

    name: str
    requests: int
    mean_input_tokens: float
    longest_input_tokens: int
    mean_output_tokens: float
    longest_output_tokens: int

    def draw(self, count: int, seed: int) -> list[TraceRequest]:
        """So many requests, all there at once."""
        return Workload(
            AllAtOnce(),
            LogNormal.fitted(self.mean_input_tokens, 0.5, self.longest_input_tokens, 4),
            LogNormal.fitted(self.mean_output_tokens, 0.4, self.longest_output_tokens, 8),
            count,
            seed,
            self.longest_output_tokens,
        ).requests()


LOADS = (Load("short", 80, 20.0, 128, 100.0, 200), Load("long", 16, 340.0, 640, 240.0, 384))


@dataclass(frozen=True, slots=True)
class Family:
    """Policies that differ in the eviction alone: a preset, and its twins' evictions."""

    preset: str
    evictions: Mapping[str, str]

    def settings(self) -> dict[str, EngineSettings]:
        """By the name a cell has for it: the twins, then the preset itself."""
        host = HostKv(blocks=HOST_BLOCKS)
        suffix = self.preset.removeprefix("adaptivellm")
        twins = {
            f"{twin}{suffix}": EngineSettings(policy=self.preset, eviction=eviction, host_kv=host)
            for twin, eviction in self.evictions.items()
        }
        return {**twins, self.preset: EngineSettings(policy=self.preset, host_kv=host)}


SERIAL = Family("adaptivellm", {"recompute": "recompute", "swap": "swap:serial=true"})
"""Steps wait for their copies."""
BESIDE = Family("adaptivellm-plus", {"recompute": "recompute", "swap": "swap:min_residency=4"})
"""Copies go on beside the steps."""
FAMILIES = (SERIAL, BESIDE)


@dataclass(frozen=True, slots=True)
class Case:
    """A load at a bandwidth."""

    load: Load
    bandwidth: str
    bytes_per_s: float

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"{self.load.name}/{self.bandwidth}"


@dataclass(frozen=True, slots=True)
class SwapEngine:
    """The engine of every run."""

    @contextmanager
    def serving(self) -> Iterator[WatchedEngine]:
        """One with its worker on the first core and this loop on the last, so that they do not trade places."""
        cores = sorted(os.sched_getaffinity(0))
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if len(cores) > 1:
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores[:-1])))
        flags = (
            *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(DEVICE_BLOCKS + 1)),
            *("--max-num-seqs", str(SEATS), "--max-num-batched-tokens", "2048"),
            *("--max-model-len", str(LONGEST_TOKENS), "--no-enable-prefix-caching", "--enforce-eager"),
        )
        settings = EngineSettings(policy=SERIAL.preset, host_kv=HostKv(blocks=HOST_BLOCKS))
        engine = WatchedEngine(str(ensure_model("swap", RECIPE)), flags, settings)
        os.sched_setaffinity(0, cores[-1:])
        try:
            yield engine
        finally:
            engine.close()
