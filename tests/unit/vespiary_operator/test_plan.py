"""Decisions that the whole passes in test_reconciler do not single out."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_operator.actions import Apply, Create, Delete, described
from vespiary_operator.observation import Credentials, Observed
from vespiary_operator.options import Options
from vespiary_operator.plan import plan
from vespiary_operator.workload import image_of
from vespiary_spec.resources import API_VERSION, Broker

OPTIONS = Options(broker_image="registry:5000/team/broker:1.0.0")


def broker(status: dict[str, Any] | None = None, **spec: Any) -> Broker:
    return Broker.from_dict(
        {
            "apiVersion": API_VERSION,
            "kind": "Broker",
            "metadata": {"name": "orders", "namespace": "ns", "uid": "u"},
            "spec": spec,
            "status": status or {},
        }
    )


def live(image: str) -> dict[str, Any]:
    containers = [{"name": "broker", "image": image}]
    return {"spec": {"template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("found", "stateful_set", "image"),
    [
        (broker(), None, "registry:5000/team/broker:1.0.0"),
        (broker(version="2.0.0"), live("old:1"), "registry:5000/team/broker:2.0.0"),
        (broker(image="mine:3", version="2.0.0"), live("old:1"), "mine:3"),
        (broker({"image": "kept:1"}), live("edited:9"), "kept:1"),
        (broker(), live("old:1"), "old:1"),
    ],
)
def test_the_image_is_what_the_user_says_or_what_was_there(
    found: Broker, stateful_set: dict[str, Any] | None, image: str
) -> None:
    assert image_of(found, OPTIONS, stateful_set) == image


def test_a_digest_does_not_hinder_a_version() -> None:
    options = Options(broker_image="registry:5000/team/broker@sha256:abc")
    assert image_of(broker(version="2.0.0"), options, None) == "registry:5000/team/broker:2.0.0"
    assert image_of(broker(), options, None) == "registry:5000/team/broker@sha256:abc"


def observed(found: Broker, **more: Any) -> Observed:
    credentials = Credentials(new_password="pw", users_file="admin x\n", admin_password="pw")
    return Observed(broker=found, classes={}, volumes=(), credentials=credentials, **more)


def test_pods_come_last_and_their_secrets_first() -> None:
    planned = plan(observed(broker()), OPTIONS)
    assert [described(action) for action in planned.actions] == [
        "create Secret/orders-credentials",
        "apply ServiceAccount/orders-broker",
        f"apply ConfigMap/{_config_map(planned.actions)}",
        "apply ConfigMap/orders-live-config",
        "apply Secret/orders-users",
        "apply Service/orders-headless",
        "apply Service/orders",
        "apply PodDisruptionBudget/orders",
        "apply StatefulSet/orders",
    ]
    assert isinstance(planned.actions[0], Create)
    assert plan(observed(broker()), OPTIONS) == planned, "the same input gives the same plan"


def _config_map(actions: Any) -> str:
    return next(
        str(a.manifest["metadata"]["name"])
        for a in actions
        if isinstance(a, Apply) and a.manifest["kind"] == "ConfigMap"
    )


def test_a_password_is_in_no_log_line_and_no_sentence() -> None:
    planned = plan(observed(broker()), OPTIONS)
    said = [planned.reason, *(a.sentence for a in planned.actions)]
    said += [described(a) for a in planned.actions]
    assert not any("pw" in text for text in said)


def test_a_config_map_of_another_content_is_deleted_not_written() -> None:
    first = plan(observed(broker()), OPTIONS)
    name = _config_map(first.actions)
    other = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": "x",
            "ownerReferences": [{"uid": "u"}],
            "labels": {},
        },
        "immutable": True,
        "data": {"broker.yaml": "evil: true"},
    }
    for action in first.actions:
        if isinstance(action, Apply) and action.manifest.get("immutable"):
            other["metadata"] = {**action.manifest["metadata"], "uid": "x"}
    planned = plan(observed(broker(), children={("ConfigMap", name): other}), OPTIONS)
    (deletion,) = (a for a in planned.actions if isinstance(a, Delete))
    assert (deletion.name, deletion.uid) == (name, "x")
