"""Paths in normal form, the APIs that generate tokens, and the ids in paths."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote_from_bytes, unquote_to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """An API that generates tokens, identified by its path.

    `prompt` are the fields that become the prompt, in its order. `limits` are the fields that bound the answer, of
    which the first one set counts; `default_max_tokens` applies if none is (None: only the context bounds it).
    `several`: a request may ask for several answers. `takes_id` and `takes_priority`: whether vLLM reads these from the
    body; ids must begin with `id_prefix`. `named_events`: a stream's events have names, and the last of them is the end
    mark.
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
    default_max_tokens=16,  # OpenAI's default
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
"""Anthropic's API, which vLLM serves too."""

EXPLAIN_PATHS = ("/explain", "/v1/explain")
"""Paths at which the gateway explains single requests; a Headway server answers under the second too."""

FILES_PATH, BATCHES_PATH = "/v1/files", "/v1/batches"
"""OpenAI's Files and Batch API, which the gateway serves itself."""

APIS = {api.path: api for api in (COMPLETIONS, CHAT, RESPONSES, MESSAGES)}


def is_of_batches(path: str) -> bool:
    """Whether a path belongs to the Files and Batch API."""
    return any(path == each or path.startswith(f"{each}/") for each in (FILES_PATH, BATCHES_PATH))


_KEPT_IN_PATHS = "/:@!$&'()*+,;=~"


def normal_path(raw: bytes) -> tuple[str, bytes]:
    """A path in the form on which the gateway decides, and in the form in which an instance is asked.

    Escapes are decoded once, `%2f` too, as instances read them; repeated slashes become one; `.` and `..` are resolved,
    not above the root. A non-path such as `*` stays as it is. O(bytes).
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
    """The response id in a path (`/v1/responses/ID` and below); None for other paths."""
    under = path.removeprefix(f"{RESPONSES.path}/")
    response_id = under.partition("/")[0]
    return response_id if under != path and response_id not in ("", "render") else None
