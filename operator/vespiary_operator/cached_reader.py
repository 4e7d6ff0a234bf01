"""Reads from the cache, for a first look; and live reads, which keep the cache up to date.

Owns: what may be answered from the cache. It is used to find out *that* something has to be done,
never *what*: a pass that finds anything to write reads everything live and plans anew, so a cache
that lags costs a pass, not a wrong write. What is not known here is asked of the API server.
Never: decides. Called by: `reconciler`, `__main__`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from vespiary_operator import kinds
from vespiary_operator.cache import Cache, requirements, watch_selector
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import Reader

SHARED_FOR_S = 30.0
"""How long a first look believes a list of a cluster-wide kind. Nothing watches these; a pass that
changes something lists them itself, at most once in `SHARED_LIVE_S`."""

SHARED_LIVE_S = 2.0

_OURS_ALONE = frozenset(
    {
        kinds.BROKER.name,
        kinds.STATEFUL_SET.name,
        kinds.SERVICE.name,
        kinds.POD_DISRUPTION_BUDGET.name,
        kinds.NETWORK_POLICY.name,
    }
)
"""Kinds of which a Broker reads only what the operator made: what is not known is not there."""


class Shared:
    """Lists of cluster-wide kinds that many passes share.

    Owned by the main loop.
    """

    def __init__(self, live: Reader) -> None:
        self._live = live
        self._known: dict[str, tuple[float, list[dict[str, Any]] | None]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    def forget(self) -> None:
        """Have the next reads ask the API server, however young the lists are."""
        self._known.clear()

    async def items_if_allowed(self, kind: Kind, max_age_s: float) -> list[dict[str, Any]] | None:
        """Return all objects of a kind as they were at most so many seconds ago.

        Raises:
            ReconcileError: The API server refused or did not answer.
        """
        async with self._locks.setdefault(kind.name, asyncio.Lock()):
            known = self._known.get(kind.name)
            begun = time.monotonic()
            if known is not None and begun - known[0] <= max_age_s:
                return known[1]
            found = await self._live.items_if_allowed(kind)
            self._known[kind.name] = (begun, found)
            return found


class CachedReader:
    """Reads that are answered from the cache where it has the answer."""

    def __init__(self, live: Reader, cache: Cache, shared: Shared) -> None:
        self._live = live
        self._cache = cache
        self._shared = shared

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object; None if it is not there."""
        if kind is not kinds.SECRET and watch_selector(kind) is not None:
            found = self._cache.get(kind, name, namespace)
            if found is not None or kind.name in _OURS_ALONE:
                return found
        return await self._live.get(kind, name, namespace)

    async def get_if_served(
        self, kind: Kind, name: str, namespace: str = ""
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether a kind is known, and an object of it if that is there; never cached."""
        return await self._live.get_if_served(kind, name, namespace)

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels and fields select."""
        watched = watch_selector(kind)
        if kind is kinds.SECRET or watched is None or fields:
            return await self._live.items(kind, namespace, selector, fields)
        if not requirements(watched).items() <= requirements(selector).items():
            return await self._live.items(kind, namespace, selector)
        return self._cache.items(kind, namespace, selector)

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a cluster-wide kind; None where the operator may not see them."""
        return await self._shared.items_if_allowed(kind, SHARED_FOR_S)


class LiveReader:
    """Reads from the API server; what it answers is kept in the cache as well."""

    def __init__(self, live: Reader, cache: Cache, shared: Shared) -> None:
        self._live = live
        self._cache = cache
        self._shared = shared

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object; None if it is not there."""
        found = await self._live.get(kind, name, namespace)
        if found is not None:
            remember(self._cache, kind, found)
        return found

    async def get_if_served(
        self, kind: Kind, name: str, namespace: str = ""
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether a kind is known, and an object of it if that is there; never cached."""
        return await self._live.get_if_served(kind, name, namespace)

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels and fields select."""
        return await self._live.items(kind, namespace, selector, fields)

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a cluster-wide kind; None where the operator may not see them."""
        return await self._shared.items_if_allowed(kind, SHARED_LIVE_S)


def remember(cache: Cache, kind: Kind, document: Mapping[str, Any]) -> None:
    """Keep the state of an object that the API server answered with, if its kind is watched."""
    wanted = watch_selector(kind)
    if wanted is None:
        return
    labels = document["metadata"].get("labels") or {}
    if requirements(wanted).items() <= labels.items():
        cache.put(kind, document)
