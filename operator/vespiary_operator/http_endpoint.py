"""`/readyz` and `/metrics` of the operator, over plain HTTP.

Owns: the listener. `/healthz` is kopf's own, on another port (`handlers`); an operator that stands
by has no kopf yet, and answers there itself.
Never: takes orders. Called by: `__main__`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from vespiary_operator.metrics import Metrics


@asynccontextmanager
async def serving(
    port: int, metrics: Metrics | None, is_ready: Callable[[], bool], host: str = ""
) -> AsyncIterator[int]:
    """Listen as long as the context lasts.

    Args:
        port: TCP port; 0 takes a free one.
        metrics: What `/metrics` shows; None leaves it out.
        is_ready: Whether the watches have begun and everything was listed.
        host: Address; empty means all of them.

    Yields:
        The port.
    """

    async def readyz(_: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ready\n")
        return web.Response(text="the watches have yet to begin\n", status=503)

    async def show(_: web.Request) -> web.Response:
        assert metrics is not None
        return web.Response(
            body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"}
        )

    application = web.Application()
    application.router.add_get("/readyz", readyz)
    if metrics is not None:
        application.router.add_get("/metrics", show)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@asynccontextmanager
async def standing_by(port: int, host: str = "") -> AsyncIterator[int]:
    """Answer `/healthz` in the place of kopf, which begins when this operator leads.

    Args:
        port: TCP port; 0 takes a free one.
        host: Address; empty means all of them.

    Yields:
        The port.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="stands by\n")

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
