"""What one pass found out about a Broker: all that a plan is made from.

Owns: the shape of it, and what it takes of a cluster and of brokers to find it out.
Never: reads anything. Called by: `observer`, `plan` and everything that it asks, `status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from vespiary_operator.admin_ports import AdminPort
from vespiary_operator.broker_calls import DrainAnswer
from vespiary_operator.kinds import Kind
from vespiary_spec.resources import Broker

Object = Mapping[str, Any]


class Reader(Protocol):
    """What is read of the cluster: live, or from the cache."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object; None if it is not there."""

    async def get_if_served(
        self, kind: Kind, name: str, namespace: str = ""
    ) -> tuple[bool, dict[str, Any] | None]:
        """Return whether a kind is known, and an object of it if that is there."""

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels and fields select."""

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a cluster-wide kind; None where the operator may not see them."""


class BrokerReader(Protocol):
    """What running brokers are asked."""

    async def answer(self, pod: Object, port: AdminPort, password: str) -> BrokerAnswer | None:
        """Return what a broker says about itself; None if it cannot be asked."""

    async def drain_answer(self, pod: Object, port: AdminPort, password: str) -> DrainAnswer | None:
        """Return what a broker says of its drain; None if it cannot be asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAnswer:
    """What a running broker says about itself.

    Attributes:
        engine: Effective journal engine.
        durability: D0, D1 or D2.
        version: Version of its software.
        configuration: The files that it has taken; None if it does not say.
        not_ready_reason: Why it takes no messages; empty while it does.
        journal_failed_reason: The failure that fenced its journal; empty while it works.
        journal_blocked_reason: Why producers wait for room in its journal; empty while there is.
        uptime_s: Seconds since it became ready; counters began then.
        messages_in: Messages that came into queues.
        messages_out: Messages given to consumers.
        messages_acknowledged: Messages acknowledged.
        errors: Errors that clients caused, refused logins and dropped messages.
        spaces: How full its volumes are now, by name; empty if it does not say.
    """

    engine: str = ""
    durability: str = ""
    version: str = ""
    configuration: ConfigurationAnswer | None = None
    not_ready_reason: str = ""
    journal_failed_reason: str = ""
    journal_blocked_reason: str = ""
    uptime_s: float = 0.0
    messages_in: int = 0
    messages_out: int = 0
    messages_acknowledged: int = 0
    errors: int = 0
    spaces: Mapping[str, Space] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """How full a volume is now, as its broker says.

    Attributes:
        size_bytes: Size of the filesystem.
        free_bytes: Space that the broker has left.
        inodes: Inodes; 0 where there is no fixed number.
        free_inodes: Inodes left.
    """

    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigurationAnswer:
    """What a running broker says about the files that it has taken.

    Attributes:
        digests: SHA-256 of its configuration files, by path.
        refused: Why the files as they are now were not taken; empty if they were.
        waits_for_restart: Settings of the files that come into effect with the next start.
        users_digest: SHA-256 of its users file.
        users_refused: Why the users file as it is now was not taken.
        certificates: SHA-256 of the certificates in use, by acceptor.
        certificates_refused: Why files of certificates were not taken, by acceptor.
    """

    digests: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    waits_for_restart: tuple[str, ...] = ()
    users_digest: str = ""
    users_refused: str = ""
    certificates: Mapping[str, str] = field(default_factory=dict)
    certificates_refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """Users of a Broker as they are, or as they have to be made.

    Attributes:
        problem: Why there are none, as one sentence; empty if there are.
        new_password: Password to create the Secret with; empty if it is there already.
        users_file: Content that the users file should have.
        admin_password: Password of `admin`, if there is such a user.
    """

    problem: str = ""
    new_password: str = ""
    users_file: str = ""
    admin_password: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """Everything that a plan is made from.

    Attributes:
        broker: The resource.
        children: Live objects by kind and name; what is not there is not in it.
        pods: Its pods, by ordinal.
        claims: Its claims by name.
        classes: StorageClasses by name; None if they may not be read.
        volumes: PersistentVolumes; None if they may not be read.
        served: Kinds of other projects that the API server knows, in the version that it has; only
            those that were looked for.
        attributes_classes: Names of VolumeAttributesClasses; None if they may not be read, the
            cluster has none such, or no volume asks for one.
        csi_nodes: CSINodes; None if they may not be read, or need not because all claims are there.
        nodes: The cluster's nodes; None if they may not be read, or need not because no broker has
            been silent for a while.
        credentials: Users.
        answers: What running brokers say, by pod.
        drains: What brokers say of their drain, by pod: those that leave, or are not ready.
        events: Warnings of Kubernetes in the namespace, read while a broker is not ready.
        checks: Pods that ask images what they are compatible with; looked for only while an upgrade
            may be under way.
        tls_secrets: The Secrets with certificates by name; None for one that is not there.
        revisions: ControllerRevisions, read only while there are pods and no StatefulSet.
        now: The time of the pass, RFC 3339; empty if it does not matter.
    """

    broker: Broker
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    claims: Mapping[str, Object] = field(default_factory=dict)
    classes: Mapping[str, Object] | None = None
    volumes: tuple[Object, ...] | None = None
    csi_nodes: tuple[Object, ...] | None = None
    nodes: tuple[Object, ...] | None = None
    attributes_classes: frozenset[str] | None = None
    served: Mapping[str, Kind] = field(default_factory=dict)
    credentials: Credentials = Credentials()
    answers: Mapping[str, BrokerAnswer] = field(default_factory=dict)
    drains: Mapping[str, DrainAnswer] = field(default_factory=dict)
    events: tuple[Object, ...] = ()
    checks: tuple[Object, ...] = ()
    tls_secrets: Mapping[str, Object | None] = field(default_factory=dict)
    revisions: tuple[Object, ...] = ()
    now: str = ""

    @property
    def time(self) -> datetime:
        """The time of the pass; that of the beginning of the epoch if it does not matter."""
        return datetime.fromisoformat(self.now) if self.now else datetime.fromtimestamp(0, UTC)

    def child(self, kind: Kind, name: str) -> Object | None:
        """Return a live object, or None."""
        return self.children.get((kind.name, name))
