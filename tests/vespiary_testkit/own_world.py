"""An operator with a Broker of two whose brokers read the files of their settings.

Owns brokers that say which settings wait for their next start. Called by
tests/unit/vespiary_operator.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from vespiary_operator import kinds
from vespiary_operator.admin_ports import AdminPort
from vespiary_operator.builders import pod_template, settings_map
from vespiary_operator.metrics import Metrics
from vespiary_operator.observation import BrokerAnswer, ConfigurationAnswer
from vespiary_operator.reconciler import Reconciler
from vespiary_operator.work import WorkQueue
from vespiary_spec import changes, configuration
from vespiary_testkit.fake_kubernetes import FakeKubernetes, FakeRemote, without_hashing
from vespiary_testkit.resize_world import OPTIONS, ResizeWorld

LIVE = "orders-live-config"


class FilesRemote(FakeRemote):
    """Brokers that read the files of the ConfigMaps, and say what waits for their next start."""

    def __init__(self, cluster: FakeKubernetes) -> None:
        super().__init__()
        self.cluster = cluster
        self.started: dict[str, Any] = {}
        self.is_old = False

    def copied(self, cluster: FakeKubernetes) -> FakeRemote:
        found = super().copied(cluster)
        assert isinstance(found, FilesRemote)
        found.cluster, found.started = cluster, dict(self.started)
        return found

    async def answer(
        self, pod: Mapping[str, Any], port: AdminPort, password: str
    ) -> BrokerAnswer | None:
        metadata = pod["metadata"]
        data = self.cluster.one(kinds.CONFIG_MAP, LIVE)["data"]
        own = data.get(f"broker-{metadata['name'].rpartition('-')[2]}.yaml")
        read = configuration.from_plain(configuration.parse_yaml(own or "{}"))
        running = self.started.setdefault(metadata["uid"], read)
        waits = changes.differences(changes.merged(running, read), read)
        digests = {pod_template.LIVE_PATH: settings_map.digest(data["live.yaml"])}
        if not self.is_old:
            path = pod_template.own_path(int(metadata["name"].rpartition("-")[2]))
            digests[path] = settings_map.digest(own) if own else ""
        users = self.cluster.one(kinds.SECRET, "orders-users")["data"]["users"]
        return BrokerAnswer(
            engine="ASYNCIO",
            configuration=ConfigurationAnswer(
                digests=digests,
                waits_for_restart=tuple(each.path for each in waits),
                users_digest=hashlib.sha256(base64.b64decode(users)).hexdigest(),
            ),
        )


class OwnWorld(ResizeWorld):
    """A world whose brokers read their files."""

    remote: FilesRemote

    def restart(self) -> None:
        if self.killed == 0:
            self.remote = FilesRemote(self.cluster)  # brokers run on without an operator
        self.reconciler = Reconciler(
            self.cluster,
            self.remote,
            WorkQueue(),
            OPTIONS,
            Metrics(),
            now=lambda: self.cluster.now,
        )
        without_hashing(self.reconciler)

    def uids(self) -> list[str]:
        return [self.pod(n)["metadata"]["uid"] for n in (0, 1)]

    def own(self, *entries: dict[str, Any], **spec: Any) -> None:
        self.ask(size="1Gi", replicas=2, **spec)
        self.cluster.one(kinds.BROKER, "orders")["spec"]["perBroker"] = list(entries)
