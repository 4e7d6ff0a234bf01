"""The operator behind an API server that fails in every way: it goes on, and does nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import random
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from vespiary_testkit.failure_checks import check_log, names_of, seen_pods
from vespiary_testkit.kubernetes_cluster import BROKER, KubernetesCluster, small_broker, wait_for
from vespiary_testkit.local_operator import (
    LocalOperator,
    api_server,
    installed_operator_stopped,
)
from vespiary_testkit.seeds import seed_for

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.verify]

SEED = seed_for("api faults")


# --- a proxy that fails ---------------------------------------------------------------------------

# An API server that fails: a proxy in front of the real one, with faults from a seed. Which fault
# comes is drawn from a shuffled pack, so that a run of some length has every one of them.

READ_FAULTS = ("429", "500", "503", "reset", "cut answer", "slow")
WRITE_FAULTS = ("409", "429", "500", "503", "reset", "lost answer", "slow")
WATCH_FAULTS = ("watch cut", "watch expired", "503")
ALL_FAULTS = frozenset((*READ_FAULTS, *WRITE_FAULTS, *WATCH_FAULTS))

READ_GAP = (12, 30)
"""So many reads, from and to, come before the next fault of one: a pass takes about fifteen."""

WRITE_GAP = (2, 5)
WATCH_S = (2.0, 8.0)
"""A watch that is to be cut lasts so long."""

SLOW_S = 2.0

_SILENT = logging.Logger("faults", logging.CRITICAL + 1)

_REASONS = {
    "409": "Conflict",
    "429": "TooManyRequests",
    "500": "InternalError",
    "503": "ServiceUnavailable",
}
_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})


class _Pack:
    """Faults in a shuffled order, each with its gap; all have come before one comes again."""

    def __init__(self, faults: tuple[str, ...], gap: tuple[int, int], seed: str) -> None:
        self._faults = faults
        self._gap = gap
        self._random = random.Random(seed)
        self._left: list[str] = []
        self._until = self._random.randint(*gap)

    def draw(self) -> str:
        """Return the fault of this request; empty for most."""
        self._until -= 1
        if self._until > 0:
            return ""
        self._until = self._random.randint(*self._gap)
        if not self._left:
            self._left = list(self._faults)
            self._random.shuffle(self._left)
        return self._left.pop()

    def between(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class FaultyApi:
    """The proxy.

    Attributes:
        url: Where it listens.
        came: How often each fault came.
        requests: How many requests there were.
        is_faulty: Whether faults come.
    """

    def __init__(self, upstream: str, tls: ssl.SSLContext | None, seed: int) -> None:
        self.url = ""
        self.came: Counter[str] = Counter()
        self.requests = 0
        self.is_faulty = True
        self.is_away = False
        self._upstream = upstream.rstrip("/")
        self._tls = tls
        self._reads = _Pack(READ_FAULTS, READ_GAP, f"{seed} reads")
        self._writes = _Pack(WRITE_FAULTS, WRITE_GAP, f"{seed} writes")
        self._watches = _Pack(WATCH_FAULTS, (1, 2), f"{seed} watches")
        self._hangs = 0
        self._open: dict[int, web.Request] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def hang_once(self) -> None:
        """Let the next read get no answer, as long as the client waits for one."""
        self._hangs = 1

    def go_away(self) -> None:
        """Break every connection, and answer nothing until `come_back`."""
        self.is_away = True
        assert self._loop is not None

        def break_all() -> None:
            for request in list(self._open.values()):
                _abort(request)

        self._loop.call_soon_threadsafe(break_all)

    def come_back(self) -> None:
        self.is_away = False

    def _draw(self, request: web.Request) -> str:
        """Return what happens to a request; empty for nothing."""
        if self.is_away:
            return "away"
        if not self.is_faulty:
            return ""
        is_watch = request.query.get("watch", "") in ("true", "True", "1")
        pack = (
            self._watches if is_watch else self._reads if request.method == "GET" else self._writes
        )
        if request.method == "GET" and not is_watch and self._hangs:
            self._hangs -= 1
            return "hang"
        return pack.draw()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        fault = self._draw(request)
        if fault:
            self.came[fault] += 1
        self._open[id(request)] = request
        try:
            return await self._answer(request, fault)
        finally:
            del self._open[id(request)]

    async def _answer(self, request: web.Request, fault: str) -> web.StreamResponse:
        if fault in ("reset", "away"):
            raise _abort(request)
        if fault in _REASONS:
            return _refusal(fault)
        if fault == "hang":
            await asyncio.sleep(120)  # the client goes first, and that ends the handler
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        async with self._session.request(
            request.method,
            self._upstream + request.raw_path,
            data=body or None,
            headers=headers,
            ssl=self._tls if self._tls is not None else False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        ) as upstream:
            if fault.startswith("watch"):
                return await self._watch(request, upstream, fault)
            if "watch" in request.query:
                return await self._stream(request, upstream, None)
            data = await upstream.read()
            if fault == "lost answer":
                raise _abort(request)
            answer = _like(upstream)
            if fault == "cut answer" and data:
                answer.content_length = len(data)
                await answer.prepare(request)
                await answer.write(data[: len(data) // 2])
                raise _abort(request)
            await answer.prepare(request)
            await answer.write(data)
            await answer.write_eof()
            return answer

    async def _watch(
        self, request: web.Request, upstream: aiohttp.ClientResponse, fault: str
    ) -> web.StreamResponse:
        answer = await self._stream(request, upstream, self._watches.between(*WATCH_S))
        if fault == "watch expired":
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            await answer.write_eof()
            return answer
        raise _abort(request)

    async def _stream(
        self, request: web.Request, upstream: aiohttp.ClientResponse, seconds: float | None
    ) -> web.StreamResponse:
        """Hand on what comes, whole lines at a time, as long as it lasts."""
        answer = _like(upstream)
        await answer.prepare(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for chunk in upstream.content.iter_any():
                    await answer.write(chunk)
        if seconds is None:
            await answer.write_eof()
        return answer

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:
            self._session = session
            application = web.Application(client_max_size=64 * 1024 * 1024)
            application.router.add_route("*", "/{path:.*}", self.handle)
            runner = web.AppRunner(
                application,
                access_log=None,
                logger=_SILENT,  # that a handler ended with a fault is what it is for
                handler_cancellation=True,
                shutdown_timeout=1,
            )
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            self._loop = asyncio.get_running_loop()
            started.set()
            await stop.wait()
            await runner.cleanup()
        await _close_the_rest()


async def _close_the_rest() -> None:
    """Close connections that are still about to: TLS takes its time, and the loop ends now.

    Else the sockets are found open when memory is tidied up, in a test that never heard of them.
    """
    loop: Any = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):
        transport.abort()
    for _ in range(3):
        await asyncio.sleep(0)


def _like(upstream: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {k: v for k, v in upstream.headers.items() if k.lower() not in _HOP}
    return web.StreamResponse(status=upstream.status, headers=headers)


def _abort(request: web.Request) -> ConnectionResetError:
    """Break the connection; return what ends the handler."""
    if request.transport is not None:
        request.transport.abort()
    return ConnectionResetError("a fault")


def _refusal(code: str) -> web.Response:
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"a fault of the test: {_REASONS[code]}",
        "reason": _REASONS[code],
        "code": int(code),
    }
    headers = {"Retry-After": "1"} if code == "429" else {}
    return web.json_response(status, status=int(code), headers=headers)


@contextlib.contextmanager
def faulty_api(upstream: str, tls: ssl.SSLContext | None, *, seed: int) -> Iterator[FaultyApi]:
    """Yield a proxy that listens on loopback.

    Args:
        upstream: URL of the real API server.
        tls: With the authority of the API server; None for plain HTTP.
        seed: Which faults come, and when.
    """
    found = FaultyApi(upstream, tls, seed)
    started = threading.Event()
    stops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        stop = asyncio.Event()
        stops.append((asyncio.get_running_loop(), stop))
        await found.serve(started, stop)

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="faulty-api", daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield found
    finally:
        loop, stop = stops[0]
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        gc.collect()  # what is left open is told of here


# --- the tests ------------------------------------------------------------------------------------


@contextmanager
def operator_behind_faults(
    cluster: KubernetesCluster, folder: Path
) -> Iterator[tuple[LocalOperator, FaultyApi]]:
    url, tls = api_server(cluster)
    with installed_operator_stopped(cluster), faulty_api(url, tls, seed=SEED) as api:
        operator = LocalOperator(cluster, api.url, folder)
        operator.start()
        try:
            yield operator, api
        finally:
            operator.kill()
            print(f"{api.requests} requests, faults: {dict(api.came)}")
            print(operator.log[-12000:])


def check_nothing_is_doubled(cluster: KubernetesCluster, namespace: str) -> None:
    """Fail if anything is there twice, told twice, or still complained of.

    The last pass may have failed by a fault, so what the next one puts right is waited for.
    """

    def configs() -> list[str]:
        return [n for n in names_of(cluster, "configmap", namespace) if "orders-config-" in n]

    def complaints() -> list[str]:
        status = cluster.broker("orders", namespace)["status"]
        return [c["message"] for c in status["conditions"] if c["reason"] == "ApplyFailed"]

    wait_for("the settings before are put away", lambda: len(configs()) == 1)
    wait_for("what went wrong for a moment is not said any longer", lambda: not complaints())
    assert names_of(cluster, "statefulset", namespace) == ["orders"]
    assert names_of(cluster, "secret", namespace) == ["orders-credentials", "orders-users"]
    made = [
        event.get("note") or event["message"]
        for event in cluster.items("events", namespace)
        if event["involvedObject"].get("kind") == "Broker" and event["reason"] == "Created"
    ]
    assert len(made) == len(set(made)), f"told twice: {made}"


def draw_every_fault(cluster: KubernetesCluster, namespace: str, api: FaultyApi) -> None:
    """Give the operator something to do until every fault has come.

    How many passes there are before depends on how fast everything else is.
    """
    wanted = ALL_FAULTS | {"hang"}
    number = 0

    def have_come() -> bool:
        nonlocal number
        if wanted <= set(api.came):
            return True
        number += 1
        patch = json.dumps({"spec": {"addresses": [{"name": f"later-{number}"}]}})
        cluster.kubectl("-n", namespace, "patch", BROKER, "orders", "--type=merge", "-p", patch)
        return False

    wait_for("every fault has come", have_come, pause_s=2)


def delete_and_wait(cluster: KubernetesCluster, namespace: str) -> None:
    """Delete the Broker; everything goes but the claims."""
    cluster.kubectl("-n", namespace, "delete", BROKER, "orders", "--wait=true")
    wait_for(
        "everything but the claims goes",
        lambda: (
            not any(
                names_of(cluster, kind, namespace)
                for kind in ("statefulset", "pod", "service", "secret", "configmap", "pdb")
            )
        ),
    )
    claims = cluster.items("pvc", namespace)
    assert [c["status"]["phase"] for c in claims] == ["Bound"] * 8


def test_a_broker_comes_changes_and_goes_while_the_api_server_fails(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    with seen_pods(namespace) as seen, operator_behind_faults(cluster, tmp_path) as (operator, api):
        document = small_broker("orders", topology="Independent", networkPolicy={"enabled": True})
        cluster.apply(document, namespace)
        cluster.wait_until_ready("orders", namespace)
        stateful_set = cluster.get("statefulset", "orders", namespace)
        password = cluster.password("orders", namespace)
        print(f"created after {time.monotonic() - began:.0f} s")

        document["spec"]["config"]["globalMaxSize"] = "64Mi"
        cluster.apply(document, namespace)
        api.hang_once()
        generation = cluster.broker("orders", namespace)["metadata"]["generation"]
        for kind in ("UpToDate", "Ready"):
            cluster.wait_for_condition("orders", namespace, kind, "True", generation=generation)
        print(f"changed after {time.monotonic() - began:.0f} s")

        document["spec"]["replicas"] = 2
        cluster.apply(document, namespace)
        wait_for(
            "two brokers serve",
            lambda: cluster.broker("orders", namespace)["status"].get("readyReplicas") == 2,
        )
        print(f"scaled after {time.monotonic() - began:.0f} s")
        draw_every_fault(cluster, namespace, api)
        print(f"every fault came after {time.monotonic() - began:.0f} s")
        assert not operator.has_ended
        api.is_faulty = False
        cluster.wait_for_condition(
            "orders",
            namespace,
            "Progressing",
            "False",
            generation=cluster.broker("orders", namespace)["metadata"]["generation"],
        )

        assert {name: len(uids) for name, uids in seen.uids.items()} == {
            "orders-0": 2,  # the first, and the one with the changed setting
            "orders-1": 1,
        }
        assert cluster.password("orders", namespace) == password
        now = cluster.get("statefulset", "orders", namespace)
        assert now is not None
        assert stateful_set is not None
        assert now["metadata"]["uid"] == stateful_set["metadata"]["uid"]
        check_nothing_is_doubled(cluster, namespace)

        api.is_faulty = True
        delete_and_wait(cluster, namespace)
        print(f"deleted after {time.monotonic() - began:.0f} s")
        assert not operator.has_ended
        check_log(operator.log)
