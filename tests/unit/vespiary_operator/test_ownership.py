"""Fields that were taken out of a Broker are found by who owns them."""

from __future__ import annotations

import copy
from typing import Any

from vespiary_operator.ownership import forgotten

MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {
        "name": "orders",
        "labels": {"app": "x"},
        "ownerReferences": [{"uid": "u", "kind": "Broker"}],
    },
    "spec": {
        "type": "ClusterIP",
        "ports": [{"name": "all", "port": 61616, "protocol": "TCP"}],
        "ipFamilies": ["IPv4"],
    },
}

OWNED: dict[str, Any] = {
    "f:metadata": {
        "f:labels": {"f:app": {}},
        "f:ownerReferences": {'k:{"uid":"u"}': {".": {}, "f:kind": {}, "f:uid": {}}},
    },
    "f:spec": {
        "f:type": {},
        "f:ipFamilies": {},
        "f:ports": {
            'k:{"port":61616,"protocol":"TCP"}': {".": {}, "f:name": {}, "f:port": {}},
        },
    },
}


def live(fields: dict[str, Any], manager: str = "us", operation: str = "Apply") -> dict[str, Any]:
    entry = {"manager": manager, "operation": operation, "fieldsV1": fields}
    return {"metadata": {"managedFields": [entry]}}


def test_what_is_owned_and_wanted_is_not_forgotten() -> None:
    assert forgotten(MANIFEST, live(OWNED), "us") == ""


def test_an_annotation_that_was_taken_out_is() -> None:
    owned = copy.deepcopy(OWNED)
    owned["f:metadata"]["f:annotations"] = {"f:team.example/x": {}}
    assert forgotten(MANIFEST, live(owned), "us") == "metadata.annotations"
    named = copy.deepcopy(MANIFEST)
    named["metadata"]["annotations"] = {"other": "y"}
    assert forgotten(named, live(owned), "us") == "metadata.annotations.team.example/x"


def test_an_entry_of_a_list_that_was_taken_out_is() -> None:
    owned = copy.deepcopy(OWNED)
    owned["f:spec"]["f:ports"]['k:{"port":61613,"protocol":"TCP"}'] = {".": {}, "f:port": {}}
    assert forgotten(MANIFEST, live(owned), "us") == "spec.ports[61613,TCP]"


def test_a_field_inside_an_entry_is() -> None:
    owned = copy.deepcopy(OWNED)
    owned["f:spec"]["f:ports"]['k:{"port":61616,"protocol":"TCP"}']["f:nodePort"] = {}
    assert forgotten(MANIFEST, live(owned), "us") == "spec.ports[61616,TCP].nodePort"


def test_what_others_own_is_theirs() -> None:
    owned = copy.deepcopy(OWNED)
    owned["f:spec"]["f:externalTrafficPolicy"] = {}
    assert forgotten(MANIFEST, live(owned), "us") == "spec.externalTrafficPolicy"
    assert forgotten(MANIFEST, live(owned, manager="kubectl"), "us") == ""
    assert forgotten(MANIFEST, live(owned, operation="Update"), "us") == ""
    assert forgotten(MANIFEST, {"metadata": {}}, "us") == ""
