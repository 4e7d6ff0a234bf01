"""What one reconcile pass of a Broker looks at.

Owns: the set of reads, all of them live, so that every pass starts from the truth.
Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from vespiary_operator import kinds, names, pods, users
from vespiary_operator.kinds import Kind
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Broker

Object = Mapping[str, Any]


class Reader(Protocol):
    """What `observe` needs of the cluster."""

    async def get(self, kind: Kind, name: str, namespace: str = "") -> dict[str, Any] | None:
        """Return an object; None if it is not there."""

    async def items(
        self, kind: Kind, namespace: str = "", selector: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects that labels select."""

    async def items_if_allowed(self, kind: Kind) -> list[dict[str, Any]] | None:
        """Return all objects of a cluster-wide kind; None where the operator may not see them."""


class BrokerReader(Protocol):
    """What `observe` needs of running brokers."""

    async def answer(self, pod: Object, port: int, password: str) -> BrokerAnswer | None:
        """Return what a broker says about itself; None if it cannot be asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerAnswer:
    """What a running broker says about itself.

    Attributes:
        engine: Effective journal engine.
        durability: D0, D1 or D2.
        version: Version of its software.
    """

    engine: str = ""
    durability: str = ""
    version: str = ""


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
        credentials: Users.
        answers: What running brokers say, by pod.
    """

    broker: Broker
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()
    claims: Mapping[str, Object] = field(default_factory=dict)
    classes: Mapping[str, Object] | None = None
    volumes: tuple[Object, ...] | None = None
    credentials: Credentials = Credentials()
    answers: Mapping[str, BrokerAnswer] = field(default_factory=dict)

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
    """

    def __init__(self, cluster: Reader, brokers: BrokerReader) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._users = HashedUsers()

    async def observe(self, broker: Broker) -> Observed:
        """Read everything about a Broker.

        Args:
            broker: The resource as it is now.
        """
        name, namespace = broker.metadata.name, broker.metadata.namespace
        wanted = (
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
        found, config_maps, running, claims, classes, volumes = await asyncio.gather(
            asyncio.gather(*(cluster.get(kind, child, namespace) for kind, child in wanted)),
            cluster.items(kinds.CONFIG_MAP, namespace, selector),
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
        for document in config_maps:
            children[kinds.CONFIG_MAP.name, document["metadata"]["name"]] = document
        running = [pod for pod in running if pods.ordinal(pod) >= 0]
        credentials = await self._credentials(broker, children)
        return Observed(
            broker=broker,
            children=children,
            pods=tuple(sorted(running, key=pods.ordinal)),
            claims={claim["metadata"]["name"]: claim for claim in claims},
            classes=None if classes is None else {c["metadata"]["name"]: c for c in classes},
            volumes=None if volumes is None else tuple(volumes),
            credentials=credentials,
            answers=await self._answers(broker, running, credentials.admin_password),
        )

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


def _users_text(secret: Object | None) -> str:
    """Return the users file that a Secret holds; empty if it holds none that can be read."""
    if secret is None:
        return ""
    try:
        data = {names.USERS_KEY: (secret.get("data") or {}).get(names.USERS_KEY, "")}
        return users.decoded(data, "users")[names.USERS_KEY] + "\n"
    except ConfigError:
        return ""
