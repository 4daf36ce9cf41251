from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from importlib import resources

import aiohttp
import msgspec
import pytest
from starlette.applications import Starlette

from headway.core.job import Job
from headway.core.slo import Slo
from headway.gateway.book.accounts import Refusal
from headway.gateway.book.classes import MAX_CLASSES, OTHER
from headway.gateway.book.dashboard import MOST_CLASSES, dashboard_routes, slack_bands
from headway.gateway.book.dashboard_state import SLACK_BANDS, DashboardState
from headway.gateway.fleet import kv_figures
from headway.gateway.fleet.member import Condition
from tests.gateway.dashboard_scene import WALL_S, Scene
from tests.gateway.loopback import serving


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aiohttp.ClientSession() as session:
        yield Scene(session)


async def test_an_idle_gateway_shows_its_instances_and_no_share_of_nothing(scene: Scene) -> None:
    state = scene.state
    assert [(one.name, one.pool, one.condition) for one in state.instances] == [
        ("lp-0", "lp", "starting"),
        ("hp-0", "hp", "starting"),
    ]
    assert state.overall.minute.goodput is None
    assert state.load.requests_per_s == 0.0
    assert set(state.overall.spark) == {None}
    assert state.classes == []


async def test_goodput_is_of_the_last_minute_and_of_five(scene: Scene) -> None:
    scene.serve(ttft_s=3.0)  # late: 1 s was wanted
    scene.dashboard.sample()
    scene.clock.now_s += 100.0
    scene.dashboard.sample()
    scene.serve(ttft_s=0.5)
    minute, five_minutes = scene.state.overall.minute, scene.state.overall.five_minutes
    assert (minute.offered, minute.finished, minute.met, minute.goodput) == (1, 1, 1, 1.0)
    assert (five_minutes.offered, five_minutes.finished, five_minutes.met, five_minutes.goodput) == (
        2,
        2,
        1,
        0.5,
    )
    judged = [share for share in scene.state.overall.spark if share is not None]
    assert judged == [0.0, 1.0]


async def test_rates_are_over_the_time_there_is(scene: Scene) -> None:
    for _ in range(4):  # 0.55 s + 9 x 0.05 s = 1 s each
        scene.serve(ttft_s=0.55)
    load = scene.state.load
    assert load.requests_per_s == pytest.approx(4 / 4.0)
    assert load.output_tokens_per_s == pytest.approx(40 / 4.0)
    assert sum(load.requests_spark) * 5.0 == pytest.approx(4)


async def test_each_pair_of_targets_and_tenant_has_a_row(scene: Scene) -> None:
    scene.serve(ttft_s=0.5, tenant="b")
    scene.serve(ttft_s=0.5, tenant="a")
    scene.serve(ttft_s=3.0, tenant="a", slo=Slo(ttft_s=5.0))
    rows = {(row.slo, row.tenant): row.minute.met for row in scene.state.classes}
    assert rows == {("ttft=1s tbt=0.1s", "a"): 1, ("ttft=1s tbt=0.1s", "b"): 1, ("ttft=5s", "a"): 1}


async def test_a_class_that_was_folded_is_no_burst_of_others_and_begins_anew(scene: Scene) -> None:
    for _ in range(3):
        scene.serve(ttft_s=0.1, tenant="folded")
    for tenant in range(MAX_CLASSES):
        scene.serve(ttft_s=0.1, tenant=f"t{tenant}")
    for _ in range(2):
        scene.serve(ttft_s=0.1, tenant="folded")
    state = scene.state
    assert state.overall.minute.offered == MAX_CLASSES + 5
    rows = {row.tenant: row.minute for row in state.classes}
    assert rows["folded"].offered == rows["folded"].finished == 2
    assert all(span.offered >= span.finished >= 0 for span in rows.values())
    assert OTHER not in rows or rows[OTHER].offered == 0


async def test_of_many_classes_the_busiest_are_shown(scene: Scene) -> None:
    for tenant in range(MOST_CLASSES + 3):
        scene.serve(ttft_s=0.1, tenant=f"t{tenant}")
    for _ in range(2):
        scene.serve(ttft_s=0.1, tenant="t1")
        scene.serve(ttft_s=0.1, tenant="zz")
    state = scene.state
    assert len(state.classes) == MOST_CLASSES
    assert {"t1", "zz"} <= {row.tenant for row in state.classes}
    assert state.classes_left_out == 4
    assert state.overall.minute.offered == MOST_CLASSES + 7


async def test_instances_show_what_they_have_and_how_fast_they_are(scene: Scene) -> None:
    for ttft_s in (0.2, 0.4, 0.6):
        scene.serve(ttft_s=ttft_s)
    scene.offer()
    scene.fleet.member("hp-0").condition = Condition.LOST
    scene.fleet.member("hp-0").reason = "ended by signal 9"
    scene.clock.now_s += 7.0
    scene.fleet.member("lp-0").since_s = scene.clock.now_s - 4.0
    low, high = scene.state.instances
    assert (low.in_flight, low.waiting, low.for_s) == (1, 1, 4.0)
    assert [low.ttft_p50_s, low.ttft_p99_s] == pytest.approx([0.4, 0.6])
    assert [low.tbt_p50_s, low.tbt_p99_s] == pytest.approx([0.05, 0.05])
    assert (high.condition, high.reason, high.ttft_p50_s) == ("lost", "ended by signal 9", None)
    assert (high.tbt_p50_s, high.kv_used, high.cache_found) == (None, None, None)


async def test_what_engines_say_of_their_kv_is_shown_while_the_page_is_looked_at(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {
        "http://lp": b'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        b'vllm:prefix_cache_queries_total{engine="0"} 100.0\nvllm:prefix_cache_hits_total{engine="0"} 40.0\n',
        "http://hp": b"other_server_metrics 1\n",
    }

    async def told(_session: object, url: str, _timeout_s: float) -> bytes:
        return answers[url]

    monkeypatch.setattr(kv_figures, "read_metrics", told)
    for member in scene.fleet.members:
        member.condition = Condition.READY

    async def shown() -> list[tuple[float | None, float | None]]:
        await scene.dashboard.kv.ask()
        return [(one.kv_used, one.cache_found) for one in scene.state.instances]

    assert await shown() == [(0.5, 0.4), (None, None)]
    answers["http://lp"] = answers["http://lp"].replace(b"100.0", b"200.0").replace(b"40.0", b"130.0")
    assert await shown() == [(0.5, 0.9), (None, None)]  # of the last hundred lookups, ninety
    assert await shown() == [(0.5, 0.9), (None, None)]  # nothing was looked up since
    answers["http://lp"] = answers["http://lp"].replace(b"200.0", b"10.0").replace(b"130.0", b"1.0")
    assert await shown() == [(0.5, 0.1), (None, None)]  # started again
    answers["http://hp"] = b"vllm:kv_cache_usage_perc much\n"
    assert await shown() == [(0.5, 0.1), (None, None)]


async def test_engines_are_asked_nothing_once_the_page_is_closed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def ask() -> None:
        asked.append(scene.clock.now_s)
        scene.clock.now_s += 10.0

    monkeypatch.setattr(scene.dashboard.kv, "ask", ask)
    monkeypatch.setattr(kv_figures, "ASK_EVERY_S", 0.0)
    assert scene.state.instances
    began_s = scene.clock.now_s
    watching = asyncio.create_task(scene.dashboard.kv.run())
    for _ in range(20):
        await asyncio.sleep(0)
    watching.cancel()
    assert asked == [began_s, began_s + 10.0]  # the next would be 20 s after the last look


async def test_the_root_leads_to_the_page(scene: Scene) -> None:
    app = Starlette(routes=list(dashboard_routes(scene.dashboard)))
    async with serving(app) as url, aiohttp.request("GET", f"{url}/") as answer:
        assert (answer.status, answer.url.path) == (200, "/dashboard")


async def test_a_standing_ticket_is_shown_until_it_is_used(scene: Scene) -> None:
    names = ("lp-0", "hp-0")
    first, second = (Job(id=name, arrival_s=0.0, num_prompt_tokens=1, max_output_tokens=1) for name in "xy")
    assert scene.router.route(first, names) == "lp-0"
    assert [one.ticket for one in scene.state.instances] == [False, True]
    assert scene.router.route(second, names) == "hp-0"
    assert not any(one.ticket for one in scene.state.instances)


async def test_hand_offs_are_counted_by_pair_and_lately(scene: Scene) -> None:
    scene.accounts.hand_off(scene.offer(), "hp-0")
    scene.dashboard.sample()
    scene.clock.now_s += 90.0
    scene.dashboard.sample()
    scene.accounts.hand_off(scene.offer(), "hp-0")
    (pair,) = scene.state.hand_offs
    assert (pair.source, pair.target, pair.total, pair.minute) == ("lp-0", "hp-0", 2, 1)


async def test_the_door_tells_how_many_wait_and_how_long_the_first_has(scene: Scene) -> None:
    assert (scene.state.door.waiting, scene.state.door.oldest_s) == (0, None)
    assert scene.state.max_queue == 8
    scene.offer(instance="")
    scene.clock.now_s += 2.0
    scene.offer(instance="")
    assert (scene.state.door.waiting, scene.state.door.oldest_s) == (2, 2.0)


def test_slack_falls_into_bands() -> None:
    bands = slack_bands([-0.2, 0.0, 0.1, 0.25, 0.5, 0.74, 0.75, 1.0, None])
    assert [(band.name, band.waiting) for band in bands] == list(
        zip(SLACK_BANDS, (1, 2, 1, 2, 2, 1), strict=True)
    )


async def test_those_who_wait_are_in_the_bands_and_those_in_flight_judged_so_far(scene: Scene) -> None:
    scene.offer()
    scene.offer(slo=Slo(ttft_s=10.0))
    scene.clock.now_s += 2.0  # the first is late, the second has 80 % left
    state = scene.state
    assert [band.waiting for band in state.slack] == [1, 0, 0, 0, 1, 0]
    assert state.in_time_so_far == 1


async def test_refusals_have_the_time_of_day(scene: Scene) -> None:
    scene.accounts.refuse(Refusal(scene.clock.now_s, 429, "queue_full", "8 wait already", "none", "a"))
    scene.clock.now_s += 5.0
    (refusal,) = scene.state.refusals
    assert refusal.at_s == WALL_S + 100.0
    assert (refusal.status, refusal.code, refusal.reason) == (429, "queue_full", "8 wait already")


async def test_times_stay_as_they_are_while_the_clocks_go_on(scene: Scene) -> None:
    """The page knows its rows by them: others would take the focus from a button once a second."""
    scene.accounts.refuse(Refusal(scene.clock.now_s, 429, "queue_full", "8 wait already", "none", "a"))
    scene.serve(ttft_s=0.5)
    scene.wall_ahead_s = 1e-6  # it is read a little later than the other clock
    before = scene.state
    scene.clock.now_s += 1.0
    scene.wall_ahead_s = 2e-6
    after = scene.state
    assert [one.at_s for one in before.recent] == [one.at_s for one in after.recent]
    assert [one.at_s for one in before.refusals] == [one.at_s for one in after.refusals]


async def test_many_who_look_share_one_state_for_half_a_second(scene: Scene) -> None:
    first = scene.dashboard.state_json()
    scene.offer()
    assert scene.dashboard.state_json() is first
    scene.clock.now_s += 0.5
    assert msgspec.json.decode(scene.dashboard.state_json(), type=DashboardState).instances[0].in_flight == 1


async def test_it_is_served_with_all_it_needs_and_nothing_from_outside(scene: Scene) -> None:
    app = Starlette(routes=list(dashboard_routes(scene.dashboard)))
    async with serving(app) as url, aiohttp.ClientSession() as client:
        async with client.get(f"{url}/dashboard/") as answer:
            page = await answer.text()
            assert answer.url.path == "/dashboard"
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        for name, kind in (("dashboard.css", "text/css"), ("dashboard.js", "text/javascript")):
            assert f'"dashboard/{name}"' in page
            async with client.get(f"{url}/dashboard/{name}") as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"].startswith(kind)
        async with client.get(f"{url}/dashboard/state") as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            state = msgspec.json.decode(await answer.read(), type=DashboardState)
    assert [one.name for one in state.instances] == ["lp-0", "hp-0"]


@pytest.mark.parametrize("name", ["dashboard.html", "dashboard.css", "dashboard.js", "draw.js", "explain.js"])
def test_pages_name_no_other_server_and_set_no_markup(name: str) -> None:
    text = (resources.files("headway.gateway.book") / name).read_text()
    assert re.findall(r"//[^\s/]+", text.replace("http://www.w3.org/2000/svg", "")) == []
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text
