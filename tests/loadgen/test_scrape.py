from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest
from aiohttp import web

from headway.errors import ConfigError, UpstreamError
from headway.loadgen.queries import scrape

METRICS = """\
# HELP headway_steps_total Calls of schedule()
# TYPE headway_steps_total counter
headway_steps_total{engine="0"} 12.0
headway_steps_total{engine="1"} 30.0
headway_differences_total{engine="0",reason="seats"} 3.0
headway_differences_total{engine="0",reason="unexplained"} 0.0
headway_differences_total{engine="1",reason="seats"} 1.5e+01
headway_label_total{path="/a b {c}"} 2.0
vllm:num_requests_running{engine="0",model_name="demo"} 4.0
plain 7
"""


@dataclass
class Exporter:
    """A server with one page."""

    url: str = ""
    body: bytes = METRICS.encode()
    status: int = 200
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        if self.answer is not None:
            return await self.answer(request)
        return web.Response(body=self.body, status=self.status, content_type="text/plain")


@pytest.fixture
async def exporter() -> AsyncIterator[Exporter]:
    made = Exporter()
    app = web.Application()
    app.router.add_get("/metrics", made.metrics)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}"
    yield made
    await runner.cleanup()


async def test_samples_are_summed_over_their_labels(exporter: Exporter) -> None:
    assert await scrape(exporter.url, "headway_") == {
        "headway_steps_total": 42.0,
        "headway_differences_total": 18.0,
        "headway_label_total": 2.0,
    }


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_the_url_may_be_the_apis(exporter: Exporter, suffix: str) -> None:
    assert await scrape(exporter.url + suffix, "plain") == {"plain": 7.0}


@pytest.mark.parametrize(
    ("prefix", "found"),
    [
        ('headway_differences_total{engine="0",reason="seats"}', {"headway_differences_total": 3.0}),
        ("headway_differences_total", {"headway_differences_total": 18.0}),
        ("vllm:num_requests_running", {"vllm:num_requests_running": 4.0}),
        ("absent", {}),
    ],
)
async def test_a_prefix_may_go_on_into_the_labels(
    exporter: Exporter, prefix: str, found: dict[str, float]
) -> None:
    assert await scrape(exporter.url, prefix) == found


async def test_a_server_without_samples_has_none(exporter: Exporter) -> None:
    exporter.body = b""
    assert await scrape(exporter.url, "headway_") == {}


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_an_error_is_reported_with_its_status(exporter: Exporter, status: int) -> None:
    exporter.status = status
    with pytest.raises(UpstreamError, match=f"/metrics answered HTTP {status}$"):
        await scrape(exporter.url, "headway_")


@pytest.mark.parametrize("body", [b"headway_steps_total many", b"headway_", b"headway_\xff 1"])
async def test_what_is_no_metric_is_reported(exporter: Exporter, body: bytes) -> None:
    exporter.body = body
    with pytest.raises(UpstreamError, match=r"/metrics answered with what is no (sample|text)"):
        await scrape(exporter.url, "headway_")


async def test_a_connection_cut_in_the_middle_is_reported(exporter: Exporter) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"headway_steps_total 1\n")
        assert request.transport is not None
        request.transport.close()
        return response

    exporter.answer = cut
    with pytest.raises(UpstreamError, match="/metrics does not answer"):
        await scrape(exporter.url, "headway_")


async def test_no_server_is_reported() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UpstreamError, match=rf"^{url}/metrics does not answer \(ClientConnectorError"):
            await scrape(url, "headway_")


async def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="accepted: a base URL"):
        await scrape("127.0.0.1:8000", "headway_")
