"""Claims that share, and what claims that are there already are given."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.actions import Apply
from vespiary_operator.builders.pod_template import pod_template, volumes_of
from vespiary_operator.builders.statefulset import claim_template
from vespiary_operator.claim_attributes import MANAGER, changes
from vespiary_operator.observation import Observed
from vespiary_spec.configuration import from_broker
from vespiary_spec.errors import ConfigError
from vespiary_spec.resources import API_VERSION, Broker


def broker(volumes: dict[str, Any] | None = None, **spec: Any) -> Broker:
    if volumes is not None:
        spec["storage"] = {"volumes": volumes}
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
            "spec": spec,
        }
    )


def test_a_volume_that_shares_has_a_folder_and_no_claim() -> None:
    found = broker({"paging": {"shareWith": "journal"}, "jms": {"shareWith": "largeMessages"}})
    from_broker(found)
    assert volumes_of(found) == ("bindings", "journal", "large-messages")
    template = pod_template(found, image="b", pull_policy="Always", config_map="c")
    for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
        mounts = {
            m["mountPath"].rpartition("/")[2]: (m["name"], m.get("subPath", ""))
            for m in container["volumeMounts"]
            if m["mountPath"].startswith("/var/lib/vespiary/")
        }
        assert mounts == {
            "bindings": ("bindings", ""),
            "journal": ("journal", "journal"),
            "paging": ("journal", "paging"),
            "large-messages": ("large-messages", "large-messages"),
            "jms": ("large-messages", "jms"),
        }


@pytest.mark.parametrize(
    ("volumes", "path"),
    [
        ({"paging": {"shareWith": "journal", "size": "1Gi"}}, "volumes.paging"),
        ({"paging": {"shareWith": "paging"}}, "paging.shareWith"),
        (
            {"paging": {"shareWith": "journal"}, "journal": {"shareWith": "bindings"}},
            "paging.shareWith",
        ),
        ({"journal": {"metadata": {"labels": {"vespiary.dev/x": "y"}}}}, "metadata.labels"),
        (
            {"journal": {"metadata": {"annotations": {"pv.kubernetes.io/x": "y"}}}},
            "metadata.annotations",
        ),
    ],
)
def test_what_cannot_be_shared_or_said_is_refused(volumes: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        from_broker(broker(volumes))
    assert path in refused.value.path


SAID = broker(
    {
        "journal": {
            "metadata": {"labels": {"tier": "gold"}, "annotations": {"backup/plan": "daily"}},
            "volumeAttributesClassName": "quick",
        }
    },
    inheritedMetadata={"labels": {"team": "blue", "tier": "none"}},
)


def claim(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def test_new_claims_have_it_from_their_template() -> None:
    template = claim_template(SAID, "journal")
    assert template["metadata"]["labels"]["tier"] == "gold"
    assert template["metadata"]["labels"]["team"] == "blue"
    assert template["metadata"]["labels"]["app.kubernetes.io/instance"] == "orders"
    assert template["metadata"]["annotations"] == {"backup/plan": "daily"}
    assert template["spec"]["volumeAttributesClassName"] == "quick"
    assert "annotations" not in claim_template(broker(), "journal")["metadata"]


def test_claims_that_are_there_get_it_under_a_manager_of_their_own() -> None:
    claims = {name: claim(name) for name in ("journal-orders-0", "journal-orders-x", "other-0")}
    classes = frozenset({"quick"})
    actions, warnings = changes(Observed(broker=SAID, claims=claims, attributes_classes=classes))
    assert warnings == []
    (action,) = actions
    assert isinstance(action, Apply)
    assert action.manager == MANAGER
    assert action.manifest["metadata"]["name"] == "journal-orders-0"
    assert action.manifest["metadata"]["labels"] == {"team": "blue", "tier": "gold"}
    assert action.manifest["spec"] == {"volumeAttributesClassName": "quick"}
    claims["journal-orders-0"] = {
        "metadata": action.manifest["metadata"],
        "spec": action.manifest["spec"],
    }
    assert changes(Observed(broker=SAID, claims=claims, attributes_classes=classes))[0] == []


def test_a_class_that_is_not_there_is_named_and_not_asked_for() -> None:
    claims = {"journal-orders-0": claim("journal-orders-0")}
    observed = Observed(broker=SAID, claims=claims, attributes_classes=frozenset({"slow"}))
    (action,), (warning,) = changes(observed)
    assert isinstance(action, Apply)
    assert "spec" not in action.manifest
    assert "VolumeAttributesClass quick, which does not exist (there are: slow)" in warning
    assert "spec.storage.volumes.journal.volumeAttributesClassName" in warning


def test_what_was_taken_out_is_taken_from_claims() -> None:
    entry = {
        "manager": MANAGER,
        "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}}},
    }
    live = claim("journal-orders-0", volumeAttributesClassName="quick")
    live["metadata"] |= {"labels": {"tier": "gold"}, "managedFields": [entry]}
    observed = Observed(broker=broker({}), claims={"journal-orders-0": live})
    ((action,), _) = changes(observed)
    assert isinstance(action, Apply)
    assert "labels" not in action.manifest["metadata"]
    assert action.manifest["spec"] == {"volumeAttributesClassName": "quick"}, "it cannot go"
