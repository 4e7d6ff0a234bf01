"""What one reconcile pass of a Broker looks at.

Owns: the set of reads. Where they are answered, live or from the cache, is the reader's matter.
Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from vespiary_operator import broker_services, integrations, kinds, names, pods, scaling, users
from vespiary_operator.broker_calls import DrainAnswer
from vespiary_operator.builders import compatibility_pod
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.kinds import Kind
from vespiary_spec import configuration
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Broker

Object = Mapping[str, Any]

WARNINGS_SELECTOR = "type=Warning"
"""Field selector of the Events that say why something does not happen."""


class Reader(Protocol):
    """What `observe` needs of the cluster."""

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
    """What `observe` needs of running brokers."""

    async def answer(self, pod: Object, port: int, password: str) -> BrokerAnswer | None:
        """Return what a broker says about itself; None if it cannot be asked."""

    async def drain_answer(self, pod: Object, port: int, password: str) -> DrainAnswer | None:
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


class HashedUsers:
    """The users files that were found to fit, so that hashing is done once for each change.

    Owned by one `Observer`; holds digests, never a password.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bytes] = {}

    def users_file(self, owner: tuple[str, str], passwords: Mapping[str, str], now: str) -> str:
        """Return the users file; `now` again if it fits the passwords.

        Raises:
            ConfigError: A password may not be one.
        """
        digest = hashlib.sha256(repr((sorted(passwords.items()), now)).encode()).digest()
        if now and self._known.get(owner) == digest:
            return now
        text = users.users_file(passwords, now)
        self._known[owner] = hashlib.sha256(
            repr((sorted(passwords.items()), text)).encode()
        ).digest()
        return text


class Observer:
    """Reads everything about one Broker.

    Args:
        cluster: The API server.
        brokers: Running brokers.
        users_: The users files that were found to fit; observers may share them.
    """

    def __init__(
        self, cluster: Reader, brokers: BrokerReader, users_: HashedUsers | None = None
    ) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._users = users_ or HashedUsers()

    async def observe(self, broker: Broker, *, now: str = "") -> Observed:
        """Read everything about a Broker.

        Args:
            broker: The resource as it is now.
            now: The time, RFC 3339.
        """
        name, namespace = broker.metadata.name, broker.metadata.namespace
        wanted: tuple[tuple[Kind, str], ...] = (
            (kinds.STATEFUL_SET, names.stateful_set(name)),
            (kinds.SERVICE, names.client_service(name)),
            (kinds.SERVICE, names.headless_service(name)),
            (kinds.SERVICE_ACCOUNT, names.service_account(name)),
            (kinds.POD_DISRUPTION_BUDGET, names.stateful_set(name)),
            (kinds.NETWORK_POLICY, names.stateful_set(name)),
            (kinds.SECRET, names.credentials_secret(name)),
            (kinds.SECRET, names.users_secret(name)),
        )
        selector = names.selector(names.labels(broker))
        cluster = self._cluster
        wanted += tuple((kinds.SERVICE, own) for own in broker_services.expected(broker))
        labelled = (kinds.SERVICE, kinds.CONFIG_MAP)
        found, by_label, running, claims, classes, volumes = await asyncio.gather(
            asyncio.gather(*(cluster.get(kind, child, namespace) for kind, child in wanted)),
            asyncio.gather(*(cluster.items(kind, namespace, selector) for kind in labelled)),
            cluster.items(kinds.POD, namespace, selector),
            cluster.items(kinds.CLAIM, namespace, names.selector(names.selector_labels(broker))),
            cluster.items_if_allowed(kinds.STORAGE_CLASS),
            cluster.items_if_allowed(kinds.PERSISTENT_VOLUME),
        )
        children: dict[tuple[str, str], Object] = {
            (kind.name, child): document
            for (kind, child), document in zip(wanted, found, strict=True)
            if document is not None
        }
        for kind, documents in zip(labelled, by_label, strict=True):
            for document in documents:
                children[kind.name, document["metadata"]["name"]] = document
        csi_nodes = None
        if len(claims) < broker.spec.replicas * len(volumes_of(broker)):
            csi_nodes = await cluster.items_if_allowed(kinds.CSI_NODE)
        running = [pod for pod in running if pods.ordinal(pod) >= 0]
        revisions: list[dict[str, Any]] = []
        if running and (kinds.STATEFUL_SET.name, names.stateful_set(name)) not in children:
            revisions = await cluster.items(
                kinds.CONTROLLER_REVISION, namespace, names.selector(names.selector_labels(broker))
            )
        credentials = await self._credentials(broker, children)
        return Observed(
            broker=broker,
            children=children,
            pods=tuple(sorted(running, key=pods.ordinal)),
            claims={claim["metadata"]["name"]: claim for claim in claims},
            classes=None if classes is None else {c["metadata"]["name"]: c for c in classes},
            volumes=None if volumes is None else tuple(volumes),
            csi_nodes=None if csi_nodes is None else tuple(csi_nodes),
            nodes=await self._nodes(running, now),
            attributes_classes=await self._attributes_classes(broker),
            served=await self._integrations(broker, children),
            credentials=credentials,
            answers=await self._answers(broker, running, credentials.admin_password),
            drains=await self._drains(broker, running, credentials.admin_password),
            events=await self._events(broker, running),
            tls_secrets=await self._tls_secrets(broker),
            revisions=tuple(revisions),
            checks=await self._checks(broker),
            now=now,
        )

    async def _integrations(
        self, broker: Broker, children: dict[tuple[str, str], Object]
    ) -> dict[str, Kind]:
        """Read objects of kinds that a cluster may lack; return the kinds that it has."""
        served = {}
        name, namespace = integrations.object_name(broker), broker.metadata.namespace
        for versions in integrations.looked_for(broker):
            for kind in versions:
                is_served, found = await self._cluster.get_if_served(kind, name, namespace)
                if not is_served:
                    continue
                served[kind.name] = kind
                if found is not None:
                    children[kind.name, name] = found
                break
        return served

    async def _attributes_classes(self, broker: Broker) -> frozenset[str] | None:
        """Read the names of VolumeAttributesClasses, where a volume asks for one."""
        volumes = broker.spec.storage.volumes
        asked = (getattr(volumes, name.replace("-", "_")) for name in volumes_of(broker))
        if all(spec is None or spec.volume_attributes_class_name is None for spec in asked):
            return None
        found = await self._cluster.items_if_allowed(kinds.ATTRIBUTES_CLASS)
        return None if found is None else frozenset(c["metadata"]["name"] for c in found)

    async def _tls_secrets(self, broker: Broker) -> dict[str, Object | None]:
        """Read the Secrets that the Broker names for TLS, and no other."""
        wanted = configuration.tls_secrets(broker)
        found = await asyncio.gather(
            *(self._cluster.get(kinds.SECRET, name, broker.metadata.namespace) for name in wanted)
        )
        return dict(zip(wanted, found, strict=True))

    async def _events(self, broker: Broker, running: list[dict[str, Any]]) -> tuple[Object, ...]:
        """Read the warnings of a namespace, unless all brokers are ready: then none matters."""
        if sum(pods.is_ready(pod) for pod in running) >= scaling.pods_asked(broker):
            return ()
        return tuple(
            await self._cluster.items(
                kinds.EVENT, broker.metadata.namespace, fields=WARNINGS_SELECTOR
            )
        )

    async def _checks(self, broker: Broker) -> tuple[Object, ...]:
        """Return the pods of an upgrade's checks; none are looked for where all is as it was."""
        if not compatibility_pod.may_be_there(broker):
            return ()
        selector = names.selector(compatibility_pod.labels(broker))
        return tuple(await self._cluster.items(kinds.POD, broker.metadata.namespace, selector))

    async def _credentials(
        self, broker: Broker, children: Mapping[tuple[str, str], Object]
    ) -> Credentials:
        owner = (broker.metadata.namespace, broker.metadata.name)
        secret_name = broker.spec.auth.secret_name
        if secret_name is None:
            secret_name = names.credentials_secret(broker.metadata.name)
            secret = children.get((kinds.SECRET.name, secret_name))
        else:
            secret = await self._cluster.get(kinds.SECRET, secret_name, owner[0])
            if secret is None:
                return Credentials(
                    problem=f"The Secret {secret_name} that spec.auth.secretName names does not "
                    "exist. Create it with a key for each user."
                )
        new_password = ""
        if secret is None:
            new_password = users.new_password()
            passwords = {names.ADMIN_USER: new_password}
        else:
            try:
                passwords = users.decoded(secret.get("data") or {}, secret_name)
            except ConfigError as error:
                return Credentials(problem=str(error))
        file = children.get((kinds.SECRET.name, names.users_secret(owner[1])))
        now = _users_text(file)
        try:
            # Hashing takes milliseconds of CPU for each user.
            text = await asyncio.to_thread(self._users.users_file, owner, passwords, now)
        except ConfigError as error:
            return Credentials(problem=str(error))
        return Credentials(
            new_password=new_password,
            users_file=text,
            admin_password=passwords.get(names.ADMIN_USER, ""),
        )

    async def _answers(
        self, broker: Broker, running: list[dict[str, Any]], password: str
    ) -> dict[str, BrokerAnswer]:
        asked = [pod for pod in running if pods.is_ready(pod) and pods.ip(pod)]
        port = broker.spec.admin.port
        answers = await asyncio.gather(
            *(self._brokers.answer(pod, port, password) for pod in asked)
        )
        return {
            pods.name(pod): answer
            for pod, answer in zip(asked, answers, strict=True)
            if answer is not None
        }

    async def _nodes(self, running: list[dict[str, Any]], now: str) -> tuple[Object, ...] | None:
        """Read the nodes while a broker has been silent for a while."""
        if not any(pods.is_silent(pod, now) for pod in running):
            return None
        found = await self._cluster.items_if_allowed(kinds.NODE)
        return None if found is None else tuple(found)

    async def _drains(
        self, broker: Broker, running: list[dict[str, Any]], password: str
    ) -> dict[str, DrainAnswer]:
        """Ask brokers that leave, and those that may be cordoned: these are never ready."""
        asked = [
            pod
            for pod in running
            if pods.ip(pod)
            and not pods.is_terminating(pod)
            and (pods.ordinal(pod) >= broker.spec.replicas or not pods.is_ready(pod))
        ]
        port = broker.spec.admin.port
        answers = await asyncio.gather(
            *(self._brokers.drain_answer(pod, port, password) for pod in asked)
        )
        return {
            pods.name(pod): answer
            for pod, answer in zip(asked, answers, strict=True)
            if answer is not None
        }


def _users_text(secret: Object | None) -> str:
    """Return the users file that a Secret holds; empty if it holds none that can be read."""
    if secret is None:
        return ""
    try:
        data = {names.USERS_KEY: (secret.get("data") or {}).get(names.USERS_KEY, "")}
        return users.decoded(data, "users")[names.USERS_KEY] + "\n"
    except ConfigError:
        return ""
