"""Objects for what a cluster may have or not: a Gateway's route, and a PodMonitor.

Their kinds come with other projects. Where a Broker asks for one and the API server does not know
its kind, a condition says so, and everything else goes on.

Owns: which such objects there should be, and the condition `Integrated`. Pure.
Never: talks to the API server. Called by: `children`, `observer` (for the names), `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vespiary_operator import kinds, names
from vespiary_operator.actions import Action, Apply, Delete, deletion
from vespiary_operator.builders import services
from vespiary_operator.conditions import FALSE, TRUE, Finding
from vespiary_operator.kinds import Kind
from vespiary_spec.conversion import to_plain
from vespiary_spec.model import Spelling
from vespiary_spec.resources import Broker
from vespiary_spec.services import PodMonitor, TlsRoute
from vespiary_spec.status import ConditionType

if TYPE_CHECKING:
    from vespiary_operator.observation import Observed

_NOT_ASKED = "NotAsked"

_FIELDS = {
    kinds.POD_MONITOR.name: "spec.metrics.podMonitor",
    kinds.TLS_ROUTE.name: "spec.tlsRoute",
}
_PROJECTS = {
    kinds.POD_MONITOR.name: "the Prometheus operator",
    kinds.TLS_ROUTE.name: "the Gateway API",
}


def asked(broker: Broker) -> tuple[str, ...]:
    """Return the kinds that a Broker asks for, by name."""
    found = []
    if broker.spec.metrics.pod_monitor is not None:
        found.append(kinds.POD_MONITOR.name)
    if broker.spec.tls_route is not None:
        found.append(kinds.TLS_ROUTE.name)
    return tuple(found)


def looked_for(broker: Broker) -> tuple[tuple[Kind, ...], ...]:
    """Return the kinds to look for, each in all its versions; nothing was ever asked: none.

    Once something was asked for, the condition says so, and what is not asked for any more has to
    be found to be deleted.
    """
    had = any(
        c.type == ConditionType.INTEGRATED.value and c.reason != _NOT_ASKED
        for c in broker.status.conditions
    )
    if not had and not asked(broker):
        return ()
    return ((kinds.POD_MONITOR,), kinds.TLS_ROUTE_VERSIONS)


def object_name(broker: Broker) -> str:
    """Return the name of either object."""
    return names.stateful_set(broker.metadata.name)


def manifests(observed: Observed) -> Iterator[dict[str, Any]]:
    """Yield what is asked for and can be made."""
    broker = observed.broker
    monitor, route = broker.spec.metrics.pod_monitor, broker.spec.tls_route
    if monitor is not None and kinds.POD_MONITOR.name in observed.served:
        yield pod_monitor(broker, monitor)
    if route is not None and kinds.TLS_ROUTE.name in observed.served:
        yield tls_route(broker, route, observed.served[kinds.TLS_ROUTE.name])


def superseded(observed: Observed) -> Iterator[Delete]:
    """Yield the deletions of what is not asked for any more."""
    broker = observed.broker
    for kind in (kinds.POD_MONITOR, kinds.TLS_ROUTE):
        if kind.name in asked(broker) or kind.name not in observed.served:
            continue
        found = observed.child(kind, object_name(broker))
        if found is not None and _is_ours(observed, kind.name):
            yield deletion(
                observed.served[kind.name], found, f"{_FIELDS[kind.name]} is not asked for."
            )


def _is_ours(observed: Observed, kind: str) -> bool:
    """Return whether there is an object of a kind, and it belongs to this very Broker."""
    found = observed.children.get((kind, object_name(observed.broker)))
    owners = (found or {}).get("metadata", {}).get("ownerReferences") or ()
    return any(owner.get("uid") == observed.broker.metadata.uid for owner in owners)


def condition(
    observed: Observed, actions: Iterable[Action], *, failure: str = ""
) -> dict[ConditionType, Finding]:
    """Return whether what is asked for is there.

    Args:
        observed: What was found.
        actions: What the pass has done by the time when this is said.
        failure: Why not all of it was done; empty if it was.
    """
    wanted = asked(observed.broker)
    if not wanted:
        said = "No object of another project is asked for."
        return {ConditionType.INTEGRATED: (TRUE, _NOT_ASKED, said)}
    missing = [name for name in wanted if name not in observed.served]
    if missing:
        said = " ".join(
            f"{_FIELDS[name]} asks for a {name}, which this API server does not know: install the "
            f"definitions of {_PROJECTS[name]}, or take the field out."
            for name in missing
        )
        return {ConditionType.INTEGRATED: (FALSE, "ApiMissing", said)}
    made = {a.manifest["kind"] for a in actions if isinstance(a, Apply) and not failure}
    absent = [name for name in wanted if name not in made and not _is_ours(observed, name)]
    if absent:
        why = failure or "Something else comes first: see Ready and Paused."
        said = f"Yet to be made: {_listed(observed.broker, absent)}. {why}"
        return {ConditionType.INTEGRATED: (FALSE, "NotMade", said)}
    said = f"There are: {_listed(observed.broker, wanted)}."
    return {ConditionType.INTEGRATED: (TRUE, "AsAsked", said)}


def _listed(broker: Broker, kind_names: Iterable[str]) -> str:
    return ", ".join(f"{kind} {object_name(broker)}" for kind in kind_names)


def pod_monitor(broker: Broker, wanted: PodMonitor) -> dict[str, Any]:
    """Return the PodMonitor; Prometheus logs in unless there is a port without a login."""
    metadata = names.metadata(broker, object_name(broker))
    metadata["labels"] = {**(wanted.labels or {}), **metadata["labels"]}
    secret = wanted.credentials_secret_name
    endpoint: dict[str, Any] = {"port": services.probe_port(broker)[0], "path": "/metrics"}
    if broker.spec.admin.probe_port is None:  # a password would go over it for nothing
        endpoint["basicAuth"] = {
            "username": {"name": secret, "key": "username"},
            "password": {"name": secret, "key": "password"},
        }
    if wanted.interval is not None:
        endpoint["interval"] = f"{wanted.interval}s"
    return {
        "apiVersion": kinds.POD_MONITOR.api_version,
        "kind": kinds.POD_MONITOR.name,
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": names.selector_labels(broker)},
            "podMetricsEndpoints": [endpoint],
        },
    }


def tls_route(broker: Broker, wanted: TlsRoute, kind: Kind) -> dict[str, Any]:
    """Return the TLSRoute, which leads to one acceptor's port of the Service for clients."""
    metadata = names.metadata(broker, object_name(broker))
    metadata["labels"] = {**(wanted.labels or {}), **metadata["labels"]}
    if wanted.annotations:
        metadata.setdefault("annotations", {}).update(wanted.annotations)
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": metadata,
        "spec": {
            "parentRefs": to_plain(wanted.parent_refs, spelling=Spelling.CAMEL),
            "hostnames": list(wanted.hostnames),
            "rules": [
                {
                    "backendRefs": [
                        {
                            "name": names.client_service(broker.metadata.name),
                            "port": services.client_port(broker, wanted.acceptor),
                        }
                    ]
                }
            ],
        },
    }
