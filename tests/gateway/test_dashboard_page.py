"""The page as people see it: in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.explain.explanation import explain
from headway.explain.text import told_data, told_text
from headway.gateway.book.accounts import Refusal
from headway.gateway.book.dashboard import dashboard_routes
from headway.gateway.fleet.member import Condition
from headway.gateway.http.keys import Keys
from headway.gateway.http.options import GatewayOptions
from tests.explain.trail_scene import displaced_scene
from tests.gateway.chromium import Tab, chromium
from tests.gateway.dashboard_scene import Scene
from tests.gateway.loopback import serving
from tests.gateway.named_upstream import MODEL
from tests.gateway.openai_upstream import gateway
from tests.gateway.shadow_reports import DOUBT, DOUBTED, REPORT

EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"

LOW_CONTRAST = """
(() => {
  const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = rgb(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const ratio = (node) => {
    const pair = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  const texts = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return texts.map((node) => [node, ratio(node)]).filter(([, found]) => found < 4.5)
    .map(([node, found]) => `${node.textContent} (${found.toFixed(2)})`);
})()
"""
"""Texts whose contrast is below what WCAG 2 asks of normal text (AA, 4.5)."""

NAMELESS = """
[...document.querySelectorAll("svg, [role=img], [role=region], section, button, a")]
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
    || document.getElementById(node.getAttribute("aria-labelledby"))))
  .map((node) => node.outerHTML)
"""


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Something of everything that the page shows."""
    async with aiohttp.ClientSession() as session:
        made = Scene(session)
        for member in made.fleet.members:
            member.condition = Condition.READY
        for _ in range(3):
            made.serve(ttft_s=0.5)
            made.dashboard.sample()
        made.serve(ttft_s=3.0, tenant=EVIL)
        made.offer()
        made.accounts.hand_off(made.offer(slo=Slo(ttft_s=9.0)), "hp-0")
        note = Refusal(made.clock.now_s, 429, "queue_full", f"8 wait {EVIL}", "none", EVIL)
        made.accounts.refuse(note)
        made.accounts.end(made.offer(), Outcome.SHED, made.clock.now_s)
        yield made


@pytest.fixture
async def tab(tmp_path: Path) -> AsyncIterator[Tab]:
    async with chromium(tmp_path / "profile") as opened:
        yield opened


def app_of(scene: Scene) -> Starlette:
    return Starlette(routes=list(dashboard_routes(scene.dashboard)))


async def test_everything_is_shown_and_nothing_of_a_client_becomes_markup(scene: Scene, tab: Tab) -> None:
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelectorAll('#instances tr').length === 2")
        assert await tab.text("#verdict") == "Ready, and many requests are late"
        assert await tab.text("#goodput") == "60.0 %"  # three of five: one was late, one shed
        assert (await tab.text("#instances tr")).startswith("lp-0 lp ready ")
        assert "under 25 % 0" in await tab.text("#slack")
        assert await tab.text("#waiting") == "2 (at most 8 sequences)"
        assert await tab.text("#hand-offs") == "lp-0 → hp-0 1 1 so far"
        assert EVIL in await tab.text("#classes")
        assert f"queue_full: 8 wait {EVIL}" in await tab.text("#refusals")
        assert await tab.value("window.hacked === undefined")
        assert await tab.value("document.querySelectorAll('main script, main img').length") == 0
        assert tab.complaints == []


async def test_instances_that_are_not_needed_are_none_that_lack(scene: Scene, tab: Tab) -> None:
    scene.fleet.member("hp-0").condition = Condition.PARKED
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelectorAll('#instances tr').length === 2")
        assert await tab.text("#verdict") == "Ready, and many requests are late"


async def test_it_follows_what_happens_and_keeps_still_while_paused(scene: Scene, tab: Tab) -> None:
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelector('#instances .state.good')")
        await tab.press("Tab")
        assert await tab.value("document.activeElement.className") == "skip"
        scene.fleet.member("hp-0").condition = Condition.LOST
        scene.fleet.member("hp-0").reason = "ended by signal 9"
        scene.clock.now_s += 1.0
        await tab.until("document.querySelector('#instances .state.bad')")
        assert "lost" in await tab.text("#instances tr:nth-child(2)")
        assert "ended by signal 9" in await tab.text("#instances tr:nth-child(2)")
        assert await tab.text("#verdict") == "1 of 2 instances ready"
        assert await tab.value("document.activeElement.className") == "skip", "the focus stays where it was"
        await tab.press("p")
        assert await tab.value("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
        asked = await tab.value("performance.getEntriesByType('resource').length")
        scene.fleet.member("hp-0").condition = Condition.READY
        scene.clock.now_s += 1.0
        await tab.value("new Promise((wake) => setTimeout(wake, 1500))")
        assert await tab.value("performance.getEntriesByType('resource').length") <= asked + 1
        assert "lost" in await tab.text("#instances tr:nth-child(2)")
        await tab.press("p")
        await tab.until("document.querySelectorAll('#instances .state.good').length === 2")


async def test_it_says_when_the_gateway_is_gone_and_comes_back_with_it(scene: Scene, tab: Tab) -> None:
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelector('#instances tr')")
        assert await tab.value("document.querySelector('#trouble').hidden")
    await tab.until("!document.querySelector('#trouble').hidden")
    assert (await tab.text("#trouble")).startswith("The gateway cannot be reached: it does not answer.")
    assert await tab.text("#verdict") == "No connection"
    assert await tab.text("#goodput") == "60.0 %", "the last figures stay"
    async with serving(app_of(scene), port=int(url.rpartition(":")[2])):
        await tab.until("document.querySelector('#trouble').hidden")
        assert await tab.text("#verdict") == "Ready, and many requests are late"


async def test_behind_a_real_gateway_with_keys_it_shows_what_a_client_called_itself(tab: Tab) -> None:
    keys = Keys({b"s3cret": ""})
    async with gateway(GatewayOptions(keys=keys, drain_s=0.1)) as url, aiohttp.ClientSession() as session:
        headers = {"Authorization": "Bearer s3cret", "x-tenant": EVIL, "x-slo-ttft-ms": "60000"}
        body = {"model": MODEL, "prompt": "one", "max_tokens": 3}
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
        await tab.open(url.replace("://", "://people:s3cret@") + "/dashboard")
        await tab.until("document.querySelector('#classes tr')")
        assert await tab.text("#classes th") == EVIL
        assert await tab.text("#goodput") == "100 %"
        assert await tab.text("#verdict") == "Ready"
        assert await tab.text("#model") == MODEL
        assert await tab.value("window.hacked === undefined")
        assert tab.complaints == []


EXPLAINED = {
    "gateway": {
        "id": EVIL,
        "at": 1.0,
        "outcome": "finished",
        "met": False,
        "instances": ["lp-0", "hp-0"],
        "prefill_s": None,
        "ttft_s": 3.0,
        "tbt_s": 0.05,
        "lasted_s": 3.45,
        "tokens": 10,
        "moves": 1,
        "resumes": 0,
        "slo": "ttft=1s",
        "tenant": EVIL,
    },
    "unanswered": [{"instance": "hp-0", "why": EVIL}],
}


def explained_app(scene: Scene) -> Starlette:
    """The page, and an engine's account of whatever request is asked about."""
    from_engine = displaced_scene()
    found = explain(from_engine.trail, "a", from_engine.now_s)
    assert found is not None
    told = {**told_data(found.story, found), "text": told_text(found.story, found), "instance": "lp-0"}

    async def answer(request: Request) -> JSONResponse:
        if request.path_params["id"] != EVIL:
            return JSONResponse({}, status_code=404)
        return JSONResponse({**EXPLAINED, "requests": [{**told, "id": EVIL}]})

    return Starlette(routes=[*dashboard_routes(scene.dashboard), Route("/explain/{id:path}", answer)])


async def test_a_request_that_is_chosen_is_explained(scene: Scene, tab: Tab) -> None:
    ended = scene.offer(tenant=EVIL)
    ended.id = EVIL
    scene.clock.now_s += 3.45
    scene.accounts.end(ended, Outcome.FINISHED, scene.clock.now_s)
    async with serving(explained_app(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelectorAll('#recent tr').length === 6")
        assert await tab.value("document.querySelector('#explained').hidden")
        assert (await tab.text("#recent tr")).startswith(EVIL)
        await tab.value("document.querySelector('#recent button').click()")
        await tab.until("document.querySelector('#explained pre')")
        assert await tab.text("#explained-title") == f"Request {EVIL}"
        head = await tab.text("#explained-head")
        assert head.startswith("Seen here: finished, not in time at lp-0, then hp-0; first token after 3.0 s")
        assert f"hp-0 cannot tell: {EVIL}." in head
        assert await tab.text("#explained h3") == "At lp-0: waited 2.0 s in all, displaced 1 time"
        assert "behind b for 2 s; 0 overtook it" in await tab.text("#explained pre")
        assert await tab.value("document.querySelectorAll('#explained .bar span').length") == 2
        assert "none left" in await tab.value("document.querySelector('#explained .slack-line').title")
        assert await tab.value("window.hacked === undefined")
        assert await tab.value(NAMELESS) == []
        assert await tab.value(LOW_CONTRAST) == []
        await tab.value("document.querySelector('#explained-close').click()")
        assert await tab.value("document.querySelector('#explained').hidden")
        await tab.value("document.querySelectorAll('#recent button')[1].click()")
        await tab.until(
            "document.querySelector('#explained-head').textContent.startsWith('The request is too long ago')"
        )


async def test_a_shadow_is_shown_beside_what_really_came(scene: Scene, tab: Tab) -> None:
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelector('#instances tr')")
        assert await tab.value("document.querySelector('#shadow').hidden")
        scene.shadows.take(REPORT)
        scene.clock.now_s += 1.0
        await tab.until("document.querySelectorAll('#shadows tr').length === 3")
        assert await tab.text("#shadows tr:nth-child(3)") == "sarathi 75.0 % 2.5 s 300 ms – 41"
        assert "off by 3.0 % (median)" in await tab.text("#shadow-note")
        assert await tab.value("document.querySelector('#shadow-doubt').hidden")
        scene.shadows.take(DOUBTED)
        scene.clock.now_s += 1.0
        await tab.until("!document.querySelector('#shadow-doubt').hidden")
        said = f"Cannot judge other policies by this simulation: {DOUBT}."
        assert await tab.text("#shadow-doubt") == said
        assert await tab.value("document.querySelectorAll('#shadows tr').length") == 2
        assert await tab.value("window.hacked === undefined")
        assert tab.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_can_be_read_by_everybody(scene: Scene, tab: Tab, scheme: str) -> None:
    await tab.look(scheme=scheme)
    async with serving(app_of(scene)) as url:
        await tab.open(f"{url}/dashboard")
        await tab.until("document.querySelector('#instances tr')")
        assert await tab.value(LOW_CONTRAST) == []
        assert await tab.value(NAMELESS) == []
        assert await tab.value("[...document.querySelectorAll('th')].every((head) => head.scope)")
        await tab.look(width=360, scheme=scheme)
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await tab.value(overflow) == 0, "only tables scroll sideways"
