"""JSON schemas for kubeconform, made from what an API server says of its own kinds.

Owns: the few places where that description is looser or stricter than the server.
Never: downloads anything. Called by: tests/e2e/test_helm.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"


def _strict(definition: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields that are not described, where any are."""
    if "properties" in definition and "additionalProperties" not in definition:
        is_open = definition.get("x-kubernetes-preserve-unknown-fields")
        return definition if is_open else {**definition, "additionalProperties": False}
    return definition


def write(openapi: dict[str, Any], folder: Path) -> int:
    """Write one schema for each kind; return how many there are.

    Args:
        openapi: The answer to `/openapi/v2`.
        folder: Where `KIND-GROUP-VERSION.json` is written, as kubeconform asks for it.
    """
    definitions = {name: _strict(found) for name, found in openapi["definitions"].items()}
    definitions[INT_OR_STRING] = {"type": ["integer", "string"]}
    definitions[QUANTITY] = {"type": ["number", "string"]}
    (folder / "definitions.json").write_text(json.dumps({"definitions": definitions}))
    count = 0
    for name, definition in openapi["definitions"].items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            group = str(kind["group"]).partition(".")[0].lower()
            parts = [str(kind["kind"]).lower(), *([group] if group else []), str(kind["version"])]
            reference = {"$ref": f"definitions.json#/definitions/{name}"}
            (folder / f"{'-'.join(parts)}.json").write_text(json.dumps(reference))
            count += 1
    return count
