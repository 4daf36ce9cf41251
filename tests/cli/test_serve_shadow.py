"""The shadow beside a gateway: its process, its reports, and its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headway.cli import serve_gateway as serve_shadow
from headway.cli.serve_gateway import shadow_beside
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.member import Member
from tests.cli.test_serve_gateway import is_alive, wait_for
from tests.gateway.fleets import running, until
from tests.gateway.shadow_reports import REPORT
from tests.gateway.upstream import upstream

PRINTS = f"import sys, time; sys.stdout.write('no JSON\\n' + {REPORT.decode()!r} + '\\n'); sys.stdout.flush()"


async def beside(program: str, board: ShadowBoard, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[None]:
    """The work beside the gateway, with another program in place of the command."""
    seen: list[list[str]] = []

    def command(urls: list[str], policies: list[str], every_s: float) -> list[str]:
        seen.append(serve_command(urls, policies, every_s))
        return [sys.executable, "-c", program]

    serve_command = serve_shadow._command
    monkeypatch.setattr(serve_shadow, "_command", command)
    async with upstream("a") as one, running(Member("a", url=one.url)) as fleet:
        task = asyncio.create_task(shadow_beside(fleet, board, ("sjf", "edf"), "k3y"))
        await until(lambda: board.report is not None)
        assert seen == [
            [
                *(sys.executable, "-m", "headway.cli", "shadow", "--json", "--every", "60"),
                *("--url", one.url, "--policies", "sjf,edf"),
            ]
        ]
        if "sleep" in program:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return task


async def test_its_reports_are_on_the_board_and_serving_goes_on_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = ShadowBoard()
    task = await beside(PRINTS, board, monkeypatch)
    assert board.report is not None
    assert board.report.requests == 44
    assert "the report of a shadow is not understood" in caplog.text
    assert "the shadow ended with code 0; serving goes on without it" in caplog.text
    assert task.exception() is None


async def test_it_ends_with_the_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    task = await asyncio.wait_for(beside(f"{PRINTS}; time.sleep(600)", ShadowBoard(), monkeypatch), 30)
    assert task.cancelled()


# A gateway as far as its shadow goes, and a shadow that says who it is.
OWNER = """
import asyncio, sys
import uvloop
from headway.cli.serve_gateway import _run
from headway.gateway.book.shadow_board import ShadowBoard

shadow = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
uvloop.run(_run([sys.executable, "-c", shadow, sys.argv[1]], ShadowBoard(), None))
"""


def test_it_ends_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(file)])
    wait_for(lambda: file.exists() and file.read_text().endswith("\n"))
    shadow = int(file.read_text())
    assert os.getpgid(shadow) == shadow, "Ctrl-C of the owner's terminal would reach it"
    owner.kill()
    owner.wait()
    wait_for(lambda: not is_alive(shadow))


# A gateway that ends as soon as its shadow runs; the shadow tells how the one instance is when it has to end.
ENDS = """
import asyncio, os, signal, sys
from headway.cli import serve_gateway
from headway.cli.serve_layout import read_layout
from headway.cli.serve_site import Site
from headway.gateway.fleet.supervisor import FleetOptions
from headway.gateway.http.options import GatewayOptions

async def shadow(fleet, *_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(600)
    finally:
        print(fleet.members[0].condition.value)

serve_gateway.shadow_beside = shadow
url, port = sys.argv[1:]
site = Site(read_layout(join=(url,)), ("127.0.0.1", int(port)), GatewayOptions(), FleetOptions(), shadows=("sjf",))
sys.exit(serve_gateway.run_gateway(site))
"""


async def test_it_ends_before_the_instances_it_asks(unused_tcp_port: int) -> None:
    async with upstream("a") as one:
        words = [sys.executable, "-c", ENDS, one.url, str(unused_tcp_port)]
        gateway = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        said, _ = await gateway.communicate()
    assert said not in (b"", b"stopped\n")


async def test_a_shadow_that_cannot_be_run_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve_shadow, "_command", lambda urls, policies, every_s: ["/nowhere/headway"])
    async with upstream("a") as one, running(Member("a", url=one.url)) as fleet:
        await shadow_beside(fleet, ShadowBoard(), ("sjf",), None)
    assert "the shadow is given up; serving goes on without it" in caplog.text


async def test_a_server_that_is_down_keeps_no_shadow_waiting_and_has_its_own_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    seen: list[list[str]] = []

    def command(urls: list[str], policies: list[str], every_s: float) -> list[str]:
        seen.append(urls)
        return [sys.executable, "-c", ""]

    monkeypatch.setattr(serve_shadow, "_command", command)
    down = f"http://127.0.0.1:{unused_tcp_port}"
    async with upstream("a") as one, running(Member("a", url=one.url), Member("b", url=down)) as fleet:
        await shadow_beside(fleet, ShadowBoard(), ("sjf",), None)
        assert fleet.names() == ("a",)
    assert seen == [[one.url, down]]
