"""Questions from HTTP to the scheduler and back, without a server: the plug-in's own ASGI app, and vLLM's engine
core class.
"""

from __future__ import annotations

import asyncio
import json
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette
from vllm.v1.engine.core import EngineCore

from headway.engine.step.explainer import NOT_FOLLOWED
from headway.engine.vllm import questions
from headway.engine.vllm.plugin import schedule_here
from headway.engine.vllm.questions import EXPLAIN_PATH, PLUGINS, SHADOW_PATH, Endpoint, allow
from tests.engine.scripts import HearingEngine, scheduler, stream

pytestmark = pytest.mark.vllm


class Cores:
    """An engine client whose engine cores are in this process."""

    def __init__(self, *schedulers: Any) -> None:
        self.engine_core = self
        self._cores = [SimpleNamespace(scheduler=built) for built in schedulers]

    async def call_utility_all_async(self, method: str, *arguments: str) -> list[Any]:
        return [getattr(EngineCore, method)(core, *arguments) for core in self._cores]


def served() -> Any:
    """A scheduler that has served some requests."""
    built = scheduler()
    engine = HearingEngine(built)
    for each in stream(5, mean_gap_steps=0):
        engine.add(each)
    while built.has_unfinished_requests():
        engine.step()
    return built


def get(client: Any, path: str) -> tuple[int, Any]:
    """Status and answer of the plug-in's routes."""
    schedule_here()
    app = Starlette()
    plugin = Endpoint()
    plugin.attach_router(app)
    asyncio.run(plugin.init_state(client, app.state, None))
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": [],
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


def test_a_question_reaches_the_scheduler_and_its_answer_comes_back() -> None:
    status, answer = get(Cores(served()), f"{EXPLAIN_PATH}/3")
    assert status == 200
    [told] = answer["requests"]
    assert (told["id"], told["outcome"]) == ("3", "finished")
    assert "engine" not in told
    status, answer = get(Cores(served()), EXPLAIN_PATH)
    assert (status, len(answer["requests"])) == (200, 5)
    status, answer = get(Cores(served()), f"{SHADOW_PATH}/0-0")
    assert (status, len(answer["windows"][0]["ended"])) == (200, 5)


def test_several_engines_are_all_asked() -> None:
    status, answer = get(Cores(served(), scheduler(), served()), f"{EXPLAIN_PATH}/3")
    assert status == 200
    assert [told["engine"] for told in answer["requests"]] == [0, 2]


def test_what_nobody_knows_is_not_found() -> None:
    status, answer = get(Cores(served()), f"{EXPLAIN_PATH}/a/b")
    assert status == 404
    assert answer["error"]["message"].startswith(
        "nothing known of 'a/b': live requests and the last --explain N"
    )
    status, answer = get(Cores(object()), f"{EXPLAIN_PATH}/3")
    assert (status, answer["error"]["message"]) == (404, "this server does not schedule with Headway")
    assert get(None, EXPLAIN_PATH)[0] == 503
    # Where one engine of several has nothing to say, the others' answers stand.
    status, answer = get(Cores(scheduler(explain=0), served()), f"{EXPLAIN_PATH}/3")
    assert (status, [told["engine"] for told in answer["requests"]]) == (200, [1])
    status, answer = get(Cores(scheduler(explain=0)), f"{SHADOW_PATH}/0-0")
    assert (status, answer["error"]["message"]) == (404, NOT_FOLLOWED)
    # Python reads no number of so many digits.
    for counts in ("abc", f"{'9' * 5000}-0", f"0-{'9' * 5000}"):
        status, answer = get(Cores(scheduler()), f"{SHADOW_PATH}/{counts}")
        assert (status, answer["error"]["message"]) == (
            404,
            f"{counts!r} names no counts; accepted: ENDED-STEPS, 0-0 at first",
        )


def points(groups: dict[str, list[str]]) -> Any:
    """Entry points that replace the installed ones."""
    return lambda group: [EntryPoint(name, "x:y", group) for name in groups.get(group, [])]


def test_our_endpoint_is_allowed_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {
        "vllm.general_plugins": ["headway", "lora_resolver"],
        "vllm.platform_plugins": ["npu"],
        "vllm.endpoint_plugins": ["headway", "chatty"],
    }
    monkeypatch.setattr(questions, "entry_points", points(installed))
    environment: dict[str, str] = {}
    allow(environment)
    assert environment[PLUGINS] == "headway,lora_resolver,npu"
    given = {PLUGINS: "npu"}
    allow(given)
    assert given[PLUGINS] == "npu,headway"
    allow(given)
    assert given[PLUGINS] == "npu,headway"


def test_vllm_finds_the_endpoint_where_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.plugins import load_endpoint_plugins

    monkeypatch.setenv(PLUGINS, "headway")
    assert [type(plugin) for plugin in load_endpoint_plugins(("generate",))] == [Endpoint]
    monkeypatch.delenv(PLUGINS)
    assert load_endpoint_plugins(("generate",)) == []
