"""The shadow beside a gateway: its process, its reports, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headway.cli.serve_gateway import _command, shadow_beside
from headway.gateway.book.shadow_board import ShadowBoard
from headway.gateway.fleet.member import Condition, Member
from headway.gateway.fleet.scaling import FleetScaling
from headway.routing.scaling import Advice, Bounds, Scaler
from tests.cli.test_serve_gateway import is_alive, wait_for
from tests.gateway.fleets import running, until
from tests.gateway.shadow_reports import REPORT
from tests.gateway.upstream import upstream

PRINTS = f"import sys, time; sys.stdout.write('no JSON\\n' + {REPORT.decode()!r} + '\\n'); sys.stdout.flush()"


async def beside(program: str, board: ShadowBoard, scaling: FleetScaling | None = None) -> asyncio.Task[None]:
    """The work beside the gateway, with another program in place of the command."""
    async with upstream("a") as one, running(Member("a", url=one.url)) as fleet:
        command = [sys.executable, "-c", program]
        task = asyncio.create_task(shadow_beside(fleet, board, command, "k3y", scaling))
        await until(lambda: board.report is not None)
        if "sleep" in program:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return task


@pytest.mark.parametrize(
    ("policies", "bounds", "words"),
    [
        (("sjf", "edf"), None, ("--policies", "sjf,edf")),
        ((), Bounds(1, 4), ("--scale", "1..4", "--window", "120", "--every", "20")),
    ],
)
def test_what_is_run(policies: tuple[str, ...], bounds: Bounds | None, words: tuple[str, ...]) -> None:
    python, *command = _command(policies, bounds, 120.0)
    assert python == sys.executable
    assert command == ["-m", "headway.cli", "shadow", "--json", "--url", "-", *words]


async def test_its_reports_are_on_the_board_and_serving_goes_on_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    board = ShadowBoard()
    task = await beside(PRINTS, board)
    assert board.report is not None
    assert board.report.requests == 44
    assert "the report of a shadow is not understood" in caplog.text
    assert "the shadow ended with code 0; serving goes on without it" in caplog.text
    assert task.exception() is None


async def test_it_ends_with_the_gateway() -> None:
    task = await asyncio.wait_for(beside(f"{PRINTS}; time.sleep(600)", ShadowBoard()), 30)
    assert task.cancelled()


async def test_it_is_told_of_instances_as_they_come_and_go_and_its_advice_is_heard(tmp_path: Path) -> None:
    # Says what it reads first, and reports once it has read a second line, which the instances' change brings.
    advised = json.dumps({**json.loads(REPORT), "advice": {"needed": 2, "low": 1, "high": 2}})
    told = tmp_path / "told"
    reads = f"import sys; open({str(told)!r}, 'w').write(sys.stdin.readline()); sys.stdin.readline()"
    program = f"{reads}; print({advised!r})"
    board = ShadowBoard()
    async with upstream("a") as one, upstream("b") as two:
        members = [Member("a", url=one.url), Member("b", url=two.url)]
        async with running(*members) as fleet:
            scaling = FleetScaling(fleet, Scaler(Bounds(1, 2)))
            command = [sys.executable, "-c", program]
            task = asyncio.create_task(shadow_beside(fleet, board, command, None, scaling))
            await until(told.exists)
            members[1].condition = Condition.STOPPED
            await task
    assert told.read_text().split() == [one.url, two.url]
    assert scaling.advice == Advice(needed=2, low=1, high=2)


# A gateway as far as its shadow goes, and a shadow that says who it is.
OWNER = """
import asyncio, sys
import uvloop
from headway.cli.serve_gateway import _run
from headway.gateway.book.shadow_board import ShadowBoard

shadow = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
command = [sys.executable, "-c", shadow, sys.argv[1]]
uvloop.run(_run(command, ShadowBoard(), None, lambda: (), lambda: None))
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


async def test_a_shadow_that_cannot_be_run_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with upstream("a") as one, running(Member("a", url=one.url)) as fleet:
        await shadow_beside(fleet, ShadowBoard(), ["/nowhere/headway"], None)
    assert "the shadow is given up; serving goes on without it" in caplog.text


async def test_a_server_that_is_down_is_told_of_too(tmp_path: Path, unused_tcp_port: int) -> None:
    down, told = f"http://127.0.0.1:{unused_tcp_port}", tmp_path / "told"
    program = f"import sys; open({str(told)!r}, 'w').write(sys.stdin.readline())"
    async with upstream("a") as one, running(Member("a", url=one.url), Member("b", url=down)) as fleet:
        await shadow_beside(fleet, ShadowBoard(), [sys.executable, "-c", program], None)
        assert fleet.names() == ("a",)
    assert told.read_text().split() == [one.url, down]
