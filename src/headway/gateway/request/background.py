"""Responses made in the background: they keep their places until their instance has made them."""

from __future__ import annotations

import asyncio

import msgspec

from headway.gateway.fleet.member import Member
from headway.gateway.http.api import RESPONSES
from headway.gateway.request.admission_queue import QueuedRequest
from headway.gateway.request.interrupt import Interrupt, WaitCut
from headway.gateway.request.serving import InstanceLost, Serving
from headway.http_client import NO_ANSWER, NOT_AS_EXPECTED, root_of

_LOOK_S = 1.0
_RUNS = ("queued", "in_progress")
_GONE = 404


class _State(msgspec.Struct):
    status: str = ""


async def keep_place(
    serving: Serving,
    admission: QueuedRequest,
    member: Member,
    response_id: str,
    headers: list[tuple[str, str]],
) -> None:
    """Hold a response's places until it is made or its instance is lost; then release them.

    Polls the instance once a second; an unreadable answer leaves the places as they are.
    """
    interrupt = Interrupt()
    serving.running.add(interrupt)
    url = f"{root_of(member.url)}{RESPONSES.path}/{response_id}"
    try:
        with serving.at(member, admission.sequences, interrupt):
            while await interrupt.wait(_is_running(serving, url, headers)):
                await interrupt.wait(asyncio.sleep(_LOOK_S))
    except (InstanceLost, WaitCut):
        pass
    finally:
        serving.running.discard(interrupt)
        serving.queue.leave(admission)


async def _is_running(serving: Serving, url: str, headers: list[tuple[str, str]]) -> bool:
    try:
        async with serving.session.get(url, headers=headers) as response:
            if response.status == _GONE:
                return False
            return msgspec.json.decode(await response.read(), type=_State).status in _RUNS
    except (*NO_ANSWER, *NOT_AS_EXPECTED):
        return True
