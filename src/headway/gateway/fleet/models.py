"""Instances with different models, or with different limits for one: a merged list, and the differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from headway.gateway.fleet.health import Facts
from headway.gateway.fleet.member import Member

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def merged_models(said: Sequence[Facts]) -> bytes:
    """One answer to `/v1/models`: the first server's if all serve the same.

    Otherwise each model as it is first listed, with the smallest `max_model_len` of its servers. O(models of all).
    """
    if all(facts.limits == said[0].limits for facts in said):
        return said[0].models
    cards: dict[str, dict[str, Any]] = {}
    for facts in said:
        for card in _decode(facts.models)["data"]:
            known = cards.setdefault(card["id"], card)
            limits = [limit for each in (known, card) if (limit := each.get("max_model_len")) is not None]
            if limits:
                known["max_model_len"] = min(limits)
    return msgspec.json.encode({**_decode(said[0].models), "data": list(cards.values())})


def differences(members: Iterable[Member]) -> list[str]:
    """Sentences on how the instances differ, as far as known. Empty if they are alike."""
    known = [member for member in members if member.last_facts.limits]
    found = []
    models = _shared(known, lambda facts: ", ".join(sorted(facts.limits)))
    if len(models) > 1:
        found.append(f"requests are routed by their model: {_shown(models)}")
    for model in dict.fromkeys(model for member in known for model in member.last_facts.limits):
        serving = [member for member in known if model in member.last_facts.limits]
        limits = _shared(serving, partial(_context, model))
        if len(limits) > 1:
            found.append(
                f"contexts of model {model!r} differ: {_shown(limits)} tokens; clients are told the smallest, and "
                "longer requests go where they fit"
            )
    versions = _shared(known, lambda facts: facts.version or "none that is told")
    if len(versions) > 1:
        found.append(
            f"versions of vLLM differ: {_shown(versions)}; the same request may be answered in other words, also where "
            "a stream goes on at another instance"
        )
    return found


def _context(model: str, facts: Facts) -> str:
    return str(facts.limits[model] or "an unnamed number of")


def _shared(members: Iterable[Member], said: Callable[[Facts], str]) -> dict[str, list[str]]:
    """What instances say -> the names of those that say it."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for member in members:
        found[said(member.last_facts)].append(member.name)
    return found


def _shown(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{said} ({', '.join(names)})" for said, names in found.items())
