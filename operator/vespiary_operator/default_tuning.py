"""The BrokerNodeTuning `default`, as the values of the chart ask for it.

Owns: what of the values goes into the resource. A value that is another one than when it was last
written is written; one that is the same leaves alone what people have made of it since. What was
last written is in an annotation, as `kubectl apply` does it. The chart cannot hold the resource
(docs/decisions/0026): Helm looks up every kind before it has made the definitions.
Never: reads the cluster. Called by: `reconciler`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from vespiary_operator import kinds, names
from vespiary_operator.actions import Apply
from vespiary_operator.observation import Object

NAME = "default"

FIELD_MANAGER = "vespiary-chart"
"""Field manager of what comes from the chart's values: what they no longer say goes away."""

_HELM = "helm"
"""Field manager of charts that had the resource as a hook, and wrote its mode alone."""

Path = tuple[str, ...]


def plan(values: str, found: Object | None) -> Apply | None:
    """Decide what to write of the chart's values.

    Args:
        values: The spec that the chart's values make, as JSON.
        found: The live resource, or None.

    Returns:
        What brings the resource to the values; None if they were written already.
    """
    record = _annotations(found).get(names.ANNOTATION_CHART_VALUES)
    if found is not None and record == values:
        return None
    wanted = dict(_leaves(json.loads(values)))
    live = dict(_leaves((found or {}).get("spec") or {}))
    before = _written_before(record, found, live)

    def is_chosen(path: Path, value: Any) -> bool:
        if path in before:  # else people have changed it, or taken it away
            return bool(before[path] != value or live.get(path) == value)
        return record is not None or path not in live

    written = {path: value for path, value in wanted.items() if is_chosen(path, value)}
    return Apply(
        manifest={
            "apiVersion": kinds.NODE_TUNING.api_version,
            "kind": kinds.NODE_TUNING.name,
            "metadata": {
                "name": NAME,
                "labels": {names.LABEL_NAME: "vespiary"},
                "annotations": {names.ANNOTATION_CHART_VALUES: values},
            },
            "spec": _tree(written),
        },
        reason="Created" if found is None else "Changed",
        sentence=f"The BrokerNodeTuning {NAME} gets what the chart's values ask for.",
        manager=FIELD_MANAGER,
    )


def _annotations(found: Object | None) -> Mapping[str, Any]:
    return (found or {}).get("metadata", {}).get("annotations") or {}


def _written_before(
    record: str | None, found: Object | None, live: Mapping[Path, Any]
) -> dict[Path, Any]:
    """Return what the chart wrote last; without a record, what a hook did and still stands."""
    if record is not None:
        try:
            return dict(_leaves(json.loads(record)))
        except (ValueError, AttributeError):
            return {}  # somebody wrote into it: everything is taken as new
    managed = (found or {}).get("metadata", {}).get("managedFields") or ()
    owned = {
        path
        for entry in managed
        if entry.get("manager") == _HELM
        for path in _owned((entry.get("fieldsV1") or {}).get("f:spec") or {})
    }
    return {path: value for path, value in live.items() if path in owned}


def _owned(fields: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the paths that an entry of managedFields names."""
    for name, below in fields.items():
        if name.startswith("f:"):
            here = (*path, name[2:])
            yield here
            yield from _owned(below, here)


def _leaves(document: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the values of a document by path; a list is one value."""
    for name, value in document.items():
        here = (*path, name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _tree(leaves: Mapping[Path, Any]) -> dict[str, Any]:
    """Return the document that has these values."""
    document: dict[str, Any] = {}
    for path, value in leaves.items():
        place = document
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return document
