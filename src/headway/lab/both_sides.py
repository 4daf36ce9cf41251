"""Merges records: the client's view of a request, and what its engines did to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headway.core.record import Record
from headway.statistics import known, mean_of_known

_ENGINE_ID = re.compile(r"cmpl-(?P<id>.+)-0(-[0-9a-f]{8})?")
"""vLLM's id of a completion's first choice: the client's id with additions."""


def add_engine_side(client: Iterable[Record], engine: Iterable[Record]) -> list[Record]:
    """The client's records with the engines' first scheduling, prediction, preemptions and recomputed tokens.

    The clocks differ: the first scheduling is converted to time since the request's arrival. Requests that no engine
    saw stay as they are.
    """
    seen = by_client_id(engine)
    return [_merged(record, whole(seen[record.id])) if record.id in seen else record for record in client]


def client_lag_s(client: Iterable[Record], engine: Iterable[Record]) -> float:
    """By how much later the client had first tokens than the engines, in the mean; both since their own arrival.

    0 if no request has a first token on both sides. On an idle machine it is some milliseconds.
    """
    seen = by_client_id(engine)
    both = ((record, whole(seen[record.id])) for record in client if record.id in seen)
    return mean_of_known(_lag_s(*pair) for pair in both) or 0.0


def _lag_s(client: Record, engine: Record) -> float | None:
    if client.first_token_s is None or engine.first_token_s is None:
        return None
    return (client.first_token_s - client.arrival_s) - (engine.first_token_s - engine.arrival_s)


def by_client_id(engine: Iterable[Record]) -> Mapping[str, Sequence[Record]]:
    """The engines' records of each request, in order, by its client's id."""
    seen: dict[str, list[Record]] = defaultdict(list)
    for record in engine:
        if match := _ENGINE_ID.fullmatch(record.id):
            seen[match["id"]].append(record)
    return seen


def whole(parts: Sequence[Record]) -> Record:
    """Merge the records of engines on one clock: the request arrived at the first and ended at the last.

    Later engines were told only the remaining targets; the merged record has the first's.
    """
    if len(parts) == 1:
        return parts[0]
    first = min(parts, key=lambda part: part.arrival_s)
    last = max(parts, key=lambda part: part.finished_s or 0.0)
    return replace(
        last,
        id=first.id,
        arrival_s=first.arrival_s,
        slo=first.slo,
        first_scheduled_s=min(known(part.first_scheduled_s for part in parts), default=None),
        first_token_s=min(known(part.first_token_s for part in parts), default=None),
        preemptions=sum(part.preemptions for part in parts),
        swapped_blocks=sum(part.swapped_blocks for part in parts),
        recomputed_tokens=sum(part.recomputed_tokens for part in parts),
    )


def _merged(client: Record, engine: Record) -> Record:
    return replace(
        client,
        first_scheduled_s=_scheduled_s(client, engine),
        predicted_output_tokens=engine.predicted_output_tokens,
        preemptions=engine.preemptions,
        swapped_blocks=engine.swapped_blocks,
        recomputed_tokens=engine.recomputed_tokens,
    )


def _scheduled_s(client: Record, engine: Record) -> float | None:
    """When a request was first scheduled, by the client's clock.

    An engine learns with a delay that a client has left, and may start its request meanwhile: that counts as its end.
    """
    if engine.first_scheduled_s is None:
        return None
    waited_s = max(0.0, engine.first_scheduled_s - engine.arrival_s)
    return min([client.arrival_s + waited_s, *known((client.first_token_s, client.finished_s))])
