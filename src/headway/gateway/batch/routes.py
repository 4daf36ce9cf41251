"""OpenAI's Files and Batch API over HTTP: `/v1/files` and `/v1/batches`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from headway.gateway.batch.batches import Batches
from headway.gateway.batch.board import BatchBoard
from headway.gateway.batch.objects import (
    PURPOSE,
    BatchRecord,
    Expiry,
    FileRecord,
    kept_s,
    read_batch_request,
    window_s,
)
from headway.gateway.batch.store import Page
from headway.gateway.batch.upload import UploadForm, read_form
from headway.gateway.http.api import BATCHES_PATH, FILES_PATH
from headway.gateway.http.asgi_client import KEY_TENANT, body_pieces, read_body
from headway.gateway.http.client_limits import HELD
from headway.gateway.http.options import MIB, GatewayOptions
from headway.gateway.http.refusal import GatewayError, bad_request, json_page
from headway.gateway.request.generation_request import checked_hints, tenant_of

_MOST_FILES, _MOST_BATCHES = 10_000, 100
_USUAL_FILES, _USUAL_BATCHES = 10_000, 20
_MOST_BODY_BYTES = 64 * 2**10
_FORM_BYTES = 64 * 2**10
"""Most bytes of a form besides its file."""


@dataclass(frozen=True, slots=True)
class BatchPages:
    """Answers requests about files and batches; a tenant sees only its own, an operator all."""

    batches: Batches
    board: BatchBoard
    options: GatewayOptions
    _uploading: Counter[str] = field(default_factory=Counter)

    def tenant(self, request: Request) -> str:
        """The tenant whose files and batches are meant: that of the key, or one that a trusted client names."""
        hints = checked_hints(request.scope["headers"], {}, None)
        tenant = tenant_of(hints.tenant, request.scope.get(KEY_TENANT, ""))
        return tenant if self.options.names_tenants else ""

    # ---- files ------------------------------------------------------------------------------------------------------

    async def upload(self, request: Request) -> Response:
        """`POST /v1/files`."""
        tenant, store = self.tenant(request), self.batches.store
        request.scope[HELD].streamed = True
        used = await self.batches.call(store.used_bytes, tenant)
        limit = self.options.max_file_mib * MIB + _FORM_BYTES
        came = 0

        def check(more: int) -> None:
            nonlocal came
            came += more
            self._uploading[tenant] += more
            self._check_room(tenant, used)

        file_id = f"file-{uuid4().hex}"
        try:
            pieces = body_pieces(request.scope, request.receive, limit)
            form = await read_form(request.scope["headers"], pieces, store.path(file_id), check)
            try:
                record = self._uploaded(form, file_id, tenant)
                await self.batches.call(store.add_file, record)
            except BaseException:
                store.path(file_id).unlink(missing_ok=True)
                raise
        finally:
            self._uploading[tenant] -= came
            if not self._uploading[tenant]:
                del self._uploading[tenant]
        return json_page(record.shown())

    def _check_room(self, tenant: str, used: int) -> None:
        most = self.options.max_files_mib * MIB
        if used + self._uploading[tenant] > most:
            raise GatewayError(
                413,
                "files_full",
                f"the tenant's files take {used} bytes, and more than {most - used} are on the way; accepted: {most} "
                "in all (--max-files-mib): delete some",
            )

    def _uploaded(self, form: UploadForm, file_id: str, tenant: str) -> FileRecord:
        purpose = form.fields.get("purpose")
        if purpose != PURPOSE:
            raise bad_request(f"purpose is {purpose!r}; accepted: {PURPOSE!r}", "purpose")
        now = int(self.batches.wall_clock())
        return FileRecord(
            id=file_id,
            tenant=tenant,
            filename=form.filename or "",
            purpose=purpose,
            bytes=form.bytes,
            created_at=now,
            expires_at=now + kept_s(_expiry(form.fields), "expires_after"),
        )

    async def files(self, request: Request) -> Response:
        """`GET /v1/files`."""
        page = _page(request.query_params, _USUAL_FILES, _MOST_FILES)
        purpose = request.query_params.get("purpose")
        found = await self.batches.call(self.batches.store.files, self.tenant(request), page, purpose)
        return _listed([file.shown() for file in found], page)

    async def file(self, request: Request) -> Response:
        """`GET /v1/files/ID`."""
        return json_page((await self._file(request)).shown())

    async def content(self, request: Request) -> Response:
        """`GET /v1/files/ID/content`."""
        record = await self._file(request)
        path = self.batches.store.path(record.id)
        return FileResponse(
            path, media_type="application/octet-stream", headers={"Cache-Control": "no-store"}
        )

    async def remove(self, request: Request) -> Response:
        """`DELETE /v1/files/ID`."""
        record = await self._file(request)
        user = await self.batches.call(self.batches.store.remove_file, record.id)
        if user is not None:
            raise GatewayError(
                409, "file_in_use", f"batch {user} has not ended and needs the file; accepted: once it has"
            )
        return json_page({"id": record.id, "object": "file", "deleted": True})

    async def _file(self, request: Request) -> FileRecord:
        return await self._known_file(request.path_params["file_id"], self.tenant(request))

    async def _known_file(self, file_id: str, tenant: str) -> FileRecord:
        found = await self.batches.call(self.batches.store.file, file_id, tenant)
        if found is None:
            raise _unknown_file(file_id)
        return found

    # ---- batches ----------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Response:
        """`POST /v1/batches`."""
        tenant = self.tenant(request)
        body = await read_body(request.scope, request.receive, _MOST_BODY_BYTES)
        asked = read_batch_request(body)
        window, kept = (
            window_s(asked.completion_window),
            kept_s(asked.output_expires_after, "output_expires_after"),
        )
        unended = sum(batch.record.tenant == tenant for batch in self.batches.open.values())
        if unended >= self.options.max_batches:
            raise GatewayError(
                429,
                "too_many_batches",
                f"{unended} batches have not ended; accepted: {self.options.max_batches} (--max-batches)",
                retry_after_s=60,
            )
        file = await self._known_file(asked.input_file_id, tenant)
        now = int(self.batches.wall_clock())
        record = BatchRecord(
            id=f"batch_{uuid4().hex}",
            tenant=tenant or file.tenant,
            endpoint=asked.endpoint,
            input_file_id=file.id,
            output_file_id=f"file-{uuid4().hex}",
            error_file_id=f"file-{uuid4().hex}",
            completion_window=asked.completion_window,
            window_s=window,
            created_at=now,
            expires_at=now + int(window),
            answers_kept_s=kept,
            metadata=asked.metadata,
        )
        if not await self.batches.add(record):
            raise _unknown_file(file.id)
        return self._shown(record)

    async def list(self, request: Request) -> Response:
        """`GET /v1/batches`."""
        page = _page(request.query_params, _USUAL_BATCHES, _MOST_BATCHES)
        found = await self.batches.call(self.batches.store.batches, self.tenant(request), page)
        return _listed([record.shown(self.board.outlook(record.id)) for record in found], page)

    async def batch(self, request: Request) -> Response:
        """`GET /v1/batches/ID`."""
        return self._shown(await self._batch(request))

    async def cancel(self, request: Request) -> Response:
        """`POST /v1/batches/ID/cancel`; a batch that has ended stays as it is."""
        await self.batches.cancel((await self._batch(request)).id)
        return self._shown(await self._batch(request))

    async def _batch(self, request: Request) -> BatchRecord:
        batch_id: str = request.path_params["batch_id"]
        found = await self.batches.call(self.batches.store.batch, batch_id, self.tenant(request))
        if found is None:
            raise GatewayError(
                404, "unknown_batch", f"no batch {batch_id[:80]!r}; accepted: one of GET {BATCHES_PATH}"
            )
        return found

    def _shown(self, record: BatchRecord) -> Response:
        return json_page(record.shown(self.board.outlook(record.id)))


def batch_routes(pages: BatchPages) -> list[Route]:
    """The paths of the API."""
    file, batch = f"{FILES_PATH}/{{file_id}}", f"{BATCHES_PATH}/{{batch_id}}"
    served: Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = (
        ("POST", FILES_PATH, pages.upload),
        ("GET", FILES_PATH, pages.files),
        ("GET", f"{file}/content", pages.content),
        ("GET", file, pages.file),
        ("DELETE", file, pages.remove),
        ("POST", BATCHES_PATH, pages.create),
        ("GET", BATCHES_PATH, pages.list),
        ("POST", f"{batch}/cancel", pages.cancel),
        ("GET", batch, pages.batch),
    )
    return [Route(path, answer, methods=[method]) for method, path, answer in served]


def _unknown_file(file_id: str) -> GatewayError:
    return GatewayError(404, "unknown_file", f"no file {file_id[:80]!r}; accepted: one of GET {FILES_PATH}")


def _expiry(fields: Mapping[str, str]) -> Expiry | None:
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return None
    if not seconds.isdecimal() or len(seconds) > 9:
        raise bad_request(
            f"expires_after[seconds] is {seconds[:40]!r}; accepted: a whole number", "expires_after"
        )
    return Expiry(int(seconds), fields.get("expires_after[anchor]", ""))


def _page(query: Mapping[str, str], usual: int, most: int) -> Page:
    """Read the paging parameters. Raises GatewayError (400) for an invalid limit or order."""
    limit, order = query.get("limit", str(usual)), query.get("order", "desc")
    if not limit.isdecimal() or len(limit) > 9 or not 1 <= int(limit) <= most:
        raise bad_request(f"limit is {limit[:40]!r}; accepted: 1 to {most}", "limit")
    if order not in ("asc", "desc"):
        raise bad_request(f"order is {order[:40]!r}; accepted: asc, desc", "order")
    return Page(query.get("after", ""), int(limit), newest_first=order == "desc")


def _listed(found: Sequence[Mapping[str, Any]], page: Page) -> Response:
    data = found[: page.limit]
    ends = (
        {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
        if data
        else {"first_id": None, "last_id": None}
    )
    return json_page({"object": "list", "data": data, **ends, "has_more": len(found) > page.limit})
