"""Finds the agent program to which a request belongs: by the client's names, else by how its prompt begins."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from headway.core.hints import AGENTIC_CONTEXT, MAX_PROGRAM_CHARACTERS, PROGRAM, header_text
from headway.http_client import NOT_AS_EXPECTED

_HEADERS = (
    (b"x-program-id", None),
    (b"x-dynamo-session-id", None),
    (b"x-claude-code-session-id", b"x-claude-code-agent-id"),
    (b"session-id", b"thread-id"),
    (b"session_id", None),
    (b"conversation_id", None),
    (b"x-session-id", None),
)
"""Header with a session's name -> header with the name of a part, such as a sub-agent, which is a program of its
own. Sources: Dynamo, Claude Code, Codex (with underscores until 2025), OpenCode.
"""
_KNOWN = frozenset(name for pair in _HEADERS for name in pair if name is not None)
_IN_USER = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")
"""Claude Code names its session in `metadata.user_id` too."""
_DIGEST_BYTES = 12
INFERRED = "~"
"""Prefix of inferred names."""


def program_of(
    headers: Sequence[tuple[bytes, bytes]], xargs: Mapping[str, Any], nvext: object, metadata: object
) -> str:
    """The name that a request gives its program; empty if it gives none. Invalid names are ignored.

    Extra arguments have precedence over headers, and these over the body's `nvext` and `metadata`. O(headers).
    """
    found = _of_xargs(xargs) or _of_headers(headers) or _of_nvext(nvext) or _of_metadata(metadata)
    return found if not found or _fits(found) else _digest(found)


def of_tenant(program: str, tenant: str) -> str:
    """The unique name of a tenant's program: two tenants may use equal names."""
    if not program or not tenant:
        return program
    name = f"{tenant.replace('%', '%25').replace('/', '%2F')}/{program}"
    return name if _fits(name) else _digest(name)


def _of_xargs(xargs: Mapping[str, Any]) -> str:
    named = _text(xargs.get(PROGRAM))
    context = xargs.get(AGENTIC_CONTEXT)
    if named or context is None:
        return named
    if isinstance(context, str):
        try:
            context = msgspec.json.decode(context)
        except NOT_AS_EXPECTED:
            return ""
    return _of_object(context, ("program_id", "session_id", "task_id"), "agent_id")


def _of_headers(headers: Sequence[tuple[bytes, bytes]]) -> str:
    given = {name: header_text(value).strip() for name, value in headers if name in _KNOWN}
    for name, part in _HEADERS if given else ():
        if session := given.get(name):
            return _joined(session, given.get(part, "") if part is not None else "")
    return given.get(b"thread-id", "")


def _of_nvext(nvext: object) -> str:
    """The name in Dynamo's agent context, or in its hints."""
    if not isinstance(nvext, dict):
        return ""
    parts = (nvext.get("agent_context"), nvext.get("agent_hints"))
    names = ("program_id", "trajectory_id", "session_id")
    return next(filter(None, (_of_object(part, names, None) for part in parts)), "")


def _of_metadata(metadata: object) -> str:
    user = _text(metadata.get("user_id")) if isinstance(metadata, dict) else ""
    if user.startswith("{"):
        try:
            return _of_object(msgspec.json.decode(user), ("session_id",), None)
        except NOT_AS_EXPECTED:
            return ""
    found = _IN_USER.search(user)
    return found[1] if found is not None else ""


def _of_object(value: object, names: Sequence[str], part: str | None) -> str:
    """The first of these names in an object, combined with that of its part."""
    if not isinstance(value, dict):
        return ""
    session = next(filter(None, (_text(value.get(name)) for name in names)), "")
    return _joined(session, "" if part is None else _text(value.get(part))) if session else ""


def _joined(session: str, part: str) -> str:
    return f"{session}/{part}" if part and part != session else session


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


def _fits(name: str) -> bool:
    return len(name) <= MAX_PROGRAM_CHARACTERS and name.isprintable()


def _digest(name: str) -> str:
    """A digest for a name that is too long or not printable."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


_SHARED = ""
"""Replaces the program of a block with which several prompts end, and which therefore identifies none."""


class KnownPrograms:
    """Programs by their responses and by where their last prompts ended; the oldest are forgotten first.

    A request without a name belongs to the program of the response that it continues; else to the one whose last prompt
    it begins with, up to that prompt's last whole block. So a program without a name is recognised from its second turn
    on. O(blocks) a request.
    """

    MOST = 20_000

    def __init__(self) -> None:
        self._of_response: OrderedDict[str, str] = OrderedDict()
        self._of_end: OrderedDict[tuple[str, int], str] = OrderedDict()

    def of_turn(
        self, named: str, tenant: str, blocks: Sequence[int], *, response: str | None, previous: str | None
    ) -> str:
        """The program of a request, empty if unknown.

        `named` is the program that it names, of `tenant`; `response` is the id of its own response, if others may
        continue that, and `previous` the id of the response that it continues.
        """
        program = named
        if not program and previous is not None:
            program = self._of_response.get(previous, "")
        if not program and response is not None:
            program = of_tenant(response, tenant)
        if not program and blocks:
            program = self._inferred(tenant, blocks)
        if response is not None:
            _keep(self._of_response, response, program, self.MOST)
        return program

    def _inferred(self, tenant: str, blocks: Sequence[int]) -> str:
        """The program whose last prompt this one continues; the program's last prompt now ends here."""
        ends, here = self._of_end, (tenant, blocks[-1])
        if here in ends:
            # An equal prompt, or another with the same beginning, continues neither.
            _keep(ends, here, _SHARED, self.MOST)
            return ""
        before = next((key for block in reversed(blocks[:-1]) if (key := (tenant, block)) in ends), None)
        if before is None or ends[before] == _SHARED:
            _keep(ends, here, f"{INFERRED}{blocks[-1]:x}", self.MOST)
            return ""
        program = ends.pop(before)
        _keep(ends, here, program, self.MOST)
        return of_tenant(program, tenant)


def _keep(known: OrderedDict[Any, str], key: object, program: str, most: int) -> None:
    known[key] = program
    known.move_to_end(key)
    if len(known) > most:
        known.popitem(last=False)
