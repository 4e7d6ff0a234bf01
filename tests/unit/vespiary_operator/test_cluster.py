"""The client against an API server that answers badly: what is missing, and what only failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import kubernetes
import pytest
from aiohttp import web

from vespiary_operator import kinds
from vespiary_operator.api_errors import (
    ApiRefusedError,
    ApiUnavailableError,
    KindNotServedError,
    NotLeadingError,
)
from vespiary_operator.cluster import Cluster
from vespiary_spec.errors import TemporaryReconcileError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def status(code: int, reason: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason}, status=code)


def asked(handler: Handler, call: Callable[[Cluster], Awaitable[Any]]) -> Any:
    """Return the result of a call to an API server that answers as the handler does."""

    async def main() -> Any:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = kubernetes.client.Configuration()
        found.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        found.retries = False
        cluster = Cluster(kubernetes.client.ApiClient(found))
        try:
            return await call(cluster)
        finally:
            cluster.close()
            await runner.cleanup()

    return asyncio.run(main())


def test_a_kind_is_asked_for_without_any_discovery() -> None:
    paths = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(f"{request.method} {request.path}")
        return web.json_response({"metadata": {"name": "x"}, "status": {}})

    async def call(cluster: Cluster) -> None:
        await cluster.get(kinds.POD_MONITOR, "x", "ns")
        await cluster.items(kinds.NODE)
        await cluster.apply_status(kinds.BROKER, "x", "ns", {})
        await cluster.apply_status(kinds.NODE_TUNING, "default", "", {})

    asked(answer, call)
    assert paths == [
        "GET /apis/monitoring.coreos.com/v1/namespaces/ns/podmonitors/x",
        "GET /api/v1/nodes",
        "PATCH /apis/vespiary.dev/v1beta1/namespaces/ns/brokers/x/status",
        "PATCH /apis/vespiary.dev/v1beta1/brokernodetunings/default/status",
    ]


def test_a_kind_that_is_not_there_is_told_from_an_object_and_from_an_api_that_fails() -> None:
    """A group behind an aggregated API that is down (503) is not one that is not installed."""

    async def nothing(_: web.Request) -> web.StreamResponse:
        return web.Response(text="404 page not found\n", status=404)

    async def no_object(_: web.Request) -> web.StreamResponse:
        return status(404, "NotFound")

    async def down(_: web.Request) -> web.StreamResponse:
        return status(503, "ServiceUnavailable")

    def optional(handler: Handler) -> Any:
        return asked(handler, lambda cluster: cluster.get_if_served(kinds.POD_MONITOR, "x", "ns"))

    assert optional(nothing) == (False, None)
    assert optional(no_object) == (True, None)
    with pytest.raises(TemporaryReconcileError, match="503"):
        optional(down)
    with pytest.raises(KindNotServedError, match="does not know this kind"):
        asked(nothing, lambda cluster: cluster.items(kinds.BROKER))
    with pytest.raises(TemporaryReconcileError):
        asked(down, lambda cluster: cluster.items_if_allowed(kinds.STORAGE_CLASS))


def test_whether_a_kind_is_served_is_asked_of_its_group_alone() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/apis/vespiary.dev/v1beta1":
            return web.json_response({"resources": [{"name": "brokers"}]})
        return web.Response(text="404 page not found\n", status=404)

    async def down(_: web.Request) -> web.StreamResponse:
        return status(503, "ServiceUnavailable")

    assert asked(answer, lambda cluster: cluster.is_served(kinds.BROKER))
    assert not asked(answer, lambda cluster: cluster.is_served(kinds.NODE_TUNING))
    assert not asked(answer, lambda cluster: cluster.is_served(kinds.TUNED))
    with pytest.raises(TemporaryReconcileError):
        asked(down, lambda cluster: cluster.is_served(kinds.BROKER))


def test_an_answer_that_breaks_off_or_is_none_is_tried_again() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        answer.content_length = 1000
        await answer.prepare(request)
        await answer.write(b'{"items": [')
        assert request.transport is not None
        request.transport.abort()
        return answer

    async def page(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>please log in</html>", content_type="text/html")

    for handler in (cut, page):
        with pytest.raises(TemporaryReconcileError, match="did not answer"):
            asked(handler, lambda cluster: cluster.items(kinds.POD, "ns"))


def test_a_refusal_of_a_write_is_said_with_its_status() -> None:
    async def conflict(_: web.Request) -> web.StreamResponse:
        body = {"kind": "Status", "message": "the object has been modified"}
        return web.Response(text=json.dumps(body), status=409, content_type="application/json")

    manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "orders", "namespace": "ns"},
    }
    with pytest.raises(ApiRefusedError, match="has been modified") as raised:
        asked(conflict, lambda cluster: cluster.apply(manifest))
    assert raised.value.status == 409


def test_an_operator_that_no_longer_leads_writes_nothing() -> None:
    came = []

    async def answer(request: web.Request) -> web.StreamResponse:
        came.append(f"{request.method} {request.path}")
        return web.json_response({"metadata": {"name": "x", "resourceVersion": "2"}})

    manifest = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "x", "namespace": "ns", "resourceVersion": "1"},
    }
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "ns"}}
    writes: list[Callable[[Cluster], Awaitable[Any]]] = [
        lambda cluster: cluster.create(service),
        lambda cluster: cluster.apply(service),
        lambda cluster: cluster.apply_status(kinds.BROKER, "x", "ns", {}),
        lambda cluster: cluster.delete(kinds.POD, "x", "ns", "uid"),
        lambda cluster: cluster.replace(manifest),
    ]

    async def call(cluster: Cluster) -> None:
        cluster.may_write = lambda: False
        for write in writes:
            with pytest.raises(NotLeadingError, match="no longer holds the Lease"):
                await write(cluster)
        await cluster.get(kinds.BROKER, "x", "ns")
        cluster.may_write = lambda: True
        await cluster.replace(manifest)

    asked(answer, call)
    assert came == [
        "GET /apis/vespiary.dev/v1beta1/namespaces/ns/brokers/x",
        "PUT /apis/coordination.k8s.io/v1/namespaces/ns/leases/x",
    ]


def test_a_read_is_tried_again_where_the_server_failed_just_then_and_a_write_is_not() -> None:
    left = 2
    came = []

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal left
        came.append(request.method)
        if left:
            left -= 1
            return status(500, "InternalError")
        return web.json_response({"metadata": {"name": "x"}})

    async def read(cluster: Cluster) -> None:
        assert await cluster.get(kinds.BROKER, "x", "ns") == {"metadata": {"name": "x"}}

    asked(answer, read)
    assert came == ["GET"] * 3
    left = 3
    with pytest.raises(ApiUnavailableError, match="500"):
        asked(answer, read)
    left, came[:] = 1, []
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "ns"}}
    with pytest.raises(ApiUnavailableError):
        asked(answer, lambda cluster: cluster.apply(service))
    assert came == ["PATCH"]


def test_a_server_that_asks_for_time_gets_it() -> None:
    came = []

    async def answer(_: web.Request) -> web.StreamResponse:
        came.append("GET")
        refused = status(429, "TooManyRequests")
        refused.headers["Retry-After"] = "30"
        return refused

    with pytest.raises(ApiUnavailableError) as raised:
        asked(answer, lambda cluster: cluster.get(kinds.BROKER, "x", "ns"))
    assert len(came) == 1
    assert raised.value.delay_s == 30
