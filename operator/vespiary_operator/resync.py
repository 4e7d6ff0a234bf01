"""Lists of everything that is watched, with which the cache has to agree.

Owns: the lists. A watch may lose an event, and kopf does not tell what was deleted while a watch
was away; a list finds both. So the cache is never wrong for longer than one period.
Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec

from vespiary_operator.cache import Cache, version_of, watch_selector
from vespiary_operator.cluster import Page
from vespiary_operator.kinds import Kind


class Lister(Protocol):
    """What a resync needs of the cluster."""

    async def page(self, kind: Kind, namespace: str, selector: str, following: str = "") -> Page:
        """Return a part of a list."""


class Found(NamedTuple):
    """What a list said.

    Attributes:
        names: Namespaces and names of what is there.
        renewed: How many objects the cache did not know, or only in an older state.
        dropped: How many objects the cache had that are gone.
    """

    names: list[tuple[str, str]]
    renewed: int
    dropped: int


class _Name(msgspec.Struct):
    name: str
    namespace: str = ""


class _Named(msgspec.Struct):
    metadata: _Name


async def list_into(cluster: Lister, cache: Cache, kind: Kind, namespace: str) -> Found:
    """Bring the cache to what the API server has of one kind.

    Args:
        cluster: The API server.
        cache: What is known.
        kind: A kind that is watched.
        namespace: Where; empty means everywhere.

    Raises:
        ReconcileError: The API server refused or did not answer.
    """
    selector = watch_selector(kind)
    assert selector is not None
    there: list[tuple[str, str]] = []
    renewed = 0
    version, following = 0, ""
    while True:
        page = await cluster.page(kind, namespace, selector, following)
        version = version or version_of(page.version)
        for raw in page.items:
            metadata = msgspec.json.decode(raw, type=_Named).metadata
            there.append((metadata.namespace, metadata.name))
            renewed += cache.put_raw(kind, raw)
        following = page.next
        if not following:
            break
    cache.note_heard(kind)
    return Found(there, renewed, cache.keep_only(kind, namespace, there, version))
