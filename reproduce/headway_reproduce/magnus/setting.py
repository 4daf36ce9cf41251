"""Magnus's experiments: the workload, the engine and the policies, fixed before the first run.

Source: Cheng et al., "Enabling Efficient Batch Serving for LMaaS via Generation Length Prediction" (ICWS 2024).
What the paper leaves open is marked "ours"; adr/0019 says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headway.routing.magnus import VS_BATCH_SIZE, VSQ_BATCH_SIZE, WMA_LIMIT, WMA_SHARE

# ---- what the paper ran on -----------------------------------------------------------------------------

HARDWARE, INSTANCES = "v100-32g", 8
"""Eight V100 32 GB, an instance each."""
MODEL = "THUDM/chatglm-6b"
SIMULATED = "simulated, 8 x V100 32 GB"
"""The machine named in tables of simulated runs."""

VS_BATCH, VSQ_BATCH = VS_BATCH_SIZE, VSQ_BATCH_SIZE
"""Batches of fixed size (Fig. 4; the second is recalled). The first is also CCB's number of parallel requests."""
LONGEST_TOKENS = 1024 + 1024
"""Lmax + Gmax: the most tokens that one request may need."""
CAPACITY_TOKENS = VS_BATCH * LONGEST_TOKENS
"""Theta / Delta: the KV tokens of an instance, so that exactly 7 of the longest fit."""
VSQ_CAPACITY_TOKENS = VSQ_BATCH * LONGEST_TOKENS

LEARN_EVERY_S, TIMES_LEARN_EVERY_S = 180.0, 120.0
"""Intervals at which the predictors of lengths and of batch times learn."""

# ---- what is varied ------------------------------------------------------------------------------------

LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Poisson arrivals, as shares of vs's throughput of the same requests, all at once (ours)."""
REQUESTS_A_TASK = 1500
"""Most requests of each task in a run, in random order: the same number of each, as in the paper."""
SEEDS = 3
"""Seeds, each with other requests, in another order, at other times."""


class Phi(NamedTuple):
    """WMA's threshold: a number of tokens, or a share of what a seat of the batch reads, whichever is larger."""

    limit: int
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.limit:,}, or {self.share:.0%} of reads" if self.share else f"{self.limit:,}"


PHI = Phi(WMA_LIMIT, WMA_SHARE)
"""The paper does not give it: the product's value, chosen from those below."""
FIXED_PHI, RECALLED_PHI = Phi(10_000), Phi(50_000)
"""The best fixed one for these lengths, and the one recalled from the paper."""
PHIS = (FIXED_PHI, RECALLED_PHI, PHI)
MORE_PHIS = (
    Phi(2_000),
    Phi(25_000),
    Phi(200_000),
    Phi(WMA_LIMIT, 0.25),
    Phi(WMA_LIMIT, 0.75),
    Phi(1, WMA_SHARE),
)
"""Further thresholds of the sweep, left out by `--quick`."""
PHI_SEED = 100
"""The sweep's own seed, so that no result is reported on the requests that the threshold was chosen with."""
PHI_LOADS = (1.0, 2.0, 4.0)
STRETCH, STRETCH_LOAD = 8, 1.0
"""Texts this many times as long, at most Lmax and Gmax: the value of a threshold for other lengths."""

# ---- compared systems ----------------------------------------------------------------------------------

VS, VSQ, CCB = "vs", "vsq", "ccb"
"""Vanilla batches of 7; with four-bit weights; and seats that are refilled at every iteration."""
GLP, ABP, MAGNUS = "glp", "abp", "magnus"
"""Ablations: batches by predicted length, of 7 at most; without that cap; and the complete system."""
TODAY = "vllm"
"""vLLM as it is now: continuous batches over paged memory."""
BASELINES = (VS, VSQ, CCB)
STEPS = (VS, GLP, ABP, MAGNUS)
"""Each adds one thing to the one before (Fig. 10, 11)."""
POLICIES = (VS, VSQ, CCB, GLP, ABP, MAGNUS)
PREDICTING = (GLP, ABP, MAGNUS)

# ---- the toy (section II) ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToyKind:
    """Requests of one kind, with equal prompts and equal answers."""

    count: int
    tokens: int


TOY_SMALL, TOY_LARGE = ToyKind(18, 10), ToyKind(3, 1000)

# ---- what the paper reports ----------------------------------------------------------------------------

PAPER_TOY_VS_S, PAPER_TOY_MAGNUS_S = 242.0, 60.0
PAPER_TOY_RATIO = 4.0
PAPER_RANGES = {
    "throughput": (0.66, 2.34),
    "mean_rt_cut": (0.603, 0.897),
    "p95_rt_cut": (0.532, 0.917),
    "valid_tps": (0.70, 2.40),
    "total_tps": (1.15, 4.89),
}
"""Gains over the baselines, least and most: 0.66 is two thirds more; a cut of 0.603 is that much shorter."""
PAPER_CORRELATION = 0.8
"""Pearson's correlation of user input and answer: above this value for most pairs of a task and a model."""
