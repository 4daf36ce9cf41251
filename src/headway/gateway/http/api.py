"""Paths: in one form, the APIs in which clients ask for tokens, and responses and explanations by their ids."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API that generates tokens, by its path.

    `prompt` are the fields that become the prompt, in its order; `limits` those that bound the answer, of which the
    first that is set counts, and `default_max_tokens` where none is (None: nothing but the context bounds it).
    `several`: a request may ask for several answers. `takes_id` and `takes_priority`: whether vLLM reads these from
    the body; `id_prefix` is what it wants names to begin with. `named_events`: a stream's events have names, and the
    last of them is the end mark.
    """

    path: str
    prompt: tuple[str, ...]
    limits: tuple[str, ...]
    default_max_tokens: int | None = None
    several: bool = False
    takes_id: bool = True
    takes_priority: bool = True
    id_prefix: str = ""
    named_events: bool = False


COMPLETIONS = Api(
    path="/v1/completions",
    prompt=("prompt",),
    limits=("max_tokens",),
    default_max_tokens=16,  # OpenAI's
    several=True,
)
CHAT = Api(
    path="/v1/chat/completions",
    prompt=("tools", "messages"),
    limits=("max_completion_tokens", "max_tokens"),
    several=True,
)
RESPONSES = Api(
    path="/v1/responses",
    prompt=("tools", "instructions", "input"),
    limits=("max_output_tokens",),
    id_prefix="resp_",
    named_events=True,
)
MESSAGES = Api(
    path="/v1/messages",
    prompt=("tools", "system", "messages"),
    limits=("max_tokens",),
    takes_id=False,
    takes_priority=False,
    named_events=True,
)
"""Anthropic's, which vLLM speaks too."""

EXPLAIN_PATHS = ("/explain", "/v1/explain")
"""Where the gateway tells of single requests; a Headway server answers under the second too."""

FILES_PATH, BATCHES_PATH = "/v1/files", "/v1/batches"
"""OpenAI's Files and Batch API, which the gateway serves itself."""

APIS = {api.path: api for api in (COMPLETIONS, CHAT, RESPONSES, MESSAGES)}


def is_of_batches(path: str) -> bool:
    """Whether a path is one of the Files and Batch API."""
    return any(path == each or path.startswith(f"{each}/") for each in (FILES_PATH, BATCHES_PATH))


_KEPT_IN_PATHS = "/:@!$&'()*+,;=~"


def normal_path(raw: bytes) -> tuple[str, bytes]:
    """A path as the gateway decides on it, and the same path as an instance is asked for it.

    Escapes are decoded once, `%2f` too, as an instance reads them; slashes that follow one another are one; `.` and
    `..` are taken up, and lead no higher than the root. What is no path (`*`) stays as it is. O(bytes).
    """
    if not raw.startswith(b"/") or not (b"%" in raw or b"//" in raw or b"/." in raw):
        return raw.decode("latin-1"), raw
    kept: list[bytes] = []
    parts = unquote_to_bytes(raw).split(b"/")
    for part in parts:
        if part == b"..":
            del kept[-1:]
        elif part not in (b"", b"."):
            kept.append(part)
    folder = b"/" if kept and parts[-1] in (b"", b".", b"..") else b""
    path = b"/" + b"/".join(kept) + folder
    return path.decode(errors="replace"), quote_from_bytes(path, safe=_KEPT_IN_PATHS).encode()


def response_of_path(path: str) -> str | None:
    """The response that a path names (`/v1/responses/ID` and what is under it); None for any other."""
    under = path.removeprefix(f"{RESPONSES.path}/")
    response_id = under.partition("/")[0]
    return response_id if under != path and response_id not in ("", "render") else None
