"""The Grafana dashboard: every metric it names is one that the gateway, the engines or vLLM have."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.gateway.named_upstream import HOLD, MODEL
from tests.gateway.openai_upstream import gateway

FILE = Path(__file__).parents[2] / "deploy" / "grafana" / "headway.json"
NAME = re.compile(r"\b(?:headway_|vllm:)\w+")
PARTS = ("_total", "_bucket", "_sum", "_count")


@pytest.fixture(scope="module")
def board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILE.read_text())
    return loaded


def queries(board: dict[str, Any]) -> list[str]:
    """Every query of a panel or a variable."""
    panels = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    variables = [each["query"]["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    return panels + variables


def named(board: dict[str, Any], prefix: str) -> set[str]:
    """The metrics that the queries name."""
    found = {name for query in queries(board) for name in NAME.findall(query)}
    return {name for name in found if name.startswith(prefix)}


def plain(name: str) -> str:
    """A metric's name as the code has it."""
    for part in PARTS:
        name = name.removesuffix(part)
    return name


async def post(session: aiohttp.ClientSession, url: str, prompt: str, headers: dict[str, str]) -> None:
    body = {"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": 3}
    async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
        await answer.read()


async def test_the_gateway_has_every_metric_and_label_that_is_named(board: dict[str, Any]) -> None:
    """Asked of a gateway that has served a request, refused another, and has one that waits."""
    slo = {"x-slo-ttft-ms": "60000"}
    async with gateway() as url, aiohttp.ClientSession() as session:
        for prompt, headers in (("one", slo), ("one", {"x-slo-ttft-ms": "soon"})):
            await post(session, url, prompt, headers)
        waits = asyncio.create_task(post(session, url, HOLD, slo))
        text = ""
        while "headway_gateway_slack_ratio_min" not in text:
            async with session.get(f"{url}/metrics") as answer:
                text = await answer.text()
        waits.cancel()
        await asyncio.wait([waits])
    described = set(re.findall(r"^# TYPE (\S+)", text, re.M))
    wanted = named(board, "headway_gateway_")
    assert wanted
    assert {plain(name) for name in wanted} <= {plain(name) for name in described}
    labels = set(re.findall(r'(\w+)="', text)) | {"source", "target"}  # nobody was handed over
    for query in queries(board):
        if "headway_gateway_" in query:
            grouped = re.findall(r"by \(([^)]*)\)", query)
            assert {name.strip() for group in grouped for name in group.split(",")} <= labels, query


def test_the_engines_have_every_metric_that_is_named(board: dict[str, Any]) -> None:
    metrics = pytest.importorskip("headway.engine.vllm.metrics", reason="vLLM is not installed")
    tables = (metrics._SECONDS, metrics._LABELLED)
    known = {name for table in tables for name, _ in table.values()}
    known |= {f"headway_{name}" for name in metrics._TOTALS}
    wanted = named(board, "headway_") - named(board, "headway_gateway_")
    assert wanted
    assert {plain(name) for name in wanted} <= known


def test_vllm_has_every_metric_that_is_named(board: dict[str, Any]) -> None:
    loggers = pytest.importorskip("vllm.v1.metrics.loggers", reason="vLLM is not installed")
    source = Path(loggers.__file__).read_text()
    wanted = named(board, "vllm:")
    assert wanted
    assert [name for name in wanted if f'"{plain(name)}"' not in source] == []


def test_every_panel_has_a_place_of_its_own(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_every_panel_says_what_it_shows_and_asks_the_chosen_source(board: dict[str, Any]) -> None:
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@pytest.mark.parametrize("pair", ["()", "[]", "{}"])
def test_queries_close_what_they_open(board: dict[str, Any], pair: str) -> None:
    for query in queries(board):
        assert query.count(pair[0]) == query.count(pair[1]), query
