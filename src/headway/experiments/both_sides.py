"""One record from two: the client knows what a request felt like, the engine what was done to it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from headway.core.record import Record

_ENGINE_ID = re.compile(r"cmpl-(?P<id>.+)-0(-[0-9a-f]{8})?")
"""vLLM's id of a completion's first choice: the client's own, wrapped."""


def add_engine_side(client: Iterable[Record], engine: Iterable[Record]) -> list[Record]:
    """The client's records with the engine's first scheduling, prediction, preemptions and recomputed tokens.

    The two clocks differ: when a request was first scheduled is carried over as time since its arrival.
    Requests the engine never saw stay as they are.
    """
    seen = {match["id"]: record for record in engine if (match := _ENGINE_ID.fullmatch(record.id))}
    return [_merged(record, seen.get(record.id)) for record in client]


def _merged(client: Record, engine: Record | None) -> Record:
    if engine is None:
        return client
    waited_s = None if engine.first_scheduled_s is None else engine.first_scheduled_s - engine.arrival_s
    return replace(
        client,
        first_scheduled_s=None if waited_s is None else client.arrival_s + max(0.0, waited_s),
        predicted_output_tokens=engine.predicted_output_tokens,
        preemptions=engine.preemptions,
        swapped_blocks=engine.swapped_blocks,
        recomputed_tokens=engine.recomputed_tokens,
    )
