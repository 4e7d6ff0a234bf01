"""An operator, an API server in memory and disks that grow: for tests of sizes and interruptions.

Called by tests/unit/vespiary_operator.
"""

from __future__ import annotations

import copy
from datetime import datetime, timedelta
from typing import Any, Self

from vespiary_operator import kinds
from vespiary_operator.cache import Cache
from vespiary_operator.metrics import Metrics
from vespiary_operator.options import Options
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.resources import API_VERSION
from vespiary_testkit.broker_resources import GOOD_ANSWER
from vespiary_testkit.fake_disks import FakeDisks
from vespiary_testkit.fake_kubernetes import (
    FakeKubernetes,
    FakeRemote,
    FilledVolumes,
    Killed,
    without_hashing,
)

KEY = Key("Broker", "ns", "orders")
OPTIONS = Options(own_namespace="system", broker_image="registry:5000/vespiary/broker:1.0.0")


class ResizeWorld:
    """The parts of an operator around an API server in memory.

    Attributes:
        cluster: The API server.
        remote: Running pods.
        cache: What the operator's watches have told it.
        killed: How often the operator was killed.
    """

    def __init__(self) -> None:
        self.cluster = FakeKubernetes()
        self.remote = FakeRemote()
        self.cluster.verification = GOOD_ANSWER
        self.cluster.disks = FakeDisks(self.cluster)
        self.killed = 0
        self.restart()

    def restart(self) -> None:
        """Put a new operator in the place of the one that there is."""
        self.cache = Cache()
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            WorkQueue(),
            OPTIONS,
            Metrics(),
            self.cache,
            now=lambda: self.cluster.now,
        )
        without_hashing(self.reconciler)

    def moment(self) -> tuple[bytes, str]:
        """Return the content of the cluster, and the time."""
        return self.cluster.content(), self.cluster.now

    def killed_now(self) -> Self:
        """Return a copy of the world whose operator was killed at this moment."""
        found = copy.copy(self)
        found.cluster = self.cluster.copied()
        found.remote = self.remote.copied(found.cluster)
        found.killed += 1
        found.restart()
        return found

    def ask(
        self,
        *,
        size: str,
        storage_class: str = "online",
        auto_grow: dict[str, Any] | None = None,
        **spec: Any,
    ) -> None:
        """Apply the Broker `orders` with a journal of a size, and how far it grows by itself."""
        journal: dict[str, Any] = {"size": size, "storageClassName": storage_class}
        if auto_grow is not None:
            journal["autoGrow"] = auto_grow
        storage = {"volumes": {"journal": journal}}
        self.cluster.put(
            {
                "apiVersion": API_VERSION,
                "kind": "Broker",
                "metadata": {"name": "orders", "namespace": "ns", "uid": "the-same-each-time"},
                "spec": {"topology": "Independent", "storage": storage, **spec},
            }
        )

    @property
    def class_now(self) -> str:
        """The storage class of the journal."""
        asked = self.cluster.one(kinds.BROKER, "orders")["spec"]["storage"]["volumes"]["journal"]
        return str(asked["storageClassName"])

    def filled(self, used_bytes: int) -> FilledVolumes:
        """Return what tells how full journals are whose filesystems grow with their claims."""
        return FilledVolumes(self.cluster, used_bytes)

    def pass_time(self, seconds: float) -> None:
        now = datetime.fromisoformat(self.cluster.now) + timedelta(seconds=seconds)
        self.cluster.now = now.strftime("%Y-%m-%dT%H:%M:%SZ")

    async def look(self) -> float | None:
        """Make one pass; an operator that is killed in it is followed by another.

        Returns:
            Seconds until it wants to look again; None to wait for an event.
        """
        try:
            return await self.reconciler.reconcile(KEY)
        except Killed:
            self.killed += 1
            self.restart()
            return 0.0

    async def go_on(self) -> None:
        """End the pass in which the operator was killed, and come to rest with another one."""
        self.cluster.settle(steps=3)
        self.pass_time(5)
        await self.until_quiet()

    async def until_quiet(self, *, passes: int = 80, is_ready: bool = True) -> None:
        """Make passes, and let controllers and drivers work, until nothing is written.

        An operator that wants to look again soon is given more than a minute for it.
        """
        quiet_s = 0
        for _ in range(passes):
            before = self.cluster.content()
            again_s = await self.look()
            self.cluster.settle(steps=3, is_ready=is_ready)
            quiet_s = quiet_s + 5 if self.cluster.content() == before else 0
            if quiet_s and (again_s is None or quiet_s > 75):
                return
            self.pass_time(5)
        raise AssertionError(f"it does not come to rest: {self.cluster.writes[-8:]}")

    def pod(self, ordinal: int = 0) -> dict[str, Any]:
        return self.cluster.one(kinds.POD, f"orders-{ordinal}")

    def stateful_set(self) -> dict[str, Any]:
        return self.cluster.one(kinds.STATEFUL_SET, "orders")

    def journal(self, ordinal: int = 0) -> dict[str, Any]:
        return self.cluster.one(kinds.CLAIM, f"journal-orders-{ordinal}")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.one(kinds.BROKER, "orders")["status"]
        return found

    def condition(self, kind: str) -> tuple[str, str, str]:
        (found,) = (c for c in self.status()["conditions"] if c["type"] == kind)
        return found["status"], found["reason"], found["message"]

    def volume(self, name: str = "journal") -> dict[str, Any]:
        (found,) = (v for v in self.status()["volumes"] if v["name"] == name)
        return dict(found)
