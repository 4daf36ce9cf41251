"""Paths: the APIs in which clients ask for tokens, and how each streams; responses and explanations by their ids."""

from __future__ import annotations

from dataclasses import dataclass


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

APIS = {api.path: api for api in (COMPLETIONS, CHAT, RESPONSES, MESSAGES)}


def response_of_path(path: str) -> str | None:
    """The response that a path names (`/v1/responses/ID` and what is under it); None for any other."""
    under = path.removeprefix(f"{RESPONSES.path}/")
    response_id = under.partition("/")[0]
    return response_id if under != path and response_id not in ("", "render") else None
