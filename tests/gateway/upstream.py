"""An instance as the gateway sees one: streams in vLLM's format, always the same answer to the same token ids."""

from __future__ import annotations

import asyncio
import codecs
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SPLIT = {190: b"\xe2", 191: b"\x80", 192: b"\xa8"}
"""Three tokens that make one character (U+2028) together; every other token is a word."""

Act = Callable[["Turn"], Awaitable[object]]


def token_bytes(token: int) -> bytes:
    return SPLIT.get(token, f" w{token}".encode())


def next_token(ids: list[int]) -> int:
    """The next token of a greedy model, which depends on all tokens before."""
    last = ids[-1] if ids else 0
    if last in (190, 191):
        return last + 1
    mixed = (sum(ids) * 31 + len(ids) * 17 + 7) % 190
    return 190 if mixed % 5 == 0 else mixed


def prompt_ids(text: str) -> list[int]:
    """The same words make the same ids."""
    return [sum(map(ord, word)) % 150 for word in text.split()]


def text_of(ids: list[int]) -> str:
    return b"".join(map(token_bytes, ids)).decode(errors="replace")


def answer_ids(prompt: list[int], count: int) -> list[int]:
    """The answer that an undisturbed instance gives."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


@dataclass
class Upstream:
    """Answers each request by `act`: by default in full. `delay_s` lies before each token."""

    name: str = ""
    url: str = ""
    act: Act | None = None
    version: str | None = "0.32.0"
    headway: bool = True
    sick: bool = False
    background_status: str = ""
    """Of every stored response; empty: what is asked for is echoed."""
    health_after_s: float = 0.0
    delay_s: float = 0.0
    detokenize_fault: int = 0
    echoed: list[str] = field(default_factory=list)
    echo_status: int = 202
    echo_after_s: float = 0.0
    context: int = 400
    models_there: list[str] = field(default_factory=lambda: ["small"])
    more_metrics: str = ""
    transfer: dict[str, Any] | None = None
    """What the answer to a prompt that is computed for a decode instance says of its KV."""
    explanations: dict[str, dict[str, Any]] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    running: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client has left in the middle."""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [turn.body for turn in self.turns]

    async def health(self, _request: web.Request) -> web.Response:
        await asyncio.sleep(self.health_after_s)
        return web.Response(status=503 if self.sick else 200)

    async def models(self, _request: web.Request) -> web.Response:
        there = [{"id": name, "max_model_len": self.context} for name in self.models_there]
        return web.json_response({"object": "list", "data": there})

    async def tell_version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self.version}) if self.version else web.Response(status=404)

    async def metrics(self, _request: web.Request) -> web.Response:
        line = "headway_steps_total 1.0" if self.headway else "other 1.0"
        return web.Response(text=f"# \n{line}\n{self.more_metrics}")

    async def stored(self, request: web.Request) -> web.Response:
        if not self.background_status:
            return await self.echo(request)
        return web.json_response({"id": request.match_info["id"], "status": self.background_status})

    async def explain(self, request: web.Request) -> web.Response:
        asked = request.match_info["id"]
        if asked in self.explanations:
            return web.json_response({"requests": [self.explanations[asked]]})
        error = {
            "message": f"nothing known of {asked!r}",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        }
        return web.json_response({"error": error}, status=404)

    async def detokenize(self, request: web.Request) -> web.Response:
        if self.detokenize_fault:
            return web.Response(status=self.detokenize_fault)
        return web.json_response({"prompt": text_of((await request.json())["tokens"])})

    async def echo(self, request: web.Request) -> web.Response:
        body = await request.read()
        seen = {"method": request.method, "path": request.path_qs, "body": body.decode(errors="replace")}
        self.echoed.append(request.path)
        await asyncio.sleep(self.echo_after_s)
        return web.json_response({**seen, "headers": dict(request.headers)}, status=self.echo_status)

    async def hang(self, request: web.Request) -> web.Response:
        await request.read()
        self.running += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.running -= 1
            self.gone.set()
        raise AssertionError

    async def generate(self, request: web.Request) -> web.StreamResponse:
        turn = Turn(self, request, await request.json())
        self.turns.append(turn)
        self.running += 1
        try:
            await (self.act or Turn.answer)(turn)
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise
        finally:
            self.running -= 1
        assert turn.response is not None
        return turn.response


@dataclass
class Turn:
    """One request being answered."""

    upstream: Upstream
    request: web.Request
    body: dict[str, Any]
    response: web.StreamResponse | None = None
    sent: list[int] = field(default_factory=list)
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    @property
    def chat(self) -> bool:
        return "messages" in self.body

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def prompt(self) -> list[int]:
        if self.chat:
            return [1, *prompt_ids(" ".join(str(each["content"]) for each in self.body["messages"]))]
        prompt = self.body["prompt"]
        return prompt_ids(prompt) if isinstance(prompt, str) else prompt

    @property
    def limit(self) -> int:
        return int(self.body.get("max_completion_tokens") or self.body.get("max_tokens") or 8)

    @property
    def head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.body.get('request_id', 'none')}"
        return {"id": name, "object": kind, "created": 1000 + len(self.upstream.turns), "model": "small"}

    @property
    def xargs(self) -> dict[str, Any]:
        return dict(self.body.get("vllm_xargs") or {})

    async def answer(self) -> None:
        """The whole answer, in one piece or token by token."""
        if not self.streams:
            await self.whole()
            return
        await self.begin()
        for left in range(self.limit, 0, -1):
            await self.token(finish="length" if left == 1 else None)
        await self.end()

    async def begin(self) -> None:
        """The head; for a chat the role too."""
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await self.response.prepare(self.request)
        if self.chat:
            choice = {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            await self.event({**self.head, "choices": [choice], "prompt_token_ids": self._ids(self.prompt)})

    async def token(self, *, finish: str | None = None, stop: str | None = None) -> None:
        """One more token; its text may come with a later one."""
        if self.upstream.delay_s:
            await asyncio.sleep(self.upstream.delay_s)
        token = next_token([*self.prompt, *self.sent])
        first = not self.sent
        self.sent.append(token)
        text = self.decoder.decode(token_bytes(token), final=finish is not None)
        await self.event({**self.head, "choices": [self._choice(text, [token], finish, stop, first=first)]})

    async def leave(self, reason: str) -> None:
        """Imitate the departure of a request that a policy gives up, before the first token."""
        if not self.streams:
            await self.whole(finish="abort", stop=f"headway:{reason}", tokens=0)
            return
        await self.begin()
        choice = self._choice("", [], "abort", f"headway:{reason}", first=not self.sent)
        await self.event({**self.head, "choices": [choice]})
        await self.end()

    async def end(self) -> None:
        """Usage, if it was asked for, and the end mark."""
        if (self.body.get("stream_options") or {}).get("include_usage"):
            await self.event({**self.head, "choices": [], "usage": self._usage(len(self.sent))})
        await self.raw(b"data: [DONE]\n\n")

    async def whole(self, finish: str = "length", stop: str | None = None, tokens: int | None = None) -> None:
        ids = answer_ids(self.prompt, self.limit if tokens is None else tokens)
        text = text_of(ids)
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": finish, "stop_reason": stop}
        body = {**self.head, "choices": [choice], "usage": self._usage(len(ids))}
        if (self.body.get("kv_transfer_params") or {}).get("do_remote_decode"):
            body["kv_transfer_params"] = self.upstream.transfer
        self.response = web.Response(body=_json(body), content_type="application/json")

    async def refuse(self, status: int, body: bytes, **headers: str) -> None:
        self.response = web.Response(status=status, body=body, headers=headers)

    async def event(self, event: dict[str, Any]) -> None:
        await self.raw(b"data: " + _json(event) + b"\n\n")

    async def raw(self, data: bytes) -> None:
        assert self.response is not None
        await self.response.write(data)

    def die(self) -> None:
        """The process is gone: the connection is reset."""
        assert self.request.transport is not None
        self.request.transport.abort()

    def _ids(self, ids: list[int]) -> list[int] | None:
        return ids if self.body.get("return_token_ids") else None

    def _usage(self, tokens: int) -> dict[str, int]:
        prompt = len(self.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}

    def _choice(
        self, text: str, ids: list[int], finish: str | None, stop: str | None, *, first: bool
    ) -> dict[str, Any]:
        """A choice, with its keys in vLLM's order."""
        if self.chat:
            chat = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
            reason = {} if finish is None else {"stop_reason": stop}
            return {**chat, **reason, "token_ids": self._ids(ids)}
        return {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": stop,
            "prompt_token_ids": self._ids(self.prompt) if first else None,
            "token_ids": self._ids(ids),
        }


def _json(value: dict[str, Any]) -> bytes:
    """Encode as pydantic does: without spaces, and without escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@asynccontextmanager
async def upstream(name: str = "", *, port: int = 0, **fields: Any) -> AsyncIterator[Upstream]:
    """A running one; port 0 is a free one."""
    made = Upstream(name, **fields)
    app = web.Application(client_max_size=2**30)
    app.router.add_get("/health", made.health)
    app.router.add_get("/v1/models", made.models)
    app.router.add_get("/version", made.tell_version)
    app.router.add_get("/metrics", made.metrics)
    app.router.add_get("/v1/explain/{id}", made.explain)
    app.router.add_post("/detokenize", made.detokenize)
    app.router.add_get("/v1/responses/{id}", made.stored)
    app.router.add_post("/v1/completions", made.generate)
    app.router.add_post("/v1/chat/completions", made.generate)
    app.router.add_post("/v1/responses", made.generate)
    app.router.add_post("/v1/messages", made.generate)
    app.router.add_post("/hang", made.hang)
    for path in ("/v1/hang", "/v1/rerank"):
        app.router.add_post(path, made.hang)
    app.router.add_post("/zipped", made.generate)
    app.router.add_route("*", "/{rest:.*}", made.echo)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()
