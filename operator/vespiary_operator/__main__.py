"""`vespiary-operator run|version|check|check-uninstall`: the composition root.

Owns: the process: its loop, its signals, its exit code. Ends when the watches end, so that the
Deployment starts a new one rather than keep one that hears nothing. Where several stand by for each
other, it begins when it holds the Lease, and ends when it lost it.
Never: decides anything about resources. Called by: the image's entry point.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Awaitable, Callable

import aiohttp

from vespiary_operator import cluster, handlers, http_endpoint, installation_checks, kinds
from vespiary_operator.cache import Cache
from vespiary_operator.cached_reader import remember
from vespiary_operator.leadership import Election
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options, from_environment
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.remote import Remote
from vespiary_operator.secret_access import SecretAccess
from vespiary_operator.work import WorkQueue
from vespiary_spec.errors import ConfigError, ReconcileError
from vespiary_spec.version import VERSION

log = logging.getLogger("vespiary_operator")

_CRD_WAIT_S = 5.0


def version() -> str:
    """Return the version of the distribution."""
    return VERSION


async def run(options: Options) -> int:
    """Run the operator until SIGTERM, or until its watches end.

    Args:
        options: What holds for the process.

    Returns:
        The exit code: 0 after a signal, 1 if the watches ended by themselves or another operator
        leads.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    metrics = Metrics()
    shown = metrics if options.serves_metrics else None
    readiness: list[Callable[[], bool]] = [lambda: bool(options.lease)]  # a standby is ready
    async with http_endpoint.serving(options.http_port, shown, lambda: readiness[-1]()):
        if not options.lease:
            metrics.watch_leader(lambda: True)
            return await _lead(options, metrics, readiness, ended)
        lease_api = cluster.connect(count=metrics.asked)  # its threads wait for nobody else's
        election = Election(
            lease_api,
            name=options.lease,
            namespace=options.own_namespace,
            identity=f"{options.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        )
        metrics.watch_leader(lambda: election.is_leader)
        try:
            async with http_endpoint.standing_by(options.liveness_port):
                if not await _before_the_end(election.acquire(), ended):
                    return 0
            holding = asyncio.create_task(election.hold())
            holding.add_done_callback(_end_at_once)
            try:
                return await _lead(options, metrics, readiness, ended, lambda: election.is_leader)
            finally:
                holding.remove_done_callback(_end_at_once)
                holding.cancel()
                await election.release()
        finally:
            lease_api.close()


async def _before_the_end(work: Awaitable[None], ended: asyncio.Event) -> bool:
    """Wait for something; False if the end comes first."""
    doing, ending = asyncio.ensure_future(work), asyncio.ensure_future(ended.wait())
    await asyncio.wait((doing, ending), return_when=asyncio.FIRST_COMPLETED)
    ending.cancel()
    if doing.done():
        await doing
        return True
    doing.cancel()
    return False


def _end_at_once(holding: asyncio.Task[None]) -> None:
    """End the process with whatever it has under way: another one may be at work by now."""
    if not holding.cancelled() and holding.exception() is not None:
        log.error("the Lease is not renewed any longer", exc_info=holding.exception())
    logging.shutdown()
    os._exit(1)


async def _lead(
    options: Options,
    metrics: Metrics,
    readiness: list[Callable[[], bool]],
    ended: asyncio.Event,
    may_write: Callable[[], bool] = lambda: True,
) -> int:
    """Look after everything until the end; return the exit code."""
    queue = WorkQueue()
    secrets = SecretAccess()
    api = cluster.connect(
        is_cluster_wide=options.is_cluster_wide, count=metrics.asked, secrets=secrets
    )
    cache = Cache()
    api.on_written = functools.partial(remember, cache)
    metrics.freshness.watch_queue(queue.backlog)
    api.may_write = may_write
    async with aiohttp.ClientSession() as session:
        reconciler = Reconciler(
            api, Remote(session), queue, options, metrics, cache, secrets=secrets
        )
        metrics.freshness.watch_freshness(
            lambda: time.monotonic() - reconciler.resynced_at, cache.silence_s
        )
        watches = handlers.Watches(
            options,
            handlers.registry(
                queue.add_threadsafe,
                cache,
                lambda: time.monotonic() - reconciler.resynced_at < handlers.STALE_S,
                is_cluster_wide=options.is_cluster_wide,
            ),
        )
        readiness.append(lambda: watches.is_ready)
        try:
            return await _run(api, reconciler, watches, options, ended)
        finally:
            await watches.stop()
            api.close()


async def _run(
    api: cluster.Cluster,
    reconciler: Reconciler,
    watches: handlers.Watches,
    options: Options,
    ended: asyncio.Event,
) -> int:
    """Wait for the CRDs, then watch and work until the end."""
    log.info(
        "vespiary-operator %s looks after %s; brokers get %s",
        version(),
        ", ".join(options.namespaces) or "all namespaces",
        options.broker_image,
    )
    if not await _crds_are_served(api, options, ended):
        return 0
    watches.start()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(reconciler.resync())]
        tasks += [group.create_task(reconciler.work()) for _ in range(options.workers)]
        while not ended.is_set() and not watches.has_ended:
            try:
                await asyncio.wait_for(ended.wait(), 1.0)
            except TimeoutError:
                continue
        for task in tasks:
            task.cancel()
    if not ended.is_set():
        log.error("the watches have ended; so does the operator, to be started again")
        return 1
    return 0


async def _crds_are_served(api: cluster.Cluster, options: Options, ended: asyncio.Event) -> bool:
    """Wait until the API server knows our kinds; False if the end comes first."""
    needed = [kinds.BROKER, kinds.JOURNAL_ARCHIVE] + (
        [kinds.NODE_TUNING] if options.is_cluster_wide else []
    )
    while not ended.is_set():
        try:
            missing = [kind for kind in needed if not await api.is_served(kind)]
        except ReconcileError as error:
            log.warning("%s", error)
        else:
            if not missing:
                return True
            log.warning(
                "the API server does not know %s yet: install the CRDs (crds/*.yaml)",
                " and ".join(kind.name for kind in missing),
            )
        try:
            await asyncio.wait_for(ended.wait(), _CRD_WAIT_S)
        except TimeoutError:
            continue
    return False


def _check(command: str, options: Options, url: str) -> int:
    """Print one line for each finding; return 1 if one is bad."""
    resources = cluster.resources_of(cluster.configuration())
    if command == "check":
        found = installation_checks.installation(resources, options.own_namespace, url)
    else:
        found = installation_checks.uninstall(resources, options.namespaces)
    results = []
    for is_good, sentence in found:
        print("good" if is_good else "BAD ", sentence, flush=True)
        results.append(is_good)
    return 0 if all(results) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code: 0 good, 1 failed, 2 usage."""
    parser = argparse.ArgumentParser(prog="vespiary-operator", description="Vespiary's operator.")
    parser.add_argument(
        "command", choices=("run", "version", "check", "check-uninstall"), help="what to do"
    )
    parser.add_argument("--url", default="", help="the operator's /readyz, for check")
    chosen = parser.parse_args(arguments)
    if chosen.command == "version":
        print(version())
        return 0
    try:
        options = from_environment(os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    if options.log_level != "debug":
        for noisy in ("kopf", "aiohttp", "urllib3", "kubernetes"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        if chosen.command != "run":
            return _check(chosen.command, options, chosen.url)
        return asyncio.run(run(options))
    except ReconcileError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
