"""What counts as a difference between a manifest and a live object."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.drift import difference, quantity


@pytest.mark.parametrize(
    ("wanted", "found", "where"),
    [
        ({"spec": {"a": 1}}, {"spec": {"a": 1, "added": 2}}, ""),
        ({"spec": {"a": 1}}, {"spec": {"a": 2}}, "spec.a"),
        ({"spec": {"a": 1}}, {"spec": {}}, "spec.a"),
        ({"spec": {"a": 0}}, {"spec": {}}, ""),
        ({"spec": {"a": False, "b": {}, "c": []}}, {"spec": {}}, ""),
        ({"spec": {"a": 0}}, {"spec": {"a": 1}}, "spec.a"),
        ({"spec": {"selector": {"a": "1"}}}, {"spec": {"selector": {"a": "1", "b": "2"}}}, "x"),
        ({"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"a": "1", "b": "2"}}}, ""),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 1, "nodePort": 3}]}, ""),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 1}, {"port": 2}]}, "ports"),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 2}]}, "ports[0].port"),
        ({"env": [{"name": "a", "value": "1"}]}, {"env": [{"name": "b"}, {"name": "a"}]}, "x"),
        ({"env": [{"name": "a"}]}, {"env": [{"name": "b"}, {"name": "a"}]}, ""),
        ({"env": [{"name": "a"}]}, {"env": [{"name": "b"}]}, "env[a]"),
        ({"containers": [{"name": "a"}]}, {}, "containers"),
        (
            {"resources": {"requests": {"cpu": "1000m"}}},
            {"resources": {"requests": {"cpu": "1"}}},
            "",
        ),
        ({"requests": {"storage": "1024Mi"}}, {"requests": {"storage": "1Gi"}}, ""),
        ({"requests": {"storage": "1Gi"}}, {"requests": {"storage": "1G"}}, "requests.storage"),
        ({"sizeLimit": "x"}, {"sizeLimit": "y"}, "sizeLimit"),
        ({"spec": {"a": 1}}, None, "."),
    ],
)
def test_differences(wanted: Any, found: Any, where: str) -> None:
    got = difference(wanted, found)
    assert (got == where) if where != "x" else got


def test_what_is_no_quantity_is_none() -> None:
    assert quantity("ten") is None
    assert quantity("1Ki") == 1024
