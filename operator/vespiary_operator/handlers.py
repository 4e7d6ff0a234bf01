"""kopf: the watches that say which resource to look at.

Owns: kopf's settings and its thread. Handlers keep the object in the cache, put a key into the
queue and do nothing else: there is no finalizer, no annotation, and nothing that depends on what an
event says has changed.
Never: writes anything.
Called by: `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import kopf

from vespiary_operator import kinds, names
from vespiary_operator.cache import Cache, watch_selector
from vespiary_operator.kinds import Kind
from vespiary_operator.options import Options
from vespiary_operator.work import Key

log = logging.getLogger(__name__)

STALE_S = 180.0
"""Liveness fails when nothing was listed for so long, though it is tried every minute."""

TUNING_PAUSE_S = 1.0
"""Changes of broker pods within so long lead to one look at the nodes."""


class Enqueue(Protocol):
    """Takes keys, from kopf's thread."""

    def __call__(self, key: Key, after_s: float = 0.0) -> None:
        """Let a key wait so long."""


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings, all that matter spelt out."""
    found = kopf.OperatorSettings()
    found.peering.standalone = True
    found.posting.enabled = False  # our own Events are posted where the decisions are
    found.scanning.disabled = True  # needs no right to list namespaces and CRDs
    found.networking.request_timeout = 60.0
    found.networking.connect_timeout = 10.0
    found.watching.connect_timeout = 10.0
    found.watching.inactivity_timeout = 70.0
    found.watching.server_timeout = 600  # whole seconds, or the API server refuses it
    found.persistence.finalizer = "vespiary.dev/never-used"
    found.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix="vespiary.dev")
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix="vespiary.dev")
    found.execution.max_workers = 2
    found.background.cancellation_polling = 5.0
    found.process.ultimate_exiting_timeout = 20.0
    found.watching.chunk_size = 50  # a list of all pods of many Brokers is memory
    found.queueing.idle_timeout = 0.5  # a task for each object of a burst is memory
    for kind in kinds.WATCHED_CHILDREN:
        found.watching.label_selectors[kind.plural] = watch_selector(kind) or ""
    return found


def owner_key(labels: Mapping[str, str], namespace: str | None) -> Key | None:
    """Return the Broker or JournalArchive that a child's labels name; None if they name none."""
    name = labels.get(names.LABEL_INSTANCE)
    component = labels.get(names.LABEL_COMPONENT)
    if component == names.COMPONENT_ARCHIVE and name and namespace:
        return Key(kinds.JOURNAL_ARCHIVE.name, namespace, name)
    if component not in (names.COMPONENT_BROKER, names.COMPONENT_UPGRADE_CHECK):
        return None
    if not name or not namespace:
        return None
    return Key(kinds.BROKER.name, namespace, name)


def _keep(cache: Cache, kind: Kind, event: Mapping[str, Any]) -> None:
    """Take what an event says about an object; its type is None in the first list."""
    cache.note_heard(kind)
    if event["type"] == "DELETED":
        cache.delete(kind, event["object"])
    else:
        cache.put(kind, event["object"])


def _watch_nodes(registry: kopf.OperatorRegistry, enqueue: Enqueue) -> Callable[[], None]:
    """Watch BrokerNodeTunings and nodes; return what lets all tunings be looked at soon."""
    tunings: set[str] = set()

    def look_at_nodes() -> None:
        for name in tunings:
            enqueue(Key(kinds.NODE_TUNING.name, "", name), TUNING_PAUSE_S)

    kind = kinds.NODE_TUNING

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)
    async def node_tuning(name: str | None, event: Mapping[str, Any], **_: Any) -> None:
        if event.get("type") == "DELETED":
            tunings.discard(name or "")
        else:
            tunings.add(name or "")
        enqueue(Key(kinds.NODE_TUNING.name, "", name or ""))
        look_at_nodes()  # which of several looks after a node may be another one now

    kind = kinds.NODE

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)
    async def node(event: Mapping[str, Any], **_: Any) -> None:
        # A node that is there tells of itself all the time; its labels can wait for the resync.
        if event.get("type") in ("ADDED", "DELETED"):
            look_at_nodes()

    return look_at_nodes


def registry(
    enqueue: Enqueue,
    cache: Cache,
    is_fresh: Callable[[], bool],
    *,
    is_cluster_wide: bool,
) -> kopf.OperatorRegistry:
    """Return the handlers.

    Args:
        enqueue: Takes keys, from kopf's thread.
        cache: Takes what the watches see.
        is_fresh: Whether everything was listed not long ago.
        is_cluster_wide: Whether nodes are looked after.
    """
    found = kopf.OperatorRegistry()

    @kopf.on.login(registry=found)
    async def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        # The token of a pod's account is read again whenever the API server calls it expired.
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(
            **arguments
        )

    @kopf.on.event(kinds.BROKER.group, kinds.BROKER.version, kinds.BROKER.plural, registry=found)
    async def broker(
        name: str | None, namespace: str | None, event: Mapping[str, Any], **_: Any
    ) -> None:
        _keep(cache, kinds.BROKER, event)
        enqueue(Key(kinds.BROKER.name, namespace or "", name or ""))

    kind = kinds.JOURNAL_ARCHIVE

    @kopf.on.event(kind.group, kind.version, kind.plural, registry=found)
    async def journal_archive(name: str | None, namespace: str | None, **_: Any) -> None:
        enqueue(Key(kinds.JOURNAL_ARCHIVE.name, namespace or "", name or ""))

    look_at_nodes = _watch_nodes(found, enqueue) if is_cluster_wide else lambda: None

    for kind in kinds.WATCHED_CHILDREN:
        seen = look_at_nodes if kind is kinds.POD else None
        kopf.on.event(kind.group, kind.version, kind.plural, registry=found, id=kind.plural)(
            _child_handler(kind, enqueue, cache, seen)
        )

    @kopf.on.probe(id="fresh", registry=found)
    async def fresh(**_: Any) -> str:
        if not is_fresh():
            raise RuntimeError(f"nothing was listed for more than {STALE_S:.0f} s")
        return "everything was listed not long ago"

    return found


def _child_handler(
    kind: Kind, enqueue: Enqueue, cache: Cache, seen: Callable[[], None] | None
) -> Callable[..., Awaitable[None]]:
    """Return the handler of one kind of children; `seen` is called for each event as well."""

    async def child(
        labels: Mapping[str, str], namespace: str | None, event: Mapping[str, Any], **_: Any
    ) -> None:
        _keep(cache, kind, event)
        key = owner_key(labels, namespace)
        if key is not None:
            enqueue(key)
        if seen is not None:
            seen()

    return child


class Watches:
    """kopf in a thread and loop of its own, because it cancels tasks that it did not make.

    Args:
        options: Namespaces and ports.
        found: The handlers.
    """

    def __init__(self, options: Options, found: kopf.OperatorRegistry) -> None:
        self._options = options
        self._registry = found
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    @property
    def is_ready(self) -> bool:
        """Whether the watches have begun and go on."""
        return self._ready.is_set() and self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether kopf is no longer there."""
        return not self._thread.is_alive()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    async def stop(self) -> None:
        """Ask kopf to end, and wait until it has."""
        self._stop.set()
        if self._thread.ident is None:
            return
        await asyncio.to_thread(self._thread.join, 15.0)

    def _run(self) -> None:
        try:
            kopf.run(
                loop=asyncio.new_event_loop(),
                registry=self._registry,
                settings=settings(),
                standalone=True,
                clusterwide=self._options.is_cluster_wide,
                namespaces=self._options.namespaces,
                liveness_endpoint=f"http://0.0.0.0:{self._options.liveness_port}/healthz",
                stop_flag=self._stop,
                ready_flag=self._ready,
            )
        except Exception:
            log.exception("the watches have failed")
