"""Who of several operators acts: the one that holds a Lease, as long as it can renew it.

Owns: the rules of client-go's leader election, so that its numbers mean what they mean elsewhere. A
candidate goes by its own clock: a Lease that it has not seen change for the Lease's own duration is
free. A holder that could not renew for `RENEW_S` is none any longer, `LEASE_S - RENEW_S` before
somebody else can be one.
Never: watches or writes anything but the Lease. Called by: `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from vespiary_operator import kinds
from vespiary_operator.api_errors import ApiRefusedError
from vespiary_operator.kinds import Kind
from vespiary_spec.errors import ReconcileError

log = logging.getLogger(__name__)

LEASE_S = 15
"""A Lease that was not renewed for so long may be taken."""

RENEW_S = 10.0
"""A holder that could not renew for so long stops."""

RETRY_S = 2.0
"""Pause between two tries, of holders and of candidates."""

REQUEST_S = 5.0
"""One request for the Lease may take so long: half of `RENEW_S`, so that a second can be made."""

JITTER = 1.2
"""Candidates wait up to so many times `RETRY_S`, so that they do not all come at once."""


class LeaseApi(Protocol):
    """What an election needs of the cluster."""

    async def get(
        self, kind: Kind, name: str, namespace: str = "", *, timeout_s: float = ...
    ) -> dict[str, Any] | None:
        """Return an object; None if it is not there."""

    async def create(self, manifest: dict[str, Any], *, timeout_s: float = ...) -> dict[str, Any]:
        """Make an object that must not be there yet."""

    async def replace(self, manifest: dict[str, Any], *, timeout_s: float = ...) -> dict[str, Any]:
        """Put an object in the place of the version that was read."""


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Election:
    """One candidate for one Lease.

    Owned by the main loop; `is_leader` may be asked from any thread.

    Args:
        api: The API server.
        name: Name of the Lease.
        namespace: Where it is.
        identity: What tells this process from every other one.
        clock: Returns seconds that never go back.
        moment: Returns the time as Leases have it, for people: nobody compares it.
        sleep: Waits.
    """

    def __init__(
        self,
        api: LeaseApi,
        *,
        name: str,
        namespace: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
        moment: Callable[[], str] = _moment,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self.identity = identity
        self._clock = clock
        self._moment = moment
        self._sleep = sleep
        self._seen: Any = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._said = ""

    @property
    def is_leader(self) -> bool:
        """Whether this process may write: it renewed the Lease not longer than `RENEW_S` ago."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < RENEW_S

    async def acquire(self) -> None:
        """Return once this process holds the Lease."""
        while not await self._try():
            await self._sleep(RETRY_S * random.uniform(1.0, JITTER))  # noqa: S311
        log.info("%s leads: it holds the Lease %s", self.identity, self._name)

    async def hold(self) -> None:
        """Renew the Lease again and again; return when it is lost."""
        while True:
            await self._sleep(RETRY_S)
            if self.is_leader and await self._try():
                continue
            if not self.is_leader or self._holder() not in ("", self.identity):
                self._renewed_at = None
                log.error(
                    "%s no longer leads: the Lease %s could not be renewed for %.0f s, or "
                    "another took it; it ends, to be started again as a standby",
                    self.identity,
                    self._name,
                    RENEW_S,
                )
                return

    async def release(self) -> None:
        """Give the Lease back at a clean end, so that a standby need not wait."""
        if not self.is_leader:
            return
        self._renewed_at = None
        try:
            found = await self._api.get(
                kinds.LEASE, self._name, self._namespace, timeout_s=REQUEST_S
            )
            if found is None or _spec(found).get("holderIdentity") != self.identity:
                return
            now = self._moment()
            found["spec"] = _spec(found) | {
                "holderIdentity": "",
                "leaseDurationSeconds": 1,
                "acquireTime": now,
                "renewTime": now,
            }
            await self._api.replace(found, timeout_s=REQUEST_S)
            log.info("%s gave the Lease %s back", self.identity, self._name)
        except ReconcileError as error:
            log.warning("the Lease %s could not be given back: %s", self._name, error)

    def _holder(self) -> str:
        return str((self._seen or {}).get("holderIdentity") or "")

    async def _try(self) -> bool:
        """Take or renew the Lease; return whether this process holds it now."""
        began = self._clock()
        limit_s = RENEW_S
        if self._renewed_at is not None:
            limit_s -= began - self._renewed_at
        try:
            async with asyncio.timeout(limit_s):
                is_held = await self._take()
        except TimeoutError:
            self._say(f"the Lease {self._name} got no answer in time")
            return False
        except ReconcileError as error:
            # A conflict is somebody else who was faster; everything else is tried again as well.
            is_conflict = isinstance(error, ApiRefusedError) and error.status == 409
            if not is_conflict:
                self._say(str(error))
            return False
        if is_held:
            self._renewed_at = began
            self._said = ""
        return is_held

    async def _take(self) -> bool:
        found = await self._api.get(kinds.LEASE, self._name, self._namespace, timeout_s=REQUEST_S)
        now = self._moment()
        if found is None:
            manifest = {
                "apiVersion": kinds.LEASE.api_version,
                "kind": kinds.LEASE.name,
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": {
                    "holderIdentity": self.identity,
                    "leaseDurationSeconds": LEASE_S,
                    "acquireTime": now,
                    "renewTime": now,
                    "leaseTransitions": 0,
                },
            }
            self._see((await self._api.create(manifest, timeout_s=REQUEST_S))["spec"])
            return True
        spec = _spec(found)
        if spec != self._seen:
            self._see(spec)
        holder = str(spec.get("holderIdentity") or "")
        if holder not in ("", self.identity):
            lasts_s = float(spec.get("leaseDurationSeconds") or LEASE_S)
            if self._clock() < self._seen_at + lasts_s:
                self._say(f"{self.identity} stands by: {holder} leads")
                return False
        is_mine = holder == self.identity
        transitions = int(spec.get("leaseTransitions") or 0)
        found["spec"] = spec | {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE_S,
            "renewTime": now,
            "acquireTime": spec.get("acquireTime") if is_mine else now,
            "leaseTransitions": transitions if is_mine else transitions + 1,
        }
        self._see(_spec(await self._api.replace(found, timeout_s=REQUEST_S)))
        return True

    def _see(self, spec: dict[str, Any]) -> None:
        self._seen, self._seen_at = spec, self._clock()

    def _say(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            log.info("%s", sentence)


def _spec(lease: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = lease.get("spec") or {}
    return found
