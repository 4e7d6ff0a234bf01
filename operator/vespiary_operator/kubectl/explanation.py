"""What stands in the way of a Broker, and which command comes next: from its status alone. Pure.

Called by: `kubectl vespiary status` and `verify`.
"""

from __future__ import annotations

from typing import Any

import msgspec

Document = dict[str, Any]

_ROOTS = ("StorageVerified",)
"""What makes others bad: a broker whose disk is refused is stuck as well."""
_BAD_WHEN_TRUE = ("Degraded",)
_AFTER_THE_OTHERS = ("Available", "Progressing", "Paused", "UpToDate", "ConfigApplied")


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A Broker in short.

    Attributes:
        name: Its name.
        namespace: Its namespace.
        ready: Whether all that is asked for serves clients.
        desired: Brokers that are asked for.
        actual: Brokers that serve clients.
        version: What they run.
        observed: Whether the status is about the newest spec.
        blocked_by: Condition that stands in the way; empty if none.
        reason: Its reason.
        sentence: Its sentence.
        next: Command that comes next; empty if there is nothing to do.
    """

    name: str
    namespace: str
    ready: bool
    desired: int
    actual: int
    version: str
    observed: bool
    blocked_by: str = ""
    reason: str = ""
    sentence: str = ""
    next: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was verified about one volume, or one node.

    Attributes:
        pod: The pod.
        what: Name of the volume, or `node`.
        verdict: `allow`, `warn`, `deny`, or `unknown`.
        filesystem: Filesystem of the volume.
        sentence: Why.
    """

    pod: str
    what: str
    verdict: str
    filesystem: str = ""
    sentence: str = ""


def conditions(broker: Document) -> dict[str, Document]:
    """Return the conditions of a Broker by type."""
    found = (broker.get("status") or {}).get("conditions") or ()
    return {str(condition.get("type")): condition for condition in found}


def explain(broker: Document) -> Explanation:
    """Say what stands in the way of a Broker.

    Args:
        broker: The resource as the API server has it.
    """
    metadata, spec = broker["metadata"], broker.get("spec") or {}
    status = broker.get("status") or {}
    known = conditions(broker)
    name, namespace = str(metadata["name"]), str(metadata.get("namespace", ""))
    blocking = _blocking(known)
    observed = status.get("observedGeneration") == metadata.get("generation")
    desired = 0 if spec.get("hibernate") else int(spec.get("replicas", 1))
    return Explanation(
        name=name,
        namespace=namespace,
        ready=observed and (known.get("Ready") or {}).get("status") == "True",
        desired=desired,
        actual=int(status.get("readyReplicas") or 0),
        version=str(status.get("version") or ""),
        observed=observed,
        blocked_by=str(blocking.get("type", "")),
        reason=str(blocking.get("reason", "")),
        sentence=str(blocking.get("message", ""))
        or ("" if observed else "The operator has yet to look at the newest spec."),
        next=_next(name, namespace, blocking, observed=observed),
    )


def _blocking(known: dict[str, Document]) -> Document:
    """Return the condition that stands in the way, the most telling first; empty if none does."""
    paused = known.get("Paused") or {}
    if paused.get("status") == "True":
        return paused
    for kind in _ROOTS:
        if (known.get(kind) or {}).get("status") == "False":
            return known[kind]
    for kind in _BAD_WHEN_TRUE:
        if (known.get(kind) or {}).get("status") == "True":
            return known[kind]
    bad = [
        condition
        for kind, condition in known.items()
        if condition.get("status") == "False"
        and kind not in (*_AFTER_THE_OTHERS, *_BAD_WHEN_TRUE, "Ready", "Draining")
    ]
    ready = known.get("Ready") or {}
    if ready.get("status") == "True":
        return bad[0] if bad else {}
    return bad[0] if bad else ready


def _next(name: str, namespace: str, blocking: Document, *, observed: bool) -> str:
    """Return the command that comes next."""
    at = f"-n {namespace}"
    kind, reason = blocking.get("type"), str(blocking.get("reason", ""))
    if not blocking:
        wait = f"kubectl {at} wait --for=condition=Ready broker/{name} --timeout=120s"
        return "" if observed else wait
    if kind == "Paused":
        return f"kubectl {at} edit broker {name}    # take spec.paused out when it may go on"
    if kind in ("StorageVerified", "NodeTuned", "JournalEngine") or reason == "VolumeRefused":
        return f"kubectl vespiary {at} verify {name}"
    if reason == "SecretUnusable":
        return f"kubectl {at} get secrets"
    if reason in ("InvalidSpec", "InvalidConfiguration", "NameTaken"):
        return f"kubectl {at} edit broker {name}"
    if reason == "Starting":
        return f"kubectl {at} wait --for=condition=Ready broker/{name} --timeout=120s"
    return f"kubectl {at} describe broker {name}"


def verified(broker: Document) -> list[Finding]:
    """Return what was verified about every volume of every broker, and its node."""
    found = []
    status = broker.get("status") or {}
    for instance in status.get("brokers") or ():
        pod = str(instance.get("name", ""))
        volumes = instance.get("volumes") or ()
        if not volumes:
            waits = str(instance.get("message") or "It has yet to look at its volumes.")
            found.append(Finding(pod=pod, what="volumes", verdict="unknown", sentence=waits))
        found += [
            Finding(
                pod=pod,
                what=str(volume.get("name", "")),
                verdict=str(volume.get("verdict") or "allow"),
                filesystem=str(volume.get("filesystem") or ""),
                sentence=str(volume.get("reason") or ""),
            )
            for volume in volumes
        ]
        aio = instance.get("aio") or {}
        if aio.get("maxNr") is not None:
            shown = (
                f"fs.aio-max-nr={aio['maxNr']}, in use {aio.get('nr')}, asked {aio.get('demand')}"
            )
            found.append(Finding(pod=pod, what="node", verdict="allow", sentence=shown))
    for kind in ("StorageVerified", "NodeTuned"):
        condition = conditions(broker).get(kind) or {}
        if condition.get("status") == "False":
            said = str(condition.get("message", ""))
            found.append(Finding(pod="", what=kind, verdict="deny", sentence=said))
    return found


def is_good(findings: list[Finding]) -> bool:
    """Return whether everything was verified and nothing was refused."""
    return bool(findings) and all(one.verdict in ("allow", "warn") for one in findings)
