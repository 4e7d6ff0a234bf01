"""The CEL rules name fields that there are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from vespiary_spec.gen import crds


def rules_of(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every rule with the schema of what it calls `self`."""
    found = [(rule["rule"], schema) for rule in schema.get("x-kubernetes-validations", ())]
    for child in (*schema.get("properties", {}).values(), schema.get("items")):
        if isinstance(child, dict):
            found += rules_of(child)
    return found


def schemas() -> list[dict[str, Any]]:
    return [
        version["schema"]["openAPIV3Schema"]
        for definition in crds.definitions().values()
        for version in definition["spec"]["versions"]
    ]


@pytest.mark.parametrize("schema", schemas())
def test_every_path_of_a_rule_is_in_the_schema(schema: dict[str, Any]) -> None:
    rules = rules_of(schema)
    assert rules
    for rule, at in rules:
        for path in re.findall(r"\b(?:self|oldSelf)((?:\.\??[A-Za-z]+)+)", rule):
            place = at
            for name in re.findall(r"[A-Za-z]+", path):
                properties = place.get("properties")
                if properties is None or (name not in properties and name == "metadata"):
                    break  # a function of CEL, or what every object has
                if f"{name}(" in rule and name not in properties:
                    break
                assert name in properties, f"{rule}: there is no {name}"
                place = properties[name]
