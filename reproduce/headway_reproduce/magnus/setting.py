"""Magnus's experiments: the workload, the engine and the policies, fixed before the first run.

Source: Cheng et al., "Enabling Efficient Batch Serving for LMaaS via Generation Length Prediction" (ICWS 2024).
What the paper leaves open is marked "ours"; adr/0019 says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from headway.routing.magnus import VS_BATCH_SIZE, VSQ_BATCH_SIZE

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

REQUESTS_A_TASK = 1500
"""Most requests of each task in a run, in random order: the same number of each, as in the paper."""

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
