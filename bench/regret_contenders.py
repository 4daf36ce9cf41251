"""Who serves the cells of `bench/regret.py`: presets, and what clairvoyants would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial

from headway.core.cost import UnknownCost
from headway.errors import ConfigError
from headway.lab.policy_choice import OWN_PARTS, Parts, policy_factory, uses_predictions
from headway.lab.policy_source import code_digest
from headway.policies.presets import POOLED, Preset, find_preset, known_presets
from headway.predict.length_choice import DEFAULT_PREDICTOR, NONE
from headway.sim.killed_steps import KILLING_ROWS
from headway.sim.on_time_oracle import on_time_policy
from headway.sim.simulation import PolicyFactory
from headway.traces import TraceRequest

EXACT = "noisy-oracle:tau=1"
ON_TIME = "on-time-oracle"
SUBJECT = "headway"
STOCK = "vllm"

SHORTEST = Parts(
    order="predicted-remaining:give_way_s=1000000",
    batching="top-jobs:reserve_confidence=0.5",
    eviction="proactive",
)
"""Told the exact lengths it is shortest remaining work first, with room set aside.

Indexed, unlike `srpt-oracle`, which sorts all that wait in every step: these queues are too long for that.
"""

BLIND_ORDERS = {
    "arrival",
    "shortest-prompt",
    "longest-prompt",
    "waited-over-length",
    "skip-join-mlfq",
    "predicted-remaining",
    "hrrn",
    "governed",
}
BLIND_BATCHINGS = {
    "decode-first",
    "prefill-first",
    "iteration-level",
    "request-level",
    "swapped-or-waiting",
    "top-jobs",
    "elastic",
}
BLIND_EVICTIONS = {"recompute", "swap", "cheapest", "proactive"}
"""Parts that look at nobody's targets or priority: a run of theirs is the same with any targets, and is made once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What serves a cell. `predictor` says how long answers will be; `parts` stand in place of the preset's.

    An `oracle` knows what no policy can; `blind`: its runs are the same whatever the targets.
    """

    name: str
    preset: str
    predictor: str
    parts: Parts = OWN_PARTS
    oracle: bool = False
    blind: bool

    def factory(self, requests: Sequence[TraceRequest]) -> PolicyFactory:
        """Makes its policies; an oracle is told the lengths of `requests`."""
        if self.preset == ON_TIME:
            lengths = {request.id: request.output_tokens for request in requests}
            return partial(on_time_policy, ON_TIME, lengths)
        return policy_factory(self.preset, self.parts, requests)

    def said(self) -> str:
        """All that decides what it does, of one release: its row, and the code of its parts, as they are now."""
        return _said(self)


@cache
def _said(each: Contender) -> str:
    policy = each.factory(())(UnknownCost())
    code = code_digest((policy.order, policy.batching, policy.eviction, *policy.leaving))
    row = "" if each.preset == ON_TIME else str(find_preset(each.preset, **each.parts.given()))
    return f"{row} {sorted(asdict(each).items())} {code}"


def contender(name: str) -> Contender:
    """A preset with what it would have in a server without prompts; ConfigError for an unknown name."""
    if name in POOLED or name in KILLING_ROWS:
        raise ConfigError(f"{name!r} {left_out()[name]}; accepted: presets that serve one engine")
    predictor = DEFAULT_PREDICTOR if uses_predictions(name, OWN_PARTS) else NONE
    return Contender(name=name, preset=name, predictor=predictor, blind=is_blind(find_preset(name)))


def rivals(subject: str) -> tuple[str, ...]:
    """Every preset that runs on one engine of its own, but the subject, `headway` and its ablations, and doubles."""
    out = {*left_out(), subject}
    return tuple(name for name in known_presets() if name not in out and not _is_headway(name))


def ablations(subject: str) -> tuple[str, ...]:
    """The rows that switch one idea of the subject off: named as it is, and something more."""
    return tuple(name for name in known_presets() if name.startswith(f"{subject}-"))


def left_out() -> dict[str, str]:
    """Presets that are no rivals, and why."""
    found = dict.fromkeys(POOLED, "needs pools of several instances")
    found |= dict.fromkeys(KILLING_ROWS, "kills steps, which needs an engine unlike the others'")
    first: dict[tuple[str, ...], str] = {}
    for name, row in known_presets().items():
        parts = (row.order, row.batching, row.eviction, *row.leaving)
        if parts in first:
            found[name] = f"has the parts of {first[parts]}"
        first.setdefault(parts, name)
    return found


def _is_headway(name: str) -> bool:
    return name == SUBJECT or name.startswith(f"{SUBJECT}-")


def clairvoyants(subject: str) -> list[Contender]:
    """References that know every length: strong heuristics, and no proven bounds (adr/0012)."""
    found = [
        Contender(
            name="shortest-oracle",
            preset="predicted",
            predictor=EXACT,
            parts=SHORTEST,
            oracle=True,
            blind=True,
        ),
        Contender(name=ON_TIME, preset=ON_TIME, predictor=NONE, oracle=True, blind=False),
    ]
    mine = contender(subject)
    if mine.predictor != NONE:
        found.append(
            Contender(
                name=f"{subject} (exact lengths)",
                preset=subject,
                predictor=EXACT,
                oracle=True,
                blind=mine.blind,
            )
        )
    return found


def is_blind(row: Preset) -> bool:
    """Whether a preset looks at nobody's targets: so for parts known to, and for no other."""
    order, batching, eviction = (part.partition(":")[0] for part in (row.order, row.batching, row.eviction))
    known = order in BLIND_ORDERS and batching in BLIND_BATCHINGS and eviction in BLIND_EVICTIONS
    return known and not row.leaving
