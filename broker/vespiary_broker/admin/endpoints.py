"""What the HTTP listener answers: probes, metrics, the API by its table of routes, one page.

Owns the way between HTTP and the handlers: headers, checks in their order, encoding, and every
error as a problem. Must never answer without having checked who asks; the probes alone are open to
all. Called by `server`; owner: the event loop.

    /healthz   200 while the process and its loop live and the journal is not fenced
    /readyz    200 while the broker takes messages, else 503 and the reason; a second line says
               why producers wait for the disk
    /metrics   Prometheus; open to this machine, else with a login
    /api/v1    the API; /api/v1/openapi.json describes it
    /          a page for people
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus
from importlib import resources
from typing import Any, Final

import msgspec
from aiohttp import web

from vespiary_broker.admin import metrics, openapi, permissions
from vespiary_broker.admin.access import Access
from vespiary_broker.admin.first_bytes import PROBE_PATHS, client_of
from vespiary_broker.admin.handlers import Api, Call
from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.problems import MEDIA_TYPE, Refused, refused
from vespiary_broker.admin.request_log import request_log
from vespiary_broker.admin.route import Route
from vespiary_broker.admin.routes import BASE, BODY_BYTES_MAX, ROUTES, read_body, read_query
from vespiary_broker.admin.transfer_endpoints import PREFIX as TRANSFERS
from vespiary_broker.admin.transfer_endpoints import PRINCIPAL, TransferEndpoints
from vespiary_spec.errors import VespiaryError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_ANSWER_S: Final = 30.0
_HEADERS: Final = {
    "Server": "Vespiary",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}

log = logging.getLogger(__name__)


def _read_page() -> tuple[str, str]:
    """Return the page, and a policy that lets its own script and style work and nothing else."""
    page = resources.files("vespiary_broker.admin").joinpath("page.html").read_text("utf-8")

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in found)
        return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)

    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


_PAGE, _PAGE_POLICY = _read_page()


class Site:
    """The answers.

    Args:
        broker: The broker.
        access: Lets requests in.
        is_for_probes: Whether it answers probes and metrics alone, without a login.
    """

    def __init__(self, broker: Broker, access: Access, *, is_for_probes: bool = False) -> None:
        self.is_for_probes = is_for_probes
        self._broker = broker
        self._access = access
        self._api = Api(broker)
        self._scrape = asyncio.Lock()
        self._heard_s: dict[Any, float] = {}
        self._busy: set[Any] = set()
        self._runner = web.AppRunner(
            self._application(),
            access_log=None,
            logger=request_log(),
            keepalive_timeout=15.0,
            shutdown_timeout=1.0,
        )

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        router = application.router
        for path in PROBE_PATHS:
            router.add_get(path, self._probe)
        router.add_get("/metrics", self._metrics)
        if self.is_for_probes:
            return application
        router.add_get("/", self._show_page)
        router.add_get(f"{BASE}/openapi.json", self._openapi)
        transfers = TransferEndpoints(self._broker)
        for name, handler in (
            ("queues", transfers.make_queue),
            ("messages", transfers.take_messages),
            ("large", transfers.take_large),
        ):
            router.add_post(f"{TRANSFERS}{name}", self._transfer(handler))
        for route in ROUTES:
            router.add_route(route.method, BASE + route.path, self._endpoint(route))
        return application

    # --- life -----------------------------------------------------------------------------------

    async def open(self) -> Callable[[], asyncio.Protocol]:
        """Return the factory of protocols for new connections."""
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        return server

    async def close(self) -> None:
        """Let answers that are being made end, and close all connections."""
        await self._runner.cleanup()

    @property
    def connection_count(self) -> int:
        """Open connections."""
        server = self._runner.server
        return 0 if server is None else len(server.connections)

    def count_of(self, client: str) -> int:
        """Return how many open connections come from a client (`first_bytes.client_of`)."""
        server = self._runner.server
        connections = [] if server is None else server.connections
        return sum(client_of(connection.transport) == client for connection in connections)

    def sweep(self, now_s: float, idle_s: float) -> None:
        """Close connections that have had no complete request for too long.

        Args:
            now_s: The loop's clock.
            idle_s: Seconds that a connection may be idle.
        """
        server = self._runner.server
        connections = [] if server is None else server.connections
        known = {connection: self._heard_s.get(connection, now_s) for connection in connections}
        for connection, heard_s in known.items():
            if connection not in self._busy and now_s - heard_s > idle_s:
                connection.force_close()
        self._heard_s = known

    # --- every request --------------------------------------------------------------------------

    @property
    def _guard(self) -> Any:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._busy.add(connection)
            try:
                response = await self._answer(request, handler)
            finally:
                self._busy.discard(connection)
                self._heard_s[connection] = asyncio.get_running_loop().time()
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guard

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            # What another broker hands over may be long; each piece of it has a time of its own.
            async with asyncio.timeout(None if request.path.startswith(TRANSFERS) else _ANSWER_S):
                await self._let_in(request)
                return await handler(request)
        except Refused as refusal:
            return _problem(request, refusal)
        except web.HTTPException as error:
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                text = f"The body is larger than {BODY_BYTES_MAX} bytes."
            elif error.status == HTTPStatus.NOT_FOUND:
                text = f"There is nothing at {request.path[:200]!r}; {BASE}/openapi.json lists all."
                if self.is_for_probes:
                    text = "This port answers /healthz, /readyz and /metrics alone."
            else:
                text = f"{request.method} is not possible at {request.path[:200]!r}."
            allow = error.headers.get("Allow")
            headers = {"Allow": allow} if allow else {}
            return _problem(request, Refused(error.status, text, headers=headers))
        except VespiaryError as error:
            return _problem(request, refused(error))
        except TimeoutError:
            return _problem(request, Refused(503, f"No answer within {_ANSWER_S:g} s."))
        except Exception as error:
            log.exception("request failed method=%s path=%s", request.method, request.path)
            text = f"A defect of the broker: {type(error).__name__}; its log has the details."
            return _problem(request, Refused(500, text))

    async def _let_in(self, request: web.Request) -> None:
        """Check who asks from where.

        Raises:
            Refused: Not this request.
        """
        path = request.path
        if path in PROBE_PATHS:
            return
        self._access.check_place(request.headers)
        if self.is_for_probes or (path == "/metrics" and self._access.is_local):
            return
        principal = await self._access.login(
            request.headers, request.remote or "", request.transport
        )
        request[PRINCIPAL] = principal

    # --- probes, metrics, page ------------------------------------------------------------------

    def answer_probe(self, request: bytes) -> bytes:
        """Return the answer to a probe as bytes of HTTP, for the last answer of a connection.

        Args:
            request: The request; it begins as one of a probe does.
        """
        method, path, _ = request.split(b" ", 2)
        status, text = self._probed(path.decode())
        lines = {**_HEADERS, "Content-Type": "text/plain; charset=utf-8", "Connection": "close"}
        lines["Content-Length"] = str(len(text.encode()))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        body = "" if method == b"HEAD" else text
        return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n{body}".encode()

    async def _probe(self, request: web.Request) -> web.Response:
        status, text = self._probed(request.path)
        return web.Response(status=status, text=text)

    def _probed(self, path: str) -> tuple[HTTPStatus, str]:
        """Return what a probe is told.

        A full disk is no reason not to be ready: consumers have to come to make room. The answer
        says so, though.
        """
        if path == "/healthz":
            reason, good = self._broker.failed_reason, "alive"
        else:
            blocked = self._broker.blocked_reason
            good = f"ready\nproducers wait: {blocked}" if blocked else "ready"
            reason = self._broker.not_ready_reason
        return HTTPStatus.SERVICE_UNAVAILABLE if reason else HTTPStatus.OK, f"{reason or good}\n"

    async def _metrics(self, request: web.Request) -> web.Response:
        async with self._scrape:  # many at once would hold many copies
            scrape = await metrics.gather(self._broker, self._api.space)
            accept = request.headers.get("Accept", "")
            text, media_type = await asyncio.to_thread(metrics.render, scrape, accept)
        return web.Response(body=text, headers={"Content-Type": media_type})

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.Response(body=openapi.encoded_document(), content_type="application/json")

    async def _show_page(self, _: web.Request) -> web.Response:
        return web.Response(
            text=_PAGE,
            content_type="text/html",
            headers={"Content-Security-Policy": _PAGE_POLICY},
        )

    # --- messages of other brokers --------------------------------------------------------------

    def _transfer(self, take: Callable[[web.Request], Awaitable[dict[str, Any]]]) -> Handler:
        async def endpoint(request: web.Request) -> web.Response:
            self._access.check_administrator(request[PRINCIPAL], "may look but not change")
            answer = msgspec.json.encode(await take(request))
            return web.Response(body=answer, content_type="application/json")

        return endpoint

    # --- the API --------------------------------------------------------------------------------

    def _endpoint(self, route: Route) -> Handler:
        async def endpoint(request: web.Request) -> web.Response:
            principal = request[PRINCIPAL]
            is_ruled = permissions.is_ruled(self._broker, route, principal)
            if not is_ruled:
                self._access.check(principal, route)
            call = await _read_call(route, request)
            if is_ruled:
                call = replace(call, user=principal.name)
                permissions.check(self._broker, route, principal, call)
            permissions.check_owners(self._broker, route, principal, call)
            await self._broker.compile_filter(_filter_of(call))
            answer = await route.handler(self._api, call)
            if route.is_change:
                log.info(
                    "administration user=%s operation=%s name=%r status=%d",
                    principal.name,
                    route.operation,
                    call.name or getattr(call.body, "name", ""),
                    answer.status,
                )
            headers = dict(answer.headers)
            if answer.location:
                headers["Location"] = answer.location
            if answer.value is None:
                return web.Response(status=answer.status, headers=headers)
            if isinstance(answer.value, str):
                return web.Response(
                    status=answer.status, text=answer.value, content_type=route.text_type
                )
            if isinstance(answer.value, bytes | bytearray):
                return web.Response(
                    status=answer.status,
                    body=answer.value,
                    content_type=route.text_type,
                    headers=headers,
                )
            return web.Response(
                status=answer.status,
                body=msgspec.json.encode(answer.value),
                content_type="application/json",
                headers=headers,
            )

        return endpoint


async def _read_call(route: Route, request: web.Request) -> Call:
    """Return the call that a request makes.

    Raises:
        Refused: 400 or 415: it is not one that the operation takes.
    """
    data = await request.read()
    if data and route.body is not None and request.content_type != "application/json":
        raise Refused(415, f"The body has to be application/json, not {request.content_type!r}.")
    try:
        return Call(
            name=request.match_info.get("name", ""),
            query=read_query(route, list(request.query.items())),
            body=read_body(route, data),
        )
    except ValueError as error:
        raise Refused(400, str(error)) from error


def _filter_of(call: Call) -> str:
    """Return the selector in the body of a call; empty if there is none."""
    text = getattr(call.body, "filter_string", None) or getattr(call.body, "filter", None)
    return text if isinstance(text, str) else ""


def _problem(request: web.Request, refusal: Refused) -> web.Response:
    return web.Response(
        status=refusal.status,
        body=msgspec.json.encode(refusal.problem(request.path)),
        content_type=MEDIA_TYPE,
        headers=refusal.headers,
    )
