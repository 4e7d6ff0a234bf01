"""Whether an object in the cluster still is what it should be.

Owns: the comparison of a manifest with a live object. Everything that the manifest says has to
be in the object; what others added beside it (defaults, labels, a mesh's annotations) is theirs.
Never: talks to the API server. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from vespiary_operator.names import MANAGER
from vespiary_operator.ownership import forgotten

_KEYED_LISTS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}
"""Lists that the API server merges by a key: others may add items of their own."""

ATOMIC_MAPS = ("selector", "podSelector", "labelSelector", "matchLabels", "nodeSelector")
"""Maps that the API server replaces as a whole: one entry more makes another selection."""

_QUANTITIES = ("storage", "sizeLimit")


def difference(wanted: Any, found: Any, path: str = "") -> str:
    """Return where a live object is not as wanted; empty if it is.

    Args:
        wanted: A manifest, or a part of one.
        found: The live object, or the same part of it; None if it is not there.
        path: Where the part stands.

    Returns:
        The path to the first difference, such as `spec.replicas`.
    """
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return "" if not wanted and found is None else path or "."
        if path.rpartition(".")[2] in ATOMIC_MAPS and wanted.keys() != found.keys():
            return path
        for name, value in wanted.items():
            here = difference(value, found.get(name), f"{path}.{name}" if path else str(name))
            if here:
                return here
        return ""
    if isinstance(wanted, list):
        return _list_difference(wanted, found, path)
    if wanted == found or (not wanted and found is None):
        return ""
    name = path.rpartition(".")[2]
    is_quantity = name in _QUANTITIES or ".requests." in path or ".limits." in path
    if is_quantity and quantity(wanted) == quantity(found) is not None:
        return ""
    return path


def departure(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return where a whole live object departs from its manifest; empty if it does not.

    Beside what is missing or other there, that is a field of ours which the manifest no longer has.
    """
    return difference(wanted, found) or forgotten(wanted, found, MANAGER)


def _list_difference(wanted: list[Any], found: Any, path: str) -> str:
    if not isinstance(found, list):
        return "" if not wanted and found is None else path
    key = _KEYED_LISTS.get(path.rpartition(".")[2])
    if path.endswith(".ipFamilies"):
        found = found[: len(wanted)]  # the API server adds the second one of a dual stack
    if key is None:
        if len(wanted) != len(found):
            return path
        pairs = zip(wanted, found, range(len(wanted)), strict=True)
        return next((here for w, f, n in pairs if (here := difference(w, f, f"{path}[{n}]"))), "")
    by_key = {item.get(key): item for item in found if isinstance(item, Mapping)}
    for item in wanted:
        # The name of the item stands where its index would, without dots.
        place = f"{path}[{item.get(key)}]"
        if item.get(key) not in by_key:
            return place
        here = difference(item, by_key[item.get(key)], place)
        if here:
            return here
    return ""


def quantity(value: object) -> Decimal | None:
    """Return the number that a Kubernetes quantity stands for; None if it is no quantity."""
    if value is None:
        return None
    try:
        found: Decimal = parse_quantity(value)  # type: ignore[no-untyped-call]
    except ValueError:
        return None
    return found
