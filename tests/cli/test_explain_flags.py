"""`headway explain` and `headway shadow` as commands; what they say of real servers is in tests/engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest

from headway.cli.explain import _tell
from headway.cli.shadow import _Shadowing, report_text
from headway.errors import ConfigError
from headway.gateway.book.shadow_board import ShadowFigures, ShadowState
from headway.http_client import open_session
from headway.lab.shadow import CONTROL, LIVE
from tests.cli.conftest import Headway, Refused
from tests.gateway.shadow_reports import DOUBT, DOUBTED
from tests.lab.test_shadow import answer, served

TEXT = "request mine: 4 prompt tokens, 2 output tokens, finished"
ANSWERS: dict[str, Any] = {
    "/v1/explain": {
        "requests": [
            {"id": "mine", "at": 1.8e9, "outcome": "finished", "ttft_s": 0.25, "lasted_s": 3.0, "tokens": 7},
            {
                "id": "other",
                "at": 1.8e9,
                "outcome": "shed",
                "ttft_s": None,
                "lasted_s": 1.0,
                "output_tokens": 0,
            },
        ]
    },
    "/v1/explain/mine": {
        "gateway": {"outcome": "finished", "instances": ["lp-0", "hp-0"], "ttft_s": 0.25, "lasted_s": 3.0},
        "requests": [{"instance": "hp-0", "text": TEXT}],
        "unanswered": [{"instance": "lp-0", "why": "it is no longer there"}],
    },
    "/v1/explain/batch_req_1": {
        "gateway": {
            "outcome": "finished",
            "instances": ["0"],
            "ttft_s": 9.0,
            "lasted_s": 9.0,
            "batch": {"batch": "batch_7", "line": 12, "custom_id": "c", "expires_at": 1_800_000_000},
        },
        "requests": [],
    },
}


class Handler(BaseHTTPRequestHandler):
    answers: ClassVar = ANSWERS

    def do_GET(self) -> None:
        answer = self.answers.get(self.path)
        body = json.dumps(answer or {"error": {"message": f"nothing known of {self.path}"}}).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def url() -> Iterator[str]:
    """A server that explains one request."""
    with serving(Handler) as url:
        yield url


@pytest.fixture
def told_url() -> Iterator[str]:
    """A server that tells shadows of 250 requests."""

    class Telling(Handler):
        answers: ClassVar = {"/v1/shadow/0-0": {"windows": [answer(*served("vllm"))]}}

    with serving(Telling) as url:
        yield url


def test_a_request_is_told_of_at_the_gateway_and_at_each_instance(headway: Headway, url: str) -> None:
    code, out, err = headway("explain", "--url", url, "mine")
    assert code == 0
    assert out.splitlines() == [
        "at the gateway: finished, sent to lp-0, then hp-0; first token 250 ms and end 3 s after it came",
        "",
        "at hp-0:",
        TEXT,
        "",
    ]
    assert err == "lp-0 cannot tell: it is no longer there\n"
    assert (
        json.loads(headway("explain", "--url", f"{url}/v1", "mine", "--json").out)
        == ANSWERS["/v1/explain/mine"]
    )


def test_a_request_of_a_batch_is_told_with_its_window(headway: Headway, url: str) -> None:
    code, out, _ = headway("explain", "--url", url, "batch_req_1")
    assert code == 0
    first, second = out.splitlines()[:2]
    assert first.startswith("line 12 (c) of batch_7, whose window closes on ")
    assert second.startswith("at the gateway: finished, sent to 0; ")


def test_without_an_id_the_last_requests_are_listed(headway: Headway, url: str) -> None:
    code, out, _ = headway("explain", "--url", url)
    assert code == 0
    head, first, second = out.splitlines()
    assert head.split() == ["came", "ended", "first", "token", "whole", "tokens", "id"]
    assert first.split()[1:] == ["finished", "250", "ms", "3", "s", "7", "mine"]
    assert second.split()[1:] == ["shed", "never", "1", "s", "0", "other"]


@pytest.mark.parametrize(("program", "said"), [("", "0"), ("s", "0 for program s")])
def test_a_gateway_tells_of_a_program(program: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {"outcome": "finished", "program": program, "instances": ["0"], "ttft_s": 0.5, "lasted_s": 2.0}
    _tell({"gateway": seen, "requests": []})
    assert f"at the gateway: finished, sent to {said}; first token 500 ms" in capsys.readouterr().out


def test_what_cannot_be_explained_is_one_line(refused: Refused, url: str) -> None:
    assert refused("explain", "--url", url, "x") == "error: nothing known of /v1/explain/x\n"
    assert "accepted: a base URL" in refused("explain", "--url", "nowhere", "x")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--policies", ""), "--policies is ''; accepted: names of the preset table"),
        (("--policies", ","), "--policies is ','; accepted: names of the preset table"),
        ((), "--policies is missing; add --policies A,B,..., --scale MIN..MAX, or both"),
        (("--scale", "2..1"), "--scale is '2..1'; accepted: N or MIN..MAX"),
        (("--policies", "nope"), "unknown policy 'nope'; accepted: "),
        (("--policies", "edf", "--window", "5"), "--window is 5 and --every 60; accepted: 10 s or more"),
        (("--policies", "edf", "--every", "0"), "accepted: 10 s or more, and 1 s or more"),
        (("--policies", "edf", "--every", "nan"), "--every nan; accepted"),
        (("--policies", "edf", "--window", "nan"), "--window is nan"),
        (("--policies", "edf", "--once"), "nothing known of /v1/shadow/0-0"),
    ],
)
def test_a_shadow_that_cannot_be_is_refused(
    refused: Refused, url: str, flags: tuple[str, ...], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda niceness: 0)
    assert complaint in refused("shadow", "--url", url, *flags)


DOWN = "http://127.0.0.1:1"


def test_a_server_that_is_down_is_left_out_of_the_one_report_and_one_named_twice_counts_once(
    headway: Headway, told_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda niceness: 0)
    urls = [word for url in (told_url, DOWN, f"{told_url}/", f"{told_url}/v1") for word in ("--url", url)]
    code, out, err = headway("shadow", *urls, "--policies", "sjf", "--once", "--json")
    assert code == 0
    assert json.loads(out)["requests"] == 250
    [line] = err.splitlines()
    assert line.startswith(f"{DOWN}: {DOWN}/v1/shadow/0-0 does not answer")


def test_a_shadow_of_a_fleet_says_how_many_such_servers_are_needed(
    headway: Headway, told_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many requests as one engine serves late, and four serve in time.
    monkeypatch.setattr("os.nice", lambda niceness: 0)
    code, out, _ = headway("shadow", "--url", told_url, "--scale", "1..4", "--once", "--json")
    assert code == 0
    advice = json.loads(out)["advice"]
    assert 1 < advice["needed"] <= 4
    assert (
        advice["replays"]["4"]["goodput"]
        > advice["replays"]["1" if "1" in advice["replays"] else "2"]["goodput"]
    )
    code, out, _ = headway("shadow", "--url", told_url, "--scale", "1..4", "--once")
    assert f"{advice['needed']} instances needed" in out


async def test_a_shadow_asks_those_it_is_told_of_and_keeps_what_others_told(told_url: str) -> None:
    shadowing = _Shadowing(["-"], ["edf"], 300.0, None, True, None)
    async with open_session(None) as session:
        shadowing._ask_those([told_url])
        await shadowing._ask_all(session)
        shadowing._ask_those([DOWN])
        assert list(shadowing._feeds) == [DOWN]
        [gone] = shadowing._gone
        assert len(gone.ended) == 250
        shadowing._ask_those([told_url, DOWN])
        assert not shadowing._feeds[told_url].ended, "it may be another server by now"


async def test_a_server_that_is_let_go_as_it_is_asked_does_not_end_the_shadow(told_url: str) -> None:
    shadowing = _Shadowing([told_url], ["edf"], 300.0, None, True, None)
    async with open_session(None) as session:
        asking = asyncio.create_task(shadowing._ask_all(session))
        await asyncio.sleep(0)  # its questions are about to be asked
        shadowing._ask_those([DOWN])
        await asking
    assert list(shadowing._feeds) == [DOWN]


def test_what_servers_told_that_are_gone_is_kept_no_longer_than_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    shadowing = _Shadowing([], ["edf"], 300.0, None, True, None)
    for number in range(5):
        shadowing._ask_those([f"http://10.0.0.{number}:8000"])
        for feed in shadowing._feeds.values():
            feed.heard_s = now_s
        now_s += 500.0
    assert len(shadowing._gone) == 1


def test_where_no_server_answers_there_is_no_report(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda niceness: 0)
    urls = ("--url", DOWN, "--url", "http://127.0.0.1:2")
    said = refused("shadow", *urls, "--policies", "sjf", "--once").splitlines()
    assert len(said) == 3
    assert said[-1] == "error: no server told a shadow anything, of 2 asked"


async def test_a_server_that_is_silent_is_told_of_once_and_left_out_of_reports(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shadowing = _Shadowing([url], ["edf"], 300.0, None, True, None)
    async with open_session(None) as session:
        for _ in range(2):
            await shadowing._ask_patiently(session, url)
    assert capsys.readouterr().err == f"{url}: nothing known of /v1/shadow/0-0\n"
    with pytest.raises(ConfigError, match="no engine has answered yet"):
        shadowing._report()


@pytest.mark.parametrize("known_s", [None, 50.5])
def test_a_report_for_people(known_s: float | None) -> None:
    figures = ShadowFigures(goodput=0.5, mean_jct_s=4.0, finished=40, mean_ttft_s=1.5, p99_ttft_s=None)
    report = ShadowState(
        at=1.8e9,
        window_s=300.0,
        requests=44,
        assumed=4,
        missed=2,
        step_error=0.031,
        figures={LIVE: figures, CONTROL: figures},
        failed={"x": "it has no policy"},
        known_s=known_s,
    )
    known = [
        "only what came in the last 50.5 s is known, its first half leads up to the window: "
        "a server keeps its last ended requests (--explain N), a shadow that goes on asking comes to know more"
    ]
    assert report_text(report).splitlines() == [
        "44 requests of the last 300 s; simulated step times are off by 3.1% (median)",
        "                           goodput   mean JCT  mean TTFT   p99 TTFT  finished",
        "live                         50.0%        4 s      1.5 s          -        40",
        "live policy, simulated       50.0%        4 s      1.5 s          -        40",
        "x: it has no policy",
        "4 did not finish live; their lengths are assumed",
        *([] if known_s is None else known),
        "2 ended unseen: the server keeps fewer than came between two questions",
    ]


def test_a_report_that_cannot_judge_says_so_before_its_figures() -> None:
    report = msgspec.json.decode(DOUBTED, type=ShadowState)
    _, said, _, *rows = report_text(report).splitlines()
    assert said == f"cannot judge other policies by this simulation: {DOUBT}"
    assert [row.split()[0] for row in rows[:3]] == ["live", "live", "<i>broken</i>:"]


@pytest.mark.parametrize(("goodput", "said"), [(None, True), (0.0, False)])
def test_a_report_says_who_goes_by_targets_that_no_request_had(goodput: float | None, said: bool) -> None:
    figures = ShadowFigures(goodput=goodput, mean_jct_s=4.0, finished=40, mean_ttft_s=1.5, p99_ttft_s=None)
    report = ShadowState(
        at=1.8e9,
        window_s=300.0,
        requests=40,
        assumed=0,
        missed=0,
        step_error=0.031,
        figures=dict.fromkeys((LIVE, CONTROL, "sjf", "edf"), figures),
        failed={},
    )
    line = "no request has a target (--slo-ttft, --slo-tbt), so first come is first served: edf"
    assert (report_text(report).splitlines()[-1] == line) is said
