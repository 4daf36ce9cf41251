"""A stream is over at its end mark: many a client leaves there, and the instance may take its time to close."""

from __future__ import annotations

import asyncio
import json

from tests.gateway.front import PROMPT, Front, gateway
from tests.gateway.upstream import Turn, upstream

LEAVES_AT = b"data: [DONE]\n\n"


async def read_to_the_end_mark(front: Front) -> bytes:
    """The bytes received by a client that hangs up at the end mark, as `headway replay` does."""
    body = json.dumps({**PROMPT, "stream": True}).encode()
    got = b""
    async with front.session.post(f"{front.url}/v1/completions", data=body) as response:
        async for data in response.content.iter_any():
            got += data
            if got.endswith(LEAVES_AT):
                break
        response.close()
    return got


async def test_a_client_that_leaves_at_the_end_mark_has_its_answer() -> None:
    closing = asyncio.Event()

    async def act(turn: Turn) -> None:
        await turn.answer()
        await closing.wait()

    async with upstream(act=act) as instance, gateway(instance) as front:
        got = await read_to_the_end_mark(front)
        closing.set()
        await front.idle()
        totals = front.accounts.totals
        assert got.endswith(LEAVES_AT)
        assert (totals.finished, totals.cancelled, totals.met) == (1, 0, 1)
        assert front.fleet.members[0].served == 1
