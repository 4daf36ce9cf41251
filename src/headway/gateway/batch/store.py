"""Stores files and batches: an SQLite database, with the files beside it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from headway.errors import ConfigError
from headway.gateway.batch.lines import Found, Usage, check_line, duplicate, lines_from, problem_line
from headway.gateway.batch.objects import KEPT_S, OUTPUT_PURPOSE, BatchRecord, FileRecord, Problem, Status

MAX_LINES = 50_000
"""Most requests of a batch, as in OpenAI's API."""
LINES_A_TURN = 256
"""Lines read at a time; other calls of the store come in between."""
KEPT_ERRORS = 20
"""Problems shown in a batch's object; all of them are in its error file."""
_DATABASE, _LOCK, _FILES = "batches.sqlite3", "lock", "files"
_TABLES = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, tenant TEXT NOT NULL, purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL, expires_at INTEGER NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, tenant TEXT NOT NULL, open INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
    batch TEXT NOT NULL, line INTEGER NOT NULL, custom_id TEXT, place INTEGER NOT NULL, size INTEGER NOT NULL,
    answered INTEGER NOT NULL, PRIMARY KEY (batch, line)) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS each_once ON requests (batch, custom_id);
"""


T = TypeVar("T")


class Page(NamedTuple):
    """A page of a list: `limit` records that follow the one whose id is `after`."""

    after: str
    limit: int
    newest_first: bool = True


class Request(NamedTuple):
    """A request of a batch, and the position of its line in the input file."""

    line: int
    custom_id: str
    place: int
    size: int


class Answer(NamedTuple):
    """The result of a request: `data` is its line in the output file, or (not `ok`) in the error file."""

    line: int
    ok: bool
    data: bytes
    usage: Usage = Usage()


class BatchStore:
    """Files and batches of all tenants. Every call blocks, and one thread makes them all.

    An answer exists once its transaction does: the line is appended to its file and flushed to the disk, then the
    request is marked, together with the file's new length. If a process is killed in between, the bytes beyond that
    length are cut off when the folder is opened. A marked request takes no other answer. Changes of a batch raise
    OSError or sqlite3.Error, without effect. O(lines) or O(log n), n files, batches and requests.
    """

    def __init__(self, folder: Path, longest_line: int) -> None:
        """Raises ConfigError for a folder that cannot be used, or that another gateway uses."""
        self._longest_line = longest_line
        self._folder = folder
        with ExitStack() as stack:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                (folder / _FILES).mkdir(exist_ok=True)
                lock = stack.enter_context((folder / _LOCK).open("wb"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = folder / _DATABASE
                self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
                stack.callback(self._database.close)
                self._database.executescript(_TABLES)
                self._tidy()
            except BlockingIOError:
                raise ConfigError(
                    f"another gateway keeps batches in {folder}; accepted: a folder of its own"
                ) from None
            except (OSError, sqlite3.Error) as error:
                raise ConfigError(f"batches cannot be kept in {folder}: {error}") from None
            self._held = stack.pop_all()

    def close(self) -> None:
        """Release the folder for another gateway."""
        self._held.close()

    def _tidy(self) -> None:
        """Cut off bytes that belong to no transaction, and remove files that no record names."""
        known = {file_id for (file_id,) in self._database.execute("SELECT id FROM files")}
        for batch in self.open_batches():
            for file_id, size in _answer_files(batch):
                known.add(file_id)
                if size or self.path(file_id).exists():
                    with self.path(file_id).open("ab") as file:
                        file.truncate(size)
        for path in (self._folder / _FILES).iterdir():
            if path.name not in known:
                path.unlink()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    @contextmanager
    def _turn(self, batch: BatchRecord) -> Iterator[BatchRecord]:
        """Yield a copy of a batch to change; it is stored, and replaces the batch, if the block ends without an
        error.
        """
        turn = msgspec.structs.replace(batch)
        with self._transaction():
            yield turn
            self._database.execute(
                "UPDATE batches SET open = ?, record = ? WHERE id = ?",
                (not turn.status.is_final, msgspec.json.encode(turn), turn.id),
            )
        for name in turn.__struct_fields__:
            setattr(batch, name, getattr(turn, name))

    # ---- files ------------------------------------------------------------------------------------------------------

    def path(self, file_id: str) -> Path:
        """The path of a file's bytes."""
        return self._folder / _FILES / file_id

    def add_file(self, file: FileRecord) -> None:
        """Take in a file whose bytes are at its `path`."""
        self._database.execute(
            "INSERT INTO files (id, tenant, purpose, bytes, expires_at, record) VALUES (?, ?, ?, ?, ?, ?)",
            (file.id, file.tenant, file.purpose, file.bytes, file.expires_at, msgspec.json.encode(file)),
        )

    def file(self, file_id: str, tenant: str) -> FileRecord | None:
        """Look up a file; None if there is none, or it belongs to another tenant (empty: any)."""
        return self._one("files", file_id, tenant, FileRecord)

    def files(self, tenant: str, page: Page, purpose: str | None = None) -> list[FileRecord]:
        """A tenant's files, one more than the page holds; without a `purpose`, any."""
        return self._page("files", FileRecord, tenant, page, purpose)

    def remove_file(self, file_id: str) -> str | None:
        """Remove a file, or return the batch that still needs it."""
        for batch in self.open_batches():
            if file_id == batch.input_file_id:
                return batch.id
        self._database.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path(file_id).unlink(missing_ok=True)
        return None

    def remove_expired(self, now: int) -> None:
        """Remove expired files, and batches that ended long before."""
        for (file_id,) in self._database.execute(
            "SELECT id FROM files WHERE expires_at <= ?", (now,)
        ).fetchall():
            self.remove_file(file_id)
        self._database.execute("DELETE FROM batches WHERE NOT open AND expires_at <= ?", (now - KEPT_S,))

    def used_bytes(self, tenant: str) -> int:
        """Bytes of a tenant's files, including those that open batches are writing."""
        held = self._database.execute(
            "SELECT total(bytes) FROM files WHERE tenant = ?", (tenant,)
        ).fetchone()[0]
        ours = (batch for batch in self.open_batches() if batch.tenant == tenant)
        return int(held) + sum(batch.output_bytes + batch.error_bytes for batch in ours)

    def read(self, file_id: str, place: int, size: int) -> bytes:
        """Read part of a file."""
        with self.path(file_id).open("rb") as file:
            file.seek(place)
            return file.read(size)

    # ---- batches ----------------------------------------------------------------------------------------------------

    def add_batch(self, batch: BatchRecord) -> bool:
        """Take in a batch; False if its input file is gone."""
        if self.file(batch.input_file_id, "") is None:
            return False
        self._database.execute(
            "INSERT INTO batches (id, tenant, open, expires_at, record) VALUES (?, ?, 1, ?, ?)",
            (batch.id, batch.tenant, batch.expires_at, msgspec.json.encode(batch)),
        )
        return True

    def batch(self, batch_id: str, tenant: str) -> BatchRecord | None:
        """Look up a batch; None if there is none, or it belongs to another tenant (empty: any)."""
        return self._one("batches", batch_id, tenant, BatchRecord)

    def batches(self, tenant: str, page: Page) -> list[BatchRecord]:
        """A tenant's batches, one more than the page holds."""
        return self._page("batches", BatchRecord, tenant, page)

    def open_batches(self) -> list[BatchRecord]:
        """All tenants' unfinished batches, oldest first."""
        rows = self._database.execute("SELECT record FROM batches WHERE open ORDER BY number")
        return [msgspec.json.decode(record, type=BatchRecord) for (record,) in rows]

    def begin(self, batch: BatchRecord, now: int) -> None:
        """Start serving a batch whose lines are all checked, or fail it if none of them is a request."""
        with self._turn(batch) as turn:
            if turn.status is not Status.VALIDATING:
                return
            if turn.total > MAX_LINES:
                told = f"the file has too many requests; accepted: up to {MAX_LINES}"
                turn.errors = [Problem(code="too_many_requests", message=told), *turn.errors]
            elif turn.left:
                turn.become(Status.IN_PROGRESS, now)
                return
            elif not turn.total:
                turn.errors = [
                    Problem(code="empty_file", message="the file has no line; accepted: one a request")
                ]
            turn.ending = Status.FAILED
            turn.become(Status.FINALIZING, now)

    def end_early(self, batch: BatchRecord, ending: Status, now: int) -> None:
        """End a running batch with what it has, because it is complete, was cancelled, or its window closed."""
        with self._turn(batch) as turn:
            if turn.status not in (Status.VALIDATING, Status.IN_PROGRESS):
                return
            turn.ending = ending
            turn.become(Status.CANCELLING if ending is Status.CANCELLED else Status.FINALIZING, now)

    def check_lines(self, batch: BatchRecord) -> bool:
        """Read the next LINES_A_TURN lines of an input file; return whether these were the last.

        A line that is not a request is answered in the error file.
        """
        with self._turn(batch) as turn, self.path(batch.input_file_id).open("rb") as file:
            lines = lines_from(file, turn.read_bytes, turn.read_lines, self._longest_line)
            found = list(islice(lines, LINES_A_TURN))
            wrong = [problem_line(*each) for line in found if (each := self._check_line(turn, line))]
            self._append(turn, wrong, ok=False)
            turn.failed += len(wrong)
            turn.total += len(found)
            if found:
                turn.read_bytes, turn.read_lines = found[-1].place + found[-1].size, found[-1].number
        return len(found) < LINES_A_TURN or batch.total > MAX_LINES

    def _check_line(self, batch: BatchRecord, found: Found) -> tuple[str, str | None, Problem] | None:
        """Store a request, or return the problem of its line."""
        custom_id, model, problem = check_line(found, batch.endpoint, self._longest_line)
        batch.model = batch.model or model
        try:
            self._note(batch, found, custom_id, answered=problem is not None)
        except sqlite3.IntegrityError:
            assert custom_id is not None
            self._note(batch, found, None, answered=True)
            problem = duplicate(found.number, custom_id)
            custom_id = None
        if problem is None:
            return None
        if len(batch.errors) < KEPT_ERRORS:
            batch.errors = [*batch.errors, problem]
        return new_request_id(), custom_id, problem

    def _note(self, batch: BatchRecord, found: Found, custom_id: str | None, *, answered: bool) -> None:
        self._database.execute(
            "INSERT INTO requests (batch, line, custom_id, place, size, answered) VALUES (?, ?, ?, ?, ?, ?)",
            (batch.id, found.number, custom_id, found.place, found.size, answered),
        )

    def unanswered(self, batch_id: str, after_line: int, limit: int) -> list[Request]:
        """The next requests of a batch that have no answer."""
        rows = self._database.execute(
            "SELECT line, custom_id, place, size FROM requests WHERE batch = ? AND line > ? AND NOT answered "
            "ORDER BY line LIMIT ?",
            (batch_id, after_line, limit),
        )
        return [Request(*row) for row in rows]

    def answer(self, batch: BatchRecord, answers: Sequence[Answer]) -> None:
        """Store answers, except for requests that have one."""
        with self._turn(batch) as turn:
            new = [each for each in answers if self._mark(batch.id, each.line)]
            for ok in (True, False):
                self._append(turn, [each.data for each in new if each.ok is ok], ok=ok)
            turn.completed += sum(each.ok for each in new)
            turn.failed += sum(not each.ok for each in new)
            turn.input_tokens += sum(each.usage.input for each in new)
            turn.output_tokens += sum(each.usage.output for each in new)

    def _mark(self, batch_id: str, line: int) -> bool:
        """Mark a request as answered; return whether it was unanswered."""
        changed = self._database.execute(
            "UPDATE requests SET answered = 1 WHERE batch = ? AND line = ? AND NOT answered", (batch_id, line)
        )
        return changed.rowcount == 1

    def give_up(self, batch: BatchRecord, code: str, message: str) -> bool:
        """Answer the next LINES_A_TURN unanswered requests with this error; return whether these were the last."""
        left = self.unanswered(batch.id, 0, LINES_A_TURN)
        problem = Problem(code=code, message=message)
        lines = [(each.line, problem_line(new_request_id(), each.custom_id, problem)) for each in left]
        self.answer(batch, [Answer(line, False, data) for line, data in lines])
        return len(left) < LINES_A_TURN

    def _append(self, batch: BatchRecord, lines: Sequence[bytes], *, ok: bool) -> None:
        """Write lines after the valid ones, and flush them to the disk."""
        if not lines:
            return
        data = b"".join(lines)
        file_id, size = _answer_files(batch)[not ok]
        with self.path(file_id).open("ab") as file:
            file.truncate(size)  # removes what a failed attempt left
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if ok:
            batch.output_bytes += len(data)
        else:
            batch.error_bytes += len(data)

    def finish(self, batch: BatchRecord, now: int) -> None:
        """End a batch: its files become visible, its requests are removed."""
        with self._turn(batch) as turn:
            turn.become(turn.ending, now)
            for (file_id, size), name in zip(_answer_files(turn), ("output", "error"), strict=True):
                if size:
                    self.add_file(_answers_file(turn, file_id, f"{turn.id}_{name}.jsonl", size, now))
            self._database.execute("DELETE FROM requests WHERE batch = ?", (turn.id,))

    # ---- files and batches alike ------------------------------------------------------------------------------------

    def _one(self, table: str, record_id: str, tenant: str, kind: type[T]) -> T | None:
        row = self._database.execute(
            f"SELECT record FROM {table} WHERE id = ? AND ? IN ('', tenant)", (record_id, tenant)
        ).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=kind)

    def _page(
        self, table: str, kind: type[T], tenant: str, page: Page, purpose: str | None = None
    ) -> list[T]:
        """One record more than the page holds, if there are as many."""
        order, beyond = ("DESC", "<") if page.newest_first else ("ASC", ">")
        where, values = "? IN ('', tenant)", [tenant]
        if page.after:
            where += f" AND number {beyond} (SELECT number FROM {table} WHERE id = ?)"
            values.append(page.after)
        if purpose:
            where += " AND purpose = ?"
            values.append(purpose)
        rows = self._database.execute(
            f"SELECT record FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?",
            (*values, page.limit + 1),
        )
        return [msgspec.json.decode(record, type=kind) for (record,) in rows]


def new_request_id() -> str:
    """A new id for a request of a batch, and for the line of its answer."""
    return f"batch_req_{uuid4().hex}"


def _answer_files(batch: BatchRecord) -> tuple[tuple[str, int], tuple[str, int]]:
    """A batch's output and error file: the id and the length."""
    return (batch.output_file_id, batch.output_bytes), (batch.error_file_id, batch.error_bytes)


def _answers_file(batch: BatchRecord, file_id: str, filename: str, size: int, now: int) -> FileRecord:
    return FileRecord(
        id=file_id,
        tenant=batch.tenant,
        filename=filename,
        purpose=OUTPUT_PURPOSE,
        bytes=size,
        created_at=now,
        expires_at=now + batch.answers_kept_s,
    )
