"""Makes traces of real traffic: prompts become blocks that show common prefixes, and reveal nothing else."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import ceil

from headway.core.job import PREFIX_BLOCK_TOKENS
from headway.traces.request import TraceRequest

_TOKEN_IDS = re.compile(r"\d+( \d+)*", re.ASCII)


@dataclass(slots=True)
class _Numbers:
    """Numbers things consecutively in order of first appearance, so that the numbers show only equality."""

    known: dict[Hashable, int] = field(default_factory=dict)

    def of(self, thing: Hashable) -> int:
        return self.known.setdefault(thing, len(self.known))


def recorded(read: Sequence[tuple[TraceRequest, str]]) -> list[TraceRequest]:
    """The requests without prompts, ids and names, with the numbers of each prompt's blocks of 512 tokens.

    Two prompts have the same leading numbers as far as they begin alike, by whole blocks. Numbers count up from 0 in
    the order in which blocks appear (Mooncake's `hash_ids`), so that no text can be guessed from them; tenants and
    sessions are numbered too. Token ids are cut exactly. Text is cut where 512 tokens would end at the log's mean bytes
    a token.
    """
    blocks, tenants, sessions = _Numbers(), _Numbers(), _Numbers()
    texts = [(request.prompt or text) for request, text in read]
    size = ceil(PREFIX_BLOCK_TOKENS * _bytes_per_token(read, texts))
    return [
        replace(
            request,
            id=str(place),
            prompt=None,
            tenant=f"tenant-{tenants.of(request.tenant)}" if request.tenant else "",
            session=f"session-{sessions.of(request.session)}" if request.session else None,
            prefix_blocks=_blocks(request, text, size, blocks),
        )
        for place, ((request, _), text) in enumerate(zip(read, texts, strict=True))
    ]


def _bytes_per_token(read: Sequence[tuple[TraceRequest, str]], texts: Sequence[str]) -> float:
    written = [
        (len(text.encode(errors="replace")), request.input_tokens)
        for (request, _), text in zip(read, texts, strict=True)
        if text and not _TOKEN_IDS.fullmatch(text)
    ]
    return sum(size for size, _ in written) / max(1, sum(tokens for _, tokens in written)) or 1.0


def _blocks(request: TraceRequest, text: str, size: int, numbers: _Numbers) -> tuple[int, ...]:
    if request.prefix_blocks:
        return tuple(numbers.of(("given", block)) for block in request.prefix_blocks)
    before, found = -1, []
    for piece in _pieces(text, size):
        before = numbers.of((before, blake2b(piece, digest_size=16).digest()))
        found.append(before)
    return tuple(found[: ceil(request.input_tokens / PREFIX_BLOCK_TOKENS)])


def _pieces(text: str, size: int) -> Iterator[bytes]:
    if _TOKEN_IDS.fullmatch(text):
        ids = text.split(" ")
        for start in range(0, len(ids), PREFIX_BLOCK_TOKENS):
            yield " ".join(ids[start : start + PREFIX_BLOCK_TOKENS]).encode()
        return
    written = text.encode(errors="replace")
    for start in range(0, len(written), size):
        yield written[start : start + size]


def shared_share(requests: Sequence[TraceRequest]) -> float:
    """The share of prompt tokens in leading blocks that an earlier request had too (0-1): what caching could save."""
    seen: set[int] = set()
    shared = 0
    for request in requests:
        leading = next(
            (place for place, block in enumerate(request.prefix_blocks) if block not in seen),
            len(request.prefix_blocks),
        )
        shared += min(leading * PREFIX_BLOCK_TOKENS, request.input_tokens)
        seen.update(request.prefix_blocks)
    return shared / sum(request.input_tokens for request in requests)
