"""Stored batches survive any end of the process, and take one answer a request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import ConfigError
from headway.gateway.batch import store as store_module
from headway.gateway.batch.lines import Usage, answer_line, lines_from, usage_of
from headway.gateway.batch.objects import PURPOSE, BatchRecord, FileRecord, Status
from headway.gateway.batch.store import Answer, BatchStore, Page

NOW = 1_800_000_000
ENDPOINT = "/v1/completions"


def asked(name: str, **fields: Any) -> bytes:
    line = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {"model": "m", "prompt": name}}
    return json.dumps({**line, **fields}).encode() + b"\n"


def added(store: BatchStore, data: bytes, name: str = "b", tenant: str = "") -> BatchRecord:
    """A batch whose lines are still to be checked."""
    store.path(f"in-{name}").write_bytes(data)
    file = FileRecord(
        id=f"in-{name}",
        tenant=tenant,
        filename="f",
        purpose=PURPOSE,
        bytes=len(data),
        created_at=NOW,
        expires_at=NOW + 100,
    )
    store.add_file(file)
    record = BatchRecord(
        id=name,
        tenant=tenant,
        endpoint=ENDPOINT,
        input_file_id=file.id,
        output_file_id=f"out-{name}",
        error_file_id=f"err-{name}",
        completion_window="100s",
        window_s=100.0,
        created_at=NOW,
        expires_at=NOW + 100,
    )
    store.add_batch(record)
    return record


def batch_of(store: BatchStore, data: bytes, name: str = "b", tenant: str = "") -> BatchRecord:
    """A batch whose lines are checked."""
    record = added(store, data, name, tenant)
    while not store.check_lines(record):
        pass
    store.begin(record, NOW)
    return record


class Stores:
    """Opens stores in a folder; all are closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: list[BatchStore] = []

    def open(self, longest: int = 1000) -> BatchStore:
        self._opened.append(BatchStore(self.folder, longest))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


def answer(line: int, name: str) -> Answer:
    return Answer(line, True, answer_line(f"id-{name}", name, 200, b'{"text": "x"}'), Usage(1, 2))


def names_in(path: Path) -> list[str]:
    return [json.loads(each)["custom_id"] for each in path.read_bytes().splitlines()]


def test_an_answer_is_taken_once(stores: Stores) -> None:
    store = stores.open()
    batch = batch_of(store, asked("a") + asked("b"))
    assert (batch.status, batch.total, batch.left, batch.model) == (Status.IN_PROGRESS, 2, 2, "m")
    store.answer(batch, [answer(1, "a"), answer(1, "a")])
    store.answer(batch, [answer(1, "a"), answer(2, "b")])
    assert (batch.completed, batch.left, batch.output_tokens) == (2, 0, 4)
    assert names_in(store.path("out-b")) == ["a", "b"]


def test_what_no_transaction_knows_of_is_cut_off(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores.open()
    batch = batch_of(store, asked("a") + asked("b") + asked("c"))
    store.answer(batch, [answer(1, "a")])
    before = batch.output_bytes

    def killed(_file: int) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(OSError, match="killed"):
            store.answer(batch, [answer(2, "b")])
    assert (batch.completed, batch.output_bytes) == (1, before)
    assert store.path("out-b").stat().st_size > before, "the line was written"
    store.path("file-half-an-upload").write_bytes(b"x")
    store.close()
    again = stores.open()
    (found,) = again.open_batches()
    assert found == batch
    assert again.path("out-b").stat().st_size == before
    assert not again.path("file-half-an-upload").exists()
    assert [each.custom_id for each in again.unanswered("b", 0, 10)] == ["b", "c"]
    again.answer(found, [answer(2, "b"), answer(3, "c")])
    again.end_early(found, Status.COMPLETED, NOW + 5)
    again.finish(found, NOW + 6)
    assert names_in(again.path("out-b")) == ["a", "b", "c"]
    assert again.open_batches() == []
    assert again.file("out-b", "") is not None


def test_a_failed_attempt_leaves_nothing_behind_in_the_same_process(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    batch = batch_of(store, asked("a") + asked("b"))

    def full(_file: int) -> None:
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="full"):
            store.answer(batch, [answer(1, "a")])
    store.answer(batch, [answer(2, "b")])
    store.answer(batch, [answer(1, "a")])
    assert names_in(store.path("out-b")) == ["b", "a"]


def test_lines_are_checked_in_turns_that_go_on_after_a_restart(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "LINES_A_TURN", 2)
    store = stores.open(200)
    long = asked("x" * 300)
    data = asked("a") + b"\n" + long + asked("b") + b"bad\n" + asked("a") + asked("c").rstrip()
    record = added(store, data)
    done = False
    while not done:
        store.close()
        store = stores.open(200)
        (record,) = store.open_batches()
        done = store.check_lines(record)
    assert [(each.line, each.custom_id) for each in store.unanswered("b", 0, 9)] == [
        (1, "a"),
        (4, "b"),
        (7, "c"),
    ]
    for each in store.unanswered("b", 0, 9):
        assert json.loads(store.read("in-b", each.place, each.size))["custom_id"] == each.custom_id
    assert [problem.code for problem in record.errors] == [
        "line_too_long",
        "invalid_line",
        "duplicate_custom_id",
    ]
    assert (record.total, record.failed) == (6, 3)


def test_too_many_requests_fail_a_batch(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_LINES", 3)
    store = stores.open()
    batch = batch_of(store, b"".join(asked(str(number)) for number in range(5)))
    assert (batch.status, batch.ending, batch.errors[0].code) == (
        Status.FINALIZING,
        Status.FAILED,
        "too_many_requests",
    )
    while not store.give_up(batch, "batch_failed", "no"):
        pass
    store.finish(batch, NOW)
    assert (batch.status, batch.failed, batch.failed_at) == (Status.FAILED, 5, NOW)


def test_one_gateway_at_a_time_has_a_folder(stores: Stores) -> None:
    store = stores.open()
    with pytest.raises(ConfigError, match="another gateway keeps batches in"):
        stores.open()
    store.close()
    stores.open().close()
    (stores.folder / "file").touch()
    with pytest.raises(ConfigError, match="batches cannot be kept in"):
        BatchStore(stores.folder / "file", 1000)


def test_files_go_when_their_time_is_over_but_not_while_a_batch_needs_them(stores: Stores) -> None:
    store = stores.open()
    batch = batch_of(store, asked("a"))
    store.remove_expired(NOW + 10**9)
    assert store.file("in-b", "") is not None
    store.answer(batch, [answer(1, "a")])
    store.end_early(batch, Status.COMPLETED, NOW)
    store.finish(batch, NOW)
    store.remove_expired(NOW + 100)
    assert [file.id for file in store.files("", Page("", 10))] == ["out-b"]
    assert not store.path("in-b").exists()
    assert store.used_bytes("") == batch.output_bytes
    store.remove_expired(NOW + 10**9)
    assert store.batch("b", "") is None
    assert not store.path("out-b").exists()


def test_bytes_count_for_their_tenant(stores: Stores) -> None:
    store = stores.open()
    red, blue = batch_of(store, asked("a"), "r", "red"), batch_of(store, asked("a") * 2, "s", "blue")
    store.answer(red, [answer(1, "a")])
    assert store.used_bytes("red") == len(asked("a")) + red.output_bytes
    assert store.used_bytes("blue") == 2 * len(asked("a")) + blue.error_bytes
    assert store.file("in-r", "blue") is None
    assert store.batch("r", "blue") is None
    assert [batch.id for batch in store.batches("blue", Page("", 9))] == ["s"]


@given(
    st.lists(st.binary(max_size=30).filter(lambda text: b"\n" not in text), max_size=12), st.integers(1, 20)
)
def test_lines_are_found_where_they_lie(texts: list[bytes], longest: int) -> None:
    data = b"\n".join(texts)

    found = list(lines_from(BytesIO(data), 0, 0, longest))
    for each in found:
        text = data[each.place : each.place + each.size]
        assert text.rstrip(b"\n") == texts[each.number - 1].rstrip(b"\n")
        assert (each.data is None) == (len(texts[each.number - 1]) > longest)
    wanted = [number for number, text in enumerate(texts, 1) if text.strip() or len(text) > longest]
    assert [each.number for each in found] == wanted


def test_an_answer_is_one_line_for_whoever_splits_them() -> None:
    text = "a\u2028b\u2029c\u0085d\ne"
    body = json.dumps({"text": text}, ensure_ascii=False, indent=2).encode()
    made = answer_line("id", "a", 200, body).decode()
    assert len(made.splitlines()) == 1
    assert json.loads(made)["response"]["body"]["text"] == text


@pytest.mark.parametrize(
    ("status", "body", "usage"),
    [
        (200, b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}', Usage(3, 4)),
        (200, b'{"usage": {"input_tokens": 3, "output_tokens": 4}}', Usage(3, 4)),
        (200, b'{"usage": null}', Usage()),
        (200, b"nothing", Usage()),
        (400, b'{"usage": {"prompt_tokens": 3}}', Usage()),
    ],
)
def test_tokens_are_read_in_the_words_of_each_api(status: int, body: bytes, usage: Usage) -> None:
    assert usage_of(status, body) == usage
