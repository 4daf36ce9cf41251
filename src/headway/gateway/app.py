"""The gateway as an ASGI app, and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from typing import cast
from uuid import uuid4

import uvicorn
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from headway.core.hints import quoted
from headway.core.slo import NO_TARGETS
from headway.gateway.batch.asking import Asking
from headway.gateway.batch.batches import Batches
from headway.gateway.batch.board import BatchBoard
from headway.gateway.batch.routes import BatchPages, batch_routes
from headway.gateway.batch.store import BatchStore
from headway.gateway.book.access_log import AccessLog
from headway.gateway.book.dashboard import Dashboard, dashboard_routes
from headway.gateway.book.explain import Explaining, explain_routes
from headway.gateway.book.metrics import GatewayMetrics, build_registry
from headway.gateway.book.scale_board import ScaleBoard, scale_route
from headway.gateway.book.shadow_board import ENGINE_PATH, ShadowBoard, shadow_routes
from headway.gateway.fleet.fleet import Fleet
from headway.gateway.fleet.scaling import FleetScaling
from headway.gateway.http.api import APIS, EXPLAIN_PATHS, is_of_batches, normal_path
from headway.gateway.http.asgi_client import API_KEY, KEY_TENANT, Client, ClientGone, Headers, read_body
from headway.gateway.http.client_limits import HELD, ClientLimits, open_files_limit
from headway.gateway.http.connection import Connection
from headway.gateway.http.keys import check_key
from headway.gateway.http.options import MIB, GatewayOptions
from headway.gateway.http.refusal import GatewayError, bad_request, no_instance, refused
from headway.gateway.http.server import FrontServer, listen
from headway.gateway.openapi import openapi_route
from headway.gateway.request.body_reader import BodyReader
from headway.gateway.request.central_queue import CentralBatching
from headway.gateway.request.forwarding import Broadcast, PassThrough, goes_to_all
from headway.gateway.request.generation_request import MAX_ID_CHARACTERS
from headway.gateway.request.interrupt import Interrupt, WaitCut
from headway.gateway.request.lifecycle import serve as serve_request
from headway.gateway.request.serving import Serving
from headway.routing import Router

_LOG = logging.getLogger(__name__)

_OPEN = ("/health", "/ready")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_PREFIXES = tuple(f"{path}/" for path in (*EXPLAIN_PATHS, ENGINE_PATH))
_METHODS_OF_APIS = b"OPTIONS, POST"
_METHODS = b"GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE"
"""Methods of requests that may go to an instance."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_KEEP_ALIVE_S = 75
"""Longer than load balancers keep idle connections, so that the load balancer closes them."""
_LAST_WORDS_S = 1.0
"""Time between the end of the drain, when clients are told, and the closing of their connections."""


class Gateway:
    """The ASGI app: requests for tokens take the serving path, its own pages are answered here, the rest is passed
    through.

    Raises ConfigError if the access log cannot be written, or the batch folder cannot be used.
    """

    def __init__(
        self,
        fleet: Fleet,
        router: Router,
        options: GatewayOptions,
        clock: Callable[[], float] = time.monotonic,
        batching: CentralBatching | None = None,
        scaling: FleetScaling | None = None,
    ) -> None:
        log = None if options.access_log is None else AccessLog(options.access_log)
        self.serving = Serving(fleet, router, options, clock=clock, log=log, batching=batching)
        self.limits = ClientLimits(options.max_buffered_mib * MIB, open_files_limit(), clock)
        self._fleet = fleet
        self._options = options
        self._clock = clock
        self.bodies = BodyReader()
        self._passthrough = PassThrough(self.serving, self.bodies)
        self._broadcast = Broadcast(self.serving)
        self.shadows = ShadowBoard()
        self.scale = ScaleBoard(scaling)
        self.batches = self._kept_batches()
        cors = options.cors
        self._answering = self._answer if cors is None else CORSMiddleware(self._answer, **asdict(cors))
        self._own = self._own_pages(router)
        self._paths = {route.path for route in self._own.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the app's lifespan."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._own(scope, receive, send)
        elif kind == "http":
            scope["path"], scope["raw_path"] = normal_path(scope["raw_path"])
            await self._answering(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": "accepted: HTTP"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, client = scope["path"], Client(send)
        try:
            tenant = ""
            if path not in _OPEN:
                said = dict(scope["headers"])
                tenant = self._tenant(said)
                self.limits.admit(scope[HELD], tenant)
                if scope["method"] not in _SAFE_METHODS:
                    self._check_origin(said)
            if path in APIS and scope["method"] == "POST":
                await self._serve(scope, receive, client, tenant)
                return
            check_key(path, tenant)
            if scope["method"] == "OPTIONS":
                await self._tell_methods(path, client)
            elif self._is_own(path):
                scope[KEY_TENANT] = tenant
                await self._own(scope, receive, send)
            elif goes_to_all(scope):
                await self._broadcast(scope, receive, client)
            else:
                await self._passthrough(scope, receive, client, tenant)
        except GatewayError as refusal:
            if client.began:
                raise
            await self.serving.refuse(client, refusal, NO_TARGETS, "")
        except ClientGone:
            pass

    async def _tell_methods(self, path: str, client: Client) -> None:
        """Answer OPTIONS here, without asking an instance. Raises GatewayError (400) for an invalid path."""
        if not path.startswith("/"):
            raise bad_request(f"the path is {path[:80]!r}; accepted: one that begins with /")
        await client.begin(204, [(b"allow", self._methods_of(path))])
        await client.end()

    def _methods_of(self, path: str) -> bytes:
        if path in APIS:
            return _METHODS_OF_APIS
        if not self._is_own(path):
            return _METHODS
        asked = {"type": "http", "path": path, "method": "OPTIONS"}
        matching = (route for route in self._own.routes if route.matches(asked)[0] is not Match.NONE)
        found = {method for route in matching if isinstance(route, Route) for method in route.methods or ()}
        return ", ".join(sorted(found | {"OPTIONS"})).encode()

    def _is_own(self, path: str) -> bool:
        """Whether the gateway answers a path itself. Raises GatewayError (404) for batch paths if there are no
        batches.
        """
        if is_of_batches(path):
            if self.batches is None:
                raise GatewayError(
                    404, "no_batches", "no batches are kept here; accepted: with --batch-dir FOLDER"
                )
            return True
        return path in self._paths or path.startswith(_OWN_PREFIXES)

    async def _serve(self, scope: Scope, receive: Receive, client: Client, tenant: str) -> None:
        arrival_s, headers = self._clock(), scope["headers"]
        client.request_id = _request_id(headers)
        body = await read_body(scope, receive, self._options.max_body_bytes)
        query = scope["query_string"].decode("latin-1")
        interrupt = Interrupt()
        scope[HELD].on_gone = interrupt.client_left
        try:
            reading = self.bodies.read(
                f"{scope['path']}?{query}" if query else scope["path"],
                headers,
                body,
                request_id=client.request_id.decode("latin-1"),
                default_slo=self._options.slo,
                key_tenant=tenant,
                names_tenants=self._options.names_tenants,
            )
            request = await interrupt.wait(reading)
            # The body may have named it, in a form that no header can hold.
            client.request_id = request.request_id.encode() if request.request_id.isascii() else b""
            if request.previous_id is not None:
                self.serving.stored.check(request.previous_id, tenant)
            await serve_request(self.serving, request, client, headers, interrupt, arrival_s)
        except WaitCut:
            raise ClientGone from None

    def _check_origin(self, said: Mapping[bytes, bytes]) -> None:
        """Raise GatewayError (403) if a page of another origin asks for more than it may read.

        A browser adds keys that it knows, and reaches servers that only this machine can reach.
        """
        origin = said.get(b"origin")
        if origin is None or origin.partition(b"://")[2] == said.get(b"host"):
            return
        allowed = () if self._options.cors is None else self._options.cors.allow_origins
        if "*" not in allowed and origin.decode("latin-1") not in allowed:
            message = f"a page of {quoted(origin.decode('latin-1'))} asks; accepted: of --allowed-origins"
            raise GatewayError(403, "other_origin", message)

    def _tenant(self, said: Mapping[bytes, bytes]) -> str:
        """The tenant of the request's key, empty without one. Raises GatewayError (401) without a known key."""
        keys = self._options.keys
        if not keys:
            return ""
        given = [said.get(b"authorization", b""), b"Bearer " + said.get(API_KEY, b"")]
        tenant = next((found for key in given if (found := keys.tenant_of(key)) is not None), None)
        if tenant is None:
            accepted = "Authorization: Bearer KEY, or x-api-key: KEY"
            raise GatewayError(
                401, "invalid_api_key", f"no API key, or one that is not known; accepted: {accepted}"
            )
        return tenant

    def _kept_batches(self) -> Batches | None:
        options = self._options
        if options.batch_dir is None:
            return None
        store = BatchStore(options.batch_dir, options.max_body_bytes)
        return Batches(Asking(self.serving, self.bodies, self.limits), options, store)

    def _own_pages(self, router: Router) -> Starlette:
        serving, batches = self.serving, self.batches
        board = None if batches is None else BatchBoard(batches)
        explaining = Explaining(serving.accounts, self._fleet, clock=self._clock)
        dashboard = Dashboard(
            serving.accounts,
            self._fleet,
            router,
            max_queue=self._options.max_queue,
            shadows=self.shadows,
            batches=list if board is None else board.states,
            clock=self._clock,
        )
        figures = GatewayMetrics(
            serving.accounts,
            self._fleet,
            self.limits,
            lambda: serving.queue.waiting,
            batches=None if (central := serving.batches) is None else (lambda: central.counts),
            clock=self._clock,
        )
        registry = build_registry(figures, self.shadows, self.scale, *filter(None, [board]))

        async def metrics(_request: Request) -> Response:
            return Response(generate_latest(registry), headers={"content-type": _METRICS_TYPE})

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> AsyncIterator[None]:
            beside = [asyncio.create_task(dashboard.run()), asyncio.create_task(dashboard.kv.run())]
            if serving.batches is not None:
                serving.batches.prepare()
            if batches is not None:
                beside.append(asyncio.create_task(batches.run()))
            yield
            for task in beside:
                task.cancel()
            if batches is not None:
                await batches.close()
            serving.close()
            self.bodies.close()

        routes = [
            Route("/health", Response(), methods=["GET"]),
            Route("/ready", self._ready),
            Route("/v1/models", self._models),
            Route("/metrics", metrics),
            openapi_route(batches=batches is not None, scale=self.scale.scaling is not None),
            *explain_routes(explaining),
            *shadow_routes(self.shadows),
            scale_route(self.scale),
            *dashboard_routes(dashboard),
        ]
        if batches is not None and board is not None:
            routes += batch_routes(BatchPages(batches, board, self._options))
        return Starlette(routes=routes, lifespan=lifespan, exception_handlers={GatewayError: _refuse})

    async def _ready(self, _request: Request) -> Response:
        if self.serving.closing or not self._fleet.names():
            return refused(no_instance())
        return Response()

    async def _models(self, _request: Request) -> Response:
        models = self._fleet.models
        if not models:
            return refused(no_instance())
        return Response(models, media_type="application/json")


def _refuse(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, GatewayError)
    return refused(refusal)


async def serve(app: Gateway, host: str, port: int, stop: asyncio.Event) -> None:
    """Serve at an address until `stop` is set. Raises ConfigError if it is not available. See `serve_on`."""
    await serve_on(app, listen(host, port), stop)


async def serve_on(app: Gateway, listener: socket.socket, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; then accept nothing new, and give running requests the drain time.

    Returns when every connection is closed; one whose client neither sends nor reads is cut.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http=cast("type[asyncio.Protocol]", partial(Connection, app.limits)),
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level=logging.ERROR,  # at lower levels uvicorn logs a line for each mistake of a client
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        ssl_certfile=app.serving.options.ssl_certfile,
        ssl_keyfile=app.serving.options.ssl_keyfile,
    )
    server = FrontServer(config, listener)
    ending = asyncio.create_task(_end(app, server, stop))
    try:
        with listener:  # uvicorn leaves it open if it is told to stop while it starts
            await server.serve()
    finally:
        ending.cancel()


async def _end(app: Gateway, server: uvicorn.Server, stop: asyncio.Event) -> None:
    await stop.wait()
    server.should_exit = True
    if app.batches is not None:
        app.batches.stop()
    await asyncio.sleep(app.serving.options.drain_s)
    _LOG.warning("%d requests are cut off after %g s", len(app.serving.running), app.serving.options.drain_s)
    app.serving.cut_all()
    await asyncio.sleep(_LAST_WORDS_S)
    # A client that has not sent its whole request, or reads none of its answer, cannot be told.
    for connection in list(server.server_state.connections):
        connection.transport.abort()


def _request_id(headers: Headers) -> bytes:
    """The client's request id if it is printable; else a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    fits = 0 < len(given) <= MAX_ID_CHARACTERS and given.isascii() and given.decode().isprintable()
    return given if fits else uuid4().hex.encode()
