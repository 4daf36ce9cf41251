"""Instances that are killed, frozen, slow, sick and back again: each a real process."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headway.errors import ConfigError, UpstreamError
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.health import NO_FACTS, health_problem, probing_session, stopped_process
from headway.gateway.fleet.member import Condition, LaunchedServer, Member
from headway.gateway.fleet.supervisor import FleetOptions
from headway.http_client import open_session
from tests.gateway.fleets import HASTY, QUICK, SmallServer, running, until
from tests.gateway.small_server import MODELS

NEVER_S = 1000.0

Small = Callable[[str], SmallServer]


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return lambda name: SmallServer(tmp_path, name)


def is_(member: Member, condition: Condition) -> Callable[[], bool]:
    return lambda: member.condition is condition


def process_of(member: Member) -> LaunchedServer:
    assert member.process is not None
    return member.process


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended; one that nobody has waited for yet has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- coming up ------------------------------------------------------------------------------------------------------


async def test_a_launched_instance_is_ready_when_it_answers(small: Small) -> None:
    server = small("lp-0")
    server.behave(starts_after_s=0.3)
    async with running(server.launched("lp")) as fleet:
        await until(lambda: fleet.members[0].process)
        assert (fleet.names(), fleet.member("lp-0").condition) == ((), Condition.STARTING)
        assert (fleet.facts.models, fleet.facts) == (b"", NO_FACTS)
        await fleet.until_settled()
        assert fleet.names() == ("lp-0",)
        assert fleet.member("lp-0").url == f"http://127.0.0.1:{server.port}"
        assert fleet.facts.models == MODELS.encode()
        facts = fleet.facts
        assert (facts.model, facts.limits, facts.version) == ("small", {"small": 4096}, "0.32.0")
        assert facts.is_vllm
        assert facts.is_headway


async def test_names_are_of_those_that_serve_in_the_order_given(small: Small) -> None:
    servers = [small(name) for name in ("b", "a", "c")]
    async with running(*(server.launched() for server in servers), options=HASTY) as fleet:
        await until(lambda: len(fleet.names()) == 3)
        assert fleet.names() == ("b", "a", "c")
        os.kill(process_of(fleet.member("a")).pid, signal.SIGSTOP)
        await until(lambda: fleet.names() == ("b", "c"))
        assert [member.name for member in fleet.members] == ["b", "a", "c"]


async def test_one_that_crashes_at_every_start_is_tried_again_and_says_why(small: Small) -> None:
    server = small("0")
    server.behave(crash="no memory for a block")
    async with running(server.launched()) as fleet:
        member = fleet.members[0]
        await until(lambda: member.reason == "ended with code 3: no memory for a block")
        await until(lambda: member.restarts >= 2)
        assert member.failures >= 2
        assert fleet.names() == ()
        server.behave()
        await until(is_(member, Condition.READY))
        assert (member.reason, member.loss.is_set()) == ("", False)


async def test_one_that_cannot_be_launched_says_why() -> None:
    def launch(_member: Member) -> LaunchedServer:
        raise UpstreamError("no port is free")

    async with running(Member("0", launch=launch)) as fleet:
        await until(lambda: fleet.members[0].failures >= 2)
        assert fleet.members[0].reason == "cannot be launched: no port is free"


async def test_one_that_is_never_ready_is_launched_anew(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    server = small("0")
    server.behave(starts_after_s=NEVER_S)
    async with running(server.launched(), options=replace(QUICK, start_s=2.0)) as fleet:
        member = fleet.members[0]
        await until(lambda: member.process)
        first = process_of(member).pid
        await until(lambda: member.failures >= 1)
        assert caplog.records[0].getMessage().startswith("0 is lost: not well for ")
        server.behave()
        await until(is_(member, Condition.READY))
        assert process_of(member).pid != first
        assert not is_alive(first)


async def test_what_is_no_openai_server_never_serves(small: Small) -> None:
    server = small("0")
    server.behave(models="<html>")
    async with running(server.launched()) as fleet:
        await until(lambda: "list of models" in fleet.members[0].reason)
        assert fleet.members[0].condition is Condition.STARTING


# ---- killed, frozen, sick -------------------------------------------------------------------------------------------


async def test_a_killed_instance_is_lost_and_launched_again(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(small("0").launched()) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        lost, killed = fleet.member("0").loss, process_of(member).pid
        os.kill(killed, signal.SIGKILL)
        await lost.wait()
        assert (member.condition, member.failures) == (Condition.LOST, 1)
        assert fleet.names() == ()
        await until(is_(member, Condition.READY))
        assert caplog.records[-1].getMessage() == "0 is launched again in 0.05 s: ended by signal 9"
        assert process_of(member).pid != killed
        assert member.restarts == 1
        assert lost.is_set()
        assert not fleet.member("0").loss.is_set()


async def test_a_broken_connection_is_looked_into_at_once(small: Small) -> None:
    patient = replace(QUICK, interval_s=NEVER_S)
    async with running(small("0").launched(), small("1").launched(), options=patient) as fleet:
        # The first check comes too early, and the next one would come too late.
        while len(fleet.names()) < 2:
            for member in fleet.members:
                fleet.suspect(member.name)
            await asyncio.sleep(0.02)
        os.kill(process_of(fleet.member("0")).pid, signal.SIGKILL)
        while not fleet.member("0").loss.is_set():
            fleet.suspect("0")
            await asyncio.sleep(0.02)
        assert fleet.names() == ("1",)
        fleet.suspect("no longer there")


async def test_a_frozen_instance_is_lost_and_welcome_when_it_wakes(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(small("0").launched(), options=HASTY) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        lost, pid = fleet.member("0").loss, process_of(member).pid
        os.kill(pid, signal.SIGSTOP)
        await lost.wait()
        assert member.condition is Condition.LOST
        assert caplog.records[-1].getMessage() == f"0 is lost: its process {pid} is stopped"
        os.kill(pid, signal.SIGCONT)
        await until(is_(member, Condition.READY))
        assert (process_of(member).pid, member.restarts) == (pid, 0)
        assert not fleet.member("0").loss.is_set()


async def test_one_that_is_launched_anew_loads_the_adapters_that_are_loaded(small: Small) -> None:
    server = small("0")
    posts = server.state_file.with_suffix(".posts")
    async with running(server.launched()) as fleet:
        await fleet.until_settled()
        for name in ("sql", "prose"):
            body = json.dumps({"lora_name": name, "lora_path": f"/{name}"}).encode()
            fleet.adapters.note("POST", "/v1/load_lora_adapter", body)
        fleet.adapters.note("POST", "/adapters", b'{"name": "aws", "src": "x"}')
        fleet.adapters.note("DELETE", "/adapters/aws", b"")
        fleet.adapters.note("POST", "/v1/unload_lora_adapter", b'{"lora_name": "prose"}')
        fleet.adapters.note("POST", "/pause", b"")
        fleet.adapters.note("POST", "/v1/load_lora_adapter", b"nonsense")
        assert not posts.exists()
        member = fleet.members[0]
        os.kill(process_of(member).pid, signal.SIGKILL)
        await until(lambda: member.restarts == 1 and member.condition is Condition.READY)
        assert posts.read_text() == '/v1/load_lora_adapter {"lora_name": "sql", "lora_path": "/sql"}\n'


async def test_a_child_of_an_instance_that_is_stopped_is_seen() -> None:
    """An API server goes on answering for an engine that is stopped."""
    parent = await asyncio.create_subprocess_exec(
        "sh", "-c", "sleep 1000 & echo $!; wait", stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    try:
        assert stopped_process(parent.pid) is None
        os.kill(child, signal.SIGSTOP)
        await until(lambda: stopped_process(parent.pid) == child)
    finally:
        os.kill(child, signal.SIGKILL)
        await parent.wait()
    assert stopped_process(parent.pid) is None


async def test_one_that_stays_frozen_is_launched_anew(small: Small) -> None:
    async with running(small("0").launched(), options=replace(HASTY, frozen_s=0.2)) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        frozen = process_of(member).pid
        os.kill(frozen, signal.SIGSTOP)
        await until(lambda: process_of(member).pid != frozen and member.condition is Condition.READY)
        assert not is_alive(frozen)
        assert member.restarts == 1


async def test_a_sick_instance_gets_nothing_new_and_is_lost_if_it_stays_sick(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    server = small("0")
    async with running(server.launched()) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        server.behave(health=503)
        await until(lambda: fleet.names() == ())
        await until(is_(member, Condition.LOST))
        assert [record.getMessage() for record in caplog.records[-2:]] == [
            "0 is unwell: /health answered HTTP 503",
            "0 is lost: /health answered HTTP 503",
        ]
        server.behave()
        await until(is_(member, Condition.READY))
        assert member.restarts == 0


async def test_where_all_are_slow_they_are_asked_all_the_same(small: Small) -> None:
    busy, idle = small("0"), small("1")
    async with running(busy.launched(), idle.launched(), options=replace(HASTY, misses=1000)) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        busy.behave(health_after_s=2.0)
        await until(is_(member, Condition.UNWELL))
        await until(lambda: fleet.names() == ("1",))
        idle.behave(health=503)
        await until(is_(fleet.members[1], Condition.UNWELL))
        await until(lambda: fleet.names() == ("0",))
        busy.behave(health=503)
        await until(lambda: "503" in member.reason)
        await until(lambda: fleet.names() == ())


async def test_who_has_no_file_left_to_ask_with_blames_no_instance(unused_tcp_port: int) -> None:
    url = f"http://me:secret@127.0.0.1:{unused_tcp_port}"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with open_session() as plain, probing_session(plain) as session:
        told = f"no server listens at http://127.0.0.1:{unused_tcp_port}"
        assert await health_problem(session, url, 5.0) == told
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert await health_problem(session, url, 5.0) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_garbage_in_a_row_pauses_an_instance(small: Small) -> None:
    async with running(small("0").launched()) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        fleet.garbage("0")
        fleet.garbage("0")
        member.served += 1  # a good answer between them
        fleet.garbage("0")
        fleet.garbage("0")
        assert (member.condition, member.failures) == (Condition.READY, 0)
        fleet.garbage("0")
        assert (member.condition, member.failures) == (Condition.UNWELL, 1)
        assert member.reason == "it answers garbage"
        assert not fleet.member("0").loss.is_set()
        await until(is_(member, Condition.READY))
        fleet.garbage("0")
        assert member.condition is Condition.READY
        fleet.garbage("no longer there")


async def test_a_server_that_never_stops_talking_is_not_well(unused_tcp_port: int) -> None:
    async def talk(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        except ConnectionError:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", unused_tcp_port):
        joined = Member("0", url=f"http://127.0.0.1:{unused_tcp_port}")
        async with running(joined, options=replace(QUICK, timeout_s=60.0)) as fleet:
            await until(lambda: "more than" in fleet.members[0].reason)
            assert fleet.names() == ()


async def test_connections_that_are_kept_and_closed_are_no_sign_of_ill_health(
    unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It says that it keeps them, and closes each when the next request comes."""
    checks = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        head = await reader.readuntil(b"\r\n\r\n")
        checks += head.startswith(b"GET /health")
        body = MODELS.encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read(1)
        writer.close()

    async def ask(fleet: Fleet) -> None:
        async with fleet.session.get(f"{fleet.member('0').url}/") as response:
            assert response.status == 200

    joined = Member("0", url=f"http://127.0.0.1:{unused_tcp_port}")
    async with await asyncio.start_server(serve, "127.0.0.1", unused_tcp_port), running(joined) as fleet:
        await until(fleet.names)
        # What requests leave behind is no news of the server.
        await asyncio.gather(*(ask(fleet) for _ in range(5)))
        seen = checks
        await until(lambda: checks > seen + 10)
    assert not caplog.records


@pytest.mark.parametrize("busy", [b"/metrics", b"/version"])
async def test_what_a_server_is_too_busy_to_say_of_itself_is_asked_again(
    busy: bytes, unused_tcp_port: int
) -> None:
    asked: list[bytes] = []
    bodies = {b"/metrics": b"# \nheadway_steps_total 1.0\n", b"/version": b'{"version": "0.32.0"}'}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        asked.append(path)
        if path != busy or asked.count(busy) > 4:  # aiohttp itself asks twice
            body = bodies.get(path, MODELS.encode())
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    joined = Member("0", url=f"http://127.0.0.1:{unused_tcp_port}")
    async with await asyncio.start_server(serve, "127.0.0.1", unused_tcp_port), running(joined) as fleet:
        await until(fleet.names)
        assert (joined.facts.is_headway, joined.facts.is_vllm) == (True, True)
        assert asked.count(busy) == 5


# ---- engines that stand still ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("launched", [True, False], ids=["launched", "joined"])
async def test_an_engine_that_stands_still_with_requests_is_lost_although_it_answers(
    small: Small, launched: bool
) -> None:
    server = small("0")
    member = server.launched() if launched else server.joined()
    process = None if launched else server.launch(member)
    async with running(member, options=replace(QUICK, stalled_s=0.5, frozen_s=1.0)) as fleet:
        await until(is_(member, Condition.READY))
        member.in_flight = 1
        await asyncio.sleep(1.0)
        assert is_(member, Condition.READY)(), "with nothing to compute it may stand still"
        server.behave(running=1)
        await until(is_(member, Condition.LOST))
        assert "its engine stands still: no step for " in member.last_loss
        assert fleet.member("0").loss.is_set()
        member.in_flight = 0  # cut off
        if launched:
            await until(lambda: member.restarts == 1)
            server.behave()
        else:
            await asyncio.sleep(0.5)
            assert is_(member, Condition.LOST)(), "it has to move first"
            server.behave(steps=4, running=1)
        await until(is_(member, Condition.READY))
    if process is not None:
        await asyncio.to_thread(process.stop)


# ---- joined ones ----------------------------------------------------------------------------------------------------


async def test_a_joined_server_may_come_late_go_and_come_back(small: Small) -> None:
    server = small("0")
    joined = server.joined()
    async with running(joined) as fleet:
        await fleet.until_settled()
        assert (joined.condition, joined.reason) == (Condition.LOST, f"no server listens at {joined.url}")
        for failures in (2, 3):
            process = server.launch(joined)
            await until(is_(joined, Condition.READY))
            assert not fleet.member("0").loss.is_set()
            await asyncio.to_thread(process.stop)
            await until(is_(joined, Condition.LOST))
            assert (joined.failures, joined.restarts) == (failures, 0)
            assert fleet.member("0").loss.is_set()


async def test_a_joined_server_is_left_as_it_is(small: Small) -> None:
    server = small("0")
    joined = server.joined()
    process = server.launch(joined)
    async with running(joined) as fleet:
        await fleet.until_settled()
        with pytest.raises(ConfigError, match="0 was not launched here"):
            await fleet.recast("0", "1", "")
    assert joined.condition is Condition.STOPPED
    assert process.poll() is None
    process.stop()


# ---- leaving --------------------------------------------------------------------------------------------------------


async def test_a_drained_instance_finishes_what_it_has(small: Small) -> None:
    async with running(small("0").launched()) as fleet:
        member = fleet.members[0]
        await fleet.until_settled()
        member.in_flight = 2
        draining = asyncio.create_task(fleet.drain("0"))
        await until(is_(member, Condition.DRAINING))
        await asyncio.sleep(4 * QUICK.interval_s)  # health checks do not bring it back
        assert (fleet.names(), draining.done(), fleet.member("0").loss.is_set()) == ((), False, False)
        member.in_flight = 0
        assert await draining
        assert member.condition is Condition.DRAINING


async def test_draining_has_an_end(small: Small) -> None:
    async with running(small("0").launched(), options=replace(QUICK, drain_s=0.1)) as fleet:
        await fleet.until_settled()
        fleet.members[0].in_flight = 1
        assert not await fleet.drain("0")


async def test_an_instance_is_recast_in_another_pool(small: Small) -> None:
    server = small("lp-1")
    async with running(
        small("lp-0").launched("lp"), server.launched("lp"), small("hp-0").launched("hp")
    ) as fleet:
        await until(lambda: len(fleet.names()) == 3)
        lost, pid = fleet.member("lp-1").loss, process_of(fleet.member("lp-1")).pid
        with pytest.raises(ConfigError, match="there is an instance 'hp-0' already"):
            await fleet.recast("lp-1", "hp-0", "hp")
        await fleet.recast("lp-1", "hp-1", "hp")
        assert lost.is_set()
        await until(lambda: fleet.names() == ("lp-0", "hp-1", "hp-0"))
        member = fleet.member("hp-1")
        assert (member.pool, member.failures, member.restarts) == ("hp", 0, 0)
        assert process_of(member).pid != pid
        assert not is_alive(pid)
        assert server.launches == [("lp-1", "lp"), ("hp-1", "hp")]
        assert not fleet.member("hp-1").loss.is_set()
        with pytest.raises(KeyError):
            fleet.member("lp-1")


async def test_nothing_launched_is_left_when_the_fleet_closes(small: Small) -> None:
    servers = [small(name) for name in "012"]
    servers[2].behave(crash="never mind")
    async with running(*(server.launched() for server in servers)) as fleet:
        await until(lambda: len(fleet.names()) == 2)
        pids = [process_of(member).pid for member in fleet.members]
        await fleet.close()
        assert {member.condition for member in fleet.members} == {Condition.STOPPED}
        assert not any(map(is_alive, pids))
        assert all(member.loss.is_set() for member in fleet.members)
        launches = [len(server.launches) for server in servers]
        await asyncio.sleep(2 * QUICK.longest_backoff_s)
        assert [len(server.launches) for server in servers] == launches


async def test_a_frozen_one_is_ended_at_once(small: Small) -> None:
    async with running(small("0").launched()) as fleet:
        await fleet.until_settled()
        pid = process_of(fleet.members[0]).pid
        os.kill(pid, signal.SIGSTOP)
        await fleet.close(at_once=True)
        assert not is_alive(pid)


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.gateway.fleets import SmallServer, running

async def main():
    async with running(SmallServer(Path(sys.argv[1]), "0").launched()) as fleet:
        await fleet.until_settled()
        print(fleet.members[0].process.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_an_instance_does_not_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert is_alive(pid)
    owner.kill()
    owner.communicate()
    while is_alive(pid):
        time.sleep(0.02)


# ---- what is not accepted -------------------------------------------------------------------------------------------


async def test_instances_have_names_of_their_own_and_somewhere_to_be() -> None:
    async with open_session() as session:
        with pytest.raises(ConfigError, match="two instances are named 'a'"):
            Fleet([Member("a", url="http://x"), Member("a", url="http://y")], session=session)
        with pytest.raises(ConfigError, match="instance 'a' has no URL"):
            Fleet([Member("a")], session=session)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_s", 0.0),
        ("timeout_s", float("inf")),
        ("timeout_s", float("nan")),
        ("misses", 0),
        ("garbage_in_a_row", 0),
        ("drain_s", -1.0),
        ("longest_backoff_s", 0.5),
    ],
)
def test_options_that_are_not_accepted(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is {value}; accepted: "):
        FleetOptions(**{name: value})  # type: ignore[arg-type]


async def test_a_gateway_that_was_held_up_itself_blames_no_instance(small: Small) -> None:
    """Its clock for an answer rings late then: the answer may be there, and was not looked at."""
    server = small("0")
    server.behave(health_after_s=0.3)
    async with running(server.launched(), options=replace(HASTY, timeout_s=0.6)) as fleet:
        [member] = fleet.members
        await until(is_(member, Condition.READY))
        for _ in range(4):
            await asyncio.sleep(0.2)
            time.sleep(1.0)
            assert member.condition is Condition.READY
        assert member.failures == 0
