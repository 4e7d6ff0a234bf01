"""Which Secrets the operator reads: those that Brokers name, and those that it made itself.

Access rules cannot say that: they know no labels, and no names that are not fixed. So the client
holds to it, and refuses any other read before it leaves the process.
Owns: the names that Brokers' specs have. Never: holds anything of a Secret.
Called by: `cluster`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vespiary_operator import names
from vespiary_spec.errors import ReconcileError


def named(spec: Any, *, is_secret: bool = False) -> Iterator[str]:
    """Yield every name that stands under a field whose own name speaks of a Secret.

    Args:
        spec: A part of a Broker's spec, as the API server has it.
        is_secret: Whether it stands under such a field already.
    """
    if isinstance(spec, str):
        if is_secret:
            yield spec
    elif isinstance(spec, Mapping):
        for field, value in spec.items():
            yield from named(value, is_secret=is_secret or "secret" in str(field).lower())
    elif isinstance(spec, Sequence):
        for value in spec:
            yield from named(value, is_secret=is_secret)


class SecretAccess:
    """What may be read, by what was last seen of each Broker.

    Safe to use from every thread; owned by one `Cluster`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[str, dict[str, frozenset[str]]] = {}

    def learn(self, broker: Mapping[str, Any]) -> None:
        """Take note of a Broker as the API server has it.

        Args:
            broker: The object.
        """
        name = str(broker["metadata"]["name"])
        found = {names.credentials_secret(name), names.users_secret(name)}
        found.update(named(broker.get("spec") or {}))
        namespace = str(broker["metadata"].get("namespace", ""))
        with self._lock:
            self._names.setdefault(namespace, {})[name] = frozenset(found)

    def forget(self, namespace: str, broker: str) -> None:
        """Allow no more what a Broker named that is gone."""
        with self._lock:
            self._names.get(namespace, {}).pop(broker, None)

    def check_name(self, namespace: str, name: str) -> None:
        """Refuse a Secret that no Broker of its namespace names.

        Raises:
            ReconcileError: It may not be read.
        """
        with self._lock:
            if any(name in allowed for allowed in self._names.get(namespace, {}).values()):
                return
        raise ReconcileError(
            "no Broker names this Secret, so it is not read",
            where=f"secrets {namespace}/{name}",
            cure="name it in the Broker's spec",
        )

    @staticmethod
    def check_selector(selector: str) -> None:
        """Refuse a list of Secrets that are not the operator's own.

        Raises:
            ReconcileError: The selector lets others in.
        """
        if names.MANAGED_SELECTOR not in selector.split(","):
            raise ReconcileError(
                "Secrets are listed by the operator's own label alone",
                where=f"secrets with {selector or 'any label'}",
                cure=f"add {names.MANAGED_SELECTOR}",
            )
