"""OpenAI's Files and Batch API, as its own client asks for it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headway.gateway.batch import batches as batches_module
from headway.gateway.batch import pace as pace_module
from headway.gateway.http.keys import Keys
from tests.gateway.fleets import until
from tests.gateway.front import CHAT, PROMPT, Front, gateway
from tests.gateway.upstream import Turn, Upstream, upstream

openai = pytest.importorskip("openai", reason="the openai client comes with vLLM, which is not installed")

KEYS = Keys({b"k1": "", b"k2": "blue", b"k3": "red"})


def client_of(front: Front, key: str = "any") -> Any:
    return openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)


def line(name: str, **fields: Any) -> dict[str, Any]:
    body = {**CHAT, "messages": [{"role": "user", "content": f"words of {name}"}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body, **fields}


def jsonl(*lines: object) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


async def begin(client: Any, data: bytes, **options: Any) -> Any:
    """A batch of such a file."""
    file = await client.files.create(file=("in.jsonl", io.BytesIO(data)), purpose="batch")
    asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
    return await client.batches.create(input_file_id=file.id, **asked)


async def ended(client: Any, batch: Any) -> Any:
    """The batch once nothing more becomes of it."""
    async with asyncio.timeout(60):
        while batch.status not in ("failed", "completed", "expired", "cancelled"):
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
    return batch


async def lines_of(client: Any, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(each) for each in content.text.splitlines()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "LOOK_S", 0.02)
    monkeypatch.setattr(batches_module, "_TICK_S", 0.02)


@pytest.fixture
async def instance() -> AsyncIterator[Upstream]:
    async with upstream() as made:
        yield made


async def test_each_request_is_answered_once(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        names = [f"r{number}" for number in range(40)]
        batch = await begin(client, jsonl(*map(line, names)), metadata={"for": "a test"})
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"for": "a test"})
        assert batch.expires_at == batch.created_at + 24 * 3600
        done = await ended(client, batch)
        assert (done.status, done.errors, done.error_file_id, done.model) == (
            "completed",
            None,
            None,
            "small",
        )
        assert done.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
        assert done.completed_at >= done.finalizing_at >= done.in_progress_at >= done.created_at
        assert done.usage.output_tokens == 40 * 8
        answers = await lines_of(client, done.output_file_id)
        assert sorted(answer["custom_id"] for answer in answers) == sorted(names)
        for answer in answers:
            alone = await front.post(line(answer["custom_id"])["body"], "/v1/chat/completions")
            assert answer["error"] is None
            assert answer["response"]["status_code"] == 200
            assert answer["response"]["body"]["choices"] == alone.json["choices"]
        assert not [turn for turn in instance.turns if turn.streams]
        file = await client.files.retrieve(done.output_file_id)
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_a_request_has_what_is_left_of_the_window_as_its_deadline_and_no_other_target(
    instance: Upstream, tmp_path: Path
) -> None:
    hurried = line("own")
    hurried["body"]["vllm_xargs"] = {"headway_deadline_ms": 5000, "headway_ttft_ms": 10}
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        await ended(client, await begin(client, jsonl(line("one"), hurried), completion_window="2h"))
    told = {turn.body["messages"][0]["content"]: turn.xargs for turn in instance.turns}
    assert 7_000_000 < told["words of one"]["headway_deadline_ms"] <= 7_200_000
    assert told["words of own"]["headway_deadline_ms"] == pytest.approx(5000, rel=0.1)
    assert not any("headway_ttft_ms" in each for each in told.values())


async def test_lines_that_are_no_requests_go_to_the_error_file(instance: Upstream, tmp_path: Path) -> None:
    bad = [
        b"{no json\n",
        b"[]\n",
        line("x", url="/v1/embeddings"),
        line("good"),
        line("y", method="GET"),
        b"\n",
    ]
    streams = line("z")
    streams["body"]["stream"] = True
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        done = await ended(client, await begin(client, jsonl(*bad, streams, line("good"), line(""))))
        assert (done.status, done.request_counts.total, done.request_counts.failed) == ("completed", 8, 7)
        assert [one["custom_id"] for one in await lines_of(client, done.output_file_id)] == ["good"]
        wrong = await lines_of(client, done.error_file_id)
    told = {(one["custom_id"], one["error"]["code"], one["error"]["line"]) for one in wrong}
    assert told == {
        (None, "invalid_line", 1),
        (None, "invalid_line", 2),
        ("x", "mismatched_url", 3),
        ("y", "invalid_method", 5),
        ("z", "streams", 7),
        (None, "duplicate_custom_id", 8),
        (None, "invalid_custom_id", 9),
    }
    assert all(one["response"] is None for one in wrong)
    assert [problem.line for problem in done.errors.data] == [1, 2, 3, 5, 7, 8, 9]


async def test_what_an_instance_refuses_is_an_answer_in_the_error_file(tmp_path: Path) -> None:
    async def refuse(turn: Turn) -> None:
        await turn.refuse(400, b'{"error": {"message": "no", "code": 400}}')

    async with (
        upstream(act=refuse) as instance,
        gateway(instance, batch_dir=tmp_path) as front,
        client_of(front) as client,
    ):
        own = line("priority")
        own["body"]["priority"] = "soon"
        done = await ended(client, await begin(client, jsonl(line("a"), own)))
        assert (done.status, done.output_file_id) == ("completed", None)
        answers = {one["custom_id"]: one for one in await lines_of(client, done.error_file_id)}
    assert answers["a"]["response"]["body"]["error"]["message"] == "no"
    assert answers["priority"]["response"]["status_code"] == 400
    assert "accepted: a whole number" in answers["priority"]["response"]["body"]["error"]["message"]


async def test_requests_without_room_are_asked_again_and_faults_a_few_times(tmp_path: Path) -> None:
    asked: dict[str, int] = {}

    async def late(turn: Turn) -> None:
        name = turn.body["messages"][0]["content"]
        asked[name] = asked.get(name, 0) + 1
        if "crowded" in name and asked[name] < 5:
            await turn.refuse(429, b'{"error": {"message": "full", "code": 429}}')
        elif "broken" in name:
            await turn.refuse(500, b'{"error": {"message": "oh", "code": 500}}')
        else:
            await turn.whole()

    async with (
        upstream(act=late) as instance,
        gateway(instance, batch_dir=tmp_path) as front,
        client_of(front) as client,
    ):
        front.app.batches._clock = iter(range(10**6)).__next__  # type: ignore[union-attr]
        done = await ended(client, await begin(client, jsonl(line("crowded"), line("broken"), line("well"))))
        good = await lines_of(client, done.output_file_id)
        failed = await lines_of(client, done.error_file_id)
    assert sorted(one["custom_id"] for one in good) == ["crowded", "well"]
    assert [(one["custom_id"], one["response"]["status_code"]) for one in failed] == [("broken", 500)]


async def test_a_cancelled_batch_ends_with_what_it_has(tmp_path: Path) -> None:
    async def some(turn: Turn) -> None:
        if "fast" not in turn.body["messages"][0]["content"]:
            await asyncio.sleep(3600)
        await turn.whole()

    async with (
        upstream(act=some) as instance,
        gateway(instance, batch_dir=tmp_path) as front,
        client_of(front) as client,
    ):
        names = ["fast", *(f"slow{number}" for number in range(300))]
        batch = await begin(client, jsonl(*map(line, names)))
        await until(lambda: front.app.batches.results["completed"] == 1)  # type: ignore[union-attr]
        cancelling = await client.batches.cancel(batch.id)
        assert cancelling.status in ("cancelling", "cancelled")
        done = await ended(client, cancelling)
        assert (done.status, done.request_counts.completed, done.request_counts.failed) == (
            "cancelled",
            1,
            300,
        )
        assert done.cancelled_at >= done.cancelling_at
        answers = [*await lines_of(client, done.output_file_id), *await lines_of(client, done.error_file_id)]
        assert sorted(one["custom_id"] for one in answers) == sorted(names)
        assert {one["error"]["code"] for one in answers if one["error"]} == {"batch_cancelled"}
        assert (await client.batches.cancel(batch.id)).status == "cancelled"
        await until(lambda: not instance.running)


async def test_a_window_that_closes_expires_the_batch_and_was_told_of_before(tmp_path: Path) -> None:
    async def slow(turn: Turn) -> None:
        await asyncio.sleep(0.05)
        await turn.whole()

    async with (
        upstream(act=slow) as instance,
        gateway(instance, batch_dir=tmp_path, max_batch_in_flight=1) as front,
        client_of(front) as client,
    ):
        batches = front.app.batches
        assert batches is not None
        now = [1_800_000_000.0]
        batches.wall_clock = lambda: now[0]
        batch = await begin(
            client, jsonl(*(line(f"r{number}") for number in range(2000))), completion_window="30s"
        )
        await until(lambda: batches.open[batch.id].forecast is not None)
        outlook = (await client.batches.retrieve(batch.id)).headway
        assert outlook["in_time"] is False
        assert 0 < outlook["unfinished"] < 2000
        assert outlook["needed_per_s"] > outlook["requests_per_s"] > 0
        figures = (await front.get("/metrics")).body.decode()
        late = next(
            each for each in figures.splitlines() if each.startswith("headway_gateway_batch_requests_late")
        )
        assert float(late.split()[1]) > 0
        now[0] += 30
        done = await ended(client, batch)
        assert done.status == "expired"
        counts = done.request_counts
        assert 0 < counts.completed < 2000 == counts.completed + counts.failed
        errors = await lines_of(client, done.error_file_id)
        assert {one["error"]["code"] for one in errors} == {"batch_expired"}
        assert len({one["custom_id"] for one in errors}) == counts.failed


async def test_a_batch_for_which_there_is_no_room_is_foretold_to_be_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def full(turn: Turn) -> None:
        await turn.refuse(429, b'{"error": {"message": "full", "code": 429}}')

    monkeypatch.setattr(pace_module, "TELLS_S", 0.2)
    async with (
        upstream(act=full) as instance,
        gateway(instance, batch_dir=tmp_path) as front,
        client_of(front) as client,
    ):
        batches = front.app.batches
        assert batches is not None
        data = jsonl(*(line(f"r{number}") for number in range(200)))
        batch = await begin(client, data, completion_window="10s")
        await until(lambda: batches.open[batch.id].forecast is not None)
        outlook = (await client.batches.retrieve(batch.id)).headway
        assert (outlook["in_time"], outlook["held"]) == (False, "")
        assert 100 < outlook["unfinished"] <= 200
        assert "will have no answer when its window closes" in caplog.text
        await client.batches.cancel(batch.id)


async def test_files_and_batches_are_listed_page_by_page(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        made = [await begin(client, jsonl(line(f"r{number}"))) for number in range(5)]
        ids = [batch.id for batch in reversed(made)]
        assert [batch.id async for batch in client.batches.list(limit=2)] == ids
        first = await client.batches.list(limit=2)
        assert (first.has_more, [each.id for each in first.data]) == (True, ids[:2])
        inputs = [each async for each in client.files.list(purpose="batch", limit=2, order="asc")]
        assert [each.id for each in inputs] == [batch.input_file_id for batch in made]
        for batch in made:
            await ended(client, batch)
        deleted = await client.files.delete(inputs[0].id)
        assert deleted.deleted is True
        with pytest.raises(openai.NotFoundError, match="no file"):
            await client.files.content(inputs[0].id)
        with pytest.raises(openai.BadRequestError, match="limit is '0'; accepted: 1 to 100"):
            await client.batches.list(limit=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"completion_window": "soon"}, "completion_window is 'soon'; accepted: a number with s, m, h or d"),
        ({"completion_window": "8d"}, "completion_window is '8d'"),
        ({"endpoint": "/v1/embeddings"}, "endpoint is '/v1/embeddings'; accepted: /v1/completions"),
        ({"metadata": {"a": "b" * 513}}, "metadata has 1 pairs"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after is 1 s"),
    ],
)
async def test_a_batch_that_is_not_accepted_is_refused(
    instance: Upstream, tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        with pytest.raises(openai.BadRequestError, match=words):
            await begin(client, jsonl(line("a")), **options)
        asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        with pytest.raises(openai.NotFoundError, match="no file 'file-none'"):
            await client.batches.create(input_file_id="file-none", **asked)
        assert (await client.batches.list()).data == []


async def test_a_file_without_a_request_fails_its_batch(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        empty = await ended(client, await begin(client, b"\n\n"))
        assert (empty.status, empty.errors.data[0].code) == ("failed", "empty_file")
        assert empty.failed_at
        wrong = await ended(client, await begin(client, b"nothing\n"))
        assert (wrong.status, wrong.errors.data[0].code, wrong.errors.data[0].line) == (
            "failed",
            "invalid_line",
            1,
        )


async def test_sizes_are_bounded(instance: Upstream, tmp_path: Path) -> None:
    limits: dict[str, Any] = {
        "max_file_mib": 1,
        "max_files_mib": 2,
        "max_batches": 1,
        "max_body_mib": 1,
        "max_buffered_mib": 5,
    }
    async with gateway(instance, batch_dir=tmp_path, **limits) as front, client_of(front) as client:
        with pytest.raises(openai.APIStatusError, match="longer than") as large:
            await client.files.create(file=("big", b"x" * (2**20 + 2**17)), purpose="batch")
        assert large.value.status_code == 413
        for _ in range(2):
            await client.files.create(file=("half", b"\n" * 900_000), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="--max-files-mib") as full:
            await client.files.create(file=("third", b"\n" * 900_000), purpose="batch")
        assert full.value.status_code == 413
        with pytest.raises(openai.BadRequestError, match="purpose is 'fine-tune'; accepted: 'batch'"):
            await client.files.create(file=("in", b"x"), purpose="fine-tune")
        assert len(list((tmp_path / "files").iterdir())) == 2, "nothing of what was refused is left"
        for file in (await client.files.list()).data:
            await client.files.delete(file.id)
        going = asyncio.Event()
        instance.act = lambda turn: _after(going, turn)
        batch = await begin(client, jsonl(line("a")))
        with pytest.raises(openai.RateLimitError, match="--max-batches"):
            await begin(client, jsonl(line("b")))
        with pytest.raises(openai.ConflictError, match="has not ended and needs the file"):
            await client.files.delete(batch.input_file_id)
        going.set()
        assert (await ended(client, batch)).status == "completed"


async def _after(going: asyncio.Event, turn: Turn) -> None:
    await going.wait()
    await turn.whole()


async def test_an_upload_is_not_held(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(
        instance, batch_dir=tmp_path, keys=KEYS, max_file_mib=40, max_body_mib=2, max_buffered_mib=10
    ) as front:
        async with client_of(front, "k2") as client:
            data = b"\n" * (30 * 2**20)
            file = await client.files.create(file=("in", data), purpose="batch")
            assert file.bytes == len(data)
        await until(lambda: front.app.limits.held_bytes == 0)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"nothing"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch',
        ),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="x"\r\n\r\ny\r\n--b--',
        ),
        ("multipart/form-data; boundary=b", b"--b\r\nX: y\r\n\r\nz\r\n--b--\r\n"),
        (
            "multipart/form-data; boundary=b",
            b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n',
        ),
    ],
)
async def test_what_is_no_form_with_a_file_is_refused(
    instance: Upstream, tmp_path: Path, kind: str, body: bytes
) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front:
        answer = await front.post(body, "/v1/files", **{"Content-Type": kind})
        assert (answer.status, answer.error["code"]) == (400, "bad_request")
        assert not list((tmp_path / "files").iterdir())


async def test_a_tenant_sees_its_own_files_and_batches_only(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(instance, batch_dir=tmp_path, keys=KEYS) as front:
        async with (
            client_of(front, "k2") as blue,
            client_of(front, "k3") as red,
            client_of(front, "k1") as all_of_it,
        ):
            theirs = await ended(red, await begin(red, jsonl(line("a"))))
            mine = await ended(blue, await begin(blue, jsonl(line("a"))))
            assert [batch.id for batch in (await blue.batches.list()).data] == [mine.id]
            assert {file.id for file in (await blue.files.list()).data} == {
                mine.input_file_id,
                mine.output_file_id,
            }
            assert len((await all_of_it.batches.list()).data) == 2
            for asked in (
                blue.batches.retrieve(theirs.id),
                blue.batches.cancel(theirs.id),
                blue.files.retrieve(theirs.output_file_id),
                blue.files.content(theirs.output_file_id),
                blue.files.delete(theirs.output_file_id),
                blue.batches.create(
                    input_file_id=theirs.input_file_id,
                    endpoint="/v1/chat/completions",
                    completion_window="24h",
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            assert await lines_of(red, theirs.output_file_id)
        assert {turn.xargs["headway_tenant"] for turn in instance.turns} == {"blue", "red"}
        assert not instance.echoed


async def test_without_a_folder_there_are_no_batches(instance: Upstream) -> None:
    async with gateway(instance) as front:
        for path in ("/v1/files", "/v1/files/file-1/content", "/v1/batches/b/cancel"):
            answer = await front.get(path)
            assert (answer.status, answer.error["code"]) == (404, "no_batches")
            assert "--batch-dir FOLDER" in answer.error["message"]
        assert not instance.echoed


async def test_another_gateway_goes_on_where_the_first_one_stopped(tmp_path: Path) -> None:
    going = asyncio.Event()

    async def some(turn: Turn) -> None:
        if "slow" in turn.body["messages"][0]["content"]:
            await going.wait()
        await turn.whole()

    names = [*(f"fast{number}" for number in range(3)), *(f"slow{number}" for number in range(20))]
    async with upstream(act=some) as instance:
        async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
            batch = await begin(client, jsonl(*map(line, names)))
            await until(lambda: front.app.batches.results["completed"] == 3)  # type: ignore[union-attr]
            front.stop.set()
            await front.task
        going.set()
        async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
            done = await ended(client, batch)
            answers = await lines_of(client, done.output_file_id)
        assert sorted(one["custom_id"] for one in answers) == sorted(names)
        asked = [turn.body["messages"][0]["content"] for turn in instance.turns]
        assert all(asked.count(f"words of fast{number}") == 1 for number in range(3)), "nothing is done twice"


async def test_a_disk_that_fails_costs_no_answer(
    instance: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches_module, "_STORE_PAUSE_S", 0.05)
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        batches = front.app.batches
        assert batches is not None
        kept, failures = batches.store.answer, iter(range(3))

        def answer(*arguments: Any) -> None:
            if next(failures, None) is not None:
                raise OSError("no space left on device")
            kept(*arguments)

        monkeypatch.setattr(batches.store, "answer", answer)
        names = [f"r{number}" for number in range(20)]
        done = await ended(client, await begin(client, jsonl(*map(line, names))))
        answers = await lines_of(client, done.output_file_id)
    assert sorted(one["custom_id"] for one in answers) == sorted(names)
    assert len(instance.turns) == 20, "what was answered is not asked again"


async def test_requests_of_a_batch_are_told_apart(instance: Upstream, tmp_path: Path) -> None:
    async with gateway(instance, batch_dir=tmp_path) as front, client_of(front) as client:
        await front.post(PROMPT, x_slo_ttft_ms="60000")
        done = await ended(client, await begin(client, jsonl(line("mine"))))
        (answer,) = await lines_of(client, done.output_file_id)
        (seen,) = [(await front.get(f"/explain/{answer['id']}")).json["gateway"]]
        assert seen["batch"] == {
            "batch": done.id,
            "line": 1,
            "custom_id": "mine",
            "expires_at": done.expires_at,
        }
        assert seen["slo"] == "batch"
        listed = (await front.get("/explain")).json["requests"]
        assert [one["batch"] for one in listed] == [None]
        await until(lambda: not front.accounts.live)
        assert (front.accounts.judged, front.accounts.missed) == (1, 0)
        (shown,) = (await front.get("/dashboard/state")).json["batches"]
        assert (shown["id"], shown["status"], shown["completed"]) == (done.id, "completed", 1)
        figures = (await front.get("/metrics")).body.decode()
        for sample in (
            'headway_gateway_batches_ended_total{status="completed"} 1.0',
            'headway_gateway_batch_requests_total{result="completed"} 1.0',
            'headway_gateway_batch_tokens_total{kind="output"} 8.0',
            "headway_gateway_batch_requests_left 0.0",
        ):
            assert sample in figures
