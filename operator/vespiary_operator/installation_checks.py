"""What `helm test` and `helm uninstall` ask: does it work, and what would go with it.

Owns: the sentences. Each check is a request that a user could make; nothing is left behind.
Never: runs inside the operator's own process. Called by: `__main__`.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError

from vespiary_operator import kinds
from vespiary_operator.kinds import Kind

READYZ_TIMEOUT_S = 10

Resources = Callable[[Kind], Any]
"""Returns the dynamic client's handle of a kind."""


def _broker(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": kinds.BROKER.api_version,
        "kind": kinds.BROKER.name,
        "metadata": {"generateName": "vespiary-check-"},
        "spec": spec,
    }


def _try_broker(resources: Resources, namespace: str, spec: dict[str, Any]) -> int:
    """Return the HTTP status of a Broker that is not kept."""
    try:
        resources(kinds.BROKER).create(
            body=_broker(spec), namespace=namespace, query_params=[("dryRun", "All")]
        )
    except DynamicApiError as error:
        return int(error.status or 0)
    return 201


def _readyz(url: str) -> str:
    """Return why the operator is not ready; empty if it is."""
    try:
        with urllib.request.urlopen(url, timeout=READYZ_TIMEOUT_S) as answer:  # noqa: S310 - ours
            return "" if answer.status == 200 else f"it answers {answer.status}"
    except (urllib.error.URLError, OSError) as error:
        return str(error)


def installation(
    resources: Resources, namespace: str, readyz_url: str
) -> Iterator[tuple[bool, str]]:
    """Yield whether each part of an installation works, and a sentence.

    Args:
        resources: The API server.
        namespace: Where a Broker is tried; nothing is kept.
        readyz_url: The operator's `/readyz`.
    """
    try:
        resources(kinds.BROKER)
    except ResourceNotFoundError:
        yield False, "The API server does not know Brokers. Install the definitions (crds/*.yaml)."
        return
    yield True, f"The API server knows {kinds.BROKER.api_version} Brokers."
    status = _try_broker(resources, namespace, {})
    yield (
        status == 201,
        f"An empty Broker is taken in {namespace}."
        if status == 201
        else f"An empty Broker is not taken in {namespace} (status {status}); is a policy or a "
        "webhook in the way?",
    )
    status = _try_broker(resources, namespace, {"storage": {"volumes": {"journal": {"size": "1"}}}})
    yield (
        status == 422,
        "A Broker with a journal of one byte is refused."
        if status == 422
        else f"A Broker with a journal of one byte got status {status} instead of 422; the "
        "definitions are older than the operator, or are not its own.",
    )
    reason = _readyz(readyz_url)
    yield (
        not reason,
        "The operator is ready."
        if not reason
        else f"The operator is not ready: {reason}. Look at its log.",
    )


def uninstall(resources: Resources, namespaces: tuple[str, ...]) -> Iterator[tuple[bool, str]]:
    """Yield what would be lost if the definitions went.

    Args:
        resources: The API server.
        namespaces: Where Brokers are looked for; empty means everywhere.
    """
    try:
        handle = resources(kinds.BROKER)
    except ResourceNotFoundError:
        yield True, "There are no definitions any more."
        return
    found = [
        f"{item.metadata.namespace}/{item.metadata.name}"
        for namespace in namespaces or (None,)
        for item in handle.get(namespace=namespace).items
    ]
    if not found:
        yield True, "There are no Brokers."
        return
    shown = ", ".join(sorted(found)[:5]) + (" and others" if len(found) > 5 else "")
    yield (
        False,
        f"With crds.keep=false the uninstall would delete {len(found)} Brokers: {shown}. Delete "
        "them first, or `helm rollback` the release and `helm upgrade` with crds.keep=true.",
    )
