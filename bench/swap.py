"""AdaptiveLLM's choice beside always recomputing and always swapping: `python bench/swap.py --json`.

The real CPU engine with a made model and few KV blocks, so that requests are preempted all the time: short prompts
and long ones (the paper's Summary), all there at once, outputs of set lengths, greedy. Policies of a family differ
in the eviction alone: `adaptivellm`, and its twins `recompute` and `swap`; copies wait. The same once more for
`adaptivellm-plus`, whose copies go on beside the steps. Copies are held to three bandwidths, `slow`, `even` and
`fast`: multiples of the break-even at which a victim of that workload takes as long out and back as to prefill,
measured first. Every run begins with requests that do not count, from which costs are learned.

Policies take turns in rounds, every second one backwards. `adaptivellm_vs_better` is its throughput over that of the
twin with the lower median makespan: the median of the rounds' ratios, `spread` their least and largest;
`adaptivellm_vs_better_at_one_speed` takes each run's steps at what a law fitted to the steps of all runs says of
their shapes, and adds what they waited for copies, so that how busy the machine was does not count (nor what steps
lose to copies beside them). `copy_bandwidth`: a copier's blocks both ways on an idle engine beside one memcpy of as
many bytes, and what runs reached. `copy_time_hidden`: the share of copy time that nobody waited for. With copies
beside the steps that is: steps longer than others of their shape, and turns of the loop without work.

Under 8 minutes on 2 cores. The exit status tells of errors only: on another machine times are other times.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import fsum
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, only this folder is on the path

from bench.swap_engine import CopySeconds, Watch, WatchedEngine, WatchedStep, copies_on_worker
from headway.core.batch_shape import BatchShape
from headway.core.plan import Fate
from headway.engine.demo_model import DemoRecipe, ensure_model
from headway.engine.kv_host import HostKv
from headway.engine.machine import machine_name, vllm_version
from headway.engine.settings import EngineSettings
from headway.predict.step_fit import fit_step_time
from headway.results import summarize
from headway.traces import AllAtOnce, LogNormal, TraceRequest, Workload

RECIPE = DemoRecipe(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=8,
)
"""8 million parameters: a prefill and a swap take milliseconds, a run seconds."""
BLOCK_TOKENS = 32
HOST_BLOCKS = 256
"""Room for all that the device holds and more, so that no swap is refused."""
SEATS = 32
LONGEST_TOKENS = 1024
SIZES_BLOCKS = (1, 2, 4, 8, 16)
"""Of the copies on an idle engine."""
PROBED_TOKENS = (32, 64, 128, 256, 384, 512)
BANDWIDTHS = {"slow": 0.25, "even": 1.0, "fast": 8.0}
"""Multiples of a workload's break-even."""
DEFAULT_ROUNDS = 3
LEARNING_SHARE = 0.25
"""Requests served before a run's own, in shares of them."""
OTHER_SEED = 10**6
"""What those are drawn with, on top of the run's own seed."""
TWINS = ("recompute", "swap")


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: requests, and how many KV blocks the device has for them."""

    name: str
    requests: int
    mean_input_tokens: float
    longest_input_tokens: int
    mean_output_tokens: float
    longest_output_tokens: int
    paused_blocks: int

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
