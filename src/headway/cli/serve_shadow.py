"""`headway serve --shadow`: a shadow beside a gateway, in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from headway.errors import UpstreamError
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.fleet import Fleet
from headway.with_parent import signal_with_parent

_LOG = logging.getLogger(__name__)
_KEY = "OPENAI_API_KEY"
_LONGEST_LINE_BYTES = 1 << 20


async def shadow_beside(
    fleet: Fleet, board: ShadowBoard, policies: Sequence[str], api_key: str | None, *, every_s: float = 60.0
) -> None:
    """Run `headway shadow` on the fleet's instances once each is up or down, and put its reports on the board.

    Until cancelled. Those that are down have reports too when they come: a shadow leaves out who does not answer. One
    that ends, or cannot be run, is not started again, and serving goes on without it.
    """
    await fleet.until_settled()
    urls = [member.url for member in fleet.members if member.url]
    try:
        code = await _run(_command(urls, policies, every_s), board, api_key)
        _LOG.warning("the shadow ended with code %d; serving goes on without it", code)
    except Exception:  # whatever happens to a shadow, the task group that serves must not hear of it
        _LOG.exception("the shadow is given up; serving goes on without it")


async def _run(command: Sequence[str], board: ShadowBoard, api_key: str | None) -> int:
    """Put every line that the command prints on the board; its exit code. It ends with this task, and this process."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **({} if api_key is None else {_KEY: api_key})},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE_BYTES,
        # The terminal's Ctrl-C is for the gateway, which ends it.
        start_new_session=True,
        # One whose gateway was killed would ask for ever.
        preexec_fn=partial(signal_with_parent, signal.SIGTERM),
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            try:
                board.take(line)
            except UpstreamError as error:
                _LOG.warning("%s", error)
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _command(urls: Sequence[str], policies: Sequence[str], every_s: float) -> list[str]:
    command = [sys.executable, "-m", "headway.cli", "shadow", "--json", "--every", f"{every_s:g}"]
    for url in urls:
        command += ["--url", url]
    return [*command, "--policies", ",".join(policies)]
