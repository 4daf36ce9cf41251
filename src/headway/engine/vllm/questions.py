"""Carries questions over HTTP to the scheduler, through vLLM's endpoint plug-ins and utility calls.

vLLM's API server loads an endpoint plug-in if `VLLM_PLUGINS` names it; `headway serve` does that (`allow`). The
question goes to the engine's process through the client that in-tree handlers use, to a method that the general plug-in
adds there (vLLM 0.32, plugins/endpoint_plugins/interface.py). Answers are JSON, since only plain values may cross: a
list of what is known, or a string that says why nothing is.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from headway.engine.vllm.hint_headers import HintHeaders, Receive, Scope, Send, send_error, send_json

PLUGINS = "VLLM_PLUGINS"
ENDPOINTS = "vllm.endpoint_plugins"
NAME = "headway"
EXPLAIN_PATH = "/v1/explain"
SHADOW_PATH = "/v1/shadow"
"""Both paths are under /v1, so that vLLM's API keys protect them."""

NOT_OURS = "this server does not schedule with Headway"
_GROUPS = ("general", "io_processor", "platform", "stat_logger")
_UTILITY = "headway_ask"
_CLIENT = "headway_engine_client"


def allow(environment: MutableMapping[str, str]) -> None:
    """Let vLLM load our endpoint plug-in, which it loads only by name. All other plug-ins stay as they were.

    If no plug-in was named, vLLM loads all except endpoints; so all of those are named too.
    """
    named = environment.get(PLUGINS)
    if named is None:
        installed = {point.name for group in _GROUPS for point in entry_points(group=f"vllm.{group}_plugins")}
        others = {point.name for point in entry_points(group=ENDPOINTS)} - {NAME}
        names = sorted((installed - others) | {NAME})
    else:
        names = [name for name in named.split(",") if name]
        names += [] if NAME in names else [NAME]
    environment[PLUGINS] = ",".join(names)


def answers_questions(engine_core: type[Any]) -> type[Any]:
    """Wrap vLLM's engine core so that it passes questions to its scheduler, if that is Headway's."""

    def headway_ask(self: Any, question: str, argument: str) -> str:
        answer = getattr(self.scheduler, "answer", None)
        return msgspec.json.encode(NOT_OURS if answer is None else answer(question, argument)).decode()

    setattr(engine_core, _UTILITY, headway_ask)
    return engine_core


class Endpoint:
    """vLLM's endpoint plug-in for explanations, shadows, and hints in headers.

    Serves `GET /v1/explain/ID`, `GET /v1/explain` for the last requests, and `GET /v1/shadow/ENDED-STEPS`.
    """

    name = NAME
    required_tasks = ("generate",)

    def attach_router(self, app: Any) -> None:
        """Add the routes and the middleware, as plain ASGI."""
        app.add_middleware(HintHeaders)
        app.add_route(EXPLAIN_PATH, Answering("listed"), methods=["GET"])
        app.add_route(f"{EXPLAIN_PATH}/{{argument:path}}", Answering("explain"), methods=["GET"])
        app.add_route(f"{SHADOW_PATH}/{{argument:path}}", Answering("window", "windows"), methods=["GET"])

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Remember the client through which the engine is asked."""
        setattr(state, _CLIENT, engine_client)


class Answering:
    """An ASGI app that sends one question to every engine of the server, and joins the answers under `key`."""

    def __init__(self, question: str, key: str = "requests") -> None:
        self._question = question
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: 200, 404 if no engine has anything to say, 503 if there is no engine to ask."""
        argument = scope.get("path_params", {}).get("argument", "")
        client = getattr(scope["app"].state, _CLIENT, None)
        if client is None:
            await send_error(send, 503, "this server has no engine to ask")
            return
        said = await client.engine_core.call_utility_all_async(_UTILITY, self._question, argument)
        answers: list[list[dict[str, Any]] | str] = [msgspec.json.decode(one) for one in said]
        silent = [answer for answer in answers if isinstance(answer, str)]
        if len(silent) == len(answers):
            await send_error(send, 404, silent[0])
            return
        found = [
            {**each, "engine": engine} if len(answers) > 1 else each
            for engine, answer in enumerate(answers)
            if not isinstance(answer, str)
            for each in answer
        ]
        await send_json(send, 200, {self._key: found})
