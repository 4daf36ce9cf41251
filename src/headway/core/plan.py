"""What a policy wants of a step, and what the engine did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from headway.core.job import Job


class Fate(StrEnum):
    """What becomes of a preempted job's KV: copied to the host, or dropped.

    A swap for which the host has no room becomes a RECOMPUTE; the outcome says which.
    """

    SWAP = "swap"
    RECOMPUTE = "recompute"


class Departure(StrEnum):
    """Why a waiting job leaves the queue without running here."""

    HAND_OFF = "handed_off"
    SHED = "shed"
    EXPIRED = "expired"


class Reason(StrEnum):
    """Why the engine did less for a job than the plan asked."""

    BUDGET = "budget"
    SEATS = "seats"
    BLOCKS = "blocks"
    ISL = "isl"
    WATERMARK = "watermark"
    WHOLE_PROMPT = "whole_prompt"
    PREEMPTION = "preemption"
    LORA = "lora"
    GRAMMAR = "grammar"
    REMOTE_KV = "remote_kv"
    REMOTE_LOOKUP = "remote_lookup"
    STALE_OUTPUT = "stale_output"
    IN_FLIGHT = "in_flight"
    DRAFTS = "drafts"
    ENCODER = "encoder"
    LONG_PREFILL = "long_prefill"
    ALIGNMENT = "alignment"
    MODEL_LENGTH = "model_length"
    HELD = "held"
    ENGINE_PAUSED = "engine_paused"
    HOST_BLOCKS = "host_blocks"
    RESTORES = "restores"
    UNEXPLAINED = "unexplained"


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """A wish list, filled by `core.fill` or by the engine in the same way.

    Sequences are lists or tuples, mappings are dicts, numbers are ints. An engine refuses any other plan, and with it
    the policy (`core.plan_check`).

    - `run`: resident jobs, first to be served first. `view.residents` itself means that all go on as they stand, which
      spares a look at each. It is never edited in place.
    - `admit`: waiting or swapped jobs, likewise. It may name more jobs than there are seats, since some may not be
      ready. A swapped job comes back with what it had computed, and gets tokens when its KV has arrived.
    - `whole_prompts`: a waiting job starts only if all its tokens fit what is left of the budget. A prompt longer than
      the whole budget starts only as the step's first work, in chunks.
    - `preempt`: residents whose KV leaves, with their fate. Residents in neither `run` nor `preempt` are paused: no
      tokens, KV kept.
    - `offload`: paused residents whose KV is copied to the host; they stay.
    - `prefetch`: swapped jobs whose KV comes back without a place in the batch, into blocks and slots that are left.
      Such a job is then resident and paused, and `preempt {job: SWAP}` puts it back at once.
    - `room_for`: the job for which `preempt` frees memory, if it starts in a later step.

    The engine ignores `room_for`, which is informational.
    """

    run: Sequence[Job] = ()
    admit: Sequence[Job] = ()
    token_budget: int = 0
    chunk_cap: Mapping[Job, int] = field(default_factory=dict)
    whole_prompts: bool = False
    preempt: Mapping[Job, Fate] = field(default_factory=dict)
    offload: Sequence[Job] = ()
    prefetch: Sequence[Job] = ()
    leave: Mapping[Job, Departure] = field(default_factory=dict)
    room_for: Job | None = None


@dataclass(slots=True, kw_only=True)
class StepOutcome:
    """What a step really did.

    - `tokens` holds every job that got some, with how many; `num_tokens` is their sum.
    - `admitted` became resident, to run, or to have their KV copied back first; prefetched ones are included.
    - `cached_tokens`: leading tokens that an admitted job found computed on the device.
    - `preempted`: jobs whose KV left the device, wanted by the plan or not.
    - `offloaded`: jobs whose copy to the host is complete or under way now.
    - `passed_over` names why a job of the plan got nothing or less than its share.
    - `decoded_tokens`: recent mean number of tokens that a decode gains in a step; above 1 where drafts are right.
    """

    now_s: float
    plan: StepPlan
    tokens: dict[Job, int] = field(default_factory=dict)
    num_tokens: int = 0
    admitted: list[Job] = field(default_factory=list)
    cached_tokens: dict[Job, int] = field(default_factory=dict)
    preempted: dict[Job, Fate] = field(default_factory=dict)
    offloaded: list[Job] = field(default_factory=list)
    left: dict[Job, Departure] = field(default_factory=dict)
    passed_over: dict[Job, Reason] = field(default_factory=dict)
    free_blocks: int = 0
    decoded_tokens: float = 1.0
