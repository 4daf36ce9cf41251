"""`headway top` of a gateway, of a single server, and of what is neither."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from threading import Thread

import aiohttp
import msgspec
import pytest
from rich.console import Console

from headway.cli.top import WatchedGateway, WatchedServer
from headway.gateway.fleet.member import Condition
from headway.http_client import open_session
from tests.cli.conftest import Headway, Refused
from tests.gateway.dashboard_scene import Scene

METRICS = """# HELP vllm:num_requests_running x
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 1.0
vllm:num_requests_waiting{engine="0"} 7.0
vllm:kv_cache_usage_perc{engine="0"} 0.42
vllm:generation_tokens_total{engine="0"} %d
headway_steps_total{engine="0"} 10.0
"""


@contextmanager
def serving(pages: dict[str, bytes]) -> Iterator[str]:
    """A server of these pages, and of 404 for all others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages.get(self.path, b"{}")
            self.send_response(200 if self.path in pages else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
async def state() -> bytes:
    """The dashboard's state of a gateway with one late and one timely request."""
    async with aiohttp.ClientSession() as session:
        scene = Scene(session)
        for member in scene.fleet.members:
            member.condition = Condition.READY
        scene.serve(ttft_s=0.5)
        scene.serve(ttft_s=3.0, tenant="slow")
        return msgspec.json.encode(scene.state)


async def test_a_gateway_shows_what_its_dashboard_shows(state: bytes) -> None:
    with serving({"/dashboard/state": state}) as url:
        async with open_session() as session:
            look = await WatchedGateway(session, url).look()
    assert "2/2 ready  in time 50%" in look.line
    written = StringIO()
    Console(width=160, file=written).print(look.whole)
    text = written.getvalue()
    assert "lp-0 lp" in text
    assert "slow" in text
    assert "finished late" in text


async def test_instances_that_are_not_needed_are_none_that_lack(state: bytes) -> None:
    told = msgspec.json.decode(state)
    told["instances"][1]["condition"] = Condition.PARKED
    with serving({"/dashboard/state": msgspec.json.encode(told)}) as url:
        async with open_session() as session:
            assert "1/1 ready" in (await WatchedGateway(session, url).look()).line


def test_without_a_terminal_one_look_is_one_line(headway: Headway, state: bytes) -> None:
    with serving({"/dashboard/state": state}) as url:
        ended = headway("top", "--url", f"{url}/v1", "--once")
    assert (ended.code, ended.out.count("\n")) == (0, 1)
    assert "in time 50%" in ended.out


async def test_a_single_server_shows_its_engines_and_rates_from_the_second_look_on() -> None:
    pages = {"/metrics": (METRICS % 100).encode()}
    with serving(pages) as url:
        async with open_session() as session:
            server = WatchedServer(session, url)
            first = await server.look()
            pages["/metrics"] = (METRICS % 500).encode()
            second = await server.look()
    assert first.line.endswith("4 running  7 waiting  42% KV used")
    tokens = second.line.partition(" tokens/s")[0].rpartition(" ")[2]
    assert float(tokens) > 0
    assert "0.0 steps/s" in second.line


@pytest.mark.parametrize(
    ("pages", "complaint"),
    [
        ({}, "/metrics answered HTTP 404"),
        (
            {"/metrics": b"other 1\n"},
            "/metrics has no metrics of vLLM's; accepted: a gateway or a vLLM server",
        ),
        ({"/metrics": b"vllm:x y\n"}, "/metrics answered with what is no sample: 'vllm:x y'"),
    ],
)
def test_what_is_neither_is_refused(refused: Refused, pages: dict[str, bytes], complaint: str) -> None:
    with serving(pages) as url:
        assert complaint in refused("top", "--url", url, "--once")


def test_a_look_every_moment_is_refused(refused: Refused) -> None:
    assert refused("top", "--every", "0") == "error: --every is 0; accepted: 0.2 s or more\n"
