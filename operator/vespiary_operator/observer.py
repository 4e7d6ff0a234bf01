"""The reads of one pass over a Broker.

Owns: the set of reads, and that none waits for another which it does not follow from. Where they
are answered, live or from the cache, is the reader's matter.
Never: writes. Called by: `reconciler`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from vespiary_operator import broker_services, integrations, kinds, names, pods, scaling, users
from vespiary_operator.admin_ports import AdminPort, admin_port
from vespiary_operator.broker_calls import DrainAnswer
from vespiary_operator.builders import compatibility_pod
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.kinds import Kind
from vespiary_operator.observation import (
    BrokerAnswer,
    BrokerReader,
    Credentials,
    Object,
    Observed,
    Reader,
)
from vespiary_spec import configuration
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import Auth, Broker

T = TypeVar("T")

Ports = Mapping[str, AdminPort | None]
"""Where brokers are called, by pod; None for one whose certificate cannot be known."""

WARNINGS_SELECTOR = "type=Warning"
"""Field selector of the Events that say why something does not happen."""


class HashedUsers:
    """The users files that were found to fit, so that hashing is done once for each change.

    Owned by one `Observer`; holds digests, never a password.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], bytes] = {}

    async def users_file(
        self, owner: tuple[str, str], passwords: Mapping[str, str], auth: Auth, now: str
    ) -> str:
        """Return the users file; `now` again if it fits passwords and roles.

        Raises:
            ConfigError: A password may not be one, or a role is that of nobody.
        """
        roles = users.roles_of(auth)
        if now and self._known.get(owner) == _digest(passwords, roles, now):
            return now
        # Hashing takes tenths of a second of CPU for each user.
        make = partial(users.users_file, is_short_allowed=auth.allow_short_passwords)
        text = await asyncio.to_thread(make, passwords, now, roles)
        self._known[owner] = _digest(passwords, roles, text)
        return text


def _digest(passwords: Mapping[str, str], roles: Mapping[str, tuple[str, ...]], file: str) -> bytes:
    found = (sorted(passwords.items()), sorted(roles.items()), file)
    return hashlib.sha256(repr(found).encode()).digest()


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
        namespace, cluster = broker.metadata.namespace, self._cluster
        own = names.selector(names.selector_labels(broker))
        # Two rounds, in each of which nothing waits for another: what can be asked at once, and
        # what follows from that.
        (children, running, claims), (classes, volumes, attributes), others = await asyncio.gather(
            asyncio.gather(
                self._children(broker),
                cluster.items(kinds.POD, namespace, names.selector(names.labels(broker))),
                cluster.items(kinds.CLAIM, namespace, own),
            ),
            asyncio.gather(
                cluster.items_if_allowed(kinds.STORAGE_CLASS),
                cluster.items_if_allowed(kinds.PERSISTENT_VOLUME),
                self._attributes_classes(broker),
            ),
            asyncio.gather(
                self._integrations(broker),
                self._users_secret(broker),
                self._tls_secrets(broker),
                self._checks(broker),
            ),
        )
        (served, integrated), users_secret, tls_secrets, checks = others
        children |= integrated
        running = [pod for pod in running if pods.ordinal(pod) >= 0]
        csi_nodes, revisions, nodes, events, said = await asyncio.gather(
            self._csi_nodes(broker, claims),
            self._revisions(broker, running, children),
            self._nodes(running, now),
            self._events(broker, running),
            self._said(broker, children, users_secret, tls_secrets, running),
        )
        credentials, answers, drains = said
        return Observed(
            broker=broker,
            children=children,
            pods=tuple(sorted(running, key=pods.ordinal)),
            claims={claim["metadata"]["name"]: claim for claim in claims},
            classes=None if classes is None else {c["metadata"]["name"]: c for c in classes},
            volumes=_several(volumes),
            csi_nodes=csi_nodes,
            nodes=nodes,
            attributes_classes=attributes,
            served=served,
            credentials=credentials,
            answers=answers,
            drains=drains,
            events=events,
            tls_secrets=tls_secrets,
            revisions=revisions,
            checks=checks,
            now=now,
        )

    async def _children(self, broker: Broker) -> dict[tuple[str, str], Object]:
        """Read what the operator makes for every Broker."""
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
        wanted += tuple((kinds.SERVICE, own) for own in broker_services.expected(broker))
        labelled = (kinds.SERVICE, kinds.CONFIG_MAP)
        selector = names.selector(names.labels(broker))
        found, by_label = await asyncio.gather(
            asyncio.gather(*(self._cluster.get(kind, child, namespace) for kind, child in wanted)),
            asyncio.gather(*(self._cluster.items(kind, namespace, selector) for kind in labelled)),
        )
        children: dict[tuple[str, str], Object] = {
            (kind.name, child): document
            for (kind, child), document in zip(wanted, found, strict=True)
            if document is not None
        }
        for kind, documents in zip(labelled, by_label, strict=True):
            for document in documents:
                children[kind.name, document["metadata"]["name"]] = document
        return children

    async def _csi_nodes(
        self, broker: Broker, claims: list[dict[str, Any]]
    ) -> tuple[Object, ...] | None:
        """Read the CSINodes while claims have yet to be made."""
        if len(claims) >= broker.spec.replicas * len(volumes_of(broker)):
            return None
        return _several(await self._cluster.items_if_allowed(kinds.CSI_NODE))

    async def _revisions(
        self,
        broker: Broker,
        running: list[dict[str, Any]],
        children: Mapping[tuple[str, str], Object],
    ) -> tuple[Object, ...]:
        """Read what tells the template of pods whose StatefulSet is gone."""
        name = names.stateful_set(broker.metadata.name)
        if not running or (kinds.STATEFUL_SET.name, name) in children:
            return ()
        selector = names.selector(names.selector_labels(broker))
        return tuple(
            await self._cluster.items(
                kinds.CONTROLLER_REVISION, broker.metadata.namespace, selector
            )
        )

    async def _integrations(
        self, broker: Broker
    ) -> tuple[dict[str, Kind], dict[tuple[str, str], Object]]:
        """Read objects of kinds that a cluster may lack; return the kinds that it has, and them."""
        name, namespace = integrations.object_name(broker), broker.metadata.namespace

        async def first_served(versions: tuple[Kind, ...]) -> tuple[Kind, Object | None] | None:
            for kind in versions:
                is_served, found = await self._cluster.get_if_served(kind, name, namespace)
                if is_served:
                    return kind, found
            return None

        answers = await asyncio.gather(*map(first_served, integrations.looked_for(broker)))
        known = [answer for answer in answers if answer is not None]
        served = {kind.name: kind for kind, _ in known}
        return served, {(kind.name, name): found for kind, found in known if found is not None}

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

    async def _users_secret(self, broker: Broker) -> Object | None:
        """Read the Secret with passwords that the Broker names, if it names one."""
        name = broker.spec.auth.secret_name
        if name is None:
            return None
        return await self._cluster.get(kinds.SECRET, name, broker.metadata.namespace)

    async def _said(
        self,
        broker: Broker,
        children: Mapping[tuple[str, str], Object],
        users_secret: Object | None,
        tls_secrets: Mapping[str, Object | None],
        running: list[dict[str, Any]],
    ) -> tuple[Credentials, dict[str, BrokerAnswer], dict[str, DrainAnswer]]:
        """Find out the users, and ask the brokers as one of them."""
        credentials = await self._credentials(broker, children, users_secret)
        password = credentials.admin_password
        ports = {pods.name(pod): admin_port(broker, pod, tls_secrets) for pod in running}
        answers, drains = await asyncio.gather(
            self._answers(running, ports, password), self._drains(broker, running, ports, password)
        )
        return credentials, answers, drains

    async def _credentials(
        self,
        broker: Broker,
        children: Mapping[tuple[str, str], Object],
        users_secret: Object | None,
    ) -> Credentials:
        owner = (broker.metadata.namespace, broker.metadata.name)
        secret_name, secret = broker.spec.auth.secret_name, users_secret
        if secret_name is None:
            secret_name = names.credentials_secret(broker.metadata.name)
            secret = children.get((kinds.SECRET.name, secret_name))
        elif secret is None:
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
        try:
            text = await self._users.users_file(
                owner, passwords, broker.spec.auth, _users_text(file)
            )
        except ConfigError as error:
            return Credentials(problem=str(error))
        return Credentials(
            new_password=new_password,
            users_file=text,
            admin_password=passwords.get(names.ADMIN_USER, ""),
        )

    async def _answers(
        self, running: list[dict[str, Any]], ports: Ports, password: str
    ) -> dict[str, BrokerAnswer]:
        """Ask brokers that are ready."""
        return await _of_each(
            (pod for pod in running if pods.is_ready(pod) and pods.ip(pod)),
            ports,
            lambda pod, port: self._brokers.answer(pod, port, password),
        )

    async def _nodes(self, running: list[dict[str, Any]], now: str) -> tuple[Object, ...] | None:
        """Read the nodes while a broker has been silent for a while."""
        if not any(pods.is_silent(pod, now) for pod in running):
            return None
        return _several(await self._cluster.items_if_allowed(kinds.NODE))

    async def _drains(
        self, broker: Broker, running: list[dict[str, Any]], ports: Ports, password: str
    ) -> dict[str, DrainAnswer]:
        """Ask brokers that leave, and those that may be cordoned: these are never ready."""
        return await _of_each(
            (
                pod
                for pod in running
                if pods.ip(pod)
                and not pods.is_terminating(pod)
                and (pods.ordinal(pod) >= broker.spec.replicas or not pods.is_ready(pod))
            ),
            ports,
            lambda pod, port: self._brokers.drain_answer(pod, port, password),
        )


async def _of_each(
    asked: Iterable[Object],
    ports: Ports,
    ask: Callable[[Object, AdminPort], Awaitable[T | None]],
) -> dict[str, T]:
    """Ask several pods at once; return what those say that say anything, by pod."""
    several = [(pod, port) for pod in asked if (port := ports[pods.name(pod)]) is not None]
    answers = await asyncio.gather(*(ask(pod, port) for pod, port in several))
    return {
        pods.name(pod): answer
        for (pod, _), answer in zip(several, answers, strict=True)
        if answer is not None
    }


def _several(found: list[dict[str, Any]] | None) -> tuple[Object, ...] | None:
    return None if found is None else tuple(found)


def _users_text(secret: Object | None) -> str:
    """Return the users file that a Secret holds; empty if it holds none that can be read."""
    if secret is None:
        return ""
    try:
        data = {names.USERS_KEY: (secret.get("data") or {}).get(names.USERS_KEY, "")}
        return users.decoded(data, "users")[names.USERS_KEY] + "\n"
    except ConfigError:
        return ""
