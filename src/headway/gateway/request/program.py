"""The agent program of which a request is a turn: by the names that clients give, else by how its prompt begins."""

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
"""What names a session, and what a part of it, as a sub-agent: a program of its own. Sources: Dynamo, Claude Code,
Codex (with underscores until 2025), OpenCode."""
_KNOWN = frozenset(name for pair in _HEADERS for name in pair if name is not None)
_IN_USER = re.compile(r"_session_([0-9A-Za-z-]{8,64})$")
"""Claude Code names its session in `metadata.user_id` too."""
_DIGEST_BYTES = 12
INFERRED = "~"
"""What inferred names begin with."""


def program_of(
    headers: Sequence[tuple[bytes, bytes]], xargs: Mapping[str, Any], nvext: object, metadata: object
) -> str:
    """The name that a request gives its program; empty if it gives none. What is no name is left alone.

    An extra argument goes before headers, these before the body's `nvext` and `metadata`. O(headers).
    """
    found = _of_xargs(xargs) or _of_headers(headers) or _of_nvext(nvext) or _of_metadata(metadata)
    return found if not found or _fits(found) else _digest(found)


def of_tenant(program: str, tenant: str) -> str:
    """The name of a tenant's program: two tenants' equal names are two programs."""
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
    """Dynamo's agent context, or its hints."""
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
    """The first of these texts in an object, with that of its part."""
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
    """A short name in place of one that is too long, or not printable: as good for telling programs apart."""
    return blake2b(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


_SHARED = ""
"""In place of a program: several prompts end with this block, so that it tells none of them from the others."""


class KnownPrograms:
    """Programs by the responses that belong to them and by where their last prompts ended, the oldest forgotten first.

    A request without a name belongs to the program of the response that it goes on from; else to that whose last
    prompt it begins with, up to that prompt's last whole block. So a program that gives itself no name has one from
    its second turn on. O(blocks) a request.
    """

    MOST = 20_000

    def __init__(self) -> None:
        self._of_response: OrderedDict[str, str] = OrderedDict()
        self._of_end: OrderedDict[tuple[str, int], str] = OrderedDict()

    def of_turn(
        self, named: str, tenant: str, blocks: Sequence[int], *, response: str | None, previous: str | None
    ) -> str:
        """The program of a request, empty if none is known.

        `named` is the program that it names, of `tenant`; `response` is the id of what it makes, if others may go on
        from that, and `previous` of what it goes on from.
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
        """The program whose last prompt this one goes on from; it now ends here."""
        ends, here = self._of_end, (tenant, blocks[-1])
        if here in ends:
            # The same again, or another with the same beginning: neither goes on from the other.
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
