"""The gateway's own pages, its door, what it passes through, and how it ends."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.gateway.app import Gateway, serve, serve_on
from headway.gateway.book.access_log import AccessLog
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.member import Member
from headway.gateway.http.api import normal_path
from headway.gateway.http.keys import Keys
from headway.gateway.http.options import MIB, Cors, GatewayOptions
from headway.gateway.http.server import listen
from headway.gateway.request.serving import Serving
from headway.http_client import open_session
from headway.routing import build_router
from tests.gateway.fleets import until
from tests.gateway.front import CHAT, PROMPT, Answer, Front, ask, gateway
from tests.gateway.loopback import serving
from tests.gateway.upstream import Turn, Upstream, upstream

KEYS = Keys({b"k1": "", b"k2": "blue"})
STREAM = {**PROMPT, "stream": True}


async def hang(turn: Turn) -> None:
    """One token, and nothing more."""
    await turn.begin()
    await turn.token()
    await asyncio.sleep(3600)


# ---- pages --------------------------------------------------------------------------------------------------------


async def test_the_pages_of_its_own() -> None:
    async with upstream() as instance, gateway(instance) as front:
        assert ((await front.get("/health")).status, (await front.get("/ready")).status) == (200, 200)
        models = await front.get("/v1/models")
        assert (models.headers["content-type"], models.json["data"][0]["id"]) == ("application/json", "small")
        assert (await front.get("/openapi.json")).json["openapi"].startswith("3.1")
        assert (await front.get("/dashboard")).headers["content-type"].startswith("text/html")
        state = (await front.get("/dashboard/state")).json
        assert [each["name"] for each in state["instances"]] == ["0"]
        assert (await front.post({}, "/health")).status == 405


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_every_answer_has_the_requests_id(path: str) -> None:
    async with upstream() as instance, gateway(instance) as front:
        body = PROMPT if path == "/v1/completions" else CHAT
        answer = await front.post(body, path, x_request_id="mine")
        assert answer.headers["x-request-id"] == "mine"
        assert len((await front.post(body, path)).headers["x-request-id"]) == 32
        assert (await front.post(b"{", path, x_request_id="bad")).headers["x-request-id"] == "bad"
        assert instance.turns[0].request.headers["x-request-id"] == "mine"


async def test_a_request_has_one_id_everywhere() -> None:
    """The body's before the header's, although vLLM itself would take the header's; one that is too long is none."""
    async with upstream() as instance, gateway(instance) as front:
        for body, header, expected in (
            ({**PROMPT, "request_id": "said"}, {}, "said"),
            ({**PROMPT, "request_id": "said"}, {"x_request_id": "other"}, "said"),
            (PROMPT, {"x_request_id": "x" * 257}, None),
            ({**PROMPT, "request_id": "größer"}, {"x_request_id": "other"}, "größer"),
        ):
            answer = await front.post(body, **header)
            told = instance.turns[-1].request.headers.get("x-request-id")
            assert answer.headers.get("x-request-id") == told
            seen = front.accounts.recent[-1].id
            assert instance.bodies[-1]["request_id"] == seen
            assert seen == (expected or told)
            assert told == (seen if seen.isascii() else None)


# ---- the door -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/metrics"),
        ("GET", "/dashboard"),
        ("GET", "/dashboard/state"),
        ("GET", "/openapi.json"),
        ("GET", "/anything"),
    ],
)
async def test_a_key_is_wanted_everywhere(method: str, path: str) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:

        async def send(**headers: str) -> Answer:
            return await (
                front.post(PROMPT, path, **headers) if method == "POST" else front.get(path, **headers)
            )

        for headers in ({}, {"Authorization": "Bearer k3"}):
            answer = await send(**headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"].startswith("Basic ")
        assert not instance.turns
        password = base64.b64encode(b"me:k1").decode()
        for key in ("Bearer k1", f"Basic {password}"):
            assert (await send(Authorization=key)).status in (200, 202)


PAGE = {"Origin": "https://page.example"}
PATHS = ("/v1/completions", "/v1/models", "/elsewhere")


async def open_to_all(turn: Turn) -> None:
    """An instance that lets any page read its answer."""
    await turn.refuse(200, b"{}", **{"Content-Type": "application/json", "Access-Control-Allow-Origin": "*"})


def allowed(answer: Answer) -> str | None:
    return answer.headers.get("access-control-allow-origin")


async def test_no_page_of_another_origin_may_read_an_answer_unless_the_gateway_is_told_so() -> None:
    async with upstream(act=open_to_all) as instance, gateway(instance, keys=KEYS) as front:
        for key in ("Bearer k1", "Bearer none"):
            for path in PATHS:
                assert allowed(await front.get(path, Authorization=key, **PAGE)) is None
            assert allowed(await front.post(PROMPT, Authorization=key, **PAGE)) is None
        asked = {**PAGE, "Access-Control-Request-Method": "POST"}
        for path in PATHS:
            answer = await ask(front.session, "OPTIONS", front.url + path, None, asked)
            assert (answer.status, allowed(answer)) == (401, None)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/pause", "/v1/files"])
async def test_a_page_of_another_origin_has_nothing_done_with_a_key_that_its_browser_knows(path: str) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            answer = await front.post(PROMPT, path, Authorization="Bearer k1", Origin=origin)
            assert (answer.status, answer.error["code"]) == (403, "other_origin")
        assert not instance.turns
        assert not instance.echoed
        answer = await front.post(PROMPT, path, Authorization="Bearer k1", Origin=front.url)
        assert answer.status != 403


@pytest.mark.parametrize("origins", [("*",), ("https://page.example", "https://other.example")])
async def test_pages_of_the_origins_that_the_gateway_was_told_may_ask_and_read(
    origins: tuple[str, ...],
) -> None:
    cors = Cors(allow_origins=origins)
    said = "*" if "*" in origins else PAGE["Origin"]
    async with upstream() as instance, gateway(instance, keys=KEYS, cors=cors) as front:
        for key, status in (("Bearer k1", 200), ("Bearer none", 401)):
            assert allowed(await front.get("/v1/models", Authorization=key, **PAGE)) == said
            answer = await front.post(PROMPT, Authorization=key, **PAGE)
            assert (answer.status, allowed(answer)) == (status, said)
            if said != "*":
                answer = await front.get("/v1/models", Authorization=key, Origin="https://evil.example")
                assert allowed(answer) is None
        asked = {
            **PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-tenant",
        }
        for path in PATHS:
            answer = await ask(front.session, "OPTIONS", front.url + path, None, asked)
            assert (answer.status, allowed(answer)) == (200, said)
            assert answer.headers["access-control-allow-headers"] == "x-tenant"
        assert not instance.echoed
        assert (await ask(front.session, "OPTIONS", front.url, None, PAGE)).status == 401


async def test_options_are_answered_here(tmp_path: Path) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS, batch_dir=tmp_path) as front:
        for path, methods in (
            ("/v1/files", "GET, HEAD, OPTIONS, POST"),
            ("/v1/files/some", "DELETE, GET, HEAD, OPTIONS"),
            ("/v1/batches/some/cancel", "OPTIONS, POST"),
            ("/elsewhere", "GET, HEAD, OPTIONS, POST"),
            ("/v1/models", "GET, HEAD, OPTIONS"),
            ("/explain/some", "GET, HEAD, OPTIONS"),
            ("/v1/completions", "OPTIONS, POST"),
        ):
            key = {"Authorization": "Bearer k1"}
            answer = await ask(front.session, "OPTIONS", front.url + path, None, key)
            assert (answer.status, answer.body) == (204, b"")
            assert answer.headers["allow"].removesuffix(", PUT, PATCH, DELETE") == methods
        mine = {"Authorization": "Bearer k2"}
        assert (await ask(front.session, "OPTIONS", f"{front.url}/metrics", None, mine)).status == 403
        assert not instance.echoed


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_a_body_that_stalls_is_given_up(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.gateway.http.asgi_client.STALLED_S", 0.2)
    async with upstream() as instance, gateway(instance) as front:

        async def half() -> AsyncIterator[bytes]:
            yield b'{"prompt": '
            await asyncio.sleep(3600)

        async with front.session.post(front.url + path, data=half()) as response:
            assert (response.status, response.headers["connection"]) == (408, "close")
            assert (await response.json())["error"]["code"] == "body_stalled"
        assert not instance.bodies


async def test_health_needs_no_key() -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        assert ((await front.get("/health")).status, (await front.get("/ready")).status) == (200, 200)


async def test_a_keys_tenant_is_the_requests_and_the_key_goes_no_further() -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        assert (await front.post(PROMPT, Authorization="Bearer k2")).status == 200
        assert instance.bodies[0]["vllm_xargs"]["headway_tenant"] == "blue"
        assert "authorization" not in {name.lower() for name in instance.turns[0].request.headers}
        assert next(iter(front.accounts.classes)).tenant == "blue"
        assert (await front.post(PROMPT, Authorization="Bearer k2", x_tenant="red")).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/dashboard",
        "/dashboard/",
        "/dashboard/state",
        "/dashboard/dashboard.js",
        "/shadow",
        "/v1/shadow/0-0",
        "/v1/explainall",
        "/anything",
    ],
)
async def test_a_tenants_key_gets_no_figures_of_all_tenants(path: str) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        answer = await front.get(path, Authorization="Bearer k2")
        assert (answer.status, answer.error["code"]) == (403, "tenants_key")
        assert (await front.get(path, Authorization="Bearer k1")).status != 403
        assert instance.echoed in ([], [path])


@pytest.mark.parametrize("path", ["/v1/models", "/openapi.json", "/v1/explain", "/explain", "/version"])
async def test_a_tenants_key_gets_what_concerns_no_other_tenant(path: str) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        assert (await front.get(path, Authorization="Bearer k2")).status == 200


async def test_without_keys_the_clients_key_is_the_instances_to_check() -> None:
    async with upstream() as instance, gateway(instance) as front:
        await front.post(PROMPT, Authorization="Bearer theirs")
        assert instance.turns[0].request.headers["authorization"] == "Bearer theirs"


async def test_an_instances_own_key_is_not_the_clients() -> None:
    """The session has the instances' key, so what clients send for one (all do) goes no further."""
    async with upstream("a") as instance, open_session("ours") as session:
        fleet = Fleet([Member("a", url=instance.url)], session=session)
        running = asyncio.create_task(fleet.run())
        await until(fleet.names)
        app = Gateway(fleet, build_router("round-robin"), GatewayOptions())
        async with serving(app) as url, aiohttp.ClientSession() as client:
            for path in ("/v1/completions", "/elsewhere"):
                headers = {"Authorization": "Bearer EMPTY"}
                async with client.post(url + path, json=PROMPT, headers=headers) as response:
                    answer = await response.json()
            assert instance.turns[0].request.headers["authorization"] == "Bearer ours"
            assert answer["headers"]["Authorization"] == "Bearer ours"
        await fleet.close()
        running.cancel()


async def test_a_cookie_is_for_the_client_that_got_it() -> None:
    async def act(turn: Turn) -> None:
        await turn.refuse(200, b"{}", **{"Content-Type": "application/json", "Set-Cookie": "who=first"})

    async with upstream(act=act) as instance:
        # A client library that keeps cookies keeps those of names, not of addresses.
        instance.url = instance.url.replace("127.0.0.1", "localhost")
        async with gateway(instance) as front:
            assert (await front.post(PROMPT)).headers["set-cookie"] == "who=first"
            assert "Cookie" not in (await front.get("/elsewhere")).json["headers"]
            await front.post(PROMPT, Cookie="who=second")
            assert instance.turns[-1].request.headers["cookie"] == "who=second"


async def test_a_key_in_an_instances_url_is_not_the_clients() -> None:
    async with upstream("a") as instance:
        instance.url = instance.url.replace("http://", "http://me:theirs@")
        async with gateway(instance) as front:
            assert (await front.post(PROMPT, Authorization="Bearer EMPTY")).status == 200
            expected = f"Basic {base64.b64encode(b'me:theirs').decode()}"
            assert instance.turns[0].request.headers["authorization"] == expected
            answer = await front.get("/elsewhere", Authorization="Bearer EMPTY")
            assert answer.json["headers"]["Authorization"] == expected


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("http://me:theirs@10.0.0.1:8000", False),
        ("http://theirs@10.0.0.1/v1", False),
        ("http://10.0.0.1/team@home/v1", True),
    ],
)
async def test_a_key_in_a_url_stands_before_its_host(url: str, passes: bool) -> None:
    async with open_session() as session:
        fleet = Fleet([member := Member("a", url=url)], session=session)
        serving = Serving(fleet, build_router("round-robin"), GatewayOptions())
        assert serving.passes_key(member) is passes


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
async def test_a_header_says_the_same_to_the_instance(coding: str) -> None:
    keys = Keys({b"k1": "José"})
    async with upstream() as instance, gateway(instance, keys=keys) as front:
        host, port = front.url.removeprefix("http://").split(":")
        name, body = "José".encode(coding), json.dumps(PROMPT).encode()
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nAuthorization: Bearer k1\r\n"
            b"X-Tenant: %b\r\nX-Name: %b\r\nContent-Length: %d\r\n\r\n%b" % (name, name, len(body), body)
        )
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert instance.turns[0].request.headers["x-name"] == "José"
        assert instance.bodies[0]["vllm_xargs"]["headway_tenant"] == "José"


async def test_headers_that_are_for_the_gateway_alone_go_no_further() -> None:
    said = {"Connection": "close, X-Hop", "X-Hop": "1", "X-All-The-Way": "2"}
    async with upstream() as instance, gateway(instance) as front, aiohttp.ClientSession() as session:
        async with session.post(f"{front.url}/v1/completions", json=PROMPT, headers=said) as answer:
            assert answer.status == 200
        there = instance.turns[0].request.headers
        assert ("X-Hop" in there, there["X-All-The-Way"]) == (False, "2")


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413(chunked: bool) -> None:
    async def parts() -> Any:
        for _ in range(20):
            yield b"x" * 100_000

    async with upstream() as instance, gateway(instance, max_body_mib=1) as front:
        for path in ("/v1/completions", "/elsewhere"):
            data = parts() if chunked else BytesIO(b"x" * (MIB + 1))
            async with front.session.post(front.url + path, data=data) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "body_too_large"
        assert not instance.turns
        assert (await front.post(json.dumps(PROMPT).encode().ljust(MIB))).status == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"prompt": "x", "stream": 2}'])
async def test_a_body_that_is_none_is_a_400(body: bytes) -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer = await front.post(body)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
        assert not instance.turns
        assert not front.accounts.totals.offered
        assert front.accounts.refusals[0].status == 400


async def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    async def wait(turn: Turn) -> None:
        await turn.begin()
        await release.wait()
        await turn.token(finish="stop")
        await turn.end()

    release = asyncio.Event()
    async with upstream(act=wait) as instance, gateway(instance, max_queue=2) as front:
        waiting = [asyncio.create_task(front.post(STREAM)) for _ in range(2)]
        await until(lambda: instance.running == 2)
        answer = await front.post(STREAM)
        assert (answer.status, answer.error["code"], answer.headers["retry-after"]) == (
            429,
            "queue_full",
            "1",
        )
        release.set()
        assert [each.status for each in await asyncio.gather(*waiting)] == [200, 200]
        assert (await front.post(STREAM)).status == 200
        await front.idle()
        assert front.accounts.totals.shed == 1


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2/rerank", "/score", "/under/a/root/v1/completions"])
async def test_texts_that_go_on_as_they_are_count_as_sequences(path: str) -> None:
    async with upstream() as instance, gateway(instance, max_per_tenant=50) as front:
        answer = await front.post({"input": ["x"] * 50, "documents": ["x"] * 51}, path)
        assert (answer.status, answer.error["code"], instance.echoed) == (400, "too_many_sequences", [])
        assert (await front.post({"input": ["x"] * 50}, path)).status == 202


async def test_an_instance_gets_as_many_sequences_as_it_may_have() -> None:
    async with (
        upstream("a", act=hang) as first,
        upstream("b", act=hang) as second,
        gateway(first, second, max_in_flight=4, drain_s=0.1) as front,
    ):
        asking = [asyncio.create_task(front.post({**STREAM, "n": n})) for n in (3, 3, 1, 1, 1)]
        await until(lambda: first.running + second.running == 4)
        assert [front.fleet.member(name).in_flight for name in "ab"] == [4, 4]
        assert (first.running, second.running) == (2, 2)
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def test_one_that_has_as_many_as_it_may_is_not_the_next_in_turn() -> None:
    async with (
        upstream("a", act=hang) as first,
        upstream("b") as second,
        gateway(first, second, max_in_flight=1, drain_s=0.1) as front,
    ):
        stuck = asyncio.create_task(front.post(STREAM))
        await until(lambda: first.running)
        for _ in range(3):
            assert (await front.post(STREAM)).status == 200
        assert (len(first.turns), len(second.turns)) == (1, 3)
        first.act = None
        stuck.cancel()
        await front.idle()
        await front.post(STREAM)
        assert len(first.turns) == 2


async def test_who_waits_too_long_for_a_first_token_is_told_so() -> None:
    async def slow(turn: Turn) -> None:
        if turn.streams:
            await turn.begin()
        await asyncio.sleep(0.3)
        await turn.whole()

    async with upstream(act=slow) as instance, gateway(instance, max_age_s=0.1) as front:
        answer = await front.post(STREAM)
        assert (answer.status, answer.error["code"]) == (429, "too_old")
        await asyncio.wait_for(instance.gone.wait(), 1)
        # An answer in one piece does not say when it was begun: only the door can be too slow for it.
        assert (await front.post(PROMPT)).status == 200
        await front.idle()
        assert front.accounts.totals.shed == 1


async def test_a_stream_that_has_begun_is_never_too_old() -> None:
    async def slow(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        await asyncio.sleep(0.2)
        await turn.token(finish="stop")
        await turn.end()

    async with upstream(act=slow) as instance, gateway(instance, max_age_s=0.1) as front:
        assert len((await front.post(STREAM)).events) == 2


# ---- everything else ----------------------------------------------------------------------------------------------


async def test_the_rest_of_the_api_goes_to_an_instance() -> None:
    async with upstream() as instance, gateway(instance) as front:
        answer = await front.post(b'{"input": "x"}', "/v1/embeddings?a=b%20c&d=1", x_other="1")
        assert answer.status == 202
        seen = answer.json
        assert (seen["method"], seen["body"]) == ("POST", '{"input": "x"}')
        assert seen["path"] == "/v1/embeddings?a=b%20c&d=1"
        headers = {name.lower(): value for name, value in seen["headers"].items()}
        assert (headers["x-other"], headers["content-type"]) == ("1", "application/json")
        assert headers["host"] == instance.url.removeprefix("http://")
        assert (await front.get("/v1/completions")).json["method"] == "GET"
        assert not front.accounts.totals.offered
        assert front.fleet.member("0").served == 2


@pytest.mark.parametrize("path", ["/v1/completions", "/zipped"])
async def test_who_is_sent_on_by_an_instance_comes_back_to_the_gateway(path: str) -> None:
    """vLLM sends `/v1/completions/` on to the path without the slash, at the address it was asked at."""

    async def act(turn: Turn) -> None:
        await turn.refuse(307, b"", Location=places.pop(0).format(turn.request.url.origin()))

    places = ["{}/v1/here?a=b", "{}0/elsewhere", "/there", "https://elsewhere.example/x"]
    expected = ["/v1/here?a=b", *places[1:]]
    async with upstream(act=act) as instance, gateway(instance) as front:
        for place in expected:
            answer = await front.post(PROMPT, path)
            assert (answer.status, answer.headers["location"]) == (307, place.format(instance.url))


@pytest.mark.parametrize(
    "target", ["*", "*@{}/x", "*:1@{}/x", "//{}/x", "/@{}", "http://{}/x", "http://h@{}/x"]
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_what_is_asked_for_names_no_other_host(method: str, target: str) -> None:
    async with upstream("a") as instance, upstream("b") as other, gateway(instance) as front:
        asked = target.format(other.url.removeprefix("http://"))
        head, _, body = (await said_to(front, method, asked)).partition(b"\r\n\r\n")
        if target.startswith("*"):
            assert head.startswith(b"HTTP/1.1 400 ")
        elif method == "OPTIONS":
            assert head.startswith(b"HTTP/1.1 204 ")
            assert not instance.echoed
        else:
            assert json.loads(body)["headers"]["Host"] == instance.url.removeprefix("http://")


async def said_to(front: Front, method: str, target: str, key: str = "") -> bytes:
    """The response to a target sent as written; a client library would normalise it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n{shown}\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("target", "decided"),
    [
        ("/x", "/x"),
        ("/../x", "/x"),
        ("/x/%2e%2e/y", "/y"),
        ("//x///y//", "/x/y/"),
        ("/x/./y/.", "/x/y/"),
        ("/a%2Fb%7e?c=%2B+d&e=%zz//..", "/a/b~?c=%2B+d&e=%zz//.."),
        ("/x%252e%252e%2fy", "/x%252e%252e/y"),
        ("/%zz%20%00%ff", "/%25zz%20%00%FF"),
        ("/..%2f..%2F%2e./x", "/x"),
    ],
)
async def test_a_path_goes_on_as_it_was_decided_on(target: str, decided: str) -> None:
    """With a base URL that has a path itself, `..` would lead out of that."""
    targets: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n" + b'{"data": [{"id": "small"}]}\n')
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with gateway(Upstream(url=f"http://127.0.0.1:{port}/base")) as front:
            assert b" 200 " in await said_to(front, "GET", target)
    assert f"/base{decided}".encode() in targets


@given(st.text("/.%2eEfF5c a\\", max_size=30))
def test_a_normal_path_is_normal_and_names_what_it_was_made_of(text: str) -> None:
    path, raw = normal_path(b"/" + text.encode())
    assert normal_path(raw) == (path, raw)
    assert unquote_to_bytes(raw).decode(errors="replace") == path
    assert "//" not in path
    assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "target",
    [
        "//metrics",
        "/%6detrics",
        "/v1/explain/../../metrics",
        "/v1/explain%2f..%2f..%2fmetrics",
        "/v1/responses/x/..%2f../../dashboard/state",
        "/v1/completions//..%2f../pause",
    ],
)
async def test_no_way_of_writing_a_path_gets_a_tenant_round_the_door(target: str) -> None:
    async with upstream() as instance, gateway(instance, keys=KEYS) as front:
        assert b" 403 " in (await said_to(front, "GET", target, "k2")).splitlines()[0]
        assert b" 403 " not in (await said_to(front, "GET", target, "k1")).splitlines()[0]
        assert b" 200 " in await said_to(front, "GET", "/v1//models/.%2f../models", "k2")


async def test_what_comes_compressed_goes_on_plain() -> None:
    async def act(turn: Turn) -> None:
        text = gzip.compress(b'{"choices": []}')
        await turn.refuse(200, text, **{"Content-Type": "application/json", "Content-Encoding": "gzip"})

    async with upstream(act=act) as instance, gateway(instance) as front:
        for path in ("/v1/completions", "/zipped"):
            answer = await front.post(PROMPT, path)
            assert answer.body == b'{"choices": []}'
            assert "content-encoding" not in answer.headers


async def test_the_rest_is_spread_and_refused_as_the_others() -> None:
    async with upstream("a") as first, upstream("b") as second, gateway(first, second) as front:
        hosts = {(await front.get("/x")).json["headers"]["Host"] for _ in range(4)}
        assert hosts == {each.url.removeprefix("http://") for each in (first, second)}
        first.sick = second.sick = True
        await until(lambda: not front.fleet.names())
        assert (await front.get("/x")).status == 503


async def test_who_leaves_or_is_lost_elsewhere_ends_there_too() -> None:
    async with upstream("a") as instance, gateway(instance, drain_s=0.1) as front:
        for body in (None, b"x" * 100):
            instance.gone.clear()
            asking = asyncio.create_task(front.session.post(front.url + "/hang", data=body))
            await until(lambda: instance.running)
            asking.cancel()
            await asyncio.wait_for(instance.gone.wait(), 1)
        asking = asyncio.create_task(front.session.post(front.url + "/hang"))
        await until(lambda: instance.running)
        instance.sick = True
        async with await asking as response:
            assert response.status == 502


async def test_what_hangs_elsewhere_does_not_hold_up_the_end() -> None:
    async with upstream("a") as instance, gateway(instance, drain_s=0.1) as front:
        asking = asyncio.create_task(front.session.post(front.url + "/hang"))
        await until(lambda: instance.running)
        front.stop.set()
        async with await asking as response:
            assert response.status == 503
        await front.task


# ---- the end ------------------------------------------------------------------------------------------------------


async def test_what_runs_may_end_when_the_gateway_stops() -> None:
    async def slowly(turn: Turn) -> None:
        await turn.begin()
        await turn.token()
        await release.wait()
        await turn.token(finish="stop")
        await turn.end()

    release = asyncio.Event()
    async with upstream(act=slowly) as instance, gateway(instance) as front:
        running = asyncio.create_task(front.post(STREAM))
        await until(lambda: instance.running and front.accounts.output_tokens)
        front.stop.set()
        await until(lambda: refuses(front))
        release.set()
        assert len((await running).events) == 2
        await front.task
        assert front.accounts.totals.finished == 1


def refuses(front: Front) -> bool:
    """Whether nobody listens any longer."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(front.url.rpartition(":")[2]))) != 0


@pytest.mark.parametrize("begun", [False, True])
async def test_what_does_not_end_in_time_is_cut_with_a_clear_error(begun: bool) -> None:
    async def act(turn: Turn) -> None:
        if begun:
            await hang(turn)
        await asyncio.sleep(3600)

    async with upstream(act=act) as instance, gateway(instance, drain_s=0.1) as front:
        running = asyncio.create_task(front.post(STREAM))
        await until(lambda: instance.running and bool(front.accounts.output_tokens) is begun)
        front.stop.set()
        answer = await running
        if begun:
            assert answer.status == 200
            assert "being stopped" in answer.events[-1]["error"]["message"]
        else:
            assert (answer.status, answer.error["code"]) == (503, "closing")
        await front.task
        await asyncio.wait_for(instance.gone.wait(), 1)
        assert front.accounts.totals.failed == 1


@asynccontextmanager
async def deaf_client(front: Front, body: bytes, sent: bytes) -> AsyncIterator[None]:
    """A client that has sent so much of a request's body, sends no more, and reads nothing."""
    port = int(front.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + sent)
    await writer.drain()
    try:
        yield
    finally:
        writer.transport.abort()


async def test_who_does_not_send_on_does_not_hold_up_the_end() -> None:
    body = json.dumps(STREAM).encode()
    async with (
        upstream() as instance,
        gateway(instance, drain_s=0.1) as front,
        deaf_client(front, body, body[:1]),
    ):
        await asyncio.sleep(0.1)
        front.stop.set()
        await asyncio.wait_for(asyncio.shield(front.task), 5)


async def test_who_does_not_read_on_does_not_hold_up_the_end() -> None:
    async def without_end(turn: Turn) -> None:
        await turn.begin()
        while True:
            await turn.raw(b'data: {"choices": [{"text": "%b"}]}\n\n' % (b"w" * 2**16))

    body = json.dumps(STREAM).encode()
    async with (
        upstream(act=without_end) as instance,
        gateway(instance, drain_s=0.1) as front,
        deaf_client(front, body, body),
    ):
        await until(lambda: front.accounts.live)
        await asyncio.sleep(0.5)  # until all buffers on the way are full
        front.stop.set()
        await asyncio.wait_for(asyncio.shield(front.task), 5)
        # It is the gateway that breaks the connection: the client has not left.
        assert (front.accounts.totals.failed, front.accounts.totals.cancelled) == (1, 0)


async def test_a_gateway_that_is_stopped_while_it_starts_leaves_nothing_open() -> None:
    async with open_session() as session:
        app = Gateway(Fleet([], session=session), build_router("round-robin"), GatewayOptions())
        listener, stop = listen("127.0.0.1", 0), asyncio.Event()
        stop.set()
        await serve_on(app, listener, stop)
        assert listener.fileno() == -1


async def test_an_address_that_is_taken_is_a_clear_error() -> None:
    with listen("127.0.0.1", 0) as taken:
        async with open_session() as session:
            app = Gateway(Fleet([], session=session), build_router("round-robin"), GatewayOptions())
            with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:"):
                await serve(app, "127.0.0.1", taken.getsockname()[1], asyncio.Event())


# ---- the log ------------------------------------------------------------------------------------------------------


async def test_the_access_log_has_a_line_for_each_request(tmp_path: Path) -> None:
    async def expire(turn: Turn) -> None:
        await turn.leave("expired")

    path = tmp_path / "access.jsonl"
    async with upstream("lp-0") as instance, gateway(instance, access_log=path) as front:
        await front.post(STREAM, x_request_id="a", x_slo_ttft_ms="9000", x_tenant="blue")
        instance.act = expire
        await front.post(PROMPT, x_request_id="b")
        await front.idle()
        first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.pop("ms") >= first.pop("ttft_ms") > 0
    assert first.pop("at") > 1.7e9
    assert first == {
        "id": "a",
        "path": "/v1/completions",
        "status": 200,
        "outcome": "finished",
        "tokens": 8,
        "stream": True,
        "slo": "ttft=9s",
        "met": True,
        "tenant": "blue",
        "instance": "lp-0",
    }
    assert (second["id"], second["status"], second["outcome"]) == ("b", 429, "expired")
    assert "ran out" in second["reason"]


def test_a_log_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the access log cannot be written to"):
        AccessLog(tmp_path / "none" / "log")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_queue": 0}, "max_queue is 0; accepted: 1 or more"),
        ({"max_tries": 0}, "max_tries is 0"),
        ({"max_moves": -1}, "max_moves is -1; accepted: 0 or more"),
        ({"max_age_s": 0.0}, "max_age_s is 0.0; accepted: more than 0"),
        ({"drain_s": -1.0}, "drain_s is -1.0"),
    ],
)
def test_limits_that_are_none_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GatewayOptions(**options)


async def test_https_is_spoken_with_a_certificate() -> None:
    """The file was made for this test, by `openssl req -x509 -newkey ec -nodes`, and is nobody's secret."""
    certificate = Path(__file__).with_name("localhost.pem")
    trusted = ssl.create_default_context(cafile=certificate)
    async with upstream() as instance, gateway(instance, ssl_certfile=certificate) as front:
        url = front.url.replace("http://", "https://")
        async with front.session.post(f"{url}/v1/completions", json=STREAM, ssl=trusted) as response:
            assert response.status == 200
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert front.app.limits.connections == 1
        with pytest.raises(aiohttp.ClientError):
            await front.get("/health")
