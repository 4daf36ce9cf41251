"""Types of `/dashboard/state`: the page reads it, and the API description is generated from them."""

from __future__ import annotations

import msgspec

from headway.gateway.book.accounts import Refusal
from headway.gateway.book.shadow_board import ShadowState

SLACK_BANDS = ("late", "under 25 %", "25 to 50 %", "50 to 75 %", "75 % or more", "no target")
"""Shares of the first token's target that a waiting request has left."""

SPARK_STEP_S = 5.0
SPARK_STEPS = 60


class InstanceState(msgspec.Struct, kw_only=True):
    """One instance: `condition` for `for_s` seconds and why; `waiting` are its requests without a token.

    Times of tokens are measured at the gateway, None before the first. `kv_used` and `cache_found` are the engine's own
    shares (`fleet.kv_figures.KvFigures`). `ticket`: whether it may get the next new request although it is kept free
    for urgent ones.
    """

    name: str
    pool: str
    condition: str
    for_s: float
    reason: str
    in_flight: int
    waiting: int
    served: int
    failures: int
    restarts: int
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tbt_p50_s: float | None
    tbt_p99_s: float | None
    kv_used: float | None
    cache_found: float | None
    ticket: bool


class Span(msgspec.Struct, kw_only=True):
    """Requests that arrived or ended within a time span: `accounts.RequestCounts`. `goodput` is None if none was
    judged.
    """

    offered: int
    finished: int
    met: int
    expired: int
    shed: int
    failed: int
    cancelled: int
    rejected: int
    goodput: float | None


class ClassState(msgspec.Struct, kw_only=True):
    """Requests with equal targets from one tenant; `spark` is goodput in steps of 5 s over five minutes."""

    slo: str
    tenant: str
    minute: Span
    five_minutes: Span
    spark: list[float | None]


class SlackBand(msgspec.Struct):
    """How many waiting requests have this much left of their time to the first token."""

    name: str
    waiting: int


class DoorState(msgspec.Struct, kw_only=True):
    """Requests that wait in the gateway because no instance may take them yet, and how long the first has waited."""

    waiting: int
    oldest_s: float | None


class HandOff(msgspec.Struct, kw_only=True):
    """Requests that one instance gave up unstarted and another took, since the start and in the last minute."""

    source: str
    target: str
    total: int
    minute: int


class RecentRequest(msgspec.Struct, kw_only=True):
    """A request that ended: when it arrived (seconds since 1970), where it was, how it ended and how long that took."""

    id: str
    at_s: float
    tenant: str
    instances: list[str]
    outcome: str
    met: bool
    ttft_s: float | None
    lasted_s: float
    tokens: int


class BatchState(msgspec.Struct, kw_only=True):
    """A batch: how many of its requests were answered, and when all will be at the recent rate.

    `left_s` is the time until its window closes, `expected_s` until its last answer (None: unknown), `unfinished` how
    many requests will have no answer by then.
    """

    id: str
    tenant: str
    status: str
    total: int
    completed: int
    failed: int
    in_flight: int
    left_s: float
    expected_s: float | None
    unfinished: int


class RecentLoad(msgspec.Struct, kw_only=True):
    """Rates over the last minute, or the time since the start, and in steps of 5 s over five minutes."""

    requests_per_s: float
    output_tokens_per_s: float
    requests_spark: list[float]
    output_tokens_spark: list[float]


class DashboardState(msgspec.Struct, kw_only=True):
    """Everything the page shows. `at_s` is the gateway's wall clock, `up_s` its running time.

    `max_queue` is how many requests may be without their first token. `in_time_so_far` are requests in flight that have
    missed no target yet. `resumed` streams continued elsewhere when their instance was lost. `prefills` counts where
    prompts were computed, if prefill and decode are separate (`accounts.Prefill`). `shadow` is the last report on other
    policies. `batches` are the unfinished ones and the last that ended.
    """

    version: str
    model: str
    at_s: float
    up_s: float
    load: RecentLoad
    overall: ClassState
    instances: list[InstanceState]
    max_queue: int | None
    door: DoorState
    slack: list[SlackBand]
    classes: list[ClassState]
    classes_left_out: int
    hand_offs: list[HandOff]
    in_time_so_far: int
    resumed: int
    prefills: dict[str, int]
    refusals: list[Refusal]
    recent: list[RecentRequest]
    shadow: ShadowState | None
    batches: list[BatchState]
