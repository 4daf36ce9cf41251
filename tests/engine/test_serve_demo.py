"""`headway serve demo` for real: a vLLM engine under Headway, asked by the official client."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.core.record import Outcome
from headway.core.slo import Slo
from headway.engine.demo_model import resolve_model
from headway.loadgen import ReplayOptions, replay
from headway.results import read_records
from headway.results.records import records_so_far
from headway.traces import TraceRequest, load_trace

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BATCH_WIDTH = 4


class Serving:
    """A running `headway serve demo`."""

    def __init__(self, folder: Path, *flags: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.records = folder / "served.jsonl"
        self.log = folder / "log"
        words = ["serve", "demo", "--port", str(self.port), "--records", str(self.records), *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "headway.cli", *words], stdout=log, stderr=log
            )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            time.sleep(0.1)

    def wait_ready(self) -> None:
        self.wait_for(lambda: "Application startup complete" in self.log.read_text())

    def processes(self) -> set[int]:
        """Every process that descends from the server's API process, which leads their group."""
        return {pid for pid in live_processes() if group_of(pid) in self.groups()}

    def groups(self) -> set[int]:
        return {pid for pid in live_processes() if parent_of(pid) == self.process.pid}

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()


def live_processes() -> list[int]:
    return [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and is_alive(int(entry.name))
    ]


def stat(pid: int) -> list[str]:
    """State, parent, group, ... of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    return stat(pid)[:1] not in ([], ["Z"])


def parent_of(pid: int) -> int:
    return int((stat(pid) or ["", "0"])[1])


def group_of(pid: int) -> int:
    return int((stat(pid) or ["", "", "0"])[2])


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server for all tests that only ask it something; it checks each of its plans."""
    check = ("--", "--additional-config", '{"headway": {"check": true}}')
    folder = tmp_path_factory.mktemp("serving")
    started = Serving(folder, "--batch-width", str(BATCH_WIDTH), "--leaving", "expired", *check)
    try:
        started.wait_ready()
        yield started
    finally:
        started.close()


@pytest.fixture
def client(serving: Serving) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why? \u2028 Żółć 😀"},
]


def test_it_introduces_itself_and_serves_under_its_name(serving: Serving, client: Any) -> None:
    first, second, *_ = serving.log.read_text().splitlines()
    assert first.startswith(f"headway: model  demo at {serving.url}, vLLM ")
    assert second.startswith("headway: policy headway (")
    assert "stock order" not in second  # the leaving rule would stay
    assert [model.id for model in client.models.list()] == ["demo"]


def test_streamed_completions(client: Any) -> None:
    chunks = list(
        client.completions.create(
            model="demo",
            prompt=[300, 301, 302],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True, "min_tokens": 12, "priority": 3},
        )
    )
    assert chunks[-1].usage.prompt_tokens == 3
    assert chunks[-1].usage.completion_tokens == 12
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


def test_streamed_chat_says_the_same_as_whole_chat(client: Any) -> None:
    settings: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**settings)
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(**settings, stream=True)
        if chunk.choices
    ]
    assert "".join(parts) == whole.choices[0].message.content


def test_an_answer_that_ends_on_a_stop_string_is_recorded_as_finished(client: Any, serving: Serving) -> None:
    before = len(records_so_far(serving.records))
    settings: dict[str, Any] = {
        "model": "demo",
        "prompt": "count to nine",
        "max_tokens": 60,
        "temperature": 0,
    }
    settings["extra_body"] = {"ignore_eos": True}
    whole = client.completions.create(**settings)
    text = whole.choices[0].text
    stopped = client.completions.create(**settings, stop=[text[len(text) // 2 :][:8]])
    assert stopped.choices[0].finish_reason == "stop"
    serving.wait_for(lambda: len(records_so_far(serving.records)) == before + 2)
    first, second = read_records(serving.records)[-2:]
    assert (first.outcome, first.output_tokens) == (Outcome.FINISHED, 60)
    assert second.outcome is Outcome.FINISHED
    assert 0 < second.output_tokens < 60


def test_a_target_out_of_range_is_a_400(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="headway_ttft_ms is -1"):
        client.completions.create(
            model="demo", prompt="x", max_tokens=1, extra_body={"vllm_xargs": {"headway_ttft_ms": -1}}
        )


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", {"prompt": "copy: k7", "max_tokens": 4}),
        ("chat/completions", {"messages": [{"role": "user", "content": "copy: k7"}], "max_tokens": 4}),
        ("responses", {"input": "copy: k7", "max_output_tokens": 4}),
        ("messages", {"messages": [{"role": "user", "content": "copy: k7"}], "max_tokens": 4}),
    ],
)
def test_a_server_without_a_gateway_heeds_hints_in_headers(
    client: Any, serving: Serving, path: str, asked: dict[str, Any]
) -> None:
    def ask(**headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"model": "demo", **asked}
        return client.post(f"/{path}", cast_to=object, body=body, options={"headers": named})

    before = len(records_so_far(serving.records))
    ask(X_SLO_TTFT_MS="60000", x_llm_d_slo_tpot_ms="5000", x_slo_deadline_ms="90000", x_tenant="blue")
    serving.wait_for(lambda: len(records_so_far(serving.records)) > before)
    record = read_records(serving.records)[-1]
    assert (record.slo, record.tenant) == (Slo(ttft_s=60, tbt_s=5, deadline_s=90), "blue")
    for headers in ({"x_slo_ttft_ms": "soon"}, {"x_vllm_priority": "high"}, {"x_tenant": "t" * 129}):
        [name] = headers
        with pytest.raises(openai.BadRequestError, match=f"{name.replace('_', '-')} is '.*; accepted: "):
            ask(**headers)
    assert len(records_so_far(serving.records)) == before + 1


async def test_a_replay_gets_every_token_it_asked_for(serving: Serving) -> None:
    trace = load_trace("gen:poisson:rate=30/input=zipf:theta=1,max=300/output=zipf:theta=1,max=60/count=60")
    report = await replay(trace, ReplayOptions(url=serving.url, token_times=True))
    records = {record.id: record for record in report.records}
    assert len(records) == len(report.records) == 60
    for request in trace:
        record = records[request.id]
        assert (record.outcome, record.error) == (Outcome.FINISHED, None)
        assert (record.prompt_tokens, record.output_tokens) == (request.input_tokens, request.output_tokens)
        assert len(record.token_times_s or ()) == request.output_tokens


async def test_clients_that_vanish_mid_stream_leave_the_server_well(serving: Serving) -> None:
    before = len(read_records(serving.records))
    trace = [TraceRequest(f"v{n}", n * 0.01, 50, 400) for n in range(30)]
    report = await replay(trace, ReplayOptions(url=serving.url, vanish_fraction=0.7, seed=1))
    outcomes = [record.outcome for record in report.records]
    assert outcomes.count(Outcome.CANCELLED) > 10
    assert outcomes.count(Outcome.CANCELLED) + outcomes.count(Outcome.FINISHED) == 30
    # The engine hears of each, and ends each exactly once.
    serving.wait_for(lambda: len(read_records(serving.records)) == before + 30)
    (after,) = (await replay(trace[:1], ReplayOptions(url=serving.url))).records
    assert after.outcome is Outcome.FINISHED


async def test_the_client_of_a_request_that_leaves_the_queue_hears_why(serving: Serving) -> None:
    """A target of a microsecond is past before the first step: the request ends without a token."""
    hopeless, hopeful = Slo(ttft_s=1e-6), Slo(ttft_s=3600)
    trace = [TraceRequest(f"s{n}", 0.0, 20, 10, slo=hopeless if n % 2 else hopeful) for n in range(40)]
    report = await replay(trace, ReplayOptions(url=serving.url))
    assert {(record.slo, record.outcome, record.output_tokens) for record in report.records} == {
        (hopeless, Outcome.EXPIRED, 0),
        (hopeful, Outcome.FINISHED, 10),
    }
    assert {record.error for record in report.records} == {None}


def test_vllms_own_benchmark_client_runs_against_it(serving: Serving, tmp_path: Path) -> None:
    words = [
        "bench",
        "serve",
        "--base-url",
        serving.url,
        "--model",
        "demo",
        "--num-prompts",
        "10",
        "--save-result",
    ]
    words += ["--tokenizer", resolve_model("demo"), "--dataset-name", "random", "--random-input-len", "20"]
    words += ["--random-output-len", "10", "--result-filename", str(tmp_path / "result.json")]
    done = subprocess.run(
        [sys.executable, "-m", "headway.engine.servers.launcher", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "result.json").read_text())["completed"] == 10


def test_a_killed_owner_takes_its_server_along(serving: Serving) -> None:
    """The server that the tests above have asked: this is the last of them. `test_serve_swaps` ends one by a signal."""
    processes = serving.processes()
    assert len(processes) >= 3  # API server, engine core, worker
    serving.process.kill()
    serving.process.wait()
    while any(map(is_alive, processes)):
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_signal_ends_a_starting_server_with_all_its_processes(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    serving = Serving(tmp_path)
    serving.wait_for(lambda: len(serving.processes()) >= 2)  # the engine core is being started
    processes = serving.processes()
    serving.process.send_signal(number)
    assert serving.process.wait() == code
    assert not any(map(is_alive, processes))


def test_a_server_that_cannot_start_says_so(tmp_path: Path) -> None:
    serving = Serving(tmp_path, "--", "--max-model-len", "999999")
    assert serving.process.wait() == 1
    assert serving.log.read_text().rstrip().endswith("the reason is in its messages above")
