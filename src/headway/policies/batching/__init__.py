"""Batchings turn a ranking into the work of one step. One idea a file."""

from __future__ import annotations

from headway.policies.batching.decode_first import DecodeFirst
from headway.policies.batching.elastic import Elastic
from headway.policies.batching.outlook import ReservingTopJobs
from headway.policies.batching.paced import Paced
from headway.policies.batching.prefill_first import PrefillFirst
from headway.policies.batching.reserved import IterationLevel, RequestLevel
from headway.policies.batching.swapped_or_waiting import SwappedOrWaiting
from headway.policies.batching.within_budgets import WithinBudgets
from headway.policies.protocols import Batching

BATCHINGS: dict[str, type[Batching]] = {
    "decode-first": DecodeFirst,
    "prefill-first": PrefillFirst,
    "iteration-level": IterationLevel,
    "request-level": RequestLevel,
    "top-jobs": ReservingTopJobs,
    "swapped-or-waiting": SwappedOrWaiting,
    "within-budgets": WithinBudgets,
    "elastic": Elastic,
    "paced": Paced,
}
