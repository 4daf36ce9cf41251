"""The command as a user runs it: another process, real signals, files and streams."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.lab.trace import demo_stream
from headway.results import read_records

if TYPE_CHECKING:
    from tests.loadgen.conftest import FakeServer, Stream


FULL_DISK = Path("/dev/full")


def workload(count: int, interval_s: float = 0.01) -> str:
    laws = "input=constant:tokens=8/output=constant:tokens=4"
    return f"gen:fixed:interval={interval_s}/{laws}/count={count}"


async def start(url: str, out: Path, *flags: str, count: int = 5) -> Process:
    words = ["replay", "--url", url, "--trace", workload(count), "--out", str(out), *flags]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headway.cli", *words, stdout=PIPE, stderr=PIPE
    )


async def test_records_go_to_the_file_the_summary_to_stdout_and_the_rest_to_stderr(
    server: FakeServer, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "records.jsonl"
    process = await start(server.url, out, "--json")
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    assert [record.outcome for record in read_records(out)] == [Outcome.FINISHED] * 5
    summary = json.loads(stdout)
    assert list(summary) == ["replay"]
    assert summary["replay"]["finished"] == 5
    assert b"requests were sent" in stderr
    assert b"\x1b" not in stderr  # no progress bar, no colours: not a terminal


async def test_the_records_of_an_earlier_replay_are_kept(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for limit in ("2", "1"):
        process = await start(server.url, out, "--limit", limit, "--rate-scale", "5")
        await process.communicate()
    assert [len(list(read_records(file))) for file in (tmp_path / "r.1.jsonl", out)] == [2, 1]


async def test_without_json_stdout_is_empty(server: FakeServer, tmp_path: Path) -> None:
    process = await start(server.url, tmp_path / "r.jsonl", "--limit", "2", "--rate-scale", "5")
    stdout, _ = await process.communicate()
    assert (process.returncode, stdout) == (0, b"")
    assert len(server.bodies) == 2


async def test_requests_that_name_no_target_are_given_the_commands_and_judged_by_them(
    server: FakeServer, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    process = await start(server.url, out, "--json", "--slo-ttft", "5", "--slo-tbt", "0.00000001")
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    assert json.loads(stdout)["replay"]["goodput"] == 0
    assert {record.slo for record in read_records(out)} == {Slo(ttft_s=5.0, tbt_s=0.00000001)}
    assert [body["vllm_xargs"]["headway_ttft_ms"] for body in server.bodies] == [5000] * 5


async def test_the_demos_stream_is_a_trace_here_too(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    process = await start(server.url, out, "--trace", "demo", "--limit", "3")
    _, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    by_arrival = sorted(
        read_records(out), key=lambda record: record.arrival_s
    )  # they are written as they end
    assert [(record.tenant, record.slo) for record in by_arrival] == [
        (request.tenant, request.slo) for request in demo_stream()[:3]
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_it_cleanly_with_what_it_has(
    server: FakeServer, tmp_path: Path, number: signal.Signals
) -> None:
    hanging = asyncio.Event()

    async def answer(stream: Stream) -> None:
        if len(server.bodies) <= 3:
            await stream.answer_in_full()
            return
        await stream.token()
        hanging.set()
        await asyncio.Event().wait()

    server.answer = answer
    out = tmp_path / "r.jsonl"
    process = await start(server.url, out, "--json", count=1000)
    await hanging.wait()
    while not out.exists() or out.read_bytes().count(b"\n") < 3:
        await asyncio.sleep(0.01)
    process.send_signal(number)
    stdout, stderr = await process.communicate()
    assert process.returncode == 130, stderr.decode()
    assert b"Traceback" not in stderr
    assert out.read_bytes().endswith(b"\n")
    outcomes = [record.outcome for record in read_records(out)]
    assert outcomes.count(Outcome.FINISHED) == 3
    assert outcomes.count(Outcome.CANCELLED) == len(outcomes) - 3 > 0
    assert json.loads(stdout)["replay"]["requests"] == len(outcomes) < 1000
    assert f"interrupted: {len(outcomes)} requests recorded".encode() in stderr


async def test_a_signal_before_the_server_answers_ends_it_too(tmp_path: Path) -> None:
    accepted = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listener:
        host, port = listener.sockets[0].getsockname()
        process = await start(f"http://{host}:{port}", tmp_path / "r.jsonl")
        await accepted.wait()
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in stderr


async def test_when_every_request_fails_the_command_fails_and_says_why(
    server: FakeServer, tmp_path: Path
) -> None:
    server.refusal = web.Response(status=503, text="queue is full")
    process = await start(server.url, tmp_path / "r.jsonl")
    _, stderr = await process.communicate()
    assert process.returncode == 1
    assert b"5 of 5 requests: HTTP 503: queue is full" in stderr


@pytest.mark.skipif(not FULL_DISK.exists(), reason="this system has no /dev/full")
async def test_a_full_disk_is_one_line_and_code_2(server: FakeServer) -> None:
    process = await start(server.url, FULL_DISK)
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"\nerror: /dev/full: cannot be written (No space left on device); accepted: " in stderr
    assert stderr.count(b"\n") == 2


async def test_a_key_is_sent_as_bearer_token(server: FakeServer, tmp_path: Path) -> None:
    process = await start(server.url, tmp_path / "r.jsonl", "--api-key", "secret", count=1)
    await process.communicate()
    assert process.returncode == 0
    assert server.tokens == {"Bearer secret"}


async def test_answers_may_end_where_the_model_ends_them(server: FakeServer, tmp_path: Path) -> None:
    process = await start(server.url, tmp_path / "r.jsonl", "--own-stops", count=1)
    await process.communicate()
    assert process.returncode == 0
    (body,) = server.bodies
    assert "min_tokens" not in body
    assert "ignore_eos" not in body
    # Up to the context of 1000 tokens, of which the prompt takes 8.
    assert body["max_tokens"] == 992


@pytest.mark.slow
async def test_batches_may_go_to_several_servers_and_lengths_are_kept(
    server: FakeServer, other_server: FakeServer, tmp_path: Path
) -> None:
    out, kept = tmp_path / "r.jsonl", tmp_path / "lengths.npz"
    flags = ["--url", other_server.url, "--batches", "magnus", "--kv-tokens", "5000"]
    flags += ["--predictor", "learned", "--length-model", str(kept), "--json"]
    for _ in range(2):  # the second starts from what the first has kept
        process = await start(server.url, out, *flags, count=12)
        stdout, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()
        assert json.loads(stdout)["replay"]["finished"] == 12
        assert b"; of 0 some came back" in stderr
        assert kept.exists()
    records = read_records(out)
    assert [record.outcome for record in records] == [Outcome.FINISHED] * 12
    assert len(server.bodies) + len(other_server.bodies) >= 24
