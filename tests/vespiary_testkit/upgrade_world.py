"""An operator with a Broker, an API server in memory, a clock by hand, and images that say things.

Owns the passes with controllers between them. Called by the tests of upgrades.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from vespiary_operator import kinds, names, pods, templates
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.options import Options
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.work import Key, WorkQueue
from vespiary_spec.compatibility import SCHEMA, Compatibility, FileFormat, encode
from vespiary_spec.resources import API_VERSION
from vespiary_spec.verification import AioResult, VolumeResult, summarise
from vespiary_spec.verification import encode as encode_verification
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote, Killed, without_hashing

KEY = Key("Broker", "ns", "orders")
OLD, NEW, NEWER = "vespiary/broker:1.0.0", "vespiary/broker:1.1.0", "vespiary/broker:1.2.0"
VOLUMES = ("bindings", "journal", "paging", "large-messages")


def says(version: str, *, writes: int = 1, reads: tuple[int, ...] = (1,)) -> str:
    """Return what an image says about its files."""
    formats = (FileFormat(name="journal", writes=writes, reads=reads),)
    return encode(
        Compatibility(schema=SCHEMA, version=version, formats=formats, downgrade_to="1.0.0")
    ).decode()


class UpgradeWorld:
    """A Broker that runs with `OLD`, and everything around it.

    Attributes:
        now: The time; it stands still unless it is moved.
        stages: Every stage that an upgrade was seen in, one after the other.
        restarted: Names of pods in the order in which they were made anew.
        killed: How often the operator was killed; another one follows it.
    """

    def __init__(self, **spec: Any) -> None:
        self.cluster = FakeKubernetes()
        volumes = tuple(VolumeResult(name=name, filesystem="ext4") for name in VOLUMES)
        good = summarise(volumes, AioResult(), engine="ASYNCIO")
        self.cluster.verification = encode_verification(good).decode()
        self.cluster.compatibility = {OLD: says("1.0.0"), NEW: says("1.1.0"), NEWER: says("1.2.0")}
        self.remote = FakeRemote()
        self.remote.broker = BrokerAnswer(engine="ASYNCIO", durability="D2", uptime_s=600)
        self.now = datetime(2026, 11, 23, 3, 0, tzinfo=UTC)
        self.metrics = Metrics()
        self.stages: list[str] = []
        self.restarted: list[str] = []
        self._known: dict[str, str] = {}
        self.killed = 0
        self.spec: dict[str, Any] = {
            "version": "1.0.0",
            "replicas": 3,
            "topology": "Independent",
            **spec,
        }
        self.annotations: dict[str, str] = {}
        self.start_operator()
        self.put()

    def start_operator(self) -> None:
        """Have an operator that knows nothing but what the cluster has."""
        options = Options(own_namespace="system", broker_image=OLD)
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            WorkQueue(),
            options,
            self.metrics,
            now=lambda: self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        without_hashing(self.reconciler)

    def copied(self) -> Self:
        """Return a world that goes on from here by itself, with an operator of its own."""
        found = copy.copy(self)
        found.cluster = self.cluster.copied()
        found.remote = self.remote.copied(found.cluster)
        for name in ("stages", "restarted", "_known", "spec", "annotations"):
            setattr(found, name, copy.deepcopy(getattr(self, name)))
        found.metrics = Metrics()
        found.start_operator()
        return found

    def moment(self) -> tuple[bytes, datetime]:
        """Return the content of the cluster, and the time."""
        return self.cluster.content(), self.now

    def killed_now(self) -> Self:
        """Return a copy of the world whose operator was killed at this moment."""
        found = self.copied()
        found.killed += 1
        return found

    def put(self, **spec: Any) -> None:
        """Change the Broker."""
        self.spec |= spec
        metadata = {"name": "orders", "namespace": "ns", "annotations": dict(self.annotations)}
        old = self.cluster.objects.get(("Broker", "ns", "orders"))
        if old is not None:
            old["metadata"]["annotations"] = {}
            old["spec"] = copy.deepcopy(old["spec"]) if self.spec == old["spec"] else {}
        self.cluster.put(
            {"apiVersion": API_VERSION, "kind": "Broker", "metadata": metadata, "spec": self.spec}
        )

    async def turn(self, seconds: float = 5) -> None:
        """Make one pass, let controllers work, let time go on."""
        try:
            await self.reconciler.reconcile(KEY)
        except Killed:
            self.killed += 1
            self.start_operator()
        self.end_turn(seconds)

    def end_turn(self, seconds: float = 5) -> None:
        """Let controllers work after a pass, or after the operator was killed in it."""
        self.note_stage()
        self.cluster.settle(steps=3)
        after = self.uids()
        self.restarted += [n for n in after if self._known.get(n, after[n]) != after[n]]
        self._known |= after
        self.now += timedelta(seconds=seconds)

    def note_stage(self) -> None:
        stage = self.stage()
        if stage and (not self.stages or self.stages[-1] != stage):
            self.stages.append(stage)

    async def turns(self, count: int, seconds: float = 5) -> None:
        for _ in range(count):
            await self.turn(seconds)

    async def until(
        self, is_reached: Callable[[], bool], *, seconds: float = 5, turns: int = 120
    ) -> None:
        for _ in range(turns):
            if is_reached():
                return
            await self.turn(seconds)
        raise AssertionError(f"not reached; it went {self.stages}, now {self.upgrade()}")

    async def until_stage(self, stage: str, *, seconds: float = 5) -> None:
        await self.until(lambda: self.stage() == stage, seconds=seconds)

    async def running(self) -> None:
        """Have all brokers run with what the Broker asks for."""
        await self.until(lambda: self.condition("UpToDate")[0] == "True")
        self.stages.clear()
        self.restarted.clear()

    # --- looks ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.one(kinds.BROKER, "orders").get("status") or {}
        return found

    def upgrade(self) -> dict[str, Any]:
        return self.status().get("upgrade") or {}

    def stage(self) -> str:
        return str(self.upgrade().get("stage", ""))

    def condition(self, kind: str) -> tuple[str, str, str]:
        for condition in self.status().get("conditions", ()):
            if condition["type"] == kind:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def pods(self) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.cluster.of(kinds.POD)
            if pod["metadata"]["labels"][names.LABEL_COMPONENT] == names.COMPONENT_BROKER
        ]

    def check_pods(self) -> list[dict[str, Any]]:
        return [pod for pod in self.cluster.of(kinds.POD) if pod not in self.pods()]

    def uids(self) -> dict[str, str]:
        return {pods.name(pod): pod["metadata"]["uid"] for pod in self.pods()}

    def images(self) -> list[str]:
        return [templates.image_of(pod) for pod in self.pods()]

    def events(self) -> list[str]:
        return [event["reason"] for event in self.cluster.of(kinds.EVENT)]
